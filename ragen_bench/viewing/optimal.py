"""`Solver`: what an optimal player would have done, found by replaying an episode.

Only the executed actions are replayed, on the task without its text layer.  The board
after each of them comes along, so that a page can show what happens within a reply.
"""

import json
from collections import Counter
from typing import Any

from ragen_bench.episode import noise_rep
from ragen_bench.errors import RagenError
from ragen_bench.records import Episode, RunConfig
from ragen_bench.registry import make
from ragen_bench.symbolic import SymbolicEnv
from ragen_bench.text_env import SETTINGS

EPISODES = 40
"""Episodes of a cell that are replayed by default."""
_MAX_ACTIONS = 200
"""A longer episode is left out; so many solver calls take seconds."""
_KNOWN = 2048
"""States whose optimal action is kept."""


class Solver:
    """Replays the first episodes of each cell of a run.

    How many are replayed is a count and no time, so that the same run gives the same
    site on any machine.

    Args:
        config: The run's; None where episodes are all there is.
        episodes: How many of each cell; 0 replays none.
    """

    def __init__(self, config: RunConfig | None, episodes: int = EPISODES) -> None:
        self._config = config
        self._left: Counter[str] = Counter()
        self._episodes = episodes
        self._cores: dict[str, SymbolicEnv[Any]] = {}
        self._best: dict[str, str] = {}
        self._told: Counter[str] = Counter()

    @property
    def why_not(self) -> list[list[Any]]:
        """Reasons for which episodes were left out, each with their number."""
        return [[reason, count] for reason, count in sorted(self._told.items())]

    def solve(self, episode: Episode) -> dict[str, Any] | None:
        """Return the optimal actions of an episode's states, None if left out.

        ``actions`` has for each turn the names before each executed action, and one
        for a turn without any.  ``boards`` has for each turn the text after each
        executed action but the last one of the episode; ``dead`` whether success
        was out of reach then.
        """
        cell = episode.key.cell
        if self._left[cell] >= self._episodes:
            self._told["only the first episodes of each cell are replayed"] += 1
            return None
        self._left[cell] += 1
        if episode.action_count > _MAX_ACTIONS:
            self._told[f"more than {_MAX_ACTIONS} actions"] += 1
            return None
        try:
            return self._replay(self._core(episode), episode)
        except _Differs:
            self._told["the replay gives another board than the record"] += 1
        except (RagenError, ValueError, TypeError, KeyError, IndexError) as error:
            self._told[f"no replay: {type(error).__name__}"] += 1
        return None

    def _core(self, episode: Episode) -> SymbolicEnv[Any]:
        name = f"{episode.key.cell}/{episode.split}"
        if name not in self._cores:
            if ":" in episode.env_id:
                # It would import a module that a stranger's record names.
                raise ValueError(f"{episode.env_id} names a module")
            given = dict(self._config.env_args) if self._config else {}
            core = {k: v for k, v in given.items() if k not in SETTINGS}
            env = make(episode.env_id, level=episode.level, split=episode.split, **core)
            self._cores[name] = env.core
        return self._cores[name]

    def _replay(self, core: SymbolicEnv[Any], episode: Episode) -> dict[str, Any]:
        salt = self._config.salt if self._config else ""
        core.reset(seed=episode.seed, options={"rep": noise_rep(episode.rep, salt)})
        seen = [turn.observation for turn in episode.turns[1:]]
        seen.append(episode.final_observation)
        _compare(core, episode.turns[0].observation if episode.turns else seen[0])
        best: list[list[str]] = []
        boards: list[list[str]] = []
        dead: list[list[int]] = []
        over = False
        for turn, after in zip(episode.turns, seen, strict=True):
            row: list[str] = []
            boards.append([])
            dead.append([])
            for action in turn.actions:
                row.append(self._optimal(core))
                index = core.actions.index(action)
                *_, terminated, truncated, _ = core.step(index)
                boards[-1].append(core.to_text())
                over = terminated or truncated
                lost = core.is_dead() and not core.success
                dead[-1].append(int(lost))
            if not turn.actions and not over:
                row.append(self._optimal(core))
            best.append(row)
            _compare(core, after)
        return {"actions": best, "boards": boards, "dead": dead}

    def _optimal(self, core: SymbolicEnv[Any]) -> str:
        state = json.dumps(
            [type(core).__name__, core.level, core.instance, core.dump()]
            + [core.actions_left],
            sort_keys=True,
            default=str,
        )
        if state not in self._best:
            if len(self._best) >= _KNOWN:
                self._best.clear()
            self._best[state] = core.actions[core.optimal_action()]
        return self._best[state]


class _Differs(Exception):
    """The record shows another board than the replay."""


def _compare(core: SymbolicEnv[Any], observation: str) -> None:
    if core.to_text() not in observation:
        raise _Differs
