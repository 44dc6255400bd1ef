"""An episode so far to the messages of the next question: protocol, shots, context."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from ragen_bench.agent import Shot, Task
from ragen_bench.errors import ContextOverflow, InvalidSpec
from ragen_bench.model import Message

Protocol: TypeAlias = Literal["direct", "think_act"]

_ASKED = {
    ("direct", "full"): "Reply with the answer alone, and with nothing else.",
    ("direct", "compact"): "",
    ("think_act", "full"): (
        "First reason inside <think> and </think>, then give the answer, and nothing "
        "else: <think>your reasoning</think><answer>your actions</answer>"
    ),
    ("think_act", "compact"): "<think>...</think><answer>...</answer>",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ContextPolicy:
    """How much of an episode's past a prompt holds; rules and shots always stay.

    ``full``: all of it.  ``window:k``: the last k turns before this one.
    ``single``: none.  ``tokens:n``: as many of the latest turns as fit into n tokens
    together with the reply.
    """

    kind: Literal["full", "window", "single", "tokens"]
    size: int = 0

    @classmethod
    def parse(cls, text: str) -> "ContextPolicy":
        """Return the policy that a text names.

        Raises:
            InvalidSpec: The text names none.
        """
        kind, _, size = text.partition(":")
        if kind in ("full", "single") and not size and ":" not in text:
            return cls("full" if kind == "full" else "single")
        if kind in ("window", "tokens") and size.isdecimal() and int(size) > 0:
            return cls("window" if kind == "window" else "tokens", int(size))
        raise InvalidSpec(
            f"context is {text!r}, but must be 'full', 'window:k', 'single' or "
            "'tokens:n' with a whole number of at least 1"
        )


def system_text(task: Task, protocol: Protocol, prompt: str) -> str:
    """Return the message that opens every prompt of a task."""
    asked = _ASKED[protocol, prompt]
    return f"{task.rules}\n{asked}" if asked else task.rules


def answer_text(actions: Sequence[str], reasoning: str, protocol: Protocol) -> str:
    """Return a well-formed reply that plays the named actions."""
    answer = f"<answer>{' || '.join(actions)}</answer>"
    return answer if protocol == "direct" else f"<think>{reasoning}</think>{answer}"


def shot_messages(shots: Sequence[Shot], protocol: Protocol) -> list[Message]:
    """Return solved examples as turns of a conversation."""
    messages = []
    for number, shot in enumerate(shots, 1):
        for index, turn in enumerate(shot.turns):
            head = f"Example {number}.\n" if index == 0 else ""
            reply = answer_text(turn.actions, turn.reasoning, protocol)
            messages.append(Message(role="user", content=head + turn.observation))
            messages.append(Message(role="assistant", content=reply))
    return messages


def assemble(
    opening: Sequence[Message],
    turns: Sequence[Message],
    policy: ContextPolicy,
    *,
    shots: bool,
    reserve: int,
    count: Callable[[Sequence[Message]], int],
) -> tuple[list[Message], int]:
    """Return the messages of a prompt and how many turns were left out of it.

    Args:
        opening: The system message and the shots.
        turns: Observations and replies in turn; the last is the open observation.
        policy: What to leave out.
        shots: Whether solved examples stand before the episode.
        reserve: Tokens to keep for the reply, under ``tokens:n``.
        count: Counts the tokens of messages, for ``tokens:n``.

    Raises:
        ContextOverflow: Rules and the open observation alone exceed ``tokens:n``.
    """
    past = len(turns) // 2
    kept = past
    if policy.kind == "single":
        kept = 0
    elif policy.kind == "window":
        kept = min(past, policy.size)
    messages = _join(opening, turns[2 * (past - kept) :], shots)
    if policy.kind == "tokens":
        while (size := count(messages) + reserve) > policy.size:
            if kept == 0:
                raise ContextOverflow(
                    f"rules and observation need {size} tokens with the reply, but "
                    f"context tokens:{policy.size} allows fewer; raise it"
                )
            kept -= 1
            messages = _join(opening, turns[2 * (past - kept) :], shots)
    return messages, past - kept


def _join(
    opening: Sequence[Message], turns: Sequence[Message], shots: bool
) -> list[Message]:
    messages = [*opening, *turns]
    if shots:
        first = turns[0]
        messages[len(opening)] = Message(
            role=first.role, content=f"Your task.\n{first.content}"
        )
    return messages


def sha256_of_messages(messages: Sequence[Message]) -> str:
    """Return the SHA-256 of roles and contents, as hex digits."""
    pairs = [(message.role, message.content) for message in messages]
    text = json.dumps(pairs, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
