"""PPO with one step a turn: a reply is one action (GAE, arXiv 1506.02438)."""

import torch

from ragen_bench.starpo.advantages import whiten
from ragen_bench.starpo.algorithm import Algorithm, Discounts, register_algorithm
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.gae import Estimate, gae_turns


def estimate(
    experience: Experience, values: torch.Tensor | None, by: Discounts
) -> Estimate:
    """Return whitened advantages of turns."""
    found = gae_turns(experience.rollout(values), by.gamma_turn, by.lam)
    return experience.flatten(found, whiten)


register_algorithm("ppo_turn", Algorithm(estimate=estimate, critic=True))
