"""`Algorithm`: how experience becomes advantages; one file of `algorithms` each."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias

import torch

from ragen_bench.registry import Registry
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.gae import Estimate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Discounts:
    """Numbers that estimators take."""

    gamma: float = 1.0
    """Between tokens."""
    lam: float = 1.0
    gamma_turn: float = 1.0
    """Between turns."""


Estimator: TypeAlias = Callable[[Experience, torch.Tensor | None, Discounts], Estimate]
"""Experience of A tokens and the critic's values [A], if any, to arrays [A]."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What tells one algorithm from another; clipping and the rest are settings.

    Calling it estimates the advantages.
    """

    estimate: Estimator
    critic: bool = False
    """Whether the estimator needs a critic."""

    def __call__(
        self, experience: Experience, values: torch.Tensor | None, by: Discounts
    ) -> Estimate:
        """Return advantages, and what the critic is to predict."""
        return self.estimate(experience, values, by)


ALGORITHMS: Registry[Algorithm] = Registry("algorithm", "ragen-bench ls algorithms")


def register_algorithm(name: str, algorithm: Algorithm) -> None:
    """Register an algorithm under a name.

    Raises:
        InvalidSpec: The name is taken by another one.
    """
    ALGORITHMS.add(name, algorithm)


def by_trajectory(
    advantages: Callable[[Experience], torch.Tensor],
) -> Estimator:
    """Return an estimator that gives all tokens of a trajectory one advantage.

    Args:
        advantages: Experience of N trajectories to [N] float.
    """

    @functools.wraps(advantages)
    def estimate(
        experience: Experience, values: torch.Tensor | None, by: Discounts
    ) -> Estimate:
        per_token = advantages(experience)[experience.trajectory]
        nothing = torch.zeros_like(per_token)
        return Estimate(
            advantages=per_token, returns=nothing, value_mask=nothing.bool()
        )

    return estimate
