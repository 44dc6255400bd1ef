"""Times steps and resets of our environments beside the peers', in one run.

    pip install gem-llm textarena
    python benchmarks/env_speed.py [--only TEXT] [--seconds 0.3] [--windows 5]

A figure is the median over windows of CPU time of the measuring thread, after one
warm-up window, so that other work on the machine does not count.  Steps and resets
are timed apart; each reset has a new seed; actions are drawn beforehand.  A step of a
bare environment of ours includes the board's text and the action mask; a step of the
text layer includes parsing one action out of ``<answer>...</answer>``.
A peer that is not installed is listed as absent.
"""

import argparse
import contextlib
import functools
import io
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium

import ragen_bench as rb

MAX_STEPS = 200


class Game(NamedTuple):
    """One environment to be timed."""

    reset: Callable[[int], Any]
    step: Callable[[Any], bool]
    """Plays an action; returns whether the episode is over."""
    actions: Callable[[], Sequence[Any]]


def core(env_id: str, **settings: Any) -> Game:
    """Return one of our bare environments, text and mask included."""
    env = rb.make(env_id, **settings).core

    def step(action: int) -> bool:
        _, _, terminated, truncated, _ = env.step(action)
        env.to_text()
        return terminated or truncated

    return Game(lambda s: env.reset(seed=s), step, lambda: range(len(env.actions)))


def text(env_id: str, **settings: Any) -> Game:
    """Return one of our text environments, one action a reply."""
    env = rb.make(env_id, **settings)

    def step(action: str) -> bool:
        _, _, terminated, truncated, _ = env.step(action)
        return terminated or truncated

    return Game(
        lambda s: env.reset(seed=s),
        step,
        lambda: [f"<answer>{name}</answer>" for name in env.action_names],
    )


def gymnasium_lake(desc: str) -> Game:
    """Return Gymnasium's FrozenLake with its own text drawn at each step."""
    env = gymnasium.make("FrozenLake-v1", map_name=desc, render_mode="ansi")

    def step(action: int) -> bool:
        _, _, terminated, truncated, _ = env.step(action)
        env.render()
        return terminated or truncated

    return Game(lambda s: env.reset(seed=s), step, lambda: range(4))


def gem(env_id: str, actions: Sequence[str]) -> Game:
    """Return an environment of gem-llm."""
    import gem as package

    env = package.make(env_id)

    def step(action: str) -> bool:
        _, _, terminated, truncated, _ = env.step(action)
        return bool(terminated or truncated)

    return Game(
        lambda s: env.reset(seed=s), step, lambda: [f"\\boxed{{{a}}}" for a in actions]
    )


def textarena(env_id: str, actions: Sequence[str]) -> Game:
    """Return a single-player environment of textarena, observation included."""
    import textarena as package

    env = package.make(env_id)

    def step(action: str) -> bool:
        env.get_observation()
        ended, _ = env.step(action)
        return bool(ended)

    return Game(
        lambda s: env.reset(num_players=1, seed=s),
        step,
        lambda: [f"[{a}]" for a in actions],
    )


MOVES = ("up", "down", "left", "right")
PLAIN_LAKE = {
    "rows": 8,
    "cols": 8,
    "slip": 0.2,
    "min_path": 1,
    "max_path": 64,
    "min_optimum": 0.0,
    "max_optimum": 1.0,
}
SOKOBAN_6 = {"rows": 6, "cols": 6, "boxes": 1, "min_moves": 2, "max_moves": 8}
SOKOBAN_8 = {"rows": 8, "cols": 8, "boxes": 2, "min_moves": 15, "max_moves": 30}

GAMES: dict[str, Callable[[], Game]] = {
    "ours: Bandit, bare": lambda: core("ragen/Bandit-v0", level=3),
    "ours: Bandit, text": lambda: text("ragen/Bandit-v0", level=3),
    "ours: FrozenLake 8x8, bare": lambda: core("ragen/FrozenLake-v0", **PLAIN_LAKE),
    "ours: FrozenLake 8x8, text": lambda: text("ragen/FrozenLake-v0", **PLAIN_LAKE),
    "ours: FrozenLake 8x8, test split": lambda: core(
        "ragen/FrozenLake-v0", split="test", **PLAIN_LAKE
    ),
    "gymnasium: FrozenLake 8x8, ansi": lambda: gymnasium_lake("8x8"),
    "textarena: FrozenLake-v0-raw": lambda: textarena("FrozenLake-v0-raw", MOVES),
    "ours: Sokoban 6x6, 1 box, bare": lambda: core("ragen/Sokoban-v0", **SOKOBAN_6),
    "ours: Sokoban 6x6, 1 box, text": lambda: text("ragen/Sokoban-v0", **SOKOBAN_6),
    "ours: Sokoban 6x6, 1 box, test split": lambda: core(
        "ragen/Sokoban-v0", split="test", **SOKOBAN_6
    ),
    "ours: Sokoban 8x8, 2 boxes, bare": lambda: core("ragen/Sokoban-v0", **SOKOBAN_8),
    "ours: Sokoban 8x8, 2 boxes, test split": lambda: core(
        "ragen/Sokoban-v0", split="test", **SOKOBAN_8
    ),
    "gem-llm: Sokoban easy, 6x6, 2 boxes": lambda: gem("game:Sokoban-v0-easy", MOVES),
    "textarena: Sokoban-v0-raw, 6x6, 3 boxes": lambda: textarena(
        "Sokoban-v0-raw", MOVES
    ),
}


def levels() -> Iterator[tuple[str, Callable[[], Game]]]:
    """Yield every cell of ours, to time its resets."""
    for env_id in ("ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0"):
        for level in range(1, 6):
            for split in ("train", "test"):
                yield (
                    f"ours: {env_id}:{level}, {split}",
                    functools.partial(core, env_id, level=level, split=split),
                )


def measure(game: Game, seconds: float, windows: int) -> tuple[float, float]:
    """Return steps and resets a second of CPU time."""
    rng = random.Random(7)
    seeds = iter(range(10**9))
    steps, resets = [], []
    for _ in range(windows + 1):
        count, spent = 0, 0.0
        while spent < seconds:
            began = time.thread_time()
            game.reset(next(seeds))
            spent += time.thread_time() - began
            count += 1
        resets.append(count / spent)
    for _ in range(windows + 1):
        count, spent = 0, 0.0
        while spent < seconds:
            game.reset(next(seeds))
            actions = game.actions()
            drawn = [rng.choice(actions) for _ in range(MAX_STEPS)]
            began = time.thread_time()
            for action in drawn:
                count += 1
                if game.step(action):
                    break
            spent += time.thread_time() - began
        steps.append(count / spent)
    return statistics.median(steps[1:]), statistics.median(resets[1:])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--levels", action="store_true", help="all cells of ours")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--windows", type=int, default=5)
    asked = parser.parse_args()
    games = dict(levels()) if asked.levels else GAMES
    print("| environment | us/step | steps/s | resets/s |")
    print("|---|---|---|---|")
    for name, build in games.items():
        if asked.only not in name:
            continue
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                steps, resets = measure(build(), asked.seconds, asked.windows)
        except ImportError as error:
            print(f"| {name} | absent ({error.name}) | | |")
            continue
        print(
            f"| {name} | {1e6 / steps:.2f} | {steps:,.0f} | {resets:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
