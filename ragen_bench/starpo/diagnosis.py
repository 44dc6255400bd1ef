"""`diagnose`: what the files of a training say about its health, after the fact."""

import csv
import dataclasses
import io
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ragen_bench.errors import RecordError
from ragen_bench.records import Episode, parse_record
from ragen_bench.starpo.change_point import ChangePoint, change_point
from ragen_bench.starpo.collapse_signs import Row
from ragen_bench.starpo.echo_trap import Alarm, scan
from ragen_bench.starpo.repetition import distinct_share, mean_words
from ragen_bench.starpo.thresholds import Thresholds

METRICS = "metrics.csv"
ROLLOUTS = "rollouts"
LEAST_BEST = 0.1
"""Success that never was higher cannot fall by half in a way that means anything."""
LASTING = 3
"""Iterations in a row for which success must be low to count as fallen."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """What the kept episodes of an iteration look like."""

    name: str
    """Of the file."""
    episodes: int
    success: float | None
    """Share of solved episodes, None where the task has no success."""
    valid_rate: float | None
    """Share of valid replies."""
    distinct_4: float | None
    """Share of distinct 4-grams in reasoning and replies."""
    thought_tokens: float | None
    """Mean words of reasoning in a reply, None where there is none at all."""
    top_reply: str
    """The most frequent reply."""
    top_share: float | None
    """Share of the replies that are it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Where a column of the metrics changes its level."""

    column: str
    iteration: int
    point: ChangePoint


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The health of a training."""

    iterations: int
    """Rows of the metrics."""
    best_success: float | None
    """Highest success, a median of three iterations."""
    last_success: float | None
    """The same at the end."""
    half_fall: int | None
    """Iteration in which success has fallen by half from its best, for good."""
    alarms: tuple[Alarm, ...]
    breaks: tuple[Break, ...]
    rollouts: tuple[RolloutFacts, ...]

    @property
    def trapped_at(self) -> int | None:
        """Iteration of the first combined alarm."""
        found = (a.iteration for a in self.alarms if a.sign == "echo_trap")
        return next(found, None)

    @property
    def lead_time(self) -> int | None:
        """Iterations from the first combined alarm to the fall by half.

        Negative if the alarm came late; None without the one or the other.
        """
        if self.trapped_at is None or self.half_fall is None:
            return None
        return self.half_fall - self.trapped_at

    def __str__(self) -> str:
        return "\n".join(_report(self))


def diagnose(folder: Path, thresholds: Thresholds | None = None) -> Diagnosis:
    """Return the health of the training whose files lie in a folder.

    Args:
        folder: Has ``metrics.csv`` and, for some iterations, ``rollouts/*.jsonl``.
        thresholds: When a sign counts.

    Raises:
        RecordError: A file is missing or cannot be read.
    """
    rows = read_metrics(folder / METRICS)
    paths = sorted((folder / ROLLOUTS).glob("*.jsonl"))
    found = diagnose_rows(rows, thresholds)
    return dataclasses.replace(found, rollouts=tuple(map(rollout_facts, paths)))


def diagnose_rows(
    rows: Sequence[Row], thresholds: Thresholds | None = None
) -> Diagnosis:
    """Return the health of a training from its metrics alone."""
    numbers = [int(row.get("iteration") or 0) for row in rows]
    at = [i for i, row in enumerate(rows) if row.get("success") is not None]
    smooth = _medians([row["success"] or 0.0 for row in (rows[i] for i in at)])
    fall = half_fall(smooth)
    return Diagnosis(
        iterations=len(rows),
        best_success=max(smooth, default=None),
        last_success=smooth[-1] if smooth else None,
        half_fall=None if fall is None else numbers[at[fall]],
        alarms=scan(rows, thresholds),
        breaks=tuple(_breaks(rows, numbers)),
        rollouts=(),
    )


def half_fall(success: Sequence[float]) -> int | None:
    """Return where success has fallen by half from its best, None if it never did.

    Args:
        success: One share an iteration, smoothed without lag.

    Returns:
        The first of `LASTING` places in a row at which it is at most half of the best
        before them.
    """
    best, low = 0.0, 0
    for place, value in enumerate(success):
        low = low + 1 if best >= LEAST_BEST and value <= best / 2 else 0
        best = max(best, value)
        if low == LASTING:
            return place - LASTING + 1
    return None


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """Return the rows of a ``metrics.csv``; what is no number becomes None.

    Raises:
        RecordError: There is no such file, or it has no column ``iteration``.
    """
    try:
        text = path.read_text(encoding="utf-8")
        # A training that was killed, or still runs, may leave half a row.
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        lines = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    if "iteration" not in (reader.fieldnames or ()):
        raise RecordError(
            f"{path} has no column 'iteration'; the metrics of a training have one"
        )
    return [{k: _number(v) for k, v in line.items() if k} for line in lines]


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def rollout_facts(path: Path) -> RolloutFacts:
    """Return what the episodes of a file of records look like.

    Raises:
        RecordError: The file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    episodes = [
        parse_record(Episode, line, f"{path}, line {i}")
        for i, line in enumerate(lines, start=1)
        if line.strip()
    ]
    turns = [turn for episode in episodes for turn in episode.turns]
    solved = [e.success for e in episodes if e.success is not None]
    thoughts = [turn.thinking for turn in turns]
    texts = [
        # A model may give its reasoning apart from the reply.
        t.response if t.thinking in t.response else f"{t.thinking}\n{t.response}"
        for t in turns
    ]
    top, count = (Counter(t.response for t in turns).most_common(1) or [("", 0)])[0]
    return RolloutFacts(
        name=path.name,
        episodes=len(episodes),
        success=statistics.fmean(solved) if solved else None,
        valid_rate=statistics.fmean(t.valid for t in turns) if turns else None,
        distinct_4=distinct_share(texts),
        thought_tokens=mean_words(thoughts) if any(thoughts) else None,
        top_reply=top,
        top_share=count / len(turns) if turns else None,
    )


def _medians(values: Sequence[float]) -> list[float]:
    """Return the median of each value and its neighbours, which does not lag."""
    return [
        statistics.median(values[max(0, i - 1) : i + 2]) for i in range(len(values))
    ]


def _breaks(rows: Sequence[Row], numbers: Sequence[int]) -> Iterator[Break]:
    for column in ("success", "spread_mean", "entropy"):
        known = [
            (number, value)
            for number, row in zip(numbers, rows, strict=True)
            if (value := row.get(column)) is not None and abs(value) < float("inf")
        ]
        found = change_point([value for _, value in known])
        if found is not None:
            yield Break(column=column, iteration=known[found.index][0], point=found)


def _report(found: Diagnosis) -> Iterator[str]:
    yield f"{found.iterations} iterations"
    if found.best_success is not None and found.last_success is not None:
        yield (
            f"success {found.best_success:.0%} at its best, "
            f"{found.last_success:.0%} at the end"
        )
    if found.half_fall is not None:
        yield f"success had fallen by half in iteration {found.half_fall}"
    if found.lead_time is not None:
        when = "before" if found.lead_time >= 0 else "after"
        yield f"the echo-trap alarm came {abs(found.lead_time)} iterations {when} that"
    yield from (f"alarm, {alarm}" for alarm in found.alarms)
    if not found.alarms:
        yield "no alarm"
    for one in found.breaks:
        yield (
            f"{one.column} changes level in iteration {one.iteration}: "
            f"{one.point.before:.3g} before, {one.point.after:.3g} after "
            f"({one.point.explained:.0%} of its variation)"
        )
    for facts in found.rollouts:
        yield _line(facts)


def _line(facts: RolloutFacts) -> str:
    parts = [f"{facts.name}: {facts.episodes} episodes"]
    for value, text in (
        (facts.success, "success {:.0%}"),
        (facts.valid_rate, "valid replies {:.0%}"),
        (facts.distinct_4, "distinct 4-grams {:.1%}"),
        (facts.thought_tokens, "{:.0f} words of reasoning"),
        (facts.top_share, "the most frequent reply {:.0%}"),
    ):
        if value is not None:
            parts.append(text.format(value))
    return ", ".join(parts)
