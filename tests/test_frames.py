"""Data frames have the columns that are written down, and the numbers of the run."""

import re
from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import pandas as pd  # noqa: E402
from test_scoring import ARMS, GRID, config, episode, lost, turn  # noqa: E402

import ragen_bench as rb  # noqa: E402
from ragen_bench import frame_columns, frames  # noqa: E402
from ragen_bench.errors import InvalidSpec, RecordError  # noqa: E402
from ragen_bench.records import RunRecord  # noqa: E402
from ragen_bench.run_folder import RunFolder  # noqa: E402

pytestmark = pytest.mark.report

DOCS = Path(__file__).parent.parent / "docs" / "reports.md"
TABLES = {
    "runs": frame_columns.RUNS,
    "episodes": frame_columns.EPISODES,
    "cells": frame_columns.CELLS,
    "turns": frame_columns.TURNS,
}


def folder(path: Path, episodes=None, **settings) -> Path:
    """Write a run of two cells and return its folder."""
    record = RunRecord(
        config=config((GRID, 1), (ARMS, 2), seeds=2, **settings),
        versions={"ragen-bench": "0.1.0"},
        commit=None,
        model_facts={},
        prompt_sha256={},
        started="2026-11-30T00:00:00+00:00",
    )
    if episodes is None:
        episodes = [
            episode(0, True, turns=(turn(2, tokens=7), turn(1, "illegal", tokens=5))),
            episode(1, False, turns=(turn(0, "empty", tokens=None),)),
            episode(0, None, env_id=ARMS, level=2, **{"return": 0.5}),
            lost(1, "timeout", env_id=ARMS, level=2, success=None),
        ]
    with RunFolder(path, record) as run:
        for one in episodes:
            run.append(one)
    return path


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = folder(tmp_path_factory.mktemp("runs") / "mine")
    return rb.load_runs({"mine": path}, turns=True)


@pytest.mark.parametrize("name", TABLES)
def test_columns_and_types_are_those_written_down(loaded, name):
    frame = loaded.tables()[name]
    assert list(frame.columns) == list(TABLES[name])
    assert {column: str(kind) for column, kind in frame.dtypes.items()} == TABLES[name]


@pytest.mark.parametrize("name", TABLES)
def test_the_page_names_every_column_in_order(name):
    section = DOCS.read_text().split(f"### `{name}`")[1].split("\n#")[0]
    rows = re.findall(r"^\| (.+?) \|", section, re.M)[1:]
    assert re.findall(r"`(\w+)`", "\n".join(rows)) == list(TABLES[name])


def test_an_episode_is_a_row(loaded):
    rows = loaded.episodes
    assert len(rows) == 4
    first, second, third, nobody = (row for _, row in rows.iterrows())
    assert (first.run, first.env_id, first.level, first.seed) == ("mine", GRID, 1, 0)
    assert (first.turns, first.actions, first.invalid_turns) == (2, 3, 1)
    assert (first.output_tokens, first.input_tokens) == (12, 200)
    assert (
        second.output_tokens is pd.NA and second.success is False or not second.success
    )
    assert third.success is pd.NA and third["return"] == 0.5
    assert not nobody.scored and nobody["return"] is pd.NA
    assert nobody.outcome == "timeout"


def test_a_failure_has_the_return_that_scores_have(tmp_path):
    played = [lost(0, "agent_error", **{"return": 1.0}), episode(1, True)]
    found = rb.load_runs(folder(tmp_path / "x", played)).episodes
    assert found["return"].tolist() == [0.0, 1.0]


def test_turns_are_rows_only_if_asked_for(loaded, tmp_path):
    turns = loaded.turns
    # Two and one of the grid, and one of each other episode.
    assert len(turns) == 5
    assert turns.turn.tolist()[:3] == [0, 1, 0]
    assert turns.parse.tolist()[:3] == ["ok", "illegal", "empty"]
    assert turns.output_tokens.isna().sum() == 1
    assert rb.load_runs(folder(tmp_path / "x")).turns is None


def test_cells_and_runs_are_those_of_the_summary(loaded):
    summary = loaded.summaries["mine"]
    cell = loaded.cells[loaded.cells.env_id == GRID].iloc[0]
    known = summary.cells[f"{GRID}:1"]
    assert cell.normalized == known.normalized.mean
    assert cell.success_low == known.success.low and cell.solved == 1
    run = loaded.runs.iloc[0]
    assert run.score == summary.score.mean
    assert (run.planned, run.owed, run.timeout) == (4, 0, 1)
    assert run.model is pd.NA or pd.isna(run.model)
    assert run["class"] == "llm" and run.complete


def test_several_runs_stand_below_each_other(tmp_path):
    paths = [folder(tmp_path / name) for name in "ab"]
    found = rb.load_runs(paths)
    assert found.runs.run.tolist() == [str(path) for path in paths]
    assert found.episodes.run.value_counts().tolist() == [4, 4]


def test_parquet_files_give_the_same_frames(loaded, tmp_path):
    written = frames.write_parquet(loaded, tmp_path)
    assert [path.stem for path in written] == ["runs", "episodes", "cells", "turns"]
    for path in written:
        back = pd.read_parquet(path)
        ours = loaded.tables()[path.stem]
        assert list(back.columns) == list(ours.columns) and len(back) == len(ours)
    back = pd.read_parquet(tmp_path / "episodes.parquet")
    assert back.output_tokens.isna().tolist() == [False, True, False, False]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RecordError, match="is no run folder"):
        rb.load_runs(tmp_path)
    with pytest.raises(InvalidSpec, match="no run to load"):
        rb.load_runs([])
