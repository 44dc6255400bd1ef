"""A run against a server that misbehaves: each fault ends where it must, alone."""

import asyncio
import json
import logging
import threading
import time
import tracemalloc
from pathlib import Path

import misbehaving
import pytest
from misbehaving import Server, completion, error, in_turn, play, raw, says

import ragen_bench as rb
from ragen_bench.errors import ProviderRefusal
from ragen_bench.model import Conversation, Message, Sampling
from ragen_bench.records import Episode, Summary
from ragen_bench.registry import make_model
from ragen_bench.run_folder import read_episodes
from ragen_bench.scoring import score

pytestmark = pytest.mark.api

CELL = "ragen/Bandit-v0:1"
LONG_CELL = "ragen/Bandit-v0:3"
SEEDS = 6
VICTIM = 2
QUICK = {"retries": 2, "backoff": 0.01, "timeout": 10, "patience": 60}
KEY = "sk-planted-0123456789-abcdefghij"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def run(server: Server, out: Path, cell: str = CELL, **settings) -> Summary:
    """Run, and check what holds for every run."""
    asked = {**QUICK, "base_url": server.url, **settings.pop("model_args", {})}
    asked = {name: value for name, value in asked.items() if value is not None}
    settings = {"seeds": SEEDS, "agent": "think_act", **settings}
    summary = rb.run(
        envs=[cell], model="openai:fake", model_args=asked, out=out, **settings
    )
    assert sum(summary.outcomes.values()) + summary.owed == summary.planned
    assert summary == score(out)
    return summary


def episodes(out: Path) -> dict[int, Episode]:
    return {episode.seed: episode for episode in read_episodes(out)}


def plain(out: Path) -> dict[int, Episode]:
    """Return the episodes by seed, without latencies and details."""
    return {
        seed: episode.model_copy(
            update={
                "turns": tuple(
                    turn.model_copy(update={"latency_s": None, "details": {}})
                    for turn in episode.turns
                )
            }
        )
        for seed, episode in sorted(episodes(out).items())
    }


def ask(server: Server, sampling: Sampling | None = None, text: str = "Hi", **args):
    """Return one reply of a server."""

    async def once():
        model = make_model("openai:fake", base_url=server.url, **{**QUICK, **args})
        conversation = Conversation(
            key="one", seed=5, messages=[Message(role="user", content=text)]
        )
        try:
            return await model.generate(conversation, sampling or Sampling())
        finally:
            await model.aclose()

    return asyncio.run(once())


# Which fault ends where -------------------------------------------------------

GOOD = json.dumps(completion()).encode()
BAD_BODIES = {
    "no choices": says(choices=[]),
    "choices missing": raw(b'{"id": "x"}'),
    "choices of another type": says(choices={"0": 1}),
    "no message": says(choices=[{"finish_reason": "stop"}]),
    "content is a number": says(7),
    "html": raw(b"<html><body>Welcome</body></html>", kind="text/html"),
    "html as json": raw(b"<html><body>Welcome</body></html>"),
    "wrong type": raw(GOOD, kind="text/plain"),
    "an event stream": raw(b"data: {}\n\n", kind="text/event-stream"),
    "cut": raw(GOOD[: len(GOOD) // 2]),
    "nothing at all": raw(b""),
    "a list": raw(b"[1, 2]"),
    "deeper than anything": raw(b"[" * 100_000),
    "a number of too many digits": raw(b'{"id": ' + b"9" * 10_000 + b"}"),
    "not utf-8": raw(GOOD.replace(b"Up", b"\xff\xfe")),
    "compressed unasked": raw(b"\x1f\x8b\x00", headers={"Content-Encoding": "gzip"}),
    "50 MB": misbehaving.huge(50 * 2**20, declared=True),
    "50 MB, undeclared": misbehaving.huge(50 * 2**20, declared=False),
}
# Name: what the victim's request gets, and how often it is sent.
FAULTS = {
    **{f"{code}": (error(code), 3) for code in (408, 409, 425, 429)},
    **{f"{code}": (error(code), 3) for code in (500, 502, 503, 504, 529)},
    **{f"{code}": (error(code), 1) for code in (400, 403, 404, 405, 413, 422)},
    "html with 502": (raw(b"<h1>Bad Gateway</h1>", 502, "text/html"), 3),
    "a redirect": (raw(b"", 301, headers={"Location": "https://x.example/v1"}), 1),
    "reset in mid-body": (misbehaving.reset_in_body, 3),
    "hung up": (misbehaving.hang_up, 3),
    "not http": (raw(b"", kind="x\r\nbroken header\x00"), 3),
    "null content": (says(None), 2),
    "empty content": (says(""), 2),
    "blank content": (says(" \n"), 2),
    "content filter": (says("", "content_filter"), 1),
    "refusal": (says(None, message={"refusal": "I will not"}), 1),
    "tool calls": (says(None, "tool_calls"), 1),
    "no finish reason": (says("<answer>Up</answer>", None), 1),
    "error in a success": (raw(b'{"error": {"code": 503, "message": "later"}}'), 3),
    **{name: (behaviour, 2) for name, behaviour in BAD_BODIES.items()},
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Return the episodes of a run in which nothing goes wrong."""
    out = tmp_path_factory.mktemp("clean") / "run"
    with Server() as server:
        run(server, out)
    return plain(out)


def check_victim(server: Server, out: Path, clean, outcome: str, **settings) -> Episode:
    """Check that a fault hit one episode alone, that it can be played again.

    Returns:
        The victim's record.
    """
    summary = run(server, out, **settings)
    assert summary.outcomes[outcome] == 1 and summary.owed == 0
    hit = episodes(out)[VICTIM]
    assert hit.outcome == outcome and hit.error
    others = plain(out)
    del others[VICTIM]
    assert others == {seed: clean[seed] for seed in others}
    # The same command again asks nothing and changes nothing.
    before = [(out / name).read_bytes() for name in ("episodes.jsonl", "summary.json")]
    asked = len(server.requests)
    run(server, out, **settings)
    after = [(out / name).read_bytes() for name in ("episodes.jsonl", "summary.json")]
    assert after == before and len(server.requests) == asked
    return hit


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_provider_error_and_is_played_again(
    fault, clean, tmp_path
) -> None:
    behaviour, calls = FAULTS[fault]
    seed = misbehaving.first_seed(CELL, VICTIM)
    with Server(victims={seed: behaviour}) as server:
        check_victim(server, tmp_path / "run", clean, "provider_error")
        assert len(server.of_seed(seed)) == calls
        asked = len(server.requests)
        server.victims.clear()
        run(server, tmp_path / "run", retry_errors=True)
        assert plain(tmp_path / "run") == clean
        assert len(server.requests) == asked + 1


@pytest.mark.parametrize("behaviour", [misbehaving.never, misbehaving.trickle])
def test_an_answer_that_never_ends_is_cut_off(behaviour, clean, tmp_path) -> None:
    seed = misbehaving.first_seed(CELL, VICTIM)
    with Server(victims={seed: behaviour}) as server:
        args = {"timeout": 1.5, "retries": 1}
        began = time.monotonic()
        hit = check_victim(
            server, tmp_path / "run", clean, "provider_error", model_args=args
        )
        assert time.monotonic() - began < 60
        assert "1.5 s" in hit.error and "tried 2 times" in hit.error
        assert len(server.of_seed(seed)) == 2


def test_patience_ends_a_reply_before_the_retries_do(tmp_path) -> None:
    with Server(error(500)) as server:
        args = {"retries": 10**6, "backoff": 0.2, "patience": 1}
        run(server, tmp_path / "run", seeds=1, model_args=args)
        assert 2 <= len(server.requests) <= 12
    hit = episodes(tmp_path / "run")[0]
    assert hit.outcome == "provider_error" and "1 s of patience are spent" in hit.error


def test_an_episodes_own_time_limit_cuts_a_request_off(clean, tmp_path) -> None:
    seed = misbehaving.first_seed(CELL, VICTIM)
    with Server(victims={seed: misbehaving.never}) as server:
        args = {"timeout": 100}
        check_victim(
            server,
            tmp_path / "run",
            clean,
            "timeout",
            episode_timeout=3,
            model_args=args,
        )
        assert len(server.of_seed(seed)) == 1


def test_nobody_listens(tmp_path) -> None:
    with Server() as server:
        pass  # its port is closed now
    summary = run(server, tmp_path / "run")
    assert summary.outcomes["provider_error"] == SEEDS
    assert "connection failed" in episodes(tmp_path / "run")[0].error


@pytest.mark.parametrize(
    "behaviour",
    [
        error(400, code="context_length_exceeded"),
        error(400, "This model's maximum context length is 4096 tokens. However, you"),
        error(400, "the request exceeds the available context size"),
        error(400, "too big", type="exceed_context_size_error"),
        error(413, "prompt is too long: 9000 tokens"),
        error(422, "`inputs` tokens + `max_new_tokens` must be <= 4096"),
    ],
)
def test_a_prompt_that_does_not_fit_is_a_context_overflow(
    behaviour, clean, tmp_path
) -> None:
    seed = misbehaving.first_seed(CELL, VICTIM)
    with Server(victims={seed: behaviour}) as server:
        check_victim(server, tmp_path / "run", clean, "context_overflow")
        assert len(server.of_seed(seed)) == 1


def test_a_reply_that_is_cut_short_plays_nothing(clean, tmp_path) -> None:
    for name, content in {"whole": "<answer>Dragon</answer", "null": None}.items():
        seed = misbehaving.first_seed(CELL, VICTIM)
        with Server(victims={seed: says(content, "length")}) as server:
            run(server, tmp_path / name)
        (turn,) = episodes(tmp_path / name)[VICTIM].turns
        assert (turn.parse, turn.finish_reason) == ("cut_off", "length")
        assert turn.actions == ()


def test_one_failure_for_good_in_a_hundred_leaves_99_scored(tmp_path) -> None:
    seed = misbehaving.first_seed(CELL, 42)
    with Server(victims={seed: error(500)}) as server:
        summary = run(server, tmp_path / "run", seeds=100)
        assert summary.outcomes["provider_error"] == 1
        assert summary.cells[CELL].success.n == 99
        asked = len(server.requests)
        assert asked == 99 + 3
        server.victims.clear()
        summary = run(server, tmp_path / "run", seeds=100, retry_errors=True)
        assert len(server.requests) == asked + 1
    assert summary.outcomes["provider_error"] == 0
    assert summary.cells[CELL].success.n == 100


# Faults that pass -------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        *(error(code) for code in (408, 409, 425, 429, 500, 502, 503, 504)),
        misbehaving.reset_in_body,
        misbehaving.hang_up,
        says(""),
        raw(b"<html>"),
    ],
)
def test_a_fault_that_passes_leaves_no_mark_on_the_play(fault, clean, tmp_path) -> None:
    seed = misbehaving.first_seed(CELL, VICTIM)
    with Server(victims={seed: in_turn(fault, play)}) as server:
        run(server, tmp_path / "run")
        assert len(server.of_seed(seed)) == 2
    assert plain(tmp_path / "run") == clean
    details = episodes(tmp_path / "run")[VICTIM].turns[0].details
    assert details["attempts"] == 2 and len(details["failed_attempts"]) == 1


@pytest.mark.parametrize(
    ("header", "least"),
    [
        (lambda: {"Retry-After": "1"}, 1.0),
        (lambda: {"Retry-After": "1.5"}, 1.5),
        (lambda: {"retry-after-ms": "700", "Retry-After": "60"}, 0.7),
        # A date has no fractions of a second.
        (lambda: {"Retry-After": misbehaving.http_date(2)}, 1.0),
        # A clock that is an hour behind still means the same two seconds.
        (
            lambda: {
                "Retry-After": misbehaving.http_date(2 - 3600),
                "Date": misbehaving.http_date(-3600),
            },
            2.0,
        ),
    ],
)
def test_retry_after_is_waited_for(header, least, clean, tmp_path) -> None:
    async def fault(request, wire):
        await error(429, headers=header())(request, wire)

    seed = misbehaving.first_seed(CELL, VICTIM)
    with Server(victims={seed: in_turn(fault, play)}) as server:
        run(server, tmp_path / "run")
        first, second = server.of_seed(seed)
        assert second.at - first.at >= least
    assert plain(tmp_path / "run") == clean


def test_more_waiting_than_patience_is_given_up_at_once(tmp_path) -> None:
    with Server(error(429, "slow down", headers={"Retry-After": "3600"})) as server:
        run(server, tmp_path / "run", seeds=1)
        assert len(server.requests) == 1
    hit = episodes(tmp_path / "run")[0]
    assert hit.outcome == "provider_error"
    assert "slow down" in hit.error and "wait 3600 s" in hit.error


# What ends the run ------------------------------------------------------------

REFUSALS = {
    "401": (error(401, "bad key"), "refuses the key"),
    "403 for the key": (error(403, "Your API key may not do this"), "refuses the key"),
    "402": (error(402, "pay first"), "no credit"),
    "empty quota": (error(429, "no", code="insufficient_quota"), "no credit"),
    "empty balance": (error(400, "Insufficient Balance"), "no credit"),
    "max_tokens": (
        error(
            400,
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            param="max_tokens",
            code="unsupported_parameter",
        ),
        "max_tokens_field=max_completion_tokens",
    ),
    "temperature": (
        error(400, "Unsupported value: temperature does not support 0"),
        "omit=temperature",
    ),
    "top_p": (error(400, "top_p is deprecated for this model"), "omit=top_p"),
    "stop": (
        error(400, "Unsupported parameter: 'stop' is not supported"),
        "send_stop=false",
    ),
    "seed": (
        raw(b'{"detail": "Extra inputs are not permitted: \'seed\'"}', 422),
        "omit=seed",
    ),
    "system": (error(400, "System role not supported"), "system=merge"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_stops_the_run_at_once_and_loses_nothing(
    refusal, clean, tmp_path
) -> None:
    behaviour, words = REFUSALS[refusal]
    seed = misbehaving.first_seed(CELL, VICTIM)
    with Server(victims={seed: behaviour}) as server:
        with pytest.raises(ProviderRefusal, match="episodes are finished") as caught:
            run(server, tmp_path / "run", concurrency=1)
        assert words in str(caught.value)
        # Episodes are played in the order of their seeds.
        assert len(server.requests) == VICTIM + 1
        summary = score(tmp_path / "run")
        assert (summary.owed, summary.complete) == (SEEDS - VICTIM, False)
        server.victims.clear()
        run(server, tmp_path / "run", concurrency=1)
        assert len(server.requests) == SEEDS + 1
    assert plain(tmp_path / "run") == clean


def test_after_a_refusal_nothing_is_sent_but_what_was_in_flight(tmp_path) -> None:
    with Server(error(401)) as server:
        with pytest.raises(ProviderRefusal):
            run(server, tmp_path / "many", seeds=100, concurrency=5)
        assert len(server.requests) <= 5
        # Who waits for a turn when the refusal comes sends nothing any more.
        server.requests.clear()
        with pytest.raises(ProviderRefusal):
            args = {"max_in_flight": 1}
            run(server, tmp_path / "one", concurrency=5, model_args=args)
        assert len(server.requests) == 1


def test_a_parameter_that_is_ruled_out_in_prose_only_ends_one_episode(
    clean, tmp_path
) -> None:
    behaviour = error(400, "unexpected: please stop, the seed of this is invalid")
    seed = misbehaving.first_seed(CELL, VICTIM)
    with Server(victims={seed: behaviour}) as server:
        check_victim(server, tmp_path / "run", clean, "provider_error")


def test_a_dead_server_does_not_burn_the_board(tmp_path) -> None:
    with Server(error(500)) as server:
        args = {"retries": 0}
        with pytest.raises(ProviderRefusal, match="down") as caught:
            run(server, tmp_path / "run", seeds=60, concurrency=4, model_args=args)
        assert 20 <= len(server.requests) <= 24
        assert "status 500" in str(caught.value)
    summary = score(tmp_path / "run")
    assert summary.outcomes["provider_error"] >= 19
    assert summary.owed == 60 - summary.outcomes["provider_error"]


def test_failures_with_successes_between_them_do_not_stop_a_run(tmp_path) -> None:
    victims = {
        misbehaving.first_seed(CELL, seed): error(500) for seed in range(60) if seed % 9
    }
    with Server(victims=victims) as server:
        args = {"retries": 0}
        summary = run(
            server, tmp_path / "run", seeds=60, concurrency=1, model_args=args
        )
    assert summary.outcomes["provider_error"] == len(victims)
    assert summary.owed == 0


# The key ----------------------------------------------------------------------


async def echo_refusal(request, wire) -> None:
    said = f"no such key: {request.headers['authorization']}, {KEY[:20]}... is wrong"
    await error(401, said)(request, wire)


async def echo_reply(request, wire) -> None:
    key = request.headers["authorization"].removeprefix("Bearer ")
    await says(
        f"<answer>{key}</answer>", message={"reasoning": key}, id=key, model=key
    )(request, wire)


@pytest.mark.parametrize(
    "behaviour", [play, echo_refusal, echo_reply, error(500, f"{KEY} {KEY[3:17]}")]
)
def test_the_key_is_found_in_nothing_that_is_written(
    behaviour, tmp_path, monkeypatch, caplog, capfd
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    caplog.set_level(logging.DEBUG)
    told = ""
    with Server(behaviour) as server:
        try:
            run(server, tmp_path / "run")
        except ProviderRefusal as refusal:
            told = str(refusal)
            assert "OPENAI_API_KEY" in told
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    texts = [p.read_text() for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert len(texts) >= 4
    for text in (*texts, told, caplog.text):
        for start in range(len(KEY) - 7):
            assert KEY[start : start + 8] not in text
    assert capfd.readouterr() == ("", "")


# One reply --------------------------------------------------------------------

THOUGHT = "it is up"
ANSWER = "<answer>Up</answer>"
REASONING = {
    "reasoning_content": says(ANSWER, message={"reasoning_content": THOUGHT}),
    "reasoning": says(ANSWER, message={"reasoning": THOUGHT}),
    "both fields": says(
        ANSWER, message={"reasoning": THOUGHT, "reasoning_content": THOUGHT}
    ),
    "an object": says(ANSWER, message={"reasoning": {"text": THOUGHT}}),
    "a summary": says(
        ANSWER,
        message={"reasoning": {"summary": [{"type": "summary_text", "text": THOUGHT}]}},
    ),
    "details": says(
        ANSWER,
        message={"reasoning_details": [{"type": "reasoning.text", "text": THOUGHT}]},
    ),
    "thinking block": says(
        [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]
    ),
    "nested thinking block": says(
        [
            {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": ANSWER},
        ]
    ),
    "reasoning block": says(
        [
            {"type": "reasoning", "text": THOUGHT},
            {"type": "output_text", "text": "<answer>"},
            {"type": "output_text", "text": "Up</answer>"},
        ]
    ),
}


@pytest.mark.parametrize("form", REASONING)
def test_reasoning_is_kept_apart_in_each_form(form) -> None:
    with Server(REASONING[form]) as server:
        reply = ask(server)
    assert (reply.text, reply.thinking) == (ANSWER, THOUGHT)


def test_inline_reasoning_stays_in_the_text() -> None:
    with Server(says(f"<think>{THOUGHT}</think>{ANSWER}")) as server:
        reply = ask(server)
    assert reply.text == f"<think>{THOUGHT}</think>{ANSWER}"
    assert reply.thinking is None


def test_thought_without_an_answer_is_a_reply_of_the_model() -> None:
    with Server(says(None, message={"reasoning": THOUGHT})) as server:
        reply = ask(server)
        assert (reply.text, reply.thinking) == ("", THOUGHT)
        assert len(server.requests) == 1


def test_facts_of_a_reply_are_kept() -> None:
    with Server(says()) as server:
        reply = ask(server)
    usage = reply.usage
    assert (usage.input_tokens, usage.cached_tokens) == (50, 3)
    assert (usage.output_tokens, usage.reasoning_tokens) == (7, 2)
    assert reply.details["response_id"] == "reply-1"
    assert reply.details["system_fingerprint"] == "fp_1"
    assert reply.details["served_model"] == "fake"
    assert reply.details["attempts"] == 1
    assert reply.details["request_s"] > 0
    assert "notes" not in reply.details


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        "many",
        {},
        {"prompt_tokens": -1, "completion_tokens": True},
        {"prompt_tokens": 1.5, "completion_tokens": "7"},
        {"prompt_tokens": 10**30, "prompt_tokens_details": None},
        {"completion_tokens_details": [], "prompt_tokens_details": {}},
    ],
)
def test_tokens_that_are_not_told_are_unknown(usage) -> None:
    with Server(says(usage=usage)) as server:
        found = ask(server).usage
    assert found.input_tokens is found.cached_tokens is None
    assert found.output_tokens is found.reasoning_tokens is None


def test_the_last_of_duplicate_fields_counts_and_order_means_nothing() -> None:
    body = b"""{"usage": {"completion_tokens": 1, "completion_tokens": 2},
        "choices": [{"finish_reason": "length", "finish_reason": "stop", "message":
        {"content": "<answer>Down</answer>", "content": "<answer>Up</answer>",
        "role": "assistant"}, "index": 0}], "object": "chat.completion"}"""
    with Server(raw(body, kind="application/json; charset=utf-8")) as server:
        reply = ask(server)
    assert (reply.text, reply.usage.output_tokens) == (ANSWER, 2)


def test_a_body_without_a_type_is_taken_as_json() -> None:
    with Server(raw(GOOD, kind=None)) as server:
        assert ask(server).text == ANSWER


def test_half_a_character_does_not_end_an_episode(tmp_path) -> None:
    body = json.dumps(completion("\ud83d <answer>C</answer>")).encode()
    with Server(raw(body)) as server:
        summary = run(server, tmp_path / "run", LONG_CELL, seeds=1)
        assert summary.outcomes["finished"] == 1
        last = server.requests[-1].body["messages"]
    assert "\ufffd <answer>" in misbehaving.contents(last)[2]


@pytest.mark.parametrize(
    ("content", "choice", "args", "text", "noted"),
    [
        # vLLM and SGLang tell what they cut off, and also that they cut nothing.
        ("<answer>Up", {"stop_reason": "</answer>"}, {}, ANSWER, True),
        ("<answer>Up", {"matched_stop": "</answer>"}, {}, ANSWER, True),
        ("<answer>Up", {"stop_reason": None}, {}, "<answer>Up", False),
        ("<answer>Up", {"matched_stop": 2}, {}, "<answer>Up", False),
        ("so: Up", {"stop_reason": "</answer>"}, {}, "so: Up</answer>", True),
        # Others tell nothing.
        ("<answer>Up", {}, {}, ANSWER, True),
        ("so: Up", {}, {}, "so: Up", False),
        ("<answer>Up", {}, {"send_stop": "false"}, "<answer>Up", False),
        # Some keep it, or go on behind it.
        (ANSWER, {}, {}, ANSWER, False),
        (f"{ANSWER}\n", {}, {}, ANSWER, False),
        (f"{ANSWER} and more {ANSWER}", {}, {}, ANSWER, True),
        (f"{ANSWER} and more", {}, {"send_stop": False}, ANSWER, True),
    ],
)
def test_the_text_ends_with_the_string_that_ended_it(
    content, choice, args, text, noted
) -> None:
    with Server(says(content, choice=choice)) as server:
        reply = ask(server, **args)
        assert ("stop" in server.requests[0].body) == (not args)
    assert reply.text == text and reply.finish_reason == "stop"
    assert bool(reply.details.get("notes")) == noted


def test_a_reply_that_went_past_its_stop_until_the_limit_is_whole() -> None:
    with Server(says(f"{ANSWER} and more and", "length")) as server:
        reply = ask(server)
    assert (reply.text, reply.finish_reason) == (ANSWER, "stop")


# What is sent -----------------------------------------------------------------


def sent(**args):
    """Return the body of the request that a model with these arguments sends."""
    with Server(says()) as server:
        ask(server, Sampling(temperature=0.5, top_p=0.9, max_tokens=12), **args)
        return server.requests[0].body


def test_all_settings_are_sent() -> None:
    body = sent()
    assert body == {
        "model": "fake",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 12,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["</answer>"],
        "seed": Conversation(key="one", seed=5).turn_seed(),
    }


def test_what_a_server_refuses_can_be_left_out() -> None:
    body = sent(
        omit="temperature, seed",
        send_stop="false",
        max_tokens_field="max_completion_tokens",
        extra_body='{"top_k": 20}',
    )
    assert set(body) == {
        "model",
        "messages",
        "max_completion_tokens",
        "top_p",
        "top_k",
    }
    assert set(sent(omit=["top_p", "seed", "stop"])) == {
        "model",
        "messages",
        "max_tokens",
        "temperature",
    }


def test_rules_are_sent_in_the_role_that_is_asked_for(tmp_path) -> None:
    said = {}
    for role in ("system", "developer", "merge"):
        with Server() as server:
            run(server, tmp_path / role, seeds=1, model_args={"system": role})
            said[role] = server.requests[0].body["messages"]
    assert [m["role"] for m in said["system"]] == ["system", "user"]
    assert [m["role"] for m in said["developer"]] == ["developer", "user"]
    texts = misbehaving.contents(said["system"])
    assert said["merge"] == [{"role": "user", "content": "\n\n".join(texts)}]
    assert misbehaving.contents(said["developer"]) == texts


@pytest.mark.parametrize("field", [False, "reasoning_content", "reasoning", "inline"])
def test_a_setting_says_whether_reasoning_goes_back(field, tmp_path) -> None:
    async def thinks(request, wire):
        text = f"<answer>{misbehaving.chosen_action(request.body)}</answer>"
        await says(text, message={"reasoning": THOUGHT})(request, wire)

    with Server(thinks) as server:
        args = {"send_reasoning": field}
        run(server, tmp_path / "run", LONG_CELL, seeds=1, model_args=args)
        last = server.requests[-1].body["messages"]
    assert len(server.requests) == 10
    replies = [message for message in last if message["role"] == "assistant"]
    assert len(replies) == 9
    for reply in replies:
        thoughts = {k: v for k, v in reply.items() if k not in ("role", "content")}
        named = field in ("reasoning_content", "reasoning")
        assert thoughts == ({field: THOUGHT} if named else {})
        inline = reply["content"].startswith(f"<think>{THOUGHT}</think><answer>")
        assert inline == (field == "inline")


# Many at once -----------------------------------------------------------------


def test_results_do_not_depend_on_concurrency_order_or_resumption(tmp_path) -> None:
    def play_all(name: str, concurrency: int, temperature: float) -> None:
        run(
            server,
            tmp_path / name,
            LONG_CELL,
            seeds=16,
            concurrency=concurrency,
            temperature=temperature,
        )

    with Server() as server:
        for temperature in (0.0, 0.7):
            play_all(f"straight {temperature}", 1, temperature)
            expected = plain(tmp_path / f"straight {temperature}")
            server.good = misbehaving.slow_by_content(0.02)
            for concurrency in (7, 64):
                name = f"{concurrency} {temperature}"
                play_all(name, concurrency, temperature)
                assert plain(tmp_path / name) == expected
            name = f"resumed {temperature}"
            server.victims = {misbehaving.first_seed(LONG_CELL, 9): error(401)}
            with pytest.raises(ProviderRefusal):
                play_all(name, 4, temperature)
            assert 0 < len(episodes(tmp_path / name)) < 16
            server.victims.clear()
            play_all(name, 7, temperature)
            assert plain(tmp_path / name) == expected
            server.good = play


def test_as_many_are_in_flight_as_are_allowed(tmp_path) -> None:
    for most, name in ((64, "many"), (3, "few")):
        with Server(misbehaving.slow_by_content(0.2)) as server:
            args = {"max_in_flight": most}
            run(
                server,
                tmp_path / name,
                LONG_CELL,
                seeds=24,
                concurrency=24,
                model_args=args,
            )
            assert (
                server.most_in_flight == most
                if most < 24
                else server.most_in_flight > 8
            )


def test_a_model_serves_two_event_loops_at_once() -> None:
    replies: dict[int, list[str]] = {0: [], 1: []}

    async def talk(model, index: int) -> None:
        async def one(turn: int) -> str:
            conversation = Conversation(
                key="one", seed=index, messages=[Message(role="user", content="Hi")]
            )
            conversation.turn = turn
            return (await model.generate(conversation, Sampling())).text

        try:
            replies[index] = await asyncio.gather(*(one(turn) for turn in range(20)))
        finally:
            await model.aclose()

    with Server(says()) as server:
        model = make_model("openai:fake", base_url=server.url, **QUICK)
        threads = [
            threading.Thread(target=lambda i=i: asyncio.run(talk(model, i)))
            for i in replies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({request.seed for request in server.requests}) == 40
    assert replies == {0: [ANSWER] * 20, 1: [ANSWER] * 20}


def test_a_run_works_under_a_running_loop(clean, tmp_path, capfd) -> None:
    async def notebook() -> None:
        run(server, tmp_path / "run")

    with Server() as server:
        asyncio.run(notebook())
    assert plain(tmp_path / "run") == clean
    assert capfd.readouterr() == ("", "")


def test_runs_in_two_threads_do_not_disturb_each_other(clean, tmp_path) -> None:
    with Server() as server:
        threads = [
            threading.Thread(target=run, args=(server, tmp_path / name))
            for name in ("one", "two")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert plain(tmp_path / "one") == plain(tmp_path / "two") == clean


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_without_end_is_not_held(declared, tmp_path) -> None:
    with Server(misbehaving.huge(500 * 2**20, declared=declared)) as server:
        tracemalloc.start()
        try:
            run(server, tmp_path / "run", seeds=1)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # What the sockets hold comes on top of what was read, which is nothing where
        # the length is told.
        most = 2**20 * (15 if declared else 40)
        assert max(wire.sent for wire in server.wires) < most
    assert peak < 64 * 2**20
    assert "longer than" in episodes(tmp_path / "run")[0].error


# Raw requests -----------------------------------------------------------------


def test_a_probe_tells_what_came_back() -> None:
    async def probes(url: str, timeout: float):
        model = make_model("openai:fake", base_url=url, timeout=timeout)
        try:
            return await model.probe({"messages": []}), await model.look_up()
        finally:
            await model.aclose()

    with Server(says(), victims={None: says()}) as server:
        probe, listed = asyncio.run(probes(server.url, 10))
        paths = [request.path for request in server.requests]
        assert paths == ["/v1/chat/completions", "/v1/models"]
        assert server.requests[0].body == {"messages": [], "model": "fake"}
    assert probe.status == listed.status == 200 and probe.error is None
    assert probe.body["choices"] and probe.seconds > 0
    with Server(error(400, "not so", code="x")) as server:
        probe, _ = asyncio.run(probes(server.url, 10))
    assert (probe.status, probe.error) == (400, "not so")
    assert probe.body["error"]["code"] == "x"
    with Server(misbehaving.never) as server:
        probe, _ = asyncio.run(probes(server.url, 0.3))
    assert probe.status is None and "0.3 s" in probe.error


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 50, "completion_tokens": 1}, (100, 8, None)),
        ({"prompt_tokens": 50}, (100, None, None)),
        (None, (None, None, None)),
    ],
)
def test_an_empty_answer_that_is_asked_again_is_paid_for(
    usage, expected, tmp_path
) -> None:
    seed = misbehaving.first_seed(CELL, VICTIM)
    empty = says("", usage=usage)
    with Server(victims={seed: in_turn(empty, says())}) as server:
        run(server, tmp_path / "run")
    (turn,) = episodes(tmp_path / "run")[VICTIM].turns
    found = turn.usage
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == expected
