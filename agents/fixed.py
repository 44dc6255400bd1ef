"""Fixed: one sequence of actions for all instances of a cell, played blindly.

It shows how much of a cell needs no look at the board.  RAGEN reports such an agent:
18.5 % of its Sokoban rooms fall to random play, 27.7 % to the best fixed sequence.
"""

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_bench.agent import Agent, Reply, Task
from ragen_bench.prompts import answer_text
from ragen_bench.registry import make, register_agent
from ragen_bench.symbolic import SymbolicEnv

INSTANCES = 256
"""Of the train split; a success rate of them is good to 6 points."""
BEAM = 24
_FILE = "fixed_sequences.json"


@register_agent("fixed")
class Fixed(Agent):
    """Plays the sequence that solves most train instances of its cell.

    It reads neither rules nor board, and counts actions by their place among the
    action names.  It is a program (class ``solver``) that has seen train instances
    alone.  Sequences of the cells of shipped boards come with the package; that of
    another cell is searched once a process, which takes seconds, on long tasks a
    minute.

    Args:
        preset: The preset that the episodes are played with, if any.
    """

    def __init__(self, *, preset: str | None = None) -> None:
        self.preset = preset

    def reset(self, task: Task) -> None:
        """Begin the sequence anew."""
        super().reset(task)
        self._sequence = sequence(task.env_id, task.level, self.preset)
        self._played = 0

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        """Answer with the next actions, as many as a reply may hold."""
        names = self.task.action_names
        played = self._sequence
        chosen = []
        for _ in range(min(self.task.max_actions_per_turn, info["actions_left"])):
            # Longer limits than the cell's own begin the sequence again.
            chosen.append(names[played[self._played % len(played)]])
            self._played += 1
        return Reply(text=answer_text(chosen, "", "direct"))


@functools.cache
def sequence(env_id: str, level: int, preset: str | None = None) -> tuple[int, ...]:
    """Return the sequence of a cell: from the package if it is there, else searched."""
    known = _shipped().get(cell_name(env_id, level, preset))
    if known is not None:
        return tuple(map(int, known))
    return search(env_id, level, preset)


def cell_name(env_id: str, level: int, preset: str | None) -> str:
    """Return the key of a cell's sequence, such as ``"ragen/Sokoban-v0:1"``."""
    return f"{env_id}:{preset or level}"


@functools.cache
def _shipped() -> Mapping[str, str]:
    """Return cell to its actions, a digit each."""
    file = importlib.resources.files("ragen_bench.agents") / _FILE
    held: dict[str, str] = json.loads(file.read_text(encoding="ascii"))
    return held


# Search ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Prefix:
    """The beginning of a sequence, and where it leads on every instance."""

    actions: tuple[int, ...]
    states: tuple[Any, ...]
    """What `SymbolicEnv.dump` and the noise say; None where the episode has ended."""
    gained: float
    """Scored returns of all instances together."""
    progress: float
    """Of the instances that are still played, together."""

    @property
    def order(self) -> tuple[float, float, tuple[int, ...]]:
        """What sorts the best prefix first, ties by the actions themselves."""
        return -round(self.gained, 9), -round(self.progress, 9), self.actions


def search(
    env_id: str,
    level: int,
    preset: str | None = None,
    *,
    instances: int = INSTANCES,
    beam: int = BEAM,
) -> tuple[int, ...]:
    """Return the sequence of actions that earns most on train instances, as found.

    All sequences cannot be tried (4 to the power of 10 on the shortest grids), so a
    beam search keeps the best prefixes of each length: those with the highest return
    so far, then with the most progress.  As an episode ends with its success, the
    return of a prefix is one that every continuation keeps, so what counts in the end
    is never given up for a hope.  Of prefixes that lead to the same states one is kept.

    Args:
        env_id: The environment.
        level: Its level.
        preset: A preset in place of the level.
        instances: How many train instances, seeds from 0.
        beam: How many prefixes are kept.
    """
    env = make(env_id, level=level, split="train", preset=preset)
    cores: list[SymbolicEnv[Any]] = []
    for seed in range(instances):
        env.core.reset(seed=seed)
        cores.append(env.core.clone())
    start = tuple(map(_snapshot, cores))
    best = [_Prefix(actions=(), states=start, gained=0.0, progress=0.0)]
    for _ in range(env.core.limits.max_actions):
        grown: dict[str, _Prefix] = {}
        for prefix in best:
            for action in range(len(env.core.actions)):
                child = _extend(prefix, action, cores)
                grown.setdefault(repr((child.gained, child.states)), child)
        best = sorted(grown.values(), key=lambda prefix: prefix.order)[:beam]
        if not any(state is not None for state in best[0].states):
            break
    return best[0].actions


def _snapshot(core: SymbolicEnv[Any]) -> tuple[Any, Any]:
    return core.dump(), core.noise.get_state()


def _extend(prefix: _Prefix, action: int, cores: Sequence[SymbolicEnv[Any]]) -> _Prefix:
    """Return a prefix with one more action."""
    gained, progress = prefix.gained, 0.0
    states: list[Any] = []
    for core, state in zip(cores, prefix.states, strict=True):
        if state is None:
            states.append(None)
            continue
        dumped, noise = state
        core.restore(dumped)
        core.noise.set_state(noise)
        ended = False
        if core.is_legal(action):
            _, scored, ended, _ = core.apply(action)
            gained += scored
        if ended:
            states.append(None)
        else:
            progress += core.progress()
            states.append(_snapshot(core))
    return _Prefix(
        actions=(*prefix.actions, action),
        states=tuple(states),
        gained=gained,
        progress=progress,
    )
