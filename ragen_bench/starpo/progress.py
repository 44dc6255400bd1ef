"""What people see of a training: lines, and on a terminal a bar beneath them."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from ragen_bench.starpo.loop import Row
from ragen_bench.starpo.train_config import TrainConfig
from ragen_bench.starpo.training import Progress

_COLUMNS = (
    ("return_mean", "return", "{:7.3f}"),
    ("success", "success", "{:6.1%}"),
    ("entropy", "entropy", "{:6.3f}"),
    ("kept_share", "kept", "{:4.0%}"),
)
"""Column of the metrics, its label, and how it is written."""
_DEV = (
    ("dev_return", "dev return", "{:.3f}"),
    ("dev_success", "dev success", "{:.1%}"),
)
"""Likewise, of the iterations that were evaluated."""


class Lines(Progress):
    """Lines for a log: the first and the last iteration, some between, and alarms.

    Args:
        stream: Where to.
        every: Seconds between two lines of iterations, at least.
        clock: Seconds, from any origin.
    """

    def __init__(
        self,
        stream: IO[str],
        *,
        every: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._iterations = self._done = self._held = 0
        self._began = self._spoke = 0.0

    def begin(self, config: TrainConfig, done: int) -> None:
        """Say what will be trained."""
        self._iterations, self._done, self._held = config.iterations, done, done
        self._began = self._clock()
        if done:
            self.say(f"goes on after iteration {done} of {config.iterations}")
            return
        self.say(
            f"{config.iterations} iterations of {config.method}, {config.groups} "
            f"groups of {config.rollouts} on {', '.join(config.envs)}"
        )
        if config.clone_steps:
            self.say(f"warm start first: {config.clone_steps} steps")
        elif config.clone_seconds:
            self.say(f"warm start first: {config.clone_seconds:g} CPU-s")

    def cloned(self, facts: dict[str, float]) -> None:
        """Say how the warm start went."""
        self._began = self._clock()
        self.say(
            f"warm start: {facts['steps']:.0f} steps in {facts['cpu_s']:.0f} CPU-s, "
            f"loss {facts['loss']:.3f} nats a token"
        )

    def iteration(self, row: Row, times: Row) -> None:
        """Say how an iteration went, if the last line is old enough."""
        self._done = int(row["iteration"] or 0)
        ends = self._done in (self._held + 1, self._iterations)
        told = ends or row.get("dev_return") is not None
        if told or self._clock() - self._spoke >= self._every:
            self._spoke = self._clock()
            self.say(self._line(row, times))

    def alarm(self, text: str) -> None:
        """Say what is wrong with the training."""
        self.say(f"ALARM {text}")

    def warning(self, text: str) -> None:
        """Say what went wrong beside it."""
        self.say(f"warning: {text}")

    def stopping(self) -> None:
        """Say that it ends soon."""
        self.say("stopping after this iteration; once more stops at once")

    def say(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._stream, flush=True)

    def seconds_left(self) -> float | None:
        """Return about how long it will be, None before the first iteration."""
        played = self._done - self._held
        if not played:
            return None
        return (self._clock() - self._began) * (self._iterations - self._done) / played

    def _line(self, row: Row, times: Row) -> str:
        width = len(str(self._iterations))
        parts = [f"{self._done:>{width}}/{self._iterations}", *_known(row, _COLUMNS)]
        rate = times.get("tokens_per_s")
        if rate is not None:
            parts.append(f"{rate:7,.0f} tokens/s")
        left = self.seconds_left()
        if left is not None and self._done < self._iterations:
            parts.append(f"{duration(left):>5} left")
        return "  ".join([*parts, *_known(row, _DEV)])


class Live(Lines):
    """The same lines, oftener, above a bar at the bottom of a terminal.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console.file, every=1.0)
        self._console = console
        self._bar = Bar(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            refresh_per_second=4,
        )

    def begin(self, config: TrainConfig, done: int) -> None:
        """Show the bar, unless nothing is left to do."""
        super().begin(config, done)
        clones = not done and (config.clone_steps or config.clone_seconds)
        self._task = self._bar.add_task(
            "warm start" if clones else "", total=config.iterations, completed=done
        )
        if done < config.iterations:
            self._bar.start()

    def cloned(self, facts: dict[str, float]) -> None:
        """Say how the warm start went."""
        super().cloned(facts)
        self._bar.update(self._task, description="")

    def iteration(self, row: Row, times: Row) -> None:
        """Move the bar."""
        super().iteration(row, times)
        left = self.seconds_left()
        text = f"{duration(left)} left" if left else ""
        self._bar.update(self._task, completed=self._done, description=text)

    def say(self, text: str) -> None:
        """Write a line above the bar; one that matters stands out."""
        style = "bold red" if text.startswith("ALARM") else None
        self._console.print(
            text, style=style, markup=False, highlight=False, soft_wrap=True
        )

    def close(self) -> None:
        """Take the bar off; what it last showed stays to be read."""
        self._bar.stop()


def choose(*, quiet: bool, stream: IO[str] | None = None) -> Progress:
    """Return what suits where standard error goes."""
    stream = stream or sys.stderr
    if quiet:
        return Progress()
    console = Console(file=stream)
    if stream.isatty() and not console.is_dumb_terminal:
        return Live(console)
    return Lines(stream)


def _known(row: Row, columns: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    for name, label, form in columns:
        value = row.get(name)
        if value is not None:
            yield f"{label} {form.format(value)}"


def duration(seconds: float) -> str:
    """Return such as ``"1:02:03"`` or ``"2:03"``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
