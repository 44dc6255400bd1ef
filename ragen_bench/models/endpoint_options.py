"""How an HTTP endpoint is asked: model arguments, checked."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.models.endpoint_key import Key

HOSTED = "https://api.openai.com/v1"

TokensField: TypeAlias = Literal["max_tokens", "max_completion_tokens"]
SystemRole: TypeAlias = Literal["system", "developer", "merge"]
SentReasoning: TypeAlias = Literal["none", "reasoning_content", "reasoning", "inline"]

OMITTABLE = ("temperature", "top_p", "stop", "seed")
_OURS = frozenset(
    {"model", "messages", "stream", "n", *get_args(TokensField), *OMITTABLE}
)
_LOOPBACK = ("localhost", "::1")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """What is sent to an endpoint, and how long its answer is waited for."""

    base_url: str = HOSTED
    max_tokens_field: TokensField = "max_tokens"
    """The field that bounds the tokens of a reply."""
    omit: frozenset[str] = frozenset()
    """Fields of `OMITTABLE` that are not sent."""
    extra_body: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further fields of every request."""
    system: SystemRole = "system"
    """The role of the rules; ``merge`` puts them into the first user message."""
    send_reasoning: SentReasoning = "none"
    """The field in which a reply's reasoning goes back on later turns."""
    max_in_flight: int = 64
    """Requests of one event loop at once, at most."""
    timeout: float = 120.0
    """Seconds of one attempt."""
    patience: float = 600.0
    """Seconds of one reply: all attempts and the waits between them."""
    retries: int = 8
    """Further attempts after faults that pass."""
    backoff: float = 0.5
    """Seconds of the first wait; each later one is twice as long, up to 30."""

    @property
    def is_loopback(self) -> bool:
        """Whether the server runs on this machine."""
        host = urlsplit(self.base_url).hostname or ""
        return host in _LOOPBACK or host.startswith("127.")

    @property
    def sends_stop(self) -> bool:
        """Whether the server is told at which strings a reply ends."""
        return "stop" not in self.omit

    def sent(self) -> list[str]:
        """Return the names of the fields that each request holds, but for the model."""
        kept = [name for name in OMITTABLE if name not in self.omit]
        return sorted({self.max_tokens_field, *kept, *self.extra_body})


def parse_base_url(url: object) -> str:
    """Return an address without a slash at its end.

    Raises:
        InvalidSpec: It is none, or holds what must not be written into a record.
    """
    text = url.strip() if isinstance(url, str) else ""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        sound = False
    if sound and (parts.username is not None or parts.password is not None):
        # The address is recorded, so it is not repeated here either.
        raise InvalidSpec(
            "base_url holds a user or password, which run.json would keep; put the "
            "key into an environment variable and name it with "
            "--model-arg api_key_env=NAME"
        )
    if sound and (parts.query or parts.fragment):
        raise InvalidSpec(
            "base_url holds a query or fragment, which may hold a key and would be "
            "kept in run.json; give the address without it"
        )
    if not sound or any(not "!" <= c <= "~" for c in text):
        raise InvalidSpec(
            f"base_url is {url!r:.120}, but must be an address such as "
            "http://127.0.0.1:8000/v1"
        )
    address = text.rstrip("/")
    if address.endswith("/chat/completions"):
        raise InvalidSpec(
            f"base_url is {url!r:.120}, but must be what stands before "
            "/chat/completions"
        )
    return address


def parse_omit(value: object, send_stop: bool) -> frozenset[str]:
    """Return the fields that are not sent, from a comma list or a list of names.

    Raises:
        UnknownName: A name is none of `OMITTABLE`.
        InvalidSpec: It is no list.
    """
    if isinstance(value, str):
        names = [name.strip() for name in value.split(",")]
    elif isinstance(value, list | tuple):
        names = list(value)
    else:
        raise InvalidSpec(f"omit is {value!r:.80}, but must be a list of names")
    found = {name for name in names if name != ""}
    for name in found:
        if name not in OMITTABLE:
            raise UnknownName.of("parameter to omit", name, OMITTABLE)
    return frozenset(found if send_stop else {*found, "stop"})


def parse_extra_body(value: object) -> dict[str, Any]:
    """Return further fields of a request, from a JSON object or its text.

    Raises:
        InvalidSpec: It is no JSON object, or holds a field that has a setting.
    """
    try:
        fields = json.loads(value) if isinstance(value, str) else value
        fields = json.loads(json.dumps(fields, allow_nan=False))
    except (TypeError, ValueError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidSpec(
            f"extra_body is {value!r:.80}, but must be a JSON object such as "
            '{"top_k": 20}'
        )
    taken = sorted(fields.keys() & _OURS)
    if taken:
        raise InvalidSpec(
            f"extra_body holds {taken[0]!r}, which a setting of the run decides; "
            "leave it out"
        )
    return fields


def parse_send_reasoning(value: object) -> SentReasoning:
    """Return the field in which reasoning goes back; false means none.

    Raises:
        UnknownName: There is no such way.
    """
    if value is None or str(value).lower() == "false":
        return "none"
    way: SentReasoning = one_of("send_reasoning", value, get_args(SentReasoning))
    return way


def one_of(name: str, value: object, known: tuple[str, ...]) -> Any:
    """Return a value that is one of several.

    Raises:
        UnknownName: It is none of them.
    """
    if value not in known:
        raise UnknownName.of(f"value of {name}", value, known)
    return value


def refuse_key(key: Key, base_url: str, extra_body: Mapping[str, Any]) -> None:
    """Refuse settings that hold the key, for a record keeps them.

    Raises:
        InvalidSpec: One does.
    """
    written = {"base_url": base_url, "extra_body": json.dumps(extra_body)}
    for name, text in written.items():
        if key.hide(text) != text:
            raise InvalidSpec(
                f"{name} holds the key, which run.json would keep; leave it to the "
                "environment variable"
            )


def positive(name: str, value: object) -> float:
    """Return an argument as a finite number above 0.

    Raises:
        InvalidSpec: It is none.
    """
    number = math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (OverflowError, ValueError):
            number = math.nan
    if not 0 < number < math.inf:
        raise InvalidSpec(f"{name} is {value!r:.80}, but must be a number above 0")
    return number


def count_from_zero(name: str, value: object) -> int:
    """Return an argument as a whole number of at least 0.

    Raises:
        InvalidSpec: It is none.
    """
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value[:9])
    if type(value) is not int or value < 0:
        raise InvalidSpec(f"{name} is {value!r:.80}, but must be a whole number >= 0")
    return value
