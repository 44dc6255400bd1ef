"""Two agents on shared instances: their episodes joined by key, and weighed.

The board's score is a mean over environments of means over cells of
(R - F) / (C - F).  So is a difference of two agents: each instance of a cell adds its
own part of it, and the parts of all instances sum up to the difference.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ragen_bench.intervals import Floats
from ragen_bench.ranking.played import CellResults, Key, Played

_SAME = 1e-9
"""Returns closer than this are equal."""
_NO_ROOM = 1e-12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedCell:
    """The episodes of one cell that both agents have."""

    name: str
    env_id: str
    keys: tuple[Key, ...]
    first: CellResults
    second: CellResults
    gains: Floats
    """[N], return of the first less that of the second."""
    owner: NDArray[np.intp]
    """[N], which instance each episode belongs to, from 0 on; one for each seed."""
    room: float
    """Ceiling less floor, means over the shared episodes."""

    @property
    def instances(self) -> int:
        """How many instances were shared."""
        return int(self.owner[-1]) + 1 if len(self.owner) else 0

    def sums(self) -> Floats:
        """Return the sum of gains over each instance."""
        return np.bincount(self.owner, self.gains, self.instances).astype(float)

    def normalized(self) -> float:
        """Return the mean gain in units of the room."""
        return float(self.gains.mean()) / self.room


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """Two agents and what they share."""

    first: Played
    second: Played
    cells: tuple[SharedCell, ...]
    """Those with a shared episode and room between floor and ceiling."""
    shared: int
    """Episodes that both have."""
    left_out: int
    """Episodes that one of them has alone, or has under other rules."""

    def weights(self) -> dict[str, float]:
        """Return what each cell weighs in the score of the shared ones."""
        return cell_weights({cell.name: cell.env_id for cell in self.cells})

    def parts(self) -> Floats:
        """Return each instance's part of the difference, cell after cell."""
        weights = self.weights()
        parts = [
            cell.sums() * (weights[cell.name] / (len(cell.keys) * cell.room))
            for cell in self.cells
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def gap(self) -> float:
        """Return the difference of the two scores on what is shared."""
        weights = self.weights()
        return sum(weights[cell.name] * cell.normalized() for cell in self.cells)


def cell_weights(envs: Mapping[str, str]) -> dict[str, float]:
    """Return what each cell weighs in a score, given its environment."""
    owners = list(envs.values())
    count = len(set(owners))
    return {cell: 1 / (count * owners.count(env)) for cell, env in envs.items()}


def pair(first: Played, second: Played) -> Pair:
    """Return what two agents share.

    Episodes are shared if they have cell, seed and rep in common and, where both
    instances are known, the very instance with its floor and ceiling.  Where one is
    not known, split and settings of the environments have to be the same.
    """
    cells = []
    shared = 0
    for name in sorted(first.cells.keys() & second.cells.keys()):
        ours, theirs = first.cells[name], second.cells[name]
        places = _shared(ours, theirs, first, second)
        shared += len(places)
        if places:
            cell = _shared_cell(name, ours, theirs, places)
            if cell.room > _NO_ROOM:
                cells.append(cell)
    return Pair(
        first=first,
        second=second,
        cells=tuple(cells),
        shared=shared,
        left_out=first.size() + second.size() - 2 * shared,
    )


def _shared(
    ours: CellResults, theirs: CellResults, first: Played, second: Played
) -> list[tuple[int, int]]:
    """Return the places, in both, of the episodes that are shared."""
    if first.seeds_from != second.seeds_from:
        return []
    known = ours.instances is not None and theirs.instances is not None
    if not known and first.rules != second.rules:
        return []
    if ours.keys == theirs.keys:
        places = [(i, i) for i in range(len(ours.keys))]
    else:
        there = {key: j for j, key in enumerate(theirs.keys)}
        places = [(i, there[key]) for i, key in enumerate(ours.keys) if key in there]
    if not known:
        return places
    return [(i, j) for i, j in places if _same_instance(ours, i, theirs, j)]


def _same_instance(ours: CellResults, i: int, theirs: CellResults, j: int) -> bool:
    assert ours.instances is not None and theirs.instances is not None
    return bool(
        ours.instances[i] == theirs.instances[j]
        and abs(ours.floor[i] - theirs.floor[j]) < _SAME
        and abs(ours.ceiling[i] - theirs.ceiling[j]) < _SAME
    )


def _shared_cell(
    name: str,
    ours: CellResults,
    theirs: CellResults,
    places: Sequence[tuple[int, int]],
) -> SharedCell:
    first = ours.take([i for i, _ in places])
    second = theirs.take([j for _, j in places])
    gains = first.returned - second.returned
    gains[np.abs(gains) < _SAME] = 0.0
    place: dict[int, int] = {}
    owner = [place.setdefault(seed, len(place)) for seed, _ in first.keys]
    rooms = [float((cell.ceiling - cell.floor).mean()) for cell in (first, second)]
    return SharedCell(
        name=name,
        env_id=name.rpartition(":")[0],
        keys=first.keys,
        first=first,
        second=second,
        gains=gains,
        owner=np.array(owner, dtype=np.intp),
        room=sum(rooms) / 2,
    )
