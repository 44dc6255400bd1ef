"""Agents with made-up results, for the tests of ranking."""

from collections.abc import Mapping, Sequence

import numpy as np

from ragen_bench.ranking.played import CellResults, Played
from ragen_bench.records import CellPlan, Episode, RunConfig
from ragen_bench.scoring import summarise

GRID, ARMS = "ns/Grid-v0", "ns/Arms-v0"
OUTCOMES = {True: "solved", False: "failed", None: "finished"}


def cell(
    returned: Sequence[float | None],
    *,
    success: bool = True,
    reps: int = 1,
    floor: float = 0.0,
    ceiling: float = 1.0,
    first_seed: int = 0,
) -> CellResults:
    """Return a cell of seeds 0, 1, ... with their returns; None is nobody's play."""
    kept = [(i, value) for i, value in enumerate(returned) if value is not None]
    values = np.array([value for _, value in kept], dtype=float)
    return CellResults(
        keys=tuple((first_seed + i // reps, i % reps) for i, _ in kept),
        success=values.copy() if success else np.full(len(kept), np.nan),
        returned=values,
        floor=np.full(len(kept), floor),
        ceiling=np.full(len(kept), ceiling),
        instances=tuple(f"{first_seed + i // reps:016x}" for i, _ in kept),
    )


def played(label: str, cells: Mapping[str, CellResults], **facts) -> Played:
    """Return an agent that played some cells; its summary is that of all of them."""
    plans, episodes = [], []
    for name, found in cells.items():
        env_id, _, level = name.rpartition(":")
        seeds = tuple(dict.fromkeys(seed for seed, _ in found.keys))
        plans.append(CellPlan(env_id=env_id, level=int(level), seeds=seeds))
        episodes += _episodes(env_id, int(level), found)
    reps = max((rep for one in cells.values() for _, rep in one.keys), default=0) + 1
    config = RunConfig(cells=tuple(plans), agent=label, repeats=reps, board="toy")
    rules = {"split": "test", "env_args": {}}
    return Played(
        **{
            "label": label,
            "summary": summarise(config, episodes),
            "cells": cells,
            "rules": rules,
            **facts,
        }
    )


def _episodes(env_id: str, level: int, found: CellResults) -> list[Episode]:
    assert found.instances is not None
    episodes = []
    for i, (seed, rep) in enumerate(found.keys):
        known = found.success[i]
        success = None if np.isnan(known) else bool(known == 1)
        episodes.append(
            Episode(
                **{
                    "env_id": env_id,
                    "level": level,
                    "split": "test",
                    "seed": seed,
                    "rep": rep,
                    "instance": found.instances[i],
                    "outcome": OUTCOMES[success],
                    "success": success,
                    "return": float(found.returned[i]),
                    "floor": float(found.floor[i]),
                    "ceiling": float(found.ceiling[i]),
                    "optimal_cost": None,
                    "terminated": True,
                    "truncated": False,
                    "error": None,
                    "rules": "",
                    "turns": (),
                    "final_observation": "",
                }
            )
        )
    return episodes
