"""Every pair of agents: difference, interval, p value after Holm, and the verdict."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from ragen_bench.intervals import (
    Estimate,
    Floats,
    bootstrap,
    composite,
    resample,
)
from ragen_bench.ranking.pairing import Pair, SharedCell, pair
from ragen_bench.ranking.permutation import holm, p_values
from ragen_bench.ranking.played import Played
from ragen_bench.ranking.separation import needed_seeds
from ragen_bench.records import Interval
from ragen_bench.seeding import child

ALPHA = 0.05
"""The greatest chance that agents which are alike are called different, anywhere
among all pairs of a comparison."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two agents compare."""

    first: str
    second: str
    gap: float | None
    """Score of the first less that of the second, None if nothing is shared."""
    difference: Interval | None
    """The same with an interval, None if none was asked for."""
    p: float
    """Two-sided, of this pair alone."""
    holm_p: float
    """Corrected for all pairs."""
    shared: int
    """Episodes."""
    left_out: int
    seeds: int
    """The fewest shared instances of a cell."""
    seeds_needed: int | None
    """Seeds in each cell that would tell them apart, more than ``seeds``; None: they
    are apart already, no number would, it cannot be told, or it was not asked for."""

    @property
    def winner(self) -> str | None:
        """The better one, None if they are tied."""
        if self.gap is None or self.holm_p > ALPHA:
            return None
        return self.first if self.gap > 0 else self.second

    @property
    def verdict(self) -> str:
        """Such as ``"a beats b"``, ``"tied"`` or ``"nothing shared"``."""
        if self.gap is None:
            return "nothing shared"
        if self.winner is None:
            return "tied"
        loser = self.second if self.winner == self.first else self.first
        return f"{self.winner} beats {loser}"


def pairs(played: Sequence[Played]) -> list[Pair]:
    """Return every two agents once, in order."""
    return [pair(one, other) for one, other in itertools.combinations(played, 2)]


def compare(
    found: Sequence[Pair], *, intervals: bool = True, seeds: bool = False
) -> list[Comparison]:
    """Return how the agents of each pair compare, corrected for their number.

    Args:
        found: The pairs, all of which count in the correction.
        intervals: Whether to compute an interval for each difference.
        seeds: Whether to find how many would tell tied agents apart.
    """
    values = p_values([one.parts() for one in found])
    adjusted = holm(values)
    ranges = difference_intervals(found) if intervals else [None] * len(found)
    alpha = ALPHA / max(len(found), 1)  # the least that Holm's correction asks for
    return [
        Comparison(
            first=one.first.label,
            second=one.second.label,
            gap=one.gap() if one.cells else None,
            difference=difference,
            p=p,
            holm_p=corrected,
            shared=one.shared,
            left_out=one.left_out,
            seeds=min((cell.instances for cell in one.cells), default=0),
            seeds_needed=(
                needed_seeds(one, alpha) if seeds and corrected > ALPHA else None
            ),
        )
        for one, p, corrected, difference in zip(
            found, values, adjusted, ranges, strict=True
        )
    ]


def difference_intervals(found: Sequence[Pair]) -> list[Interval]:
    """Return the difference of each pair with its 95 % interval.

    That of `ragen_bench.intervals`: instances are drawn again in each cell, both
    agents' results on one going together.
    """
    parts: list[list[tuple[float, Estimate]]] = [[] for _ in found]
    same: dict[tuple[object, ...], list[tuple[int, SharedCell]]] = {}
    for i, one in enumerate(found):
        for cell in one.cells:
            # Pairs that share the same episodes of a cell can share its draws.
            same.setdefault((cell.name, cell.keys), []).append((i, cell))
    for group in same.values():
        name, owner = group[0][1].name, group[0][1].owner
        counts = np.bincount(owner).astype(float)
        sums = np.stack([counts, *(cell.sums() for _, cell in group)], axis=1)
        totals = resample(sums, child(0, "pairs", name))
        draws = totals[:, 1:] / totals[:, :1]
        for j, (i, cell) in enumerate(group):
            weight = found[i].weights()[name]
            parts[i].append((weight, _estimate(cell, draws[:, j])))
    return [composite(part) for part in parts]


def _estimate(cell: SharedCell, draws: Floats) -> Estimate:
    """Return the mean gain of a cell in units of its room, from resampled means."""
    # The most that one agent can be ahead of the other is all the room.
    return bootstrap(
        cell.normalized(),
        draws / cell.room,
        cell.instances,
        len(cell.keys),
        worst=-1.0,
        best=1.0,
    )
