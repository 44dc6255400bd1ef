"""Exact costs and shortest paths in a Sokoban room: backward tables and A*."""

import functools
import math
import threading
from typing import NamedTuple

from ragen_bench.envs._sokoban_levels import (
    BOX,
    FLOOR,
    GOAL,
    PLAYER,
    PLAYER_ON_GOAL,
    STORED,
)

PLAYER_BITS = 10
PLAYER_MASK = (1 << PLAYER_BITS) - 1
_TABLE_STATES = 100_000
"""Rooms of at most so many states are solved by a complete backward table."""
_NEVER = 1 << 30

_UNDERNEATH = {BOX: FLOOR, PLAYER: FLOOR, STORED: GOAL, PLAYER_ON_GOAL: GOAL}
_PLAN = bytes(_UNDERNEATH.get(code, code) for code in range(256))


class Inside(NamedTuple):
    """The cells off the border of a board, and how a state changes between them."""

    cells: list[int]
    """Their board indices."""
    number: dict[int, int]
    """Their numbers in a state, by board index."""
    ways: list[list[tuple[int, int, int, int]]]
    """How the player may have got to each: the bit of the cell that it came from,
    what to add to undo a walk, the bit of the box that a push left ahead, what to add
    to undo the push."""


@functools.lru_cache(maxsize=32)
def _inside(rows: int, stride: int) -> Inside:
    cells = [r * stride + c for r in range(1, rows - 1) for c in range(1, stride - 2)]
    number = {cell: n for n, cell in enumerate(cells)}
    ways = []
    for n, cell in enumerate(cells):
        into = []
        for delta in (-stride, stride, -1, 1):
            m = number.get(cell - delta)
            if m is not None:
                # Nothing is ever pushed onto the border, so it needs no bit.
                a = number.get(cell + delta)
                ahead = 0 if a is None else _bit(a)
                into.append((_bit(m), m - n, ahead, m - n + _bit(n) - ahead))
        ways.append(into)
    return Inside(cells, number, ways)


def _bit(number: int) -> int:
    return 1 << PLAYER_BITS + number


class Room:
    """The states of one floor plan with goals, and how far each is from success.

    A state is an integer: the number of the player's cell in its lowest 10 bits, and
    above them one bit for each cell, set where a box stands.  Cells off the border are
    numbered in reading order, walls too.  The cost of a state is the fewest moves,
    pushes included, after which every box stands on a goal.

    Costs come from two sources that agree: a table, grown backwards from all solved
    states by breadth, and, in rooms too large to be grown completely, A*.

    Args:
        plan: A board (see `Board`) of walls, floor and goals, walls all around.
        stride: Its columns plus one.
    """

    def __init__(self, plan: bytes, stride: int) -> None:
        self.deltas = (-stride, stride, -1, 1)
        self.cells, self.number, ways = _inside((len(plan) + 1) // stride, stride)
        floor = solved = 0
        first = []
        for n, cell in enumerate(self.cells):
            if plan[cell] == GOAL:
                solved += 1 << PLAYER_BITS + n
            elif plan[cell] == FLOOR:
                floor += 1 << PLAYER_BITS + n
                first.append(n)
        self.solved = solved
        self.floor = floor = floor + solved
        self.boxes = solved.bit_count()
        self._back = [[way for way in into if way[0] & floor] for into in ways]
        self.layers = [[solved + n for n in first]]
        """States by cost, as far as the table has grown; an empty one is the last."""
        self._table = dict.fromkeys(self.layers[0], 0)
        self._found: dict[int, int] = {}
        self._dead: set[int] = set()
        self._lock = threading.Lock()

    # States -------------------------------------------------------------------

    def state(self, board: bytearray) -> int:
        """Return the state that a board of this plan shows."""
        state = 0
        for n, cell in enumerate(self.cells):
            kind = board[cell]
            if kind == BOX or kind == STORED:
                state += _bit(n)
            elif kind == PLAYER or kind == PLAYER_ON_GOAL:
                state += n
        return state

    def player(self, state: int) -> int:
        """Return the board index of the player."""
        return self.cells[state & PLAYER_MASK]

    def places(self, state: int) -> list[int]:
        """Return the board indices of the boxes of a state, or of ``solved``."""
        boxes = state >> PLAYER_BITS
        return [cell for n, cell in enumerate(self.cells) if boxes >> n & 1]

    def put(self, state: int, board: bytearray) -> None:
        """Put the player and the boxes of a state onto a board of the bare plan."""
        player = self.cells[state & PLAYER_MASK]
        board[player] = PLAYER if board[player] == FLOOR else PLAYER_ON_GOAL
        for box in self.places(state):
            board[box] = BOX if board[box] == FLOOR else STORED

    def after(self, state: int, action: int) -> int:
        """Return the state after an action; a bump changes nothing."""
        ahead, step, beyond, push = self.moves[state & PLAYER_MASK][action]
        if not state & ahead:
            return state + step
        return state if state & beyond else state + push

    def pushes(self, state: int, action: int) -> bool:
        """Return whether an action pushes a box."""
        return bool((self.after(state, action) ^ state) >> PLAYER_BITS)

    # Costs --------------------------------------------------------------------

    def grow(self, depth: int | None = None) -> None:
        """Grow the table to all states of a cost up to depth, or to all there are."""
        with self._lock:
            while self.layers[-1] and (depth is None or len(self.layers) <= depth):
                self._grow_layer()

    def _grow_layer(self) -> None:
        table, back = self._table, self._back
        cost = len(self.layers)
        layer: list[int] = []
        for state in self.layers[-1]:
            for behind, walk, ahead, push in back[state & PLAYER_MASK]:
                if state & behind:
                    continue
                before = state + walk
                if before not in table:
                    table[before] = cost
                    layer.append(before)
                if state & ahead:
                    before = state + push
                    if before not in table:
                        table[before] = cost
                        layer.append(before)
        self.layers.append(layer)

    def _known(self, state: int) -> int | None:
        cost = self._table.get(state)
        return self._found.get(state) if cost is None else cost

    def cost(self, state: int) -> int | None:
        """Return the fewest moves from a state to success, None if there are none."""
        known = self._known(state)
        if known is not None or not self.layers[-1] or state in self._dead:
            return known
        cells = self.floor.bit_count()
        if math.comb(cells, self.boxes) * (cells - self.boxes) <= _TABLE_STATES:
            self.grow()
            return self._table.get(state)
        return self.search(state)

    def path(self, state: int) -> list[int] | None:
        """Return the shortest actions to success, None if there are none.

        Of all shortest sequences it is the first in the order of the actions, so it
        depends on the state alone and not on where the costs came from.
        """
        cost = self.cost(state)
        if cost is None:
            return None
        actions = []
        while cost:
            cost -= 1
            action = next(
                a for a in range(4) if self._known(self.after(state, a)) == cost
            )
            actions.append(action)
            state = self.after(state, action)
        return actions

    def search(self, start: int) -> int | None:
        """Return the cost of a state by A*, and keep the costs along its best paths.

        The heuristic adds up each box's fewest pushes to its nearest goal, alone on
        the floor.  It is consistent, so a state that is taken out with the least
        estimate has its least number of moves.  Every state whose estimate is at most
        the optimum is expanded, so that all of the best paths are known.
        """
        far, advances = self._far, self._advances
        boxes = self.places(start)
        best = {start: 0}
        queue: dict[int, list[tuple[int, int]]] = {}
        if all(box in far for box in boxes):
            queue[sum(far[box] for box in boxes)] = [(start, 0)]
        solved: list[int] = []
        estimate = 0
        while queue and not solved:
            estimate = min(queue)
            todo = queue[estimate]
            while todo:
                state, moves = todo.pop()
                if best[state] < moves:
                    continue
                if moves == estimate:
                    solved.append(state)
                    continue
                moves += 1
                for ahead, step, beyond, push, gain in advances[state & PLAYER_MASK]:
                    if not state & ahead:
                        following, later = state + step, estimate + 1
                    elif not state & beyond:
                        following, later = state + push, estimate + gain
                    else:
                        continue
                    if best.get(following, _NEVER) > moves:
                        best[following] = moves
                        queue.setdefault(later, []).append((following, moves))
            del queue[estimate]
        if not solved:
            self._dead.update(best)
            return None
        self._keep(solved, best, estimate)
        return estimate

    def _keep(self, layer: list[int], best: dict[int, int], optimum: int) -> None:
        """Note the cost of every state on a best path that ends in the layer."""
        found = self._found
        for cost in range(optimum + 1):
            found.update(dict.fromkeys(layer, cost))
            sooner = []
            for state in layer:
                for behind, walk, ahead, push in self._back[state & PLAYER_MASK]:
                    if state & behind:
                        continue
                    for before in (state + walk, state + push if state & ahead else -1):
                        if best.get(before) == optimum - cost - 1:
                            sooner.append(before)
            layer = list(dict.fromkeys(sooner))

    # Moves --------------------------------------------------------------------

    @functools.cached_property
    def _bits(self) -> dict[int, int]:
        """The bit of each cell that is no wall, by board index."""
        return {cell: _bit(self.number[cell]) for cell in self.places(self.floor)}

    @functools.cached_property
    def moves(self) -> list[list[tuple[int, int, int, int]]]:
        """What each action does from each cell.

        It is the bit of a box ahead, what a walk adds to the state, the bit of a box
        that would bar a push, and what a push adds.
        """
        number, bits = self.number, self._bits
        moves = []
        for n, cell in enumerate(self.cells):
            ways = []
            for delta in self.deltas:
                ahead = bits.get(cell + delta, 0)
                step = number[cell + delta] - n if ahead else 0
                # Where a wall stands beyond the box, the box bars its own push.
                beyond = bits.get(cell + 2 * delta, ahead)
                ways.append((ahead, step, beyond, step - ahead + beyond))
            moves.append(ways)
        return moves

    @functools.cached_property
    def _far(self) -> dict[int, int]:
        """A lone box's fewest pushes to a goal from each cell; dead cells have none."""
        far = dict.fromkeys(self.places(self.solved), 0)
        todo = list(far)
        for cell in todo:
            for delta in self.deltas:
                box, player = cell - delta, cell - 2 * delta
                if box not in far and box in self._bits and player in self._bits:
                    far[box] = far[cell] + 1
                    todo.append(box)
        return far

    @functools.cached_property
    def dead_cells(self) -> int:
        """The bits of the cells from which no box ever gets to a goal."""
        return sum(bit for cell, bit in self._bits.items() if cell not in self._far)

    @functools.cached_property
    def _advances(self) -> list[list[tuple[int, int, int, int, int]]]:
        """`moves` for A*: no bumps into walls, no pushes onto dead cells.

        The last number is what a push adds to the estimate.
        """
        far = self._far
        advances = []
        for cell, ways in zip(self.cells, self.moves, strict=True):
            options = []
            for delta, way in zip(self.deltas, ways, strict=True):
                ahead, step, beyond, push = way
                box, goes = cell + delta, cell + 2 * delta
                if box in far and goes in far:
                    options.append((*way, 1 + far[goes] - far[box]))
                elif step:
                    options.append((ahead, step, ahead, push, 0))
            advances.append(options)
        return advances


@functools.lru_cache(maxsize=32)
def room_of(plan: bytes, stride: int) -> Room:
    """Return the room of a plan; the last few are kept, with what they know."""
    return Room(plan, stride)


def plan_of(board: bytearray) -> bytes:
    """Return a board without boxes and player."""
    return bytes(board.translate(_PLAN))
