"""Run folders, bundles and entries are read alike, and strangers' ones with care."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import bundles
import pytest
from submissions import META, play, small
from test_verify_faults import ARCHIVES

import ragen_bench as rb
from ragen_bench.errors import RecordError
from ragen_bench.run_sources import open_run
from ragen_bench.submission import submit


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ``run``, ``mine.zip`` and ``mine.json``."""
    folder = tmp_path_factory.mktemp("made")
    assert submit(play(folder), small(), folder / "mine.zip", META).entry is not None
    return folder


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the bundle, its entry beside it."""
    for name in ("mine.zip", "mine.json"):
        shutil.copy(made / name, tmp_path)
    return tmp_path / "mine.zip"


def read(path: Path) -> list[Any]:
    return [episode.key for episode in open_run(path).episodes()]


def test_folder_bundle_and_entry_hold_the_same_episodes(made: Path) -> None:
    paths = [made / name for name in ("run", "mine.zip", "mine.json")]
    assert read(paths[0]) == read(paths[1]) == read(paths[2]) != []
    runs = [open_run(path) for path in paths]
    assert [run.bundled for run in runs] == [False, True, True]
    assert {run.record.started for run in runs} == {runs[0].record.started}


@pytest.mark.parametrize("archive", ARCHIVES)
def test_a_hostile_bundle_is_refused_as_verify_does(
    archive: str, made: Path, tmp_path: Path
) -> None:
    members = bundles.read(made / "run").members()
    ARCHIVES[archive][1](tmp_path / "x.zip", members)
    with pytest.raises(RecordError, match=r"x\.zip"):
        read(tmp_path / "x.zip")


@pytest.mark.parametrize("text", ['{"schema":1,"schema":1}', "[" * 100, "NaN"])
def test_a_bundles_lines_are_strict_json(text: str, made: Path, tmp_path: Path) -> None:
    members = bundles.read(made / "run").members()
    members["episodes.jsonl"] += f"{text}\n".encode()
    bundles.pack(tmp_path / "x.zip", members)
    with pytest.raises(RecordError, match=r"x\.zip.*episodes\.jsonl:12"):
        read(tmp_path / "x.zip")


def test_an_entry_needs_the_very_bundle_that_it_names(bundle: Path) -> None:
    entry = bundle.with_suffix(".json")
    bundle.write_bytes(bundle.read_bytes() + b" ")
    with pytest.raises(RecordError, match="mine.zip has SHA-256 .*, but the entry"):
        read(entry)
    bundle.unlink()
    with pytest.raises(RecordError, match=r"mine\.json.*mine\.zip"):
        read(entry)
    held = json.loads(entry.read_text())
    entry.write_text(json.dumps({**held, "bundle": "../mine.zip"}))
    with pytest.raises(RecordError, match="must be the name of a zip beside it"):
        read(entry)


def test_a_bundle_that_is_a_link_beside_an_entry_is_not_followed(bundle: Path) -> None:
    shutil.move(bundle, bundle.with_name("elsewhere"))
    os.symlink("elsewhere", bundle)
    with pytest.raises(RecordError, match=r"mine\.zip"):
        read(bundle.with_suffix(".json"))


KINDS = r"no run folder, bundle \(\.zip\) or entry \(\.json\)"


@pytest.mark.parametrize("kind", ["nothing", "text", "folder"])
@pytest.mark.parametrize("verb", ["view", "load_runs"])
@pytest.mark.report
def test_what_is_none_of_them_is_refused_in_the_same_words(
    kind: str, verb: str, tmp_path: Path
) -> None:
    pytest.importorskip("pandas")
    from ragen_bench.viewing.site import build

    path = tmp_path / "in" / "it.txt"
    path.parent.mkdir()
    if kind == "text":
        path.write_text("x")
    if kind == "folder":
        path.mkdir()
    with pytest.raises(RecordError, match=rf"it\.txt' is {KINDS}"):
        if verb == "view":
            build([path], tmp_path / "site")
        else:
            rb.load_runs(path)


@pytest.mark.report
def test_data_frames_of_all_three_are_equal(made: Path) -> None:
    pd = pytest.importorskip("pandas")
    paths = {"run": made / "run", "zip": made / "mine.zip", "json": made / "mine.json"}
    frames = rb.load_runs(paths, turns=True)
    for table in (frames.episodes, frames.turns, frames.cells):
        parts = [
            table[table.run == name].drop(columns="run").reset_index(drop=True)
            for name in paths
        ]
        for part in parts[1:]:
            pd.testing.assert_frame_equal(parts[0], part)
