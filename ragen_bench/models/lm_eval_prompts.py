"""Messages to prompts by a model object of lm-eval, with what it would drop kept."""

import copy
import threading
from collections.abc import Sequence
from typing import Any

from ragen_bench.errors import InvalidSpec
from ragen_bench.model import Message
from ragen_bench.models import lm_eval_quiet

_PROBE = "system text that must appear"
_USER = Message(role="user", content="hello")
_SYSTEM = Message(role="system", content=_PROBE)


class Prompts:
    """The template and the tokenizer of a model object; for any thread.

    A template that refuses or drops a system message gets that text at the head of
    the first user message.  A class without a template gets lines that name the role.

    Args:
        lm: The object.

    Attributes:
        notes: What differs from the plain use of the class, in words.
        counts: Whether the class can tell the length of a prompt.
    """

    def __init__(self, lm: Any) -> None:
        self._front = _front(lm)
        self._lock = threading.Lock()
        self.notes: list[str] = []
        self._plain = self._merges_system = False
        with lm_eval_quiet.quietly():
            self._try_template()
            self.counts = self._size(self._render([_USER])) is not None

    def make(self, messages: Sequence[Message]) -> tuple[Any, int | None]:
        """Return a prompt and its tokens, None where nobody can tell.

        Raises:
            InvalidSpec: The template refuses the roles.
        """
        with self._lock, lm_eval_quiet.quietly():
            context = self._render(messages)
            return context, self._size(context)

    def size(self, text: str) -> int | None:
        """Return the tokens of a text, None where nobody can tell."""
        with self._lock, lm_eval_quiet.quietly():
            return self._size(text)

    def _size(self, context: Any) -> int | None:
        encode = getattr(self._front, "tok_encode", None)
        if not isinstance(context, str) or encode is None:
            return None
        if getattr(self._front, "tokenizer", None) is None:
            return None
        try:
            ids = encode(context)
        except Exception:  # a class without a tokenizer of its own raises anything
            return None
        whole = isinstance(ids, list) and all(type(token) is int for token in ids)
        return len(ids) if whole else None

    def _try_template(self) -> None:
        """Find out what the class's template makes of a conversation."""
        try:
            # A served model's template is its server's business.
            if isinstance(self._apply([_USER]), str):
                self._merges_system = _PROBE not in self._apply([_SYSTEM, _USER])
        except Exception:  # a class without a template raises anything
            self._plain = True
            self.notes.append("no chat template: 'System: / User: / Assistant:' lines")
        if self._merges_system:
            self.notes.append("system message merged into the first user message")

    def _render(self, messages: Sequence[Message]) -> Any:
        if self._plain:
            shown = [f"{m.role.capitalize()}:\n{m.content}\n\n" for m in messages]
            return "".join([*shown, "Assistant:\n"])
        if self._merges_system:
            messages = _merged(messages)
        try:
            return self._apply(messages)
        except Exception as error:
            roles = ", ".join(message.role for message in messages)
            raise InvalidSpec(
                f"the model's chat template refuses the roles {roles}: {error}"
            ) from error

    def _apply(self, messages: Sequence[Message]) -> Any:
        pairs = [{"role": m.role, "content": m.content} for m in messages]
        return self._front.apply_chat_template(pairs, add_generation_prompt=True)


def _front(lm: Any) -> Any:
    """Return the same model with a tokenizer of its own, for another thread.

    A tokenizer cannot encode while another thread sets how it pads.
    """
    tokenizer = getattr(lm, "tokenizer", None)
    if tokenizer is None or not hasattr(tokenizer, "apply_chat_template"):
        return lm
    front = copy.copy(lm)
    front.tokenizer = copy.deepcopy(tokenizer)
    return front


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the system's at the head of the first user's."""
    system = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    if not system:
        return rest
    if not rest or rest[0].role != "user":
        rest.insert(0, Message(role="user", content=""))
    parts = [part for part in [*system, rest[0].content] if part]
    return [Message(role="user", content="\n\n".join(parts)), *rest[1:]]
