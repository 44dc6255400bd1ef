"""What a failure of an endpoint means: another attempt, one episode, or the whole run.

Only what the server says decides, never the name of a model.
"""

import dataclasses
import datetime
import email.utils
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeAlias

from ragen_bench.model import Usage
from ragen_bench.models.endpoint_client import Answer

FaultKind: TypeAlias = Literal[
    "transient", "malformed", "empty", "final", "filtered", "context", "refusal"
]
_LONGEST_QUOTE = 300
_TRANSIENT = frozenset({408, 409, 425, 429})
_OVERLOADED = frozenset({408, 425, 429})
_MAYBE_CONTEXT = frozenset({400, 413, 422})

_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_CONTEXT = re.compile(
    r"maximum context|max_model_len|maximum (?:model|input|sequence) length"
    r"|context[ _-]?(?:length|size|window)|too many (?:input |prompt )?tokens"
    r"|(?:prompt|input) (?:is |was )?too long|max_new_tokens` must be <="
    r"|exceeds? (?:the )?(?:model'?s? )?(?:available |maximum )?context",
    re.IGNORECASE,
)
_NO_CREDIT_CODES = frozenset(
    {
        "insufficient_quota",
        "insufficient_balance",
        "insufficient_credits",
        "insufficient_funds",
        "billing_hard_limit_reached",
        "billing_not_active",
        "access_terminated",
    }
)
_NO_CREDIT = re.compile(
    r"insufficient (?:account )?(?:balance|credit|fund|quota)|out of credits?"
    r"|credit balance is too low|no credits? (?:left|remaining)"
    r"|balance is (?:empty|not enough|insufficient)",
    re.IGNORECASE,
)
_ABOUT_KEY = re.compile(
    r"api[ _-]?key|\bkey\b|\btoken\b|credential|authenti|authori[sz]|permission"
    r"|account|billing|organi[sz]ation|project|country|region|does not have access",
    re.IGNORECASE,
)
_REFUSES = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not (?:permitted"
    r"|allowed)|extra (?:inputs|fields)|invalid|deprecated|instead|only the default"
    r"|must be|does not (?:take|accept)|is too (?:large|small|high|low)",
    re.IGNORECASE,
)
_WAYS_OUT = {
    "max_tokens": "give --model-arg max_tokens_field=max_completion_tokens, or a "
    "smaller --max-tokens if the number is what it refuses",
    "max_completion_tokens": "give --model-arg max_tokens_field=max_tokens, or a "
    "smaller --max-tokens if the number is what it refuses",
    "temperature": "give --model-arg omit=temperature, or a --temperature it takes",
    "top_p": "give --model-arg omit=top_p",
    "stop": "give --model-arg send_stop=false",
    "seed": "give --model-arg omit=seed",
    "system": "give --model-arg system=merge",
    "developer": "give --model-arg system=system or system=merge",
    "reasoning_content": "give --model-arg send_reasoning=false",
    "reasoning": "give --model-arg send_reasoning=false",
}
_UNMISTAKABLE = frozenset(
    {"max_tokens", "max_completion_tokens", "temperature", "top_p", "reasoning_content"}
)
"""Names that are no words of plain English; others count only where they are quoted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why there is no reply."""

    kind: FaultKind
    """``transient`` passes; ``malformed`` and ``empty`` are asked for once more;
    ``final`` ends the episode, ``filtered`` as well, though the server is alive;
    ``context`` is an overflow; ``refusal`` ends the run."""
    message: str
    retry_after: float | None = None
    """Seconds that the server asks to wait."""
    overload: bool = False
    """Whether fewer requests at once might have gone through."""
    usage: Usage | None = None
    """What an answer that is not used will be billed for, None if there was none."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Told:
    """What the body of an error says."""

    message: str
    codes: frozenset[str]
    """``code``, ``type`` and ``status``, in lower case."""
    param: str | None


def judge(answer: Answer, sent: Mapping[str, Any]) -> Fault | None:
    """Return what an answer's status means, None for a success.

    Args:
        answer: What came back.
        sent: The body of the request.
    """
    status = answer.status
    if 200 <= status < 300:
        return None
    told = _read_error(answer.body)
    words = f"status {status}: {told.message}" if told.message else f"status {status}"
    if status in _MAYBE_CONTEXT and _is_context(told):
        return Fault(kind="context", message=f"the prompt does not fit ({words})")
    if (
        status == 402
        or told.codes & _NO_CREDIT_CODES
        or _NO_CREDIT.search(told.message)
    ):
        return Fault(
            kind="refusal",
            message=f"the account has no credit left ({words}); top it up, then run "
            "the same command again",
        )
    if status == 401 or (status == 403 and _is_about_key(told)):
        return Fault(kind="refusal", message=f"the server refuses the key ({words})")
    if status in _TRANSIENT or status >= 500:
        return Fault(
            kind="transient",
            message=f"the server answered with {words}",
            retry_after=retry_after(answer.headers),
            overload=status in _OVERLOADED or status >= 500,
        )
    if status in (400, 422) and (name := _refused_parameter(told, sent)):
        return Fault(
            kind="refusal",
            message=f"the server refuses {name} ({words}); {_way_out(name)}; "
            "ragen-bench doctor --model with the same arguments finds what it takes",
        )
    return Fault(
        kind="final", message=f"the server refuses it with {words}{_hint(answer)}"
    )


def _hint(answer: Answer) -> str:
    if answer.status == 404:
        return "; look at the model's name and at the end of --base-url, often /v1"
    place = answer.headers.get("location")
    if 300 <= answer.status < 400 and place:
        return f"; it points to {place:.200}: give that place as --base-url"
    return ""


def error_text(answer: Answer) -> str:
    """Return what the body of an error says, in one line."""
    return _read_error(answer.body).message


def refused_parameter(body: bytes, sent: Mapping[str, Any]) -> str | None:
    """Return the parameter that the body of an error refuses, None if it names none.

    Args:
        body: Of an answer with status 400 or 422.
        sent: The body of the request.
    """
    return _refused_parameter(_read_error(body), sent)


def error_in_success(body: Mapping[str, Any], answer: Answer) -> Answer | None:
    """Return the failure that a body holds although its status is a success.

    Routers answer so when what stands behind them has failed.
    """
    error = body.get("error")
    if not isinstance(error, dict) or body.get("choices"):
        return None
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return dataclasses.replace(answer, status=status)


def _read_error(body: bytes) -> _Told:
    text = body[:65536].decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _Told(_one_line(re.sub("<[^<>]*>", " ", text)), frozenset(), None)
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return _Told(_one_line(str(value)), frozenset(), None)
    error = value.get("error")
    inner = error if isinstance(error, dict) else value
    said = inner.get("message") or inner.get("detail")
    if not said:
        said = error if isinstance(error, str) else text
    codes = {str(inner.get(name)).lower() for name in ("code", "type", "status")}
    param = inner.get("param")
    words = said if isinstance(said, str) else json.dumps(said)
    return _Told(
        _one_line(words), frozenset(codes), param if isinstance(param, str) else None
    )


def _one_line(text: str) -> str:
    # Cut before the split, which would make a list of a megabyte of words.
    line = " ".join(text[: 16 * _LONGEST_QUOTE].split())
    return line if len(line) <= _LONGEST_QUOTE else f"{line[:_LONGEST_QUOTE]}..."


def _is_context(told: _Told) -> bool:
    return bool(told.codes & _CONTEXT_CODES or _CONTEXT.search(told.message))


def _is_about_key(told: _Told) -> bool:
    return bool(_ABOUT_KEY.search(" ".join([told.message, *told.codes])))


def _refused_parameter(told: _Told, sent: Mapping[str, Any]) -> str | None:
    """Return the parameter of ours that an error refuses, None if it names none."""
    names = _sent_names(sent)
    if told.param is not None:
        whole = told.param.partition("[")[0].partition(".")[0]
        for name in names:
            if name == whole:
                return name
    coded = told.codes & {"unsupported_parameter", "unsupported_value"}
    if not coded and not _REFUSES.search(told.message):
        return None
    for name in names:
        word = re.escape(name)
        quoted = rf"[\"'`]{word}[\"'`]|\b{word} (?:parameter|argument|field|role)\b"
        quoted += rf"|\b(?:parameter|argument|field|role):? {word}\b"
        pattern = rf"\b{word}\b" if name in _UNMISTAKABLE else quoted
        if re.search(pattern, told.message, re.IGNORECASE):
            return name
    return None


def _sent_names(sent: Mapping[str, Any]) -> list[str]:
    """Return the parameters of a request that have a setting, longest names first."""
    names = set(sent) - {"model", "messages"}
    messages: Collection[Mapping[str, Any]] = sent.get("messages", ())
    for message in messages:
        names |= {"system", "developer"} & {message.get("role")}
        names |= {"reasoning", "reasoning_content"} & message.keys()
    return sorted(names, key=lambda name: (-len(name), name))


def _way_out(name: str) -> str:
    return _WAYS_OUT.get(name, f"take {name} out of --model-arg extra_body")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds a server asks to wait, None if it does not say.

    It may say so in milliseconds, in seconds or as an HTTP date.  A date counts from
    the server's own clock if the answer tells it.

    Args:
        headers: By lower-case name.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        number = _number(headers.get(name, ""))
        if number is not None:
            return number * unit
    until = _moment(headers.get("retry-after", ""))
    if until is None:
        return None
    now = _moment(headers.get("date", "")) or datetime.datetime.now(datetime.UTC)
    return max(0.0, (until - now).total_seconds())


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _moment(text: str) -> datetime.datetime | None:
    try:
        found = email.utils.parsedate_to_datetime(text)
        # A date without a zone is one in UTC, as HTTP dates are.
        if found.tzinfo is None:
            found = found.replace(tzinfo=datetime.UTC)
        return found.astimezone(datetime.UTC)
    except (IndexError, OverflowError, TypeError, ValueError):
        return None
