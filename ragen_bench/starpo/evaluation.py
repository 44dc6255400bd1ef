"""How a policy in training does on the dev split, as the harness plays it."""

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragen_bench.agent import Agent
from ragen_bench.episode import play
from ragen_bench.records import Episode, EpisodeKey
from ragen_bench.registry import make
from ragen_bench.starpo.rollout import Cell


def evaluate(
    player: Callable[[], Agent],
    cells: Sequence[Cell],
    env_args: Mapping[str, Any],
    seeds: int,
) -> dict[str, float | None]:
    """Return ``dev_success``, None where a task has no success, and ``dev_return``.

    Args:
        player: Makes an agent that asks the policy.
        cells: What is played.
        env_args: Settings of the environments, split left out.
        seeds: Episodes a cell.
    """

    async def one(cell: Cell, seed: int) -> Episode:
        env = make(cell.env_id, level=cell.level, **{**env_args, "split": "dev"})
        key = EpisodeKey(cell.env_id, cell.level, "dev", seed, 0)
        return (await play(env, player(), key))[0]

    async def everything() -> list[Episode]:
        plays = [one(cell, seed) for cell in cells for seed in range(seeds)]
        return list(await asyncio.gather(*plays))

    episodes = asyncio.run(everything())
    known = [one.success for one in episodes if one.success is not None]
    return {
        "dev_success": statistics.fmean(known) if known else None,
        "dev_return": statistics.fmean(one.episode_return for one in episodes),
    }
