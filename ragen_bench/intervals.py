"""95 % intervals: Wilson for rates, a cluster bootstrap for returns and composites.

Episodes on one instance are alike, so instances and not episodes are what was
sampled: everything here works on sums over each cluster of episodes on an instance.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ragen_bench.records import Interval

Floats: TypeAlias = NDArray[np.float64]

RESAMPLES = 2000

_Z = 1.959963984540054
"""97.5 % point of the normal distribution."""
_DIGITS = 10
"""Decimals kept, so that sums in another order give the same bytes."""
_SAME = 1e-9
"""Draws that spread no wider than this show no variation."""


def rounded(value: float | None) -> float | None:
    """Return a number as records keep it."""
    return None if value is None else round(float(value), _DIGITS)


def interval(
    mean: float | None, low: float | None, high: float | None, n: int
) -> Interval:
    """Return an interval as records keep it, around its mean."""
    if mean is None or low is None or high is None:
        return Interval(mean=rounded(mean), low=None, high=None, n=n)
    return Interval(
        mean=rounded(mean),
        low=rounded(min(low, mean)),
        high=rounded(max(high, mean)),
        n=n,
    )


def wilson(rate: float, n: float) -> tuple[float, float]:
    """Return the limits of a rate that n independent trials gave.

    Wilson (1927), the score interval without continuity correction.

    Args:
        rate: Share of successes, in [0, 1].
        n: Trials, more than 0; a fraction where trials are not independent.
    """
    shrink = 1 + _Z * _Z / n
    centre = (rate + _Z * _Z / (2 * n)) / shrink
    half = _Z / shrink * math.sqrt(rate * (1 - rate) / n + _Z * _Z / (4 * n * n))
    low = 0.0 if rate == 0 else centre - half
    high = 1.0 if rate == 1 else centre + half
    return low, high


def effective_n(successes: Floats, sizes: Floats) -> float:
    """Return how many independent episodes clustered ones are worth.

    It is n / deff, where the design effect deff is the cluster-robust variance of
    the rate over the variance of n independent episodes, at least 1.  Where all
    episodes ended alike nothing is known of how much repeats resemble each other:
    then each cluster counts once, as it must if repeats are copies.

    Args:
        successes: [K], successes of each cluster.
        sizes: [K], episodes of each cluster, at least 1.
    """
    n = float(sizes.sum())
    clusters = len(sizes)
    rate = float(successes.sum()) / n
    independent = rate * (1 - rate) / (n - 1) if n > 1 else 0.0
    if clusters < 2 or independent == 0:
        return float(clusters)
    residuals = successes - rate * sizes
    robust = clusters / (clusters - 1) * float(residuals @ residuals) / (n * n)
    return n / max(1.0, robust / independent)


def rate_interval(successes: Floats, sizes: Floats) -> Interval:
    """Return a success rate with its Wilson interval, clustered by instance.

    Args:
        successes: [K], successes of each cluster.
        sizes: [K], episodes of each cluster, at least 1; K may be 0.
    """
    if len(sizes) == 0:
        return interval(None, None, None, 0)
    n = float(sizes.sum())
    rate = float(successes.sum()) / n
    return interval(rate, *wilson(rate, effective_n(successes, sizes)), int(n))


def resample(sums: Floats, rng: np.random.Generator) -> Floats:
    """Return sums over clusters that are drawn again and again.

    K - 1 of K clusters are drawn with replacement, which makes the variance of a
    mean over the draws unbiased (Rao and Wu 1988); K of K would make it too small
    by a factor of (K - 1) / K.  A single cluster is drawn as it is.

    Args:
        sums: [K, M], what is summed over each cluster; K is at least 1.
        rng: Draws the clusters.

    Returns:
        [RESAMPLES, M].
    """
    clusters = len(sums)
    totals = np.empty((RESAMPLES, sums.shape[1]))
    for i in range(RESAMPLES):
        drawn = rng.integers(clusters, size=max(clusters - 1, 1))
        totals[i] = np.bincount(drawn, minlength=clusters).astype(float) @ sums
    return totals


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean of one cell, with what it takes to put it into a composite."""

    interval: Interval
    draws: Floats | None = None
    """[RESAMPLES], the mean of each resample, where the interval comes from them."""
    freedom: float = math.inf
    """Degrees of freedom of the draws' variance."""


def unknown(n: int, mean: float | None = None) -> Estimate:
    """Return the estimate of which at most the mean is known."""
    return Estimate(interval=interval(mean, None, None, n))


def bootstrap(
    mean: float, draws: Floats, clusters: int, n: int, worst: float, best: float
) -> Estimate:
    """Return an estimate with its percentile interval.

    The percentiles are those of Student's t with K - 1 degrees of freedom (expanded
    percentiles, Hesterberg 2015, section 5.2).  Where all clusters agree the draws
    would claim certainty.  Then up to a share u of the instances that were not seen
    may differ, with u Wilson's upper limit for 0 of K, and they may lie as far off
    as ``worst`` and ``best``.  One cluster alone says nothing of others: no limits.

    Args:
        mean: The estimate.
        draws: [RESAMPLES], the mean of each resample.
        clusters: K, how many instances.
        n: How many episodes.
        worst: What a poor player gets, such as the floor.
        best: What a perfect player gets, such as the ceiling.
    """
    if clusters < 2:
        return unknown(n, mean)
    if draws.max() - draws.min() <= _SAME:
        share = wilson(0.0, clusters)[1]
        low = mean - share * max(0.0, mean - worst)
        high = mean + share * max(0.0, best - mean)
        return Estimate(interval=interval(mean, low, high, n))
    low, high = _percentiles(draws, clusters - 1)
    return Estimate(
        interval=interval(mean, low, high, n), draws=draws, freedom=clusters - 1
    )


def composite(parts: Sequence[tuple[float, Estimate]]) -> Interval:
    """Return the weighted sum of estimates of different cells.

    Cells whose intervals come from a bootstrap are resampled together, each from its
    own clusters.  The others add the distances to their own limits in quadrature
    (MOVER, Zou and Donner 2008), which keeps what Wilson says of perfect records.

    Args:
        parts: Weights, which add up to 1, and estimates.  The sum is unknown if one
            of them is; a single one keeps its own interval.
    """
    if len(parts) == 1:
        return parts[0][1].interval
    n = sum(part.interval.n for _, part in parts)
    mean = weighted([(weight, part.interval.mean) for weight, part in parts])
    if mean is None:
        return interval(None, None, None, n)
    below, above = _resampled(parts)
    for weight, part in parts:
        held = part.interval
        if held.mean is None or held.low is None or held.high is None:
            return interval(mean, None, None, n)
        if part.draws is None:
            below = math.hypot(below, weight * (held.mean - held.low))
            above = math.hypot(above, weight * (held.high - held.mean))
    return interval(mean, mean - below, mean + above, n)


def weighted(parts: Sequence[tuple[float, float | None]]) -> float | None:
    """Return a weighted sum, None if there is nothing or something is unknown."""
    total = 0.0
    for weight, value in parts:
        if value is None:
            return None
        total += weight * value
    return total if parts else None


def _resampled(parts: Sequence[tuple[float, Estimate]]) -> tuple[float, float]:
    """Return how far below and above their mean the resampled parts may lie."""
    draws = np.zeros(RESAMPLES)
    mean = variance = spread = 0.0
    for weight, part in parts:
        if part.draws is not None and part.interval.mean is not None:
            draws += weight * part.draws
            mean += weight * part.interval.mean
            own = (weight * float(part.draws.std())) ** 2
            variance += own
            spread += own * own / part.freedom
    if spread == 0:
        return 0.0, 0.0
    # Satterthwaite's degrees of freedom of a sum of variances.
    low, high = _percentiles(draws, variance * variance / spread)
    return mean - low, high - mean


def _percentiles(draws: Floats, freedom: float) -> tuple[float, float]:
    from scipy import special

    tail = float(special.ndtr(special.stdtrit(freedom, 0.025)))
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)
