"""`Trend`: a column's moving average, and the levels that it is held against."""

import dataclasses
import math

from ragen_bench.starpo.thresholds import Thresholds


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
    room_at_lowest: float = 1.0
    """Share of failures when that was."""
    first: float = 0.0
    """Mean of the first iterations."""
    previous: float = math.inf
    """The value before the last."""
    best: float = -math.inf
    """Its highest level from the third iteration on."""
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
            self.previous = self.last
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
            self.first, self.room = self.reference, room
            self.lowest, self.room_at_lowest = self.level, room
            return
        if anew or self.level > self.reference:
            self.reference, self.room = self.level, room
        if anew or self.level < self.lowest:
            self.lowest, self.room_at_lowest = self.level, room

    def explained(self, room: float) -> float:
        """Return the level that the fall of failures explains.

        Where fewer episodes fail, fewer differ from the others of their group, and
        there is less to weigh: what falls with the failures, and no faster, is sound.
        """
        return self.reference * min(1.0, room / self.room)
