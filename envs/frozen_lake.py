"""`FrozenLake`: walk over ice to a goal, past holes, while the ice may be slippery."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box

from ragen_bench.envs import _frozen_lake_solver as solver
from ragen_bench.envs._frozen_lake_levels import LEVELS, PRESETS, LakeParams
from ragen_bench.envs._frozen_lake_maps import draw_lake, smallest_image, written
from ragen_bench.envs._frozen_lake_solver import SIDES, Lake
from ragen_bench.envs._grid import MOVES, NEWLINE, STYLES, Board, Kind
from ragen_bench.errors import GenerationError, InvalidSpec, RecordError
from ragen_bench.registry import register
from ragen_bench.seeding import Stream
from ragen_bench.symbolic import Level, Observation, Step, SymbolicEnv

ICE, HOLE, GOAL, PLAYER, IN_HOLE, ON_GOAL = range(6)

KINDS = (
    Kind("ice", "_", "ice"),
    Kind("hole", "O", "hole"),
    Kind("goal", "G", "goal"),
    Kind("player", "P", "player"),
    Kind("player_in_hole", "X", "player in a hole"),
    Kind("player_on_goal", "*", "player on the goal"),
)

_CODES = bytes.maketrans(
    "".join(kind.glyph for kind in KINDS).encode(), bytes(range(len(KINDS)))
)
_MAX_CANDIDATES = 20_000
_GLYPHS = bytes.maketrans(
    bytes(range(len(KINDS))), "".join(kind.glyph for kind in KINDS).encode()
)
_HOLE_BITS = bytes.maketrans(bytes(range(len(KINDS))), b"010010")


class FrozenLake(SymbolicEnv[LakeParams]):
    r"""Reach the goal on slippery ice; holes end the episode.

    An instance is the text of its first board in the default glyphs, such as
    ``"P_O\n___\nO_G"``.  The observation is int8 [rows, cols], the number of each
    cell's kind in `KINDS`.  ``progress`` is the share of the way to the goal.
    """

    levels: ClassVar[Mapping[int, Level[Any]]] = LEVELS
    presets: ClassVar[Mapping[str, Level[Any]]] = PRESETS
    styles: ClassVar[tuple[str, ...]] = STYLES
    actions: tuple[str, ...] = MOVES

    def configure(self) -> None:
        """Prepare board and observation space."""
        p = self.params
        self.deterministic = p.slip == 0
        self.board = Board(p.rows, p.cols, KINDS, self.style, self.symbols)
        self._slip_words = round(p.slip * 2**64)
        self._shape = (p.rows, p.cols)
        self.observation_space = Box(0, len(KINDS) - 1, self._shape, np.int8)
        last = p.rows * p.cols - 1
        # The break after a row has the bit of the row's end, but nobody stands there.
        self._bits = [1 << last - self._cell(at) for at in range(self.board.size)]
        self._lake = Lake(p.rows, p.cols, 0, 0)
        self._first = 1
        self._deltas = (-self.board.stride, self.board.stride, -1, 1)

    # Instances ----------------------------------------------------------------

    def generate(self, stream: Stream) -> str:
        """Return a lake whose path and optimum are in the level's bands.

        Raises:
            GenerationError: No candidate fits.
        """
        p = self.params
        for _ in range(_MAX_CANDIDATES):
            lake, start, path = draw_lake(p.rows, p.cols, p.hole_share, stream)
            if p.min_path <= path <= p.max_path:
                text = written(lake, start)
                if not p.banded or self._in_band(text, lake, start):
                    return text
        raise GenerationError(
            f"no lake of {p!r} in {_MAX_CANDIDATES} candidates; use wider bands"
        )

    def _in_band(self, text: str, lake: Lake, start: int) -> bool:
        # The split is cheap to tell and value iteration is not, so it comes first.
        exempt = self.level_spec.split_exempt
        if not exempt and self.split_of_instance(text) != self.split:
            return False
        p = self.params
        band = p.min_optimum, p.max_optimum
        return solver.value_in_band(lake, p.slip, self.limits.max_actions, start, *band)

    def canonical(self, instance: str) -> bytes:
        """Return the least of the lake's 8 images, 4 if it is not square."""
        return smallest_image(instance)

    def begin(self, instance: str) -> None:
        """Put the player on the start.

        Raises:
            InvalidSpec: The instance is no lake of this size.
        """
        data = instance.encode() if isinstance(instance, str) else b""
        stride, size = self.board.stride, self.board.size
        if (
            len(data) != size
            or data[stride - 1 :: stride].strip(b"\n")
            or len(data.translate(None, b"_OGP")) != self.params.rows - 1
            or data.count(b"P") != 1
            or data.count(b"G") != 1
        ):
            raise InvalidSpec(
                f"lake {instance!r} must have {self.params.rows} rows of "
                f"{self.params.cols} cells _, O, one G and one P"
            )
        self._set(bytearray(data).translate(_CODES))

    def _set(self, cells: bytearray, first: int | None = None) -> None:
        """Show these cells; ``first`` is the way from the start, now by default."""
        p = self.params
        self._cells = cells
        self._view = self._look()
        self._at = max(cells.find(code) for code in (PLAYER, IN_HOLE, ON_GOAL))
        goal = max(cells.find(GOAL), cells.find(ON_GOAL))
        holes = int(cells.translate(_HOLE_BITS, b"\n"), 2)
        self._lake = Lake(p.rows, p.cols, holes, self._cell(goal))
        self._layers = solver.distance_layers(self._lake)
        self._away = solver.distance(self._layers, self._bits[self._at])
        self._first = first or max(1, self._away)

    def _look(self) -> Observation:
        """Return a view of the cells, because copying one is a quick observation."""
        strides = self.board.stride, 1
        return np.ndarray(self._shape, np.int8, self._cells, strides=strides)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_cells" in state:
            # A copy or a pickle has cut the view off from the cells.
            self._view = self._look()

    def _cell(self, at: int) -> int:
        """Return the cell that stands at an index of the board."""
        return at - at // self.board.stride

    # Dynamics -----------------------------------------------------------------

    def apply(self, action: int) -> Step:
        """Move a cell, perhaps sideways."""
        if self._slip_words:
            word = self.noise.word()
            if word < self._slip_words:
                action = SIDES[action][word & 1]
        cells = self._cells
        here = self._at
        there = here + self._deltas[action]
        if not 0 <= there < len(cells) or cells[there] == NEWLINE:
            return 0.0, 0.0, False, False
        kind = cells[there]
        cells[here] = ICE
        self._at = there
        if kind == ICE:
            cells[there] = PLAYER
            away = self._away
            if away > 0:
                # A grid is bipartite: each move leads one nearer or one further.
                nearer = self._layers[away - 1] & self._bits[there]
                self._away = away - 1 if nearer else away + 1
            return 0.0, 0.0, False, True
        if kind == HOLE:
            cells[there] = IN_HOLE
            self._away = -1
            return 0.0, 0.0, True, True
        cells[there] = ON_GOAL
        self._away = 0
        self.success = True
        return 1.0, 1.0, True, True

    def observe(self) -> Observation:
        """Return int8 [rows, cols], the kind of each cell."""
        return self._view.copy()

    def progress(self) -> float:
        """Return the share of the way to the goal, 0 in a hole, 1 on the goal."""
        away = self._away
        if away < 0 or away > self._first:
            return 0.0
        return 1 - away / self._first

    # Text ---------------------------------------------------------------------

    def to_text(self) -> str:
        """Return the board in the chosen style."""
        return self.board.draw(self._cells)

    def from_text(self, text: str) -> None:
        """Set the board of a text of `to_text`.

        Raises:
            RecordError: The text does not show a lake of this size.
        """
        cells = self.board.read(text)
        players = sum(cells.count(code) for code in (PLAYER, IN_HOLE, ON_GOAL))
        if players != 1 or cells.count(GOAL) + cells.count(ON_GOAL) != 1:
            raise RecordError(f"board {text!r} does not show one player and one goal")
        lake, first = self._lake, self._first
        self._set(cells)
        if self._lake == lake:
            self._first = first
        self.success = cells[self._at] == ON_GOAL
        if cells[self._at] != PLAYER:
            self.terminated = True
            self._playing = False

    def legend(self) -> Mapping[str, str]:
        """Return glyph to meaning."""
        return self.board.legend()

    def rules(self) -> str:
        """Return goal and dynamics, with the chances of a slip."""
        slip = self.params.slip
        if slip:
            ice = (
                f"The ice is slippery: with probability {1 - slip:.4g} you move in the "
                f"chosen direction, and with probability {slip / 2:.4g} each in one of "
                "the two directions at right angles to it (Left or Right for Up and "
                "Down, Up or Down for Left and Right)."
            )
        else:
            ice = "The ice is not slippery: you always move in the chosen direction."
        return (
            "Walk across the frozen lake to the goal. Reaching it pays 1 and ends the "
            "episode; falling into a hole pays 0 and ends it as well. Each action "
            "moves you one cell; a move off the board leaves you where you are. " + ice
        )

    def explain(self, plan: Sequence[int]) -> str:
        """Return where player and goal are, and why the plan is good."""
        cols = self.params.cols
        player = divmod(self._cell(self._at), cols)
        goal = divmod(self._lake.goal, cols)
        where = f"Player {player}, goal {goal}."
        moves = ", ".join(MOVES[action] for action in plan)
        if not self.params.slip:
            return f"{where} Path {moves} avoids the holes."
        if len(plan) > 1:
            return f"{where} {moves} together have the best odds on slippery ice."
        one, other = (MOVES[side] for side in SIDES[plan[0]])
        return f"{where} {moves} has the best odds, as slips go {one} or {other}."

    # Snapshots ----------------------------------------------------------------

    def dump(self) -> Any:
        """Return the board in default glyphs and the length of the way at first."""
        return {"board": self._cells.translate(_GLYPHS).decode(), "first": self._first}

    def restore(self, state: Any) -> None:
        """Set what `dump` returned."""
        cells = bytearray(state["board"].encode()).translate(_CODES)
        self._set(cells, state["first"])

    # Exact values -------------------------------------------------------------

    def optimal_value(self) -> float:
        """Return the best chance of success if every action has its own reply.

        Where there are fewer turns than actions, see `turn_limited_value`.
        """
        return self._optimum(self.actions_left)

    def _optimum(self, left: int) -> float:
        if self._cells[self._at] != PLAYER or left < 1:
            return 0.0
        if not self.params.slip:
            return float(0 < self._away <= left)
        return float(self._table()[left, self._cell(self._at)])

    def _table(self) -> solver.Values:
        horizon = self.limits.max_actions
        return solver.optimal_table(self._lake, self.params.slip, horizon)

    def turn_limited_value(self, turns_left: int, max_actions_per_turn: int) -> float:
        """Return the best chance of success in so many replies.

        A reply's actions are fixed before the first of them slips.  Replies of more
        than `MAX_COMMIT` actions on slippery ice are left out.
        """
        left = self.actions_left
        slip = self.params.slip
        most = min(max_actions_per_turn, solver.MAX_COMMIT) if slip else left
        if not slip or most == 1 or turns_left >= left:
            return self._optimum(min(left, turns_left * max_actions_per_turn))
        if self._cells[self._at] != PLAYER or turns_left < 1:
            return 0.0
        best = solver.turn_limited(self._lake, slip, most).replies(turns_left, left)
        return float(best.values[self._cell(self._at)])

    def optimal_action(self) -> int:
        """Return the first best action; without slips, one on a shortest path."""
        return self._plan_one(self.actions_left)

    def _plan_one(self, left: int) -> int:
        if not self.params.slip:
            return self._plan_path(1)[0]
        ahead = self._table()[left - 1]
        cell = self._cell(self._at)
        return solver.best_action(self._lake, self.params.slip, ahead, cell)

    def _plan_path(self, most: int) -> list[int]:
        path = solver.shortest_path(self._lake, self._cell(self._at), self._layers)
        return path[:most] or [0]

    def plan(self, max_actions: int, turns_left: int) -> list[int]:
        """Return a shortest path, or as many actions as it is best to commit to."""
        left = self.actions_left
        if not self.params.slip:
            return self._plan_path(max_actions)
        most = min(max_actions, solver.MAX_COMMIT)
        if most == 1 or turns_left >= left:
            return [self._plan_one(min(left, turns_left))]
        replies = solver.turn_limited(self._lake, self.params.slip, most).replies
        return replies(turns_left, left).actions(self._cell(self._at))

    def transitions(self) -> solver.Values:
        """Return [4, n, n]: the chance that an action leads from cell to cell.

        Cells are numbered in reading order; hole and goal lead to themselves.
        """
        return solver.transitions(self._lake, self.params.slip)

    def random_value(self) -> float:
        """Return the chance of success of uniform actions, by value iteration."""
        if self._cells[self._at] != PLAYER:
            return 0.0
        table = solver.random_table(self._lake, self.limits.max_actions)
        return float(table[self.actions_left, self._cell(self._at)])

    def optimal_cost(self) -> int | None:
        """Return the length of a shortest path, None on slippery ice or without one."""
        return self._away if self.deterministic and self._away >= 0 else None

    def is_dead(self) -> bool:
        """Return whether the player is in a hole or has no way to the goal."""
        return self._away < 0


register("ragen/FrozenLake", FrozenLake)
