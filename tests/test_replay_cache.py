"""A replay cache gives back what was said, to the very same question and no other."""

import asyncio
import dataclasses
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import toy
from paid import TABLE, USAGE, Paid

import ragen_bench as rb
from ragen_bench.errors import InvalidSpec, RunIncomplete
from ragen_bench.model import (
    Completion,
    Conversation,
    Message,
    Model,
    Sampling,
    Usage,
)
from ragen_bench.records import Episode, Summary
from ragen_bench.replay_cache import CachedModel, ReplayCache
from ragen_bench.run_folder import read_episodes

LINE = Completion(
    text="\u6f22 \ud800 <answer>Up</answer>",
    thinking="Up.",
    token_ids=(1, 2),
    logprobs=(-0.1, -1 / 3),
    usage=USAGE,
    finish_reason="length",
    details={"id": "r1", "notes": [1, None]},
)
TALK = Conversation(
    key="a/A-v0:1/test/0/0",
    seed=7,
    messages=[
        Message(role="system", content="Go."),
        Message(role="user", content="where?"),
        Message(role="assistant", content="Up", thinking="up?", token_ids=(3, 4)),
        Message(role="user", content="and now?"),
    ],
    turn=1,
)


class Echo(Model):
    """Says the number of replies that it gave."""

    name = "echo"
    max_context = 99
    defaults = {"agent": "direct"}
    deterministic = False

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        self.calls = 0
        self.open = True

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        self.calls += 1
        return Completion(text=str(self.calls))

    def count_tokens(self, messages: Any) -> int:
        return 11

    def describe(self) -> Mapping[str, Any]:
        return self.facts

    async def aclose(self) -> None:
        self.open = False


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    with ReplayCache(tmp_path / "cache") as opened:
        yield opened


def ask(model: Model, talk: Conversation = TALK, **sampling: Any) -> Completion:
    return asyncio.run(model.generate(talk, Sampling(**sampling)))


def play(out: Path, cache: Path | None, **settings: Any) -> Summary:
    settings = {"agent": "direct", "model": "paid", "seeds": 3, **settings}
    return rb.run(envs=toy.CELL, out=out, cache=cache, **settings)


def calls_of(out: Path, cache: Path | None, **settings: Any) -> int:
    before = Paid.calls
    play(out, cache, **settings)
    return Paid.calls - before


def told(out: Path) -> dict[str, list[str]]:
    return {
        str(episode.key): [turn.response for turn in episode.turns]
        for episode in read_episodes(out)
    }


def hits(episodes: list[Episode]) -> list[bool]:
    return [turn.details.get("cached", False) for e in episodes for turn in e.turns]


# A reply ------------------------------------------------------------------------


def test_a_reply_comes_back_whole_and_marked(cache) -> None:
    assert cache.get("a") is None
    cache.put("a", LINE)
    marked = dataclasses.replace(LINE, details={**LINE.details, "cached": True})
    assert cache.get("a") == marked
    assert cache.get("b") is None


def test_the_first_reply_is_kept(cache) -> None:
    cache.put("a", LINE)
    cache.put("a", dataclasses.replace(LINE, text="later"))
    assert cache.get("a").text == LINE.text


def test_unknown_usage_stays_unknown(cache) -> None:
    cache.put("a", Completion(text=""))
    assert cache.get("a").usage == Usage()


def test_a_reply_that_no_record_can_hold_is_not_kept(cache) -> None:
    cache.put("a", dataclasses.replace(LINE, details={"x": object()}))
    assert cache.get("a") is None


def test_a_model_is_asked_once(cache) -> None:
    echo = Echo()
    model = CachedModel(echo, cache, "echo", {})
    assert [ask(model).text for _ in range(3)] == ["1", "1", "1"]
    assert echo.calls == 1


def test_all_else_is_the_models_own(cache) -> None:
    echo = Echo(template="a")
    model = CachedModel(echo, cache, "echo", {})
    assert (model.name, model.max_context) == ("echo", 99)
    assert model.defaults == {"agent": "direct"}
    assert model.deterministic is False
    assert model.count_tokens([]) == 11
    assert model.describe() == {"template": "a"}
    asyncio.run(model.aclose())
    assert not echo.open


# The key ------------------------------------------------------------------------

OTHER_TALK = [
    dataclasses.replace(TALK, key="a/A-v0:1/test/0/1"),
    dataclasses.replace(TALK, seed=8),
    dataclasses.replace(TALK, turn=2),
    dataclasses.replace(TALK, messages=TALK.messages[1:]),
    *(
        dataclasses.replace(
            TALK,
            messages=[
                *TALK.messages[:2],
                dataclasses.replace(TALK.messages[2], **change),
                TALK.messages[3],
            ],
        )
        for change in (
            {"content": "up"},
            {"role": "user"},
            {"thinking": None},
            {"thinking": "Up?"},
            {"token_ids": None},
            {"token_ids": (3, 5)},
        )
    ),
]


@pytest.mark.parametrize("other", OTHER_TALK, ids=range(len(OTHER_TALK)))
def test_another_question_misses(cache, other) -> None:
    model = CachedModel(Echo(), cache, "echo", {})
    assert [ask(model).text, ask(model, other).text] == ["1", "2"]


OTHER_SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "max_tokens": 255,
    "stop": ("</answer>", "\n\n"),
    "processed_logprobs": True,
}


def test_every_setting_of_sampling_is_tried_here() -> None:
    fields = {field.name for field in dataclasses.fields(Sampling)}
    assert fields == set(OTHER_SAMPLING)


@pytest.mark.parametrize("name", OTHER_SAMPLING)
def test_another_sampling_misses(cache, name) -> None:
    model = CachedModel(Echo(), cache, "echo", {})
    other = ask(model, **{name: OTHER_SAMPLING[name]})
    assert [ask(model).text, other.text] == ["2", "1"]


def test_another_model_misses(cache) -> None:
    named = Echo()
    named.name = "other"
    models = [
        CachedModel(Echo(), cache, "echo", {}),
        CachedModel(named, cache, "echo", {}),
        CachedModel(Echo(), cache, "echo:b", {}),
        CachedModel(Echo(), cache, "echo", {"revision": 2}),
        CachedModel(Echo(template="b"), cache, "echo", {}),
        CachedModel(Echo(files={"x": "0"}), cache, "echo", {}),
    ]
    assert len({model.key(TALK, Sampling()) for model in models}) == len(models)


# Runs ---------------------------------------------------------------------------


def test_repeats_stay_apart_and_a_second_run_asks_nobody(tmp_path) -> None:
    how: dict[str, Any] = {"temperature": 1.0, "repeats": 4}
    assert calls_of(tmp_path / "a", tmp_path / "cache", **how) > 0
    assert calls_of(tmp_path / "b", tmp_path / "cache", **how) == 0
    first, second = told(tmp_path / "a"), told(tmp_path / "b")
    assert first == second
    openings = {(key.rsplit("/", 1)[0], said[0]) for key, said in first.items()}
    assert len(openings) == len(first) == 12
    assert not any(hits(list(read_episodes(tmp_path / "a"))))
    assert all(hits(list(read_episodes(tmp_path / "b"))))


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"top_p": 0.5},
        {"max_tokens": 31},
        {"prompt": "compact"},
        {"context": "single"},
        {"shots": 1},
        {"agent": "think_act", "max_tokens": 32},
        {"salt": "x"},
        {"model_args": {"template": "b"}},
        {"model_args": {"revision": "2"}},
        {"model_args": {"deaf": 1}},
        {"model": "paid:b"},
    ],
    ids=str,
)
def test_a_run_with_one_other_setting_is_asked_anew(tmp_path, change) -> None:
    cache = tmp_path / "cache"
    first = calls_of(tmp_path / "a", cache)
    other = calls_of(tmp_path / "b", cache, **change)
    if change == {"context": "single"}:  # the first prompt of each episode is the same
        assert 0 < other == first - 3
    else:
        assert other == calls_of(tmp_path / "c", None, **change)
    assert calls_of(tmp_path / "d", cache) == 0


def test_a_cache_moves_no_number(tmp_path) -> None:
    table = tmp_path / "prices.toml"
    table.write_text(TABLE)
    how: dict[str, Any] = {"temperature": 1.0, "prices": table}
    summaries = [
        play(tmp_path / "plain", None, **how),
        play(tmp_path / "filling", tmp_path / "cache", **how),
        play(tmp_path / "filled", tmp_path / "cache", **how),
    ]
    assert summaries[0] == summaries[1] == summaries[2]
    assert (tmp_path / "filling" / "ledger.jsonl").read_bytes()
    # What comes from the cache is paid for no second time.
    assert not (tmp_path / "filled" / "ledger.jsonl").read_bytes()
    play(tmp_path / "poor", tmp_path / "cache", budget=1e-9, **how)
    assert told(tmp_path / "poor") == told(tmp_path / "plain")


def test_errors_are_not_kept(tmp_path) -> None:
    how: dict[str, Any] = {"model_args": {"fails": "/1/"}}
    cache = tmp_path / "cache"
    assert play(tmp_path / "a", cache, **how).outcomes["provider_error"] == 1
    assert calls_of(tmp_path / "b", cache, **how) == 1


def test_two_threads_may_use_one_cache(tmp_path) -> None:
    def work(number: int) -> None:
        play(tmp_path / str(number), tmp_path / "cache", temperature=1.0, seeds=20)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told(tmp_path / "0") == told(tmp_path / "1")
    assert len(told(tmp_path / "0")) == 20


FILL = """
import sys
from ragen_bench.model import Completion
from ragen_bench.replay_cache import ReplayCache
with ReplayCache(sys.argv[1]) as cache:
    for i in range(100):
        cache.put(f"{sys.argv[2]}-{i}", Completion(text="Up"))
        cache.put(f"common-{i}", Completion(text="Up"))
"""


def test_several_processes_may_fill_one_cache(tmp_path) -> None:
    workers = [
        subprocess.Popen([sys.executable, "-c", FILL, str(tmp_path), str(number)])
        for number in range(3)
    ]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    with ReplayCache(tmp_path) as cache:
        for i in range(100):
            for owner in (0, 1, 2, "common"):
                assert cache.get(f"{owner}-{i}") is not None


# Files that are no cache --------------------------------------------------------


def test_an_agent_without_a_model_needs_no_cache(tmp_path) -> None:
    with pytest.raises(InvalidSpec, match="leave --cache out"):
        play(tmp_path / "out", tmp_path / "cache", agent="random", model=None)
    assert not (tmp_path / "cache").exists()


def refused(folder: Path) -> str:
    with pytest.raises(InvalidSpec) as error:
        play(folder.parent / "out", folder)
    assert not (folder.parent / "out").exists()
    return str(error.value)


@pytest.mark.parametrize(
    "data", [b"not a database at all, but text" * 99, b"\x00" * 99]
)
def test_a_file_that_is_no_database_is_refused(tmp_path, data) -> None:
    (tmp_path / "replies.sqlite").write_bytes(data)
    assert "file is not a database; remove it" in refused(tmp_path)
    assert (tmp_path / "replies.sqlite").read_bytes() == data


def test_the_database_of_another_program_is_refused(tmp_path) -> None:
    with sqlite3.connect(tmp_path / "replies.sqlite") as database:
        database.execute("CREATE TABLE replies (key TEXT, reply TEXT)")
    database.close()
    assert "is the database of another program" in refused(tmp_path)


def test_a_cache_of_another_version_is_refused(tmp_path) -> None:
    ReplayCache(tmp_path).close()
    with sqlite3.connect(tmp_path / "replies.sqlite") as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    assert "it has version 9, but this version" in refused(tmp_path)


def test_a_cache_that_is_a_file_is_refused(tmp_path) -> None:
    (tmp_path / "cache").write_text("")
    assert "cannot be a folder" in refused(tmp_path / "cache")


WHOLE = {**dataclasses.asdict(Completion(text="Up")), "token_ids": [], "logprobs": []}
DAMAGES = ["{", "[1]", "3", "null", "{}", '{"text": "Up"}', "[" * 100_000] + [
    json.dumps({**WHOLE, **change})
    for change in (
        {"text": 3},
        {"text": None},
        {"thinking": 3},
        {"token_ids": "ab"},
        {"token_ids": [1.5]},
        {"token_ids": None},
        {"logprobs": ["a"]},
        {"logprobs": {}},
        {"usage": None},
        {"usage": []},
        {"usage": {"tokens": 3}},
        {"usage": {"input_tokens": "3"}},
        {"usage": {"output_tokens": -1}},
        {"usage": {"cached_tokens": True}},
        {"finish_reason": "tired"},
        {"finish_reason": ["stop"]},
        {"details": None},
        {"details": [["a", 1]]},
        {"colour": "red"},
    )
]


def test_each_field_of_a_reply_is_damaged_here() -> None:
    changed = {name for text in DAMAGES[7:] for name in json.loads(text)}
    assert changed >= {field.name for field in dataclasses.fields(Completion)}


def test_an_undamaged_reply_is_read(cache) -> None:
    cache._database.execute(
        "INSERT INTO replies VALUES (?, ?)", ("a", json.dumps(WHOLE))
    )
    assert cache.get("a").text == "Up"


@pytest.mark.parametrize("folder", ["", "a/b/file"])
def test_a_cache_without_a_folder_is_refused(tmp_path, monkeypatch, folder) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("")
    with pytest.raises(InvalidSpec, match="give another --cache"):
        rb.run(envs=toy.CELL, agent="direct", model="paid", cache=folder, out="out")
    assert not (tmp_path / "replies.sqlite").exists()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda text: text[:60])
def test_a_damaged_reply_ends_the_run_and_not_an_episode(tmp_path, damage) -> None:
    play(tmp_path / "a", tmp_path / "cache")
    path = tmp_path / "cache" / "replies.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("UPDATE replies SET reply = ?", (damage,))
    database.close()
    with pytest.raises(RunIncomplete, match="cannot be read"):
        play(tmp_path / "b", tmp_path / "cache")
    assert list(read_episodes(tmp_path / "b")) == []


# A real model -------------------------------------------------------------------


@pytest.mark.hf
def test_a_half_filled_cache_changes_no_greedy_reply_of_a_real_model(tmp_path) -> None:
    how: dict[str, Any] = {"envs": "ragen/Sokoban-v0:1", "model": "tiny", "seeds": 6}
    cache = tmp_path / "cache"
    rb.run(out=tmp_path / "plain", **how)
    rb.run(out=tmp_path / "filling", cache=cache, **how)
    # Every other reply is forgotten, so that the model must go on behind a hit.
    with sqlite3.connect(cache / "replies.sqlite") as database:
        for i, (key,) in enumerate(
            database.execute("SELECT key FROM replies").fetchall()
        ):
            if i % 2:
                database.execute("DELETE FROM replies WHERE key = ?", (key,))
    database.close()
    rb.run(out=tmp_path / "half", cache=cache, **how)
    marks = hits(list(read_episodes(tmp_path / "half")))
    assert any(marks) and not all(marks)
    assert told(tmp_path / "plain") == told(tmp_path / "filling")
    assert told(tmp_path / "plain") == told(tmp_path / "half")
