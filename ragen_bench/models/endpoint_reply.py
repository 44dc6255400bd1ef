"""The body of an answer to a `Completion`: strict where a reply hangs on it.

A body is JSON in UTF-8, of a JSON content type if it has any.  As in nearly all
readers of JSON, the last of duplicate fields counts, and their order means nothing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_bench.model import Completion, FinishReason, Sampling, Usage
from ragen_bench.models.endpoint_client import Answer
from ragen_bench.models.endpoint_faults import (
    Fault,
    FaultKind,
    error_in_success,
    judge,
)
from ragen_bench.models.endpoint_key import Key

_FINISHES: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
}
"""What servers call the two ends that a reply can have."""

_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_TEXT_BLOCKS = frozenset({"text", "output_text"})
_THOUGHT_BLOCKS = frozenset({"reasoning", "thinking"})
_SILENT_BLOCKS = frozenset({"redacted_thinking", "encrypted_reasoning"})
_TEXT_FIELDS = ("text", "thinking", "reasoning", "content", "summary", "value")
_MOST_TOKENS = 10**12
_LONGEST_FACT = 200
_RESTORED = "the stop string, which the server cut off, was put back"
_GUESSED = "the stop string was put back, for the server does not say what it cut off"
_CUT = "the text was cut behind the stop string, at which the server did not stop"


class BadReply(Exception):
    """An answer with a good status that is no reply."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def read_reply(
    answer: Answer, sent: Mapping[str, Any], sampling: Sampling, key: Key
) -> Completion:
    """Return the reply that an answer of status 200 holds.

    The stop string that ended a reply is part of its text, as it is with models in
    this process.  Servers cut it off.  Where one tells which string it was
    (``stop_reason`` of vLLM, ``matched_stop`` of SGLang), that one is put back; where
    one tells nothing, ``</answer>`` is put back behind an ``<answer>`` that is still
    open.  Text behind the first stop string is cut off.

    Raises:
        BadReply: It holds none.
    """
    try:
        body = parse_body(answer)
        failure = error_in_success(body, answer)
        if failure is not None:
            fault = judge(failure, sent)
            assert fault is not None
            raise BadReply(fault)
        return _completion(body, sent, sampling, key)
    except RecursionError:
        raise _bad("malformed", "malformed body: it is nested too deeply") from None


def parse_body(answer: Answer) -> dict[str, Any]:
    """Return the JSON object that an answer holds.

    Raises:
        BadReply: It holds none.
    """
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise _bad(
            "malformed",
            f"malformed body: its type is {kind!r:.80}, not application/json",
        )
    try:
        body = json.loads(answer.body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _bad("malformed", f"malformed body: not UTF-8 ({error.reason})") from None
    except ValueError as error:
        raise _bad("malformed", f"malformed body: not JSON ({error})") from None
    if not isinstance(body, dict):
        raise _bad("malformed", f"malformed body: {type(body).__name__}, not an object")
    return body


def _completion(
    body: Mapping[str, Any], sent: Mapping[str, Any], sampling: Sampling, key: Key
) -> Completion:
    choice = _first(body.get("choices"))
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _bad("malformed", "malformed body: its choice has no message")
    text, thoughts, refusal = _contents(message)
    named = choice.get("finish_reason")
    if named == "content_filter" or refusal:
        said = f": {refusal}" if refusal else ""
        raise _bad("filtered", f"the provider's filter refused the reply{said:.300}")
    finish = _FINISHES.get(named) if isinstance(named, str) else None
    if finish is None:
        raise _bad(
            "final",
            f"finish_reason is {named!r:.80}, but must be 'stop' or 'length'; "
            "ragen-bench doctor shows what the server sends",
        )
    text, finish, note = _end_at_stop(text, choice, finish, sent, sampling)
    thinking = "\n".join(thoughts) or None
    # Who thought and then said nothing has replied; who did neither has not.
    usage = _usage(body.get("usage"))
    if finish == "stop" and thinking is None and not text.strip():
        message = "the reply is empty although its finish reason is 'stop'"
        raise BadReply(Fault(kind="empty", message=message, usage=usage))
    return Completion(
        text=key.hide(text),
        thinking=None if thinking is None else key.hide(thinking),
        usage=usage,
        finish_reason=finish,
        details=_details(body, note, key),
    )


def _first(choices: object) -> Mapping[str, Any]:
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _bad("malformed", "malformed body: it has no choices")
    return choices[0]


def _contents(message: Mapping[str, Any]) -> tuple[str, list[str], str]:
    """Return text, thoughts and refusal of a message."""
    spoken, thoughts, refusals = [], list[str](), [_plain(message.get("refusal"))]
    for name in _THOUGHT_FIELDS:
        thought = _plain(message.get(name))
        if thought.strip():
            # Servers that know two names for it fill both with the same.
            thoughts.append(thought)
            break
    content = message.get("content")
    if isinstance(content, str):
        spoken.append(content)
    elif isinstance(content, list):
        for block in content:
            kind = "text" if isinstance(block, str) else _kind(block)
            if kind in _TEXT_BLOCKS:
                spoken.append(_plain(block))
            elif kind in _THOUGHT_BLOCKS:
                thoughts.append(_plain(block))
            elif kind == "refusal":
                refusals.append(_plain(block.get("refusal")) or "no reason given")
            elif kind not in _SILENT_BLOCKS:
                raise _bad(
                    "malformed", f"malformed body: a content block of type {kind!r:.80}"
                )
    elif content is not None:
        raise _bad(
            "malformed", f"malformed body: its content is {type(content).__name__}"
        )
    said = "".join(refusals).strip()
    return "".join(spoken), [thought for thought in thoughts if thought.strip()], said


def _kind(block: object) -> object:
    return block.get("type") if isinstance(block, dict) else type(block).__name__


def _plain(value: object) -> str:
    """Return the text of a string, of a block of text or of a list of them."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, list):
        return "".join(map(_plain, value))
    if isinstance(value, dict):
        found = (_plain(value[name]) for name in _TEXT_FIELDS if name in value)
        return next((text for text in found if text), "")
    return ""


def whole(text: str) -> str:
    """Return text that UTF-8 can hold; a lone surrogate becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _end_at_stop(
    text: str,
    choice: Mapping[str, Any],
    finish: FinishReason,
    sent: Mapping[str, Any],
    sampling: Sampling,
) -> tuple[str, FinishReason, str | None]:
    """Return a text that ends with the string that stopped it, and what was changed."""
    text = whole(text)
    ends = [text.find(stop) + len(stop) for stop in sampling.stop if stop in text]
    if ends:
        cut = text[: min(ends)]
        # White space behind the string is no sign that the server went on.
        note = _CUT if text[len(cut) :].strip() or finish == "length" else None
        return cut, "stop", note
    if finish == "length":
        return text, finish, None
    told = [choice[name] for name in ("stop_reason", "matched_stop") if name in choice]
    for reason in told:
        if isinstance(reason, str) and reason in sampling.stop:
            return text + reason, finish, _RESTORED
    if told or "stop" not in sent:
        return text, finish, None
    guess = _open_tag(text, sampling.stop)
    return (text + guess, finish, _GUESSED) if guess else (text, finish, None)


def _open_tag(text: str, stops: Sequence[str]) -> str | None:
    """Return the stop string that closes a tag which the text leaves open."""
    for stop in stops:
        tag = re.fullmatch("</([A-Za-z_]+)>", stop)
        if tag and re.search(rf"<\s*{tag[1]}\s*>", text, re.IGNORECASE):
            return stop
    return None


def _usage(usage: object) -> Usage:
    """Return the tokens that a server tells; what it does not say is None."""
    if not isinstance(usage, dict):
        return Usage()
    cached = _inner(usage, "prompt_tokens_details", "cached_tokens")
    if cached is None:
        cached = _tokens(usage.get("prompt_cache_hit_tokens"))
    return Usage(
        input_tokens=_tokens(usage.get("prompt_tokens")),
        cached_tokens=cached,
        output_tokens=_tokens(usage.get("completion_tokens")),
        reasoning_tokens=_inner(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def _inner(usage: Mapping[str, Any], group: str, name: str) -> int | None:
    details = usage.get(group)
    return _tokens(details.get(name)) if isinstance(details, dict) else None


def _tokens(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _details(body: Mapping[str, Any], note: str | None, key: Key) -> dict[str, Any]:
    names = {
        "response_id": "id",
        "system_fingerprint": "system_fingerprint",
        "served_model": "model",
    }
    facts: dict[str, Any] = {}
    for name, field in names.items():
        value = body.get(field)
        if isinstance(value, str) and value:
            facts[name] = key.hide(whole(value)[:_LONGEST_FACT])
    if note:
        facts["notes"] = [note]
    return facts


def _bad(kind: FaultKind, message: str) -> BadReply:
    return BadReply(Fault(kind=kind, message=message))
