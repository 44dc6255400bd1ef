"""Any model of lm-eval plays here, and lm-eval's own command plays our tasks."""

import asyncio
import dataclasses
import importlib.metadata
import importlib.resources
import json
import os
import shutil
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lm_eval_stand_ins as stand_ins
import pytest
import toy
from lm_eval_stand_ins import Bare, completion, serving

import ragen_bench as rb
from ragen_bench import board
from ragen_bench.errors import (
    ContextOverflow,
    InvalidSpec,
    MissingExtra,
    ProviderError,
    ProviderRefusal,
    RagenError,
    UnknownName,
)
from ragen_bench.lm_eval_tasks import FOLDER
from ragen_bench.model import Message, Usage
from ragen_bench.registry import env_ids, serving_arguments
from ragen_bench.run_folder import read_episodes

needs_lm_eval = pytest.mark.lm_eval
TINY = Path(str(importlib.resources.files("ragen_bench.models") / "tiny"))
OF_TINY: dict[str, Any] = {
    "agent": "think_act",
    "prompt": "compact",
    "context": "single",
    "max_tokens": 128,
}
"""The settings that tiny was made for; lm-eval knows nothing of them."""


@pytest.fixture(autouse=True)
def no_keys(monkeypatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def talk(*contents: str, seed: int = 0, turn: int = 0) -> rb.Conversation:
    """Return a conversation: a system message, then what each side said."""
    roles = ["system", "user", *["assistant", "user"] * len(contents)]
    messages = [
        Message(role=role, content=content)  # type: ignore[arg-type]
        for role, content in zip(roles, contents, strict=False)
    ]
    return rb.Conversation(key=f"talk/{seed}", seed=seed, messages=messages, turn=turn)


def ask(model: rb.Model, *talks: rb.Conversation, **sampling: Any) -> list[Any]:
    """Return the completion of each conversation, or the error in its place."""

    async def all_of_them() -> list[Any]:
        asked = [model.generate(one, rb.Sampling(**sampling)) for one in talks]
        found = await asyncio.gather(*asked, return_exceptions=True)
        await model.aclose()
        return found

    return asyncio.run(all_of_them())


def wrap(lm: Any) -> rb.Model:
    return rb.make_model("lm-eval:bare", lm=lm)


def served(url: str, **arguments: Any) -> rb.Model:
    settings = {"model": "m", "base_url": url, "max_retries": 1, **arguments}
    return rb.make_model("lm-eval:local-chat-completions", **settings)


def tiny(**arguments: Any) -> rb.Model:
    settings = {"pretrained": str(TINY), "dtype": "float32", "device": "cpu"}
    return rb.make_model("lm-eval:hf", **{**settings, **arguments})


def retold(folder: Path, template: str | None) -> str:
    """Return a copy of tiny with another chat template."""
    shutil.copytree(TINY, folder)
    (folder / "chat_template.jinja").unlink()
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return str(folder)


# Models of lm-eval play here -----------------------------------------------------


@needs_lm_eval
def test_tiny_through_lm_eval_says_what_tiny_says(tmp_path) -> None:
    cells = ["ragen/FrozenLake-v0:1", "ragen/Bandit-v0:2"]
    ours = rb.run(envs=cells, seeds=4, model="tiny", out=tmp_path / "ours")
    theirs = rb.run(
        envs=cells,
        seeds=4,
        model="lm-eval:hf",
        model_args={"pretrained": str(TINY), "dtype": "float32", "device": "cpu"},
        out=tmp_path / "theirs",
        **OF_TINY,
    )
    assert ours.score == theirs.score
    told: dict[str, list[Any]] = {}
    for name in ("ours", "theirs"):
        episodes = sorted(read_episodes(tmp_path / name), key=lambda e: e.key)
        told[name] = [
            (turn.response, turn.finish_reason, turn.usage.output_tokens)
            for episode in episodes
            for turn in episode.turns
        ]
    assert told["ours"] == told["theirs"]


@needs_lm_eval
def test_generation_arguments_are_always_said() -> None:
    lm = Bare(lambda prompt: "x")
    ask(wrap(lm), talk("s", "u"), max_tokens=9)
    assert lm.arguments == [
        {
            "until": ["</answer>"],
            "max_gen_toks": 9,
            "do_sample": False,
            "temperature": 0.0,
        }
    ]


@needs_lm_eval
def test_what_waits_is_one_batch_and_each_gets_its_own_reply() -> None:
    lm = Bare(lambda prompt: prompt[-1])
    replies = ask(wrap(lm), *[talk("s", f"u{i}") for i in range(5)])
    assert [reply.text for reply in replies] == list("01234")
    assert max(map(len, lm.batches)) > 1


@needs_lm_eval
def test_one_bad_request_fails_alone() -> None:
    def answer(prompt: str) -> str:
        if prompt.endswith("u3"):
            raise RuntimeError("out of luck")
        return "fine"

    replies = ask(wrap(Bare(answer)), *[talk("s", f"u{i}") for i in range(5)])
    assert [getattr(reply, "text", None) for reply in replies] == [
        "fine", "fine", "fine", None, "fine"
    ]  # fmt: skip
    assert isinstance(replies[3], ProviderError)
    assert "RuntimeError: out of luck" in str(replies[3])


@needs_lm_eval
def test_a_class_that_loses_replies_is_not_believed() -> None:
    lm = Bare(lambda prompt: "x")
    lm.generate_until = lambda requests, disable_tqdm: []  # type: ignore[method-assign]
    (reply,) = ask(wrap(lm), talk("s", "u"))
    assert isinstance(reply, ProviderError)
    assert "gave 0 replies to 1 requests" in str(reply)


@needs_lm_eval
@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("<think>t</think><answer>Up", "<think>t</think><answer>Up</answer>"),
        ("<answer>Up</answer><answer>Down", "<answer>Up</answer><answer>Down</answer>"),
        ("<Answer >Up", "<Answer >Up</answer>"),
        ("no answer at all", "no answer at all"),
        ("<answer>Up</answer> and so on", "<answer>Up</answer> and so on"),
        (None, ""),
    ],
)
def test_the_stop_string_is_part_of_the_reply(said, text) -> None:
    (reply,) = ask(wrap(Bare(lambda prompt: said)), talk("s", "u"))
    assert (reply.text, reply.finish_reason) == (text, "stop")


@needs_lm_eval
def test_another_stop_string_is_not_made_up() -> None:
    (reply,) = ask(wrap(Bare(lambda p: "<answer>Up")), talk("s", "u"), stop=("\n",))
    assert reply.text == "<answer>Up"


@needs_lm_eval
def test_a_prompt_that_is_too_long_is_no_prompt() -> None:
    (reply,) = ask(tiny(max_length=40), talk("s " * 30, "u " * 30), max_tokens=8)
    assert isinstance(reply, ContextOverflow)
    assert "at most 40 fit" in str(reply)


@needs_lm_eval
def test_a_reply_gets_the_room_that_is_left() -> None:
    model = tiny(max_length=60)
    (reply,) = ask(model, talk("s", "u " * 10), max_tokens=500, stop=("never",))
    room = 60 - reply.usage.input_tokens
    assert reply.usage.output_tokens <= room
    assert reply.finish_reason == "length" or reply.usage.output_tokens < room
    assert model.count_tokens(talk("s", "u " * 10).messages) == (
        reply.usage.input_tokens
    )


@needs_lm_eval
def test_a_reply_that_is_cut_off_says_so_and_its_answer_stays_open() -> None:
    whole, *_ = ask(tiny(), talk("Actions: Left, Right.", "Go."), max_tokens=64)
    assert whole.finish_reason == "stop" and whole.text.endswith("</answer>")
    short = whole.usage.output_tokens - 3
    cut, *_ = ask(tiny(), talk("Actions: Left, Right.", "Go."), max_tokens=short)
    assert cut.finish_reason == "length"
    assert not cut.text.endswith("</answer>")
    assert cut.usage.output_tokens == short


@needs_lm_eval
def test_reasoning_that_lm_eval_would_take_off_stays() -> None:
    said = talk("Actions: Left, Right.", "Go.")
    (plain,) = ask(tiny(), said)
    (told,) = ask(tiny(think_end_token="</think>"), said)
    assert told == plain
    assert "</think>" in told.text


@needs_lm_eval
def test_a_refused_system_message_is_merged(tmp_path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('no system') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n"
    )
    model = tiny(pretrained=retold(tmp_path / "refusing", template))
    question = model.caller.prepare(  # type: ignore[attr-defined]
        talk("the rules", "the board").messages, rb.Sampling(), 0
    )
    assert "<|im_start|>user\nthe rules\n\nthe board<|im_end|>" in question.context
    notes = model.describe()["notes"]
    assert "system message merged into the first user message" in notes


@needs_lm_eval
def test_a_dropped_system_message_is_merged() -> None:
    lm = Bare(lambda prompt: prompt)
    lm.apply_chat_template = lambda chat, add_generation_prompt: "|".join(  # type: ignore[method-assign]
        m["content"] for m in chat if m["role"] != "system"
    )
    (reply,) = ask(wrap(lm), talk("the rules", "one", "reply", "two"))
    assert reply.text == "the rules\n\none|reply|two"


@needs_lm_eval
def test_a_model_without_a_template_gets_plain_lines(tmp_path) -> None:
    model = tiny(pretrained=retold(tmp_path / "base", None))
    question = model.caller.prepare(  # type: ignore[attr-defined]
        talk("the rules", "the board").messages, rb.Sampling(), 0
    )
    assert question.context == "System:\nthe rules\n\nUser:\nthe board\n\nAssistant:\n"
    assert any("no chat template" in note for note in model.describe()["notes"])


@needs_lm_eval
def test_a_sampled_reply_depends_on_its_seed_alone() -> None:
    import torch

    model = tiny()
    talks = [talk("Actions: Left, Right.", "Go.", seed=seed) for seed in (1, 2, 3)]
    draws: dict[str, Any] = {"temperature": 2.0, "max_tokens": 24}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    together = [reply.text for reply in ask(model, *talks, **draws)]
    assert torch.equal(before, torch.get_rng_state())
    alone = [ask(model, one, **draws)[0].text for one in reversed(talks)]
    assert together == alone[::-1]
    assert len(set(together)) == 3
    talks[0].turn = 1
    assert ask(model, talks[0], **draws)[0].text != together[0]


@needs_lm_eval
def test_settings_of_the_folder_do_not_change_a_greedy_reply(tmp_path) -> None:
    shutil.copytree(TINY, tmp_path / "odd")
    path = tmp_path / "odd" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {
        "repetition_penalty": 1.9, "no_repeat_ngram_size": 2
    }))  # fmt: skip
    said = talk("Actions: Left, Right.", "Go.")
    assert ask(tiny(pretrained=str(tmp_path / "odd")), said) == ask(tiny(), said)


@needs_lm_eval
def test_it_works_in_a_running_loop_and_from_two_threads(tmp_path) -> None:
    lm = Bare(lambda prompt: "<answer>Right")

    def play(name: str) -> float | None:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, wrap(lm), talk("s", name))
            return len(asked.result()[0].text)

    async def within_a_loop() -> list[Any]:
        return ask_in_threads()

    def ask_in_threads() -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(play, ("a", "b")))

    assert ask_in_threads() == asyncio.run(within_a_loop()) == [22, 22]


@needs_lm_eval
def test_a_run_inside_a_running_loop_reaches_a_server(tmp_path) -> None:
    async def main(url: str) -> Any:
        return rb.run(
            envs="ragen/Bandit-v0:1",
            seeds=3,
            agent="direct",
            model="lm-eval:local-chat-completions",
            model_args={"model": "m", "base_url": url, "num_concurrent": 2},
            out=tmp_path / "run",
        )

    with serving(stand_ins.play) as (url, bodies):
        assert asyncio.run(main(url)).complete
    assert len(bodies) == 3


@needs_lm_eval
def test_nothing_is_printed(capfd) -> None:
    with serving(stand_ins.play) as (url, _):
        ask(served(url), talk("s", "u"))
        ask(served(url, num_concurrent=2), talk("s", "u"), talk("s", "v"))
    ask(tiny(), talk("s", "u"))
    assert capfd.readouterr() == ("", "")


@needs_lm_eval
def test_lm_eval_itself_still_prints(capfd) -> None:
    from lm_eval.models import api_models

    with serving(stand_ins.play) as (url, _):
        served(url)
    api_models.tqdm(desc="Requesting API", total=1).close()  # type: ignore[attr-defined]
    assert "Requesting API" in capfd.readouterr().err


@needs_lm_eval
@pytest.mark.parametrize("concurrent", [1, 3])
def test_what_a_server_says_of_a_reply_is_kept(concurrent) -> None:
    told = completion("<answer>Up", reasoning_content="hm")
    with serving(lambda body: (200, told)) as (url, _):
        (reply,) = ask(served(url, num_concurrent=concurrent), talk("s", "u"))
    assert reply == rb.Completion(
        text="<answer>Up</answer>",
        thinking="hm",
        usage=Usage(
            input_tokens=11, cached_tokens=4, output_tokens=7, reasoning_tokens=2
        ),
        details={"id": "r-1", "system_fingerprint": "fp"},
    )


@needs_lm_eval
def test_a_server_that_says_little_leaves_usage_unknown() -> None:
    told = {"choices": [{"index": 0, "message": {"content": "<answer>Up"}}]}
    with serving(lambda body: (200, told)) as (url, _):
        (reply,) = ask(served(url), talk("s", "u"))
    assert reply.text == "<answer>Up</answer>"
    assert reply.usage == Usage()


@needs_lm_eval
def test_a_servers_reply_that_was_cut_off_stays_open() -> None:
    told = completion("<answer>Up", finish="length")
    with serving(lambda body: (200, told)) as (url, _):
        (reply,) = ask(served(url), talk("s", "u"))
    assert (reply.text, reply.finish_reason) == ("<answer>Up", "length")


FAULTS: dict[str, tuple[int, Any, type[Exception], str]] = {
    "null": (200, completion(None), ProviderError, "empty reply twice"),
    "empty": (200, completion(""), ProviderError, "empty reply twice"),
    "filter": (200, completion("x", "content_filter"), ProviderError, "content filter"),
    "no choices": (200, {"choices": []}, ProviderError, "no choice"),
    "not an object": (200, [1], ProviderError, "empty reply twice"),
    "401": (401, {"error": "bad key"}, ProviderRefusal, "answers no request"),
    "402": (402, {"error": "no credit"}, ProviderRefusal, "answers no request"),
    "no quota": (
        429,
        {"error": {"code": "insufficient_quota"}},
        ProviderRefusal,
        "answers no request",
    ),
    "429": (429, {"error": "slow down"}, ProviderError, "429"),
    "403": (403, {"error": "moderation"}, ProviderError, "403"),
    "400": (400, {"error": "bad"}, ProviderError, "400"),
    "500": (500, {"error": "boom"}, ProviderError, "500"),
    "too long": (
        400,
        {"error": {"message": "maximum context length is 16 tokens"}},
        ContextOverflow,
        "length",
    ),
}


@needs_lm_eval
@pytest.mark.parametrize("concurrent", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_server_ends_one_request_alone(fault, concurrent) -> None:
    status, told, kind, words = FAULTS[fault]

    def answer(body: Any) -> tuple[int, Any]:
        if body["messages"][-1]["content"] == "bad":
            return status, told
        return 200, completion("<answer>Up")

    with serving(answer) as (url, _):
        model = served(url, num_concurrent=concurrent)
        replies = ask(model, talk("s", "a"), talk("s", "bad"), talk("s", "b"))
    assert [getattr(reply, "text", None) for reply in replies] == [
        "<answer>Up</answer>", None, "<answer>Up</answer>"
    ]  # fmt: skip
    assert type(replies[1]) is kind
    assert words in str(replies[1])


@needs_lm_eval
def test_an_empty_reply_is_asked_for_once_more() -> None:
    said = iter([None, "<answer>Up"])
    with serving(lambda body: (200, completion(next(said)))) as (url, bodies):
        (reply,) = ask(served(url), talk("s", "u"))
    assert reply.text == "<answer>Up</answer>"
    assert len(bodies) == 2


@needs_lm_eval
def test_sampled_requests_to_a_server_have_seeds_of_their_own() -> None:
    talks = [talk("s", "u", seed=seed) for seed in (1, 2, 3)]
    with serving(lambda body: (200, completion("x"))) as (url, bodies):
        ask(served(url, num_concurrent=3), *talks, temperature=0.7, top_p=0.9)
        ask(served(url), talk("s", "u"))
    sampled, greedy = bodies[:3], bodies[3]
    assert {body["seed"] for body in sampled} == {one.turn_seed() for one in talks}
    assert all((b["temperature"], b["top_p"]) == (0.7, 0.9) for b in sampled)
    assert greedy["temperature"] == 0 and "top_p" not in greedy


@needs_lm_eval
def test_requests_to_a_server_do_not_wait_for_each_other() -> None:
    both = threading.Barrier(2, timeout=20)

    def answer(body: Any) -> tuple[int, Any]:
        both.wait()
        return 200, completion("x")

    with serving(answer) as (url, _):
        replies = ask(served(url, num_concurrent=2), talk("s", "a"), talk("s", "b"))
    assert [reply.text for reply in replies] == ["x", "x"]


@needs_lm_eval
def test_blocks_of_anthropics_form_are_one_reply(monkeypatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    told = {
        "id": "msg",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "Well. "},
            {"type": "text", "text": "<answer>Up"},
        ],
        "stop_reason": "stop_sequence",
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 400,
            "output_tokens": 2,
        },
    }
    with serving(lambda body: (200, told)) as (url, bodies):
        model = rb.make_model(
            "lm-eval:anthropic-chat", model="m", base_url=url, max_retries=1
        )
        (reply,) = ask(model, talk("s", "u"), temperature=0.5)
    assert reply.text == "Well. <answer>Up</answer>"
    assert reply.thinking == "hm"
    assert reply.usage == Usage(input_tokens=423, cached_tokens=400, output_tokens=2)
    assert "seed" not in bodies[0]


@needs_lm_eval
@pytest.mark.parametrize("name", ["gpt-3.5-turbo", "gpt-4o-2025-01-05", "o3-mini"])
def test_names_that_lm_eval_takes_for_others_are_refused(name, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    with pytest.raises(InvalidSpec, match="temperature 1 and without stop.*openai:"):
        rb.make_model("lm-eval:openai-chat-completions", model=name)
    model = rb.make_model("lm-eval:openai-chat-completions", model=name, insist=True)
    assert any("temperature 1" in note for note in model.describe()["notes"])
    rb.make_model("lm-eval:openai-chat-completions", model="gpt-4o")


@needs_lm_eval
@pytest.mark.parametrize(
    ("spec", "arguments", "kind", "message"),
    [
        ("lm-eval", {}, InvalidSpec, "needs a class of lm-eval: lm-eval:hf"),
        ("lm-eval:hff", {}, UnknownName, "did you mean 'hf'"),
        ("lm-eval:hf", {"pretrained": "/nowhere"}, InvalidSpec, "cannot make model"),
        ("lm-eval:hf", {"token": "s"}, InvalidSpec, "would stand in run.json"),
        ("lm-eval:vllm", {"pretrained": "x"}, InvalidSpec, "lm-eval.*'vllm'"),
        ("lm-eval:openai-chat-completions", {"model": "m"}, InvalidSpec, "API key"),
    ],
)
def test_what_cannot_be_loaded_is_refused(spec, arguments, kind, message) -> None:
    with pytest.raises(kind, match=message):
        rb.make_model(spec, **arguments)


def test_without_lm_eval_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.models", None)
    with pytest.raises(MissingExtra, match=r"ragen-bench\[lm-eval\]"):
        rb.make_model("lm-eval:hf", pretrained="x")


@needs_lm_eval
def test_the_facts_name_class_version_and_weights() -> None:
    facts = tiny().describe()
    assert facts["class"] == "lm_eval.models.huggingface:HFLM"
    assert facts["lm_eval"] == importlib.metadata.version("lm_eval")
    assert "model.safetensors" in facts["files"]
    assert len(facts["chat_template_sha256"]) == 64
    json.dumps(facts)


# Our tasks in lm-eval -------------------------------------------------------------


def test_every_board_and_environment_is_a_task() -> None:
    told = [path.read_text() for path in FOLDER.glob("*.yaml")]
    wanted = [f"  board: {name}\n" for name in board.names()]
    wanted += [f"  env: {name}\n" for name in env_ids() if name.startswith("ragen/")]
    for line in wanted:
        assert sum(line in text for text in told) == 1, line
    assert len(told) == len(wanted)


def test_the_path_is_told() -> None:
    command = [sys.executable, "-m", "ragen_bench", "lm-eval-path"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == FOLDER


def lm_eval_command(*words: str) -> None:
    """Run lm-eval's own command."""
    program = Path(sys.executable).with_name("lm_eval")
    done = subprocess.run(
        [str(program), "--include_path", str(FOLDER), *words],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def results_in(folder: Path) -> dict[str, float]:
    """Return what lm-eval wrote of the only task."""
    (path,) = folder.rglob("results_*.json")
    (found,) = json.loads(path.read_text())["results"].values()
    return {name.removesuffix(",none"): value for name, value in found.items()}


def assert_equal(theirs: dict[str, float], ours: Any) -> None:
    assert theirs["score"] == ours.score.mean
    assert (theirs["score_low"], theirs["score_high"]) == (
        ours.score.low,
        ours.score.high,
    )
    for name, cell in ours.cells.items():
        assert theirs[f"normalized {name}"] == cell.normalized.mean
        assert theirs[f"success {name}"] == cell.success.mean
    total = sum(cell.turns * cell.episodes for cell in ours.cells.values())
    assert theirs["turns"] == pytest.approx(total / ours.planned)


@needs_lm_eval
def test_the_stock_command_scores_smoke_as_our_own_run_does(tmp_path) -> None:
    ours = rb.run("smoke", model="tiny", out=tmp_path / "ours")
    metadata = {**OF_TINY, "out": str(tmp_path / "theirs")}
    lm_eval_command(
        *("--tasks", "ragen_smoke", "--apply_chat_template", "--model", "hf"),
        *("--model_args", f"pretrained={TINY},dtype=float32"),
        *("--device", "cpu", "--batch_size", "16"),
        *("--metadata", json.dumps(metadata)),
        *("--output_path", str(tmp_path / "lm_eval"), "--log_samples"),
    )
    assert_equal(results_in(tmp_path / "lm_eval"), ours)
    # The run folder is as good as one of our own.
    again = rb.score(tmp_path / "theirs")
    assert (again.cells, again.complete) == (ours.cells, True)
    (samples,) = (tmp_path / "lm_eval").rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == 48
    assert sum(row["success"] or 0 for row in rows) == ours.outcomes["solved"]


@needs_lm_eval
def test_the_stock_command_scores_a_served_model_as_our_own_run_does(tmp_path) -> None:
    settings: dict[str, Any] = {"agent": "direct", "context": "window:1", "shots": 1}
    ours = rb.run("smoke", model="player", out=tmp_path / "ours", **settings)
    with serving(stand_ins.play) as (url, bodies):
        lm_eval_command(
            *("--tasks", "ragen_smoke", "--apply_chat_template"),
            *("--model", "local-chat-completions"),
            *("--model_args", f"model=m,base_url={url},num_concurrent=4"),
            *("--metadata", json.dumps(settings)),
            *("--output_path", str(tmp_path / "lm_eval")),
        )
    assert_equal(results_in(tmp_path / "lm_eval"), ours)
    turns = sum(len(e.turns) for e in read_episodes(tmp_path / "ours"))
    assert len(bodies) == turns
    assert max(len(body["messages"]) for body in bodies) > 4


def evaluate(model: Any, tasks: str = "ragen_bandit", **options: Any) -> dict[str, Any]:
    """Return lm-eval's results, in this process."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    metadata = {"agent": "direct", "seeds": 3, **options.pop("metadata", {})}
    manager = TaskManager(
        include_path=str(FOLDER), include_defaults=False, metadata=metadata
    )
    settings = {"apply_chat_template": True, "bootstrap_iters": 0, **options}
    found: dict[str, Any] = lm_eval.simple_evaluate(
        model=model, tasks=[tasks], task_manager=manager, **settings
    )
    return found


def bare_lm(answer: Any) -> Any:
    """Return a `Bare` that lm-eval itself takes for a model."""
    from lm_eval.api.model import LM

    class BareLM(Bare, LM):  # type: ignore[misc]
        tokenizer_name = "bare"

        def __init__(self) -> None:
            LM.__init__(self)
            Bare.__init__(self, answer)

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
            return Bare.generate_until(self, requests, disable_tqdm=True)

        def loglikelihood(self, requests: Any) -> Any:
            raise NotImplementedError

        def loglikelihood_rolling(self, requests: Any) -> Any:
            raise NotImplementedError

    return BareLM()


@needs_lm_eval
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"apply_chat_template": False}, "add --apply_chat_template"),
        ({"system_instruction": "Be good."}, "leave --system_instruction out"),
        ({"gen_kwargs": "temperature=1"}, "leave --gen_kwargs .* out"),
        ({"num_fewshot": 2}, "leave --num_fewshot 2 out.*shots"),
        ({"metadata": {"level": 99}}, "99"),
        ({"metadata": {"agent": "nobody"}}, "no agent 'nobody'"),
        ({"tasks": "ragen_smoke"}, "board 'smoke' fixes seeds"),
    ],
)
def test_what_cannot_be_played_is_refused(options, message) -> None:
    with pytest.raises(RagenError, match=message):
        evaluate(bare_lm(lambda prompt: "x"), **options)


@needs_lm_eval
def test_a_turn_is_one_batch_over_the_live_episodes() -> None:
    lm = bare_lm(lambda prompt: "<answer>Up")
    found = evaluate(lm, "ragen_frozen_lake", metadata={"seeds": 5})
    sizes = [len(batch) for batch in lm.batches]
    assert sizes[0] == 5
    assert sizes == sorted(sizes, reverse=True)
    turns = found["results"]["ragen_frozen_lake"]["turns,none"]
    assert sum(sizes) == pytest.approx(5 * turns)


@needs_lm_eval
def test_a_limit_on_the_documents_plays_fewer_episodes() -> None:
    lm = bare_lm(lambda prompt: "x")
    found = evaluate(lm, limit=2, metadata={"seeds": 8})
    assert found["n-samples"]["ragen_bandit"] == {"original": 8, "effective": 2}
    assert sum(map(len, lm.batches)) == 2


@needs_lm_eval
def test_a_fault_of_the_model_is_an_outcome_and_not_the_end(tmp_path) -> None:
    def answer(prompt: str) -> str:
        if prompt.count("[assistant]") == 1:
            raise RuntimeError("gone")
        return "<answer>Up"

    out = tmp_path / "run"
    lm = bare_lm(answer)
    evaluate(lm, "ragen_frozen_lake", metadata={"out": str(out)})
    outcomes = {episode.outcome for episode in read_episodes(out)}
    assert "provider_error" in outcomes


@needs_lm_eval
def test_a_prompt_that_is_too_long_is_an_outcome(tmp_path) -> None:
    out = tmp_path / "run"
    lm = bare_lm(lambda prompt: "<answer>Up")
    lm.tokenizer = object()
    lm.tok_encode = lambda text: list(range(len(text)))
    metadata = {"out": str(out), "prompt": "full"}
    found = evaluate(lm, "ragen_sokoban", metadata=metadata)
    assert {e.outcome for e in read_episodes(out)} == {"context_overflow"}
    assert found["results"]["ragen_sokoban"]["success,none"] == 0.0


@needs_lm_eval
def test_a_run_folder_is_gone_on_with(tmp_path) -> None:
    out = {"out": str(tmp_path / "run")}
    first = evaluate(bare_lm(lambda prompt: "<answer>Up"), metadata=out)
    silent = bare_lm(lambda prompt: "nothing")
    again = evaluate(silent, metadata=out)
    assert again["results"] == first["results"]
    assert {a["max_gen_toks"] for a in silent.arguments} == {1}


@needs_lm_eval
def test_sampled_episodes_are_those_of_our_own_run(tmp_path) -> None:
    from lm_eval.api.registry import get_model

    settings = {**OF_TINY, "temperature": 1.5, "seeds": 4}
    arguments = {"pretrained": str(TINY), "dtype": "float32"}
    ours = rb.run(
        envs="ragen/FrozenLake-v0:1",
        model="lm-eval:hf",
        model_args={**arguments, "device": "cpu"},
        out=tmp_path / "ours",
        **settings,
    )
    lm = get_model("hf").create_from_arg_obj(arguments, {"device": "cpu"})
    found = evaluate(
        lm, "ragen_frozen_lake", metadata={**settings, "out": str(tmp_path / "theirs")}
    )
    assert found["results"]["ragen_frozen_lake"]["score,none"] == ours.score.mean
    told = [
        {e.key: [t.response for t in e.turns] for e in read_episodes(tmp_path / name)}
        for name in ("ours", "theirs")
    ]
    assert told[0] == told[1]


@needs_lm_eval
def test_an_lm_eval_of_another_build_is_refused() -> None:
    from ragen_bench.lm_eval_tasks.multi_turn import RagenTask

    config = {
        "task": "ragen_bandit",
        "metadata": {"env": "ragen/Bandit-v0", "agent": "direct", "seeds": 1},
    }
    task = RagenTask(config=config)
    with pytest.raises(InvalidSpec, match="chat template that belongs to no model"):
        task.build_all_requests(chat_template=lambda chat: "", world_size=1)
    (doc,) = task.test_docs()
    with pytest.raises(InvalidSpec, match="does not filter the answers"):
        task.process_results(doc, ["<answer>Up"])


@needs_lm_eval
def test_values_keep_their_episodes_across_processes(tmp_path) -> None:
    import pickle

    from ragen_bench.lm_eval_tasks.metrics import Value

    rb.run(envs="ragen/Bandit-v0:1", seeds=1, agent="random", out=tmp_path / "run")
    (episode,) = read_episodes(tmp_path / "run")
    value = pickle.loads(pickle.dumps(Value(0.5, episode)))
    assert (value, value.episode) == (0.5, episode)
    assert json.dumps(value) == "0.5"


# Our models in lm-eval ------------------------------------------------------------


def test_the_entry_point_is_what_the_plugin_registers() -> None:
    from ragen_bench import lm_eval_plugin

    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    points = tomllib.loads(text)["project"]["entry-points"]["lm_eval.models"]
    assert points == {lm_eval_plugin.NAME: lm_eval_plugin.TARGET}


def requests_for(lm: Any, prompts: list[str], **arguments: Any) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [
        Instance(
            request_type="generate_until",
            doc={},
            arguments=(
                lm.apply_chat_template([{"role": "user", "content": prompt}]),
                {"until": ["\n"], "max_gen_toks": 8, **arguments},
            ),
            idx=0,
            metadata=("task", number, 1),
        )
        for number, prompt in enumerate(prompts)
    ]


@pytest.fixture
def registered(monkeypatch) -> Any:
    """Return a function that makes lm-eval's object of one of our models."""
    from lm_eval.api.registry import get_model

    from ragen_bench import lm_eval_plugin

    lm_eval_plugin.register()
    lm_eval_plugin.register()
    cls = get_model("ragen-bench")
    return lambda spec, **more: cls.create_from_arg_obj({"model": spec, **more}, {})


@needs_lm_eval
def test_any_model_of_ours_is_a_model_of_lm_eval(registered) -> None:
    lm = registered("parrot:one\ntwo")
    assert lm.generate_until(requests_for(lm, ["a", "b"])) == ["one", "one"]
    assert lm.generate_until([]) == []


@needs_lm_eval
def test_our_model_is_asked_what_the_task_asks(registered) -> None:
    toy.Parrot.prompts.clear()
    lm = registered("parrot")
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "\u6f22"},
    ]
    (request,) = requests_for(lm, ["x"])
    request.arguments = (lm.apply_chat_template(chat), request.arguments[1])
    lm.generate_until([request])
    request.arguments = ("no template", request.arguments[1])
    lm.generate_until([request])
    assert [said for _, said in toy.Parrot.prompts] == [
        [("system", "s"), ("user", "\u6f22")],
        [("user", "no template")],
    ]


@needs_lm_eval
def test_repeats_of_a_request_are_drawn_apart(registered) -> None:
    lm = registered("tiny")
    (request,) = requests_for(
        lm, ["Go."], do_sample=True, temperature=3.0, until=["never"]
    )
    said = lm.generate_until([request] * 3)
    assert len(set(said)) == 3
    assert lm.generate_until([request] * 3) == said


@needs_lm_eval
def test_our_model_works_where_a_loop_runs(registered) -> None:
    lm = registered("parrot:x")

    async def main() -> list[str]:
        found: list[str] = lm.generate_until(requests_for(lm, ["a"]))
        return found

    assert asyncio.run(main()) == ["x"]


@needs_lm_eval
def test_what_our_models_cannot_do_is_refused(registered) -> None:
    lm = registered("parrot", context=3)
    with pytest.raises(InvalidSpec, match="log-likelihoods"):
        lm.loglikelihood([])
    with pytest.raises(InvalidSpec, match="begins the reply itself"):
        lm.apply_chat_template([], add_generation_prompt=False)
    with pytest.raises(InvalidSpec, match="top_k=3"):
        lm.generate_until(requests_for(lm, ["a"], top_k=3))
    with pytest.raises(ContextOverflow):
        lm.generate_until(requests_for(lm, ["a long prompt"]))


@needs_lm_eval
def test_our_model_plays_our_task_in_lm_eval(registered, tmp_path) -> None:
    ours = rb.run(envs="ragen/Bandit-v0:1", seeds=3, model="tiny", out=tmp_path / "r")
    found = evaluate(registered("tiny"), metadata=OF_TINY)
    assert found["results"]["ragen_bandit"]["score,none"] == ours.score.mean


@needs_lm_eval
def test_a_cached_first_reply_keeps_its_facts() -> None:
    import pickle

    from ragen_bench.models.lm_eval_replies import Facts, TracedText

    text = TracedText("<think>a</think> b", Facts(text="all", token_ids=(1, 2)))
    part = pickle.loads(pickle.dumps(text)).split("</think>")[-1].lstrip()
    assert part == "b"
    assert part.facts == dataclasses.replace(text.facts)


@needs_lm_eval
@pytest.mark.parametrize("address", [None, ""])
def test_a_served_class_needs_an_address_before_any_call(address) -> None:
    given = {} if address is None else {"base_url": address}
    with pytest.raises(InvalidSpec, match="base_url=URL"):
        rb.make_model("lm-eval:local-chat-completions", model="m", **given)


@needs_lm_eval
def test_a_class_that_cannot_be_prepared_is_refused(monkeypatch) -> None:
    from ragen_bench.models import lm_eval_adapter

    def offline(*arguments: Any) -> None:
        raise OSError("no network\nand more")

    monkeypatch.setattr(lm_eval_adapter, "Caller", offline)
    with pytest.raises(InvalidSpec, match=r"'dummy' cannot be used: .*no network$"):
        rb.make_model("lm-eval:dummy")


def test_how_many_ask_at_once_changes_no_result() -> None:
    assert "num_concurrent" in serving_arguments("lm-eval:local-chat-completions")
