"""Intervals hold the truth as often as they say, also where episodes are alike."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from ragen_bench.intervals import (
    RESAMPLES,
    Estimate,
    bootstrap,
    composite,
    effective_n,
    interval,
    rate_interval,
    resample,
    unknown,
    wilson,
)
from ragen_bench.seeding import child


def rate(successes, sizes):
    return rate_interval(np.array(successes, float), np.array(sizes, float))


def estimate(values, worst=0.0, best=1.0) -> Estimate:
    """Return the bootstrap of a mean over clusters of one episode each."""
    sums = np.array([(1.0, value) for value in values])
    totals = resample(sums, child(0, "test", len(values)))
    draws = totals[:, 1] / totals[:, 0]
    mean = float(np.mean(values))
    return bootstrap(mean, draws, len(values), len(values), worst, best)


@pytest.mark.parametrize(
    ("n", "percent"),
    [(10, 27.8), (30, 11.4), (64, 5.7), (100, 3.7), (256, 1.5)],
)
def test_no_success_in_n_leaves_wilsons_upper_limit(n, percent):
    low, high = wilson(0.0, n)
    assert low == 0.0
    assert round(100 * high, 1) == percent
    assert wilson(1.0, n) == (pytest.approx(1 - high), 1.0)


@pytest.mark.parametrize(("c", "n"), [(1, 7), (20, 64), (255, 256), (3, 3)])
def test_independent_episodes_have_the_textbook_interval(c, n):
    known = binomtest(c, n).proportion_ci(method="wilson")
    found = rate([1] * c + [0] * (n - c), [1] * n)
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-9)
    assert (found.mean, found.n) == (pytest.approx(c / n), n)


def test_single_episodes_count_fully_and_copies_count_once():
    singles = np.array([1.0, 0, 0, 1, 1, 0, 0, 1])
    assert effective_n(singles, np.ones(8)) == pytest.approx(8)
    # Four copies of each: robust variance 8/7 * 8 * 2^2 / 32^2 = 1/28, against 1/124.
    assert effective_n(4 * singles, np.full(8, 4.0)) == pytest.approx(32 * 28 / 124)


def test_design_effect_agrees_with_a_sum_worked_by_hand():
    # Rates 1 and 1/2 over two clusters of two: p = 3/4, residuals +-1/2,
    # robust variance 2 * (1/4 + 1/4) / 16 = 1/16 = (3/16) / 3: no effect at all.
    assert effective_n(np.array([2.0, 1.0]), np.array([2.0, 2.0])) == 4
    # Rates 1 and 0: p = 1/2, residuals +-1, 2 * 2 / 16 = 1/4 against (1/4) / 3.
    assert effective_n(np.array([2.0, 0.0]), np.array([2.0, 2.0])) == 4 / 3


def test_repeats_that_vary_less_than_chance_are_worth_no_more_than_their_number():
    assert effective_n(np.array([1.0, 1.0]), np.array([2.0, 2.0])) == 4


def test_repeats_that_all_end_alike_count_once_for_each_instance():
    assert rate([0] * 10, [8] * 10).high == pytest.approx(wilson(0, 10)[1])
    assert rate([8] * 10, [8] * 10).low == pytest.approx(wilson(1, 10)[0])
    assert rate([3], [8]).low == pytest.approx(wilson(3 / 8, 1)[0])


def test_no_episode_gives_no_number():
    assert rate([], []) == interval(None, None, None, 0)


def simulated(p: float, clusters: int, reps: int, alike: float, n: int):
    """Yield successes of n data sets whose repeats correlate by ``alike``."""
    rng = child(7, "coverage", str(p), clusters)
    scale = 1 / alike - 1
    chances = rng.beta(p * scale, (1 - p) * scale, (n, clusters))
    yield from rng.binomial(reps, chances).astype(float)


@pytest.mark.parametrize("p", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("clusters", [16, 64, 256])
def test_wilson_with_design_effect_covers_and_without_it_does_not(p, clusters):
    reps, data_sets = 4, 2000
    sizes = np.full(clusters, float(reps))
    held = naive = 0
    for successes in simulated(p, clusters, reps, 0.5, data_sets):
        found = rate_interval(successes, sizes)
        held += found.low <= p <= found.high
        low, high = wilson(found.mean, found.n)
        naive += low <= p <= high
    assert 0.93 <= held / data_sets <= 0.97
    assert naive / data_sets < 0.90


@pytest.mark.parametrize("p", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("clusters", [16, 64, 256])
def test_wilson_covers_without_repeats(p, clusters):
    sizes = np.ones(clusters)
    held = 0.0
    for c in range(clusters + 1):  # every data set there is, by its chance
        found = rate_interval(np.r_[np.ones(c), np.zeros(clusters - c)], sizes)
        if found.low <= p <= found.high:
            held += math.comb(clusters, c) * p**c * (1 - p) ** (clusters - c)
    assert 0.91 <= held <= 0.985


@pytest.mark.parametrize(
    ("p", "clusters", "reps", "least", "most"),
    [(0.02, 16, 4, 0.3, 0.6), (0.98, 16, 4, 0.3, 0.6), (0.02, 16, 1, 0.2, 0.36)],
)
def test_a_plain_bootstrap_of_clusters_does_not_cover(p, clusters, reps, least, most):
    """Where no cluster succeeds, its draws claim certainty: that is what fails."""
    held, data_sets = 0, 400
    rng = child(8, "plain_bootstrap", str(p))
    draws = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=999)
    for successes in simulated(p, clusters, reps, 0.5, data_sets):
        low, high = np.quantile(draws @ successes / (clusters * reps), [0.025, 0.975])
        held += low <= p <= high
    assert least <= held / data_sets <= most


def test_bootstrap_of_a_mean_covers():
    rng = child(7, "coverage of a mean")
    held = 0
    for values in rng.exponential(size=(150, 40)):
        found = estimate(values).interval
        held += found.low <= 1 <= found.high
    assert 0.90 <= held / 150 <= 0.99


def test_bootstrap_agrees_with_the_t_interval_of_a_symmetric_sample():
    values = np.array([-2.0, -1, -1, 0, 0, 0, 0, 1, 1, 2] * 4)
    found = estimate(values).interval
    half = 2.0227 * values.std(ddof=1) / math.sqrt(40)  # t with 39 degrees
    assert found.mean == 0
    assert found.high == pytest.approx(half, rel=0.06)
    assert found.low == pytest.approx(-half, rel=0.06)


def test_resamples_are_the_same_every_time_and_draw_one_cluster_less():
    sums = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 5.0]])
    totals = resample(sums, child(0, "x"))
    assert totals.shape == (RESAMPLES, 2)
    assert set(totals[:, 0]) == {2.0}
    assert (totals == resample(sums, child(0, "x"))).all()
    assert totals[:, 1].mean() == pytest.approx(2 * 2, rel=0.05)


def test_clusters_that_all_agree_do_not_claim_certainty():
    share = wilson(0.0, 10)[1]
    found = estimate([0.25] * 10, worst=0.1, best=0.9).interval
    assert found.low == pytest.approx(0.25 - share * 0.15)
    assert found.high == pytest.approx(0.25 + share * 0.65)
    assert estimate([1.0] * 10).interval.high == 1.0


def test_one_cluster_says_nothing_of_others():
    assert estimate([0.7]).interval == interval(0.7, None, None, 1)


def test_a_composite_of_one_cell_is_that_cell():
    cell = estimate([0.0, 0.5, 1.0, 0.25])
    assert composite([(1.0, cell)]) == cell.interval


def test_a_composite_of_rates_adds_their_distances_in_quadrature():
    # 0.5 * (0.9 + 0.5); below 0.5 * sqrt(0.3^2 + 0.4^2), above 0.5 * 0.1 * sqrt(2).
    parts = [interval(0.9, 0.6, 1.0, 8), interval(0.5, 0.1, 0.6, 8)]
    found = composite([(0.5, Estimate(interval=part)) for part in parts])
    assert (found.mean, found.low, found.n) == (0.7, 0.45, 16)
    assert found.high == pytest.approx(0.7 + 0.05 * math.sqrt(2))


def test_a_composite_resamples_its_cells_together():
    rng = child(3, "cells")
    cells = [estimate(rng.normal(size=60 + i)) for i in range(4)]
    found = composite([(0.25, cell) for cell in cells])
    halves = [0.25 * (c.interval.high - c.interval.low) / 2 for c in cells]
    assert (found.high - found.low) / 2 == pytest.approx(math.hypot(*halves), rel=0.1)


def test_perfect_cells_keep_a_composite_from_certainty():
    perfect = Estimate(interval=rate([1] * 20, [1] * 20))
    found = composite([(0.5, perfect), (0.5, estimate([0.8] * 20))])
    assert found.mean == pytest.approx(0.9)
    assert found.low < 0.88 and found.high > 0.9


def test_a_composite_is_unknown_while_a_cell_is():
    cell = estimate([0.0, 0.5, 1.0])
    assert composite([(0.5, cell), (0.5, unknown(0))]) == interval(None, None, None, 3)
    half_known = composite([(0.5, cell), (0.5, unknown(1, 0.2))])
    assert half_known == interval(0.35, None, None, 4)
    assert composite([]) == interval(None, None, None, 0)
