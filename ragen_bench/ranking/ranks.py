"""Rank ranges: which places an agent may hold, as far as the tests can tell."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ragen_bench.ranking.comparisons import Comparison


class RankRange(NamedTuple):
    """The best and the worst place that an agent may hold; equal ones are certain."""

    best: int
    worst: int

    def __str__(self) -> str:
        if self.best == self.worst:
            return str(self.best)
        return f"{self.best}-{self.worst}"


def rank_ranges(
    labels: Sequence[str], comparisons: Sequence[Comparison]
) -> Mapping[str, RankRange]:
    """Return the places of each agent.

    They go from 1 + the number of agents that beat it to n less the number of those
    that it beats.  Agents which are tied, or share nothing, stand in each other's way
    on neither side.
    """
    beaten = dict.fromkeys(labels, 0)
    beats = dict.fromkeys(labels, 0)
    for one in comparisons:
        if one.winner is not None:
            loser = one.second if one.winner == one.first else one.first
            beats[one.winner] += 1
            beaten[loser] += 1
    n = len(labels)
    return {name: RankRange(1 + beaten[name], n - beats[name]) for name in labels}
