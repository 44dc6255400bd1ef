"""Random Sokoban rooms whose starts have an exactly known least number of moves."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias, get_args

from ragen_bench.envs._grid import NEWLINE
from ragen_bench.envs._sokoban_levels import (
    FLOOR,
    GOAL,
    MAX_SIDE,
    WALL,
    Instance,
    room_text,
)
from ragen_bench.envs._sokoban_solver import room_of
from ragen_bench.errors import GenerationError, InvalidSpec
from ragen_bench.seeding import Stream

_MAX_ROOMS = 2_000
_MAX_STARTS = 16

Reward: TypeAlias = Literal["sparse", "shaped"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SokobanParams:
    """What a room is like."""

    rows: int
    """Height, outer walls included, 3 to 32."""
    cols: int
    """Width, outer walls included, 3 to 32."""
    boxes: int
    """Boxes, and as many goals."""
    min_moves: int
    """Least optimal number of moves of the start, pushes included."""
    max_moves: int
    """Greatest optimal number of moves of the start."""
    min_floor: float = 0.5
    """Least share of the cells inside the outer walls that are no walls."""
    max_floor: float = 0.8
    """Greatest such share; a room's number of cells is drawn evenly."""
    weights: tuple[int, ...] = ()
    """How often each optimum from ``min_moves`` on is drawn, such as ``(1, 3)``;
    none: evenly among those that the room has."""
    reward: Reward = "sparse"
    """``"sparse"``: 1 on success, else 0.  ``"shaped"``: -0.1 an action, +1 for a box
    that enters a goal, -1 for one that leaves a goal, +10 on success."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("rows", 3, MAX_SIDE),
            ("cols", 3, MAX_SIDE),
            ("boxes", 1, MAX_SIDE**2),
            ("min_moves", 1, 10_000),
            ("max_moves", self.min_moves, 10_000),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise InvalidSpec(
                    f"{name} is {value!r}, but must be an integer of {least} to {most}"
                )
        shares = (self.min_floor, self.max_floor)
        if not all(isinstance(share, (int, float)) for share in shares) or not (
            0 < self.min_floor <= self.max_floor <= 1
        ):
            raise InvalidSpec(
                f"min_floor is {self.min_floor!r} and max_floor {self.max_floor!r}, "
                "but must be shares above 0 and at most 1, in this order"
            )
        optima = self.max_moves - self.min_moves + 1
        if self.weights and (
            len(self.weights) != optima
            or not all(type(weight) is int for weight in self.weights)
            or min(self.weights) < 0
            or not sum(self.weights)
        ):
            raise InvalidSpec(
                f"weights is {self.weights!r}, but must hold {optima} integers, one "
                f"for each optimum from {self.min_moves} to {self.max_moves}, or none"
            )
        if self.reward not in get_args(Reward):
            raise InvalidSpec(
                f"reward is {self.reward!r}, but must be one of {get_args(Reward)}"
            )


def draw_start(
    stream: Stream, params: SokobanParams, fits: Callable[[Instance], bool]
) -> Instance:
    """Return a start that fits, from the exact backward table of a random room.

    Args:
        stream: Where all draws come from.
        params: What the room is like.
        fits: Whether a start may be returned, as in the split that is asked for.

    Raises:
        GenerationError: None was found.
    """
    inside = (params.rows - 2) * (params.cols - 2)
    least = max(round(params.min_floor * inside), 2 * params.boxes)
    sizes = round(params.max_floor * inside) - least + 1
    low, high = _optima(stream, params)
    for _ in range(_MAX_ROOMS if sizes > 0 else 0):
        size = least + stream.below(sizes)
        plan = carve(stream, params.rows, params.cols, size, params.boxes)
        for instance in _starts(stream, plan, params.cols + 1, low, high):
            if fits(instance):
                return instance
    raise GenerationError(
        f"no {params.rows}x{params.cols} room with {params.boxes} boxes and {low} to "
        f"{high} moves to success, in the split that was asked for, was found among "
        f"{_MAX_ROOMS}; ask for fewer moves, fewer boxes or more floor"
    )


def _optima(stream: Stream, params: SokobanParams) -> tuple[int, int]:
    """Return the least and the greatest optimum that a start may have."""
    if not params.weights:
        return params.min_moves, params.max_moves
    drawn = stream.below(sum(params.weights))
    ends = itertools.accumulate(params.weights)
    moves = params.min_moves + next(i for i, end in enumerate(ends) if drawn < end)
    return moves, moves


def _starts(
    stream: Stream, plan: bytes, stride: int, low: int, high: int
) -> Iterator[Instance]:
    """Yield random starts in one room, with one optimum and no box on a goal yet.

    There are several because another start costs less than another table, and nine
    of ten are of no use where a small split is asked for.
    """
    room = room_of(plan, stride)
    room.grow(high)
    deepest = min(high, len(room.layers) - (1 if room.layers[-1] else 2))
    if deepest < low:
        return
    moves = low + stream.below(deepest - low + 1)
    states = [state for state in room.layers[moves] if not state & room.solved]
    for _ in range(min(len(states), _MAX_STARTS)):
        board = bytearray(plan)
        room.put(stream.choice(states), board)
        yield Instance(room=room_text(board), moves=moves)


@functools.lru_cache(maxsize=32)
def _inside(rows: int, cols: int) -> tuple[list[int], dict[int, tuple[int, ...]]]:
    """Return the cells off the border, and for each its neighbours off the border."""
    stride = cols + 1
    cells = [r * stride + c for r in range(1, rows - 1) for c in range(1, cols - 1)]
    known = set(cells)
    deltas = (-stride, stride, -1, 1)
    return cells, {i: tuple(i + d for d in deltas if i + d in known) for i in cells}


def carve(stream: Stream, rows: int, cols: int, size: int, goals: int) -> bytes:
    """Return a random plan: one connected floor of so many cells, some of them goals.

    The floor grows from one cell by cells beside it, all equally likely.
    """
    cells, beside = _inside(rows, cols)
    below = stream.below
    edge = [stream.choice(cells)]
    seen = set(edge)
    floor = []
    for _ in range(size):
        i = below(len(edge))
        cell = edge[i]
        edge[i] = edge[-1]
        edge.pop()
        floor.append(cell)
        for near in beside[cell]:
            if near not in seen:
                seen.add(near)
                edge.append(near)
    plan = bytearray((bytes([WALL]) * cols + bytes([NEWLINE])) * rows)[:-1]
    for cell in floor:
        plan[cell] = FLOOR
    for cell in stream.sample(floor, goals):
        plan[cell] = GOAL
    return bytes(plan)
