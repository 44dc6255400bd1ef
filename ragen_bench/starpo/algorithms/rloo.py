"""RLOO: each return less the mean of the others in the group (arXiv 2402.14740)."""

from ragen_bench.starpo.advantages import leave_one_out
from ragen_bench.starpo.algorithm import Algorithm, by_trajectory, register_algorithm

register_algorithm(
    "rloo",
    Algorithm(estimate=by_trajectory(lambda e: leave_one_out(e.returns, e.groups))),
)
