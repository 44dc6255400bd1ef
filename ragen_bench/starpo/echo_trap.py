"""`EchoTrap`: tells from an iteration's metrics whether a training is collapsing.

It is fed one row of ``metrics.csv`` after another, live or from the file, and answers
with alarms in plain words.  RAGEN (arXiv 2504.20073, sec. 4) names the signs: returns
within a group become alike before their mean falls, gradients spike, entropy turns,
reasoning grows short and repeats itself.

A run that learns its task shows some of them too: as fewer episodes fail, spread,
entropy and length fall.  So each of these is held against what the fall of failures
explains, ``highest * (1 - success now) / (1 - success then)``, and nothing is said of
them while success is near 1 and has not fallen.  While a run still learns to reply at
all, what is usual is taken anew in every iteration.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ragen_bench.starpo.collapse_signs import (
    VOTES,
    Row,
    Sign,
    changes_ways,
    gradient_spike,
    slow_signs,
)
from ragen_bench.starpo.thresholds import Thresholds
from ragen_bench.starpo.trend import Trend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A sign that has just begun to show."""

    iteration: int
    sign: Sign
    text: str
    """One sentence, with the numbers."""

    def __str__(self) -> str:
        return f"iteration {self.iteration}: {self.text}"


_COLUMNS = (
    "success",
    "return_mean",
    "spread_mean",
    "entropy",
    "reply_tokens",
    "thought_tokens",
    "distinct_4",
    "repeated_4",
    "cut_share",
    "valid_rate",
    "valid_success",
)
_LEAST_ROOM = 0.01
"""Shares of failures that are smaller count as this."""


class EchoTrap:
    """Watches one training.

    Args:
        thresholds: When a sign counts.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._trends: dict[str, Trend] = {}
        self._norms: list[float] = []
        self._first_norms: list[float] = []
        self._lasting: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._rows = 0
        self._trapped = 0
        self._room = 1.0

    def watch(self, row: Row) -> tuple[Alarm, ...]:
        """Take in an iteration and return the alarms that begin with it.

        Args:
            row: Has ``iteration``; of the columns of ``metrics.csv`` those that are
                missing or None are not judged, nor are numbers that are not finite, a
                gradient's aside.
        """
        self._rows += 1
        fresh = self._take(row)
        texts = self._signs(fresh, row)
        begun: list[tuple[Sign, str]] = [
            (sign, text) for sign, text in texts.items() if self._begins(sign)
        ]
        for sign in set(self._lasting) - set(texts):
            self._lasting[sign] = 0
        votes = {VOTES[sign] for sign in self.standing if sign in VOTES}
        trapped = len(votes) >= self.thresholds.votes
        if trapped and not self._trapped:
            begun.append(("echo_trap", _combined(self.standing)))
        self._trapped = self._trapped + 1 if trapped else 0
        iteration = int(row.get("iteration") or 0)
        return tuple(Alarm(iteration=iteration, sign=s, text=t) for s, t in begun)

    @property
    def standing(self) -> tuple[str, ...]:
        """The signs that count now, the combined alarm aside."""
        since = self._rows - self.thresholds.memory
        return tuple(sorted(s for s, row in self._shown.items() if row > since))

    @property
    def is_trapped(self) -> bool:
        """Whether the combined alarm stands."""
        return self._trapped > 0

    @property
    def should_stop(self) -> bool:
        """Whether the combined alarm has stood long enough to end the training."""
        return self._trapped >= self.thresholds.stop_after

    def get_state(self) -> dict[str, Any]:
        """Return everything that was seen, as JSON-able values."""
        trends = {name: dataclasses.asdict(t) for name, t in self._trends.items()}
        for trend in trends.values():
            # JSON has no infinity.
            for name in ("best", "lowest", "previous"):
                trend[name] = None if math.isinf(trend[name]) else trend[name]
        return {
            "trends": trends,
            "norms": list(self._norms),
            "first_norms": list(self._first_norms),
            "lasting": dict(self._lasting),
            "shown": dict(self._shown),
            "rows": self._rows,
            "trapped": self._trapped,
            "room": self._room,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `get_state` was called, thresholds aside."""
        self._trends = {name: Trend(**t) for name, t in state["trends"].items()}
        for trend in self._trends.values():
            trend.best = -math.inf if trend.best is None else trend.best
            trend.lowest = math.inf if trend.lowest is None else trend.lowest
            trend.previous = math.inf if trend.previous is None else trend.previous
            trend.recent = list(trend.recent)
        self._norms = list(state["norms"])
        self._first_norms = list(state["first_norms"])
        self._lasting = dict(state["lasting"])
        self._shown = dict(state["shown"])
        self._rows = state["rows"]
        self._trapped = state["trapped"]
        self._room = state["room"]

    def _take(self, row: Row) -> dict[str, Trend]:
        """Add a row to the trends and return those that it has a value for."""
        limits = self.thresholds
        values = {
            name: float(value)
            for name, value in ({n: row.get(n) for n in _COLUMNS} | _told(row)).items()
            if value is not None and math.isfinite(value)
        }
        fresh = {name: self._trends.setdefault(name, Trend()) for name in values}
        for name, trend in fresh.items():
            trend.add(values[name], limits)
        success = fresh.get("success")
        if success is not None:
            self._room = max(1 - success.level, _LEAST_ROOM)
        anew = changes_ways(fresh, limits)
        for name, trend in fresh.items():
            trend.compare(values[name], self._room, anew, limits)
        return fresh

    def _signs(self, fresh: Mapping[str, Trend], row: Row) -> dict[Sign, str]:
        limits = self.thresholds
        # What a probe found holds until the next one.
        told = {k: t for k, t in self._trends.items() if k == "dependence"}
        found = slow_signs({**fresh, **told}, self._room, limits)
        norm = row.get("grad_norm")
        first = statistics.median(self._first_norms) if self._first_norms else 0.0
        spike = gradient_spike(norm, self._norms, first, limits)
        if spike is not None:
            found["gradient"] = spike
        if norm is not None and math.isfinite(norm):
            self._norms = [*self._norms, norm][-limits.gradient_window :]
            if len(self._first_norms) < limits.baseline:
                self._first_norms.append(norm)
        return found

    def _begins(self, sign: Sign) -> bool:
        """Count a sign that shows, and return whether it begins to count now."""
        limits = self.thresholds
        self._lasting[sign] = self._lasting.get(sign, 0) + 1
        if sign != "gradient" and self._lasting[sign] < limits.patience:
            return False
        stood = sign in self.standing
        self._shown[sign] = self._rows
        return not stood


def scan(
    rows: Iterable[Row], thresholds: Thresholds | None = None
) -> tuple[Alarm, ...]:
    """Return all alarms of a training that is over, in order."""
    trap = EchoTrap(thresholds)
    return tuple(alarm for row in rows for alarm in trap.watch(row))


def _combined(signs: Iterable[str]) -> str:
    shown = ", ".join(sign for sign in signs if sign in VOTES)
    return f"training collapses (echo trap): {shown} at once"


def _told(row: Row) -> dict[str, float | None]:
    """Return how well replies tell their prompts, 0 at chance and 1 at best."""
    found, chance = row.get("retrieval"), row.get("retrieval_chance")
    if found is None or chance is None or chance >= 1:
        return {}
    return {"dependence": (found - chance) / (1 - chance)}
