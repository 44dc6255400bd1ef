"""Every registered environment, at every level and preset, keeps its promises.

``RAGEN_SWEEP=full`` plays ten times as many episodes.
"""

import asyncio
import functools
import json
import math
import os
import statistics
import subprocess
import sys
from typing import Any

import pytest

import ragen_bench as rb
from ragen_bench import registry
from ragen_bench.checks import ENV_CHECKS
from ragen_bench.checks.case import Player
from ragen_bench.episode import play
from ragen_bench.records import Episode, EpisodeKey

FULL = os.environ.get("RAGEN_SWEEP") == "full"
REPS = 20
INSTANCES = 1000 if FULL else 100
STEPS = 100_000 if FULL else 10_000

IDS = [env_id for env_id in registry.env_ids() if env_id.startswith("ragen/")]
"""Other tests register environments too, some of them broken on purpose."""


def cells_of(env_id: str) -> list[dict[str, Any]]:
    core = registry.core_class(env_id)
    levels = [{"level": level} for level in core.levels]
    return levels + [{"preset": preset} for preset in core.presets]


CELLS = [(env_id, cell) for env_id in IDS for cell in cells_of(env_id)]
NAMES = [f"{env_id}:{next(iter(cell.values()))}" for env_id, cell in CELLS]
every_cell = pytest.mark.parametrize(("env_id", "cell"), CELLS, ids=NAMES)


def test_the_three_environments_are_registered() -> None:
    three = {"ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0"}
    assert three <= set(IDS)


@every_cell
def test_a_cell_passes_gymnasiums_checks_and_ours(env_id: str, cell: Any) -> None:
    # Processes are compared below, with one process for all cells.
    here = [name for name in ENV_CHECKS if name != "other_processes_play_the_same"]
    assert rb.check_env(env_id, only=here, **cell) == tuple(here)


# Processes ------------------------------------------------------------------------

_PLAY = """
import json, sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo"):
        raise OSError(f"a test must not use the network: {event} {arguments}")

sys.addaudithook(refuse)
import ragen_bench as rb
from ragen_bench.checks.case import Player

shown = {}
for env_id, cell in json.load(sys.stdin):
    env = rb.make(env_id, **cell)
    for seed in range(5):
        returns = Player(env, seed).finish()
        shown[f"{env_id} {cell} {seed}"] = [r["observation"] for r in returns]
json.dump(shown, sys.stdout)
"""


def test_processes_of_any_hash_seed_show_the_same_without_a_network() -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _PLAY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        for hash_seed in ("0", "1", "2")
    ]
    request = json.dumps(CELLS).encode()
    first, *others = (json.loads(c.communicate(request)[0]) for c in children)
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(first) == 5 * len(CELLS)
    for other in others:
        assert other == first


# Sweeps ---------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", IDS)
def test_thousands_of_random_replies_raise_nothing(env_id: str) -> None:
    cells = cells_of(env_id)
    for cell in cells:
        env = rb.make(env_id, **cell)
        steps = seed = 0
        while steps < STEPS / len(cells):
            steps += len(Player(env, seed).finish()) - 1
            seed += 1


def play_all(
    env_id: str, cell: dict[str, Any], agent: str, instances: int, reps: int
) -> list[Episode]:
    env = rb.make(env_id, split="test", **cell)
    # An instance takes far longer to generate than to play.
    env.core.draw = functools.cache(env.core.draw)  # type: ignore[method-assign]
    player = rb.make_agent(agent)

    async def play_each() -> list[Episode]:
        episodes = []
        for seed in range(instances):
            known = None
            for rep in range(reps):
                key = EpisodeKey(env_id, cell.get("level", 1), "test", seed, rep)
                episode, known = await play(env, player, key, known=known)
                assert episode.error is None
                episodes.append(episode)
        return episodes

    return asyncio.run(play_each())


def assert_mean_agrees(returns: list[float], expected: list[float]) -> None:
    """The mean difference must lie within three standard errors of 0."""
    n = len(returns)
    found = [r - e for r, e in zip(returns, expected, strict=True)]
    error = statistics.stdev(found) / math.sqrt(n)
    if set(returns) <= {0.0, 1.0}:
        # A rare success may not have come about at all: use its own spread.
        spread = math.fsum(e * (1 - e) for e in expected)
        error = max(error, math.sqrt(max(spread, 0.0)) / n)
    assert abs(statistics.fmean(found)) <= 3 * error + 1e-9


@every_cell
def test_the_oracle_reaches_the_ceiling(env_id: str, cell: Any) -> None:
    if rb.make(env_id, **cell).core.deterministic:
        for episode in play_all(env_id, cell, "oracle", INSTANCES, reps=1):
            assert episode.success
            assert episode.episode_return == pytest.approx(episode.ceiling)
            if episode.optimal_cost is not None:
                actions = sum(len(turn.actions) for turn in episode.turns)
                assert actions == episode.optimal_cost
        return
    episodes = play_all(env_id, cell, "oracle", INSTANCES, REPS)
    assert_mean_agrees(
        [e.episode_return for e in episodes], [e.ceiling for e in episodes]
    )


@every_cell
def test_the_random_agent_reaches_the_floor(env_id: str, cell: Any) -> None:
    # Instances of puzzles are dear, and their dice are the player's alone.
    certain = rb.make(env_id, **cell).core.deterministic
    instances = INSTANCES // 2 if certain else INSTANCES
    episodes = play_all(env_id, cell, "random", instances, REPS)
    assert_mean_agrees(
        [e.episode_return for e in episodes], [e.floor for e in episodes]
    )


@every_cell
def test_the_null_agent_earns_nothing(env_id: str, cell: Any) -> None:
    for episode in play_all(env_id, cell, "null", instances=5, reps=1):
        assert episode.episode_return == 0
        assert not episode.success
