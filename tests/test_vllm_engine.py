"""`vllm:` on the real engine and the embedded model, in float32 on the CPU."""

import asyncio
import functools
import importlib.resources
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ragen_bench as rb
from ragen_bench.errors import (
    ContextOverflow,
    InvalidSpec,
    ProviderError,
    ProviderRefusal,
    UnknownName,
)
from ragen_bench.model import Completion, Conversation, Message, Model, Sampling
from ragen_bench.plan import Settings, resolve
from ragen_bench.registry import MODELS, make_model
from ragen_bench.run_folder import read_episodes

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

TINY = str(importlib.resources.files("ragen_bench.models") / "tiny")
SMALL: dict[str, Any] = {"kv_cache_gib": 0.25}
CELLS = [
    f"ragen/{name}-v0:{level}"
    for name, levels in (
        ("Bandit", (1, 2)),
        ("FrozenLake", (1, 2, 3)),
        ("Sokoban", (1, 2, 3)),
    )
    for level in levels
]
GREEDY = Sampling(max_tokens=128)
NOISY = Sampling(temperature=1.0, max_tokens=40, stop=())


class Kept(Model):
    """A model that outlives the run it plays in."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner
        self.name = inner.name
        self.max_context = inner.max_context
        self.defaults = inner.defaults

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        return await self.inner.generate(conversation, sampling)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return self.inner.count_tokens(messages)


@pytest.fixture(scope="module")
def served() -> Iterator[Any]:
    model = make_model(f"vllm:{TINY}", **SMALL)
    yield model
    asyncio.run(model.aclose())
    await_end_of(multiprocessing.active_children)


@pytest.fixture(scope="module")
def reference() -> Model:
    return make_model("tiny", threads=1)


def asked(content: str, seed: int = 5, turn: int = 0) -> Conversation:
    message = Message(role="user", content=content)
    return Conversation(key="a", seed=seed, turn=turn, messages=[message])


def answer(model: Model, *asks: Conversation, sampling: Sampling = GREEDY) -> list[Any]:
    async def gather() -> list[Completion]:
        return await asyncio.gather(*(model.generate(c, sampling) for c in asks))

    return asyncio.run(gather())


@functools.cache
def questions() -> list[list[Message]]:
    """Return the first question of an episode of each cell."""
    plan = resolve(Settings(envs=CELLS, seeds=1, model="tiny"))
    return [plan.opening(cell) for cell in plan.config.cells]


def openings() -> list[Conversation]:
    """Return a new conversation of each cell that has asked its first question."""
    return [
        Conversation(key=cell, seed=5, messages=list(messages))
        for cell, messages in zip(CELLS, questions(), strict=True)
    ]


def test_first_replies_are_those_of_hf(served: Model, reference: Model) -> None:
    found = answer(served, *openings())
    expected = answer(reference, *openings())
    assert len(found) == 8
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.text == theirs.text
        assert ours.token_ids == theirs.token_ids
        assert ours.finish_reason == theirs.finish_reason
        assert ours.usage.input_tokens == theirs.usage.input_tokens
        assert ours.usage.output_tokens == theirs.usage.output_tokens
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.parametrize("context", ["full", "single"])
def test_whole_episodes_are_those_of_hf(
    served: Model,
    reference: Model,
    context: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"kept-vllm": Kept(served), "kept-hf": Kept(reference)}
    turns: dict[str, list[Any]] = {}
    for name, model in known.items():
        monkeypatch.setitem(MODELS._items, name, lambda rest, model=model: model)
        rb.run(
            envs=["ragen/Bandit-v0:3", "ragen/FrozenLake-v0:2", "ragen/Sokoban-v0:1"],
            seeds=3,
            model=name,
            context=context,
            out=tmp_path / name,
        )
        episodes = sorted(read_episodes(tmp_path / name), key=lambda e: str(e.key))
        turns[name] = [
            (str(e.key), number, turn.prompt_sha256, turn.response, turn.finish_reason)
            for e in episodes
            for number, turn in enumerate(e.turns)
        ]
    ours, theirs = turns["kept-vllm"], turns["kept-hf"]
    different = [pair for pair in zip(ours, theirs, strict=False) if len(set(pair)) > 1]
    assert len(theirs) >= 20
    assert len(different) <= 0.01 * len(theirs), different
    assert len(ours) == len(theirs)


def test_sampled_replies_depend_on_seed_and_turn_alone(served: Model) -> None:
    asks = [asked("P _ G", seed=s, turn=t) for s in (1, 2, 3) for t in (0, 1)]
    together = [c.token_ids for c in answer(served, *asks, sampling=NOISY)]
    others = [asked("elsewhere" * n, seed=n) for n in range(1, 9)]
    alone = [answer(served, ask, sampling=NOISY)[0].token_ids for ask in asks]
    crowd = answer(served, *others, *reversed(asks), sampling=NOISY)[8:]
    assert alone == together
    assert [c.token_ids for c in reversed(crowd)] == together
    assert len(set(together)) == len(asks)


def test_logprobs_are_the_models_own_whatever_the_sampling(
    served: Model, reference: Any
) -> None:
    import torch

    ask = asked("P _ G")
    hot = Sampling(temperature=2.0, top_p=0.9, max_tokens=20, stop=())
    (reply,) = answer(served, ask, sampling=hot)
    _, prompt = reference._chat.prompt(ask.messages, None)
    ids = torch.tensor([[*prompt, *reply.token_ids]])
    own = make_network()(input_ids=ids).logits[0].log_softmax(-1)
    expected = [
        own[len(prompt) - 1 + i, token].item()
        for i, token in enumerate(reply.token_ids)
    ]
    assert reply.logprobs == pytest.approx(expected, abs=1e-4)


def make_network() -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(TINY).eval()


@pytest.mark.parametrize("stop", [("</think>",), ("nswer>", "think>"), ("k", "never")])
def test_a_stop_string_ends_a_reply_and_stays(
    served: Model, reference: Model, stop: tuple[str, ...]
) -> None:
    sampling = Sampling(max_tokens=60, stop=stop)
    ask = openings()[2]
    (reply,) = answer(served, ask, sampling=sampling)
    (expected,) = answer(reference, openings()[2], sampling=sampling)
    assert reply.finish_reason == "stop"
    assert reply.text.endswith(stop)
    assert (reply.text, reply.token_ids) == (expected.text, expected.token_ids)


def test_a_reply_that_is_cut_says_so(served: Model) -> None:
    sampling = Sampling(max_tokens=3, stop=())
    (reply,) = answer(served, openings()[2], sampling=sampling)
    assert (len(reply.token_ids), reply.finish_reason) == (3, "length")


def test_an_end_token_is_sampled_but_not_shown(served: Model, reference: Model) -> None:
    sampling = Sampling(max_tokens=128, stop=())
    (reply,) = answer(served, openings()[0], sampling=sampling)
    (expected,) = answer(reference, openings()[0], sampling=sampling)
    assert reply.finish_reason == "stop"
    assert reply.token_ids[-1] in served.describe()["end_ids"]
    assert (reply.text, reply.token_ids) == (expected.text, expected.token_ids)


def test_a_prompt_without_room_for_a_reply_is_refused(
    served: Model, reference: Model
) -> None:
    # Some tokens of a long text are dear: the room left is found by halving.
    text = "P _ G " * 1024
    while served.count_tokens(asked(text).messages) >= (served.max_context or 0):
        text = text[:-6]
    room = (served.max_context or 0) - served.count_tokens(asked(text).messages)
    (reply,) = answer(served, asked(text), sampling=NOISY)
    assert len(reply.token_ids) <= room
    with pytest.raises(ContextOverflow, match="at most 2048 fit"):
        answer(served, asked("P _ G " * 1024))


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=-1.0), Sampling(top_p=0.0), Sampling(stop=("",))]
)
def test_sampling_out_of_range_is_refused(served: Model, sampling: Sampling) -> None:
    with pytest.raises(InvalidSpec):
        answer(served, asked("x"), sampling=sampling)


def test_a_later_turn_goes_on_with_the_very_ids(served: Any, reference: Any) -> None:
    for model in (served, reference):
        conversation = asked("P _ G")
        (first,) = answer(model, conversation, sampling=NOISY)
        conversation.messages += [
            Message(role="assistant", content=first.text, token_ids=first.token_ids),
            Message(role="user", content="and now"),
        ]
        _, prompt = model._chat.prompt(
            conversation.messages, conversation.engine_state.transcript
        )
        asked_before = first.usage.input_tokens
        stop = asked_before + len(first.token_ids)
        assert tuple(prompt[asked_before:stop]) == first.token_ids


def test_common_heads_of_prompts_are_read_once(served: Model) -> None:
    head = "rules of the game " * 40
    answer(served, asked(head + "one"))
    (reply,) = answer(served, asked(head + "two"))
    assert (reply.usage.cached_tokens or 0) >= 128


def test_who_is_cancelled_withdraws_the_request(served: Any) -> None:
    engine = served._host._serving._engine

    async def play() -> None:
        endless = Sampling(max_tokens=2000, stop=(), temperature=1.0)
        task = asyncio.create_task(served.generate(asked("P _ G"), endless))
        while engine.output_processor.get_num_unfinished_requests() == 0:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(20):
            while engine.output_processor.get_num_unfinished_requests() > 0:
                await asyncio.sleep(0.001)

    asyncio.run(play())
    assert answer(served, openings()[0])[0].finish_reason == "stop"


def test_two_threads_share_one_engine(served: Model) -> None:
    expected = [c.token_ids for c in answer(served, *openings())]
    found: dict[int, list[Any]] = {}

    def ask(number: int) -> None:
        found[number] = [c.token_ids for c in answer(served, *openings())]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: expected, 1: expected}


def test_a_running_loop_plays_a_run(
    served: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS._items, "kept", lambda rest: Kept(served))

    async def notebook() -> rb.Summary:
        return rb.run(envs=["ragen/Bandit-v0:1"], seeds=2, model="kept", out=tmp_path)

    assert asyncio.run(notebook()).complete


def test_it_says_what_a_result_depends_on(served: Model, reference: Model) -> None:
    facts, theirs = served.describe(), reference.describe()
    for name in ("class", "dtype", "device", "end_ids", "max_context", "vocab_size"):
        assert facts[name] == theirs[name], name
    assert facts["files"] == theirs["files"]
    assert facts["chat_template_sha256"] == theirs["chat_template_sha256"]
    assert facts["vllm"] and facts["notes"] == []
    assert facts == make_facts(served), "facts must not change between two runs"


def make_facts(model: Model) -> Any:
    return {**model.describe()}


def test_starting_leaves_the_environment_as_it_was(served: Model) -> None:
    for name in ("LD_PRELOAD", "TORCH_CPP_LOG_LEVEL", "LOCAL_WORLD_SIZE"):
        assert name not in os.environ


def test_the_model_brings_its_own_settings(served: Model) -> None:
    assert served.defaults["prompt"] == "compact"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_context": 4096}, InvalidSpec, "2048 positions"),
        ({"engine_args": {"blok_size": 32}}, UnknownName, "did you mean 'block_size'"),
        ({"lora": "nowhere"}, InvalidSpec, "no adapter"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_model(f"vllm:{TINY}", **arguments)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"config\.json"):
        make_model(f"vllm:{tmp_path}")
    with pytest.raises(UnknownName, match="no such folder"):
        make_model(f"vllm:{tmp_path / 'none'}")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    peft = pytest.importorskip("peft")
    import torch

    torch.manual_seed(3)
    config = peft.LoraConfig(
        r=4,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
        init_lora_weights=False,
    )
    place = tmp_path_factory.mktemp("adapter")
    peft.get_peft_model(make_network(), config).save_pretrained(place)
    return str(place)


def test_an_adapter_serves_all_requests_until_the_engine_dies(
    served: Model, adapter: str
) -> None:
    """One engine, one story: each start takes seconds."""
    merged = make_model(f"hf:{TINY}", lora=adapter, threads=1)
    adapted: Any = make_model(f"vllm:{TINY}", lora=adapter, **SMALL)
    found = answer(adapted, *openings())
    expected = answer(merged, *openings())
    assert [c.text for c in found] == [c.text for c in expected]
    assert [c.text for c in found] != [c.text for c in answer(served, *openings())]
    assert adapted.describe()["files"] == merged.describe()["files"]

    async def kill() -> None:
        endless = Sampling(max_tokens=2000, stop=(), temperature=1.0)
        task = asyncio.create_task(adapted.generate(asked("P _ G"), endless))
        engine = adapted._host._serving._engine
        while engine.output_processor.get_num_unfinished_requests() == 0:
            await asyncio.sleep(0.001)
        for process in engine.engine_core.resources.engine_manager.processes:
            process.kill()
        with pytest.raises(ProviderRefusal, match="has died"):
            await task
        with pytest.raises(ProviderRefusal, match="has died"):
            await adapted.generate(asked("P _ G"), GREEDY)
        await adapted.aclose()

    asyncio.run(kill())


def test_closing_fails_what_waits(served: Any) -> None:
    """It ends the engine of this file; another test would start it again."""

    async def play() -> None:
        endless = Sampling(max_tokens=2000, stop=(), temperature=1.0)
        task = asyncio.create_task(served.generate(asked("P _ G"), endless))
        engine = served._host._serving._engine
        while engine.output_processor.get_num_unfinished_requests() == 0:
            await asyncio.sleep(0.001)
        await served.aclose()
        with pytest.raises(ProviderError, match="closed before it answered"):
            await task

    asyncio.run(play())
    await_end_of(multiprocessing.active_children)


SCRIPT = """
import asyncio, multiprocessing, sys
from ragen_bench.model import Conversation, Message, Sampling
from ragen_bench.registry import make_model

model = make_model(sys.argv[1], kv_cache_gib=0.25)
ask = Conversation(key="a", seed=1, messages=[Message(role="user", content="P _ G")])


async def play():
    long = Sampling(max_tokens=2000, stop=(), temperature=1.0)
    waiting = asyncio.create_task(model.generate(ask, long))
    await model.generate(ask, Sampling(max_tokens=4))
    waiting.cancel()


asyncio.run(play())
print(*[child.pid for child in multiprocessing.active_children()])
"""


def test_a_process_that_just_ends_leaves_nothing_behind_and_prints_nothing(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    # Without a guard for __main__, as people write them.
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # One process less to start; how the engine is divided does not matter here.
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    environment["PYTHONPATH"] = str(Path(rb.__file__).parent.parent)
    # A short path, as sockets need it.
    with tempfile.TemporaryDirectory(prefix="r-") as scratch:
        environment["TMPDIR"] = scratch
        done = subprocess.run(
            [sys.executable, str(script), f"vllm:{TINY}"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
        )
        assert (done.stderr, done.returncode) == ("", 0)
        (child,) = map(int, done.stdout.split())
        await_end_of(lambda: is_alive(child))
        assert os.listdir(scratch) == []


def await_end_of(something: Callable[[], Any]) -> None:
    """Wait until a function returns nothing; a killed process takes a moment to go."""
    deadline = time.monotonic() + 30
    while found := something():
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
