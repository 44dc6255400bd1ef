"""REINFORCE++: returns whitened over the batch, no groups (arXiv 2501.03262)."""

import torch

from ragen_bench.starpo.advantages import reinforce_pp
from ragen_bench.starpo.algorithm import Algorithm, Discounts, register_algorithm
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.gae import Estimate


def estimate(
    experience: Experience, values: torch.Tensor | None, by: Discounts
) -> Estimate:
    """Return whitened discounted returns."""
    mask = experience.pad(torch.ones_like(experience.turn_end))
    advantages = reinforce_pp(experience.pad(experience.rewards), mask, by.gamma)
    flat = experience.flat(advantages)
    nothing = torch.zeros_like(flat)
    return Estimate(advantages=flat, returns=nothing, value_mask=nothing.bool())


register_algorithm("reinforce_pp", Algorithm(estimate=estimate))
