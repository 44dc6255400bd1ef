"""Bayes-optimal play of Bernoulli arms with uniform priors, exact for a few pulls.

An arm's record is its number of pulls and of wins among them; its chance to pay is
then (wins + 1) / (pulls + 2) on average.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Record: TypeAlias = tuple[int, int]
"""Pulls and wins of one arm."""
Records: TypeAlias = tuple[Record, ...]

MAX_STATES = 400_000
"""Most information sets, order of arms apart, that are worked out."""


def states(arms: int, pulls: int) -> int:
    """Return about how many information sets there are, order of arms apart."""
    return math.comb(pulls + 2 * arms, 2 * arms) // math.factorial(arms)


class _Layer(NamedTuple):
    """What the best policy does after a number of pulls, by information set."""

    arms: NDArray[np.intp]
    after_win: NDArray[np.intp]
    """Index of the next layer's information set."""
    after_loss: NDArray[np.intp]


class BayesPolicy:
    """The policy that pays most on average over uniformly drawn arms.

    Args:
        pulls: How many pulls an episode has.
    """

    def __init__(self, pulls: int) -> None:
        self.pulls = pulls
        self._values: dict[Records, float] = {}
        self._plans: dict[Records, list[_Layer]] = {}

    def value(self, records: Records) -> float:
        """Return the expected pay of the pulls left, on average over the priors."""
        # Arms that differ in their places alone are worth the same.
        key = tuple(sorted(records))
        value = self._values.get(key)
        if value is None:
            over = sum(pulls for pulls, _ in key) >= self.pulls
            value = 0.0 if over else max(self._pull_values(key))
            self._values[key] = value
        return value

    def _pull_values(self, records: Records) -> list[float]:
        """Return what a pull of each arm, and the best play after it, are worth."""
        found: dict[Record, float] = {}
        for arm, record in enumerate(records):
            if record not in found:
                pulls, wins = record
                chance = (wins + 1) / (pulls + 2)
                win, loss = self._after(records, arm)
                found[record] = chance * (1 + self.value(win)) + (
                    1 - chance
                ) * self.value(loss)
        return [found[record] for record in records]

    @staticmethod
    def _after(records: Records, arm: int) -> tuple[Records, Records]:
        """Return the records after a pull that won, and after one that did not."""
        pulls, wins = records[arm]
        before, behind = records[:arm], records[arm + 1 :]
        return (
            (*before, (pulls + 1, wins + 1), *behind),
            (*before, (pulls + 1, wins), *behind),
        )

    def action(self, records: Records) -> int:
        """Return the first of the best arms."""
        values = self._pull_values(records)
        return values.index(max(values))

    def value_on(self, means: Sequence[float], records: Records) -> float:
        """Return the expected pay of this policy where the arms have these means."""
        chances = np.array(means)
        worth = np.zeros(1)
        for depth, layer in enumerate(reversed(self._plan(records))):
            chance = chances[layer.arms]
            if depth == 0:
                worth = chance
            else:
                win, loss = worth[layer.after_win], worth[layer.after_loss]
                worth = chance * (1 + win) + (1 - chance) * loss
        return float(worth[0])

    def _plan(self, records: Records) -> list[_Layer]:
        """Return the layers of information sets that the policy meets from here."""
        if records not in self._plans:
            if len(self._plans) >= 64:
                self._plans.clear()
            self._plans[records] = self._meet(records)
        return self._plans[records]

    def _meet(self, records: Records) -> list[_Layer]:
        layers = []
        met: dict[Records, int] = {records: 0}
        for _ in range(self.pulls - sum(pulls for pulls, _ in records)):
            ahead: dict[Records, int] = {}
            arms, wins, losses = [], [], []
            for here in met:
                arm = self.action(here)
                win, loss = self._after(here, arm)
                arms.append(arm)
                wins.append(ahead.setdefault(win, len(ahead)))
                losses.append(ahead.setdefault(loss, len(ahead)))
            layers.append(_Layer(np.array(arms), np.array(wins), np.array(losses)))
            met = ahead
        return layers


@functools.lru_cache(maxsize=8)
def policy(pulls: int) -> BayesPolicy:
    """Return the best policy, shared by all episodes of so many pulls."""
    return BayesPolicy(pulls)


def bayes_value(arms: int, pulls: int) -> float:
    """Return the expected pay of the best policy over uniformly drawn arms.

    Args:
        arms: How many arms.
        pulls: How many pulls; the work grows as `states`.
    """
    return policy(pulls).value(((0, 0),) * arms)
