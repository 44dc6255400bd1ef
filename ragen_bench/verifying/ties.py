"""Whether a player breaks ties as the solver does: a sign of a program behind a name.

In many states several actions are equally good.  A solver takes its first one every
time; a player that is merely as good has no reason to.  Somebody who prefers the same
order by habit, or who learned from the solver's play, looks alike: it is a warning.
"""

from typing import Any

import numpy as np

from ragen_bench.records import Episode
from ragen_bench.symbolic import SymbolicEnv
from ragen_bench.verifying.faults import Faults
from ragen_bench.verifying.replay import Cell

MAX_STATES = 600
"""States that are looked at in one run; fewer show a solver already."""
_EPISODES = 512
"""Among so many of a run, taken evenly, are those that are looked at."""
_CHANCE = 1e-6
_LEAST_SKILL = 0.9
"""Share of optimal actions below which nobody takes a player for a solver."""


class Ties:
    """Counts how a player chose among equally good actions.

    Args:
        planned: Episodes of the run, which are sampled evenly.
    """

    def __init__(self, planned: int) -> None:
        self._every = max(1, planned // _EPISODES)
        self._seen = 0
        self._states = 0
        self._optimal = 0
        self._chances: list[float] = []
        self._same = 0

    def look(self, cell: Cell, episode: Episode) -> None:
        """Look at the choices of an episode that was replayed without a fault."""
        core: SymbolicEnv[Any] = cell.env.core
        if episode.optimal_cost is None:
            return
        self._seen += 1
        if self._seen % self._every or self._states >= MAX_STATES:
            return
        core.reset(seed=episode.seed, options={"instance": core.instance})
        names = [name for turn in episode.turns for name in turn.actions]
        for name in names:
            action = core.actions.index(name)
            best = optimal_actions(core)
            if not best:
                return
            self._states += 1
            if action in best:
                self._optimal += 1
                if len(best) > 1:
                    self._chances.append(1 / len(best))
                    self._same += action == core.optimal_action()
            core.step(action)

    def finish(self, warnings: Faults) -> None:
        """Warn if chance does not explain the choices."""
        if self._optimal < _LEAST_SKILL * self._states:
            return
        if (chance := tail(self._chances, self._same)) < _CHANCE:
            warnings.add(
                "solver_like",
                "episodes.jsonl",
                f"{self._same} of {len(self._chances)} choices among equally good "
                f"actions were the solver's own; by chance that happens with "
                f"probability {chance:.1g}",
            )


def optimal_actions(core: SymbolicEnv[Any]) -> set[int]:
    """Return the actions that begin a shortest way, of a task without chance."""
    cost = core.optimal_cost()
    if not cost:
        return set()
    state, success = core.dump(), core.success
    best = set()
    for action in range(len(core.actions)):
        if core.is_legal(action):
            core.apply(action)
            if core.optimal_cost() == cost - 1:
                best.add(action)
            core.restore(state)
            core.success = success
    return best


def tail(chances: list[float], hits: int) -> float:
    """Return the probability of at least so many hits in independent trials."""
    spread = np.ones(1)
    for chance in chances:
        spread = np.convolve(spread, [1 - chance, chance])
    return float(spread[hits:].sum())
