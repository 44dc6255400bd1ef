"""`diagnose`: what the files of a training say about its health, after the fact.

It reads tables alone, so it also judges what another trainer logged.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ragen_bench.starpo.change_point import ChangePoint, change_point
from ragen_bench.starpo.collapse_signs import Row
from ragen_bench.starpo.echo_trap import Alarm, scan
from ragen_bench.starpo.gradient_picture import GradientPicture, picture
from ragen_bench.starpo.rollout_facts import RolloutFacts, rollout_facts
from ragen_bench.starpo.template_picture import TemplatePicture, template_picture
from ragen_bench.starpo.thresholds import Thresholds
from ragen_bench.starpo.training_log import (
    METRICS,
    ROLLOUTS,
    read_gradients,
    read_metrics,
)

__all__ = [
    "METRICS",
    "Break",
    "Diagnosis",
    "diagnose",
    "diagnose_rows",
    "half_fall",
    "read_metrics",
]

LEAST_BEST = 0.1
"""Success that never was higher cannot fall by half in a way that means anything."""
LASTING = 3
"""Iterations in a row for which success must be low to count as fallen."""

Verdict = Literal["collapsed", "trapped", "template", "suspicious", "healthy", "empty"]
"""Success fell by half; the echo-trap alarm without that; replies that no longer depend
on their prompts; single alarms; none; no iteration at all."""


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
    template: TemplatePicture | None = None
    """None without probes of templates."""
    gradients: tuple[GradientPicture, ...] = ()
    """Of the first and the last iteration that has them."""
    rollouts: tuple[RolloutFacts, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The health in a word."""
        if not self.iterations:
            return "empty"
        if self.half_fall is not None:
            return "collapsed"
        if self.trapped_at is not None:
            return "trapped"
        if self.template is not None and not self.template.depends:
            return "template"
        return "suspicious" if self.alarms else "healthy"

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
        return None if self.trapped_at is None else self.lead_of(self.trapped_at)

    def lead_of(self, iteration: int) -> int | None:
        """Return the iterations from one to the fall by half, None without a fall."""
        return None if self.half_fall is None else self.half_fall - iteration

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        found = {"verdict": self.verdict, **dataclasses.asdict(self)}
        found["trapped_at"], found["lead_time"] = self.trapped_at, self.lead_time
        found["alarms"] = [
            {**dataclasses.asdict(a), "lead_time": self.lead_of(a.iteration)}
            for a in self.alarms
        ]
        if self.template is not None:
            found["template"]["regime"] = self.template.regime
        for held, one in zip(found["gradients"], self.gradients, strict=True):
            held["outweighed"] = one.outweighed
        return found

    def __str__(self) -> str:
        from ragen_bench.starpo.diagnosis_report import report

        return "\n".join(report(self))


def diagnose(
    place: Path,
    thresholds: Thresholds | None = None,
    columns: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Return the health of a training.

    Args:
        place: Its folder, which has ``metrics.csv`` and maybe ``gradients.csv`` and
            ``rollouts/*.jsonl``; or a CSV file of metrics.
        thresholds: When a sign counts.
        columns: Our columns to those of the file, where they differ.

    Raises:
        RecordError: A file is missing or cannot be read.
        UnknownName: The table has no column of a name that is given.
    """
    found = diagnose_rows(read_metrics(place, columns), thresholds)
    return dataclasses.replace(
        found,
        gradients=picture(read_gradients(place)),
        rollouts=tuple(map(rollout_facts, sorted((place / ROLLOUTS).glob("*.jsonl")))),
    )


def diagnose_rows(
    rows: Sequence[Row], thresholds: Thresholds | None = None
) -> Diagnosis:
    """Return the health of a training from its metrics alone."""
    success = _known(rows, "success")
    smooth = _medians([value for _, value in success])
    fall = half_fall(smooth)
    return Diagnosis(
        iterations=len(rows),
        best_success=max(smooth, default=None),
        last_success=smooth[-1] if smooth else None,
        half_fall=None if fall is None else success[fall][0],
        alarms=scan(rows, thresholds),
        breaks=tuple(_breaks(rows)),
        template=template_picture(rows, thresholds or Thresholds()),
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


def _medians(values: Sequence[float]) -> list[float]:
    """Return the median of each value and its neighbours, which does not lag."""
    return [
        statistics.median(values[max(0, i - 1) : i + 2]) for i in range(len(values))
    ]


def _known(rows: Sequence[Row], column: str) -> list[tuple[int, float]]:
    """Return iterations and the finite values of a column."""
    return [
        (int(row.get("iteration") or 0), value)
        for row in rows
        if (value := row.get(column)) is not None and math.isfinite(value)
    ]


def _breaks(rows: Sequence[Row]) -> Iterator[Break]:
    for column in ("success", "spread_mean", "entropy"):
        known = _known(rows, column)
        found = change_point([value for _, value in known])
        if found is not None:
            yield Break(column=column, iteration=known[found.index][0], point=found)
