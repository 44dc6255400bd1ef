"""The exact chance that random actions succeed in a Sokoban room."""

import numpy as np

from ragen_bench.envs._sokoban_solver import PLAYER_BITS, PLAYER_MASK, Room

_SUCCESS, _FAILURE, _START = range(3)


def chance(room: Room, state: int, actions: int) -> float:
    """Return the probability that uniformly random actions lead to success.

    Args:
        room: Where they are played.
        state: Where they begin, no success itself.
        actions: How many are played; success ends the play.
    """
    rows = np.array(_reach(room, state, actions), dtype=np.intp)  # [n, 4]
    following = np.ascontiguousarray(rows.T)
    value = np.zeros(len(rows))
    value[_SUCCESS] = 1.0
    for _ in range(actions):
        value = value.take(following).sum(axis=0) * 0.25
    return float(value[_START])


def _reach(room: Room, start: int, actions: int) -> list[list[int]]:
    """Return the numbers of the states after each action, for each in reach.

    One number stands for all successes, one for all states with a box on a dead cell.
    States that the last action gets to are their own successors.
    """
    boxes = -1 << PLAYER_BITS
    solved, dead, moves = room.solved, room.dead_cells, room.moves
    rows = [[_SUCCESS] * 4, [_FAILURE] * 4]
    number = {start: _START}
    states = [start]
    first = len(rows)
    for _ in range(actions):
        for state in states[len(rows) - first :]:
            row = []
            for ahead, step, beyond, push in moves[state & PLAYER_MASK]:
                if not state & ahead:
                    following = state + step
                elif state & beyond:
                    following = state
                else:
                    following = state + push
                n = number.get(following)
                if n is None:
                    if following & boxes == solved:
                        n = _SUCCESS
                    elif following & dead:
                        n = _FAILURE
                    else:
                        n = first + len(states)
                        states.append(following)
                    number[following] = n
                row.append(n)
            rows.append(row)
    rows += [[n] * 4 for n in range(len(rows), first + len(states))]
    return rows
