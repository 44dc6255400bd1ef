"""StarPO-S's filter: spread of groups, rules, RAGEN's presets, how strong they are."""

import math
import random
import statistics

import pytest

from ragen_bench.errors import InvalidSpec
from ragen_bench.starpo import filters

SPREADS = {"a": 0.1, "b": 0.4, "c": 0.0, "d": 0.3, "e": 0.2}


def test_spread_is_the_sample_deviation_or_that_of_the_population() -> None:
    # 1, 0, 0, 0: mean 1/4, squares 9/16 + 3/16 = 3/4; over 3 it is 1/4, over 4 it is
    # 3/16.
    returns, groups = [1.0, 0.0, 0.0, 0.0], ["g"] * 4
    assert filters.group_spread(returns, groups) == {"g": pytest.approx(0.5)}
    population = filters.group_spread(returns, groups, ddof=0)
    assert population == {"g": pytest.approx(math.sqrt(3) / 4)}


def test_groups_are_known_by_id_after_shuffling_and_dropping() -> None:
    returns = [1.0, 0.0, 3.0, 3.0, 5.0, 1.0, 2.0]
    groups = ["a", "a", "b", "b", "c", "c", "c"]
    whole = filters.group_spread(returns, groups)
    order = [4, 2, 0, 6, 1, 5, 3]
    shuffled = filters.group_spread(
        [returns[i] for i in order], [groups[i] for i in order]
    )
    assert shuffled == {name: pytest.approx(whole[name]) for name in whole}
    # Without the second of "b", "a" and "c" stay what they were.
    kept = [0, 1, 2, 4, 5, 6]
    fewer = filters.group_spread([returns[i] for i in kept], [groups[i] for i in kept])
    assert fewer == {**whole, "b": 0.0}


@pytest.mark.parametrize("ddof", [0, 1])
def test_a_group_of_one_has_no_spread(ddof: int) -> None:
    assert filters.group_spread([7.0], ["g"], ddof) == {"g": 0.0}


def test_returns_that_differ_by_noise_are_equal() -> None:
    noisy = [1.0, 1.0 + 1e-9, 1.0 - 1e-9, 0.1 + 0.2 + 0.7]
    assert filters.group_spread(noisy, ["g"] * 4) == {"g": 0.0}
    large = [1e6, 1e6 + 1e-3]
    assert filters.group_spread(large, ["g"] * 2) == {"g": 0.0}
    real = [0.0, 1e-4]
    assert filters.group_spread(real, ["g"] * 2)["g"] > 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_return_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(InvalidSpec, match="'g'"):
        filters.group_spread([0.0, bad], ["f", "g"])


def test_lengths_and_ddof_are_checked() -> None:
    with pytest.raises(InvalidSpec, match="2 returns for 1 group ids"):
        filters.group_spread([0.0, 1.0], ["g"])
    with pytest.raises(InvalidSpec, match="ddof is 2"):
        filters.group_spread([0.0], ["g"], ddof=2)


@pytest.mark.parametrize(
    ("share", "options", "kept"),
    [
        (0.4, {}, ("b", "d")),
        (0.59, {}, ("b", "d")),  # 2.95 groups are 2
        (0.1, {}, ("b",)),  # but at least one
        (0.1, {"at_least": 0}, ()),
        (1.0, {}, ("b", "d", "e", "a", "c")),
        (0.4, {"smallest": True}, ("c", "a")),
        (0.4, {"smallest": True, "include_zero": False}, ("a", "e")),
        # The share is of all groups, so 5 of 5, but only 4 are left.
        (1.0, {"include_zero": False}, ("b", "d", "e", "a")),
    ],
)
def test_top_k_keeps_a_share_of_the_groups(share, options, kept) -> None:
    assert filters.keep_top_k(SPREADS, share, **options) == kept


@pytest.mark.parametrize(
    ("p", "options", "kept"),
    [
        # The sum is 1.0; b, b + d, b + d + e, all hold 0.4, 0.7, 0.9, 1.0.
        (0.4, {}, ("b",)),
        (0.41, {}, ("b",)),  # 0.40 reached by the slack of 0.01
        (0.42, {}, ("b", "d")),
        (0.41, {"slack": 0.0}, ("b", "d")),
        (0.9, {}, ("b", "d", "e")),
        (0.92, {}, ("b", "d", "e", "a")),
        (0.92, {"include_zero": False}, ("b", "d", "e", "a")),
        (1.0, {}, ("a", "b", "c", "d", "e")),  # off
        (1.0, {"include_zero": False}, ("a", "b", "d", "e")),
        (0.3, {"smallest": True}, ()),  # the smallest is 0, which ends the prefix
        (0.3, {"smallest": True, "include_zero": False}, ("a", "e")),
    ],
)
def test_linear_top_p_keeps_the_shortest_prefix_that_holds_the_mass(
    p, options, kept
) -> None:
    assert filters.keep_top_p_linear(SPREADS, p, **options) == kept


@pytest.mark.parametrize("include_zero", [False, True])
def test_linear_top_p_keeps_nothing_where_all_groups_are_flat(include_zero) -> None:
    flat = dict.fromkeys("abc", 0.0)
    assert filters.keep_top_p_linear(flat, 0.9, include_zero=include_zero) == ()
    # Up to 1e-10 is flat, and a total within the slack is as good as none.
    assert filters.keep_nonzero({"a": 1e-10, "b": 1e-9}) == ("b",)
    assert filters.keep_top_p_linear({"a": 0.01}, 0.9) == ()


def test_linear_top_p_keeps_nothing_where_the_mass_cannot_be_reached() -> None:
    assert filters.keep_top_p_linear({"a": -1.0, "b": -2.0}, 0.5) == ()
    # Zeros in between do not matter, but one in front ends the prefix.
    mixed = {"a": 0.5, "b": 0.0, "c": 0.5}
    assert filters.keep_top_p_linear(mixed, 0.9, 0.0) == ("a", "c")
    assert filters.keep_top_p_linear(mixed, 0.9, smallest=True) == ()


@pytest.mark.parametrize(
    ("p", "options", "kept"),
    [
        # e^0, e^ln2, e^ln4 = 1, 2, 4 of 7: 0.571, 0.857, 1.
        (0.57, {}, ("z",)),
        (0.58, {}, ("z", "y")),
        (0.86, {}, ("z", "y", "x")),
        (1.0, {}, ("x", "y", "z")),
        # 1, 1/2, 1/4 of 1.75: 0.571, 0.857, 1.
        (0.58, {"smallest": True}, ("x", "y")),
        # Without x, 2 and 4 of 6: 0.667, 1.
        (0.66, {"include_zero": False}, ("z",)),
        (0.67, {"include_zero": False}, ("z", "y")),
    ],
)
def test_softmax_top_p_keeps_the_probable_prefix(p, options, kept) -> None:
    scores = {"x": 0.0, "y": math.log(2), "z": math.log(4)}
    assert filters.keep_top_p_softmax(scores, p, **options) == kept


def test_softmax_takes_scores_of_any_size() -> None:
    assert filters.keep_top_p_softmax({"a": 1e4, "b": 0.0}, 0.9) == ("a",)
    assert filters.keep_top_p_softmax({}, 0.9) == ()


@pytest.mark.parametrize(
    ("share", "options", "kept"),
    [
        (0.5, {}, ("b", "d", "e")),
        (0.75, {}, ("b", "d")),
        (1.0, {}, ("b",)),
        (0.5, {"smallest": True}, ("c",)),  # up to 0 / 0.5
        (0.5, {"smallest": True, "include_zero": False}, ("a", "e")),  # up to 0.2
    ],
)
def test_min_p_keeps_what_is_near_the_best(share, options, kept) -> None:
    assert filters.keep_min_p(SPREADS, share, **options) == kept


def test_min_p_of_flat_groups_keeps_all_or_none_of_them() -> None:
    flat = dict.fromkeys("ab", 0.0)
    assert filters.keep_min_p(flat, 0.5) == ("a", "b")
    assert filters.keep_min_p(flat, 0.5, include_zero=False) == ()


RULES = {
    "all": filters.keep_all,
    "nonzero": filters.keep_nonzero,
    "top_k": lambda scores: filters.keep_top_k(scores, 0.5),
    "linear": lambda scores: filters.keep_top_p_linear(scores, 0.9),
    "softmax": lambda scores: filters.keep_top_p_softmax(scores, 0.9),
    "min_p": lambda scores: filters.keep_min_p(scores, 0.5),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@every_rule
def test_a_single_group_with_spread_stays(rule) -> None:
    assert rule({7: 0.3}) == (7,)


@every_rule
def test_no_groups_keep_none(rule) -> None:
    assert rule({}) == ()


@every_rule
def test_a_score_that_is_no_number_is_refused(rule) -> None:
    with pytest.raises(InvalidSpec, match="nan"):
        rule({"a": 0.1, "b": math.nan})


def test_equal_scores_keep_the_order_of_the_batch() -> None:
    tied = dict.fromkeys("dbca", 0.5)
    assert filters.keep_top_k(tied, 0.5) == ("d", "b")
    assert filters.keep_top_k(tied, 0.5, smallest=True) == ("d", "b")
    assert filters.keep_top_p_linear(tied, 0.5) == ("d", "b")


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, math.nan])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    for rule in (
        filters.keep_top_k,
        filters.keep_top_p_linear,
        filters.keep_top_p_softmax,
        filters.keep_min_p,
    ):
        with pytest.raises(InvalidSpec, match="must be in"):
            rule(SPREADS, share)


def test_scale_free_scores_make_every_rule_blind_to_the_unit_of_reward() -> None:
    rewards = {name: 10 * score for name, score in SPREADS.items()}
    free, large = filters.scale_free(SPREADS), filters.scale_free(rewards)
    assert max(free.values()) == 1.0
    assert free["d"] == pytest.approx(0.75)
    for rule in RULES.values():
        assert rule(free) == rule(large)
    plain = filters.keep_top_p_softmax
    assert plain(SPREADS, 0.7) != plain(rewards, 0.7)
    assert filters.scale_free({"a": 0.0}) == {"a": 0.0}


# 8 groups of 2 returns each: the spread of (0, r) is r / sqrt(2).
HIGH = [4.0, 0.0, 1.0, 3.0, 0.0, 2.0, 0.5, 0.0]
RETURNS = [r for high in HIGH for r in (0.0, high)]
GROUPS = [g for g in range(8) for _ in range(2)]


@pytest.mark.parametrize(
    ("preset", "kept"),
    [
        ("all", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("nonzero", (0, 2, 3, 5, 6)),
        ("ragen-v1", (0, 3)),  # 2 of 8
        # 4, 7, 9, 10 of 10.5; 0.9 * 10.5 = 9.45.
        ("ragen-v2", (0, 3, 5, 2)),
        # exp(r / sqrt 2) is 16.919, 8.342, 4.113, 2.028, 1.424, 1, 1, 1 of 35.826;
        # 0.9 of it is 32.243, and the sums are 16.919, 25.261, 29.374, 31.402, 32.826.
        ("ragen-v2-softmax", (0, 3, 5, 2, 6)),
    ],
)
def test_presets_are_what_ragen_does(preset: str, kept) -> None:
    scores = filters.group_spread(RETURNS, GROUPS)
    assert filters.PRESETS[preset](scores) == kept


def test_ragen_v1_keeps_nothing_of_fewer_than_four_groups() -> None:
    assert filters.PRESETS["ragen-v1"]({"a": 1.0, "b": 2.0, "c": 3.0}) == ()


def test_ragen_v2_skips_a_batch_without_spread() -> None:
    assert filters.PRESETS["ragen-v2"](dict.fromkeys(range(8), 0.0)) == ()


def simulate(batches: int) -> list[dict]:
    """Return spreads of 8 groups of 16 rollouts that succeed with p ~ U(0, 1)."""
    rng = random.Random(0)
    found = []
    for _ in range(batches):
        groups = [g for g in range(8) for _ in range(16)]
        chance = [rng.random() for _ in range(8)]
        returns = [float(rng.random() < chance[g]) for g in groups]
        found.append(filters.group_spread(returns, groups))
    return found


def test_how_strongly_ragens_rules_filter_binary_rewards() -> None:
    # What is known of them: mean spread 0.375, 12.0 % flat; the softmax keeps 7.4 of 8
    # (7 or 8), the linear rule 6.4 of 8 (3 to 8).
    batches = simulate(1000)
    spreads = [spread for batch in batches for spread in batch.values()]
    # The count k of successes is uniform on 0..16, and the spread is
    # sqrt(k (16 - k) / (16 * 15)); flat are k = 0 and 16, so 2 of 17.
    exact = statistics.fmean(math.sqrt(k * (16 - k) / 240) for k in range(17))
    assert exact == pytest.approx(0.375, abs=0.001)
    assert statistics.fmean(spreads) == pytest.approx(exact, abs=0.005)
    flat = statistics.fmean(spread == 0 for spread in spreads)
    assert flat == pytest.approx(2 / 17, abs=0.01)

    softmax = [len(filters.keep_top_p_softmax(batch, 0.9)) for batch in batches]
    assert statistics.fmean(softmax) == pytest.approx(7.4, abs=0.1)
    assert set(softmax) == {7, 8}
    linear = [len(filters.keep_top_p_linear(batch, 0.9)) for batch in batches]
    assert statistics.fmean(linear) == pytest.approx(6.4, abs=0.1)
    assert min(linear) >= 2
    assert max(linear) == 8


@pytest.mark.parametrize(
    ("share", "scaling", "factor"),
    [(0.25, "none", 1.0), (0.25, "linear", 0.25), (0.25, "sqrt", 0.5), (0, "sqrt", 0)],
)
def test_loss_scale(share: float, scaling, factor: float) -> None:
    assert filters.loss_scale(share, scaling) == factor


def test_loss_scale_refuses_what_it_does_not_know() -> None:
    with pytest.raises(InvalidSpec, match="'cubic'"):
        filters.loss_scale(0.5, "cubic")  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec, match="kept_share is 1.5"):
        filters.loss_scale(1.5, "none")
