"""A board's table ranks what may be ranked, between its floor and its ceiling."""

import csv
import io

import numpy as np
import pytest

from ragen_bench.board import Board, Seal
from ragen_bench.entries import Entry, Meta
from ragen_bench.errors import RecordError
from ragen_bench.ranking.board_table import board_table
from ragen_bench.ranking.board_texts import to_csv, to_json, to_table
from ragen_bench.ranking.pairing import pair
from ragen_bench.ranking.played import of_entry, read_played
from ragen_bench.run_folder import write_json

from contest import ARMS, GRID, cell, played  # isort: skip

SEEDS = 12
DIGEST = "a" * 64
BOARD = Board(
    schema=1,
    name="toy",
    title="toy",
    digest=DIGEST,
    cells=[
        {"env_id": GRID, "level": 1, "seeds": SEEDS, "skip": [3]},
        {"env_id": ARMS, "level": 1, "seeds": SEEDS},
    ],
)


def entry(name: str, wins: int, *, holes: int = 0, **facts) -> Entry:
    """Return an entry that wins the first instances, with holes that nobody played."""
    solved: list[float | None] = [float(i < wins) for i in range(SEEDS)]
    solved[:holes] = [None] * holes
    pay = [0.2 + 0.05 * wins] * SEEDS
    cells = {
        f"{GRID}:1": cell(solved, floor=0.125),
        f"{ARMS}:1": cell(pay, success=False, floor=0.2),
    }
    summary = played(name, cells).summary
    updates = {"rankable": True, "unrankable_because": (), **facts.pop("summary", {})}
    return Entry(
        **{
            "board": "toy",
            "board_version": 1,
            "board_digest": DIGEST,
            "status": "replayed",
            "meta": Meta(
                name=name,
                model="none",
                organisation="us",
                licence="MIT",
                training_data="none",
            ),
            "summary": summary.model_copy(update=updates),
            "returns": {f"{GRID}:1": solved, f"{ARMS}:1": pay},
            "successes": {
                f"{GRID}:1": [None if x is None else x == 1 for x in solved],
                f"{ARMS}:1": [None] * SEEDS,
            },
            "settings": {"repeats": 1},
            "versions": {},
            "commit": None,
            "command": None,
            "started": "2026-11-30T00:00:00+00:00",
            "model_facts": {},
            "prompt_sha256": {},
            "bundle": f"{name}.zip",
            "bundle_sha256": "0" * 64,
            "episodes_sha256": "0" * 64,
            **facts,
        }
    )


def test_an_entry_is_keyed_by_the_boards_seeds_without_the_skipped_ones():
    found = of_entry(entry("a", 6, holes=2), BOARD)
    keys = found.cells[f"{GRID}:1"].keys
    # Seeds 0 and 1 are holes, and seed 3 is skipped.
    assert keys == tuple((seed, 0) for seed in (2, 4, 5, 6, 7, 8, 9, 10, 11, 12))
    assert np.isnan(found.cells[f"{ARMS}:1"].success).all()


def test_holes_never_misalign_entries():
    one, other = (
        of_entry(entry(n, 6, holes=h), BOARD) for n, h in (("a", 2), ("b", 0))
    )
    found = pair(one, other)
    assert found.shared == 2 * SEEDS - 2
    assert not found.parts().any()


def test_an_entry_that_does_not_fit_its_board_is_refused():
    bad = entry("a", 6)
    bad = bad.model_copy(update={"returns": {f"{GRID}:1": (1.0,)}})
    with pytest.raises(
        RecordError,
        match="has 1 return and 12 successes in .* the board has 12 episodes",
    ):
        of_entry(bad, BOARD)


def test_sealed_entries_are_paired_with_those_of_the_same_seal_alone():
    seal = "b" * 64
    one = of_entry(entry("a", 6, sealed=seal), BOARD)
    same = of_entry(entry("b", 6, sealed=seal), BOARD)
    assert pair(one, same).shared == 2 * SEEDS
    assert pair(one, of_entry(entry("c", 6), BOARD)).shared == 0


def test_the_best_stands_first_and_floor_and_ceiling_always():
    entries = [entry("low", 0), entry("high", 12), entry("middle", 11)]
    found = board_table(BOARD, entries)
    assert [row.name for row in found.rows] == ["high", "middle", "low"]
    assert [str(row.rank) for row in found.rows] == ["1-2", "1-2", "3"] or [
        str(row.rank) for row in found.rows
    ] == ["1", "2", "3"]
    assert (found.ceiling.score, found.floor.score) == (1.0, 0.0)
    assert found.floor.returns == {GRID: 0.125, ARMS: 0.2}
    assert len(found.comparisons) == 3
    table = to_table(found)
    assert table.columns == ("entry", "class", "status", "rank", "score", GRID, ARMS)
    names = [row[0] for row in table.rows]
    # Who plays worse than chance stands below the floor.
    assert names == ["ceiling", "high", "middle", "floor", "low"]
    assert table.rows[3][5] == "0.00 (return 0.12)"
    assert {row[2] for row in table.rows} == {"-", "replayed"}


def test_a_board_without_entries_still_shows_its_bounds():
    found = board_table(BOARD, [])
    assert [row[0] for row in to_table(found).rows] == ["ceiling", "floor"]
    assert found.floor.returns == {GRID: None, ARMS: None}


def test_what_cannot_be_ranked_stands_below_with_the_reason():
    entries = [
        entry("good", 6),
        entry("old", 12, board_version=3),
        entry("moved", 12, board_digest="c" * 64),
        entry("resealed", 12, status="sealed", sealed="d" * 64),
        entry(
            "owing",
            12,
            summary={"rankable": False, "unrankable_because": ("3 of 24 owed",)},
        ),
    ]
    sealed = BOARD.model_copy(update={"seal": Seal(commitment="e" * 64)})
    found = board_table(sealed, entries)
    assert [row.name for row in found.rows] == ["good"]
    assert {row.name: row.reason for row in found.below} == {
        "old": "played version 3 of the board, which is 1 now",
        "moved": "played another list of episodes than the board's",
        "resealed": "played the seeds of a seal that the board no longer has",
        "owing": "3 of 24 owed",
    }
    names = [row[0] for row in to_table(found).rows]
    assert names[:3] == ["ceiling", "good", "floor"]
    assert sorted(names[3:]) == ["moved", "old", "owing", "resealed"]


def test_a_class_is_ranked_among_itself():
    entries = [
        entry("llm", 6),
        entry("solver", 12, summary={"agent_class": "solver"}),
    ]
    found = board_table(BOARD, entries, classes=["llm"])
    assert [(row.name, str(row.rank)) for row in found.rows] == [("llm", "1")]
    assert found.floor.returns[GRID] == 0.125


def test_a_class_that_the_agent_alone_tells_is_as_declared():
    entries = [
        entry("ours", 6, summary={"agent": "direct", "agent_class": "llm"}),
        entry("theirs", 12, summary={"agent": "mine:Mine", "agent_class": "llm"}),
        entry("alike", 1, summary={"agent": "Direct", "agent_class": "llm"}),
    ]
    found = board_table(BOARD, entries)
    said = {row[0]: row[1] for row in to_table(found).rows}
    assert said == {
        "ceiling": "-",
        "floor": "-",
        "ours": "llm",
        "theirs": "llm (as declared)",
        "alike": "llm (as declared)",
    }
    declared = {"ours": False, "theirs": True, "alike": True}
    told = to_json(found)["rows"]
    assert {row["entry"]: row["declared"] for row in told} == declared
    lines = csv.DictReader(io.StringIO(to_csv(found)))
    told = {line["entry"]: line["declared"] for line in lines if line["class"]}
    assert told == {name: str(value) for name, value in declared.items()}


def test_entries_of_another_board_and_twins_are_refused():
    with pytest.raises(RecordError, match="is of board 'other'"):
        board_table(BOARD, [entry("a", 1, board="other")])
    with pytest.raises(RecordError, match="'a' comes twice"):
        board_table(BOARD, [entry("a", 1), entry("a", 2)])


def test_an_entry_of_a_board_that_is_not_installed_is_read(tmp_path):
    write_json(tmp_path / "a.json", entry("a", 3))
    # The order stands for the seeds.
    found = read_played(tmp_path / "a.json")
    assert (found.label, found.seeds_from) == ("a", "toy version 1")
