"""The signs of a collapse: trends of the metrics, and what of them counts.

Pure functions of trends; `ragen_bench.starpo.echo_trap` feeds them.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from ragen_bench.starpo.thresholds import Thresholds

Row: TypeAlias = Mapping[str, float | None]
"""Metrics of one iteration by column; a column may be missing or None."""

Sign = Literal[
    "spread",
    "gradient",
    "entropy",
    "length",
    "repetition",
    "validity",
    "success",
    "echo_trap",
]
"""``"echo_trap"`` is the combined alarm: several of the others at once."""


@dataclasses.dataclass(slots=True)
class Trend:
    """A column's moving average, and the levels it is compared with."""

    count: int = 0
    last: float = 0.0
    change: float = 0.0
    """Mean absolute change from one iteration to the next."""
    total: float = 0.0
    weight: float = 0.0
    reference: float = 0.0
    """Its highest level: first the mean of the first iterations."""
    room: float = 1.0
    """Share of failures when that was."""
    lowest: float = math.inf
    """Since the first iterations."""
    best: float = -math.inf
    """Likewise, but from the third iteration on."""
    recent: list[float] = dataclasses.field(default_factory=list)
    """Moving averages of the last iterations, the oldest first."""

    @property
    def level(self) -> float:
        """The moving average now."""
        return self.total / self.weight

    def has_risen(self, least: float, limits: Thresholds) -> bool:
        """Return whether it rose over the window by so much, and more than noise."""
        return self.level - self.recent[0] >= max(least, limits.noise * self.change)

    def has_fallen(self, least: float, limits: Thresholds) -> bool:
        """Return whether it is so far below its best, and further than noise."""
        return self.best - self.level >= max(least, limits.noise * self.change)

    def add(self, value: float, limits: Thresholds) -> None:
        """Take in the value of an iteration."""
        self.count += 1
        if self.count > 1:
            # A running mean of count - 1 changes.
            step = abs(value - self.last) - self.change
            self.change += step / (self.count - 1)
        self.last = value
        self.total = limits.decay * self.total + (1 - limits.decay) * value
        self.weight = limits.decay * self.weight + (1 - limits.decay)
        self.recent = [*self.recent, self.level][-limits.window - 1 :]
        # A lucky first iteration is no best that a run could fall from.
        if self.count >= min(3, limits.baseline):
            self.best = max(self.best, self.level)

    def compare(
        self, value: float, room: float, anew: bool, limits: Thresholds
    ) -> None:
        """Renew the levels that later ones are compared with.

        Args:
            value: Of the iteration.
            room: Share of failures now.
            anew: Whether the run learns something that changes what is usual.
            limits: How many iterations are the first.
        """
        if self.count <= limits.baseline:
            self.reference += (value - self.reference) / self.count
            self.room, self.lowest = room, self.level
            return
        if anew or self.level > self.reference:
            self.reference, self.room = self.level, room
        self.lowest = self.level if anew else min(self.lowest, self.level)

    def explained(self, room: float) -> float:
        """Return the level that the fall of failures explains.

        Where fewer episodes fail, fewer differ from the others of their group, and
        there is less to weigh: what falls with the failures, and no faster, is sound.
        """
        return self.reference * min(1.0, room / self.room)


_SHRINKING: tuple[tuple[str, Sign, str], ...] = (
    (
        "spread_mean",
        "spread",
        "returns within a group hardly differ any more: their spread fell",
    ),
    ("entropy", "entropy", "the policy hardly varies any more: its entropy fell"),
    ("reply_tokens", "length", "replies grew short: tokens a reply fell"),
    ("thought_tokens", "length", "reasoning grew short: words a reply fell"),
    (
        "distinct_4",
        "repetition",
        "replies repeat themselves: the share of distinct 4-grams fell",
    ),
)


def is_done(success: Trend | None, limits: Thresholds) -> bool:
    """Return whether success is near its maximum and has not fallen from its best."""
    if success is None or success.level < limits.top:
        return False
    return success.best - success.level <= limits.slack


def changes_ways(fresh: Mapping[str, Trend], limits: Thresholds) -> bool:
    """Return whether a run learns to reply, so that what is usual changes.

    Args:
        fresh: Trends of the columns that this iteration has a value for.  Returns
            count where the task has no success.
        limits: When a rise counts.
    """
    valid, returns = fresh.get("valid_rate"), fresh.get("return_mean")
    if valid is not None and valid.has_risen(limits.rise, limits):
        return True
    spread = fresh.get("spread_mean")
    if "success" in fresh or spread is None or returns is None or spread.best <= 0:
        return False
    return returns.has_risen(limits.return_rise * spread.best, limits)


def slow_signs(
    fresh: Mapping[str, Trend], room: float, limits: Thresholds
) -> dict[Sign, str]:
    """Return the signs that the trends show, a sentence each.

    Args:
        fresh: Trends of the columns that this iteration has a value for.
        room: Share of failures now.
        limits: When a sign counts.
    """
    found: dict[Sign, str] = {}
    valid, success = fresh.get("valid_rate"), fresh.get("success")
    if not is_done(success, limits):
        ready = {k: t for k, t in fresh.items() if t.count > limits.baseline}
        found |= _shrunken(ready, room, limits)
        rise = _entropy_rise(ready.get("entropy"), limits)
        found |= {"entropy": rise} if rise else {}
    if valid is not None and valid.has_fallen(limits.valid_drop, limits):
        found["validity"] = (
            f"the share of valid replies fell to {valid.level:.0%} "
            f"from {valid.best:.0%} at its best"
        )
    if success is not None and success.has_fallen(
        max(limits.success_floor, limits.success_drop * success.best), limits
    ):
        found["success"] = (
            f"success fell to {success.level:.0%} from {success.best:.0%} at its best"
        )
    return found


def _shrunken(
    ready: Mapping[str, Trend], room: float, limits: Thresholds
) -> dict[Sign, str]:
    """Return the signs that are a fall below a share of what success explains."""
    found: dict[Sign, str] = {}
    for column, sign, what in _SHRINKING:
        trend = ready.get(column)
        if trend is None:
            continue
        share = {
            "spread": limits.spread_share,
            "entropy": limits.entropy_share,
            "length": limits.length_share,
        }.get(sign, limits.distinct_share)
        floors = {"spread": limits.spread_floor, "entropy": limits.entropy_floor}
        explained = trend.explained(room)
        if trend.level <= share * explained and explained > floors.get(sign, 0.0):
            found[sign] = (
                f"{what} to {trend.level:.3g}, while {explained:.3g} would be usual "
                f"at this success and {trend.reference:.3g} was the highest"
            )
    return found


def _entropy_rise(trend: Trend | None, limits: Thresholds) -> str | None:
    if trend is None or trend.level < limits.entropy_growth * trend.lowest:
        return None
    if trend.level - trend.lowest < limits.entropy_floor:
        return None
    return (
        f"the policy writes at random: its entropy rose to {trend.level:.3g} nats a "
        f"token from {trend.lowest:.3g} at its lowest"
    )


def gradient_spike(
    norm: float | None, earlier: Sequence[float], first: float, limits: Thresholds
) -> str | None:
    """Return a sentence if the norm of a gradient is far above the usual one.

    Near the end of learning few groups are left to learn from and the median is small,
    so a norm must also be far above the one that training began with.

    Args:
        norm: Of this iteration, before clipping; may be infinite or NaN.
        earlier: The finite ones of the iterations before, at most a window.
        first: Median of the first ones.
        limits: When it counts.
    """
    if norm is None:
        return None
    if not math.isfinite(norm):
        return f"the gradient is not finite: its norm is {norm}"
    if len(earlier) < limits.baseline:
        return None
    usual = max(statistics.median(earlier), first)
    if usual <= 0 or norm < limits.gradient_factor * usual:
        return None
    return f"the gradient spiked: its norm is {norm:.3g}, usually {usual:.3g}"
