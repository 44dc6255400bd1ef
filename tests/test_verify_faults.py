"""Each way to spoil a true bundle is refused under its own code."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import bundles
import pytest
from bundles import Run, lines, pack, raw_zip

import ragen_bench as rb
from ragen_bench.board import Board
from ragen_bench.verifying import CODES, WARNINGS, verify

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Board, Run]:
    """Return a board, and a true run of a language model on it."""
    folder = tmp_path_factory.mktemp("true")
    board = bundles.board(folder / "small.toml")
    model = bundles.script(folder / "script.json")
    rb.run(str(folder / "small.toml"), agent="direct", model=model, out=folder / "run")
    run = bundles.served(bundles.read(folder / "run"))
    # The first one is a lake of several turns, whatever ended first.
    run.episodes.sort(key=lambda e: "Lake" not in e["env_id"] or len(e["turns"]) < 4)
    assert len(run.episodes[0]["turns"]) >= 4
    return board, run


def codes(path: Path, board: Board | None) -> set[str]:
    found = verify(path, board=board)
    assert {fault.code for fault in found.faults} <= set(CODES)
    assert {warning.code for warning in found.warnings} <= set(WARNINGS)
    for fault in found.faults:
        assert str(fault).isascii() and str(fault).isprintable()
    return {fault.code for fault in found.faults}


def test_the_bundle_that_the_others_are_made_from_is_confirmed(
    small: tuple[Board, Run], tmp_path: Path
) -> None:
    board, run = small
    assert codes(pack(tmp_path / "true.zip", run.members()), board) == set()


# Contents -----------------------------------------------------------------------


def set_turn(name: str, value: Any) -> bundles.Spoil:
    def spoil(run: Run) -> None:
        run.turn()[name] = value

    return spoil


def set_episode(**values: Any) -> bundles.Spoil:
    return lambda run: run.episodes[0].update(values)


def set_config(**values: Any) -> bundles.Spoil:
    return lambda run: run.run["config"].update(values)


def set_usage(number: int, **values: Any) -> bundles.Spoil:
    return lambda run: run.turn(number)["usage"].update(values)


def priced(reasoning: float | None) -> bundles.Spoil:
    """Have more reasoning than output, under a price that says where it belongs."""

    def spoil(run: Run) -> None:
        price = {"model": "m", "date": "2026-11-30", "currency": "USD", "input": 1.0}
        run.run["price"] = {**price, "output": 2.0, "reasoning": reasoning}
        usage = run.turn()["usage"]
        usage["reasoning_tokens"] = usage["output_tokens"] + 1

    return spoil


def overflow(
    *, max_context: int | None = None, used: int = 500, **config: Any
) -> bundles.Spoil:
    """Call the second prompt of an episode too long for the model."""

    def spoil(run: Run) -> None:
        run.run["config"].update(config)
        run.run["model_facts"]["max_context"] = max_context
        episode = run.episodes[0]
        episode["final_observation"] = episode["turns"][1]["observation"]
        episode["return"] = episode["turns"][0]["scored_reward"]
        episode.update(outcome="context_overflow", error="too long", success=False)
        episode.update(terminated=False, truncated=False)
        del episode["turns"][1:]
        run.turn()["usage"]["input_tokens"] = used

    return spoil


def swap_seeds(run: Run) -> None:
    first = run.episodes[0]
    other = next(
        e
        for e in run.episodes
        if (e["env_id"], e["rep"]) == (first["env_id"], first["rep"])
        and e["seed"] != first["seed"]
    )
    first["seed"], other["seed"] = other["seed"], first["seed"]


def drop_losses(run: Run) -> None:
    run.episodes[:] = [e for e in run.episodes if e["success"] is not False]


def copy_transcript(run: Run) -> None:
    """Present the first repeat of a task without chance as the second one, too."""
    lake = [e for e in run.episodes if "Lake" in e["env_id"]]
    first = lake[0]
    other = next(e for e in lake[1:] if e["seed"] == first["seed"])
    other["turns"] = first["turns"]


def edit_return(run: Run) -> None:
    run.episodes[0]["return"] += 1


def win(run: Run) -> None:
    loss = next(e for e in run.episodes if e["success"] is False)
    loss.update(outcome="solved", success=True)


def extra_action(run: Run) -> None:
    run.turn()["actions"].append("Up")
    run.turn()["effective"].append(True)


def missing_action(run: Run) -> None:
    run.turn()["actions"].pop()
    run.turn()["effective"].pop()


def extra_turn(run: Run) -> None:
    run.episodes[0]["turns"].append(run.turn(-1))


def missing_turn(run: Run) -> None:
    run.episodes[0]["turns"].pop()


def swap_turns(run: Run) -> None:
    turns = run.episodes[0]["turns"]
    turns[0], turns[1] = turns[1], turns[0]


def other_levels(run: Run) -> None:
    run.run["config"]["cells"][0]["level"] = 1


def other_seeds(run: Run) -> None:
    run.run["config"]["cells"][0]["seeds"][0] = 77


def lost_one(run: Run) -> None:
    """Call an episode lost of which the replay knows the end."""
    run.episodes[0].update(outcome="provider_error", error="gone")


def lose_some(run: Run) -> None:
    for episode in run.episodes[:2]:
        episode["final_observation"] = episode["turns"][0]["observation"]
        episode.update(outcome="provider_error", error="gone", success=False)
        episode.update(terminated=False, truncated=False, turns=[])
        episode["return"] = 0.0


def repeat_id(run: Run) -> None:
    run.turn(1)["details"] = run.turn(0)["details"]


def wide_name(run: Run) -> None:
    run.run["config"]["cells"][0]["env_id"] = "ragen/Fr\u043ezenLake-v0"


def foreign_env(run: Run) -> None:
    run.run["config"]["cells"][0]["env_id"] = "evil:ragen/Maze-v0"


SPOILED: dict[str, tuple[str, bundles.Spoil]] = {
    "edited return": ("return_mismatch", edit_return),
    "edited outcome": ("outcome_mismatch", win),
    "edited error": ("outcome_mismatch", set_episode(error=SCRIPT)),
    "no outcome of ours": ("schema", set_episode(outcome="won")),
    "called lost": ("outcome_mismatch", lost_one),
    "lost too many": ("unrankable", lose_some),
    "swapped seeds": ("reference_mismatch", swap_seeds),
    "another seed": ("seed_not_in_board", set_episode(seed=99)),
    "another repeat": ("extra_episode", set_episode(rep=5)),
    "another split": ("extra_episode", set_episode(split="train")),
    "another cell": ("extra_episode", set_episode(level=1)),
    "dropped losses": ("missing_episode", drop_losses),
    "an episode twice": (
        "duplicate_episode",
        lambda run: run.episodes.append(run.episodes[0]),
    ),
    "copied transcript": ("duplicate_transcript", copy_transcript),
    "repeated answer": ("duplicate_transcript", repeat_id),
    "altered observation": ("observation_mismatch", set_turn("observation", SCRIPT)),
    "altered ending": ("observation_mismatch", set_episode(final_observation=SCRIPT)),
    "altered rules": ("rules_mismatch", set_episode(rules=SCRIPT)),
    "altered reply": ("action_mismatch", set_turn("response", SCRIPT)),
    "altered thinking": ("parse_mismatch", set_turn("thinking", f" {SCRIPT}")),
    "altered parse": ("parse_mismatch", set_turn("parse", "too_many")),
    "altered validity": ("parse_mismatch", set_turn("valid", False)),
    "extra action": ("action_mismatch", extra_action),
    "missing action": ("action_mismatch", missing_action),
    "renamed action": ("action_mismatch", set_turn("actions", [SCRIPT, "Left"])),
    "extra turn": ("action_mismatch", extra_turn),
    "missing turn": ("outcome_mismatch", missing_turn),
    "reordered turns": ("observation_mismatch", swap_turns),
    "changed reward": ("reward_mismatch", set_turn("reward", 1.0)),
    "changed scored reward": ("reward_mismatch", set_turn("scored_reward", 1.0)),
    "changed reward part": (
        "parts_mismatch",
        set_turn("reward_parts", {"task": 0.5, "format": -0.5}),
    ),
    "another instance": ("reference_mismatch", set_episode(instance="0" * 16)),
    "lower floor": ("reference_mismatch", set_episode(floor=-1.0)),
    "lower ceiling": ("reference_mismatch", set_episode(ceiling=0.5)),
    "higher cost": ("reference_mismatch", set_episode(optimal_cost=99)),
    "changed prompt hash": ("prompt_mismatch", set_turn("prompt_sha256", "0" * 64)),
    "changed context cut": ("prompt_mismatch", set_turn("context_cut", 1)),
    "changed first prompt": (
        "prompt_mismatch",
        lambda run: run.run["prompt_sha256"].update({SCRIPT: SCRIPT}),
    ),
    "other context": ("prompt_mismatch", set_config(context="single")),
    "no context": ("bad_setting", set_config(context=SCRIPT)),
    "other shots": ("prompt_mismatch", set_config(shots=1)),
    "too many shots": ("bad_setting", set_config(shots=10**9)),
    "other board": ("not_the_board", set_config(board="smoke")),
    "other board version": ("board_version", set_config(board_version=2)),
    "other levels": ("not_the_board", other_levels),
    "other seeds": ("seed_not_in_board", other_seeds),
    "other split": ("not_the_board", set_config(split="train")),
    "other repeats": ("not_the_board", set_config(repeats=1)),
    "other env arguments": ("not_the_board", set_config(env_args={"strict": True})),
    "salted": ("not_the_board", set_config(salt="lucky")),
    "sealed": ("seal_mismatch", set_config(sealed="0" * 64)),
    "other class": ("class_mismatch", set_config(**{"class": "human"})),
    "other agent": ("prompt_mismatch", set_config(agent="think_act")),
    "solver's agent": ("class_mismatch", set_config(agent="oracle")),
    "script for an agent": ("bad_name", set_config(agent=SCRIPT)),
    "look-alike environment": ("bad_name", wide_name),
    "environment of another module": ("bad_name", foreign_env),
    "no tokens": ("usage_impossible", set_usage(0, output_tokens=0)),
    "negative tokens": ("usage_impossible", set_usage(0, input_tokens=-1)),
    "endless salt": ("bad_setting", set_config(salt="x" * 10_000)),
    "more than its own context": (
        "usage_impossible",
        lambda run: (
            set_config(model="hf:some", max_tokens=9999)(run),
            run.run["model_facts"].update(max_context=400),
        ),
    ),
    "a prompt without tokens": ("usage_impossible", set_usage(0, input_tokens=0)),
    "more cached than read": ("usage_impossible", set_usage(0, cached_tokens=501)),
    "more reasoning than any context": (
        "usage_impossible",
        set_usage(0, reasoning_tokens=10**9),
    ),
    "more read than any context": (
        "usage_impossible",
        set_usage(0, input_tokens=10**9),
    ),
    "reasoning above the output that holds it": (
        "usage_impossible",
        priced(reasoning=None),
    ),
    "tiny thinks apart": (
        "usage_impossible",
        lambda run: (
            set_config(model="tiny", max_tokens=9999, **{"class": "trained"})(run),
            set_usage(0, reasoning_tokens=999)(run),
        ),
    ),
    "tiny called untrained": ("class_mismatch", set_config(model="tiny")),
    "script called trained": (
        "class_mismatch",
        set_config(model="scripted:x", **{"class": "trained"}),
    ),
    "early overflow": ("outcome_mismatch", overflow(max_context=100_000)),
    "early overflow of a server": (
        "outcome_mismatch",
        overflow(model_args={"max_context": "100000"}),
    ),
    "early overflow of a context policy": (
        "outcome_mismatch",
        overflow(max_context=100_000, context="tokens:100000"),
    ),
    "overflow soon after a short prompt": (
        "outcome_mismatch",
        overflow(max_context=4000),
    ),
    "too few tokens": ("usage_impossible", set_usage(1, output_tokens=1)),
    "unknown ending": ("finish_reason_impossible", set_turn("finish_reason", SCRIPT)),
    "time runs backwards": ("time_impossible", set_turn("latency_s", -0.5)),
    "a reply of years": ("time_impossible", set_turn("latency_s", 5e8)),
    "begun in the future": (
        "time_impossible",
        lambda run: run.run.update(started="2999-01-01T00:00:00+00:00"),
    ),
    "no time": ("time_impossible", lambda run: run.run.update(started=SCRIPT)),
    "longer than since the start": ("time_impossible", set_turn("latency_s", 9e7)),
    "future schema": ("schema", set_episode(schema=2)),
    "future schema of the run": ("schema", lambda run: run.run.update(schema=99)),
    "text for a number": ("schema", set_episode(seed="0")),
    "number for a text": ("schema", set_turn("response", 7)),
    "list for a text": ("schema", set_turn("response", [SCRIPT])),
    "null for a text": ("schema", set_turn("observation", None)),
    "unknown key": ("schema", set_episode(__class__="os.system")),
    "missing key": ("schema", lambda run: run.episodes[0].pop("floor")),
    "half a character": ("not_json", set_turn("response", "\ud800")),
    "infinity": ("bad_number", set_turn("latency_s", float("inf"))),
    "not a number": ("bad_number", set_turn("reward", float("nan"))),
    "huge integer": ("bad_number", set_episode(seed=10**400)),
    "integer of 65 bits": ("bad_number", set_turn("details", {"n": 2**65})),
    "deep details": (
        "too_deep",
        lambda run: run.turn().update(
            details=json.loads('{"a":' * 40 + "1" + "}" * 40)
        ),
    ),
    "many values": (
        "too_many",
        lambda run: run.turn().update(details={"a": [0] * 250_000}),
    ),
    "no episodes at all": ("missing_episode", lambda run: run.episodes.clear()),
    "control characters in the meta": (
        "schema",
        lambda run: setattr(run, "meta", {**bundles.META, "model": "\x1b[31m"}),
    ),
    "name that leads elsewhere": (
        "schema",
        lambda run: setattr(run, "meta", {**bundles.META, "name": "../x"}),
    ),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_spoiled_contents_are_refused(
    spoiled: str, small: tuple[Board, Run], tmp_path: Path
) -> None:
    board, true = small
    code, spoil = SPOILED[spoiled]
    run = true.copy()
    spoil(run)
    if spoiled == "half a character":
        text = json.dumps(run.episodes[0]).encode()
        data = text + b"\n" + lines(run.episodes[1:])
        path = pack(tmp_path / "x.zip", {**true.members(), "episodes.jsonl": data})
    else:
        path = pack(tmp_path / "x.zip", run.members())
    assert code in codes(path, board)


HONEST: dict[str, bundles.Spoil] = {
    "nothing told": set_usage(0, input_tokens=None, output_tokens=None),
    "all of it cached": set_usage(0, cached_tokens=500),
    "reasoning on top of the output": priced(reasoning=2.0),
    "no price, and reasoning on top": set_usage(0, reasoning_tokens=5000),
    "a script that counts what it read and not what was cached": lambda run: (
        set_config(model="lm-eval:anthropic-chat")(run),
        set_usage(0, cached_tokens=900)(run),
    ),
    "no model, and no tokens": lambda run: (
        set_config(agent="mine:Agent", model=None, **{"class": "solver"})(run),
        set_usage(0, input_tokens=0, cached_tokens=0, output_tokens=0)(run),
    ),
    "a small context overflows": overflow(max_context=700, used=690),
    "nobody told the context": overflow(),
    "a context that is no number": overflow(max_context="large"),
    "nobody told the context, whatever the policy": overflow(context="tokens:99999"),
    "a policy of few tokens": overflow(max_context=100_000, context="tokens:600"),
}
"""What servers and agents really say, and what may be so."""


@pytest.mark.parametrize("honest", HONEST)
def test_what_may_be_so_is_no_fault(
    honest: str, small: tuple[Board, Run], tmp_path: Path
) -> None:
    board, true = small
    run = true.copy()
    HONEST[honest](run)
    assert codes(pack(tmp_path / "x.zip", run.members()), board) == set()


def test_the_order_of_episodes_means_nothing(
    small: tuple[Board, Run], tmp_path: Path
) -> None:
    board, true = small
    run = true.copy()
    run.episodes.reverse()
    assert codes(pack(tmp_path / "x.zip", run.members()), board) == set()


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b'{"schema":1,', b'{"schema":1,"schema":1,', "not_json"),
        (b'"return":', b'"floor":0.0,"return":', "not_json"),
        (b'{"schema":1,', b"\xef\xbb\xbf{", "not_json"),
        (b'"turns":[', b'"turns":[\xff', "not_json"),
        (b'"turns":[', b'"turns":[,', "not_json"),
        (b'"reward":0.0', b'"reward":1e999', "bad_number"),
        (b'"reward":0.0', b'"reward":' + b"1" * 5000, "bad_number"),
        (b'"turns":[', b'"turns":[' + b"[" * 100_000, "too_deep"),
        (b"}\n", b"}\n\n", "not_json"),
    ],
)
def test_broken_json_is_refused(
    old: bytes, new: bytes, code: str, small: tuple[Board, Run], tmp_path: Path
) -> None:
    board, true = small
    members = true.members()
    data = members["episodes.jsonl"]
    assert old in data
    members["episodes.jsonl"] = data.replace(old, new, 1)
    assert code in codes(pack(tmp_path / "x.zip", members), board)


def test_a_cut_file_is_truncated_and_the_rest_missing(
    small: tuple[Board, Run], tmp_path: Path
) -> None:
    board, true = small
    members = true.members()
    members["episodes.jsonl"] = members["episodes.jsonl"][:-100]
    found = codes(pack(tmp_path / "x.zip", members), board)
    assert found == {"truncated", "missing_episode"}


# Archives -----------------------------------------------------------------------


def named(name: str) -> Any:
    return lambda path, members: raw_zip(path, [*members.items(), (name, b"x")])


def lying(**changes: Any) -> Any:
    def make(path: Path, members: dict[str, bytes]) -> Path:
        order = [(n, d) for n, d in members.items() if n != "episodes.jsonl"]
        last = ("episodes.jsonl", members["episodes.jsonl"])
        return raw_zip(path, [*order, last], **changes)

    return make


def without(name: str) -> Any:
    return lambda path, members: pack(
        path, {n: data for n, data in members.items() if n != name}
    )


def around(before: bytes, after: bytes) -> Any:
    def make(path: Path, members: dict[str, bytes]) -> Path:
        pack(path, members)
        path.write_bytes(before + path.read_bytes() + after)
        return path

    return make


def cut(path: Path, members: dict[str, bytes]) -> Path:
    pack(path, members)
    path.write_bytes(path.read_bytes()[:-30])
    return path


def packed_bomb(block: bytes, times: int) -> Any:
    data, size = bundles.bomb(block, times)
    return lying(packed=data, size=size)


ARCHIVES: dict[str, tuple[str, Any]] = {
    "path traversal": ("path_escape", named("../evil.py")),
    "absolute path": ("path_escape", named("/etc/passwd")),
    "drive": ("path_escape", named("C:evil")),
    "backslashes": ("path_escape", named("..\\evil")),
    "look-alike name": ("bad_name", named("run.js\u043en")),
    "null in a name": ("bad_name", named("run.json\0.py")),
    "extra member": ("extra_file", named("evil.py")),
    "pickle": ("extra_file", named("episodes.pkl")),
    "folder": ("not_a_file", named("sub/")),
    "two of one name": ("bad_archive", named("run.json")),
    "symbolic link": ("not_a_file", lying(mode=stat.S_IFLNK | 0o777)),
    "device": ("not_a_file", lying(mode=stat.S_IFCHR | 0o600)),
    "encrypted": ("bad_archive", lying(flags=1)),
    "packed otherwise": ("bad_archive", lying(method=12)),
    "smaller than it says": ("bad_archive", lying(size=1 << 31)),
    "larger than it says": ("bad_archive", lying(size=1000)),
    "another checksum": ("bad_archive", lying(crc=1)),
    "not deflated at all": ("bad_archive", lying(packed=b"\xff" * 100)),
    "declares too much": ("too_large", lying(size=(1 << 32) - 1)),
    "bomb of one line": ("too_large", packed_bomb(b" " * (1 << 20), 800)),
    "bomb of empty lines": ("too_many", packed_bomb(b"\n" * (1 << 20), 800)),
    "no run": ("missing_file", without("run.json")),
    "no episodes": ("missing_file", without("episodes.jsonl")),
    "no meta": ("missing_file", without("meta.json")),
    "many members": (
        "too_many",
        lambda path, members: raw_zip(path, [(f"m{i}", b"") for i in range(2000)]),
    ),
    "something before it": ("bad_archive", around(b"#!/bin/sh\n", b"")),
    "something behind it": ("bad_archive", around(b"", b"more")),
    "cut": ("bad_archive", cut),
    "empty": ("bad_archive", lambda path, members: path.write_bytes(b"")),
    "no archive": ("bad_archive", lambda path, members: path.write_bytes(b"x" * 99)),
    "not there": ("missing_file", lambda path, members: None),
}


@pytest.mark.parametrize("archive", ARCHIVES)
def test_hostile_archives_are_refused(
    archive: str, small: tuple[Board, Run], tmp_path: Path
) -> None:
    board, true = small
    code, make = ARCHIVES[archive]
    make(tmp_path / "x.zip", true.members())
    assert code in codes(tmp_path / "x.zip", board)


def test_a_device_is_no_bundle() -> None:
    assert codes(Path("/dev/zero"), None) == {"not_a_file"}


def link(folder: Path) -> None:
    os.replace(folder / "episodes.jsonl", folder.parent / "elsewhere")
    (folder / "episodes.jsonl").symlink_to(folder.parent / "elsewhere")


def pipe(folder: Path) -> None:
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")


def nested(folder: Path) -> None:
    (folder / "run.json").unlink()
    (folder / "run.json").mkdir()


def edit_summary(folder: Path) -> None:
    said = json.loads((folder / "summary.json").read_text())
    said["score"]["mean"] = 1.0
    (folder / "summary.json").write_text(json.dumps(said))


def sparse(folder: Path) -> None:
    os.truncate(folder / "episodes.jsonl", 1 << 31)


FOLDERS: dict[str, tuple[str | None, Any]] = {
    "as it was": (None, lambda folder: None),
    "torn files of a killed run": (
        None,
        lambda folder: (folder / ".summary.json.part").write_text("{"),
    ),
    "linked episodes": ("not_a_file", link),
    "pipe": ("not_a_file", pipe),
    "folder": ("not_a_file", nested),
    "edited score": ("score_mismatch", edit_summary),
    "another file": ("extra_file", lambda folder: (folder / "x.py").write_text("")),
    "gigabytes of nothing": ("too_large", sparse),
    "no run": ("missing_file", lambda folder: (folder / "run.json").unlink()),
}


@pytest.mark.parametrize("spoiled", FOLDERS)
def test_run_folders_are_read_as_carefully(spoiled: str, tmp_path: Path) -> None:
    code, spoil = FOLDERS[spoiled]
    folder = tmp_path / "run"
    rb.run(envs="ragen/Bandit-v0:3", seeds=2, agent="random", out=folder)
    spoil(folder)
    assert codes(folder, None) == ({code} if code else set())


# Codes --------------------------------------------------------------------------


def test_the_page_has_every_code_with_its_meaning() -> None:
    page = (Path(__file__).parent.parent / "docs" / "verification.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|$", page, re.M))
    assert told == {**CODES, **WARNINGS}


def test_each_code_is_tried() -> None:
    tried = {code for code, _ in [*SPOILED.values(), *ARCHIVES.values()]}
    tried |= {code for code, _ in FOLDERS.values() if code}
    # These are tried where true runs are: test_verify_runs.py.
    tried |= {"truncated", "board_unknown", "entry_mismatch", "hash_mismatch"}
    assert tried == set(CODES)
