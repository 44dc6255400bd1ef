"""Strict JSON of a stranger to a record: bounded, without duplicate keys or NaN.

What is too large, too deep or too much is refused before a parser sees it.
"""

import json
import re
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from ragen_bench.records import (
    MAX_DEPTH,
    MAX_INT,
    MAX_VALUES,
    SCHEMA,
    Record,
    first_fault,
)
from ragen_bench.verifying.faults import Refusal

R = TypeVar("R", bound=Record)

_MAX_DIGITS = 30
_MAX_STRINGS = 2 * (MAX_VALUES + 1)
"""Each value has one key at most."""

_DIGITS = re.compile(rb"[0-9]{%d}" % (_MAX_DIGITS + 1))
_LARGE = re.compile(rb"[0-9]{19}|[eE][+]?[0-9]{3}")
"""Only such a number can be out of range."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def read(kind: type[R], text: bytes, place: str) -> R:
    """Return the record that a text holds.

    Raises:
        Refusal: The text is not strict JSON, or not such a record.
    """
    held = parse(text, place)
    version = held.get("schema") if isinstance(held, dict) else None
    if type(version) is not int or version != SCHEMA:
        raise Refusal(
            "schema",
            place,
            f"schema is {version!r:.40}, but this version of ragen-bench reads "
            f"{SCHEMA}",
        )
    try:
        return kind.model_validate_json(text, strict=True)
    except ValidationError as error:
        # Such as half a character, which Python's own parser lets through.
        broken = error.errors(include_url=False)[0]["type"] == "json_invalid"
        code = "not_json" if broken else "schema"
        raise Refusal(code, place, first_fault(error)) from None


def parse(text: bytes, place: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        Refusal: The text is not strict JSON, or breaks a bound.
    """
    decoder = _bound(text, place)
    try:
        return decoder.decode(text.decode("utf-8"))
    except _Bad as error:
        raise Refusal(error.code, place, str(error)) from None
    except UnicodeDecodeError as error:
        raise Refusal("not_json", place, f"not UTF-8: {error.reason}") from None
    except (ValueError, RecursionError) as error:
        raise Refusal("not_json", place, f"not JSON: {error}") from None


def _bound(text: bytes, place: str) -> json.JSONDecoder:
    """Return the parser for a text; refuse what would cost it too much."""
    skeleton = _without_strings(text, place)
    values = skeleton.count(b",") + skeleton.count(b"[") + skeleton.count(b"{")
    if values > MAX_VALUES:
        raise Refusal("too_many", place, f"{values} values; at most {MAX_VALUES}")
    large = _LARGE.search(skeleton)
    if large and _DIGITS.search(skeleton):
        raise Refusal("bad_number", place, f"a number of over {_MAX_DIGITS} digits")
    depth = 0
    for bracket in skeleton.translate(None, _NOT_BRACKETS):
        if bracket in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise Refusal("too_deep", place, f"nested over {MAX_DEPTH} deep")
        else:
            depth -= 1
    return _CAREFUL if large else _QUICK


def _without_strings(text: bytes, place: str) -> bytes:
    """Return what stands outside of strings, up to the first place that is not JSON.

    Behind it, where a parser never comes, it may be anything.
    """
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    strings = plain.count(b'"') // 2
    if strings > _MAX_STRINGS:
        raise Refusal("too_many", place, f"{strings} strings; at most {_MAX_STRINGS}")
    return b"".join(plain.split(b'"')[::2])


class _Bad(ValueError):
    """Something that JSON may not hold, under its own code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _constant(name: str) -> NoReturn:
    raise _Bad("bad_number", f"{name} is not a JSON number")


def _integer(text: str) -> int:
    value = int(text)
    if not -MAX_INT <= value < MAX_INT:
        raise _Bad("bad_number", f"{text} does not fit into 64 bits")
    return value


def _real(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise _Bad("bad_number", f"{text} is no finite number")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Bad("not_json", f"the key {key!r:.60} comes twice")
            seen.add(key)
    return held


_QUICK = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_CAREFUL = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_constant=_constant,
    parse_float=_real,
    parse_int=_integer,
)
"""Looks at each number, which takes time."""
