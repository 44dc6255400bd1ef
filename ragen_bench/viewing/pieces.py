"""Data as classic scripts, which a page may load from a disk: ``ragen(KEY, VALUE);``.

A page opened from a disk may not fetch a file, but it may add a script.  A piece holds
nothing but one call with one JSON value, in ASCII.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ragen_bench.errors import InvalidSpec

_RISKY = {glyph: f"\\u{ord(glyph):04x}" for glyph in "<>&"}
"""They stand in strings alone, and might end a script or begin a comment."""
_DIGITS = 6
_MAX_SLUG = 48
_RESERVED = {"con", "prn", "aux", "nul"} | {
    f"{name}{n}" for name in ("com", "lpt") for n in range(10)
}


def script(key: str, value: Any) -> str:
    """Return the text of a piece.

    Args:
        key: What the page asks for; letters, digits and ``._/-``.
        value: JSON-able; the keys of its objects are ours, never a stranger's, because
            a script reads ``__proto__`` as something else than a key.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for glyph, escaped in _RISKY.items():
        text = text.replace(glyph, escaped)
    return f'ragen("{key}",{text});\n'


def write(root: Path, key: str, value: Any) -> None:
    """Write a piece as ``data/KEY.js`` of a site."""
    path = root / "data" / f"{key}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(key, value), encoding="ascii", newline="\n")


def slug(label: str, taken: Collection[str]) -> str:
    """Return a name for a label that is safe in a path, in a link and on any system.

    Args:
        label: Anything.
        taken: Names that are not free; case does not tell names apart.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", label)[:_MAX_SLUG].strip("._-") or "run"
    if safe.split(".")[0].casefold() in _RESERVED:
        safe = f"run-{safe}"
    others = {name.casefold() for name in taken}
    name, number = safe, 1
    while name.casefold() in others:
        number += 1
        name = f"{safe}-{number}"
    return name


def pairs(mapping: Mapping[str, Any]) -> list[list[Any]]:
    """Return a stranger's mapping as sorted pairs, which no script misreads."""
    return [[key, plain(mapping[key])] for key in sorted(mapping)]


def plain(value: Any) -> Any:
    """Return a scalar as it is and anything else as JSON text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def number(value: float | None) -> float | int | None:
    """Return a number with as many digits as a page shows."""
    if value is None:
        return None
    short = round(float(value), _DIGITS)
    return int(short) if short == int(short) else short


def require(folder: Path, what: str) -> None:
    """Refuse a path that is no folder.

    Raises:
        InvalidSpec: It is none.
    """
    if not folder.is_dir():
        raise InvalidSpec(f"{what} {str(folder)!r} is no folder; give one that exists")
