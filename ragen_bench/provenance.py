"""What a result was made with: package versions and the commit."""

import functools
import hashlib
import importlib.metadata
import inspect
import platform
import subprocess
from pathlib import Path
from typing import Any

_PACKAGES = ("ragen-bench", "gymnasium", "numpy", "scipy", "pydantic")


def versions() -> dict[str, str]:
    """Return package to version, of what a result rests on."""
    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **found}


@functools.cache
def commit() -> str | None:
    """Return the commit of the checkout that this package lies in, if in any."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        return None
    try:
        found = subprocess.run(
            # Without tags it describes a commit by its hash.
            ["git", "-C", str(folder), "describe", "--always", "--dirty"]
            + ["--abbrev=40", "--exclude=*"],
            capture_output=True,
            encoding="utf-8",
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def own_source_sha256(thing: Any) -> str | None:
    """Return the SHA-256 of the source file of somebody's own class or function.

    It is that of the file as it lies on disk now, without what the file imports.

    Returns:
        Hex digits; None for what comes with this package, whose version tells it, and
        for what has no source file.
    """
    if str(getattr(thing, "__module__", "")).partition(".")[0] == "ragen_bench":
        return None
    try:
        file = inspect.getsourcefile(thing)
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None
    except (OSError, TypeError):  # made in a session, or no Python at all
        return None
