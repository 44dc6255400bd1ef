"""`Thresholds`: from where on a metric of a training is a sign of collapse."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ragen_bench.errors import InvalidSpec, UnknownName


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a sign counts; ``scripts/fit_echo_trap.py`` chooses them on real runs."""

    decay: float = 0.6
    """Of the moving averages, in [0, 1); an iteration weighs 1 less it."""
    baseline: int = 5
    """Iterations at the start that set the first level to compare with."""
    patience: int = 2
    """Iterations in a row that a sign must show; a gradient needs no more than one."""
    memory: int = 10
    """Iterations for which a sign counts after it was last shown."""
    window: int = 5
    """Iterations over which a rise is measured."""
    noise: float = 1.5
    """Rises, and falls of success and valid replies, are not judged if smaller than
    so many times the mean change from one iteration to the next."""
    rise: float = 0.02
    """Rise of the share of valid replies that counts as learning to reply."""
    return_rise: float = 0.2
    """Rise of returns that does, in units of their largest spread, where a task has no
    success."""
    top: float = 0.8
    """Success from here on is near its maximum."""
    slack: float = 0.05
    """Success that is further below its best is no longer so."""
    spread_share: float = 0.25
    """Spread of returns below this share of what success explains."""
    spread_floor: float = 0.05
    """Spreads are not judged where smaller ones are usual; in units of returns."""
    gradient_factor: float = 10.0
    """Gradient norm above so many medians."""
    gradient_window: int = 20
    """Iterations that the median is taken over."""
    entropy_share: float = 0.25
    """Entropy below this share of what success explains."""
    entropy_growth: float = 2.0
    """Entropy above so many times its lowest."""
    entropy_floor: float = 0.05
    """The same of entropy, and of its rises; in nats a token."""
    length_share: float = 0.5
    """Length of replies or reasoning below this share of what success explains."""
    length_growth: float = 2.0
    """Length of replies above so many times its lowest, where no more succeed."""
    cut_rise: float = 0.25
    """Rise of the share of replies that are cut off, above its lowest."""
    vanish_share: float = 0.1
    """Reasoning below this share of its longest has vanished, whatever the success."""
    distinct_share: float = 0.5
    """Share of distinct 4-grams below this share of what success explains."""
    repeated_rise: float = 0.2
    """Rise of the share of 4-grams that a reply repeats, above its lowest, where no
    more succeed."""
    template_share: float = 0.25
    """How well replies tell their prompts, above chance, below this share of its best
    in two probes in a row."""
    template_floor: float = 0.1
    """That is not judged if it never was higher; in [0, 1]."""
    format_move: float = 0.1
    """Change of success since the start that is looked at for its reason: did valid
    replies become better, or only more?"""
    valid_drop: float = 0.15
    """Share of valid replies so far below its best."""
    success_drop: float = 0.3
    """Success below its best by this share of it ..."""
    success_floor: float = 0.08
    """... and by at least so much."""
    votes: int = 2
    """Different signs at once that make the combined alarm."""
    stop_after: int = 5
    """Iterations in a row under the combined alarm after which to stop."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 1 if field.type is int else 0
            if not (math.isfinite(value) and value >= least):
                raise InvalidSpec(
                    f"threshold {field.name} is {value!r}, but must be at least {least}"
                )
        if self.decay >= 1:
            raise InvalidSpec(f"threshold decay is {self.decay!r}, but must be below 1")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Thresholds":
        """Return thresholds that differ from the defaults in some settings.

        Raises:
            UnknownName: There is no such threshold.
            InvalidSpec: A value is out of range.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for name in settings:
            if name not in known:
                raise UnknownName.of("threshold", name, known)
        return cls(**settings)
