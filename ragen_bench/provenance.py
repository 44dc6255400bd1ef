"""What a result was made with: package versions and the commit."""

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path

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
