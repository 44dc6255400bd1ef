"""Messages to prompt text and token ids, as a model's own tokenizer defines them.

What a model sampled in earlier turns goes back as the very ids it sampled, as long
as the template repeats its text; a template that rewrites history, by leaving out
earlier thoughts say, is tokenised afresh.
"""

import dataclasses
import functools
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ragen_bench.model import Message
from ragen_bench.models.prompt_template import Template

_THOUGHT_TAG = re.compile(r"</?(?:think(?:ing)?|reasoning|thought|answer)>")
_ANYTHING = ("a", ".", "1")


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
        template_args: Handed to the template, such as ``{"enable_thinking": False}``.

    Raises:
        InvalidSpec: The template reads no such argument.
    """

    def __init__(
        self,
        tokenizer: Any,
        end_ids: Collection[int] = (),
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._size = len(tokenizer)
        self._backend = _plain_backend(tokenizer)
        # Episodes of one instance begin alike, and often go on alike.
        self._encode_once = functools.lru_cache(maxsize=1024)(self._ids_of)
        self._lock = threading.Lock()
        self._pieces: dict[int, str] = {}
        special = zip(
            tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True
        )
        # Dropped with the special tokens, a thought would read as an answer.
        self._tags = {id: text for id, text in special if _THOUGHT_TAG.fullmatch(text)}
        # Added tokens may also be mere runs of spaces.
        added = tokenizer.get_added_vocab().items()
        self._markers = frozenset(tokenizer.all_special_ids).union(
            id for text, id in added if text.startswith("<") and text.endswith(">")
        )
        bos = tokenizer.bos_token_id
        head = list(tokenizer("a")["input_ids"])[:1]
        self._added_bos = head if bos is not None and head == [bos] else []
        self._template = Template(tokenizer, template_args)
        self.end_ids = frozenset(end_ids) | self._closing_ids()
        """Those given, and what the template writes behind an assistant's message."""

    @property
    def notes(self) -> list[str]:
        """What differs from the plain use of a template, in words."""
        return self._template.notes

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self._tokenizer

    @property
    def template_text(self) -> str | None:
        """The template, None if there is none."""
        return self._template.text

    @property
    def template_sha256(self) -> str | None:
        """SHA-256 of the template's text, None without a template."""
        return self._template.sha256

    def render(self, messages: Sequence[Message]) -> str:
        """Return the text of a prompt that asks for the assistant's next message.

        Raises:
            InvalidSpec: There is no message, or the template refuses these roles.
        """
        return self._template.render(messages)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a whole prompt, with one BOS where the tokenizer adds it.

        A text that begins with the BOS already gets no second one.
        """
        ids = self._encode(text)
        if self._added_bos and ids[:1] != self._added_bos:
            return [*self._added_bos, *ids]
        return ids

    def prompt(
        self, messages: Sequence[Message], last: Transcript | None = None
    ) -> tuple[str, list[int]]:
        """Return the text and the ids of a prompt.

        The ids that messages hold stand for their text wherever they say the same in
        this tokenizer, so that a conversation may come from elsewhere.

        Args:
            messages: The conversation so far.
            last: Its last prompt and reply, if they are known; it saves time.
        """
        text = self.render(messages)
        if last is None or not _repeats(messages, last) or not _goes_on(text, last):
            last = self._rebuild(messages, text)
        if last is None:
            return text, self.encode(text)
        ids, rest = [*last.ids, *last.reply_ids], text[len(last.text) :]
        rest = rest[len(last.reply_text) :]
        behind: Sequence[str] = _ANYTHING
        if last.reply_ids and last.reply_ids[-1] in self.end_ids:
            # The template writes its own end of a message: the sampled one stands
            # for it if it is the same, and is not part of the message otherwise.
            end = self._tokenizer.convert_ids_to_tokens(last.reply_ids[-1])
            if rest.startswith(end):
                rest, behind = rest[len(end) :], (end,)
            else:
                ids.pop()
        return text, ids + self.encode_inside(rest, behind)

    def _rebuild(self, messages: Sequence[Message], text: str) -> Transcript | None:
        """Return the newest sampled reply and the prompt it would have been given.

        None if there is none, or if the conversation's text does not repeat it.
        """
        index = max(
            (i for i, m in enumerate(messages) if m.role == "assistant"), default=0
        )
        reply, earlier = messages[index], messages[:index]
        if not earlier or not reply.token_ids:
            return None
        if not self._says(reply.token_ids, reply.content):
            return None
        last = Transcript(self.render(earlier), [], reply.content, reply.token_ids)
        if not _goes_on(text, last):
            return None
        last.ids = self.prompt(earlier)[1]
        return last

    def _says(self, ids: Sequence[int], content: str) -> bool:
        """Return whether ids are this tokenizer's for a reply, cut at a stop string."""
        known = all(0 <= id < self._size for id in ids)
        return known and self.decode(ids).startswith(content)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without special tokens but tags of thoughts.

        Tags count as text even where a tokenizer calls them special.
        """
        if self._tags.keys().isdisjoint(ids):
            return self._decode(ids)
        parts, run = [], list[int]()
        for id in ids:
            if id in self._tags:
                parts += [self._decode(run), self._tags[id]]
                run = []
            else:
                run.append(id)
        return "".join([*parts, self._decode(run)])

    def piece(self, token: int) -> str:
        """Return the text of one id alone."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self.decode([token])
        return found

    def _decode(self, ids: Sequence[int]) -> str:
        with self._lock:
            text: str = self._tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text

    def _encode(self, text: str) -> list[int]:
        return list(self._encode_once(text))

    def _ids_of(self, text: str) -> tuple[int, ...]:
        with self._lock:
            if self._backend is not None:
                # The tokenizer's own call does the same in twice the time.
                return tuple(self._backend.encode(text, add_special_tokens=False).ids)
            return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_inside(self, text: str, behind: Sequence[str] = _ANYTHING) -> list[int]:
        """Return the ids of a text that does not begin the prompt.

        Some tokenizers put a space before the first word of a text, or of what follows
        a special token.

        Args:
            text: What is encoded.
            behind: What it follows: texts of which one that does not merge with it
                is taken.
        """
        for before in behind:
            head, ids = self._encode(before), self._encode(before + text)
            if ids[: len(head)] == head:
                return ids[len(head) :]
        return self._encode(text)

    def _closing_ids(self) -> frozenset[int]:
        """Return the token that the template ends an assistant's message with."""
        first = self.encode_inside(self._template.closing())[:1]
        return self._markers.intersection(first)


def _plain_backend(tokenizer: Any) -> Any:
    """Return the Rust tokenizer beneath, if it alone decides the ids of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.truncation or backend.padding:
        return None
    probe = "<a> b\n\n" + "".join(tokenizer.all_special_tokens)
    ids = tokenizer(probe, add_special_tokens=False)["input_ids"]
    same = list(backend.encode(probe, add_special_tokens=False).ids) == list(ids)
    return backend if same else None


def _goes_on(text: str, last: Transcript) -> bool:
    """Return whether a prompt repeats the last one and the reply to it."""
    return text.startswith(last.text) and text.startswith(
        last.reply_text, len(last.text)
    )


def _repeats(messages: Sequence[Message], last: Transcript) -> bool:
    """Return whether the newest assistant message is the reply that was sampled."""
    replies = [message for message in messages if message.role == "assistant"]
    if not replies or replies[-1].content != last.reply_text:
        return False
    return replies[-1].token_ids in (None, last.reply_ids)
