"""What ``gradients.csv`` shows: do regularisers outweigh the task, and where?"""

import dataclasses
from collections.abc import Sequence

from ragen_bench.starpo.training_log import Numbers

TASK = "task"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientBucket:
    """Groups of alike spread; norms are divided by their sampled tokens."""

    bucket: int
    """From 1, the smallest spread."""
    spread_low: float
    spread_high: float
    task: float
    regulariser: float
    """Sum of the norms of the other terms, which is at least that of their sum."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientPicture:
    """The buckets of an iteration, from small to large spread."""

    iteration: int
    buckets: tuple[GradientBucket, ...]

    @property
    def outweighed(self) -> tuple[int, ...]:
        """Numbers of the buckets whose task is weaker than the regularisers."""
        return tuple(
            one.bucket
            for one in self.buckets
            if one.regulariser > 0 and one.task <= one.regulariser
        )


def picture(rows: Sequence[tuple[str, Numbers]]) -> tuple[GradientPicture, ...]:
    """Return the pictures of the first and the last iteration that rows are of.

    Args:
        rows: Term of the loss and its numbers, each of an iteration and a bucket.
    """
    by_iteration: dict[int, dict[int, list[tuple[str, Numbers]]]] = {}
    for term, row in rows:
        iteration, number = int(row["iteration"] or 0), int(row["bucket"] or 0)
        by_iteration.setdefault(iteration, {}).setdefault(number, []).append(
            (term, row)
        )
    ends = sorted({min(by_iteration), max(by_iteration)}) if by_iteration else []
    return tuple(
        GradientPicture(
            iteration=iteration,
            buckets=tuple(
                _bucket(number, terms)
                for number, terms in sorted(by_iteration[iteration].items())
            ),
        )
        for iteration in ends
    )


def _bucket(number: int, terms: Sequence[tuple[str, Numbers]]) -> GradientBucket:
    norms = {term: row["norm_per_token"] or 0.0 for term, row in terms}
    first = terms[0][1]
    return GradientBucket(
        bucket=number,
        spread_low=first["spread_low"] or 0.0,
        spread_high=first["spread_high"] or 0.0,
        task=norms.get(TASK, 0.0),
        regulariser=sum(norm for term, norm in norms.items() if term != TASK),
    )
