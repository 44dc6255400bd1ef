"""As many seeds as are asked for do tell two agents apart, by the test that decides."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from contest import ARMS, GRID, cell, played
from scipy.stats import binom

from ragen_bench.power import seeds_to_separate
from ragen_bench.ranking.comparisons import ALPHA, compare
from ragen_bench.ranking.pairing import Pair, pair
from ragen_bench.ranking.permutation import p_values
from ragen_bench.ranking.separation import needed_seeds
from ragen_bench.ranking.side_by_side import seeds_text

ONE = f"{GRID}:1"


def seen(first: int, second: int, n: int) -> Pair:
    """Return agents that differ on so many of n instances, each ahead on some."""
    ours = [1] * first + [0] * (n - first)
    theirs = [0] * first + [1] * second + [0] * (n - first - second)
    return pair(played("a", {ONE: cell(ours)}), played("b", {ONE: cell(theirs)}))


def mixed(seed: int) -> Pair:
    """Return agents on three cells of unequal weight, one of them paid by the turn."""
    rng = np.random.default_rng(seed)
    agents = []
    for name, skill in (("a", 0.2), ("b", 0.0)):
        cells = {
            f"{GRID}:{level}": cell((rng.random(24) < 0.3 + skill).astype(int).tolist())
            for level in (1, 2)
        }
        pay = rng.normal(0.5 + skill, 0.7, 24).tolist()
        cells[f"{ARMS}:1"] = cell(pay, success=False)
        agents.append(played(name, cells))
    return pair(*agents)


def power(found: Pair, seeds: int, alpha: float, runs: int = 300) -> float:
    """Return how often so many new seeds a cell tell the better agent."""
    rng = np.random.default_rng(1)
    weights = found.weights()
    tests = []
    for _ in range(runs):
        parts = [
            weights[one.name] * rng.choice(one.sums() / one.room, seeds)
            for one in found.cells
        ]
        tests.append(np.concatenate(parts))
    values = np.array(p_values(tests, draws=1000))
    right = np.array([one.sum() for one in tests]) * found.gap() > 0
    return float(np.mean((values <= alpha) & right))


@pytest.mark.parametrize("alpha", [0.05, 0.005])
@pytest.mark.parametrize(
    "found",
    [
        seen(2, 0, 10),  # few differ, all one way
        seen(5, 0, 10),
        seen(6, 2, 20),
        seen(30, 16, 100),
        seen(6, 2, 200),
        mixed(0),
    ],
    ids=["2-0", "5-0", "6-2", "30-16", "6-2 of many", "mixed"],
)
def test_so_many_seeds_tell_them_apart_four_times_in_five(found, alpha):
    asked = needed_seeds(found, alpha)
    # 300 runs are good to 0.023, and whole sign flips come in steps.
    assert power(found, asked, alpha) == pytest.approx(0.8, abs=0.075)
    assert power(found, asked // 2, alpha) < 0.6


def exact_power(n: int, first: float, second: float) -> float:
    """Return the power of McNemar's exact test at 0.05, from all its outcomes."""
    total = 0.0
    for differ in range(1, n + 1):
        ahead = np.arange(differ // 2 + 1, differ + 1)
        told = 2 * binom.sf(ahead - 1, differ, 0.5) <= 0.05
        chances = binom.pmf(ahead[told], differ, first / (first + second))
        total += binom.pmf(differ, n, first + second) * chances.sum()
    return total


@pytest.mark.parametrize(
    ("first", "second", "n"), [(2, 0, 10), (5, 0, 10), (6, 2, 20), (8, 2, 40)]
)
def test_few_differences_are_planned_as_mcnemars_exact_test_is(first, second, n):
    asked = needed_seeds(seen(first, second, n), 0.05)
    exact = next(
        k for k in range(1, 999) if exact_power(k, first / n, second / n) >= 0.8
    )
    assert asked == pytest.approx(exact, rel=0.1, abs=1)


def test_the_number_never_contradicts_the_verdict():
    rng = np.random.default_rng(3)
    verdicts = set()
    for n in (2, 4, 5, 6, 8, 12):
        for _ in range(6):
            first = int(rng.integers(n + 1))
            second = int(rng.integers(n - first + 1))
            found = seen(first, second, n)
            (one,) = compare([found], intervals=False, seeds=True)
            verdicts.add((one.winner is None, one.seeds_needed is None))
            if one.winner is not None:
                assert one.seeds_needed is None and seeds_text(one) == "apart already"
            elif first == second:
                assert one.seeds_needed is None
                assert seeds_text(one) == "no number of seeds"
            else:
                assert one.seeds_needed > n == one.seeds
                assert " (0 more)" not in seeds_text(one)
    assert verdicts == {(True, True), (True, False), (False, True)}


def test_four_wins_on_six_instances_are_not_said_to_be_enough():
    # p is 2 / 16, and no six instances tell anything unless all six differ.
    (one,) = compare([seen(4, 0, 6)], intervals=False, seeds=True)
    assert one.verdict == "tied" and one.p == pytest.approx(2 / 16)
    assert one.seeds_needed == pytest.approx(11, abs=1)


def test_many_pairs_ask_for_more_seeds():
    found = seen(6, 2, 20)
    one = compare([found], intervals=False, seeds=True)[0]
    many = compare([found] * 3, intervals=False, seeds=True)[0]
    assert one.seeds_needed == needed_seeds(found, ALPHA)
    assert many.seeds_needed == needed_seeds(found, ALPHA / 3) > one.seeds_needed


def test_one_instance_a_cell_says_nothing():
    (one,) = compare([seen(1, 0, 1)], intervals=False, seeds=True)
    assert (one.verdict, one.seeds_needed) == ("tied", None)
    assert seeds_text(one) == "cannot be said"


def test_seeds_are_not_sought_unless_asked_for():
    (one,) = compare([seen(4, 0, 6)], intervals=False)
    assert one.seeds_needed is None


def test_the_approximation_is_connors_sample_size():
    # A cell where 0.35 of the pairs differ, and the first is ahead by 0.1.
    alike, better = (NormalDist().inv_cdf(x) for x in (0.975, 0.8))
    wide = alike * math.sqrt(0.35) + better * math.sqrt(0.35 - 0.01)
    expected = math.ceil((wide / 0.1) ** 2)
    assert seeds_to_separate(0.1, 0.34, 0.35) == expected == 273
    assert seeds_to_separate(-0.1, 0.34, 0.35) == expected
    assert seeds_to_separate(0.0, 0.34, 0.35) is None
    assert seeds_to_separate(0.1, 0.34, 0.35, power=0.9) > expected
    assert seeds_to_separate(0.1, 0.34, 0.35, alpha=0.01) > expected
