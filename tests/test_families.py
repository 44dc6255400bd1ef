"""Each family of models gets the prompts and the endings that it was trained with.

What a model is really given is told by its greedy replies: they must be those that
transformers' own ``generate`` gives behind the ids that are expected.
"""

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from ragen_bench.model import (  # noqa: E402
    Completion,
    Conversation,
    Message,
    Model,
    Sampling,
)
from ragen_bench.models import hf_loading  # noqa: E402
from ragen_bench.models.chat_template import Chat  # noqa: E402
from ragen_bench.registry import make_model  # noqa: E402

families = pytest.importorskip("families")

pytestmark = pytest.mark.hf
FAMILIES = families.FAMILIES

RULES = "You are on a frozen lake. Reach the goal G."
STORIES = [
    [RULES, "Turn 1 of 5.", "Turn 2 of 5.", "Turn 3 of 5."],
    [RULES, "Turn 1 of 5, another board.", "Up did nothing.", "Left, then?"],
    [RULES + " Mind the holes O." * 3, "Go.", "On.", "And on."],
    ["Short rules.", "x!", "y!", "z!"],
]
GREEDY = Sampling(max_tokens=16, stop=())
VARIANTS = {
    **{name: (name, {}) for name in FAMILIES},
    "qwen3, no thinking": ("qwen3", {"template_args": {"enable_thinking": False}}),
}
"""Family and model arguments."""
# What the engine leaves open when it goes down is no concern of ours.
ON_VLLM = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
ALWAYS_ON_VLLM = ("qwen3", "llama3", "gemma")


@dataclasses.dataclass
class Played:
    """A model and what it said."""

    family: Any
    tokenizer: Any
    network: Any
    """The same weights, for transformers' own way."""
    chat: Chat
    model: Model
    stories: list[list[tuple[list[Message], Completion]]]
    """Prompt and reply of each turn."""
    thought: tuple[list[Message], Completion]
    """A conversation that holds an older thought, and the reply to it."""

    def generate(self, ids: list[int]) -> list[int]:
        """Return what transformers' own greedy decoding adds to a prompt."""
        found = self.network.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=GREEDY.max_tokens,
            do_sample=False,
            eos_token_id=[self.id_of(self.family.end), self.id_of(self.family.eos)],
            pad_token_id=0,
        )
        return found[0, len(ids) :].tolist()

    def id_of(self, token: str) -> int:
        return self.tokenizer.convert_tokens_to_ids(token)

    def turns(self) -> Iterator[tuple[list[Message], Completion]]:
        for story in self.stories:
            yield from story


def message(role: str, content: str, ids: tuple[int, ...] | None = None) -> Message:
    return Message(role=role, content=content, token_ids=ids)


async def tell(
    model: Model, story: list[str]
) -> list[tuple[list[Message], Completion]]:
    """Play one conversation."""
    told = Conversation(key=story[1], seed=3)
    told.messages.append(message("system", story[0]))
    turns = []
    for told.turn, text in enumerate(story[1:]):
        told.messages.append(message("user", text))
        reply = await model.generate(told, GREEDY)
        turns.append((list(told.messages), reply))
        told.messages.append(message("assistant", reply.text, reply.token_ids))
    return turns


def with_a_thought(chat: Chat, opens: bool) -> list[Message]:
    """Return a conversation whose first reply thought aloud."""
    said = "above me.\n</think>\n\n<answer>Up</answer>"
    said = said if opens else "<think>\n" + said
    ids = (*chat.encode_inside(said), min(chat.end_ids))
    messages = [message("system", RULES), message("user", "Turn 1 of 5.")]
    return [*messages, message("assistant", said, ids), message("user", "Turn 2.")]


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(("hf", name), id=f"hf-{name}") for name in VARIANTS),
        *(
            pytest.param(("vllm", name), id=f"vllm-{name}", marks=ON_VLLM)
            for name in VARIANTS
        ),
    ],
)
def played(request: Any, tmp_path_factory: Any) -> Iterator[Played]:
    engine, variant = request.param
    if engine == "vllm":
        if os.environ.get("RAGEN_SWEEP") != "full" and variant not in ALWAYS_ON_VLLM:
            pytest.skip("RAGEN_SWEEP=full plays all families on vLLM")
        pytest.importorskip("vllm")
    name, arguments = VARIANTS[variant]
    yield play(engine, FAMILIES[name], tmp_path_factory.mktemp("family"), arguments)


def play(engine: str, family: Any, place: Path, arguments: dict[str, Any]) -> Played:
    """Build a model, and let it play all its conversations at once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    family.build(place)
    network, tokenizer = hf_loading.load_network(str(place), "float32", "cpu")
    chat = Chat(
        tokenizer,
        hf_loading.end_ids(network, tokenizer),
        arguments.get("template_args"),
    )
    thought = with_a_thought(chat, family.opens_thought)
    model = make_model(f"{engine}:{place}", **ENGINES[engine], **arguments)

    async def everything() -> Any:
        try:
            stories = await asyncio.gather(*(tell(model, story) for story in STORIES))
            late = Conversation(key="late", seed=3, messages=thought, turn=1)
            return stories, await model.generate(late, GREEDY)
        finally:
            await model.aclose()

    stories, reply = asyncio.run(everything())
    torch.set_num_threads(threads)
    return Played(family, tokenizer, network, chat, model, stories, (thought, reply))


ENGINES: dict[str, dict[str, Any]] = {
    "hf": {"threads": 1},
    "vllm": {"kv_cache_gib": 0.25},
}


def pairs(family: Any, messages: list[Message]) -> list[dict[str, str]]:
    """Return messages for a template, the system's as the family wants it."""
    shown = [{"role": m.role, "content": m.content} for m in messages]
    if family.merges_system:
        shown[1]["content"] = f"{shown[0]['content']}\n\n{shown[1]['content']}"
        del shown[0]
    return shown


def rendered(played: Played, messages: list[Message]) -> tuple[str, list[int]]:
    """Return text and ids of a prompt, all of it tokenised by transformers itself."""
    if played.family.template is None:
        text = "".join(f"{m.role.capitalize()}:\n{m.content}\n\n" for m in messages)
        text += "Assistant:\n"
        return text, list(played.tokenizer(text)["input_ids"])
    shown = pairs(played.family, messages)
    options = dict(played.chat._template.arguments, add_generation_prompt=True)
    text = played.tokenizer.apply_chat_template(shown, tokenize=False, **options)
    found = played.tokenizer.apply_chat_template(shown, tokenize=True, **options)
    return text, list(found["input_ids"])


def test_a_first_reply_is_the_one_behind_the_templates_own_ids(played: Played) -> None:
    for story in played.stories:
        messages, reply = story[0]
        _, ids = rendered(played, messages)
        assert reply.usage.input_tokens == len(ids)
        assert list(reply.token_ids) == played.generate(ids)


def test_later_replies_stand_behind_the_very_ids_that_were_sampled(
    played: Played,
) -> None:
    kept = 0
    assistant = played.family.heads[1]
    for story in played.stories:
        for before, now in zip(story, story[1:], strict=False):
            messages, reply = now
            text, ids = played.chat.prompt(messages)
            assert text == rendered(played, messages)[0]
            assert reply.usage.input_tokens == len(ids)
            assert list(reply.token_ids) == played.generate(ids)
            _, earlier = played.chat.prompt(before[0])
            said = [id for id in before[1].token_ids if id not in played.chat.end_ids]
            kept += ids[: len(earlier) + len(said)] == [*earlier, *said]
    # A prompt that opens a thought, or holds an empty one, shows it to no later turn.
    bare = played.chat.render(played.stories[0][0][0]).endswith(assistant)
    assert bool(kept) == bare


def test_the_rules_and_who_spoke_stand_in_every_prompt(played: Played) -> None:
    for messages, _ in played.turns():
        text = played.tokenizer.decode(played.chat.prompt(messages)[1])
        places = [text.find(m.content) for m in messages if m.role != "assistant"]
        assert places == sorted(places) and places[0] >= 0
        user, assistant = played.family.heads
        asked = [m.content for m in messages if m.role == "user"]
        assert text.count(user) == text.count(assistant) == len(asked)
        # Only the first may stand behind something, a system message that was merged.
        assert all(user + content in text for content in asked[1:])
        opened = "<think>" if played.family.opens_thought else ""
        assert text.rpartition(assistant)[2].startswith(opened)


def test_every_prompt_has_one_bos_at_most(played: Played) -> None:
    wanted = int(played.family.bos is not None)
    bos = played.id_of(played.family.bos) if wanted else -1
    for messages, _ in [*played.turns(), played.thought]:
        window = [messages[0], *messages[-3:]] if len(messages) > 4 else messages
        afresh = played.chat.encode(played.chat.render(messages))
        for ids in (*(played.chat.prompt(m)[1] for m in (messages, window)), afresh):
            assert ids[:wanted] == [bos] * wanted
            assert ids.count(bos) == wanted


def test_a_reply_ends_with_the_familys_own_token(played: Played) -> None:
    ends = {played.id_of(played.family.end), played.id_of(played.family.eos)}
    assert played.chat.end_ids == ends
    reasons = []
    for _, reply in played.turns():
        reasons.append(reply.finish_reason)
        assert ends.isdisjoint(reply.token_ids[:-1])
        assert (reply.token_ids[-1] in ends) == (reply.finish_reason == "stop")
        assert played.family.end not in reply.text
        assert len(reply.token_ids) <= GREEDY.max_tokens
    assert "stop" in reasons


def test_an_older_thought_is_shown_as_the_template_shows_it(played: Played) -> None:
    messages, reply = played.thought
    text, ids = played.chat.prompt(messages)
    if played.family.thinks:
        assert "above me" not in text
        assert ids == rendered(played, messages)[1]
    else:
        assert text.count("above me.") == 1
    assert "<answer>Up</answer>" in text
    assert reply.usage.input_tokens == len(ids)
    assert list(reply.token_ids) == played.generate(ids)
