"""Exact values of a frozen lake: distances, value iteration, limited turns.

Arrays over cells have shape [rows * cols], in reading order; actions are numbered
as `ragen_bench.envs._grid.MOVES`.  All arithmetic is element by element, in one
order, so that every platform finds the same bits; holes count 0, the goal 1.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.intp]

SIDES = ((2, 3), (2, 3), (0, 1), (0, 1))
"""By action: the two directions at right angles to it, where a slip leads."""

MAX_COMMIT = 6
"""Longest reply whose action sequences are all tried: 4**6 of them."""


class Lake(NamedTuple):
    """A lake without a player."""

    rows: int
    cols: int
    holes: int
    """Bit n - 1 - i is set if cell i of the n is a hole."""
    goal: int
    """The goal's cell."""


@functools.cache
def destinations(rows: int, cols: int) -> NDArray[np.intp]:
    """Return [4, rows * cols]: where each direction leads from each cell."""
    cells = np.arange(rows * cols).reshape(rows, cols)
    up = np.vstack([cells[:1], cells[:-1]])
    down = np.vstack([cells[1:], cells[-1:]])
    left = np.hstack([cells[:, :1], cells[:, :-1]])
    right = np.hstack([cells[:, 1:], cells[:, -1:]])
    return np.stack([moved.ravel() for moved in (up, down, left, right)])


@functools.cache
def _edges(rows: int, cols: int) -> tuple[int, int, int]:
    """Return bit sets: all cells, all but the first column, all but the last."""
    row = (1 << cols) - 1
    every = (1 << rows * cols) - 1
    column = every // row
    return every, every ^ column << cols - 1, every ^ column


@functools.lru_cache(maxsize=64)
def distance_layers(lake: Lake) -> tuple[int, ...]:
    """Return bit sets of the cells 0, 1, 2, ... moves from the goal."""
    every, not_first, not_last = _edges(lake.rows, lake.cols)
    cols = lake.cols
    layer = 1 << lake.rows * cols - 1 - lake.goal
    unseen = every & ~lake.holes & ~layer
    layers: list[int] = []
    while layer:
        layers.append(layer)
        layer = (
            (layer & not_first) << 1
            | (layer & not_last) >> 1
            | layer << cols
            | layer >> cols
        ) & unseen
        unseen ^= layer
    return tuple(layers)


def distance(layers: tuple[int, ...], bit: int) -> int:
    """Return how many moves the cell with that bit is away, -1 if it is cut off."""
    for moves, layer in enumerate(layers):
        if layer & bit:
            return moves
    return -1


def shortest_path(lake: Lake, cell: int, layers: tuple[int, ...]) -> list[int]:
    """Return the first of the shortest paths to the goal, [] without a way.

    Args:
        lake: The map.
        cell: Where the path begins.
        layers: Those of `distance_layers`.
    """
    to = destinations(lake.rows, lake.cols)
    last = lake.rows * lake.cols - 1
    path: list[int] = []
    away = max(0, distance(layers, 1 << last - cell))
    for nearer in reversed(layers[:away]):
        action = next(a for a in range(4) if nearer >> last - int(to[a, cell]) & 1)
        cell = int(to[action, cell])
        path.append(action)
    return path


def transitions(lake: Lake, slip: float) -> Values:
    """Return [4, n, n]: the chance that an action leads from a cell to another.

    Args:
        lake: The map; holes and goal lead to themselves.
        slip: Chance of going sideways, half to each side.
    """
    to = destinations(lake.rows, lake.cols)
    cells = np.arange(lake.rows * lake.cols)
    table = np.zeros((4, len(cells), len(cells)))
    for action in range(4):
        np.add.at(table[action], (cells, to[action]), 1 - slip)
        for side in SIDES[action]:
            np.add.at(table[action], (cells, to[side]), slip / 2)
    over = ~_ice(lake)
    table[:, over] = np.eye(len(cells))[over]
    return table


def _ice(lake: Lake) -> NDArray[np.bool_]:
    """Return [n]: whether the episode goes on in a cell."""
    bits = f"{lake.holes:0{lake.rows * lake.cols}b}".encode()
    ice: NDArray[np.bool_] = np.frombuffer(bits, np.uint8) == ord("0")
    ice[lake.goal] = False
    return ice


def _start(lake: Lake) -> Values:
    """Return the values with no action left: 1 on the goal, 0 elsewhere."""
    values = np.zeros(lake.rows * lake.cols)
    values[lake.goal] = 1.0
    return values


def _action_values(values: Values, to: NDArray[np.intp], slip: float) -> Values:
    """Return [..., 4, n]: what each action is worth if its end is worth [..., n]."""
    ahead = values[..., to]
    axes = ahead.reshape(*ahead.shape[:-2], 2, 2, -1)  # [..., axis, direction, n]
    sideways = (axes[..., 0, :] + axes[..., 1, :]) * (slip / 2)
    result = axes * (1 - slip) + sideways[..., ::-1, None, :]
    return result.reshape(ahead.shape)


def _backups(lake: Lake, slip: float) -> Iterator[Values]:
    """Yield the best chances of success with 0, 1, 2, ... actions left.

    It is one array, written anew each time: the cells of `_ice`, a hole, the goal.
    """
    ice = _ice(lake)
    count = int(ice.sum())
    place = np.full(len(ice), count)
    place[ice] = np.arange(count)
    place[lake.goal] = count + 1
    to = place[destinations(lake.rows, lake.cols)[:, ice]]
    values = np.zeros(count + 2)
    values[count + 1] = 1.0
    ahead = np.empty((2, 2, count))  # [axis, direction, ice]
    flat = ahead.reshape(4, count)
    best, sideways = np.empty((2, count)), np.empty((2, count))
    while True:
        yield values
        # Of two opposite directions the better one is better with slips as well.
        values.take(to, out=flat, mode="clip")
        np.maximum(ahead[:, 0], ahead[:, 1], out=best)
        np.add(ahead[:, 0], ahead[:, 1], out=sideways)
        best *= 1 - slip
        sideways *= slip / 2
        best += sideways[::-1]
        np.maximum(best[0], best[1], out=values[:count])


def value_in_band(
    lake: Lake, slip: float, horizon: int, cell: int, low: float, high: float
) -> bool:
    """Return whether the best chance of success from a cell is in [low, high]."""
    place = int(_ice(lake)[:cell].sum())
    value = 0.0
    for values in itertools.islice(_backups(lake, slip), horizon + 1):
        value = float(values[place])
        # More actions never hurt, so the value only grows.
        if value > high:
            return False
    return value >= low


@functools.lru_cache(maxsize=64)
def optimal_table(lake: Lake, slip: float, horizon: int) -> Values:
    """Return [horizon + 1, n]: the best chance of success by actions left."""
    ice = _ice(lake)
    table = np.tile(_start(lake), (horizon + 1, 1))
    for row, values in zip(table, _backups(lake, slip), strict=False):
        row[ice] = values[:-2]
    return table


@functools.lru_cache(maxsize=64)
def random_table(lake: Lake, horizon: int) -> Values:
    """Return [horizon + 1, n]: the success of uniform actions by actions left.

    Slips do not matter: a uniform action moves in a uniform direction.
    """
    to = destinations(lake.rows, lake.cols)
    ice = _ice(lake)
    table = np.tile(_start(lake), (horizon + 1, 1))
    for left in range(horizon):
        table[left + 1, ice] = (table[left][to].sum(axis=0) / 4)[ice]
    return table


def best_action(lake: Lake, slip: float, ahead: Values, cell: int) -> int:
    """Return the first best action in a cell if its end is worth ``ahead`` [n]."""
    to = destinations(lake.rows, lake.cols)[:, cell : cell + 1]
    return int(_action_values(ahead, to, slip).argmax())


class Replies(NamedTuple):
    """The best reply in every cell, its actions fixed before the first is played."""

    values: Values
    """[n], the chance of success."""
    lengths: Codes
    """[n], how many actions the best reply holds."""
    codes: Codes
    """[n], the best reply, first action in the lowest base-4 digit."""

    def actions(self, cell: int) -> list[int]:
        """Return the actions of the best reply in a cell."""
        code = int(self.codes[cell])
        return [code >> 2 * i & 3 for i in range(int(self.lengths[cell]))]


class TurnLimited:
    """Best play where replies must commit to actions: exact, by dynamic programming.

    Args:
        lake: The map.
        slip: Chance of going sideways.
        most: Actions that a reply may hold, 1 to `MAX_COMMIT`.
    """

    def __init__(self, lake: Lake, slip: float, most: int) -> None:
        self.lake = lake
        self.slip = slip
        self.most = most
        self._to = destinations(lake.rows, lake.cols)
        self._end = _start(lake)
        self._over = ~_ice(lake)
        self._replies: dict[tuple[int, int], Replies] = {}
        self._sequences: dict[tuple[int, int], list[tuple[Values, Codes]]] = {}

    def replies(self, turns: int, left: int) -> Replies:
        """Return the best replies with 1 or more replies and actions left."""
        if (turns, left) in self._replies:
            return self._replies[turns, left]
        values = np.full(len(self._end), -1.0)
        lengths = np.ones(len(values), np.intp)
        codes = np.zeros(len(values), np.intp)
        for length in range(1, min(self.most, left) + 1):
            best, best_codes = self._best(turns - 1, left - length)[length - 1]
            better = best > values
            values[better] = best[better]
            codes[better] = best_codes[better]
            lengths[better] = length
        return self._replies.setdefault((turns, left), Replies(values, lengths, codes))

    def _best(self, turns: int, left: int) -> list[tuple[Values, Codes]]:
        """Return value [n] and code [n] of the best sequence of each length from 1.

        After the sequence, so many replies and actions remain.
        """
        if (turns, left) in self._sequences:
            return self._sequences[turns, left]
        if left <= turns:
            values = optimal_table(self.lake, self.slip, left)[left]
        else:
            values = self.replies(turns, left).values if turns else self._end
        tree = values[None]  # [sequences, n]
        best = []
        for _ in range(self.most):
            # A new first action is put before every sequence.
            grown = _action_values(tree, self._to, self.slip)
            grown[..., self._over] = self._end[self._over]
            tree = grown.reshape(-1, len(values))
            best.append((tree.max(axis=0), tree.argmax(axis=0)))
        return self._sequences.setdefault((turns, left), best)


@functools.lru_cache(maxsize=16)
def turn_limited(lake: Lake, slip: float, most: int) -> TurnLimited:
    """Return best play with few replies, shared by all who ask for the same."""
    return TurnLimited(lake, slip, most)
