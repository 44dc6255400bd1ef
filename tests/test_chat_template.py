"""Messages to ids: what was sampled goes back untouched, thoughts are told apart."""

import functools

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
families = pytest.importorskip("families")

from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.model import Message, Sampling  # noqa: E402
from ragen_bench.models.chat_template import Chat, Transcript  # noqa: E402
from ragen_bench.models.hf_sampler import ReplyInProgress  # noqa: E402
from ragen_bench.parsing import ReplyParser  # noqa: E402
from ragen_bench.prompts import ContextPolicy, assemble  # noqa: E402
from ragen_bench.seeding import Stream  # noqa: E402

pytestmark = pytest.mark.hf

FAMILIES = families.FAMILIES
every_family = pytest.mark.parametrize("name", FAMILIES)
WITHOUT_THOUGHT = "<think>\n\n</think>\n\n"


@functools.cache
def tokenizer_of(name):
    return FAMILIES[name].tokenizer()


@functools.cache
def chat_of(name):
    return Chat(tokenizer_of(name))


def system():
    return Message(role="system", content="The rules of the game.")


def user(text):
    return Message(role="user", content=text)


def sampled(chat, text, end=True):
    """Return a message whose ids are one a character, as no tokenizer gives them."""
    ids = [id for character in text for id in chat.encode_inside(character)]
    ids += [max(chat.end_ids)] if end and chat.end_ids else []
    return Message(role="assistant", content=text, token_ids=tuple(ids))


def played_out(chat, policy, turns=5):
    """Return prompt messages of each turn, with ids by an engine's transcript."""
    talk, last, found = [], None, []
    for turn in range(turns):
        talk.append(user(f"Turn {turn + 1} of {turns}."))
        messages, _ = assemble(
            [system()],
            talk,
            ContextPolicy.parse(policy),
            shots=False,
            reserve=8,
            count=lambda messages: 0,
        )
        text, ids = chat.prompt(messages, last)
        reply = sampled(chat, f"<answer>Up || Left</answer>{turn}", end=turn % 2 == 0)
        last = Transcript(text, ids, reply.content, reply.token_ids)
        talk.append(reply)
        found.append((list(messages), ids))
    return found


@every_family
@pytest.mark.parametrize("policy", ["full", "window:2", "single"])
def test_ids_are_the_same_without_what_an_engine_remembers(name, policy):
    chat = chat_of(name)
    for messages, ids in played_out(chat, policy):
        assert chat.prompt(messages)[1] == ids


@pytest.mark.parametrize("name", ["qwen1.5", "qwen2.5", "qwen3", "llama3", "base"])
def test_sampled_ids_go_back_untouched_over_many_turns(name):
    chat = chat_of(name)
    messages, ids = played_out(chat, "full")[-1]
    for message in messages:
        if message.token_ids:
            said = [id for id in message.token_ids if id not in chat.end_ids]
            pieces = (ids[i : i + len(said)] for i in range(len(ids)))
            assert said in pieces
    assert ids != chat.encode(chat.render(messages))
    shown = chat._tokenizer.decode(ids)
    shown = shown if name != "base" else shown.removeprefix("<s> ")
    assert shown == chat.render(messages)


def test_ids_of_another_tokenizer_are_not_taken_for_ours():
    chat, other = chat_of("qwen2.5"), chat_of("llama3")
    messages = [system(), user("Go."), sampled(other, "<answer>Up</answer>"), user("x")]
    assert chat.prompt(messages)[1] == chat.encode(chat.render(messages))
    messages[2].token_ids = (10**6,)
    assert chat.prompt(messages)[1] == chat.encode(chat.render(messages))


def test_a_shot_that_nobody_sampled_is_tokenised_with_the_prompt():
    chat = chat_of("qwen2.5")
    shot = [user("Example."), Message(role="assistant", content="<answer>Up</answer>")]
    messages = [system(), *shot, user("Go.")]
    assert chat.prompt(messages)[1] == chat.encode(chat.render(messages))
    reply = sampled(chat, "<answer>Left</answer>")
    messages += [reply, user("On.")]
    ids = chat.prompt(messages)[1]
    first = chat.prompt(messages[:4])[1]
    assert ids[: len(first) + len(reply.token_ids)] == [*first, *reply.token_ids]


@every_family
def test_a_template_names_the_token_that_ends_a_reply(name):
    family = FAMILIES[name]
    found = chat_of(name)._tokenizer.convert_ids_to_tokens(
        sorted(chat_of(name).end_ids)
    )
    assert found == ([] if family.template is None else [family.end])


class TestThoughts:
    def test_a_closed_thought_leaves_the_history_and_an_open_one_stays(self):
        chat = chat_of("qwen3")
        start = [system(), user("Go.")]
        for said, shown in (
            ("<think>\nplan\n</think>\n\n<answer>Up</answer>", "<answer>Up</answer>"),
            ("<think>\nplan without end", "<think>\nplan without end"),
            ("plan\n</think><answer>Up</answer>", "<answer>Up</answer>"),
        ):
            messages = [*start, sampled(chat, said), user("On.")]
            text, ids = chat.prompt(messages)
            assert f"<|im_start|>assistant\n{shown}<|im_end|>" in text
            fresh = "plan" not in shown
            assert (ids == chat.encode(text)) == fresh

    @pytest.mark.parametrize(
        ("arguments", "end"),
        [
            ({}, "assistant\n"),
            ({"enable_thinking": True}, "assistant\n"),
            ({"enable_thinking": False}, "assistant\n" + WITHOUT_THOUGHT),
        ],
    )
    def test_a_template_is_told_whether_to_think(self, arguments, end):
        chat = Chat(tokenizer_of("qwen3"), template_args=arguments)
        messages = [system(), user("Go.")]
        assert chat.render(messages).endswith("<|im_start|>" + end)
        messages += [sampled(chat, "<answer>Up</answer>"), user("On.")]
        text, ids = chat.prompt(messages)
        assert text.count(WITHOUT_THOUGHT) == int(end.endswith(WITHOUT_THOUGHT))
        assert (ids == chat.encode(text)) == end.endswith(WITHOUT_THOUGHT)

    @pytest.mark.parametrize(
        ("name", "arguments", "message"),
        [
            ("qwen3", {"enable_thought": True}, "'enable_thought', which is read no"),
            ("qwen3", {"messages": []}, "'messages', which is set by ragen-bench"),
            (
                "base",
                {"enable_thinking": True},
                "'enable_thinking', which needs a chat",
            ),
        ],
    )
    def test_an_argument_that_would_do_nothing_is_refused(
        self, name, arguments, message
    ):
        with pytest.raises(InvalidSpec, match=message):
            Chat(tokenizer_of(name), template_args=arguments)

    @pytest.mark.parametrize("name", ["qwen3", "r1"])
    @pytest.mark.parametrize(
        ("said", "thinking", "actions"),
        [
            ("plan\n</think>\n\n<answer>Up</answer>", "plan", (0,)),
            ("no, <answer>Left</answer></think><answer>Up</answer>", None, (0,)),
            ("so <answer>Up</answer>", None, (0,)),
        ],
    )
    def test_what_was_sampled_reads_as_thought_and_answer(
        self, name, said, thinking, actions
    ):
        chat = chat_of(name)
        said = said if FAMILIES[name].opens_thought else "<think>\n" + said
        reply = ReplyInProgress(
            Sampling(max_tokens=99, stop=()), Stream(1), chat, chat.end_ids
        )
        for token in (*chat.encode_inside(said), max(chat.end_ids)):
            finished = reply.push(token, 0.0)
        assert finished
        draft = reply.draft(0)
        assert draft.text == said
        parsed = ReplyParser.of(("Up", "Left"), 5, False).parse(
            draft.text, finish_reason=draft.finish_reason
        )
        assert parsed.actions == actions
        assert thinking is None or parsed.thinking == thinking

    def test_tags_that_a_tokenizer_calls_special_stay_in_the_text(self):
        tokenizer = FAMILIES["qwen1.5"].tokenizer()
        tokenizer.add_special_tokens(
            {"additional_special_tokens": ["<think>", "</think>"]}
        )
        chat = Chat(tokenizer, {2})
        said = "<think>a b</think> <answer>Up</answer>"
        assert chat.decode([1, *chat._encode(said), 2]) == said
        assert chat.piece(chat._encode("</think>")[0]) == "</think>"
