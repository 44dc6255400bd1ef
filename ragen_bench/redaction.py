"""What must not leave a machine: keys, passwords and where somebody's files lie.

Nothing here knows what is secret for sure; it looks for what usually is.
"""

import contextlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen_bench.records import RunRecord

HIDDEN = "[hidden]"

_SECRET_NAME = re.compile(
    r"(^|[_.-])(api[_-]?keys?|authorization|bearer|cookie|credentials?|headers?|"
    r"pass(word|wd|phrase)?|private[_-]?key|secrets?|"
    r"auth|pwd|sig(nature)?|"
    r"(access|account|anthropic|openai|secret|service|subscription)[_-]?key|"
    r"((access|api|auth|bearer|hf|id|refresh|session|user)_?)token)$|^(key|token)$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8
"""Characters; a shorter value of a variable may be any word of a reply."""
KEYS = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|"
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*|"
    r"AKIA[A-Z0-9]{12,}|AIza[A-Za-z0-9_-]{20,}|xox[abp]-[A-Za-z0-9-]{10,})"
)
"""Keys of well-known providers, and signed tokens."""
_SHAPES = (
    # User and password of an address.
    (re.compile(r"(?<=://)[^/@\s'\"]+@"), f"{HIDDEN}@"),
    # What a query or an assignment calls a key.
    (
        re.compile(
            r"(?i)\b((?:[a-z]+[_-])?(?:api[_-]?key|key|token|secret|password|passwd))"
            r"=(?!\d+\b)[^&\s'\",]+"
        ),
        rf"\1={HIDDEN}",
    ),
    (
        re.compile(
            r"(?i)\b((?:[a-z]+[_-])?(?:api[_-]?key|password|passwd|pwd|secret|sig))"
            r"(=|:\s*)[^&\s'\",]+"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    # Keys of well-known providers.
    (
        KEYS,
        HIDDEN,
    ),
)
_PATH = re.compile(
    r"(?P<before>^|file://|[\s'\"@:=,])(?P<path>(?:~[^/\\]*|[A-Za-z]:|)[/\\](?![/\\])[^\n:=,]*)"
)


def secrets_here() -> tuple[str, ...]:
    """Return the values of environment variables that are named like secrets."""
    found = {
        value.strip()
        for name, value in os.environ.items()
        if _VARIABLE.search(name) and len(value.strip()) >= _SHORTEST
    }
    # A path is where a key lies, not the key.
    return tuple(sorted(v for v in found if not _is_place(v)))


def _is_place(value: str) -> bool:
    """Return whether a value leads to a file or folder of this machine."""
    try:
        return Path(value).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def redact_run(run: RunRecord) -> RunRecord:
    """Return ``run.json`` as it may be published: the same run, less told of its home.

    Values named or shaped like secrets are hidden, and absolute paths keep their last
    part.  How the model was reached (``serving``) is left out: it changes no result.
    """
    config = run.config
    names = ("model", "model_args", "agent_args")
    settings = {name: redact(getattr(config, name)) for name in names}
    return run.model_copy(
        update={
            "config": config.model_copy(update=settings),
            "model_facts": redact(dict(run.model_facts)),
            "command": redact_command(run.command),
            "serving": {},
        }
    )


def redact(value: Any, name: str = "") -> Any:
    """Return a JSON value without secrets and homes.

    Args:
        value: The value.
        name: The key that it stands under.
    """
    if _SECRET_NAME.search(name) and not (value in (None, "") or value is False):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            held = json.loads(value)
            clean = redact(held)
            return value if clean == held else json.dumps(clean)
    return _PATH.sub(_last_part, _hide(value))


def redact_command(command: str | None) -> str | None:
    """Return a command line without secrets and homes."""
    if command is None:
        return None
    try:
        words = shlex.split(command)
    except ValueError:  # not ours, or cut: no part of it can be told apart
        return HIDDEN
    shown: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and _SECRET_NAME.search(key.lstrip("-")):
            word = f"{key}={HIDDEN if value else ''}"
        elif shown and _SECRET_NAME.search(shown[-1].lstrip("-")):
            word = HIDDEN
        elif equals:
            inner, more, rest = value.partition("=")
            if more and key.startswith("--") and _SECRET_NAME.search(inner):
                word = f"{key}={inner}={HIDDEN if rest else ''}"
            else:
                word = f"{key}={redact(value)}"
        shown.append(redact(word))
    return shlex.join(shown)


def _hide(text: str) -> str:
    for secret in secrets_here():
        text = text.replace(secret, HIDDEN)
    for shape, shown in _SHAPES:
        text = shape.sub(shown, text)
    return text


def _last_part(match: re.Match[str]) -> str:
    """Return a path's last part; one part alone, such as ``/no_think``, is no path."""
    path = match["path"].rstrip("/\\")
    parts = [part for part in re.split(r"[/\\]", path) if part]
    if len(parts) < 2:
        return match[0]
    return f"{match['before']}{parts[-1]}"
