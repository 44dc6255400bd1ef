"""Messages to prompt text and token ids, the way a model's own tokenizer defines it.

A chat template that refuses or drops a system message gets that text at the head of
the first user message.  A tokenizer without a template gets this form, whose last
line is where the reply begins::

    System:
    TEXT

    User:
    TEXT

    Assistant:

What a model sampled in earlier turns goes back as the very ids it sampled, as long
as the template repeats its text; a template that rewrites history is tokenised
afresh.
"""

import dataclasses
import hashlib
import threading
from collections.abc import Collection, Sequence
from typing import Any

from ragen_bench.errors import InvalidSpec
from ragen_bench.model import Message

# A prompt must not depend on the day: templates that ask for the date get the one
# that Llama's templates write when they have no clock.
_DATE = "26 Jul 2024"
_CLOCK = "strftime_now"
_PROBE = "system text that must appear"


@dataclasses.dataclass(slots=True)
class Transcript:
    """The last prompt of a conversation and the reply to it."""

    text: str
    """The prompt as rendered."""
    ids: list[int]
    reply_text: str
    reply_ids: tuple[int, ...]


class Chat:
    """One tokenizer and its template; may be used from several threads.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        end_ids: Token ids that end a reply.
    """

    def __init__(self, tokenizer: Any, end_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._end_ids = frozenset(end_ids)
        self._lock = threading.Lock()
        self._pieces: dict[int, str] = {}
        self.notes: list[str] = []
        """What differs from the plain use of a template, in words."""
        bos = tokenizer.bos_token_id
        head = list(tokenizer("a")["input_ids"])[:1]
        self._added_bos = head if bos is not None and head == [bos] else []
        self.template = self._used_template = self._find_template()
        if self.template is not None and _CLOCK in self.template:
            macro = f"{{%- macro {_CLOCK}(format) -%}}{_DATE}{{%- endmacro -%}}"
            self._used_template = macro + self.template
            self.notes.append(f"the chat template's date is always {_DATE}")
        self._merges_system = self.template is not None and self._drops_system()
        if self._merges_system:
            self.notes.append("system message merged into the first user message")
        if self.template is None:
            self.notes.append("no chat template: 'System: / User: / Assistant:' lines")

    @property
    def template_sha256(self) -> str | None:
        """SHA-256 of the template's text, None without a template."""
        if self.template is None:
            return None
        return hashlib.sha256(self.template.encode()).hexdigest()

    def render(self, messages: Sequence[Message]) -> str:
        """Return the text of a prompt that asks for the assistant's next message.

        Raises:
            InvalidSpec: There is no message, or the template refuses these roles.
        """
        if not messages:
            raise InvalidSpec("a conversation without messages has no prompt: add one")
        pairs: list[tuple[str, str]]
        pairs = [(message.role, message.content) for message in messages]
        if self.template is None:
            shown = [f"{role.capitalize()}:\n{content}\n\n" for role, content in pairs]
            return "".join([*shown, "Assistant:\n"])
        if self._merges_system:
            pairs = _merge_system(pairs)
        try:
            return self._apply(pairs)
        except Exception as error:
            roles = ", ".join(role for role, _ in pairs)
            raise InvalidSpec(
                f"the model's chat template refuses the roles {roles}: {error}"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of a whole prompt, with one BOS where the tokenizer adds it.

        A text that begins with the BOS already gets no second one.
        """
        ids = self._encode(text)
        if self._added_bos and ids[:1] != self._added_bos:
            return [*self._added_bos, *ids]
        return ids

    def prompt(
        self, messages: Sequence[Message], last: Transcript | None
    ) -> tuple[str, list[int]]:
        """Return the text and the ids of a prompt.

        Args:
            messages: The conversation so far.
            last: Its last prompt and reply, if there was one.
        """
        text = self.render(messages)
        if last is None or not _repeats(messages, last):
            return text, self.encode(text)
        shown = last.text + last.reply_text
        if not text.startswith(shown):
            return text, self.encode(text)
        ids, rest = [*last.ids, *last.reply_ids], text[len(shown) :]
        if last.reply_ids and last.reply_ids[-1] in self._end_ids:
            # The template writes its own end of a message: the sampled one stands
            # for it if it is the same, and is not part of the message otherwise.
            end = self._tokenizer.convert_ids_to_tokens(last.reply_ids[-1])
            if rest.startswith(end):
                rest = rest[len(end) :]
            else:
                ids.pop()
        return text, ids + self.encode_inside(rest)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without special tokens."""
        with self._lock:
            text: str = self._tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text

    def piece(self, token: int) -> str:
        """Return the text of one id alone."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self.decode([token])
        return found

    def _encode(self, text: str) -> list[int]:
        with self._lock:
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_inside(self, text: str) -> list[int]:
        """Return the ids of a text that does not begin the prompt.

        Some tokenizers put a space before the first word of a text; behind a special
        token, which never merges with its neighbours, they do what they do inside.
        """
        anchor = self._tokenizer.eos_token
        if anchor is not None:
            ids = self._encode(anchor + text)
            if ids[:1] == [self._tokenizer.eos_token_id]:
                return ids[1:]
        return self._encode(text)

    def _apply(self, pairs: Sequence[tuple[str, str]]) -> str:
        messages = [{"role": role, "content": content} for role, content in pairs]
        text: str = self._tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=True,
            chat_template=self._used_template,
        )
        return text

    def _find_template(self) -> str | None:
        try:
            template: str = self._tokenizer.get_chat_template()
        except ValueError:
            return None
        return template

    def _drops_system(self) -> bool:
        try:
            return _PROBE not in self._apply([("system", _PROBE), ("user", "hello")])
        except Exception:  # templates refuse by any exception Jinja can raise
            return True


def _merge_system(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs with leading system texts at the head of the first user's."""
    system = [content for role, content in pairs if role == "system"]
    rest = [(role, content) for role, content in pairs if role != "system"]
    if not system:
        return rest
    if not rest or rest[0][0] != "user":
        rest.insert(0, ("user", ""))
    merged = "\n\n".join(part for part in [*system, rest[0][1]] if part)
    return [("user", merged), *rest[1:]]


def _repeats(messages: Sequence[Message], last: Transcript) -> bool:
    """Return whether the newest assistant message is the reply that was sampled."""
    replies = [message for message in messages if message.role == "assistant"]
    if not replies or replies[-1].content != last.reply_text:
        return False
    return replies[-1].token_ids in (None, last.reply_ids)
