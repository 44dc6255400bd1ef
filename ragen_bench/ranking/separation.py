"""How many seeds would tell two agents apart, by the very test that decides.

Instances are taken to differ as those that both played.  Where many of the seeds that
are asked for would differ, the test's normal approximation says how many it takes.
Where few would, whole sign flips decide, and it is played: instances are drawn from
those seen, and the flips are counted.
"""

import math
from collections.abc import Sequence

import numpy as np

from ragen_bench.intervals import Floats
from ragen_bench.power import seeds_to_separate
from ragen_bench.ranking.pairing import Pair, SharedCell
from ragen_bench.ranking.permutation import p_values
from ragen_bench.seeding import child

POWER = 0.8
"""Chance that so many seeds tell two agents apart."""
_MANY = 64
"""Instances that differ, above which the approximation is good to some 5 %."""
_PLAYED = 250
"""Comparisons that are played for one number of seeds."""
_FLIPS = 1000
"""Flips that are drawn for each of them: its p value is good to some 5 %."""
_FINE = 32
"""The seeds asked for are good to 1 in so many."""


def needed_seeds(one: Pair, alpha: float) -> int | None:
    """Return the seeds in each cell that would tell apart two agents that are tied.

    Args:
        one: The agents on what they share.
        alpha: The greatest p value that tells them apart.

    Returns:
        More than the fewest that a cell has.  None: their scores are equal, or a cell
        has too few instances to say.
    """
    if not one.cells or any(cell.instances < 2 for cell in one.cells):
        return None
    weights = one.weights()
    parts = [weights[cell.name] * _means(cell) for cell in one.cells]
    about = seeds_to_separate(
        one.gap(),
        sum(float(each.var(ddof=1)) for each in parts),
        sum(float(np.square(each).mean()) for each in parts),
        power=POWER,
        alpha=alpha,
    )
    if about is None:
        return None
    if about * sum(float((each != 0).mean()) for each in parts) <= _MANY:
        about = _Played(parts, alpha, one.gap() > 0).fewest(about)
    return max(about, 1 + min(cell.instances for cell in one.cells))


def _means(cell: SharedCell) -> Floats:
    """Return each instance's mean gain in units of the room."""
    counts = np.bincount(cell.owner, minlength=cell.instances)
    return cell.sums() / counts / cell.room


class _Played:
    """Comparisons on instances that are drawn from those seen.

    Args:
        parts: For each cell what each instance adds to the gap.
        alpha: The greatest p value that tells the agents apart.
        first: Whether it is the first that is better.
    """

    def __init__(self, parts: Sequence[Floats], alpha: float, first: bool) -> None:
        self._parts = parts
        self._alpha = alpha
        self._sign = 1 if first else -1
        # No sum of flips that is so long has a greater p value (Hoeffding 1963).
        self._sure = math.sqrt(2 * math.log(2 / alpha))

    def fewest(self, about: int) -> int:
        """Return the fewest seeds that keep the promise, sought around a number."""
        low, high = 0, about
        while not self._keeps(high):
            low, high = high, 2 * high
        while high - low > max(1, high // _FINE):
            middle = (low + high) // 2
            low, high = (low, middle) if self._keeps(middle) else (middle, high)
        return high

    def _keeps(self, seeds: int) -> bool:
        """Return whether so many seeds in each cell are enough."""
        # The same draws for every number, so that more seeds are seldom worse.
        rng = child(0, "separation")
        told = 0
        open_ones = []
        for _ in range(_PLAYED):
            places = [
                (rng.random(seeds) * len(part)).astype(int) for part in self._parts
            ]
            drawn = np.concatenate(
                [part[index] for part, index in zip(self._parts, places, strict=True)]
            )
            ahead = self._sign * float(drawn.sum())
            if ahead > self._sure * float(np.linalg.norm(drawn)):
                told += 1
            elif ahead > 0:
                open_ones.append(drawn)
        values = p_values(open_ones, draws=_FLIPS)
        told += sum(value <= self._alpha for value in values)
        return told >= POWER * _PLAYED
