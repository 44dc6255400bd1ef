"""Plays a run in processes that die, one after the other, at moments of their own.

``python mortal.py OUT KILLS SEED`` checks after each death that nothing was lost, and
leaves a run that is complete.
"""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import toy

import ragen_bench as rb
from ragen_bench import provenance

SETTINGS: dict[str, Any] = {
    "envs": [toy.CELL, f"{toy.CELL}:2", f"{toy.CELL}:3"],
    "seeds": 8,
    "repeats": 2,
    "agent": "toy:Gambler",
    "concurrency": 3,
}
CHUNK = 500
"""Bytes that a write takes at a time, so that a line needs several."""


def arm(moment: int) -> None:
    """Let this process die just before its n-th call that changes a file."""
    left = moment

    def mortal(call: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return wrapped

    write = os.write
    for name in ("open", "ftruncate", "fsync", "replace", "unlink", "mkdir"):
        setattr(os, name, mortal(getattr(os, name)))
    os.write = mortal(lambda file, data: write(file, data[:CHUNK]))  # type: ignore[assignment]


def die_once(out: Path, moment: int) -> bool:
    """Return whether a process that went on with the run died."""
    child = os.fork()
    if not child:
        status = 70
        try:
            arm(moment)
            rb.run(out=out, **SETTINGS)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the run failed with {status}"
    return status != 0


def lines_of(out: Path) -> list[bytes]:
    """Return the whole lines of the run's episodes."""
    file = out / "episodes.jsonl"
    text = file.read_bytes() if file.exists() else b""
    return [line for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


def main(out: Path, kills: int, seed: int) -> None:
    """Die often, then play to the end."""
    provenance.commit()  # asks git once, for all the processes
    moments = random.Random(seed)
    deaths, saved = 0, lines_of(out)
    for _ in range(kills):
        deaths += die_once(out, moments.randint(1, 35))
        now = lines_of(out)
        assert now[: len(saved)] == saved, "a finished episode was lost or replayed"
        saved = now
    assert not die_once(out, 1_000_000)
    assert lines_of(out)[: len(saved)] == saved
    print(f"{deaths} deaths, {len(saved)} episodes saved before the last try")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
