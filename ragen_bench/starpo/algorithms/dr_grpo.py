"""Dr. GRPO: returns centred within the group, not divided (arXiv 2503.20783)."""

from ragen_bench.starpo.advantages import group_centred
from ragen_bench.starpo.algorithm import Algorithm, by_trajectory, register_algorithm

register_algorithm(
    "dr_grpo",
    Algorithm(estimate=by_trajectory(lambda e: group_centred(e.returns, e.groups))),
)
