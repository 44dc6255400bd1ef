"""Sokoban: push every box onto a goal, in random rooms of exactly known difficulty."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box

from ragen_bench.envs._grid import MOVES, NEWLINE, STYLES, Board, smallest, symmetries
from ragen_bench.envs._sokoban_chance import chance
from ragen_bench.envs._sokoban_generator import SokobanParams, draw_start
from ragen_bench.envs._sokoban_levels import (
    BOX,
    FLOOR,
    GOAL,
    KINDS,
    PLAYER,
    PLAYER_ON_GOAL,
    STORED,
    WALL,
    Instance,
    fault_of,
    load_levels,
    read_room,
    room_text,
    settings_for,
)
from ragen_bench.envs._sokoban_solver import Room, plan_of, room_of
from ragen_bench.errors import InvalidSpec, RecordError
from ragen_bench.registry import register
from ragen_bench.seeding import Stream
from ragen_bench.symbolic import Level, Limits, Observation, Step, SymbolicEnv

__all__ = ["Instance", "Sokoban", "SokobanParams", "load_levels", "settings_for"]


def _level(
    side: int, boxes: int, moves: tuple[int, int], actions: int, **params: Any
) -> Level[SokobanParams]:
    count = "one box" if boxes == 1 else f"{boxes} boxes"
    return Level(
        params=SokobanParams(
            rows=side,
            cols=side,
            boxes=boxes,
            min_moves=moves[0],
            max_moves=moves[1],
            **params,
        ),
        limits=Limits(max_actions=actions, max_turns=actions // 2),
        summary=f"{side}x{side}, {count}, solved in {moves[0]} to {moves[1]} moves",
    )


def _ragen(spec: Level[SokobanParams], actions_per_turn: int) -> Level[SokobanParams]:
    """Return a level under the rules of RAGEN (arXiv 2504.20073, appendix A)."""
    return dataclasses.replace(
        spec,
        params=dataclasses.replace(spec.params, reward="shaped"),
        limits=Limits(
            max_actions=10, max_turns=5, max_actions_per_turn=actions_per_turn
        ),
        split_exempt=True,
        settings={"format_penalty": -0.1},
    )


# In thousandths: the optimal lengths 1 to 10 that were measured on 512 small rooms of
# RAGEN's generator, and for its large rooms weights of 3 to 10 with the measured
# median, 6, and share of at most 8 moves, 93 %.  The shares of floor are those with
# which random play succeeds about as often as there.
_SMALL_LENGTHS = (94, 248, 107, 168, 147, 101, 53, 53, 15, 14)
_LARGE_LENGTHS = (50, 100, 170, 200, 220, 190, 40, 30)
_SPARSE = {"min_floor": 0.4, "max_floor": 0.6}
_SMALL = _level(6, 1, (1, 10), 10, weights=_SMALL_LENGTHS, **_SPARSE)
_LARGE = _level(8, 2, (3, 10), 10, weights=_LARGE_LENGTHS, **_SPARSE)


@functools.cache
def _orders(rows: int, cols: int) -> list[bytes]:
    """Return `symmetries` as bytes, for boards of at most 256."""
    return [bytes(order) for order in symmetries(rows, cols, cols + 1)]


class Sokoban(SymbolicEnv[SokobanParams]):
    """A player pushes boxes onto goals, by single steps in a room of walls.

    Observations are uint8 [rows, cols]: wall 0, floor 1, goal 2, box 3, box on a goal
    4, player 5, player on a goal 6.  All of the room is always visible.  Difficulty is
    the exact least number of moves.  Rooms without a way to success any more are
    played on to the limits.

    Levels of other games are played by ``reset(options={"instance": level})`` with a
    level of `load_levels`, in an environment made with `settings_for` that level.
    Play costs the same there; exact answers on large rooms may take minutes.
    """

    levels = {
        1: _level(6, 1, (2, 4), 10, min_floor=0.55, max_floor=0.85),
        2: _level(6, 2, (5, 10), 22, min_floor=0.6, max_floor=0.9),
        3: _level(7, 2, (11, 20), 42),
        4: _level(8, 2, (21, 40), 82),
        5: _level(9, 3, (41, 60), 120, min_floor=0.45, max_floor=0.65),
    }
    presets = {
        "ragen-v1": _ragen(_SMALL, 5),
        "ragen-v2": _ragen(_SMALL, 2),
        "ragen-v1-large": _ragen(_LARGE, 5),
        "ragen-v2-large": _ragen(_LARGE, 2),
    }
    styles: ClassVar[tuple[str, ...]] = STYLES
    actions = MOVES

    def configure(self) -> None:
        """Prepare the drawing, the moves and the symmetries of this size."""
        rows, cols = self.params.rows, self.params.cols
        self._view = Board(rows, cols, KINDS, self.style, self.symbols)
        self._stride = cols + 1
        self._deltas = (-self._stride, self._stride, -1, 1)
        self._shape = (rows, cols)
        self._shaped = self.params.reward == "shaped"
        self.observation_space = Box(0, len(KINDS) - 1, self._shape, np.uint8)

    # Instances ----------------------------------------------------------------

    def generate(self, stream: Stream) -> Instance:
        """Return a start drawn from the exact backward table of a random room.

        Raises:
            GenerationError: Rooms with such parameters are not found.
        """
        exempt = self.level_spec.split_exempt

        def fits(instance: Instance) -> bool:
            return exempt or self.split_of_instance(instance) == self.split

        return draw_start(stream, self.params, fits)

    def canonical(self, instance: Instance) -> bytes:
        """Return the least text of the room under its 8 symmetries, 4 if oblong."""
        raw = instance["room"].encode("ascii")
        if len(raw) > 256:
            return smallest(bytearray(raw), symmetries(*self._shape, self._stride))
        # bytes.translate looks up all cells of an image in one call.
        cells = raw.ljust(256)
        return min([order.translate(cells) for order in _orders(*self._shape)])

    def begin(self, instance: Instance) -> None:
        """Put the environment into the instance's first state.

        Raises:
            InvalidSpec: The instance is no room, is solved, or has another size.
        """
        if not isinstance(instance, Mapping) or not isinstance(
            instance.get("room"), str
        ):
            raise InvalidSpec(
                f"instance is {instance!r}, but must be a mapping with the text 'room'"
            )
        board = read_room(instance["room"])
        shape = (board.count(NEWLINE) + 1, board.find(NEWLINE))
        if shape != self._shape:
            wanted = ", ".join(f"{k}={n}" for k, n in settings_for(instance).items())
            raise InvalidSpec(
                f"instance is {shape[0]}x{shape[1]}, but this environment is "
                f"{self._shape[0]}x{self._shape[1]}; make it with {wanted}"
            )
        self._place(board)
        if not self._astray:
            raise InvalidSpec(f"instance {instance['room']!r} is solved at the start")

    def _place(self, board: bytearray) -> None:
        self._board = board
        # A view of the board without its line breaks.
        self._window: Observation = np.ndarray(
            self._shape, np.uint8, board, strides=(self._stride, 1)
        )
        self._player = max(board.find(PLAYER), board.find(PLAYER_ON_GOAL))
        self._astray = board.count(BOX)
        self._boxes = self._astray + board.count(STORED)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a copy or a pickle, whose view is of another board."""
        self.__dict__.update(state)
        if "_board" in state:
            self._place(self._board)

    # Play -----------------------------------------------------------------------

    def apply(self, action: int) -> Step:
        """Move the player one cell, and the box that stands there one cell ahead."""
        board = self._board
        delta = self._deltas[action]
        here = self._player
        there = here + delta
        kind = board[there]
        gain = -0.1 if self._shaped else 0.0
        if kind == BOX or kind == STORED:
            beyond = board[there + delta]
            if beyond != FLOOR and beyond != GOAL:
                return gain, 0.0, False, False
            board[there + delta] = BOX if beyond == FLOOR else STORED
            moved = (kind == STORED) - (beyond == GOAL)
            self._astray += moved
            if self._shaped:
                gain -= moved
            kind = FLOOR if kind == BOX else GOAL
        elif kind == WALL:
            return gain, 0.0, False, False
        board[there] = PLAYER if kind == FLOOR else PLAYER_ON_GOAL
        board[here] = FLOOR if board[here] == PLAYER else GOAL
        self._player = there
        if self._astray:
            return gain, 0.0, False, True
        self.success = True
        return (gain + 10.0 if self._shaped else 1.0), 1.0, True, True

    def progress(self) -> float:
        """Return the share of boxes that stand on goals."""
        return (self._boxes - self._astray) / self._boxes

    def observe(self) -> Observation:
        """Return the board as a fresh uint8 array [rows, cols]."""
        return self._window.copy()

    def to_text(self) -> str:
        """Return the board in this style."""
        return self._view.draw(self._board)

    def from_text(self, text: str) -> None:
        """Set the board from a text of `to_text`.

        Raises:
            RecordError: The text is no such board, or none that can be played.
        """
        board = self._view.read(text)
        fault = fault_of(board, self.params.cols)
        if fault:
            raise RecordError(f"board {text!r} {fault}")
        self._place(board)
        self.success = not self._astray

    def legend(self) -> Mapping[str, str]:
        """Return glyph to meaning."""
        return self._view.legend()

    def rules(self) -> str:
        """Return goal and dynamics in sentences."""
        if self._shaped:
            pay = (
                "Each action costs 0.1. A box that enters a goal pays 1, a box that "
                "leaves a goal costs 1, and the last box pays 10 more."
            )
        else:
            pay = "You get 1 when every box is on a goal, and 0 before."
        return (
            "You are in a Sokoban room. Push boxes until each box is on a goal; any "
            "box fits any goal.\n"
            "Each action moves you one cell up, down, left or right. Walking into a "
            "box pushes it one cell ahead, if beyond it is no wall and no other box. "
            "You push one box at a time and can never pull. You may walk over goals. "
            "Walking into a wall, or into a box that cannot move, changes nothing but "
            f"uses up the action.\n{pay}"
        )

    def dump(self) -> str:
        """Return the board, always in the glyphs of an `Instance`."""
        return room_text(self._board)

    def restore(self, state: str) -> None:
        """Set what `dump` returned."""
        self._place(read_room(state))

    # Exact values ---------------------------------------------------------------

    def _solve(self) -> tuple[Room, int]:
        room = room_of(plan_of(self._board), self._stride)
        return room, room.state(self._board)

    def optimal_cost(self) -> int | None:
        """Return the fewest moves to success, None if there are none."""
        room, state = self._solve()
        return room.cost(state)

    def optimal_value(self) -> float:
        """Return 1 if success is within the actions left, else 0; 0 after it."""
        return self._within(self.actions_left)

    def turn_limited_value(self, turns_left: int, max_actions_per_turn: int) -> float:
        """Return 1 if the replies left can hold a solution too, else 0."""
        return self._within(min(self.actions_left, turns_left * max_actions_per_turn))

    def _within(self, actions: int) -> float:
        cost = self.optimal_cost()
        return float(not self.success and cost is not None and cost <= actions)

    def optimal_action(self) -> int:
        """Return the first action of `plan`; 0 where nothing leads to success."""
        return self.plan(1, 1)[0]

    def plan(self, max_actions: int, turns_left: int) -> list[int]:
        """Return the first actions of the first of all shortest solutions.

        Actions are in the order of ``actions``.  Where there is no solution it is one
        action, Up.
        """
        room, state = self._solve()
        return (room.path(state) or [0])[:max_actions]

    def is_dead(self) -> bool:
        """Return whether no sequence of actions, however long, leads to success."""
        return self.optimal_cost() is None

    def random_value(self) -> float:
        """Return the exact probability that random actions succeed within the limit."""
        room, state = self._solve()
        return 0.0 if self.success else chance(room, state, self.actions_left)

    def explain(self, plan: Sequence[int]) -> str:
        """Return where things are, and the first push of a plan or of what follows."""
        room, state = self._solve()
        boxes, goals = room.places(state), room.places(room.solved)
        text = (
            f"Player {self._cell(self._player)}, {self._cells('box', 'boxes', boxes)}, "
            f"{self._cells('goal', 'goals', goals)}."
        )
        end = state
        for action in plan:
            end = room.after(end, action)
        actions = [*plan, *(room.path(end) or ())]
        for walked, action in enumerate(actions):
            if room.pushes(state, action):
                push = self._tell_push(room, state, actions[walked:])
                way = f": go to {self._cell(room.player(state))}, then push"
                return f"{text} Push {push}{way if walked else ''}."
            state = room.after(state, action)
        return text

    def _tell_push(self, room: Room, state: int, actions: Sequence[int]) -> str:
        """Return which box the first action pushes, where to, and how many times."""
        action = actions[0]
        box = self._cell(room.player(state) + self._deltas[action])
        times = 0
        for following in actions:
            if following != action or not room.pushes(state, action):
                break
            state = room.after(state, action)
            times += 1
        what = "the box" if room.boxes == 1 else f"the box at {box}"
        return f"{what} {self.actions[action]}{f' {times} times' * (times > 1)}"

    def _cells(self, one: str, many: str, cells: list[int]) -> str:
        return f"{one if len(cells) == 1 else many} {' '.join(map(self._cell, cells))}"

    def _cell(self, i: int) -> str:
        return f"({i // self._stride}, {i % self._stride})"


register("ragen/Sokoban", Sokoban)
