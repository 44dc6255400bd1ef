"""The signs of a collapse: which trends of the metrics count as one.

Pure functions of trends; `ragen_bench.starpo.echo_trap` feeds them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from ragen_bench.starpo.thresholds import Thresholds
from ragen_bench.starpo.trend import Trend

Row: TypeAlias = Mapping[str, float | None]
"""Metrics of one iteration by column; a column may be missing or None."""

Sign = Literal[
    "spread",
    "gradient",
    "entropy",
    "length",
    "reasoning",
    "repetition",
    "template",
    "validity",
    "success",
    "format",
    "echo_trap",
]
"""``"echo_trap"`` is the combined alarm, several of the others at once; ``"format"`` is
a remark without a vote in it."""

VOTES: Mapping[str, str] = MappingProxyType(
    {
        "spread": "spread",
        "gradient": "gradient",
        "entropy": "entropy",
        "length": "length",
        "reasoning": "length",
        "repetition": "repetition",
        "template": "template",
        "validity": "validity",
        "success": "success",
    }
)
"""Sign to its vote in the combined alarm; what shrinks together has one."""


_SHRINKING: tuple[tuple[str, Sign, str], ...] = (
    (
        "spread_mean",
        "spread",
        "returns within a group hardly differ any more: their spread fell",
    ),
    ("entropy", "entropy", "the policy hardly varies any more: its entropy fell"),
    ("reply_tokens", "length", "replies grew short: tokens a reply fell"),
    ("thought_tokens", "reasoning", "reasoning grew short: words a reply fell"),
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
        found |= _grown(ready, room, limits)
    found |= _gone(fresh, limits)
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
            "reasoning": limits.length_share,
        }.get(sign, limits.distinct_share)
        floors = {
            "spread": limits.spread_floor,
            "entropy": limits.entropy_floor,
            # An agent without thoughts has a word of them now and then, by chance.
            "reasoning": 1.0,
        }
        explained = trend.explained(room)
        if trend.level <= share * explained and explained > floors.get(sign, 0.0):
            found[sign] = (
                f"{what} to {trend.level:.3g}, while {explained:.3g} would be usual "
                f"at this success and {trend.reference:.3g} was the highest"
            )
    return found


def _grown(
    ready: Mapping[str, Trend], room: float, limits: Thresholds
) -> dict[Sign, str]:
    """Return the signs that are a rise which nothing was won by."""
    found: dict[Sign, str] = {}
    if rise := _entropy_rise(ready.get("entropy"), limits):
        found["entropy"] = rise
    length = ready.get("reply_tokens")
    if (
        length is not None
        and length.level >= limits.length_growth * length.lowest
        and not _pays(length, room, limits)
    ):
        found["length"] = (
            f"replies grow long and solve no more: {length.level:.3g} tokens a reply, "
            f"{length.lowest:.3g} at its lowest"
        )
    cut = ready.get("cut_share")
    if cut is not None and cut.level - cut.lowest >= limits.cut_rise:
        found["length"] = (
            f"replies do not end any more: {cut.level:.0%} are cut off, "
            f"{cut.lowest:.0%} at the lowest"
        )
    repeated = ready.get("repeated_4")
    if (
        repeated is not None
        and repeated.level - repeated.lowest >= limits.repeated_rise
        and not _pays(repeated, room, limits)
    ):
        found["repetition"] = (
            f"replies go in circles: {repeated.level:.0%} of a reply's 4-grams stood "
            f"in it before, {repeated.lowest:.0%} at the lowest"
        )
    return found


def _pays(trend: Trend, room: float, limits: Thresholds) -> bool:
    """Return whether more episodes succeed than when something was at its lowest."""
    return trend.room_at_lowest - room > limits.slack


def _gone(fresh: Mapping[str, Trend], limits: Thresholds) -> dict[Sign, str]:
    """Return the signs that success does not excuse."""
    found: dict[Sign, str] = {}
    thoughts, tells = fresh.get("thought_tokens"), fresh.get("dependence")
    if thoughts is not None and thoughts.best >= 1:
        if thoughts.level <= limits.vanish_share * thoughts.best:
            found["reasoning"] = (
                f"reasoning vanished: {thoughts.level:.3g} words a reply, "
                f"{thoughts.best:.3g} at its longest"
            )
    if tells is not None and tells.best >= limits.template_floor:
        if max(tells.last, tells.previous) <= limits.template_share * tells.best:
            found["template"] = (
                "replies hardly depend on their prompts any more: they tell them "
                f"{tells.last:.0%} above chance, {tells.best:.0%} at their best"
            )
    if text := _format_alone(fresh, limits):
        found["format"] = text
    return found


def _format_alone(fresh: Mapping[str, Trend], limits: Thresholds) -> str | None:
    """Return a sentence if success has moved with the validity of replies alone."""
    success, valid = fresh.get("success"), fresh.get("valid_rate")
    sound = fresh.get("valid_success")
    if success is None or valid is None or sound is None:
        return None
    moved, more = success.level - success.first, valid.level - valid.first
    least = max(limits.format_move, limits.noise * success.change)
    if success.count <= limits.baseline or abs(moved) < least:
        return None
    if moved * more <= 0 or abs(more) < limits.rise:
        return None
    if abs(sound.level - sound.first) > abs(moved) / 4:
        return None
    return (
        f"success moves with the format alone: it went from {success.first:.0%} to "
        f"{success.level:.0%} and valid replies from {valid.first:.0%} to "
        f"{valid.level:.0%}, while of episodes with valid replies "
        f"{sound.first:.0%} succeeded, and {sound.level:.0%} do now"
    )


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
