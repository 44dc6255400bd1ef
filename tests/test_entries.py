"""The entries of a board: which are read, ranked and refused, and how CI checks."""

import argparse
import functools
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from submissions import META, SALT, play, small

from ragen_bench import board as boards
from ragen_bench import listing
from ragen_bench.board import load
from ragen_bench.cli import cli
from ragen_bench.entries import (
    Entry,
    Meta,
    entries_of,
    read_entry,
    shipped_folder,
    standing_of,
)
from ragen_bench.entry_checks import check_board
from ragen_bench.errors import RecordError
from ragen_bench.run_folder import write_json
from ragen_bench.submission import sha256_of_file, submit
from ragen_bench.verifying import verify

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds ``mine.json`` and ``mine.zip``."""
    folder = tmp_path_factory.mktemp("made")
    submit(play(folder), small(), folder / "entries" / "mine.zip", META)
    return folder / "entries"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Iterator[Path]:
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    yield tmp_path


def write(folder: Path, name: str, entry: Entry, **changed: object) -> None:
    """Write an entry under a name of its own, in the file of that name."""
    meta = entry.meta.model_copy(update={"name": name})
    facts = {"meta": meta, "bundle": f"{name}.zip", **changed}
    write_json(folder / f"{name}.json", entry.model_copy(update=facts))


def edited(folder: Path, **changed: object) -> list[str]:
    """Return the faults of the entry after a change of its JSON."""
    path = folder / "mine.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    return list(check_board(small(), folder).faults)


# Reading ------------------------------------------------------------------------


def test_entries_are_read_by_name_and_old_ones_apart(folder: Path):
    entry = read_entry(folder / "mine.json")
    write(folder, "older", entry, board_version=0)
    write(folder, "other-list", entry, board_digest="0" * 64)
    write(folder, "gone-seal", entry, sealed="1" * 64)
    write(folder, "a", entry)
    found = entries_of(small(), folder)
    assert [entry.meta.name for entry in found.ranked] == ["a", "mine"]
    outdated = {entry.meta.name for entry in found.outdated}
    assert outdated == {"older", "other-list", "gone-seal"}


@pytest.mark.parametrize(
    ("standing", "changed"),
    [
        ("current", {}),
        ("outdated", {"board_version": 1, "board_digest": "0" * 64}),
        ("outdated", {"sealed": "1" * 64}),
        ("strange", {"board_version": 3}),
        ("strange", {"board_version": 0}),
        ("strange", {"board_digest": "0" * 64}),
    ],
)
def test_readers_and_checks_agree_which_entries_are_the_boards(
    standing: str, changed: dict[str, Any], folder: Path
):
    second = small().model_copy(update={"version": 2})
    entry = read_entry(folder / "mine.json").model_copy(
        update={"board_version": 2, **changed}
    )
    assert standing_of(entry, second) == standing
    write_json(folder / "mine.json", entry)
    (folder / "mine.zip").unlink()
    assert bool(entries_of(second, folder).ranked) == (standing == "current")
    report = check_board(second, folder)
    assert bool(report.outdated) == (standing == "outdated")
    told = any("version" in fault or "digest" in fault for fault in report.faults)
    assert told == (standing == "strange")


def test_a_sealed_entry_is_ranked_under_its_own_seal(folder: Path):
    held = small(seal=True)
    entry = read_entry(folder / "mine.json")
    write(folder, "mine", entry, sealed=held.seal.commitment)
    assert len(entries_of(held, folder).ranked) == 1
    assert len(entries_of(small(), folder).outdated) == 1


def test_a_board_without_entries_has_none(tmp_path: Path):
    found = entries_of(small(), tmp_path / "none")
    assert (found.ranked, found.outdated) == ((), ())


def test_two_entries_of_one_name_are_refused_case_apart(folder: Path):
    write(folder, "MINE", read_entry(folder / "mine.json"))
    if len(list(folder.glob("*.json"))) == 1:
        pytest.skip("this file system takes both for one file")
    with pytest.raises(RecordError, match="have one name, .*, case apart"):
        entries_of(small(), folder)


def test_a_file_is_named_like_its_entry(folder: Path):
    (folder / "mine.json").rename(folder / "yours.json")
    with pytest.raises(RecordError, match=r"must be named like its entry: mine\.json"):
        entries_of(small(), folder)


def test_an_entry_of_another_board_is_refused(folder: Path):
    with pytest.raises(RecordError, match="is one of board 'small', but lies among"):
        entries_of(small().model_copy(update={"name": "large"}), folder)


def test_a_file_that_is_no_entry_is_refused(folder: Path):
    (folder / "bad.json").write_text('{"schema": 1}')
    with pytest.raises(RecordError, match=r"bad\.json"):
        entries_of(small(), folder)


@pytest.mark.parametrize("name", boards.names())
def test_shipped_entries_can_be_read(name: str):
    found = entries_of(load(name))
    assert not found.outdated
    assert len(found.ranked) == len(list(shipped_folder(name).glob("*.json")))


def test_ls_boards_shows_entries_and_the_seal(folder: Path, monkeypatch, tmp_path):
    held = small(seal=True)
    monkeypatch.setattr(boards, "names", lambda: ("small",))
    monkeypatch.setattr(boards, "load", lambda name: held)
    read = functools.partial(entries_of, folder=folder)
    monkeypatch.setattr(listing, "entries_of", read)
    write(folder, "older", read_entry(folder / "mine.json"), board_version=0)
    said = CliRunner().invoke(cli, ["ls", "boards", "-v"]).stdout
    assert "entries: mine" in said and "outdated: older" in said
    assert f"seal: {held.seal.commitment}, not revealed" in said
    monkeypatch.setattr(boards, "load", lambda name: small())
    assert "seal: none" in CliRunner().invoke(cli, ["ls", "boards", "-v"]).stdout


# Checks -------------------------------------------------------------------------


def test_a_sound_folder_has_no_fault(folder: Path):
    report = check_board(small(), folder)
    assert (report.faults, report.verified, report.unverified) == ((), 1, 0)
    assert report.confirmed == (folder / "mine.json",)


def test_an_entry_needs_its_bundle_or_a_keepers_word(folder: Path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("large")
    (folder / "mine.zip").rename(elsewhere / "mine.zip")
    (fault,) = check_board(small(), folder).faults
    assert "no keeper has confirmed this file" in fault
    report = check_board(small(), folder, bundles=elsewhere)
    assert (report.faults, report.verified) == ((), 1)
    kept = {"small/mine.json": sha256_of_file(folder / "mine.json")}
    report = check_board(small(), folder, kept=kept)
    assert (report.faults, report.verified, report.unverified) == ((), 0, 1)
    # A keeper confirmed those bytes and no others.
    held = json.loads((folder / "mine.json").read_text())
    held["summary"]["score"]["high"] = 1.0
    (folder / "mine.json").write_text(json.dumps(held))
    (fault,) = check_board(small(), folder, kept=kept).faults
    assert "no keeper has confirmed this file" in fault


def test_the_episodes_of_another_entry_are_refused(folder: Path):
    write(folder, "thief", read_entry(folder / "mine.json"))
    assert any(
        "thief.json: has the episodes of mine.json" in fault
        for fault in check_board(small(), folder).faults
    )


@pytest.mark.parametrize("bundle", ["../mine.zip", "", "/etc/passwd", "a/b.zip"])
def test_a_bundle_elsewhere_is_a_fault_and_not_opened(folder: Path, bundle: str):
    (fault,) = edited(folder, bundle=bundle)
    assert f"names the bundle {bundle!r}" in fault


def test_a_link_is_not_followed(folder: Path):
    (folder / "endless.json").symlink_to("/dev/zero")
    faults = check_board(small(), folder).faults
    assert "endless.json: is no plain file" in faults


@pytest.mark.parametrize(
    ("place", "value", "hint"),
    [
        (("settings", "repeats"), 0, "repeats is 0"),
        (("settings", "repeats"), "x", "repeats is 'x'"),
        (("settings", "repeats"), 2, "has 2 repeats, but the board 1"),
        (("summary", "cells"), {}, "have different cells"),
        (("summary", "cells", "ragen/Sokoban-v0:1", "floor"), None, "has no floor"),
    ],
)
def test_an_entry_that_nothing_can_be_made_of_is_refused(
    folder: Path, place: tuple[str, ...], value: object, hint: str
):
    held = json.loads((folder / "mine.json").read_text())
    inner = held
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (folder / "mine.json").write_text(json.dumps(held))
    assert any(hint in fault for fault in check_board(small(), folder).faults)


@pytest.mark.parametrize("text", ["GPT\u202e5", "a\u200bb", "a\nb"])
def test_names_that_look_like_others_are_refused(text: str):
    for name in ("model", "organisation", "licence"):
        with pytest.raises(ValueError, match="printable"):
            Meta.model_validate({**META.model_dump(by_alias=True), name: text})


@pytest.mark.parametrize("field", ["model", "organisation", "licence", "training_data"])
def test_a_blank_statement_is_refused(field: str):
    with pytest.raises(ValueError, match="blank"):
        Meta.model_validate({**META.model_dump(by_alias=True), field: " "})


def test_an_outdated_entry_is_counted_and_not_checked(folder: Path):
    newer = small().model_copy(update={"version": 2})
    report = check_board(newer, folder)
    assert (report.faults, report.outdated, report.verified) == ((), 1, 0)


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        ({"schema": 2}, "has schema 2"),
        ({"status": "verified"}, "status is 'verified'"),
        ({"extra": 1}, "extra is 1"),
        ({"board": "large"}, "is of board 'large', but lies among the entries"),
        ({"board_version": 9}, "is of version 9, but the board is at 1"),
        ({"board_digest": "0" * 64}, "has the board digest 000"),
        ({"bundle": "yours.zip"}, "names the bundle 'yours.zip'"),
        ({"status": "sealed"}, "has the status sealed, but no seal"),
        ({"bundle_sha256": "0" * 64}, "but must have 000"),
        ({"episodes_sha256": "0" * 64}, "episodes_sha256 is not what submit would"),
        ({"command": "made up"}, "command is not what submit would write now"),
    ],
)
def test_a_changed_entry_has_a_fault(folder: Path, changed, hint):
    (fault,) = edited(folder, **changed)
    assert fault.startswith("mine.json: ")
    assert hint in fault


def test_numbers_may_be_as_far_from_a_replay_as_verify_allows(folder: Path):
    held = json.loads((folder / "mine.json").read_text())
    for off, sound in ((1e-7, False), (1e-12, True)):
        summary = json.loads(json.dumps(held["summary"]))
        summary["score"]["low"] += off
        assert (edited(folder, summary=summary) == []) == sound
        assert (verify(folder / "mine.json", board=small()).faults == ()) == sound


def test_scores_must_follow_from_the_entrys_own_returns(folder: Path):
    held = json.loads((folder / "mine.json").read_text())
    (folder / "mine.zip").unlink()
    better = {**held["returns"], "ragen/Sokoban-v0:1": [1.0, 1.0, 1.0, 1.0]}
    faults = edited(folder, returns=better)
    assert any("episode_return is" in fault for fault in faults)
    assert any("normalized is" in fault for fault in faults)
    summary = json.loads(json.dumps(held["summary"]))
    summary["score"]["mean"] = 0.5
    (fault,) = edited(folder, returns=held["returns"], summary=summary)
    assert "score is 0.5, but its cells give" in fault
    summary = json.loads(json.dumps(held["summary"]))
    summary["cells"]["ragen/Sokoban-v0:1"]["success"]["mean"] = 1.0
    (fault,) = edited(folder, summary=summary)
    assert "ragen/Sokoban-v0:1: success is 1.0" in fault


def test_cells_and_episodes_must_be_the_boards(folder: Path):
    held = json.loads((folder / "mine.json").read_text())
    (folder / "mine.zip").unlink()
    short = {**held["successes"], "ragen/Sokoban-v0:1": [True]}
    assert any(
        "successes have other cells or episodes than the board" in fault
        for fault in edited(folder, successes=short)
    )


def test_names_and_files_are_checked(folder: Path):
    entry = read_entry(folder / "mine.json")
    (folder / "note.txt").write_text("x")
    (folder / "lost.zip").write_bytes(b"x")
    write_json(folder / "other.json", entry)
    faults = check_board(small(), folder).faults
    told = "\n".join(faults)
    assert "lost.zip: is neither an entry nor the bundle of one" in told
    assert "note.txt: is neither" in told
    assert "other.json: has the name 'mine', but a file must be named" in told
    assert "other.json: has the name of mine.json, case apart" in told


def test_a_damaged_bundle_is_a_fault(folder: Path):
    path = folder / "mine.zip"
    path.write_bytes(path.read_bytes()[:-9])
    (fault,) = check_board(small(), folder).faults
    assert "mine.zip has SHA-256" in fault


def test_sealed_seeds_must_not_be_shown_before_the_salt(tmp_path: Path):
    held = small(seal=True)
    run = play(tmp_path, held, salt=SALT)
    home = tmp_path / "entries"
    submit(run, held, home / "mine.zip", META, salt=SALT)
    (fault, claim) = check_board(held, home).faults
    assert "take it away until the salt is revealed" in fault
    assert "only the board's keepers" in claim
    bundle = (home / "mine.zip").read_bytes()
    (home / "mine.zip").unlink()
    kept = {"small/mine.json": sha256_of_file(home / "mine.json")}
    assert check_board(held, home, kept=kept).faults == ()
    # Without the keepers' word it is anybody's claim.
    (missing, claim) = check_board(held, home).faults
    assert "no keeper has confirmed" in missing
    assert "only the board's keepers" in claim
    opened = held.model_copy(
        update={"seal": held.seal.model_copy(update={"salt": SALT})}
    )
    (home / "mine.zip").write_bytes(bundle)
    (claim,) = check_board(opened, home).faults
    assert "only the board's keepers" in claim
    report = check_board(opened, home, kept=kept)
    assert (report.faults, report.verified) == ((), 1)
    # Those of the open seeds stay what they are.
    (tmp_path / "open").mkdir()
    mine = play(tmp_path / "open", held)
    submit(mine, held, home / "open.zip", META.model_copy(update={"name": "open"}))
    report = check_board(opened, home, kept=kept)
    assert (report.faults, report.verified) == ((), 2)


# The script -----------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    main = runpy.run_path(str(ROOT / "scripts" / "check_entries.py"))["main"]

    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["check_entries.py", *map(str, words)])
        code = main()
        said, call.told = capsys.readouterr()
        return code, said

    return call


def test_the_script_tells_a_fault_a_line_and_fails(script, tmp_path: Path):
    home = tmp_path / "smoke"
    home.mkdir()
    (home / "bad.json").write_text("{")
    code, said = script("--entries", tmp_path, "smoke")
    assert code == 1
    assert said.startswith("smoke/bad.json: ") and len(said.splitlines()) == 1
    assert script.told.endswith(" 1 fault\n")
    (home / "bad.json").unlink()
    assert script("--entries", tmp_path, "smoke") == (0, "")
    (tmp_path / "smok").mkdir()
    code, said = script("--entries", tmp_path)
    assert code == 1 and said.startswith("smok: is no board")


def test_the_workflow_runs_the_script():
    text = (ROOT / ".github" / "workflows" / "entries.yml").read_text()
    assert "python scripts/check_entries.py" in text
    assert "pull_request" in text


# Baselines ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def baselines() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "baselines.py"))


def test_a_baseline_is_played_verified_and_shipped(baselines, tmp_path, capsys):
    one = baselines["Baseline"](name="null", board="smoke", settings={"agent": "null"})
    runs, entries = tmp_path / "runs", tmp_path / "entries"
    assert baselines["build"](one, runs, entries)
    report = check_board(load("smoke"), entries / "smoke")
    assert (report.faults, report.verified) == ((), 1)
    entry = read_entry(entries / "smoke" / "null.json")
    assert entry.command == "ragen-bench run --board smoke --agent null"
    assert "null: score " in capsys.readouterr().out


def test_a_baseline_that_cannot_be_entered_is_told(baselines, tmp_path, capsys):
    settings = {"agent": "null", "repeats": 2}
    one = baselines["Baseline"](name="null", board="smoke", settings=settings)
    assert not baselines["build"](one, tmp_path / "runs", tmp_path / "entries")
    assert "null: repeats is 2" in capsys.readouterr().out
    assert not (tmp_path / "entries").exists()


def test_the_script_has_a_row_for_each_that_is_asked_for(baselines, tmp_path):
    (tmp_path / "grid" / "model").mkdir(parents=True)
    (tmp_path / "grid" / "model" / "ragen.json").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ragen.json").write_text("{}")
    options = argparse.Namespace(
        only=["null", "tiny", "trained", "smollm2"],
        trained=tmp_path,
        smollm2=Path("smollm2"),
    )
    rows = list(baselines["baselines"](options))
    assert [(row.board, row.name) for row in rows] == [
        ("smoke", "null"),
        ("standard", "null"),
        ("smoke", "tiny"),
        ("standard", "tiny"),
        ("standard", "grid"),
        ("standard", "other"),
        ("lite", "smollm2-135m-direct-0-shots"),
        ("lite", "smollm2-135m-direct-2-shots"),
        ("lite", "smollm2-135m-think-act-0-shots"),
        ("lite", "smollm2-135m-think-act-2-shots"),
    ]
    assert rows[4].settings == {"model": f"hf:{tmp_path / 'grid' / 'model'}"}
    assert rows[-1].command.endswith("--model hf:smollm2 --shots 2 --max-tokens 64")
    assert {row.meta.name for row in rows} == {row.name for row in rows}


def test_the_script_needs_a_folder_for_models(baselines, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["baselines.py", "--only", "trained"])
    with pytest.raises(SystemExit):
        baselines["main"]()
    assert "trained needs --trained FOLDER" in capsys.readouterr().err
