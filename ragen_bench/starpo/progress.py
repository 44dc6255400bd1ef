"""What people see of a training: a line an iteration, and alarms in plain words."""

import time
from typing import TextIO

from ragen_bench.starpo.loop import Row
from ragen_bench.starpo.training import Progress


class Lines(Progress):
    """Writes lines, at most one a second but for the first and the last.

    Args:
        stream: Where to.
        iterations: How many there will be.
    """

    def __init__(self, stream: TextIO, iterations: int) -> None:
        self._stream = stream
        self._iterations = iterations
        self._began = time.monotonic()
        self._first: float | None = None
        self._said = 0.0

    def cloned(self, facts: dict[str, float]) -> None:
        """Say how the warm start went."""
        self._say(
            f"warm start: {facts['steps']:.0f} steps, {facts['cpu_s']:.0f} CPU-s, "
            f"loss {facts['loss']:.3f}"
        )

    def iteration(self, row: Row, times: Row) -> None:
        """Say how an iteration went."""
        now = time.monotonic()
        number = int(row["iteration"] or 0)
        self._first = now if self._first is None else self._first
        if now - self._said < 1 and number not in (1, self._iterations):
            return
        self._said = now
        parts = [f"{number}/{self._iterations}"]
        for name, label in (
            ("return_mean", "return"),
            ("success", "success"),
            ("dev_success", "dev"),
            ("entropy", "entropy"),
            ("kept_share", "kept"),
        ):
            value = row.get(name)
            if value is not None:
                parts.append(f"{label} {value:.3f}")
        rate = times.get("tokens_per_s")
        if rate is not None:
            parts.append(f"{rate:,.0f} tokens/s")
        done = number - 1
        if done > 0:
            left = (now - self._first) / done * (self._iterations - number)
            parts.append(f"{_span(left)} left")
        self._say("  ".join(parts))

    def alarm(self, text: str) -> None:
        """Say what is wrong."""
        self._say(f"ALARM {text}")

    def _say(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
