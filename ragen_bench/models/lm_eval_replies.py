"""Replies of lm-eval's models together with what lm-eval drops from them.

lm-eval hands over bare text: cut at the stop string, without the reasoning if it was
told where that ends, without token ids, finish reason or usage.  The text that these
hooks put in its place is a string like any other that carries the facts along, through
cutting, sorting and caching.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from ragen_bench.model import FinishReason, Usage

_FINISHED: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}
"""What providers call an end that is not the model's own."""


_CLOSE = "</answer>"
_OPEN = re.compile(r"<\s*answer\s*>(?!.*<\s*/\s*answer\s*>)", re.IGNORECASE | re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a reply, apart from the text that lm-eval makes of it."""

    text: str
    """The whole text, uncut."""
    token_ids: tuple[int, ...] | None = None
    """All ids that were generated, with those behind the end; None if unknown."""
    thinking: str | None = None
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class TracedText(str):
    """A text that carries `Facts`; what is cut from it carries them too."""

    __slots__ = ("facts",)
    facts: Facts

    def __new__(cls, text: str, facts: Facts) -> "TracedText":
        """Return a text with facts."""
        made = super().__new__(cls, text)
        made.facts = facts
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return TracedText, (str(self), self.facts)

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        """Return the parts, each with the facts of the whole."""
        parts = super().split(sep, maxsplit)
        return [TracedText(part, self.facts) for part in parts]

    def lstrip(self, chars: str | None = None) -> "TracedText":
        """Return the text without what it begins with, with the same facts."""
        return TracedText(super().lstrip(chars), self.facts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """A reply up to its end."""

    text: str
    tokens: int
    ended: bool
    """Whether it came to its end, or else ran out of tokens."""


def trim(
    token_ids: Sequence[int],
    end_ids: Set[int],
    stops: Sequence[str],
    decode: Callable[[list[int]], str],
) -> Trimmed:
    """Return a reply up to its end; in a batch its tokens go on behind that.

    The stop string that ended it is part of the text.
    """
    ids = list(token_ids)
    ends = [place for place, token in enumerate(ids) if token in end_ids]
    ids = ids[: ends[0] + 1] if ends else ids
    text = decode(ids)
    cut = _first_end(text, stops)
    if cut is None:
        return Trimmed(text=text, tokens=len(ids), ended=bool(ends))
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        if _first_end(decode(ids[:middle]), stops) is None:
            low = middle + 1
        else:
            high = middle
    return Trimmed(text=text[:cut], tokens=low, ended=True)


def close_answer(text: str, stops: Sequence[str]) -> str:
    """Return a text with the end of an answer that was cut off as a stop string."""
    return text + _CLOSE if _CLOSE in stops and _OPEN.search(text) else text


def _first_end(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first stop string of a text ends."""
    ends = [at + len(stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    return min(ends, default=None)


def trace_tokens(lm: Any) -> None:
    """Let the texts of a model of transformers carry their token ids."""
    decode = lm.tok_decode
    if getattr(decode, "traces", False):
        return

    def tok_decode(tokens: Any, skip_special_tokens: bool = True) -> str:
        text: str = decode(tokens, skip_special_tokens=skip_special_tokens)
        if not isinstance(tokens, list):
            return text
        return TracedText(text, Facts(text=text, token_ids=tuple(tokens)))

    tok_decode.traces = True  # type: ignore[attr-defined]
    lm.tok_decode = tok_decode


def trace_responses(lm: Any) -> None:
    """Let the texts of a served model carry what the server said of them."""
    parse = lm.parse_generations
    if getattr(parse, "traces", False):
        return

    def parse_generations(outputs: Any, **options: Any) -> Sequence[str | None]:
        return _traced(parse, outputs, options)

    parse_generations.traces = True  # type: ignore[attr-defined]
    lm.parse_generations = parse_generations


def _traced(
    parse: Callable[..., Sequence[str | None]], outputs: Any, options: Mapping[str, Any]
) -> Sequence[str | None]:
    responses = outputs if isinstance(outputs, list) else [outputs]
    facts = [
        found
        for response in responses
        if isinstance(response, dict)
        for found in _read(response)
    ]
    try:
        texts = list(parse(outputs=outputs, **options))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        if not facts:
            raise
        texts = []
    if not facts:
        return texts
    if len(texts) != len(facts):
        # A response of several blocks: lm-eval takes each for an answer.
        texts = [found.text for found in facts]
    return [
        TracedText(text or "", found) for text, found in zip(texts, facts, strict=True)
    ]


def _read(response: Mapping[str, Any]) -> list[Facts]:
    """Return the facts of each choice of a response of a form that is known.

    Raises:
        ValueError: It holds no choice.
    """
    if isinstance(response.get("content"), list):
        return [_read_blocks(response)]
    choices = response.get("choices")
    if not isinstance(choices, list):
        return []
    if not choices:
        raise ValueError("the response holds no choice")
    ordered = sorted(choices, key=lambda choice: choice.get("index") or 0)
    return [_read_choice(response, choice) for choice in ordered]


def _read_choice(response: Mapping[str, Any], choice: Mapping[str, Any]) -> Facts:
    message = choice.get("message") or {}
    thinking = message.get("reasoning_content") or message.get("reasoning")
    text = message.get("content") if message else choice.get("text")
    if isinstance(text, list):
        text = "".join(str(part.get("text") or "") for part in text)
    return Facts(
        text=text or "",
        thinking=thinking if isinstance(thinking, str) else None,
        finish_reason=_FINISHED.get(str(choice.get("finish_reason")), "stop"),
        usage=_read_usage(response.get("usage") or {}),
        details=_read_details(response, ("id", "system_fingerprint")),
    )


def _read_blocks(response: Mapping[str, Any]) -> Facts:
    """Return the facts of a response of Anthropic's form."""
    blocks = [block for block in response["content"] if isinstance(block, dict)]
    thoughts = [str(block["thinking"]) for block in blocks if block.get("thinking")]
    return Facts(
        text="".join(str(block.get("text") or "") for block in blocks),
        thinking="\n".join(thoughts) or None,
        finish_reason=_FINISHED.get(str(response.get("stop_reason")), "stop"),
        usage=_read_block_usage(response.get("usage") or {}),
        details=_read_details(response, ("id",)),
    )


def _read_usage(found: Mapping[str, Any]) -> Usage:
    asked = found.get("prompt_tokens_details") or {}
    told = found.get("completion_tokens_details") or {}
    return Usage(
        input_tokens=_count(found, "prompt_tokens", "input_tokens"),
        cached_tokens=_count(asked, "cached_tokens"),
        output_tokens=_count(found, "completion_tokens", "output_tokens"),
        reasoning_tokens=_count(told, "reasoning_tokens"),
    )


def _read_block_usage(found: Mapping[str, Any]) -> Usage:
    """Return the tokens of Anthropic's form, whose input lacks those of a cache."""
    read = _count(found, "cache_read_input_tokens")
    written = _count(found, "cache_creation_input_tokens")
    fresh = _count(found, "input_tokens")
    return Usage(
        input_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
        cached_tokens=read,
        output_tokens=_count(found, "output_tokens"),
    )


def _count(found: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = found.get(name)
        if type(value) is int:
            return value
    return None


def _read_details(response: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    return {
        name: response[name] for name in names if isinstance(response.get(name), str)
    }
