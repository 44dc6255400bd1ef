"""Sign flips: how likely a difference is when two agents are alike.

If two agents are alike, either could have got the other's result on an instance, so
each instance's difference may as well have the other sign.  The test compares the sum
of the differences with its sums under all such flips (Fisher 1935), two-sided.  Cells
are strata: an instance stays in its own.

Few instances that differ (`EXACT`) are flipped in every way.  With more, signs are
drawn, not evenly but tilted towards the sum that was seen: a draw that is e times as
likely as under even signs counts 1/e (importance sampling; the tilt is that of the
saddlepoint, Robinson 1982, JRSS B 44).  That gives a p value of 1e-12 as precisely as
one of 0.05, to a few per cent of itself, so Holm's correction over hundreds of pairs
never meets the resolution of the draws.  All tests share one matrix of draws.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ragen_bench.intervals import Floats
from ragen_bench.seeding import child

EXACT = 13
"""Up to so many instances that differ, all flips are counted."""
DRAWS = 4000
_SAME = 1e-9
"""Sums closer than this, relative to the largest one, are equal."""
_SAME_DRAWN = 1e-6
"""The same of sums in single precision."""
_HALVINGS = 60


def p_values(tests: Sequence[Floats], *, draws: int = DRAWS) -> list[float]:
    """Return the two-sided p value of each sum of differences.

    Args:
        tests: For each test the differences, one for each instance.
        draws: How many flips are drawn where not all are counted.
    """
    sizes = [np.sort(np.abs(values[values != 0])) for values in tests]
    widest = max((len(size) for size in sizes), default=0)
    flips = None
    if widest > EXACT:
        rng = child(0, "sign flips")
        flips = rng.random((draws, widest), dtype=np.float32)
    found = []
    for values, size in zip(tests, sizes, strict=True):
        seen = abs(float(values.sum()))
        if len(size) <= EXACT:
            found.append(_counted(size, seen))
        else:
            assert flips is not None
            found.append(_drawn(size, seen, flips[:, : len(size)]))
    return found


def _counted(sizes: Floats, seen: float) -> float:
    """Return the share of all flips whose sum is as far from 0, or farther."""
    n = len(sizes)
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1  # [2**n, n]
    sums = np.abs((2.0 * bits - 1) @ sizes)
    return float((sums >= seen - _SAME * sizes.sum()).mean())


def _drawn(sizes: Floats, seen: float, draws: NDArray[np.float32]) -> float:
    """Return an estimate of that share from tilted draws.

    Args:
        sizes: [n], all above 0.
        seen: Distance of the sum from 0.
        draws: [D, n], uniform in [0, 1).
    """
    most = float(sizes.sum())
    if seen >= most * (1 - _SAME):
        # Only all signs alike lead so far.
        return float(2.0 ** (1 - len(sizes)))
    scaled = sizes / sizes.max()
    goal = seen / sizes.max()
    tilt = _tilt(scaled, goal)
    up = (1 / (1 + np.exp(-2 * tilt * scaled))).astype(np.float32)  # chance of a plus
    single = scaled.astype(np.float32)
    sums = 2.0 * ((draws < up).astype(np.float32) @ single) - scaled.sum()
    # Log of what even signs make of e ** (tilt * sum), on average.
    growth = float(np.logaddexp(tilt * scaled, -tilt * scaled).sum())
    growth -= len(scaled) * float(np.log(2))
    far = sums >= goal - _SAME_DRAWN * scaled.sum()
    weights = np.exp(growth - tilt * sums[far])
    return min(1.0, 2 * float(weights.sum()) / len(draws))


def _tilt(sizes: Floats, goal: float) -> float:
    """Return the tilt under which signed sizes sum to a goal, on average."""
    low, high = 0.0, 1.0
    while float(sizes @ np.tanh(high * sizes)) < goal and high < 1e6:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(sizes @ np.tanh(middle * sizes)) < goal:
            low = middle
        else:
            high = middle
    return low


def holm(values: Sequence[float]) -> list[float]:
    """Return p values that keep their meaning although so many were looked at.

    Holm (1979): the k-th smallest of n is multiplied by n + 1 - k, and none may be
    smaller than one before it.
    """
    adjusted = [1.0] * len(values)
    order = sorted(range(len(values)), key=values.__getitem__)
    held = 0.0
    for rank, place in enumerate(order):
        held = max(held, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = held
    return adjusted
