"""PPO with bi-level advantages: across turns, then within each (arXiv 2510.16907)."""

import torch

from ragen_bench.starpo.advantages import whiten
from ragen_bench.starpo.algorithm import Algorithm, Discounts, register_algorithm
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.gae import Estimate, gae_bilevel


def estimate(
    experience: Experience, values: torch.Tensor | None, by: Discounts
) -> Estimate:
    """Return whitened bi-level advantages."""
    rollout = experience.rollout(values)
    found = gae_bilevel(rollout, by.gamma, by.gamma_turn, by.lam)
    return experience.flatten(found, whiten)


register_algorithm("ppo_bilevel", Algorithm(estimate=estimate, critic=True))
