"""The files of a run survive kills, full disks, strange text and other people."""

import errno
import os
import resource
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest

from ragen_bench.errors import InvalidSpec, RecordError, RunIncomplete, RunMismatch
from ragen_bench.records import (
    CellPlan,
    Episode,
    EpisodeKey,
    RunConfig,
    RunRecord,
    Turn,
    TurnUsage,
)
from ragen_bench.run_folder import RunFolder, read_episodes, read_run
from ragen_bench.scoring import score, summarise

CONFIG = RunConfig(
    cells=(CellPlan(env_id="toy/Corridor-v0", level=1, seeds=(0, 1, 2, 3)),),
    agent="toy:Walker",
)


def record(config: RunConfig = CONFIG, **facts) -> RunRecord:
    known = {
        "config": config,
        "versions": {"ragen-bench": "0.1.0", "numpy": "2.0"},
        "commit": None,
        "model_facts": {"template": {"sha256": "ab"}},
        "prompt_sha256": {"toy/Corridor-v0:1": "cd"},
        "started": "2030-01-01T00:00:00+00:00",
    }
    return RunRecord(**{**known, **facts})


def turn(**facts) -> Turn:
    known = {
        "observation": "P.G",
        "response": "<answer>Right</answer>",
        "thinking": "",
        "actions": ("Right",),
        "effective": (True,),
        "parse": "ok",
        "valid": True,
        "reward": 1.0,
        "reward_parts": {"task": 1.0, "format": 0.0},
        "scored_reward": 1.0,
        "prompt_sha256": None,
        "context_cut": 0,
        "usage": TurnUsage(),
        "finish_reason": "stop",
        "latency_s": 0.5,
    }
    return Turn(**{**known, **facts})


def episode(seed: int, **facts) -> Episode:
    known = {
        "env_id": "toy/Corridor-v0",
        "level": 1,
        "split": "test",
        "seed": seed,
        "rep": 0,
        "instance": f"{seed:016x}",
        "outcome": "solved",
        "success": True,
        "episode_return": 1.0,
        "floor": 0.25,
        "ceiling": 1.0,
        "optimal_cost": 2,
        "terminated": True,
        "truncated": False,
        "error": None,
        "rules": "Go.",
        "turns": (),
        "final_observation": "\u00e9",
    }
    return Episode(**{**known, **facts})


def fill(path, seeds=(0, 1, 2, 3), **facts) -> bytes:
    with RunFolder(path, record()) as folder:
        for seed in seeds:
            folder.append(episode(seed, **facts))
    return (path / "episodes.jsonl").read_bytes()


def seeds_of(folder: RunFolder) -> list[int]:
    return sorted(key.seed for key in folder.finished)


@contextmanager
def files_of_at_most(size: int):
    """Let the system itself refuse to write beyond a size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Torn ends --------------------------------------------------------------------


def test_a_file_cut_anywhere_owes_only_what_was_cut(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    whole = fill(tmp_path)
    lines = whole.splitlines(keepends=True)
    file = tmp_path / "episodes.jsonl"
    for cut in range(len(whole) - len(lines[2] + lines[3]), len(whole) + 1):
        file.write_bytes(whole[:cut])
        # A line that lacks nothing but its newline is whole.
        kept = whole[: cut + 1].count(b"\n")
        assert len(list(read_episodes(tmp_path))) == kept
        with RunFolder(tmp_path, record()) as folder:
            assert seeds_of(folder) == list(range(kept))
            assert file.read_bytes() == b"".join(lines[:kept])
            for seed in range(kept, 4):
                folder.append(episode(seed))
        assert file.read_bytes() == whole


@pytest.mark.parametrize(
    "tail",
    [b"{", b"\x00" * 5000, b"\xc3", b'{"schema": 1', b"[" * 100_000, b"null"],
    ids=["brace", "NUL", "half a letter", "half an episode", "deep", "null"],
)
def test_a_torn_last_line_is_cut_off(tmp_path, tail) -> None:
    whole = fill(tmp_path, seeds=(0, 1))
    with open(tmp_path / "episodes.jsonl", "ab") as file:
        file.write(tail)
    assert len(list(read_episodes(tmp_path))) == 2
    with RunFolder(tmp_path, record()) as folder:
        assert seeds_of(folder) == [0, 1]
    assert (tmp_path / "episodes.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    "line",
    [b"{", b"", b"\x00", b"[" * 100_000, b'{"schema": 1}', b'{"schema": 1, "level":'],
    ids=["brace", "empty", "NUL", "deep", "no episode", "half an episode"],
)
def test_a_corrupt_line_in_the_middle_is_refused(tmp_path, line) -> None:
    lines = fill(tmp_path).splitlines(keepends=True)
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(b"".join([lines[0], line + b"\n", *lines[1:]]))
    before = file.read_bytes()
    with pytest.raises(RecordError, match=r"episodes\.jsonl line 2"):
        RunFolder(tmp_path, record())
    with pytest.raises(RecordError, match=r"episodes\.jsonl line 2"):
        score(tmp_path)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b'"schema":1', b'"schema":2', "schema 2"),
        (b'"schema":1,', b"", "schema None"),
        (b'"rep":0', b'"rep":0,"extra":1', "extra"),
        (b'"return":1.0', b'"return":NaN', "NaN"),
        (b'"return":1.0', b'"return":1e999', "return"),
        (b'"solved"', b'"won"', "outcome"),
    ],
)
def test_an_episode_that_breaks_a_rule_is_refused(tmp_path, old, new, what) -> None:
    whole = fill(tmp_path)
    (tmp_path / "episodes.jsonl").write_bytes(whole.replace(old, new, 1))
    with pytest.raises(RecordError, match=f"line 1.*{what}"):
        RunFolder(tmp_path, record())


def test_an_episode_twice_or_unplanned_is_refused(tmp_path) -> None:
    whole = fill(tmp_path)
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(whole + whole.splitlines(keepends=True)[0])
    with pytest.raises(RecordError, match=r"Corridor-v0:1/test/0/0 twice"):
        RunFolder(tmp_path, record())
    file.write_bytes(whole.replace(b'"seed":3', b'"seed":4'))
    with pytest.raises(RecordError, match=r"Corridor-v0:1/test/4/0 unplanned"):
        RunFolder(tmp_path, record())


# Text -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc80", "\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("nul \x00, line \n \r \x85 \u2028, tab \t", None),
        ("\ufeff\u6f22\u5b57 \u2501", None),
        ("x" * 1_000_000, None),
        ("\u20ac" * 1_000_000, None),
    ],
    ids=["lone", "lone low", "pair", "controls", "wide", "long", "long and wide"],
)
def test_any_text_survives(tmp_path, text, kept) -> None:
    said = turn(response=text, thinking=text, observation=text)
    with RunFolder(tmp_path, record()) as folder:
        folder.append(episode(0, turns=(said,), error=text, rules=text))
        folder.append(episode(1))
    first, second = read_episodes(tmp_path)
    kept = text if kept is None else kept
    told = first.turns[0]
    found = {told.response, told.thinking, told.observation, first.error, first.rules}
    assert found == {kept}
    assert second == episode(1)
    with RunFolder(tmp_path, record()) as folder:
        assert seeds_of(folder) == [0, 1]


def test_an_episode_comes_back_as_it_was(tmp_path) -> None:
    played = episode(
        2,
        success=None,
        outcome="finished",
        episode_return=0.1 + 0.2,
        turns=(turn(details={"id": "x", "n": [1, None]}), turn(latency_s=None)),
    )
    with RunFolder(tmp_path, record()) as folder:
        folder.append(played)
    assert list(read_episodes(tmp_path)) == [played]
    assert read_run(tmp_path) == record()


# The place --------------------------------------------------------------------


def test_a_file_in_place_of_the_folder_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidSpec, match=r"cannot be a folder.*another --out"):
            RunFolder(path, record())
    assert (tmp_path / "file").read_text() == "precious"


def test_a_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch) -> None:
    for path in ("/proc/nowhere/run", tmp_path / ("x" * 300)):
        with pytest.raises(InvalidSpec, match="cannot be a folder"):
            RunFolder(Path(path), record())
    fill(tmp_path / "run", seeds=(0,))

    def refuse(*arguments):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InvalidSpec, match=r"cannot be written: Permission denied"):
        RunFolder(tmp_path / "run", record())


def test_a_folder_in_place_of_a_file_is_refused(tmp_path) -> None:
    fill(tmp_path, seeds=())
    (tmp_path / "episodes.jsonl").unlink()
    (tmp_path / "episodes.jsonl").mkdir()
    with pytest.raises(RecordError, match=r"episodes\.jsonl cannot be read: Is a dir"):
        RunFolder(tmp_path, record())


def test_episodes_of_unknown_origin_are_refused(tmp_path) -> None:
    whole = fill(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(RecordError, match=r"no run\.json"):
        RunFolder(tmp_path, record())
    assert (tmp_path / "episodes.jsonl").read_bytes() == whole


def test_a_folder_without_a_run_is_no_run_folder(tmp_path) -> None:
    with pytest.raises(RecordError, match=r"is no run folder: run\.json"):
        read_run(tmp_path)
    with pytest.raises(RecordError, match="is no run folder"):
        score(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 9}', '{"schema": 1}'])
def test_a_broken_run_json_is_refused(tmp_path, text) -> None:
    fill(tmp_path)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RecordError, match=r"run\.json"):
        RunFolder(tmp_path, record())


def test_two_runs_cannot_share_a_folder(tmp_path) -> None:
    with RunFolder(tmp_path, record()) as folder:
        with pytest.raises(InvalidSpec, match="in use by another run"):
            RunFolder(tmp_path, record())
        folder.append(episode(0))
    with RunFolder(tmp_path, record()) as folder:
        assert seeds_of(folder) == [0]


def test_the_lock_of_a_killed_process_is_free(tmp_path) -> None:
    fill(tmp_path, seeds=())
    holds = (
        "import fcntl, sys\n"
        f"file = open({str(tmp_path / '.lock')!r}, 'wb')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InvalidSpec, match="in use by another run"):
            RunFolder(tmp_path, record())
        other.kill()
    fill(tmp_path, seeds=(0,))


def test_a_refused_folder_is_not_left_locked(tmp_path) -> None:
    fill(tmp_path)
    other = CONFIG.model_copy(update={"salt": "x"})
    with pytest.raises(RunMismatch):
        RunFolder(tmp_path, record(other))
    with RunFolder(tmp_path, record()):
        pass


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch, caplog) -> None:
    import fcntl

    def refuse(*arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    fill(tmp_path)
    assert "cannot be locked" in caplog.text


# Other settings ---------------------------------------------------------------

OTHER = {
    "board": "b",
    "board_version": 2,
    "split": "dev",
    "cells": (CellPlan(env_id="toy/Corridor-v0", level=1, seeds=(0, 1)),),
    "repeats": 2,
    "agent": "toy:Gambler",
    "agent_args": {"steps": 2},
    "agent_class": "trained",
    "model": "tiny",
    "model_args": {"device": "cpu"},
    "env_args": {"style": "coord"},
    "prompt": "compact",
    "shots": 1,
    "context": "single",
    "temperature": 0.5,
    "top_p": 0.9,
    "max_tokens": 7,
    "salt": "x",
    "sealed": "ab" * 32,
    "breaches": ("repeats is 2, but must be 1",),
}


def test_every_setting_is_tried() -> None:
    assert OTHER.keys() == RunConfig.model_fields.keys() - {"schema_version"}


@pytest.mark.parametrize("name", OTHER)
def test_a_changed_setting_is_refused_by_name(tmp_path, name) -> None:
    whole = fill(tmp_path)
    other = CONFIG.model_copy(update={name: OTHER[name]})
    key = RunConfig.model_fields[name].serialization_alias or name
    with pytest.raises(RunMismatch, match=rf"was played with {key}[ .].*--out"):
        RunFolder(tmp_path, record(other))
    assert (tmp_path / "episodes.jsonl").read_bytes() == whole
    assert read_run(tmp_path) == record()


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"model_facts": {"template": {"sha256": "x"}}}, "model_facts.template.sha256"),
        ({"model_facts": {}}, "model_facts.template"),
        ({"model_facts": {"template": 1, "z": 1}}, "model_facts.template"),
        ({"prompt_sha256": {"toy/Corridor-v0:1": "x"}}, "prompt_sha256.toy/Corridor"),
        ({"versions": {"ragen-bench": "9.9"}}, "version of ragen-bench '0.1.0', but"),
    ],
)
def test_another_model_prompt_or_version_is_refused(tmp_path, facts, name) -> None:
    fill(tmp_path)
    with pytest.raises(RunMismatch) as caught:
        RunFolder(tmp_path, record(**facts))
    assert name in str(caught.value)


def test_a_long_setting_is_refused_where_it_differs(tmp_path) -> None:
    plan = CONFIG.cells[0].model_copy(update={"seeds": tuple(range(1000))})
    config = CONFIG.model_copy(update={"cells": (plan,)})
    with RunFolder(tmp_path, record(config)):
        pass
    wanted = plan.model_copy(update={"seeds": (*range(999), 7777)})
    with pytest.raises(RunMismatch, match=r"cells.0.seeds.999 999, but 7777 is asked"):
        RunFolder(tmp_path, record(config.model_copy(update={"cells": (wanted,)})))


def test_time_command_commit_and_other_packages_may_change(tmp_path) -> None:
    fill(tmp_path, seeds=(0,))
    later = record(
        versions={"ragen-bench": "0.1.0", "numpy": "3.0"},
        commit="abc",
        command="ragen-bench run",
        started="2031-01-01T00:00:00+00:00",
    )
    with RunFolder(tmp_path, later) as folder:
        assert folder.record == record()


# Full disks -------------------------------------------------------------------


def test_a_disk_that_fills_within_a_line_loses_nothing(tmp_path) -> None:
    with RunFolder(tmp_path, record()) as folder:
        folder.append(episode(0))
        safe = (tmp_path / "episodes.jsonl").read_bytes()
        with files_of_at_most(len(safe) + 100):
            with pytest.raises(
                RunIncomplete, match=r"episodes\.jsonl: File too large; 1 finished"
            ):
                folder.append(episode(1))
        assert (tmp_path / "episodes.jsonl").read_bytes() == safe
        assert seeds_of(folder) == [0]
        # Room again: the same folder goes on.
        folder.append(episode(1))
    assert [e.seed for e in read_episodes(tmp_path)] == [0, 1]


@pytest.mark.parametrize("cuttable", [True, False])
def test_a_line_that_cannot_be_cut_off_is_torn(tmp_path, monkeypatch, cuttable) -> None:
    whole = fill(tmp_path, seeds=(0,))
    write = os.write

    def full(file, data):
        if len(data) > 100:
            return write(file, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stuck(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with RunFolder(tmp_path, record()) as folder:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            if not cuttable:
                patch.setattr(os, "ftruncate", stuck)
            with pytest.raises(RunIncomplete, match="No space left on device"):
                folder.append(episode(1))
    left = (tmp_path / "episodes.jsonl").read_bytes()
    assert (left == whole) == cuttable
    with RunFolder(tmp_path, record()) as folder:
        assert seeds_of(folder) == [0]
    assert (tmp_path / "episodes.jsonl").read_bytes() == whole


def test_a_disk_that_cannot_keep_what_was_written_is_told(
    tmp_path, monkeypatch
) -> None:
    def stuck(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = RunFolder(tmp_path, record())
    folder.append(episode(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stuck)
        with pytest.raises(RunIncomplete, match="No space left"):
            with folder:
                pass
        other = RunFolder(tmp_path, record())
        with pytest.raises(ZeroDivisionError):
            with other:
                raise ZeroDivisionError
    with RunFolder(tmp_path, record()) as folder:
        assert seeds_of(folder) == [0]


def test_a_full_disk_leaves_run_json_whole_or_away(tmp_path) -> None:
    with files_of_at_most(100):
        with pytest.raises(RunIncomplete, match=r"run\.json: File too large"):
            RunFolder(tmp_path, record())
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]
    fill(tmp_path)


def test_a_full_disk_leaves_the_old_summary_whole(tmp_path) -> None:
    with RunFolder(tmp_path, record()) as folder:
        folder.write_summary(summarise(CONFIG, folder.episodes()))
        before = (tmp_path / "summary.json").read_bytes()
        folder.append(episode(0))
        with files_of_at_most(1000):
            with pytest.raises(RunIncomplete, match=r"summary\.json: File too large"):
                folder.write_summary(summarise(CONFIG, folder.episodes()))
    assert (tmp_path / "summary.json").read_bytes() == before
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {".lock", "run.json", "episodes.jsonl", "summary.json"}


# Playing errors again ---------------------------------------------------------


def lost(seed: int, outcome: str) -> Episode:
    return episode(seed, outcome=outcome, success=False, episode_return=0.0, error="x")


@pytest.mark.parametrize("last_newline", [True, False])
def test_retrying_drops_what_nobody_played_and_nothing_else(
    tmp_path, last_newline
) -> None:
    with RunFolder(tmp_path, record()) as folder:
        folder.append(lost(0, "provider_error"))
        folder.append(episode(1))
        folder.append(lost(2, "timeout"))
        folder.append(lost(3, "agent_error"))
        folder.write_summary(summarise(CONFIG, folder.episodes()))
    file = tmp_path / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    # Written by other hands, the numbers look different, and still stay as they are.
    lines[1] = lines[1].replace(b'"return":1.0', b'"return": 1.00')
    file.write_bytes(b"".join(lines) if last_newline else b"".join(lines)[:-1])
    with RunFolder(tmp_path, record()) as folder:
        assert seeds_of(folder) == [0, 1, 2, 3]
    with RunFolder(tmp_path, record(), retry_errors=True) as folder:
        assert seeds_of(folder) == [1, 3]
        assert file.read_bytes() == lines[1] + lines[3]
        # A summary of more than there is would be wrong until the run is over.
        assert not (tmp_path / "summary.json").exists()
        folder.append(episode(0))
    assert [e.seed for e in read_episodes(tmp_path)] == [1, 3, 0]


@pytest.mark.parametrize("tail", [b"", b'{"schema":1,"env'])
def test_retrying_copes_with_an_error_at_the_very_end(tmp_path, tail) -> None:
    with RunFolder(tmp_path, record()) as folder:
        folder.append(episode(1))
        folder.append(lost(0, "timeout"))
    file = tmp_path / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines) + tail if tail else b"".join(lines)[:-1])
    with RunFolder(tmp_path, record(), retry_errors=True) as folder:
        assert seeds_of(folder) == [1]
    assert file.read_bytes() == lines[0]


def test_a_full_disk_keeps_the_errors_that_were_to_be_retried(tmp_path) -> None:
    with RunFolder(tmp_path, record()) as folder:
        folder.append(lost(0, "timeout"))
        folder.append(episode(1, rules="x" * 5000))
    whole = (tmp_path / "episodes.jsonl").read_bytes()
    with files_of_at_most(4000):
        with pytest.raises(RunIncomplete, match="File too large"):
            RunFolder(tmp_path, record(), retry_errors=True)
    assert (tmp_path / "episodes.jsonl").read_bytes() == whole


# Size -------------------------------------------------------------------------


def test_a_run_larger_than_memory_can_be_opened_and_scored(tmp_path) -> None:
    long = turn(response="x" * 100_000)
    plan = CellPlan(env_id="toy/Corridor-v0", level=1, seeds=tuple(range(100)))
    config = CONFIG.model_copy(update={"cells": (plan,)})
    with RunFolder(tmp_path, record(config)) as folder:
        for seed in range(100):
            folder.append(episode(seed, turns=(long,)))
    score(tmp_path)  # what is imported and cached is no part of the measurement
    tracemalloc.start()
    try:
        with RunFolder(tmp_path, record(config)) as folder:
            assert len(folder.finished) == 100
        summary = score(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert summary.outcomes["solved"] == 100
    size = (tmp_path / "episodes.jsonl").stat().st_size
    assert size > 10_000_000
    assert peak < size / 4


def test_keys_of_a_run_are_all_planned_episodes_in_order() -> None:
    config = RunConfig(
        cells=(
            CellPlan(env_id="b/B-v0", level=2, seeds=(5, 3)),
            CellPlan(env_id="a/A-v0", level=1, seeds=(0,)),
        ),
        agent="random",
        split="dev",
        repeats=2,
    )
    assert config.keys() == (
        EpisodeKey("b/B-v0", 2, "dev", 5, 0),
        EpisodeKey("b/B-v0", 2, "dev", 5, 1),
        EpisodeKey("b/B-v0", 2, "dev", 3, 0),
        EpisodeKey("b/B-v0", 2, "dev", 3, 1),
        EpisodeKey("a/A-v0", 1, "dev", 0, 0),
        EpisodeKey("a/A-v0", 1, "dev", 0, 1),
    )
    assert str(config.keys()[1]) == "b/B-v0:2/dev/5/1"
