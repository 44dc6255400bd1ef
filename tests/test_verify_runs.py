"""True runs of every kind are confirmed, and what is said about them is compared."""

import dataclasses
import hashlib
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import bundles
import hypothesis.strategies as st
import pytest
from bundles import Run, pack
from hypothesis import HealthCheck, given, settings
from submissions import SALT

import ragen_bench as rb
from ragen_bench import sealing
from ragen_bench.board import Board, BoardCell, load
from ragen_bench.entries import Entry
from ragen_bench.model import Message
from ragen_bench.prompts import sha256_of_messages
from ragen_bench.verifying import Verification, verify
from ragen_bench.verifying.rebuilding import Conversation
from ragen_bench.verifying.ties import Ties, tail

MANY = (BoardCell(env_id="ragen/Bandit-v0", level=2, seeds=110),)


def confirmed(path: Path, **options: Any) -> Verification:
    found = verify(path, **options)
    assert found.faults == ()
    assert found.summary is not None
    assert found.actions > 0
    return found


def repacked(folder: Path) -> Path:
    """Return the bundle of a run folder, beside it."""
    members = bundles.read(folder).members()
    for name in ("run.json", "episodes.jsonl"):
        members[name] = (folder / name).read_bytes()
    return pack(folder.with_suffix(".zip"), members)


@pytest.mark.parametrize(
    "settings",
    [
        {"agent": "direct"},
        {"agent": "think_act", "shots": 2, "context": "window:1"},
        {"agent": "think_act", "context": "single", "prompt": "compact"},
        {"agent": "direct", "shots": 1, "context": "tokens:900"},
    ],
)
def test_a_language_models_run_is_confirmed(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    board = bundles.board(tmp_path / "small.toml")
    model = bundles.script(tmp_path / "script.json")
    out = tmp_path / "run"
    summary = rb.run(str(tmp_path / "small.toml"), model=model, out=out, **settings)
    assert summary.rankable
    found = confirmed(out, board=board)
    assert found.summary == summary
    assert found.board == "small"
    again = confirmed(repacked(out), board=tmp_path / "small.toml")
    assert again.summary == summary
    assert (again.returns, again.successes) == (found.returns, found.successes)


def test_a_solvers_run_is_confirmed_by_the_board_that_it_names(tmp_path: Path) -> None:
    summary = rb.run("smoke", agent="oracle", out=tmp_path / "run")
    found = confirmed(tmp_path / "run")
    assert (found.board, found.summary) == ("smoke", summary)
    plans = {plan.cell: plan for plan in load("smoke").plans()}
    assert found.returns.keys() == plans.keys()
    episodes = {(e["env_id"], e["level"], e["seed"]): e
                for e in bundles.read(tmp_path / "run").episodes}  # fmt: skip
    for name, plan in plans.items():
        expected = [episodes[plan.env_id, plan.level, seed] for seed in plan.seeds]
        assert list(found.returns[name]) == [e["return"] for e in expected]
        assert list(found.successes[name]) == [e["success"] for e in expected]


def test_a_resumed_run_is_confirmed(tmp_path: Path) -> None:
    board = bundles.board(tmp_path / "small.toml")
    play = {"agent": "random", "out": tmp_path / "run"}
    rb.run(str(tmp_path / "small.toml"), **play)
    episodes = tmp_path / "run" / "episodes.jsonl"
    data = episodes.read_bytes()
    episodes.write_bytes(data[: len(data) // 2])
    assert verify(tmp_path / "run", board=board).faults
    rb.run(str(tmp_path / "small.toml"), **play)
    confirmed(tmp_path / "run", board=board)


def test_a_run_of_64_episodes_at_once_is_confirmed(tmp_path: Path) -> None:
    board = bundles.board(tmp_path / "small.toml")
    model = bundles.script(tmp_path / "script.json")
    path = str(tmp_path / "small.toml")
    rb.run(path, agent="direct", model=model, concurrency=64, out=tmp_path / "run")
    confirmed(repacked(tmp_path / "run"), board=board)


def test_a_run_with_few_lost_episodes_is_confirmed(tmp_path: Path) -> None:
    board = bundles.board(tmp_path / "many.toml", MANY, repeats=1)
    model = bundles.flaky("ragen/Bandit-v0:2/test/7/0")
    summary = rb.run(
        str(tmp_path / "many.toml"), agent="direct", model=model, out=tmp_path / "run"
    )
    assert summary.outcomes["provider_error"] == 1
    found = verify(repacked(tmp_path / "run"), board=board)
    assert found.faults == ()
    assert found.summary is not None and found.summary.rankable
    (returns,) = found.returns.values()
    assert returns.count(None) == 1


def test_a_run_without_a_board_is_compared_with_its_own_list(tmp_path: Path) -> None:
    rb.run(envs="ragen/Sokoban-v0:1", seeds=3, agent="random", salt="some",
           out=tmp_path / "run")  # fmt: skip
    found = confirmed(tmp_path / "run")
    assert found.board is None
    asked = verify(tmp_path / "run", board="smoke")
    assert "not_the_board" in {fault.code for fault in asked.faults}


def test_an_unknown_board_is_no_path(tmp_path: Path) -> None:
    bundles.board(tmp_path / "small.toml")
    rb.run(str(tmp_path / "small.toml"), agent="random", out=tmp_path / "run")
    run = bundles.read(tmp_path / "run")
    for name in ("small", str(tmp_path / "small.toml"), "../smoke"):
        run.run["config"]["board"] = name
        found = verify(pack(tmp_path / "x.zip", run.members()))
        assert {fault.code for fault in found.faults} == {"board_unknown"}


def test_sealed_seeds_are_compared_once_the_salt_is_known(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    bundles.board(path, repeats=1)
    (tmp_path / "salt").write_text(SALT)
    sealing.seal(path, tmp_path / "salt")
    salt = sealing.read_salt(tmp_path / "salt")
    rb.run(str(path), agent="random", salt=salt, out=tmp_path / "run")

    def codes(bundle: Path, salt: str | None) -> set[str]:
        return {fault.code for fault in verify(bundle, board=path, salt=salt).faults}

    assert codes(tmp_path / "run", None) == {"seal_mismatch"}
    assert "seal_mismatch" in codes(tmp_path / "run", "x" * 40)
    assert codes(tmp_path / "run", salt) == set()
    run = bundles.read(tmp_path / "run")
    run.run["config"]["cells"][0]["seeds"][0] += 1
    spoiled = pack(tmp_path / "x.zip", run.members())
    assert "seed_not_in_board" in codes(spoiled, salt)
    sealing.reveal(path, tmp_path / "salt")
    assert codes(tmp_path / "run", None) == set()
    rb.run(str(path), agent="random", out=tmp_path / "open")
    assert codes(tmp_path / "open", salt) == {"seal_mismatch"}


def salted(tmp_path: Path) -> dict[str, Any]:
    """Return a board that is sealed, the same one before, and runs with a salt."""
    path, before = tmp_path / "small.toml", tmp_path / "open.toml"
    bundles.board(path, repeats=1)
    before.write_bytes(path.read_bytes())
    (tmp_path / "salt").write_text(SALT)
    sealing.seal(path, tmp_path / "salt")
    salt = sealing.read_salt(tmp_path / "salt")
    rb.run(str(path), agent="random", salt=salt, out=tmp_path / "sealed")
    rb.run(str(path), agent="random", out=tmp_path / "open")
    cells = [f"{cell.env_id}:{cell.level}" for cell in bundles.CELLS]
    rb.run(envs=cells, seeds=2, agent="random", salt="lucky", out=tmp_path / "own")
    run = bundles.read(tmp_path / "own")
    run.run["config"].update(board="small", board_version=1)
    run.run["config"]["cells"] = bundles.read(tmp_path / "open").run["config"]["cells"]
    pack(tmp_path / "lucky.zip", run.members())
    return {"sealed": path, "before": before, "salt": salt}


def test_a_salt_that_is_missing_or_too_much_is_one_fault_with_a_way_out(
    tmp_path: Path,
) -> None:
    made = salted(tmp_path)
    for run, board, salt, way_out in [
        ("sealed", made["sealed"], None, "give --salt @FILE"),
        ("sealed", made["sealed"], "x" * 40, "give the salt that"),
        ("sealed", made["before"], None, "give --board FILE.toml.*and --salt @FILE"),
        ("sealed", made["before"], made["salt"], "give --board FILE.toml"),
        ("sealed", None, None, "give --board FILE.toml.*and --salt @FILE"),
        ("open", made["sealed"], made["salt"], "leave --salt out"),
        ("own", None, "lucky", "leave --salt out"),
    ]:
        (fault,) = verify(tmp_path / run, board=board, salt=salt).faults
        assert re.search(way_out, fault.message), fault


def test_noise_that_a_salt_moved_is_one_fault_of_a_boards_run(tmp_path: Path) -> None:
    made = salted(tmp_path)
    found = verify(tmp_path / "lucky.zip", board=made["before"])
    told = [fault for fault in found.faults if fault.code != "missing_episode"]
    (fault,) = [f for f in told if "seed" not in f.code]
    assert fault.code == "not_the_board"
    assert "--salt" in fault.message and "lucky" not in str(found.faults)
    assert found.actions > 0


@pytest.mark.hf
def test_a_run_of_the_model_that_ships_is_confirmed(tmp_path: Path) -> None:
    summary = rb.run(envs=["ragen/Bandit-v0:1", "ragen/Sokoban-v0:1"], seeds=2,
                     model="tiny", out=tmp_path / "run")  # fmt: skip
    found = confirmed(tmp_path / "run")
    assert found.summary == summary
    assert summary.output_tokens


# Entries ------------------------------------------------------------------------


@pytest.fixture
def entry(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path of a true entry, its bundle beside it, and its values."""
    rb.run("smoke", agent="random", out=tmp_path / "run")
    path = repacked(tmp_path / "run")
    found = confirmed(path)
    run, board = found.run, load("smoke")
    assert run is not None and found.meta is not None and found.summary is not None
    made = Entry(
        board="smoke",
        board_version=board.version,
        board_digest=board.digest,
        status="replayed",
        meta=found.meta,
        summary=found.summary,
        returns=found.returns,
        successes=found.successes,
        settings={name: getattr(run.config, name) for name in (
            "prompt", "shots", "context", "temperature", "top_p", "max_tokens",
            "agent_args", "model_args", "repeats")},
        versions=run.versions,
        commit=run.commit,
        command=run.command,
        started=run.started,
        model_facts=run.model_facts,
        prompt_sha256=run.prompt_sha256,
        bundle=path.name,
        bundle_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        episodes_sha256=hashlib.sha256(
            (tmp_path / "run" / "episodes.jsonl").read_bytes()
        ).hexdigest(),
    )  # fmt: skip
    return tmp_path / "somebody.json", made.model_dump(mode="json")


def edit(values: dict[str, Any], *keys: Any, to: Any) -> None:
    for key in keys[:-1]:
        values = values[key]
    values[keys[-1]] = to


def test_an_entry_is_compared_with_its_bundle(
    entry: tuple[Path, dict[str, Any]],
) -> None:
    path, true = entry
    path.write_text(json.dumps(true))
    confirmed(path)
    cell = "ragen/Sokoban-v0:1"
    for code, keys, value in [
        ("score_mismatch", ("summary", "score", "mean"), 0.99),
        ("score_mismatch", ("returns", cell, 0), 7.0),
        ("score_mismatch", ("successes", cell, 0), None),
        ("entry_mismatch", ("started",), "2026-01-01T00:00:00+00:00"),
        ("entry_mismatch", ("meta", "model"), "another model"),
        ("entry_mismatch", ("settings", "temperature"), 1.0),
        ("entry_mismatch", ("board_version",), 7),
        ("entry_mismatch", ("status",), "sealed"),
        ("entry_mismatch", ("warnings",), ["solver_like  run.json: no"]),
        ("hash_mismatch", ("bundle_sha256",), "0" * 64),
        ("hash_mismatch", ("episodes_sha256",), "0" * 64),
        ("path_escape", ("bundle",), "../run.zip"),
        ("missing_file", ("bundle",), "other.zip"),
        ("schema", ("status",), "trusted"),
    ]:
        spoiled = json.loads(json.dumps(true))
        edit(spoiled, *keys, to=value)
        path.write_text(json.dumps(spoiled))
        assert {fault.code for fault in verify(path).faults} == {code}, keys


# Details ------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [False, True])
def test_hashes_of_growing_prompts_are_those_of_whole_ones(shots: bool) -> None:
    message = Message
    opening = [message(role="system", content="rules \u00e9"),
               message(role="user", content="shot")]  # fmt: skip
    pairs = [[m.role, m.content] for m in opening]
    text = json.dumps(pairs, separators=(",", ":"))[:-1]
    talk = Conversation(hashlib.sha256(text.encode()), shots)
    turns: list[Message] = []
    for number in range(5):
        for cut in range(number + 1):
            shown = [*turns[2 * cut :], message(role="user", content=f"o{number}")]
            if shots:
                head = f"Your task.\n{shown[0].content}"
                shown[0] = message(role="user", content=head)
            whole = sha256_of_messages([*opening, *shown])
            assert talk.prompt(f"o{number}", cut) == whole
        talk.add(f"o{number}", "\u4e2d")
        turns += [message(role="user", content=f"o{number}"),
                  message(role="assistant", content="\u4e2d")]  # fmt: skip


def relabelled(folder: Path, path: Path) -> Path:
    """Return the bundle of a run as if a stranger's language model had played."""
    run = bundles.read(folder)
    run.run["config"].update(agent="mine:Agent", model="mine", **{"class": "llm"})
    return pack(path, run.members())


def test_a_solver_behind_the_name_of_a_model_is_noticed(tmp_path: Path) -> None:
    cells = ["ragen/FrozenLake-v0:1", "ragen/Sokoban-v0:3"]
    for agent, like in (("oracle", True), ("bundles:FairOptimal", False)):
        out = tmp_path / agent.replace(":", "-")
        rb.run(envs=cells, seeds=24, agent=agent, out=out,
               env_args={"max_turns": 42})  # fmt: skip
        found = confirmed(relabelled(out, tmp_path / "x.zip"))
        warned = {warning.code for warning in found.warnings}
        assert ("solver_like" in warned) == like
        (told,) = [w for w in found.warnings if w.code == "prompt_unchecked"]
        assert "mine:Agent" in told.message
        assert "were replayed" in told.message and "not checked" in told.message


def test_players_who_break_ties_by_chance_are_never_called_solvers() -> None:
    numbers = random.Random(5)
    least = 1.0
    for _ in range(300):
        chances = [numbers.choice((1 / 2, 1 / 3)) for _ in range(200)]
        hits = sum(numbers.random() < chance for chance in chances)
        least = min(least, tail(chances, hits))
    assert 1e-6 < least < 0.05
    assert tail([0.5] * 3, 3) == pytest.approx(1 / 8)
    assert tail([0.5, 0.25], 1) == pytest.approx(5 / 8)
    assert tail([], 0) == pytest.approx(1)


def test_only_a_share_of_a_large_run_is_looked_at_for_ties() -> None:
    assert Ties(10)._every == 1
    assert Ties(100_000)._every > 100


# Whatever comes -------------------------------------------------------------------


@pytest.fixture(scope="module")
def true(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Board, Run]:
    folder = tmp_path_factory.mktemp("fuzz")
    cells = (BoardCell(env_id="ragen/Bandit-v0", level=3, seeds=2),)
    board = bundles.board(folder / "one.toml", cells, repeats=1)
    model = bundles.script(folder / "script.json")
    rb.run(str(folder / "one.toml"), agent="direct", model=model, out=folder / "run")
    return folder, board, bundles.read(folder / "run")


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_damaged_bundle_gives_faults_or_the_same_result(
    data: st.DataObject, true: tuple[Path, Board, Run]
) -> None:
    folder, board, run = true
    members = run.members()
    path = pack(folder / "fuzz.zip", members)
    sound = verify(path, board=board)
    assert sound.faults == ()
    inside = data.draw(st.sampled_from([None, *members]))
    raw = bytearray(path.read_bytes() if inside is None else members[inside])
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[at] ^= data.draw(st.integers(1, 255))
    else:
        del raw[at : at + data.draw(st.integers(1, 50))]
    if inside is None:
        path.write_bytes(raw)
    else:
        pack(path, {**members, inside: bytes(raw)})
    found = verify(path, board=board)
    if not found.faults:
        assert found.summary is not None and sound.summary is not None
        assert found.summary.score == sound.summary.score
        assert found.summary.outcomes == sound.summary.outcomes
        assert (found.returns, found.successes) == (sound.returns, sound.successes)


WATCHED = """
import os, sys
from ragen_bench.verifying import verify
import ragen_bench

def watch(event, args):
    if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        raise SystemExit(f"writes {args}")
    if event.startswith(("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link",
                         "os.symlink", "os.truncate", "os.chmod", "os.system",
                         "os.exec", "os.posix_spawn", "os.fork", "subprocess.",
                         "socket.", "shutil.", "tempfile.", "pickle.")):
        raise SystemExit(f"does {event} {args}")
    if event == "import" and "evil" in args[0]:
        raise SystemExit(f"imports {args}")

sys.addaudithook(watch)
for path in sys.argv[1:]:
    print(sorted({fault.code for fault in verify(path).faults}))
"""


def test_nothing_is_written_imported_or_started(tmp_path: Path) -> None:
    rb.run("smoke", agent="random", out=tmp_path / "run")
    (tmp_path / "evil.py").write_text("raise SystemExit('evil was imported')")
    run = bundles.read(tmp_path / "run")
    spoiled = run.copy()
    spoiled.run["config"].update(agent="evil:Agent", model="evil:model")
    pack(tmp_path / "agent.zip", spoiled.members())
    spoiled.run["config"]["cells"][0]["env_id"] = "evil:ragen/Maze-v0"
    pack(tmp_path / "env.zip", spoiled.members())
    paths = ["run", "agent.zip", "env.zip"]
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED, *paths],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["[]", "[]", "['bad_name']"]


MEASURED = """
import re, sys
from pathlib import Path
from ragen_bench.verifying import verify
for path in sys.argv[1:]:
    print(sorted({fault.code for fault in verify(path).faults}))
# Unlike that of getrusage, this peak is not inherited from the process that began us.
print(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def test_memory_stays_small_whatever_the_size(tmp_path: Path) -> None:
    rb.run(envs="ragen/Bandit-v0:3", seeds=2, agent="random", out=tmp_path / "run")
    run = bundles.read(tmp_path / "run")
    members = run.members()
    head = [(name, members[name]) for name in ("run.json", "meta.json")]
    paths = []
    for block in (b" " * (1 << 20), b"[" * (1 << 20), b"[],{},1," * (1 << 17)):
        data, size = bundles.bomb(block, 1000)
        paths.append(tmp_path / f"{len(paths)}.zip")
        bundles.raw_zip(paths[-1], [*head, ("episodes.jsonl", b"")], packed=data,
                        size=size)  # fmt: skip
    for text in (
        b"[],{}," * (2 << 20),
        b"[" * (15 << 20),
        b'"aa"aa' * (5 << 19),
        b'"' + b"x" * (15 << 20),
    ):
        paths.append(tmp_path / f"{len(paths)}.zip")
        pack(paths[-1], {**members, "episodes.jsonl": text + b"\n"})
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    *told, peak = done.stdout.splitlines()
    assert [found.split("'")[1] for found in told[:3]] == ["too_large"] * 3
    assert ["too_many" in found for found in told[3:6]] == [True] * 3
    assert int(peak) < 512 << 10


def test_the_command_says_a_fault_a_line(tmp_path: Path) -> None:
    rb.run(envs="ragen/Bandit-v0:3", seeds=2, agent="random", out=tmp_path / "run")
    run = bundles.read(tmp_path / "run")
    run.turn()["reward"] = 5.0
    pack(tmp_path / "x.zip", run.members())
    command = [sys.executable, "-m", "ragen_bench", "verify"]
    good = subprocess.run(
        [*command, tmp_path / "run", "--json"], capture_output=True, text=True
    )
    assert good.returncode == 0
    (told,) = json.loads(good.stdout)
    assert told["confirmed"] is True and told["board"] is None
    bad = subprocess.run([*command, tmp_path / "x.zip"], capture_output=True, text=True)
    assert bad.returncode == 1
    (line,) = bad.stdout.splitlines()
    first = run.episodes[0]
    key = f"ragen/Bandit-v0:3/test/{first['seed']}/0"
    assert line.startswith(f"reward_mismatch  {key} turn 0: reward is 5.0")
    assert ": 1 fault; " in bad.stderr
    help = subprocess.run([*command, "--help"], capture_output=True, text=True).stdout
    assert "ragen-bench verify runs/smoke-random" in help


def test_a_verification_can_be_kept(tmp_path: Path) -> None:
    rb.run(envs="ragen/Bandit-v0:3", seeds=2, agent="random", out=tmp_path / "run")
    found = verify(tmp_path / "run")
    assert {field.name for field in dataclasses.fields(found)} >= {"faults", "warnings"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.actions = 0  # type: ignore[misc]
