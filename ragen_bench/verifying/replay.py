"""One episode played again from its replies, and compared with its record.

The thinking of a record joins what came apart from the reply with what stands in it
(`ragen_bench.parsing`).  It changes no move, so that a reply is played without it and
the record's thinking must end with what the reply itself holds.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from ragen_bench.episode import Reference, noise_rep, outcome_of, reference
from ragen_bench.instance_bank import Known
from ragen_bench.records import Episode, Outcome, RunConfig, Turn
from ragen_bench.registry import make
from ragen_bench.text_env import TextEnv
from ragen_bench.verifying.faults import Faults, difference

EARLY: frozenset[Outcome] = frozenset(
    {"context_overflow", "agent_error", "provider_error", "timeout"}
)
"""Endings that come before the environment's own."""
_NEAR = 1e-9
"""Exact values may differ by so much between two machines."""
_MOST_KNOWN = 50_000

_known: dict[tuple[str, int], Known] = {}
"""Drawing an instance and solving it costs more than playing on it."""


class Cell:
    """A cell of a run, whose episodes are played again one by one.

    Args:
        env_id: Its environment.
        level: Its level.
        config: The run.
        bank: (cell, seed) to what is known of the run's instances already.

    Raises:
        RagenError: The settings cannot be played.
    """

    def __init__(
        self,
        env_id: str,
        level: int,
        config: RunConfig,
        bank: Mapping[tuple[str, int], Known],
    ) -> None:
        settings = dict(config.env_args)
        self.env: TextEnv = make(
            env_id, level=level, split=config.split, prompt=config.prompt, **settings
        )
        self.env_id = env_id
        self.level = level
        self.salt = config.salt
        self._bank = bank
        # The prompt's length changes no instance and no value.
        self._name = json.dumps([env_id, level, config.split, settings], sort_keys=True)

    def reset(self, seed: int, rep: int) -> tuple[str, Mapping[str, Any], Reference]:
        """Begin an episode; return what the environment says, and its reference."""
        env = self.env
        start = _known.get((self._name, seed))
        if start is None:
            start = self._bank.get((f"{self.env_id}:{self.level}", seed))
        options: dict[str, Any] = {"rep": noise_rep(rep, self.salt)}
        if start is not None:
            options["instance"] = start.instance
        observation, info = env.reset(seed=seed, options=options)
        if start is None:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            start = Known(env.core.instance, reference(env))
            _known[self._name, seed] = start
        return observation, info, start.reference


def replay(cell: Cell, episode: Episode, faults: Faults) -> Episode:
    """Return an episode as it really went; every difference is a fault.

    The episode itself comes back if there is none.
    """
    before = len(faults)
    observation, info, known = cell.reset(episode.seed, episode.rep)
    place = str(episode.key)
    env = cell.env
    rules = info["rules"]
    if episode.rules != rules:
        message = difference("rules", episode.rules, rules)
        faults.add("rules_mismatch", place, message)
    turns: list[Turn] = []
    playing = True
    for number, turn in enumerate(episode.turns):
        if not playing:
            left = len(episode.turns) - number
            message = f"{left} turns after the end of the episode"
            faults.add("action_mismatch", f"{place} turn {number}", message)
            break
        if turn.observation != observation:
            message = difference("observation", turn.observation, observation)
            faults.add("observation_mismatch", f"{place} turn {number}", message)
        after, reward, terminated, truncated, info = env.step(
            turn.response, finish_reason=turn.finish_reason
        )
        turns.append(_compare(turn, number, observation, reward, info, place, faults))
        observation = after
        playing = not (terminated or truncated)
    if episode.final_observation != observation:
        message = difference("last observation", episode.final_observation, observation)
        faults.add("observation_mismatch", place, message)
    outcome = _compare_end(episode, env, playing, place, faults)
    returned = float(sum(turn.scored_reward for turn in turns))
    if not math.isclose(returned, episode.episode_return, abs_tol=_NEAR):
        message = difference("return", episode.episode_return, returned)
        faults.add("return_mismatch", place, message)
    _compare_reference(episode, known, place, faults)
    if len(faults) == before:
        return episode
    return episode.model_copy(
        update={
            "outcome": outcome,
            "success": env.core.success,
            "episode_return": returned,
            "terminated": env.terminated,
            "truncated": env.truncated,
            "rules": rules,
            "turns": tuple(turns),
            "final_observation": observation,
            **dataclasses.asdict(known),
        }
    )


def _compare(
    turn: Turn,
    number: int,
    observation: str,
    reward: float,
    info: Mapping[str, Any],
    place: str,
    faults: Faults,
) -> Turn:
    """Return a turn as it really went; note where its record differs."""
    scored = info["scored_reward"]
    same = (
        turn.actions == info["actions"]
        and turn.effective == info["effective"]
        and turn.parse == info["parse"]
        and turn.valid == info["valid"]
        and turn.reward == reward
        and turn.scored_reward == scored
        and turn.reward_parts == info["reward_parts"]
        and turn.observation == observation
    )
    if same and _ends_with(turn.thinking, info["thinking"]):
        return turn
    found = {
        "parse": info["parse"],
        "valid": info["valid"],
        "thinking": info["thinking"],
        "actions": info["actions"],
        "effective": info["effective"],
        "reward": reward,
        "scored_reward": scored,
        "reward_parts": info["reward_parts"],
    }
    if _ends_with(turn.thinking, info["thinking"]):
        found["thinking"] = turn.thinking
    for name, value in found.items():
        said = getattr(turn, name)
        if not _is_near(said, value):
            message = difference(name, said, value)
            faults.add(_CODES[name], f"{place} turn {number}", message)
    return turn.model_copy(update={**found, "observation": observation})


_CODES = {
    "parse": "parse_mismatch",
    "valid": "parse_mismatch",
    "thinking": "parse_mismatch",
    "actions": "action_mismatch",
    "effective": "action_mismatch",
    "reward": "reward_mismatch",
    "scored_reward": "reward_mismatch",
    "reward_parts": "parts_mismatch",
}


def _is_near(said: Any, found: Any) -> bool:
    if isinstance(found, float):
        return math.isclose(said, found, abs_tol=_NEAR)
    if isinstance(found, Mapping):
        return said.keys() == found.keys() and all(
            _is_near(said[key], value) for key, value in found.items()
        )
    return bool(said == found)


def _ends_with(thinking: str, in_reply: str) -> bool:
    """Return whether a record's thinking is that of the reply, after any other."""
    if thinking == in_reply:
        return True
    apart = thinking
    if in_reply:
        apart = thinking.removesuffix(f"\n{in_reply}")
        if len(apart) == len(thinking):
            return False
    return bool(apart) and apart == apart.strip()


def _compare_end(
    episode: Episode, env: TextEnv, playing: bool, place: str, faults: Faults
) -> Outcome:
    """Return the outcome; note where the record of the ending differs."""
    said = episode.outcome
    outcome: Outcome = said
    if not playing:
        outcome = outcome_of(env)
    elif said not in EARLY:
        outcome = "agent_error"
        faults.add(
            "outcome_mismatch",
            place,
            f"outcome is {said!r}, but the episode has not ended after "
            f"{len(episode.turns)} turns",
        )
    if not playing or said in EARLY:
        found = {
            "outcome": outcome,
            "success": env.core.success,
            "terminated": env.terminated,
            "truncated": env.truncated,
        }
        for name, value in found.items():
            if getattr(episode, name) != value:
                message = difference(name, getattr(episode, name), value)
                faults.add("outcome_mismatch", place, message)
        if (episode.error is None) != (said not in EARLY):
            rule = "has no error" if said in EARLY else "has an error"
            faults.add("outcome_mismatch", place, f"outcome {said!r} {rule}")
    return outcome


def _compare_reference(
    episode: Episode, known: Reference, place: str, faults: Faults
) -> None:
    for field in dataclasses.fields(known):
        said, found = getattr(episode, field.name), getattr(known, field.name)
        if not _is_near(said, found):
            message = difference(field.name, said, found)
            faults.add("reference_mismatch", place, message)
