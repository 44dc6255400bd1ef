"""A run plays every planned episode once, whatever happens to it on the way."""

import asyncio
import dataclasses
import errno
import functools
import hashlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import mortal
import pytest
import toy

import ragen_bench as rb
from ragen_bench.errors import (
    ContextOverflow,
    InvalidSpec,
    RunIncomplete,
    RunMismatch,
    UnknownName,
)
from ragen_bench.plan import Settings, resolve
from ragen_bench.provenance import own_source_sha256
from ragen_bench.records import Episode, Summary
from ragen_bench.run_folder import read_episodes, read_run
from ragen_bench.runner import Observer
from ragen_bench.scoring import score, summarise
from ragen_bench.symbolic import split_of

CELLS = [toy.CELL, f"{toy.CELL}:2", f"{toy.CELL}:3"]


def play(out: Path, envs=toy.CELL, agent: str = "toy:Walker", **settings) -> Summary:
    """Run, and check what holds for every run."""
    summary = rb.run(envs=envs, agent=agent, out=out, **settings)
    assert sum(summary.outcomes.values()) + summary.owed == summary.planned
    assert summary.complete == (summary.owed == 0)
    assert summary == score(out)
    return summary


def episodes(out: Path) -> dict[str, Episode]:
    """Return the episodes by key, each of which comes once."""
    found = list(read_episodes(out))
    by_key = {str(episode.key): episode for episode in found}
    assert len(by_key) == len(found)
    return by_key


def timeless(out: Path) -> dict[str, Episode]:
    """Return the episodes by key, without the seconds that they took."""
    return {
        key: episode.model_copy(
            update={
                "turns": tuple(
                    turn.model_copy(update={"latency_s": None})
                    for turn in episode.turns
                )
            }
        )
        for key, episode in sorted(episodes(out).items())
    }


def of_seed(out: Path, seed: int) -> Episode:
    (found,) = [e for e in episodes(out).values() if e.seed == seed]
    return found


def summary_bytes(out: Path) -> bytes:
    return (out / "summary.json").read_bytes()


# Deaths and second tries ------------------------------------------------------


def test_thirty_kills_lose_no_episode_and_replay_none(tmp_path) -> None:
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    told = subprocess.run(
        [sys.executable, mortal.__file__, str(killed), "30", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert told.returncode == 0, told.stderr
    # Most of the kills hit, and the run was still going on when they did.
    deaths, saved = (int(word) for word in told.stdout.split() if word.isdigit())
    assert deaths >= 25
    assert saved >= 10
    summary = play(straight, **mortal.SETTINGS)
    assert summary.complete
    assert timeless(killed) == timeless(straight)
    assert summary_bytes(killed) == summary_bytes(straight)


SLEEPY = {"agent": "toy:Sleeper", "agent_args": {"after": 7}, "seeds": 6}
SLEEPER = f"""
import ragen_bench as rb, sys
summary = rb.run(envs={toy.CELL!r}, out=sys.argv[1], concurrency=2, **{SLEEPY!r})
print(summary.model_dump_json())
sys.exit(3 if summary.owed else 0)
""".replace(repr(toy.CELL), repr(f"toy:{toy.CELL}"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_stops_a_run_that_can_go_on(tmp_path, monkeypatch, number) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(number)
        rest = process.stdout.read().replace(b"waiting\n", b"")
    saved = (tmp_path / "episodes.jsonl").read_bytes()
    assert saved.count(b"\n") == 2
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 3
        stopped = Summary.model_validate(json.loads(rest))
        assert (stopped.owed, stopped.planned) == (4, 6)
        assert not stopped.complete
        assert stopped == score(tmp_path)
    monkeypatch.setenv("TOY_AWAKE", "1")
    summary = play(tmp_path, f"toy:{toy.CELL}", **SLEEPY)
    assert summary.outcomes["solved"] == 6
    assert (tmp_path / "episodes.jsonl").read_bytes().startswith(saved)


def test_a_plain_locale_holds_any_text(tmp_path) -> None:
    settings = {
        "envs": f"toy:{toy.CELL}",
        "agent": "toy:Awkward",
        "agent_args": {"how": "babel", "seeds": [0]},
        "seeds": 2,
        "salt": "\u00e9",
    }
    code = (
        f"import ragen_bench as rb, sys\nrb.run(out=sys.argv[1], **{ascii(settings)})"
    )
    plain = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, **plain},
        check=True,
    )
    summary = play(tmp_path, **settings)
    assert summary.outcomes["solved"] == 2
    reply = of_seed(tmp_path, 0).turns[1].response
    assert reply == "\u6f22\ufffd \u2501 <answer>Right</answer>\x00"


def test_the_callers_signal_handlers_come_back(tmp_path) -> None:
    def handler(*arguments):
        raise AssertionError

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handler) for number in numbers]
    try:
        play(tmp_path, seeds=1)
        assert [signal.getsignal(number) for number in numbers] == [handler] * 2
    finally:
        for number, held in zip(numbers, before, strict=True):
            signal.signal(number, held)


def test_a_player_that_never_waits_can_be_stopped(tmp_path) -> None:
    class Stopper(Observer):
        heard = 0

        def episode(self, episode):
            os.kill(os.getpid(), signal.SIGTERM)

        def stopping(self):
            self.heard += 1

    stopper = Stopper()
    summary = play(tmp_path, agent="null", seeds=50, concurrency=1, observer=stopper)
    assert stopper.heard >= 1
    assert 0 < summary.owed < 50
    assert play(tmp_path, agent="null", seeds=50, concurrency=1).complete


def test_the_same_command_again_plays_nothing(tmp_path) -> None:
    first = play(tmp_path, CELLS, seeds=4, repeats=2)
    held = summary_bytes(tmp_path)
    lines = (tmp_path / "episodes.jsonl").read_bytes()
    again = play(tmp_path, CELLS, seeds=4, repeats=2)
    assert first == again
    assert summary_bytes(tmp_path) == held
    assert (tmp_path / "episodes.jsonl").read_bytes() == lines


def test_a_complete_run_asks_nobody(tmp_path) -> None:
    toy.Spy.seen.clear()
    play(tmp_path, agent="toy:Spy", seeds=3)
    asked = len(toy.Spy.seen)
    play(tmp_path, agent="toy:Spy", seeds=3)
    assert len(toy.Spy.seen) == asked == 10


def test_another_setting_in_the_same_folder_is_refused(tmp_path) -> None:
    play(tmp_path, seeds=2)
    held = summary_bytes(tmp_path)
    for change in ({"seeds": 3}, {"salt": "x"}, {"agent_args": {"steps": 2}}):
        with pytest.raises(RunMismatch, match=f"{next(iter(change))}|cells"):
            play(tmp_path, **{"seeds": 2, **change})
    assert summary_bytes(tmp_path) == held


OWN = """
import ragen_bench as rb

class Mine(rb.Agent):
    async def act(self, observation, info):
        return rb.Reply(text="<answer>Right</answer>")
"""


def test_an_agents_changed_source_does_not_go_on_in_the_same_folder(
    tmp_path, monkeypatch
) -> None:
    source, out = tmp_path / "own_agent_of_a_test.py", tmp_path / "run"
    source.write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"{source.stem}:Mine"
    play(out, agent=name, seeds=2)
    known = hashlib.sha256(source.read_bytes()).hexdigest()
    assert read_run(out).agent_sha256 == known
    episodes = (out / "episodes.jsonl").read_bytes()
    (out / "episodes.jsonl").write_bytes(episodes.splitlines(keepends=True)[0])
    source.write_text(OWN.replace("Right", "Left"))
    with pytest.raises(RunMismatch, match=f"{known}.*--out") as caught:
        play(out, agent=name, seeds=2)
    assert name in str(caught.value)
    source.write_text(OWN)
    assert play(out, agent=name, seeds=2).complete
    # A folder of before sources were hashed goes on, and so do agents of the package.
    held = json.loads((out / "run.json").read_text())
    del held["agent_sha256"]
    (out / "run.json").write_text(json.dumps(held))
    source.write_text(f"{OWN}# another\n")
    assert play(out, agent=name, seeds=2).complete
    play(tmp_path / "ours", agent="random", seeds=1)
    assert read_run(tmp_path / "ours").agent_sha256 is None


def test_an_agent_without_a_source_file_has_no_hash() -> None:
    made = type("Made", (toy.Walker,), {"__module__": "nowhere"})
    assert own_source_sha256(made) is None
    assert own_source_sha256(functools.partial(toy.Walker)) is None
    assert own_source_sha256(toy.Walker) == own_source_sha256(toy.Spy) is not None


def test_a_full_disk_in_mid_run_loses_nothing(tmp_path) -> None:
    out, straight = tmp_path / "full", tmp_path / "straight"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))
    try:
        with pytest.raises(RunIncomplete, match=r"File too large; \d finished episo"):
            play(out, CELLS, seeds=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    saved = (out / "episodes.jsonl").read_bytes()
    assert 0 < saved.count(b"\n") < 12
    assert saved.endswith(b"\n")
    assert play(out, CELLS, seeds=4).complete
    assert (out / "episodes.jsonl").read_bytes().startswith(saved)
    play(straight, CELLS, seeds=4)
    assert summary_bytes(out) == summary_bytes(straight)


def test_a_disk_too_full_for_the_summary_leaves_a_run_that_is_played(
    tmp_path, monkeypatch
) -> None:
    replace = os.replace

    def full(old, new):
        if Path(new).name == "summary.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(RunIncomplete, match=r"summary\.json: No space left"):
            play(tmp_path, seeds=3)
    lines = (tmp_path / "episodes.jsonl").read_bytes()
    assert play(tmp_path, seeds=3).complete
    assert (tmp_path / "episodes.jsonl").read_bytes() == lines


def test_a_bug_of_the_task_comes_out_as_itself(tmp_path) -> None:
    how = {"agent": "toy:Awkward", "agent_args": {"how": "wait", "seeds": [0, 1]}}
    fault = {"env_args": {"fault_at": 3}, "seeds": 4, "concurrency": 1}
    with pytest.raises(ZeroDivisionError, match="a bug of the task"):
        play(tmp_path, **how, **fault)
    assert [e.outcome for e in read_episodes(tmp_path)] == ["turn_limit"] * 2
    assert not (tmp_path / "summary.json").exists()
    assert score(tmp_path).owed == 2


# Many at once -----------------------------------------------------------------


def test_concurrency_changes_no_episode(tmp_path) -> None:
    outs = {n: tmp_path / str(n) for n in (1, 3, 32)}
    for n, out in outs.items():
        play(out, CELLS, agent="toy:Gambler", seeds=5, repeats=2, concurrency=n)
    assert timeless(outs[1]) == timeless(outs[3]) == timeless(outs[32])
    assert len({summary_bytes(out) for out in outs.values()}) == 1
    orders = {tuple(map(str, (e.key for e in read_episodes(o)))) for o in outs.values()}
    assert len(orders) > 1


def test_the_order_of_the_episodes_moves_no_number(tmp_path) -> None:
    play(tmp_path, CELLS, agent="toy:Gambler", seeds=5, repeats=2)
    config = read_run(tmp_path).config
    found = list(read_episodes(tmp_path))
    texts = {
        summarise(config, order).model_dump_json()
        for order in (found, found[::-1], found[1::2] + found[::2])
    }
    assert len(texts) == 1


def test_episodes_do_not_wait_for_each_other(tmp_path) -> None:
    """Two players must meet within their first turns, so both are in flight."""
    barrier = asyncio.Barrier(2)

    class Meeter(toy.Walker):
        async def act(self, observation, info):
            await barrier.wait()
            return await super().act(observation, info)

    toy.Meeter = Meeter
    try:
        summary = play(
            tmp_path, agent="toy:Meeter", seeds=2, concurrency=2, episode_timeout=60
        )
    finally:
        del toy.Meeter
    assert summary.outcomes["solved"] == 2


def test_a_run_may_start_within_a_running_loop(tmp_path) -> None:
    async def notebook() -> Summary:
        return play(tmp_path, seeds=2)

    assert asyncio.run(notebook()).complete


def test_an_error_comes_out_of_a_running_loop(tmp_path) -> None:
    async def notebook() -> None:
        play(tmp_path, env_args={"fault_at": 2})

    with pytest.raises(ZeroDivisionError):
        asyncio.run(notebook())


def test_ctrl_c_in_a_notebook_stops_the_run(tmp_path) -> None:
    """The loop of a notebook leaves Ctrl-C to Python, unlike `asyncio.run`."""
    interrupting = (
        "import asyncio, ragen_bench as rb, signal, sys, threading, toy\n"
        # A job in the background inherits that Ctrl-C is ignored; a notebook's is not.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Impatient(toy.Awkward):\n"
        "    async def act(self, observation, info):\n"
        "        if self.fails:\n"
        "            main = threading.main_thread().ident\n"
        "            signal.pthread_kill(main, signal.SIGINT)\n"
        "        return await super().act(observation, info)\n"
        "toy.Impatient = Impatient\n"
        "async def notebook():\n"
        "    return rb.run(envs=toy.CELL, agent='toy:Impatient', seeds=3,\n"
        "        agent_args={'how': 'hang', 'seeds': [2], 'turn': 0},\n"
        "        out=sys.argv[1], concurrency=1)\n"
        "loop = asyncio.new_event_loop()\n"
        "summary = loop.run_until_complete(notebook())\n"
        "loop.close()\n"
        "print(summary.owed)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", interrupting, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout == "1\n"
    assert score(tmp_path).outcomes["solved"] == 2


def test_two_threads_may_run_at_once(tmp_path) -> None:
    found: dict[int, Summary] = {}

    def work(number: int) -> None:
        found[number] = play(tmp_path / str(number), CELLS, seeds=4)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert timeless(tmp_path / "0") == timeless(tmp_path / "1")


def test_two_runs_never_share_a_folder(tmp_path) -> None:
    class Second(Observer):
        def begin(self, plan, folder):
            with pytest.raises(InvalidSpec, match="in use by another run"):
                play(tmp_path, seeds=2)

    assert play(tmp_path, seeds=2, observer=Second()).complete


def test_an_observer_hears_of_every_episode_once_it_is_on_disk(tmp_path) -> None:
    heard: list[str] = []

    class Ear(Observer):
        def begin(self, plan, folder):
            heard.append(f"begin {len(folder.finished)}")

        def episode(self, episode):
            assert str(episode.key) in episodes(tmp_path)
            heard.append(str(episode.seed))

        def end(self, summary):
            assert (tmp_path / "summary.json").exists()
            heard.append("end")

    play(tmp_path, seeds=3, concurrency=1, observer=Ear())
    play(tmp_path, seeds=3, concurrency=1, observer=Ear())
    assert heard == ["begin 0", "0", "1", "2", "end", "begin 3", "end"]


# Failures of players ----------------------------------------------------------


@pytest.mark.parametrize("how", toy.ERRORS)
def test_an_agents_failure_is_its_own(tmp_path, how) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    play(good, seeds=5)
    fails = {"how": how, "seeds": [1, 3]}
    summary = play(bad, agent="toy:Awkward", agent_args=fails, seeds=5)
    assert summary.complete
    assert summary.outcomes["agent_error"] == 2
    assert summary.outcomes["solved"] == 3
    failed = of_seed(bad, 1)
    assert failed.error
    assert len(failed.turns) == (0 if how == "reset" else 1)
    assert (failed.success, failed.terminated, failed.truncated) == (False,) * 3
    good_ones, bad_ones = timeless(good), timeless(bad)
    for key, episode in good_ones.items():
        if episode.seed not in (1, 3):
            assert bad_ones[key] == episode
    # It counts as a failure: 3 of 5 solved.
    assert summary.cells[f"{toy.CELL}:1"].success.mean == pytest.approx(0.6)
    # Nothing of it is played again.
    lines = (bad / "episodes.jsonl").read_bytes()
    play(bad, agent="toy:Awkward", agent_args=fails, seeds=5, retry_errors=True)
    assert (bad / "episodes.jsonl").read_bytes() == lines


def test_an_agent_that_always_fails_fails_in_every_episode(tmp_path) -> None:
    for how in ("reset", "raise"):
        fails = {"how": how, "seeds": [0, 1, 2], "turn": 0}
        out = tmp_path / how
        summary = play(out, agent="toy:Awkward", agent_args=fails, seeds=3)
        assert summary.outcomes["agent_error"] == 3
        assert summary.score.mean is not None


def test_an_agents_error_names_type_and_message(tmp_path) -> None:
    fails = {"how": "raise", "seeds": [0], "turn": 0}
    play(tmp_path, agent="toy:Awkward", agent_args=fails, seeds=1)
    assert of_seed(tmp_path, 0).error == "LookupError: lost"


def test_a_wrong_reply_is_refused_before_the_task_moves(tmp_path) -> None:
    """The answer would have solved the task, had it not come with nonsense."""
    fails = {"how": "usage", "seeds": range(4), "turn": 2}
    play(tmp_path, agent="toy:Awkward", agent_args={**fails, "seeds": [0]}, seeds=1)
    assert of_seed(tmp_path, 0).success is False


def test_a_prompt_too_long_for_the_model_is_a_failure_of_its_own(tmp_path) -> None:
    fails = {"how": "overflow", "seeds": [1]}
    summary = play(tmp_path, agent="toy:Awkward", agent_args=fails, seeds=3)
    assert summary.outcomes["context_overflow"] == 1
    assert of_seed(tmp_path, 1).error == "prompt of 99 tokens, context of 9"
    assert summary.cells[f"{toy.CELL}:1"].success.n == 3


def test_a_models_own_limit_is_a_context_overflow(tmp_path) -> None:
    asked, _ = prompts(tmp_path, seeds=1)
    room = size(next(iter(asked.values()))[1])
    prompts(tmp_path, seeds=1, model_args={"context": room})
    (episode,) = episodes(tmp_path / "1").values()
    assert episode.outcome == "context_overflow"
    assert len(episode.turns) == 2


@pytest.mark.parametrize(
    ("how", "bucket"), [("provider", "provider_error"), ("hang", "timeout")]
)
def test_what_nobody_played_is_played_again_only_if_asked_for(
    tmp_path, monkeypatch, how, bucket
) -> None:
    settings = {
        "agent": "toy:Awkward",
        "agent_args": {"how": how, "seeds": [1, 3]},
        "seeds": 5,
        "episode_timeout": 2 if how == "hang" else None,
    }
    first = play(tmp_path, **settings)
    assert (first.outcomes[bucket], first.outcomes["solved"]) == (2, 3)
    assert first.complete and not first.rankable
    # Never averaged in: 3 of 3 solved.
    assert first.score.n == 3
    assert first.cells[f"{toy.CELL}:1"].success.mean == 1
    held = summary_bytes(tmp_path)
    lines = (tmp_path / "episodes.jsonl").read_bytes().splitlines()
    monkeypatch.setitem(toy.MISDEEDS, how, toy.MISDEEDS["wait"])
    assert play(tmp_path, **settings) == first
    assert summary_bytes(tmp_path) == held
    again = play(tmp_path, **settings, retry_errors=True)
    assert (again.outcomes["turn_limit"], again.outcomes["solved"]) == (2, 3)
    kept = (tmp_path / "episodes.jsonl").read_bytes().splitlines()
    assert kept[:3] == [line for line in lines if b'"solved"' in line]
    assert len(kept) == 5


def test_a_timeout_says_how_long_it_was(tmp_path) -> None:
    fails = {"how": "hang", "seeds": [0], "turn": 0}
    play(
        tmp_path,
        agent="toy:Awkward",
        agent_args=fails,
        seeds=1,
        episode_timeout=0.05,
    )
    assert of_seed(tmp_path, 0).error == "took more than 0.05 s"


def test_outcomes_have_a_bucket_each(tmp_path) -> None:
    assert play(tmp_path / "1", seeds=2).outcomes["solved"] == 2
    paid = play(tmp_path / "2", f"{toy.CELL}:3", seeds=2)
    assert paid.outcomes["finished"] == 2
    assert {e.success for e in episodes(tmp_path / "2").values()} == {None}
    idle = play(tmp_path / "3", agent="null", seeds=2)
    assert idle.outcomes["turn_limit"] == 2
    ended = play(tmp_path / "4", agent="null", env_args={"invalid": "terminate"})
    assert ended.outcomes["failed"] == 8
    ended = play(
        tmp_path / "5",
        f"{toy.CELL}:3",
        agent="null",
        seeds=2,
        env_args={"invalid": "terminate"},
    )
    assert ended.outcomes["finished"] == 2


@pytest.mark.parametrize("agent", ["null", "random", "oracle"])
def test_the_reference_agents_stand_where_they_should(tmp_path, agent) -> None:
    summary = play(tmp_path, CELLS, agent=agent, seeds=6)
    cell = summary.cells[f"{toy.CELL}:1"]
    if agent == "oracle":
        assert cell.normalized.mean == pytest.approx(1)
        assert cell.efficiency == 1
    else:
        assert cell.normalized.mean is not None
        assert cell.normalized.mean < 0.7
    assert summary.agent_class == "solver"


def test_a_floor_is_that_of_as_many_actions_as_the_replies_hold(tmp_path) -> None:
    settings = {"length": 3, "max_turns": 2, "max_actions_per_turn": 1}
    play(tmp_path, agent="null", seeds=8, env_args=settings)
    # Two actions, each right by 1 in 3: both must be right, or one of them.
    floors = {e.optimal_cost: e.floor for e in episodes(tmp_path).values()}
    assert floors == {2: pytest.approx(1 / 9), 1: pytest.approx(4 / 9)}


# Seeds, repeats, salt ---------------------------------------------------------


def test_repeats_share_the_instance_and_nothing_random(tmp_path) -> None:
    play(tmp_path, f"{toy.CELL}:2", agent="toy:Gambler", seeds=4, repeats=4)
    by_seed = itertools.groupby(
        sorted(episodes(tmp_path).values(), key=lambda e: e.key), lambda e: e.seed
    )
    for seed, group in by_seed:
        reps = list(group)
        assert [e.rep for e in reps] == [0, 1, 2, 3]
        assert len({(e.instance, e.floor, e.ceiling) for e in reps}) == 1
        assert len({e.turns[0].observation for e in reps}) == 1
        replies = {tuple(t.response for t in e.turns) for e in reps}
        assert len(replies) > 1, f"the agent repeats itself on seed {seed}"
    noise = {
        (e.seed, e.rep): [t.effective for t in e.turns if t.actions == ("Right",)]
        for e in episodes(tmp_path).values()
    }
    assert len({str(noise[0, rep]) for rep in range(4)}) > 1


def test_noise_differs_between_repeats_of_a_steady_agent(tmp_path) -> None:
    play(tmp_path, f"{toy.CELL}:2", seeds=3, repeats=6)
    for seed in range(3):
        slips = {
            tuple(turn.effective for turn in episode.turns)
            for episode in episodes(tmp_path).values()
            if episode.seed == seed
        }
        assert len(slips) > 1


def test_salt_moves_noise_and_agents_but_no_instance(tmp_path) -> None:
    cell = f"{toy.CELL}:2"
    for agent in ("toy:Walker", "toy:Gambler"):
        for salt in ("", "a", "b"):
            out = tmp_path / agent[4:] / f"salt{salt}"
            play(out, cell, agent=agent, seeds=6, salt=salt)
    for agent in ("Walker", "Gambler"):
        runs = [timeless(tmp_path / agent / f"salt{salt}") for salt in ("", "a", "b")]
        assert runs[0].keys() == runs[1].keys() == runs[2].keys()
        for same in zip(*(run.values() for run in runs), strict=True):
            assert len({(e.instance, e.ceiling) for e in same}) == 1
        # The walker says always the same, so only noise can move its episodes.
        seen = "effective" if agent == "Walker" else "response"
        told = [
            [[getattr(turn, seen) for turn in e.turns] for e in run.values()]
            for run in runs
        ]
        assert told[0] != told[1] != told[2] != told[0]


# What players are told --------------------------------------------------------


def test_an_agent_sees_no_state_beyond_the_text(tmp_path) -> None:
    toy.Spy.seen.clear()
    play(tmp_path, agent="toy:Spy", seeds=2)
    for task, observation, info in toy.Spy.seen:
        assert task.env is None
        assert "Corridor" in observation
        hidden = {"action_mask", "progress", "success", "scored_reward"}
        assert not hidden & info.keys()
        assert {"turns_left", "actions_left"} <= info.keys()
    task = toy.Spy.seen[0][0]
    assert task.key == "toy/Corridor-v0:1/test/0/0"
    assert (task.max_turns, task.max_actions, task.max_actions_per_turn) == (5, 10, 3)
    assert task.action_names == ("Left", "Right", "Wait")
    assert task.rules == of_seed(tmp_path, 0).rules
    assert len({task.seed for task, *_ in toy.Spy.seen}) == 2


def test_a_privileged_agent_sees_the_environment(tmp_path) -> None:
    toy.Spy.seen.clear()
    play(tmp_path, agent="toy:Spy", agent_args={"privileged": True}, seeds=1)
    assert isinstance(toy.Spy.seen[0][0].env, rb.TextEnv)


Prompts = list[list[tuple[str, str]]]
"""The prompts of one episode: role and text of each message."""


def prompts(tmp_path, **settings) -> tuple[dict[str, Prompts], list[list[int]]]:
    """Return each episode's prompts by key, and by turn what they left out."""
    toy.Parrot.prompts.clear()
    out = tmp_path / str(len(list(tmp_path.iterdir())))
    play(out, **{"agent": "direct", "model": "parrot", "seeds": 3, **settings})
    asked: dict[str, Prompts] = {}
    for key, messages in toy.Parrot.prompts:
        asked.setdefault(key, []).append(messages)
    cuts = [[turn.context_cut for turn in e.turns] for e in episodes(out).values()]
    return asked, cuts


def test_shots_are_solved_train_instances_and_the_same_in_each_episode(
    tmp_path,
) -> None:
    asked, _ = prompts(tmp_path, shots=3, seeds=4)
    assert len(asked) == 4
    openings = {str(messages[0][:13]) for messages in asked.values()}
    assert len(openings) == 1
    (first, *_) = next(iter(asked.values()))
    users = [text for role, text in first if role == "user"]
    heads = [text for text in users if text.startswith("Example ")]
    assert [head.split(".")[0] for head in heads] == [f"Example {n}" for n in (1, 2, 3)]
    for head in heads:
        tag, cells = head.split("\n")[2:]
        instance = [cells.index("P"), int(tag.removeprefix("Corridor "))]
        assert split_of(repr(instance).encode()) == "train"
    assert users[-1].startswith("Your task.\n")
    answers = [text for role, text in first if role == "assistant"]
    assert answers[:2] == [
        "<answer>Right || Right || Right</answer>",
        "<answer>Right</answer>",
    ]
    assert len(answers) in (5, 6)


def size(messages: list[tuple[str, str]]) -> int:
    """Return the tokens of a prompt as the parrot counts them."""
    return sum(len(text) for _, text in messages)


RULES = "Walk right through 5 cells"


@pytest.mark.parametrize(
    ("context", "cuts", "users"),
    [
        ("full", [0, 0, 0], 3),
        ("window:1", [0, 0, 1], 2),
        ("window:9", [0, 0, 0], 3),
        ("single", [0, 1, 2], 1),
    ],
)
@pytest.mark.parametrize("shots", [0, 1])
def test_a_context_policy_keeps_rules_and_shots(
    tmp_path, context, cuts, users, shots
) -> None:
    # Seed 0 stands three steps from the goal.
    asked, told = prompts(tmp_path, context=context, shots=shots, seeds=1)
    assert told == [cuts]
    last = next(iter(asked.values()))[-1]
    assert last[0][0] == "system"
    assert RULES in last[0][1]
    after = [m for m in last[1:] if not m[1].startswith("Example")]
    own = [text for role, text in last if role == "user"][-users:]
    assert len([m for m in last if m[0] == "user"]) == users + (2 if shots else 0)
    assert ("Example 1." in str(last)) == bool(shots)
    assert own[0].startswith("Your task.\n") == bool(shots)
    assert "Turn 3 of 5" in own[-1]
    assert after


def test_a_budget_of_tokens_drops_the_oldest_turns(tmp_path) -> None:
    asked, _ = prompts(tmp_path, seeds=1)
    (turns,) = asked.values()
    assert [len(messages) for messages in turns] == [2, 4, 6]
    budget = size(turns[2]) + 10
    for less, left_out, lengths in ((0, 0, [2, 4, 6]), (1, 1, [2, 4, 4])):
        context = {"context": f"tokens:{budget - less}", "max_tokens": 10}
        asked, cuts = prompts(tmp_path, seeds=1, **context)
        (turns,) = asked.values()
        assert cuts == [[0, 0, left_out]]
        assert [len(messages) for messages in turns] == lengths
        assert all(RULES in messages[0][1] for messages in turns)
    assert "Turn 2 of 5" in turns[2][1][1]


def test_rules_that_do_not_fit_are_refused_before_the_first_question(tmp_path) -> None:
    toy.Parrot.prompts.clear()
    with pytest.raises(ContextOverflow, match=r"tokens:100 allows fewer; raise it"):
        play(tmp_path / "x", agent="direct", model="parrot", context="tokens:100")
    assert not toy.Parrot.prompts
    assert not (tmp_path / "x").exists()


def test_a_record_tells_which_prompt_was_asked(tmp_path) -> None:
    play(tmp_path, agent="direct", model="parrot", seeds=2)
    hashes = [turn.prompt_sha256 for turn in of_seed(tmp_path, 0).turns]
    assert len(set(hashes)) == len(hashes) == 3
    assert read_run(tmp_path).prompt_sha256[f"{toy.CELL}:1"] == hashes[0]
    assert read_run(tmp_path).model_facts == {"says": "<answer>Right</answer>"}


# Refused settings -------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"agent": "oracel"}, UnknownName, "did you mean 'oracle'"),
        ({"agent": "toy:Nobody"}, UnknownName, "has no 'Nobody'"),
        ({"agent": "nowhere:Nobody"}, UnknownName, "no module 'nowhere'"),
        ({"agent": "toy:Corridor"}, InvalidSpec, "not an Agent"),
        ({"agent_args": {"step": 2}}, UnknownName, "did you mean 'steps'"),
        ({"agent_args": {"model": "x"}}, UnknownName, "no argument of agent"),
        ({"agent_args": {"steps": float("nan")}}, InvalidSpec, "agent_args must be J"),
        ({"agent_args": {"steps": object()}}, InvalidSpec, "agent_args must be JSON"),
        ({"env_args": {"lenght": 3}}, UnknownName, "did you mean 'length'"),
        ({"env_args": {"level": 3}}, InvalidSpec, "level is a setting of the run"),
        ({"env_args": {"invalid": "never"}}, InvalidSpec, "invalid is 'never'"),
        ({"env_args": {"invalid": "default:Up"}}, UnknownName, "no action 'Up'"),
        (
            {
                "envs": "ragen/Bandit-v0",
                "seeds": 20,
                "env_args": {"invalid": "default:Phoenix"},
            },
            UnknownName,
            "no action 'Phoenix'",
        ),
        (
            {"envs": "ragen/Bandit-v0:2", "env_args": {"preset": "ragen-v1"}},
            InvalidSpec,
            "preset takes the place of the level",
        ),
        ({"model": "parrot"}, InvalidSpec, "uses no model; leave --model "),
        ({"model_args": {"x": 1}}, InvalidSpec, "uses no model; leave --model-arg"),
        ({"temperature": 1.0}, InvalidSpec, "takes no temperature"),
        ({"envs": []}, InvalidSpec, "nothing to play"),
        ({"envs": "toy/Corridor-v0:9"}, InvalidSpec, "no level 9; it has 1, 2, 3"),
        ({"envs": "toy/Coridor-v0"}, UnknownName, "did you mean 'toy/Corridor-v0'"),
        ({"envs": "toy/Corridor-v0:x"}, InvalidSpec, "level 'x'"),
        ({"seeds": 0}, InvalidSpec, "seeds is 0"),
        ({"repeats": 0}, InvalidSpec, "repeats is 0"),
        ({"repeats": True}, InvalidSpec, "repeats is True"),
        ({"shots": -1}, InvalidSpec, "shots is -1"),
        ({"split": "best"}, InvalidSpec, "split is 'best'"),
        ({"prompt": "long"}, UnknownName, "no prompt length 'long'"),
        ({"salt": 3}, InvalidSpec, "salt is 3"),
        ({"concurrency": 0}, InvalidSpec, "concurrency is 0"),
        ({"episode_timeout": 0}, InvalidSpec, "episode_timeout is 0"),
        ({"seedz": 3}, InvalidSpec, "seedz"),
        ({"board": "nowhere"}, UnknownName, "no board 'nowhere'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(tmp_path, settings, error, message) -> None:
    out = tmp_path / "out"
    with pytest.raises(error, match=message):
        rb.run(**{"envs": [toy.CELL], "agent": "toy:Walker", "out": out, **settings})
    assert not out.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"context": "all"}, "context is 'all'"),
        ({"agent_args": {"temperature": 1}}, "temperature is a setting of the run"),
    ],
)
def test_a_wrong_sampling_setting_is_refused(tmp_path, settings, message) -> None:
    toy.Parrot.prompts.clear()
    with pytest.raises(InvalidSpec, match=message):
        play(tmp_path / "x", agent="direct", model="parrot", **settings)
    assert not toy.Parrot.prompts


def test_one_cell_given_twice_is_played_once(tmp_path) -> None:
    summary = play(tmp_path, [toy.CELL, f"{toy.CELL}:1"], seeds=2)
    assert summary.planned == 2


def test_a_run_keeps_what_was_resolved(tmp_path) -> None:
    play(
        tmp_path,
        agent="think_act",
        model="parrot:<answer>Right</answer>",
        seeds=1,
        env_args={"strict": True},
        command="ragen-bench run",
    )
    held = json.loads((tmp_path / "run.json").read_text())
    assert held["command"] == "ragen-bench run"
    config = held["config"]
    assert (config["max_tokens"], config["temperature"]) == (256, 0.0)
    assert (config["context"], config["prompt"], config["shots"]) == ("full",) * 2 + (
        0,
    )
    assert config["class"] == "llm"
    assert config["split"] == "test"
    assert config["env_args"] == {"strict": True}
    assert held["versions"]["ragen-bench"] == rb.__version__


def test_a_model_may_bring_its_own_defaults(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        toy.Parrot,
        "defaults",
        {
            "agent": "direct",
            "prompt": "compact",
            "context": "single",
            "shots": 1,
            "sampling": {"temperature": 0.5, "max_tokens": 9},
            "trained": True,
        },
    )
    settings = {"envs": toy.CELL, "model": "parrot"}
    config = resolve(Settings(**settings)).config
    assert (config.agent, config.agent_class) == ("direct", "trained")
    assert (config.prompt, config.context, config.shots) == ("compact", "single", 1)
    assert (config.temperature, config.max_tokens) == (0.5, 9)
    config = resolve(
        Settings(**settings, agent="think_act", prompt="full", shots=0, temperature=0.0)
    ).config
    assert (config.agent, config.prompt, config.shots) == ("think_act", "full", 0)
    assert (config.temperature, config.max_tokens) == (0.0, 9)


def test_settings_and_configurations_name_the_same_things() -> None:
    config = set(resolve(Settings(envs=toy.CELL, agent="null")).config.model_fields_set)
    asked = {field.name for field in dataclasses.fields(Settings)}
    assert asked - {"envs", "seeds"} <= config | {
        "context",
        "temperature",
        "top_p",
        "max_tokens",
    }
