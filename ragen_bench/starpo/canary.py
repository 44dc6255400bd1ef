"""The sync canary: engine and trainer must think the same of the same tokens.

An engine that plays with other weights than are trained (an update that did not arrive,
an adapter that was left out, keys and values of older weights) makes experience that
looks sound and is not.  Scoring one sequence by both finds that out.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch

from ragen_bench.errors import RunIncomplete
from ragen_bench.starpo.trajectories import Trajectory

LARGEST = 1e-3
"""Difference of a token's log-probability in float32 that may be rounding, nats."""
MEAN = 0.05
"""Mean difference in half precision that may be rounding, nats."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Absolute differences of log-probabilities over one sequence, in nats."""

    mean: float
    largest: float
    tokens: int
    """How many were compared."""


def sequence(trajectories: Sequence[Trajectory]) -> list[int]:
    """Return the shortest first prompt of a rollout phase and the reply to it.

    Nothing where no episode got a reply, as when no prompt fits into the context.
    """
    segments = [one.segments[0] for one in trajectories if one.segments]
    if not segments:
        return []
    shortest = min(segments, key=lambda segment: segment.turns[0].end)
    return shortest.ids[: shortest.turns[0].end]


def compare(theirs: Sequence[float], ours: torch.Tensor) -> Reading:
    """Return how far an engine and a trainer are apart.

    Args:
        theirs: [n], by the engine.
        ours: [n], by the trainer.

    Raises:
        RunIncomplete: The engine scored another number of tokens.
    """
    if len(theirs) != len(ours):
        raise RunIncomplete(
            f"an engine gave {len(theirs)} log-probabilities for {len(ours)} tokens; "
            "its score must give one for each token but the first"
        )
    apart = (torch.tensor(theirs) - ours.float().cpu()).abs()
    return Reading(
        mean=float(apart.mean()), largest=float(apart.max()), tokens=len(apart)
    )


def check(reading: Reading, precision: str, version: int) -> None:
    """Refuse to go on with an engine that plays other weights.

    Args:
        reading: Of a sequence.
        precision: In which the less precise of the two computes.
        version: Of the weights.

    Raises:
        RunIncomplete: The difference cannot be rounding, or is no number.
    """
    if not math.isfinite(reading.mean):
        raise RunIncomplete(
            f"the training diverged: with version {version} of the weights "
            f"log-probabilities of {reading.tokens} tokens are not finite; lower lr or "
            "grad_clip, with another --out, as the same command comes to the same"
        )
    exact = precision == "float32"
    found, most = (reading.largest, LARGEST) if exact else (reading.mean, MEAN)
    if found <= most:
        return
    raise RunIncomplete(
        f"the engine plays other weights than are trained: with version {version} its "
        f"log-probabilities of {reading.tokens} tokens differ from the trainer's by "
        f"{reading.mean:.3g} on average and {reading.largest:.3g} at most, but "
        f"{'at most' if exact else 'on average'} {most} is rounding in {precision}; "
        "the same command goes on from the last checkpoint, and with engine='hf' and "
        "engine_dtype='float32' in another --out the fault is the engine's if it stays "
        "away"
    )
