"""Scores by environment, level and cell, of all that was played or of what is shared.

Of all that was played they are those of the summary.  Where runs share only a part of
their episodes, that part is scored by the same rules, with the seeds as clusters.
"""

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np

from ragen_bench.cell_scores import Row, estimates
from ragen_bench.intervals import Estimate, composite
from ragen_bench.ranking.pairing import cell_weights, pair
from ragen_bench.ranking.played import CellResults, Key, Played
from ragen_bench.records import Interval


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Normalized scores with their intervals."""

    score: Interval
    envs: Mapping[str, Interval]
    levels: Mapping[int, Interval]
    """Level to the mean over the environments that have it."""
    cells: Mapping[str, Interval]
    episodes: int
    """How many count."""


def scores(played: Played, *, whole: bool = True) -> Scores:
    """Return the scores of an agent.

    Args:
        played: Its results.
        whole: Whether they are all that the summary counts.
    """
    summary = played.summary
    if not whole:
        return _scored(played)
    known = {name: cell.normalized for name, cell in summary.cells.items()}
    return Scores(
        score=summary.score,
        envs={name: env.normalized for name, env in summary.envs.items()},
        levels=_levels({name: Estimate(interval=one) for name, one in known.items()}),
        cells=known,
        episodes=played.size(),
    )


def _scored(played: Played) -> Scores:
    found = {
        name: estimates(_rows(cell), name)[2] for name, cell in played.cells.items()
    }
    owners = {name: name.rpartition(":")[0] for name in found}
    envs = {}
    for env_id in dict.fromkeys(owners.values()):
        own = [found[name] for name, owner in owners.items() if owner == env_id]
        envs[env_id] = composite([(1 / len(own), one) for one in own])
    weights = cell_weights(owners)
    return Scores(
        score=composite([(weights[name], one) for name, one in found.items()]),
        envs=envs,
        levels=_levels(found),
        cells={name: one.interval for name, one in found.items()},
        episodes=played.size(),
    )


def _levels(cells: Mapping[str, Estimate]) -> dict[int, Interval]:
    by_level: dict[int, list[Estimate]] = {}
    for name, one in cells.items():
        by_level.setdefault(int(name.rpartition(":")[2]), []).append(one)
    return {
        level: composite([(1 / len(found), one) for one in found])
        for level, found in sorted(by_level.items())
    }


def _rows(cell: CellResults) -> list[Row]:
    numbers = zip(
        cell.keys,
        cell.success.tolist(),
        cell.returned.tolist(),
        cell.floor.tolist(),
        cell.ceiling.tolist(),
        strict=True,
    )
    return [
        Row(
            seed=seed,
            rep=rep,
            cluster=str(seed),
            success=None if np.isnan(success) else success == 1,
            returned=returned,
            floor=floor,
            ceiling=ceiling,
            efficiency=None,
            turns=0,
            invalid=0,
            actions=0,
            tokens=None,
        )
        for (seed, rep), success, returned, floor, ceiling in numbers
    ]


def common(played: Sequence[Played]) -> list[Played]:
    """Return each agent's results on the episodes that all of them have.

    Whether they do is said by the rules of `pair`, with the first agent.
    """
    with_first = [pair(played[0], one).cells for one in played]
    joint: dict[str, set[Key]] = {cell.name: set(cell.keys) for cell in with_first[0]}
    for cells in with_first[1:]:
        shared = {cell.name: set(cell.keys) for cell in cells}
        joint = {name: keys & shared.get(name, set()) for name, keys in joint.items()}
    return [
        dataclasses.replace(
            one,
            cells={
                name: _only(one.cells[name], keys)
                for name, keys in joint.items()
                if keys
            },
        )
        for one in played
    ]


def _only(cell: CellResults, keys: Set[Key]) -> CellResults:
    return cell.take([i for i, key in enumerate(cell.keys) if key in keys])
