"""An episode so far becomes the messages of the next question."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_bench.agent import Shot, ShotTurn, Task
from ragen_bench.errors import ContextOverflow, InvalidSpec
from ragen_bench.model import Message
from ragen_bench.prompts import (
    ContextPolicy,
    answer_text,
    assemble,
    sha256_of_messages,
    shot_messages,
    system_text,
)

TASK = Task(
    key="a/A-v0:1/test/0/0",
    env_id="a/A-v0",
    level=1,
    rules="The rules.",
    action_names=("Up", "Down"),
    max_turns=5,
    max_actions=10,
    max_actions_per_turn=5,
    seed=0,
)
SHOTS = (
    Shot(
        turns=(
            ShotTurn(observation="A", actions=("Up", "Down"), reasoning="So."),
            ShotTurn(observation="B", actions=("Up",), reasoning="Then."),
        )
    ),
    Shot(turns=(ShotTurn(observation="C", actions=("Down",), reasoning=""),)),
)
OPENING = [Message(role="system", content="R" * 10)]


def turns(past: int) -> list[Message]:
    """Return a dialogue of past turns and an open observation, ten letters each."""
    messages = []
    for number in range(past):
        messages.append(Message(role="user", content=f"user {number:5}"))
        messages.append(Message(role="assistant", content=f"says {number:5}"))
    return [*messages, Message(role="user", content=f"user {past:5}")]


def letters(messages) -> int:
    return sum(len(message.content) for message in messages)


def pairs(messages) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


@pytest.mark.parametrize(
    ("text", "kind", "size"),
    [
        ("full", "full", 0),
        ("single", "single", 0),
        ("window:1", "window", 1),
        ("window:12", "window", 12),
        ("tokens:4096", "tokens", 4096),
    ],
)
def test_a_policy_has_a_name(text, kind, size) -> None:
    assert ContextPolicy.parse(text) == ContextPolicy(kind, size)


@pytest.mark.parametrize(
    "text",
    ["", "all", "Full", "full:", "full:1", "single:1", "window", "window:", "window:0"]
    + ["window:-1", "window:x", "window:1.5", "tokens", "tokens:0", "window:1:2"],
)
def test_no_policy_has_another_name(text) -> None:
    with pytest.raises(InvalidSpec, match=f"context is '{text}', but must be 'full'"):
        ContextPolicy.parse(text)


def test_the_system_message_holds_the_rules_and_what_to_say() -> None:
    for protocol in ("direct", "think_act"):
        for prompt in ("full", "compact"):
            text = system_text(TASK, protocol, prompt)
            assert text.startswith(TASK.rules)
            assert not text.endswith("\n")
            assert ("<think>" in text) == (protocol == "think_act")
    assert system_text(TASK, "direct", "compact") == TASK.rules


def test_an_answer_follows_its_protocol() -> None:
    assert answer_text(("Up", "Down"), "So.", "direct") == "<answer>Up || Down</answer>"
    assert answer_text(("Up",), "So.", "think_act") == (
        "<think>So.</think><answer>Up</answer>"
    )


def test_shots_are_turns_of_a_conversation() -> None:
    assert pairs(shot_messages(SHOTS, "think_act")) == [
        ("user", "Example 1.\nA"),
        ("assistant", "<think>So.</think><answer>Up || Down</answer>"),
        ("user", "B"),
        ("assistant", "<think>Then.</think><answer>Up</answer>"),
        ("user", "Example 2.\nC"),
        ("assistant", "<think></think><answer>Down</answer>"),
    ]
    assert shot_messages((), "direct") == []


@pytest.mark.parametrize(
    ("context", "past", "kept"),
    [
        ("full", 0, 0),
        ("full", 3, 3),
        ("single", 3, 0),
        ("window:2", 1, 1),
        ("window:2", 3, 2),
        # Rules and observation need 20, each turn 20 more, the reply 5.
        ("tokens:25", 3, 0),
        ("tokens:44", 3, 0),
        ("tokens:45", 3, 1),
        ("tokens:85", 3, 3),
        ("tokens:9999", 3, 3),
    ],
)
def test_a_policy_leaves_out_the_oldest_turns(context, past, kept) -> None:
    messages, cut = assemble(
        OPENING,
        turns(past),
        ContextPolicy.parse(context),
        shots=False,
        reserve=5,
        count=letters,
    )
    assert cut == past - kept
    assert pairs(messages) == pairs(OPENING + turns(past)[2 * cut :])


def test_rules_that_do_not_fit_are_never_cut() -> None:
    with pytest.raises(ContextOverflow, match="need 25 tokens.*tokens:24 allows fewer"):
        assemble(
            OPENING,
            turns(3),
            ContextPolicy.parse("tokens:24"),
            shots=False,
            reserve=5,
            count=letters,
        )


@given(
    st.integers(0, 6),
    st.sampled_from(["full", "single", "window:1", "window:3", "tokens:150"]),
    st.booleans(),
)
def test_every_policy_keeps_rules_shots_and_the_open_observation(
    past, context, shots
) -> None:
    opening = [*OPENING, *(shot_messages(SHOTS, "direct") if shots else [])]
    dialogue = turns(past)
    messages, cut = assemble(
        opening,
        dialogue,
        ContextPolicy.parse(context),
        shots=shots,
        reserve=1,
        count=letters,
    )
    assert messages[: len(opening)] == opening
    assert messages[-1].content.endswith(dialogue[-1].content)
    assert len(messages) == len(opening) + 2 * (past - cut) + 1
    roles = [message.role for message in messages[1:]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    marked = [m for m in messages if m.content.startswith("Your task.\n")]
    assert marked == ([messages[len(opening)]] if shots else [])
    # What was handed in is as it was.
    assert pairs(dialogue) == pairs(turns(past))


def test_the_tokens_of_replies_go_along_untouched() -> None:
    dialogue = turns(1)
    dialogue[1] = Message(role="assistant", content="x", token_ids=(7, 8))
    messages, _ = assemble(
        OPENING,
        dialogue,
        ContextPolicy("full"),
        shots=True,
        reserve=0,
        count=letters,
    )
    assert messages[2].token_ids == (7, 8)


def test_a_prompt_is_known_by_its_hash() -> None:
    text = b'[["system","R"],["user","\\u00e9\\""]]'
    messages = [
        Message(role="system", content="R"),
        Message(role="user", content='\u00e9"'),
    ]
    assert sha256_of_messages(messages) == hashlib.sha256(text).hexdigest()
    assert sha256_of_messages([]) == hashlib.sha256(b"[]").hexdigest()
    # Where one message ends and the next begins counts.
    parted = [Message(role="user", content="a"), Message(role="user", content="b")]
    joined = [Message(role="user", content="ab")]
    assert sha256_of_messages(parted) != sha256_of_messages(joined)
    assert sha256_of_messages([Message(role="user", content="\ud800")])
