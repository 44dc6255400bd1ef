"""Warm start plus RL against behaviour cloning of the same CPU time, seed by seed.

    python benchmarks/training_against_cloning.py --out runs/against

Both learn from the same demonstrations.  One clones them for a part of the time and
then trains on the rewards of its own episodes, on FrozenLake by GRPO, on Sokoban by
self-imitation; the other clones them for all of it.
The harness plays both on the same instances of the test split.  Differences are
paired by instance; the interval of the mean over seeds resamples instances.  Both
trainings and both runs resume where a folder holds a part of them.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ragen_bench.intervals import Floats
from ragen_bench.run_folder import read_episodes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """How a cell is learned."""

    preset: str
    seconds: float
    """CPU seconds in all."""
    warm: float
    """Those of the warm start among them."""


CELLS = {
    "ragen/FrozenLake-v0:1": Cell(preset="tiny-cpu-long", seconds=240, warm=60),
    "ragen/Sokoban-v0:1": Cell(preset="tiny-cpu-imitate", seconds=360, warm=110),
}


@dataclasses.dataclass(frozen=True)
class Pair:
    """Successes of both, [instances]."""

    cloned: Floats
    trained: Floats

    @property
    def difference(self) -> Floats:
        """Return trained minus cloned, [instances]."""
        return np.subtract(self.trained, self.cloned)


def command(*arguments: str) -> None:
    """Run a verb of the command line on one thread."""
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "ragen_bench", *arguments],
        check=True,
        env={**os.environ, **one},
        stdout=subprocess.DEVNULL,
    )


def train(cell: str, seed: int, out: Path, *changed: str) -> Path:
    """Return the folder of a trained model."""
    settings = [f"seed={seed}", *changed]
    flags = [flag for setting in settings for flag in ("--set", setting)]
    command(
        *("train", "--preset", CELLS[cell].preset, "--env", cell, "-q"),
        *(*flags, "--out", str(out)),
    )
    return out / "model"


def successes(cell: str, model: Path, seeds: int, out: Path) -> Floats:
    """Return who was solved, [seeds], as the harness plays the test split."""
    command(
        *("run", "--env", cell, "--seeds", str(seeds), "-q", "--out", str(out)),
        *("--model", f"hf:{model}"),
    )
    solved = {one.seed: bool(one.success) for one in read_episodes(out)}
    return np.array([solved[seed] for seed in range(seeds)], dtype=float)


def play(cell: str, seed: int, seeds: int, out: Path) -> Pair:
    """Train both ways and return their successes."""
    budget = CELLS[cell]
    here = out / cell.replace("/", "_").replace(":", "_") / str(seed)
    found = {}
    for name, changed in (
        ("cloned", [f"clone_seconds={budget.seconds}", "iterations=0"]),
        ("trained", [f"clone_seconds={budget.warm}"]),
    ):
        whole = f"budget_seconds={budget.seconds}"
        model = train(cell, seed, here / name, whole, *changed)
        found[name] = successes(cell, model, seeds, here / f"{name}-test")
    return Pair(**found)


def interval(differences: Floats, draws: int = 20_000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean, instances resampled.

    Args:
        differences: [instances], averaged over the seeds of training.
        draws: Resamples.
    """
    rng = np.random.default_rng(0)
    n = len(differences)
    means = differences[rng.integers(0, n, (draws, n))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def lines(cell: str, pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield a cell's rows of the table: each seed, then their mean."""
    rows = [(str(seed), pair) for seed, pair in enumerate(pairs)]
    mean = Pair(
        np.mean([pair.cloned for pair in pairs], axis=0),
        np.mean([pair.trained for pair in pairs], axis=0),
    )
    for name, pair in [*rows, ("mean", mean)]:
        low, high = interval(pair.difference)
        yield (
            f"| {cell} | {name} | {pair.cloned.mean():.3f} | {pair.trained.mean():.3f} "
            f"| {pair.difference.mean():+.3f} | {low:+.3f} to {high:+.3f} |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/against-cloning"))
    parser.add_argument("--env", action="append", choices=CELLS, help="default: all")
    parser.add_argument("--trainings", type=int, default=3, help="seeds of training")
    parser.add_argument("--seeds", type=int, default=256, help="test instances")
    asked = parser.parse_args()
    print("| cell | seed | cloned | warm start + RL | difference | 95 % interval |")
    print("|---|---|---|---|---|---|")
    for cell in asked.env or CELLS:
        pairs = [
            play(cell, seed, asked.seeds, asked.out) for seed in range(asked.trainings)
        ]
        for line in lines(cell, pairs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
