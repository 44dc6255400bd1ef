"""GRPO: returns normalised within the group (arXiv 2402.03300)."""

from ragen_bench.starpo.advantages import group_normalized
from ragen_bench.starpo.algorithm import Algorithm, by_trajectory, register_algorithm

register_algorithm(
    "grpo",
    Algorithm(estimate=by_trajectory(lambda e: group_normalized(e.returns, e.groups))),
)
