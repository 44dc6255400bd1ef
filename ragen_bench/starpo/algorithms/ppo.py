"""PPO: generalised advantages of a critic, token by token (arXiv 1707.06347)."""

import torch

from ragen_bench.starpo.advantages import whiten
from ragen_bench.starpo.algorithm import Algorithm, Discounts, register_algorithm
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.gae import Estimate, gae


def estimate(
    experience: Experience, values: torch.Tensor | None, by: Discounts
) -> Estimate:
    """Return whitened advantages, as verl and RAGEN use them."""
    found = gae(experience.rollout(values), by.gamma, by.lam)
    return experience.flatten(found, whiten)


register_algorithm("ppo", Algorithm(estimate=estimate, critic=True))
