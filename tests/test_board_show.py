"""`board show` prints a board as the site ranks it, with what is not ranked below."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from ragen_bench.cli import cli
from ragen_bench.entries import Entry, read_entry, shipped_folder
from ragen_bench.ranking.played import of_entry
from ragen_bench.run_folder import write_json
from ragen_bench.viewing import boards

SMOKE = ("fixed", "null", "oracle", "random", "tiny")


def show(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["board", "show", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def altered(entry: Entry, name: str, **facts: object) -> Entry:
    meta = entry.meta.model_copy(update={"name": name})
    return entry.model_copy(update={"meta": meta, **facts})


@pytest.fixture
def entries(tmp_path: Path) -> Path:
    """Return a folder with two entries that are ranked and two that are not."""
    home = tmp_path / "smoke"
    home.mkdir()
    for name in ("oracle", "random"):
        shutil.copy(shipped_folder("smoke") / f"{name}.json", home)
    known = read_entry(home / "random.json")
    write_json(home / "old.json", altered(known, "old", board_version=7))
    owing = known.summary.model_copy(
        update={"rankable": False, "unrankable_because": ("2 of 48 episodes owed",)}
    )
    write_json(home / "owing.json", altered(known, "owing", summary=owing))
    return tmp_path


def test_the_shipped_entries_are_ranked_as_the_site_ranks_them():
    found = json.loads(show("smoke", "--json"))
    rows = [
        boards.Row(
            slug=name,
            label=name,
            board="smoke",
            played=of_entry(read_entry(shipped_folder("smoke") / f"{name}.json")),
            entry=None,
            episodes=0,
        )
        for name in SMOKE
    ]
    expected = {name: list(places) for name, places in boards.rank_ranges(rows).items()}
    assert {row["entry"]: row["rank"] for row in found["rows"]} == expected
    means = [row["score"]["mean"] for row in found["rows"]]
    assert means == sorted(means, reverse=True) and found["below"] == []
    assert len(found["pairs"]) == 10
    assert {row["status"] for row in found["rows"]} == {"replayed"}


def test_a_table_has_ranks_intervals_classes_statuses_and_bounds():
    lines = show("smoke").splitlines()
    assert lines[0].startswith("smoke, version 1: ")
    assert lines[2].split()[:5] == ["entry", "class", "status", "rank", "score"]
    rows = {line.split()[0]: line.split() for line in lines[3:]}
    assert set(rows) == {*SMOKE, "ceiling", "floor"}
    oracle = read_entry(shipped_folder("smoke") / "oracle.json").summary.score
    assert rows["oracle"][1:7] == [
        "solver",
        "replayed",
        "1",
        f"{oracle.mean:.2f}",
        f"[{oracle.low:.2f},",
        f"{oracle.high:.2f}]",
    ]
    assert rows["tiny"][1] == "trained" and "-" in rows["random"][3]
    # Bounds stand among the rows by their scores.
    order = [line.split()[0] for line in lines[3:]]
    assert order[0] == "ceiling" and order.index("floor") < order.index("null")


def test_what_is_not_ranked_stands_below_with_the_reason(entries):
    text = show("smoke", "--entries", entries)
    table, told = text.split("Not ranked:\n")
    assert [line.split()[0] for line in table.splitlines()[3:] if line] == [
        "ceiling",
        "oracle",
        "random",
        "floor",
        "old",
        "owing",
    ]
    assert told.strip().splitlines() == [
        "- old: played version 7 of the board, which is 1 now",
        "- owing: 2 of 48 episodes owed",
    ]
    below = {row["entry"]: row for row in json.loads(show_json(entries))["below"]}
    assert below["old"]["rank"] is None and "version 7" in below["old"]["reason"]


def show_json(entries: Path) -> str:
    return show("smoke", "--entries", entries, "--json")


def test_csv_has_every_digit_and_the_same_rows(entries):
    lines = list(
        csv.DictReader(io.StringIO(show("smoke", "--entries", entries, "--csv")))
    )
    assert [line["entry"] for line in lines] == [
        "ceiling",
        "oracle",
        "random",
        "floor",
        "old",
        "owing",
    ]
    oracle = read_entry(entries / "smoke" / "oracle.json").summary
    line = lines[1]
    assert float(line["score"]) == oracle.score.mean
    assert float(line["score_low"]) == oracle.score.low
    env = oracle.envs["ragen/Sokoban-v0"].normalized
    assert float(line["ragen/Sokoban-v0_high"]) == env.high
    assert (line["best_rank"], line["worst_rank"], line["reason"]) == ("1", "1", "")
    assert (lines[4]["best_rank"], lines[3]["score"]) == ("", "0.0")
    assert lines[5]["reason"] == "2 of 48 episodes owed"


def test_markdown_is_a_table(entries):
    text = show("smoke", "--entries", entries, "--markdown")
    assert text.splitlines()[2].startswith("| entry | class | status | rank | score |")
    assert "\nNot ranked:\n\n- old: " in text


def test_a_class_is_ranked_among_itself():
    found = json.loads(show("smoke", "--class", "trained", "--json"))
    assert [(row["entry"], row["rank"]) for row in found["rows"]] == [("tiny", [1, 1])]
    both = json.loads(
        show("smoke", "--class", "trained", "--class", "solver", "--json")
    )
    assert len(both["rows"]) == len(SMOKE)


def test_a_board_without_entries_shows_its_bounds(tmp_path):
    rows = show("smoke", "--entries", tmp_path).splitlines()[3:]
    assert [row.split()[0] for row in rows] == ["ceiling", "floor"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("smok",), "did you mean 'smoke'"),
        (("smoke", "--csv", "--json"), "exclude each other"),
        (("smoke", "--markdown", "--csv"), "exclude each other"),
        (("smoke", "--class", "robot"), "'robot' is not one of"),
        (("smoke", "--entries", "nowhere"), "does not exist"),
    ],
)
def test_wrong_usage_is_refused(words, hint):
    assert hint in show(*words, code=2)
