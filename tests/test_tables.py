"""One table over runs, as strings."""

import pytest

from ragen_bench.records import CellScore, Interval, Summary
from ragen_bench.tables import (
    COLUMNS,
    interval_text,
    number_text,
    rows,
    to_markdown,
    to_text,
)

UNKNOWN = Interval(mean=None, low=None, high=None, n=0)


def between(mean: float, low: float, high: float) -> Interval:
    return Interval(mean=mean, low=low, high=high, n=8)


def cell(**facts) -> CellScore:
    known = {
        "episodes": 8,
        "success": between(0.525, 0.41, 0.65),
        "episode_return": between(0.525, 0.41, 0.65),
        "normalized": between(-0.001, -0.25, 0.5),
        "floor": 0.031,
        "ceiling": 1.0,
        "efficiency": None,
        "invalid_rate": 0.25,
        "parses": {},
        "turns": 3.25,
        "actions": 4.0,
        "tokens": None,
        "outcomes": {},
    }
    return CellScore(**{**known, **facts})


def summary(*cells: str) -> Summary:
    return Summary(
        board=None,
        agent_class="llm",
        agent="direct",
        model="tiny",
        complete=True,
        rankable=False,
        unrankable_because=("no board",),
        planned=9,
        owed=1,
        outcomes={},
        score=between(0.4, 0.3, 0.5),
        input_tokens=None,
        output_tokens=None,
        envs={name.rpartition(":")[0]: cell() for name in cells},
        cells={name: cell(success=UNKNOWN) for name in cells},
    )


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (between(0.526, 0.41, 0.654), "0.53 [0.41, 0.65]"),
        (between(-0.001, -0.001, 12.0), "0.00 [0.00, 12.00]"),
        (Interval(mean=0.5, low=None, high=None, n=1), "0.50"),
        (UNKNOWN, "-"),
    ],
)
def test_intervals_are_short(interval, text):
    assert interval_text(interval) == text


def test_unknown_numbers_are_a_dash():
    assert (number_text(None), number_text(12.345, 1)) == ("-", "12.3")


def test_a_run_has_its_score_then_environments_each_with_its_cells():
    table = rows({"mine": summary("a/A-v0:1", "a/A-v0:2", "b/B-v0:1")})
    assert [row[:2] for row in table] == [
        ("mine", "all"),
        ("mine", "a/A-v0"),
        ("mine", "a/A-v0:1"),
        ("mine", "a/A-v0:2"),
        ("mine", "b/B-v0"),
        ("mine", "b/B-v0:1"),
    ]
    assert all(len(row) == len(COLUMNS) for row in table)
    assert table[0][2:5] == ("8", "-", "0.40 [0.30, 0.50]")
    assert table[2] == (
        "mine",
        "a/A-v0:1",
        "8",
        "-",
        "0.00 [-0.25, 0.50]",
        "0.53 [0.41, 0.65]",
        "0.03",
        "1.00",
        "0.25",
        "3.2",
        "-",
    )


def test_cells_may_be_left_out_and_runs_keep_their_order():
    table = rows({"z": summary("a/A-v0:1"), "a": summary("a/A-v0:1")}, cells=False)
    assert [row[:2] for row in table] == [
        ("z", "all"),
        ("z", "a/A-v0"),
        ("a", "all"),
        ("a", "a/A-v0"),
    ]


def test_markdown_escapes_bars_and_aligns_numbers():
    text = to_markdown([("a|b", "c", "1")], columns=("run", "cell", "n"))
    assert text == ("| run | cell | n |\n| --- | --- | ---: |\n| a\\|b | c | 1 |\n")


def test_plain_text_is_aligned():
    text = to_text([("long", "c", "1"), ("s", "cell", "10")], ("run", "x", "n"))
    assert text.splitlines() == [
        "run   x      n",
        "long  c      1",
        "s     cell  10",
    ]
