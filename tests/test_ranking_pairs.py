"""Pairs are joined by key, tests are the textbook's, ranks say what is known."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from contest import ARMS, GRID, cell, played
from scipy.stats import binomtest, false_discovery_control, norm, permutation_test

from ragen_bench.ranking.cell_tests import cell_tests, differences, mcnemar
from ragen_bench.ranking.comparisons import compare, pairs
from ragen_bench.ranking.pairing import cell_weights, pair
from ragen_bench.ranking.permutation import EXACT, holm, p_values
from ragen_bench.ranking.ranks import RankRange, rank_ranges
from ragen_bench.ranking.scores import common, scores

ONE = f"{GRID}:1"


def two(first, second, **facts):
    return pair(
        played("a", {ONE: cell(first, **facts)}),
        played("b", {ONE: cell(second, **facts)}),
    )


# Joining


def test_missing_episodes_never_misalign_the_others():
    found = two([1, None, 0, 1, 1], [None, 1, 0, 1, 0])
    (shared,) = found.cells
    assert shared.keys == ((2, 0), (3, 0), (4, 0))
    assert shared.gains.tolist() == [0, 0, 1]
    assert (found.shared, found.left_out) == (3, 2)


def test_episodes_in_another_order_are_the_same():
    one, other = cell([1, 0, 1, 0]), cell([0, 0, 1, 1])
    turned = other.take([3, 1, 0, 2])
    first = pair(played("a", {ONE: one}), played("b", {ONE: other}))
    second = pair(played("a", {ONE: one}), played("b", {ONE: turned}))
    assert second.cells[0].keys == first.cells[0].keys
    assert (
        second.cells[0].gains.tolist() == first.cells[0].gains.tolist() == [1, 0, 0, -1]
    )


def test_another_instance_under_the_same_seed_is_not_shared():
    one, other = played("a", {ONE: cell([1, 0])}), cell([1, 0])
    moved = {**vars_of(other), "instances": ("x", other.instances[1])}
    found = pair(one, played("b", {ONE: type(other)(**moved)}))
    assert found.cells[0].keys == ((1, 0),)


def test_another_ceiling_on_the_same_instance_is_another_task():
    found = pair(
        played("a", {ONE: cell([1, 0])}),
        played("b", {ONE: cell([1, 0], ceiling=0.9)}),
    )
    assert (found.cells, found.shared, found.left_out) == ((), 0, 4)


def test_seeds_of_another_list_are_not_shared():
    one = played("a", {ONE: cell([1, 0])})
    other = played("b", {ONE: cell([1, 0])}, seeds_from="seal 00")
    assert pair(one, other).shared == 0


def vars_of(found):
    return {name: getattr(found, name) for name in found.__slots__}


def test_an_environment_is_the_mean_of_its_cells_and_the_score_of_environments():
    weights = cell_weights({f"{GRID}:1": GRID, f"{GRID}:2": GRID, f"{ARMS}:1": ARMS})
    assert weights == {f"{GRID}:1": 0.25, f"{GRID}:2": 0.25, f"{ARMS}:1": 0.5}


def test_parts_add_up_to_the_difference_of_the_boards_scores():
    rng = np.random.default_rng(0)
    cells = [
        {
            f"{GRID}:1": cell(rng.integers(2, size=8).tolist()),
            f"{GRID}:2": cell(rng.integers(2, size=12).tolist(), reps=2),
            f"{ARMS}:1": cell(
                rng.normal(size=6).tolist(), success=False, floor=0.2, ceiling=2.2
            ),
        }
        for _ in range(2)
    ]
    # Every cell has as many repeats as its config says only where it is played so.
    one, other = (played(name, each) for name, each in zip("ab", cells, strict=True))
    found = pair(one, other)
    expected = one.summary.score.mean - other.summary.score.mean
    assert found.parts().sum() == pytest.approx(expected)
    assert found.gap() == pytest.approx(expected)
    assert len(found.parts()) == 8 + 6 + 6


def test_a_cell_without_room_tells_nothing():
    found = two([1, 0], [0, 0], floor=1.0, ceiling=1.0)
    assert (found.cells, found.shared) == ((), 2)


# Tests


def oracle(values) -> float:
    """Return scipy's p value; for one sample it flips signs."""
    found = permutation_test(
        (values,),
        lambda x, axis: np.sum(x, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
        alternative="two-sided",
    )
    return float(found.pvalue)


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 1, 1, -1, 1, 1],
        [0.5, -0.25, 2.0, 1.0, 0.125, 0.75, -0.5, 1.5],
        [1.0, 1.0],
        [1.0, -1.0],
        list(np.random.default_rng(1).normal(size=12)),
    ],
)
def test_few_differences_have_scipys_exact_p_value(values):
    assert len(values) <= EXACT
    assert p_values([np.array(values)]) == [pytest.approx(oracle(np.array(values)))]


def test_differences_of_zero_change_nothing():
    values = np.array([1.0, 1, 1, 1, 1, -1])
    assert p_values([np.r_[values, np.zeros(50)]]) == p_values([values])
    assert p_values([np.zeros(9), np.zeros(0)]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("n", "k"),
    [(14, 8), (20, 15), (100, 55), (100, 65), (100, 80), (400, 260), (400, 330)],
)
def test_many_alike_differences_have_the_binomial_p_value_however_small(n, k):
    values = np.r_[np.ones(k), -np.ones(n - k)]
    expected = binomtest(k, n).pvalue
    # 4,000 tilted draws are good to a few per cent of p itself.
    assert p_values([values]) == [pytest.approx(expected, rel=0.12)]


def test_all_on_one_side_is_exact():
    assert p_values([np.full(60, 0.3)]) == [pytest.approx(2.0**-59)]


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.15, 0.4])
def test_many_unlike_differences_have_the_normal_p_value(shift):
    values = np.random.default_rng(2).normal(size=600) + shift
    z = abs(values.sum()) / math.sqrt((values**2).sum())
    assert p_values([values]) == [pytest.approx(2 * norm.sf(z), rel=0.15)]


def test_counting_and_drawing_agree_where_both_can_be_done():
    rng = np.random.default_rng(3)
    for shift in (0.1, 0.5, 0.9):
        values = rng.normal(size=EXACT + 1) + shift
        assert p_values([values]) == [pytest.approx(oracle(values), rel=0.1)]


def test_the_same_numbers_come_every_time_and_beside_other_tests():
    rng = np.random.default_rng(4)
    tests = [rng.normal(size=n) + 0.2 for n in (40, 25, 60)]
    assert p_values(tests) == p_values(tests)
    alone = [p_values([one])[0] for one in tests]
    assert p_values(tests) == pytest.approx(alone, rel=0.15)


def test_p_values_of_alike_agents_are_uniform():
    rng = np.random.default_rng(5)
    found = np.array(p_values(list(rng.normal(size=(800, 30)))))
    for level in (0.05, 0.25, 0.5):
        assert np.mean(found <= level) == pytest.approx(level, abs=0.055)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (7, 2), (10, 10), (30, 8)])
def test_mcnemar_is_the_binomial_test_of_discordant_pairs(b, c):
    expected = binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected)


@pytest.mark.report
@pytest.mark.parametrize(("b", "c"), [(1, 0), (7, 2), (10, 10), (30, 8), (0, 5)])
def test_mcnemar_is_that_of_statsmodels(b, c):
    from statsmodels.stats.contingency_tables import mcnemar as theirs

    expected = theirs([[40, b], [c, 60]], exact=True).pvalue
    assert mcnemar(b, c) == pytest.approx(expected)


def test_sign_flips_of_successes_are_mcnemars_test():
    values = np.r_[np.ones(7), -np.ones(2), np.zeros(20)]
    assert p_values([values]) == [pytest.approx(mcnemar(7, 2))]


P_VALUES = [
    [0.01, 0.04, 0.03, 0.005],
    [0.5],
    [],
    [0.02, 0.02, 0.02],
    [1e-12, 0.9, 0.04, 1.0, 1e-5],
]


@pytest.mark.report
@pytest.mark.parametrize("values", [v for v in P_VALUES if v])
def test_holm_is_that_of_statsmodels(values):
    from statsmodels.stats.multitest import multipletests

    assert holm(values) == pytest.approx(multipletests(values, method="holm")[1])


@pytest.mark.parametrize("values", P_VALUES)
def test_holm_lies_between_false_discovery_and_bonferroni(values):
    adjusted = holm(values)
    assert len(adjusted) == len(values)
    if values:
        loose = false_discovery_control(values)
        strict = np.minimum(1, len(values) * np.array(values))
        assert (adjusted >= loose - 1e-12).all() and (adjusted <= strict + 1e-12).all()
        order = np.argsort(values)
        assert (np.diff(np.array(adjusted)[order]) >= 0).all()


def test_holm_agrees_with_numbers_worked_by_hand():
    # 4 * 0.005, 3 * 0.01, 2 * 0.03, and 0.04 is lifted to what came before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


# Cells


def test_a_cell_counts_who_alone_solved_it():
    found = two([1, 1, 1, 0, 0, 1], [0, 0, 1, 1, 0, 0])
    (test,) = cell_tests(found)
    assert (test.only_first, test.only_second, test.n) == (3, 1, 6)
    assert test.success_p == pytest.approx(binomtest(3, 4).pvalue)
    assert test.return_p == pytest.approx(test.success_p) == test.holm_p
    assert test.gap == pytest.approx(2 / 6)


def test_repeats_of_an_instance_are_flipped_together():
    # Five instances, four copies each: one flip an instance, 2 / 32.
    found = two([1] * 20, [0] * 20, reps=4)
    (test,) = cell_tests(found)
    assert test.only_first == 20
    assert test.success_p == test.return_p == pytest.approx(2 / 32)


def test_a_task_without_success_has_returns_alone():
    found = two([0.5, 0.2, 0.9], [0.1, 0.3, 0.4], success=False)
    (test,) = cell_tests(found)
    assert (test.only_first, test.only_second, test.success_p) == (None, None, None)
    assert test.return_p == pytest.approx(oracle(np.array([0.4, -0.1, 0.5])))


def test_differences_are_named():
    found = two([1, None, 0, 1], [0, 1, 1, 1])
    named = [(one.seed, one.rep, one.first, one.second) for one in differences(found)]
    assert named == [(0, 0, 1.0, 0.0), (2, 0, 0.0, 1.0)]


# Comparisons and ranks


def test_a_clear_difference_is_found_and_its_interval_lies_around_it():
    found = two([1] * 40 + [0] * 10, [1] * 15 + [0] * 35)
    (one,) = compare([found])
    assert one.verdict == "a beats b" and one.winner == "a"
    assert one.gap == pytest.approx(0.5) == one.difference.mean
    assert 0.3 < one.difference.low < 0.4 and 0.6 < one.difference.high < 0.7
    (turned,) = compare([pair(found.second, found.first)])
    assert turned.verdict == "a beats b" and turned.gap == pytest.approx(-0.5)


def test_agents_that_agree_everywhere_are_tied_but_not_certainly_equal():
    (one,) = compare([two([1, 0] * 10, [1, 0] * 10)])
    assert (one.gap, one.p, one.verdict, one.seeds_needed) == (0, 1, "tied", None)
    assert one.difference.low < 0 < one.difference.high


def test_nothing_shared_is_said():
    one = played("a", {ONE: cell([1, 0])})
    other = played("b", {f"{GRID}:2": cell([1, 0])})
    (found,) = compare([pair(one, other)])
    assert found.verdict == "nothing shared"
    assert (found.gap, found.p, found.difference.mean) == (None, 1.0, None)


def test_the_interval_is_the_t_interval_of_symmetric_differences():
    rng = np.random.default_rng(6)
    gains = np.r_[rng.normal(size=30), 0.0]
    gains = np.r_[gains, -gains] + 0.3
    found = two(gains.tolist(), [0.0] * len(gains), success=False)
    (one,) = compare([found])
    half = 2.0003 * gains.std(ddof=1) / math.sqrt(len(gains))
    assert one.difference.low == pytest.approx(0.3 - half, abs=0.1 * half)
    assert one.difference.high == pytest.approx(0.3 + half, abs=0.1 * half)


def test_correction_is_for_all_pairs():
    rng = np.random.default_rng(7)
    agents = [
        played(name, {ONE: cell(rng.integers(2, size=40).tolist())}) for name in "abcd"
    ]
    found = compare(pairs(agents), intervals=False)
    assert len(found) == 6
    assert [one.holm_p for one in found] == holm([one.p for one in found])
    assert all(one.difference is None for one in found)


def comparison(first, second, gap, holm_p):
    (known,) = compare([two([1, 0], [0, 0])], intervals=False)
    return dataclasses.replace(
        known, first=first, second=second, gap=gap, holm_p=holm_p
    )


def test_rank_ranges_leave_open_what_is_tied():
    # a beats c and d; b beats d; all else is tied.
    beats = {("a", "c"), ("a", "d"), ("b", "d")}
    found = [
        comparison(x, y, 0.1, 0.01 if (x, y) in beats else 0.5)
        for x, y in itertools.combinations("abcd", 2)
    ]
    assert rank_ranges("abcd", found) == {
        "a": RankRange(1, 2),
        "b": RankRange(1, 3),
        "c": RankRange(2, 4),
        "d": RankRange(3, 4),
    }
    assert [str(RankRange(1, 3)), str(RankRange(2, 2))] == ["1-3", "2"]


def test_a_range_holds_every_order_that_the_tests_allow():
    rng = np.random.default_rng(8)
    strength = rng.normal(size=6)
    found = []
    for i, j in itertools.combinations(range(6), 2):
        gap = float(strength[i] - strength[j])
        found.append(comparison(str(i), str(j), gap, 0.01 if abs(gap) > 1 else 0.5))
    ranks = rank_ranges([str(i) for i in range(6)], found)
    true = {str(i): 1 + int((strength > strength[i]).sum()) for i in range(6)}
    assert all(ranks[i].best <= true[i] <= ranks[i].worst for i in true)


# What is shared


def test_common_keeps_what_all_have_and_scores_it_by_the_same_rules():
    agents = [
        played("a", {ONE: cell([1, 1, 0, 0, 1]), f"{ARMS}:1": cell([1, 0])}),
        played("b", {ONE: cell([1, None, 0, 1, 1])}),
        played("c", {ONE: cell([0, 1, 0, 1, None])}),
    ]
    shared = common(agents)
    assert [one.cells[ONE].keys for one in shared] == [((0, 0), (2, 0), (3, 0))] * 3
    assert [list(one.cells) for one in shared] == [[ONE]] * 3
    found = scores(shared[0], whole=False)
    assert found.score.mean == pytest.approx(1 / 3) and found.episodes == 3
    alone = played("x", {ONE: cell([1, 0, 0])})
    assert found.score == alone.summary.score


def test_scores_of_a_part_are_those_of_the_summary_where_the_part_is_all():
    rng = np.random.default_rng(10)
    cells = {
        f"{GRID}:1": cell(rng.integers(2, size=16).tolist()),
        f"{GRID}:2": cell(rng.integers(2, size=16).tolist()),
        f"{ARMS}:1": cell(rng.normal(size=16).tolist(), success=False),
    }
    one = played("a", cells)
    whole, part = scores(one), scores(one, whole=False)
    assert part == whole
    assert list(whole.levels) == [1, 2]
    assert whole.levels[2] == whole.cells[f"{GRID}:2"]
    means = [whole.cells[f"{name}:1"].mean for name in (GRID, ARMS)]
    assert whole.levels[1].mean == pytest.approx(sum(means) / 2)
