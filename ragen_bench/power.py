"""How many episodes it takes to tell two models apart.

Two-sided z test on the difference of two success rates (normal approximation).  One
episode of each model adds 2 p (1 - p) (1 - r) to the variance of the difference, where
p is the success rate half-way between the two and r the correlation of the two
outcomes on one instance: 0 where each model plays instances of its own.  McNemar's
test without continuity correction is this test on shared instances.
"""

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

from ragen_bench.errors import InvalidSpec

_NORMAL = NormalDist()
_SLACK = 1e-9
"""Of a count, so that rounding asks for no further episode."""
_RANGES = {"gap": (0.001, 0.999), "alpha": (1e-6, 0.5)}
"""Beyond these no comparison can be played, and quantiles lose their digits."""
_MOST_POWER = 1 - 1e-6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison of two models is to show.

    Raises:
        InvalidSpec: A number is out of its range, or no two models can differ so.
    """

    gap: float
    """Difference of the success rates, in [0.001, 0.999]."""
    power: float = 0.8
    """Chance to find it if it is there, in (alpha, 1 - 1e-6]."""
    alpha: float = 0.05
    """Chance to find one that is not there, in [1e-6, 0.5]."""
    success: float = 0.5
    """Success rate half-way between the two, in (0, 1)."""
    correlation: float = 0.5
    """Of the two outcomes on a shared instance, in [-1, 1)."""

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidSpec(
                    f"{name} is {value!r}, but must be from {least:g} to {most:g}"
                )
        if not 0 < self.success < 1:
            raise InvalidSpec(
                f"success is {self.success!r}, but must be between 0 and 1"
            )
        if not self.alpha < self.power <= _MOST_POWER:
            raise InvalidSpec(
                f"power is {self.power!r}, but must be above alpha "
                f"({self.alpha:g}) and at most {_MOST_POWER}"
            )
        better, worse = self.success + self.gap / 2, self.success - self.gap / 2
        if worse < 0 or better > 1:
            raise InvalidSpec(
                f"success is {self.success:g} with a gap of {self.gap:g}, but no rates "
                f"{worse:.4g} and {better:.4g} exist; give another --success or --gap"
            )
        low, high = _correlations(better, worse)
        if not low <= self.correlation <= high:
            raise InvalidSpec(
                f"correlation is {self.correlation!r}, but outcomes of rates "
                f"{worse:.4g} and {better:.4g} can only have {low:.3g} to {high:.3g}"
            )

    @property
    def strictness(self) -> float:
        """How many standard errors the gap must be wide."""
        return strictness(self.power, self.alpha)

    def variance(self, *, paired: bool) -> float:
        """Return what one episode of each model adds to the difference's variance."""
        correlation = self.correlation if paired else 0.0
        return 2 * self.success * (1 - self.success) * (1 - correlation)


def strictness(power: float, alpha: float) -> float:
    """Return how many standard errors a gap must be wide to be found."""
    return _NORMAL.inv_cdf(1 - alpha / 2) + _NORMAL.inv_cdf(power)


def seeds_to_separate(
    gap: float,
    variance: float,
    flipped: float,
    *,
    power: float = 0.8,
    alpha: float = 0.05,
) -> int | None:
    """Return the seeds that each cell needs to show a gap that was seen.

    That of a sign-flip test of shared instances, by the normal approximation; with
    one cell of successes it is McNemar's (Connor 1987, Biometrics 43).  Too few where
    hardly any instance differs: `ragen_bench.ranking.separation` plays that case.

    Args:
        gap: Difference of the two scores.
        variance: Of that difference if each cell had one seed.
        flipped: The same if each instance's difference had a random sign, which is
            what the test compares with: its mean square, at least ``variance``.
        power: Chance to find it if it is there.
        alpha: Chance to find one that is not there.

    Returns:
        None if no number of seeds would show it: there is no gap.
    """
    if abs(gap) <= _SLACK:
        return None
    wide = _NORMAL.inv_cdf(1 - alpha / 2) * math.sqrt(flipped)
    wide += _NORMAL.inv_cdf(power) * math.sqrt(variance)
    return max(1, math.ceil((wide / gap) ** 2 - _SLACK))


def _correlations(better: float, worse: float) -> tuple[float, float]:
    """Return the range of correlations that two success rates leave."""
    if worse == 0 or better == 1:
        return 0.0, 0.0
    odds, odds_worse = better / (1 - better), worse / (1 - worse)
    both = math.sqrt(odds * odds_worse)
    return max(-both, -1 / both), math.sqrt(odds_worse / odds)


def episodes(
    comparison: Comparison, *, paired: bool, weights: Sequence[float] = (1.0,)
) -> int:
    """Return the seeds that each model needs in each cell.

    Args:
        comparison: What is to be shown, of the weighted mean over cells.
        paired: Whether both models play the same instances.
        weights: Of the cells, which add up to 1; all have the same seeds.
    """
    spread = sum(weight * weight for weight in weights)
    needed = comparison.variance(paired=paired) * spread
    ratio = comparison.strictness / comparison.gap
    return max(1, math.ceil(needed * ratio * ratio - _SLACK))


def visible_gap(
    comparison: Comparison,
    seeds: Sequence[int],
    *,
    paired: bool,
    weights: Sequence[float] = (1.0,),
) -> float:
    """Return the smallest gap that given seeds show with the comparison's power.

    Args:
        comparison: Its gap is not used.
        seeds: Of each cell.
        paired: Whether both models play the same instances.
        weights: Of the cells, which add up to 1.
    """
    spread = sum(w * w / n for w, n in zip(weights, seeds, strict=True))
    variance = comparison.variance(paired=paired) * spread
    return comparison.strictness * math.sqrt(variance)


def half_width(episodes: int, success: float = 0.5, level: float = 0.95) -> float:
    """Return half the width of a success rate's interval (normal approximation).

    Args:
        episodes: On instances of their own.
        success: The rate, in [0, 1].
        level: Of confidence, in (0, 1).
    """
    z = _NORMAL.inv_cdf((1 + level) / 2)
    return z * math.sqrt(success * (1 - success) / episodes)
