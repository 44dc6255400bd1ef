"""Solved examples for a prompt: oracle play on instances of the train split."""

from collections.abc import Mapping
from typing import Any

from ragen_bench.agent import Shot, ShotTurn
from ragen_bench.registry import make
from ragen_bench.seeding import child_seed


def solved_examples(
    env_id: str, level: int, count: int, settings: Mapping[str, Any]
) -> tuple[Shot, ...]:
    """Return examples of a cell, the same for every episode of it.

    Args:
        env_id: The environment.
        level: Its level.
        count: How many examples.
        settings: The environment's settings, as the episodes have them.
    """
    env = make(env_id, level=level, **{**settings, "split": "train"})
    shots: list[Shot] = []
    attempt = 0
    while len(shots) < count:
        seed = child_seed(attempt, "shots", env_id, level)
        attempt += 1
        observation, _ = env.reset(seed=seed)
        shot = _play(env, observation)
        # Noise can spoil perfect play; an example should show a success.
        if env.core.success is not False or attempt > 20 * count:
            shots.append(shot)
    return tuple(shots)


def _play(env: Any, observation: str) -> Shot:
    turns: list[ShotTurn] = []
    terminated = truncated = False
    core = env.core
    while not (terminated or truncated):
        limit = min(env.limits.max_actions_per_turn, core.actions_left)
        plan = core.plan(limit, env.limits.max_turns - env.turns)
        names = tuple(core.actions[action] for action in plan)
        reasoning = core.explain(plan)
        turns.append(
            ShotTurn(observation=observation, actions=names, reasoning=reasoning)
        )
        reply = f"<answer>{' || '.join(names)}</answer>"
        observation, _, terminated, truncated, _ = env.step(reply)
    return Shot(turns=tuple(turns))
