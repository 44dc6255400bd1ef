"""Observers that tell people how a run goes: a live bar, plain lines, a commentary."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import IO

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ragen_bench.ledger import Ledger
from ragen_bench.plan import Plan
from ragen_bench.records import OUTCOMES, UNSCORED, Episode, Summary
from ragen_bench.run_folder import RunFolder
from ragen_bench.runner import Observer

_EVERY_SECONDS = 5.0
_FAULTS = UNSCORED | {"agent_error", "context_overflow"}


class Watch(Observer):
    """An observer that is closed whether or not the run comes to its end.

    Used by itself it says nothing.
    """

    ledger: Ledger | None = None
    """What the replies cost, if they have a price."""
    why: str = ""
    """Why the run stops for want of money, if it does."""

    def spending(self, ledger: Ledger) -> None:
        """Keep the ledger, to show what is spent."""
        self.ledger = ledger

    def over_budget(self, why: str) -> None:
        """Keep the reason, to be shown when the run is over."""
        self.why = why

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was."""


class Tally:
    """What happened since a run began or went on.

    Args:
        planned: Episodes of the whole run.
        held: Episodes that were finished before.
        has_model: Whether tokens are worth telling.
        clock: Seconds, from any origin.
    """

    def __init__(
        self, planned: int, held: int, has_model: bool, clock: Callable[[], float]
    ) -> None:
        self.planned = planned
        self.finished = held
        self.error = ""
        self._held = held
        self._has_model = has_model
        self._outcomes: Counter[str] = Counter()
        self._tokens = 0
        self._clock = clock
        self._began = clock()

    def add(self, episode: Episode) -> None:
        """Count an episode."""
        self.finished += 1
        self._outcomes[episode.outcome] += 1
        self._tokens += sum(turn.usage.output_tokens or 0 for turn in episode.turns)
        if episode.outcome in _FAULTS:
            what = " ".join((episode.error or "").split())
            self.error = f"{episode.key}: {episode.outcome}: {what}"

    def seconds(self) -> float:
        """Return how long it has been."""
        return self._clock() - self._began

    def seconds_left(self) -> float | None:
        """Return about how long it will be, None before the first episode."""
        played = self.finished - self._held
        if not played:
            return None
        return self.seconds() * (self.planned - self.finished) / played

    def buckets(self) -> str:
        """Return such as ``"solved 3, failed 2"``, "" before the first episode."""
        counts = ((name, self._outcomes[name]) for name in OUTCOMES)
        return ", ".join(f"{name} {count}" for name, count in counts if count)

    def tokens(self) -> str:
        """Return such as ``"1,234 tokens (56/s)"``, "" without a model."""
        if not self._has_model:
            return ""
        rate = self._tokens / max(self.seconds(), 1e-9)
        return f"{self._tokens:,} tokens ({rate:,.0f}/s)"


def tally_of(plan: Plan, folder: RunFolder, clock: Callable[[], float]) -> Tally:
    """Return a tally for a run that begins or goes on."""
    planned = len(plan.config.keys())
    return Tally(planned, len(folder.finished), plan.config.model is not None, clock)


def opening_line(tally: Tally, folder: RunFolder) -> str:
    """Return what is said when a run begins, goes on or is complete already."""
    left = tally.planned - tally.finished
    if not left:
        return f"{folder.path} is complete: nothing to play"
    line = (
        f"{folder.path}: {tally.planned} planned, {tally.finished} finished before, "
        f"{left} to play"
    )
    breaches = folder.record.config.breaches
    return f"{line}; not to be ranked: {'; '.join(breaches)}" if breaches else line


class PlainProgress(Watch):
    """Lines for a log: one when the run begins, some on the way, one at the end.

    Args:
        stream: Where the lines go.
        every: Seconds between two lines, at least.
        clock: Seconds, from any origin.
    """

    def __init__(
        self,
        stream: IO[str],
        *,
        every: float = _EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._tally: Tally | None = None
        self._spoke = 0.0
        self._error = ""

    def begin(self, plan: Plan, folder: RunFolder) -> None:
        """Say what will be played."""
        self._tally = tally_of(plan, folder, self._clock)
        self._say(opening_line(self._tally, folder))

    def episode(self, episode: Episode) -> None:
        """Count an episode, and say so if the last line is old enough."""
        assert self._tally is not None
        self._tally.add(episode)
        if self._clock() - self._spoke >= self._every:
            self._report(self._tally)

    def stopping(self) -> None:
        """Say that the run was asked to stop."""
        self._say("stopping")

    def end(self, summary: Summary) -> None:
        """Say where the run stands."""
        if self._tally is not None and self._tally.buckets():
            self._report(self._tally)

    def _report(self, tally: Tally) -> None:
        left = tally.seconds_left()
        soon = f"about {_duration(left)} left" if left else ""
        spent = str(self.ledger or "")
        parts = _some([tally.buckets(), tally.tokens(), spent, soon])
        self._say(f"{tally.finished}/{tally.planned} episodes: {'; '.join(parts)}")
        if tally.error != self._error:
            self._error = tally.error
            self._say(f"last error: {self._error}")

    def _say(self, line: str) -> None:
        self._spoke = self._clock()
        print(line, file=self._stream, flush=True)


class LiveProgress(Watch):
    """A bar at the bottom of a terminal, with the last error beneath it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = _Bar(console)
        self._tally: Tally | None = None

    def begin(self, plan: Plan, folder: RunFolder) -> None:
        """Show the bar, unless nothing is left to play."""
        self._tally = tally_of(plan, folder, time.monotonic)
        self._say(opening_line(self._tally, folder))
        if self._tally.finished < self._tally.planned:
            self._bar.begin(self._tally)

    def episode(self, episode: Episode) -> None:
        """Move the bar."""
        assert self._tally is not None
        self._tally.add(episode)
        self._bar.move(self._tally, str(self.ledger or ""))

    def stopping(self) -> None:
        """Say that the run was asked to stop."""
        self._say("stopping")

    def close(self) -> None:
        """Take the bar off; what it last showed stays to be read."""
        self._bar.stop()

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Bar(Progress):
    """Rich's bar, and a line of text beneath it."""

    _error = ""

    def __init__(self, console: Console) -> None:
        super().__init__(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(compact=True),
            console=console,
            refresh_per_second=4,
        )

    def begin(self, tally: Tally) -> None:
        self._task = self.add_task(
            "", total=tally.planned, completed=tally.finished, start=True
        )
        self.start()

    def move(self, tally: Tally, spent: str) -> None:
        text = "; ".join(_some([tally.buckets(), tally.tokens(), spent]))
        self._error = tally.error
        self.update(self._task, completed=tally.finished, description=text)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self._error:
            yield Text(f"last error: {self._error}", overflow="ellipsis", no_wrap=True)


class Commentary(Watch):
    """Tells a person at the terminal how each episode ended.

    Args:
        write: Shows a text.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def begin(self, plan: Plan, folder: RunFolder) -> None:
        """Say what will be played."""
        tally = tally_of(plan, folder, time.monotonic)
        self._write(f"{opening_line(tally, folder)}\n")

    def episode(self, episode: Episode) -> None:
        """Show how the episode ended."""
        self._write(
            f"\n{episode.final_observation}\n\n{episode.outcome} in turn "
            f"{len(episode.turns)}: return {episode.episode_return:g} "
            f"(random play {episode.floor:.3g}, best play {episode.ceiling:.3g})\n"
        )


def choose(*, quiet: bool, stream: IO[str] | None = None) -> Watch:
    """Return the observer that suits where standard error goes."""
    stream = stream or sys.stderr
    if quiet:
        return Watch()
    console = Console(file=stream)
    if stream.isatty() and not console.is_dumb_terminal:
        return LiveProgress(console)
    return PlainProgress(stream)


def _some(parts: Iterable[str]) -> list[str]:
    return [part for part in parts if part]


def _duration(seconds: float) -> str:
    """Return such as ``"1:02:03"``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
