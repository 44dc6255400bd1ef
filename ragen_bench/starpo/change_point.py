"""Where a curve breaks: the least-squares fit of two levels.

The fit looks back over a whole curve; it is for reports, while
`ragen_bench.starpo.echo_trap` watches a training as it runs.
"""

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A break of a curve into two levels."""

    index: int
    """The first place of the second level."""
    before: float
    """Mean of the places before."""
    after: float
    """Mean from there on."""
    explained: float
    """Share of the curve's sum of squares that the break explains, in [0, 1]."""


def change_point(
    values: Sequence[float], margin: int = 3, explained: float = 0.5
) -> ChangePoint | None:
    """Return the break that two constant levels fit best, or None if none fits well.

    Chooses the k that minimises ``sum_{i<k} (x_i - mean_<k)^2 + sum_{i>=k} (x_i -
    mean_>=k)^2``, the maximum-likelihood estimate for one change of the mean under
    Gaussian noise (Hinkley 1970, doi 10.1093/biomet/57.1.1); of equal ones the first.
    White noise explains a few percent, a straight line 75 %: what is steep and what is
    gradual tell `before` and `after`, not `explained` alone.

    Args:
        values: The curve, finite.
        margin: Fewest places on either side, at least 1.
        explained: Least share of the sum of squares that the break must explain.
    """
    count = len(values)
    if count < 2 * margin:
        return None
    total, mean = math.fsum(values), math.fsum(values) / count
    squares = math.fsum((value - mean) ** 2 for value in values)
    if squares <= 1e-12 * count * max(1.0, mean * mean):
        return None
    best, gain, head = 0, -1.0, math.fsum(values[: margin - 1])
    for k in range(margin, count - margin + 1):
        head += values[k - 1]
        # What the break takes off the sum of squares.
        here = k * (count - k) / count * (head / k - (total - head) / (count - k)) ** 2
        if here > gain:
            best, gain = k, here
    if gain < explained * squares:
        return None
    return ChangePoint(
        index=best,
        before=math.fsum(values[:best]) / best,
        after=math.fsum(values[best:]) / (count - best),
        explained=min(1.0, gain / squares),
    )
