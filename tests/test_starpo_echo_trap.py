"""The echo-trap detector: quiet where a run learns, loud where it collapses."""

import itertools
import json
import math

import pytest
import starpo_curves as curves

from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.starpo.change_point import change_point
from ragen_bench.starpo.collapse_signs import VOTES
from ragen_bench.starpo.diagnosis import diagnose_rows
from ragen_bench.starpo.echo_trap import EchoTrap, scan
from ragen_bench.starpo.repetition import (
    distinct_share,
    mean_words,
    repeated_share,
)
from ragen_bench.starpo.thresholds import Thresholds

SEEDS = range(10)
STEADY = {
    "success": 0.5,
    "return_mean": 0.5,
    "spread_mean": 0.4,
    "entropy": 1.0,
    "reply_tokens": 60.0,
    "thought_tokens": 30.0,
    "distinct_4": 0.5,
    "valid_rate": 0.95,
    "valid_success": 0.5,
    "repeated_4": 0.05,
    "cut_share": 0.0,
    "retrieval": 0.8,
    "retrieval_chance": 0.05,
    "grad_norm": 1.0,
}


def run(length: int = 40, since: int = 20, **changes: float | None) -> list:
    """Return a steady training whose metrics change for good in some iteration."""
    return [
        {"iteration": t, **STEADY, **(changes if t >= since else {})}
        for t in range(1, length + 1)
    ]


def signs(rows, thresholds=None) -> dict[str, int]:
    """Return the iteration in which each sign begins first."""
    found: dict[str, int] = {}
    for alarm in scan(rows, thresholds):
        found.setdefault(alarm.sign, alarm.iteration)
    return found


@pytest.mark.parametrize("curve", curves.HEALTHY, ids=lambda c: c.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_quiet_on_a_healthy_run(curve, seed) -> None:
    assert "echo_trap" not in signs(curves.rows(curve, seed))


@pytest.mark.parametrize("curve", [curves.learns, curves.improves])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_single_sign_either_where_a_run_learns(curve, seed) -> None:
    assert signs(curves.rows(curve, seed)) == {}


@pytest.mark.parametrize("curve", curves.COLLAPSING, ids=lambda c: c.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_fires_before_success_has_fallen_by_half(curve, seed) -> None:
    found = diagnose_rows(curves.rows(curve, seed))
    assert found.lead_time is not None and found.lead_time > 0


def test_spread_comes_before_success_in_an_echo_trap() -> None:
    found = signs(curves.rows(curves.echoes, 1))
    assert found["spread"] < found["success"]


def test_a_steady_run_shows_nothing() -> None:
    assert scan(run()) == ()


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ({"spread_mean": 0.02}, "spread"),
        ({"entropy": 0.1}, "entropy"),
        ({"entropy": 3.0}, "entropy"),
        ({"reply_tokens": 10.0}, "length"),
        ({"thought_tokens": 10.0}, "reasoning"),
        ({"thought_tokens": 0.0}, "reasoning"),
        ({"reply_tokens": 150.0}, "length"),
        ({"cut_share": 0.5}, "length"),
        ({"repeated_4": 0.4}, "repetition"),
        ({"retrieval": 0.1}, "template"),
        ({"distinct_4": 0.05}, "repetition"),
        ({"valid_rate": 0.5}, "validity"),
        ({"success": 0.2}, "success"),
        ({"grad_norm": 20.0}, "gradient"),
        ({"grad_norm": math.inf}, "gradient"),
        ({"grad_norm": math.nan}, "gradient"),
    ],
)
def test_each_sign_has_its_column(change, sign) -> None:
    found = signs(run(**change))
    assert set(found) == {sign}
    assert 20 <= found[sign] < 30


@pytest.mark.parametrize("column", sorted(STEADY))
def test_a_column_without_values_is_not_judged(column) -> None:
    assert scan(run(**{column: None})) == ()
    assert scan([{"iteration": 1}]) == ()


def test_what_falls_with_the_failures_is_sound() -> None:
    # Failures fall from 1/2 to 1/4; so may the rest, by so much and somewhat more.
    half = {"success": 0.75, "spread_mean": 0.08, "entropy": 0.2}
    assert scan(run(**half)) == ()
    assert set(signs(run(**{**half, "spread_mean": 0.04}))) == {"spread"}


def test_nothing_is_said_of_spread_while_success_is_near_its_maximum() -> None:
    done = {"success": 0.99, "spread_mean": 0.0, "entropy": 0.0, "distinct_4": 0.01}
    assert scan(run(**done)) == ()
    less_done = {"success": 0.9, "spread_mean": 0.0, "entropy": 0.0}
    assert scan(run(**less_done)) == ()
    fallen = {**done, "success": 0.85}
    rows = [*run(40, **done), *run(20, 1, **fallen)]
    assert {"spread", "entropy", "repetition"} <= set(signs(rows))


def test_what_falls_is_held_against_its_highest() -> None:
    # A spread of 0.06 is no less than at the start, but far less than later.
    rows = [*run(20, 8, spread_mean=0.5), *run(20, 1, spread_mean=0.06)]
    for row in rows[:7]:
        row["spread_mean"] = 0.06
    assert set(signs(rows)) == {"spread"}


def test_replies_may_grow_while_more_succeed() -> None:
    better = {"reply_tokens": 200.0, "repeated_4": 0.5, "success": 0.7}
    assert signs(run(60, **better, valid_success=0.7)) == {}
    rows = run(60, **{**better, "success": 0.51})
    assert {"length", "repetition"} <= set(signs(rows))


def test_replies_that_do_not_end_are_no_better_for_success() -> None:
    assert set(signs(run(cut_share=0.5, success=0.6))) == {"length"}


def test_a_short_reply_and_its_short_reasoning_are_one_vote() -> None:
    found = signs(run(reply_tokens=10.0, thought_tokens=5.0))
    assert set(found) == {"length", "reasoning"}


def test_reasoning_that_vanishes_is_told_at_any_success() -> None:
    done = {"success": 1.0, "valid_success": 1.0}
    assert signs(run(thought_tokens=10.0, **done)) == {}
    assert set(signs(run(thought_tokens=0.5, **done))) == {"reasoning"}
    assert signs(run(thought_tokens=0.0, since=1)) == {}


def moving(success, valid, sound) -> list:
    """Return a run in which three columns go from one value to another."""
    rows = run(40, 20, success=success[1], valid_rate=valid[1], valid_success=sound[1])
    for row in rows[:19]:
        row |= {"success": success[0], "valid_rate": valid[0]}
        row["valid_success"] = sound[0]
    return rows


def test_success_that_moves_with_the_format_alone_is_told_and_has_no_vote() -> None:
    found = scan(moving((0.2, 0.49), (0.4, 0.98), (0.5, 0.5)))
    assert [alarm.sign for alarm in found] == ["format"]
    assert "from 20% to" in found[0].text and "50% do now" in found[0].text
    fallen = signs(moving((0.49, 0.2), (0.98, 0.4), (0.5, 0.5)))
    assert "format" in fallen
    assert "format" not in VOTES


@pytest.mark.parametrize(
    "change",
    [
        {"success": (0.2, 0.9), "valid": (0.4, 0.98), "sound": (0.5, 0.92)},
        {"success": (0.2, 0.6), "valid": (0.95, 0.95), "sound": (0.21, 0.63)},
        {"success": (0.45, 0.5), "valid": (0.9, 0.98), "sound": (0.5, 0.5)},
    ],
    ids=["better replies", "the same format", "hardly any change"],
)
def test_success_that_moves_for_other_reasons_is_not_called_format(change) -> None:
    assert "format" not in signs(moving(**change))


def test_one_probe_is_no_template_but_two_are() -> None:
    rows = run(60)
    for row in rows:
        if row["iteration"] % 10 != 1:
            row["retrieval"] = None
    rows[30]["retrieval"] = 0.05
    assert scan(rows) == ()
    rows[40]["retrieval"] = 0.05
    (alarm,) = scan(rows)
    assert (alarm.sign, alarm.iteration) == ("template", 42)
    assert "79% at their best" in alarm.text


def test_replies_that_never_told_their_prompts_raise_no_alarm() -> None:
    assert scan(run(since=1, retrieval=0.06)) == ()


def test_what_is_usual_is_taken_anew_while_replies_become_valid() -> None:
    rows = [
        {
            "iteration": t,
            **STEADY,
            "success": 0.0,
            "valid_rate": min(1.0, t / 30),
            "entropy": max(0.1, 3.0 - t / 10),
        }
        for t in range(1, 60)
    ]
    assert scan(rows) == ()


def test_a_single_bad_iteration_is_no_sign_but_a_gradient_is() -> None:
    rows = run()
    rows[20] |= {"spread_mean": 0.0, "entropy": 0.0, "grad_norm": 50.0}
    assert set(signs(rows)) == {"gradient"}


def test_a_gradient_as_large_as_at_the_start_is_no_spike() -> None:
    rows = run(60, 10, grad_norm=0.05)
    rows[50]["grad_norm"] = 1.0
    assert scan(rows) == ()


def test_the_combined_alarm_needs_several_signs_at_once() -> None:
    two = run(entropy=0.05, distinct_4=0.01)
    found = signs(two)
    assert found["echo_trap"] == max(found["entropy"], found["repetition"])
    assert "echo_trap" not in signs(two, Thresholds(votes=3))
    rows = run(60, entropy=0.05)
    rows[5]["grad_norm"] = 50.0
    assert "echo_trap" not in signs(rows), "a spike is forgotten"


def test_an_alarm_is_raised_once_while_it_stands() -> None:
    alarms = scan(run(60, entropy=0.05, distinct_4=0.01))
    assert sorted(a.sign for a in alarms) == ["echo_trap", "entropy", "repetition"]


def test_alarms_are_sentences_with_numbers() -> None:
    (alarm,) = scan(run(valid_rate=0.1))
    assert str(alarm).startswith(f"iteration {alarm.iteration}: the share of valid")
    assert "95%" in alarm.text
    for alarm in scan(curves.rows(curves.echoes, 0)):
        assert "\n" not in alarm.text and alarm.text[0].islower()


def test_stop_waits_for_the_combined_alarm_to_last() -> None:
    trap = EchoTrap(Thresholds(stop_after=4))
    stood = 0
    for row in run(40, entropy=0.05, distinct_4=0.01):
        trap.watch(row)
        stood = stood + 1 if trap.is_trapped else 0
        assert trap.should_stop == (stood >= 4)
    assert trap.should_stop


@pytest.mark.parametrize("curve", curves.COLLAPSING, ids=lambda c: c.__name__)
@pytest.mark.parametrize("cut", [0, 1, 2, 7, 30, 46])
def test_a_resumed_watch_goes_on_exactly(curve, cut) -> None:
    rows = curves.rows(curve, 3)
    rows[20]["grad_norm"] = math.inf
    whole = EchoTrap()
    want = [whole.watch(row) for row in rows]
    first = EchoTrap()
    found = [first.watch(row) for row in rows[:cut]]
    state = json.loads(json.dumps(first.get_state(), allow_nan=False))
    second = EchoTrap()
    second.set_state(state)
    found += [second.watch(row) for row in rows[cut:]]
    assert found == want
    assert second.get_state() == whole.get_state()


def test_a_resumed_watch_knows_the_success_of_before() -> None:
    rows = run(25, 10, success=0.7, spread_mean=0.09)
    rows += run(15, 1, success=None, spread_mean=0.09)
    first, second = EchoTrap(), EchoTrap()
    assert [alarm for row in rows[:25] for alarm in first.watch(row)] == []
    second.set_state(first.get_state())
    assert [alarm for row in rows[25:] for alarm in second.watch(row)] == []


def test_a_state_does_not_change_with_the_watch_that_gave_it() -> None:
    trap, other = EchoTrap(), EchoTrap()
    rows = run(30, 10, entropy=0.1)
    for row in rows[:12]:
        trap.watch(row)
    state = trap.get_state()
    text = json.dumps(state)
    other.set_state(state)
    for row in rows[12:]:
        trap.watch(row)
        other.watch(row)
    assert json.dumps(state) == text


def test_watch_and_scan_agree() -> None:
    rows = curves.rows(curves.bursts, 1)
    trap = EchoTrap()
    live = itertools.chain.from_iterable(map(trap.watch, rows))
    assert tuple(live) == scan(rows)


def test_thresholds_are_named_and_in_range() -> None:
    assert Thresholds.of({"votes": 3}).votes == 3
    with pytest.raises(UnknownName, match="spread_share"):
        Thresholds.of({"spread_shar": 0.1})
    for wrong in ({"votes": 0}, {"decay": 1.0}, {"rise": -1.0}, {"top": math.nan}):
        with pytest.raises(InvalidSpec, match=next(iter(wrong))):
            Thresholds(**wrong)


def test_a_step_is_a_change_point() -> None:
    found = change_point([1.0] * 6 + [0.0] * 4)
    assert found is not None
    assert (found.index, found.before, found.after) == (6, 1, 0)
    assert found.explained == pytest.approx(1)


def test_a_change_point_by_hand() -> None:
    # Break at 2: sums of squares 2 and 2 of 20 about the means 1 and 5.
    found = change_point([0.0, 2.0, 4.0, 6.0], margin=2)
    assert found is not None
    assert (found.index, found.before, found.after) == (2, 1, 5)
    assert found.explained == pytest.approx(16 / 20)


@pytest.mark.parametrize(
    "values", [[], [1.0, 0.0], [0.3] * 20, [1.0, 0.0] * 10], ids=str
)
def test_what_has_no_two_levels_has_no_change_point(values) -> None:
    assert change_point(values) is None


def test_distinct_share_by_hand() -> None:
    assert distinct_share(["a b c d", "a b c d"]) == 1 / 2
    assert distinct_share(["a b c d e", "b c d e f"]) == 3 / 4
    assert distinct_share(["a b", "a b", "c"]) == 2 / 3
    assert distinct_share(["<answer>Left</answer>"]) == 1
    assert distinct_share(["", " "]) is None


def test_repeated_share_by_hand() -> None:
    # 5 grams, of which the first comes back once.
    assert repeated_share(["a b c d a b c d"]) == pytest.approx(1 / 5)
    assert repeated_share(["a b c d", "a b c d"]) == 0
    assert repeated_share(["a a a a a a", ""]) == pytest.approx(2 / 3 / 2)
    assert repeated_share([]) is None


def test_mean_words_counts_empty_texts() -> None:
    assert mean_words(["one two", ""]) == 1
    assert mean_words([]) is None
