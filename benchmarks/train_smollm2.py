"""Trains SmolLM2-135M with StarPO-S through vLLM and compares it with its beginnings.

    python scripts/smollm2_folder.py smollm2
    python benchmarks/train_smollm2.py smollm2 runs/smollm2

The warm start clones the solver's replies on train instances; then come 36 iterations
of `starpo-s`.  The untrained, the cloned and the trained model play the same instances
of the test split greedily, and the last two are compared instance by instance.  The
same command goes on where it stopped; ``--table`` prints what the runs hold.
"""

import argparse
import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ragen_bench as rb
from ragen_bench.intervals import wilson
from ragen_bench.run_folder import read_episodes
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo.progress import Lines
from ragen_bench.starpo.training import train

CELL = "ragen/Bandit-v0:1"
SETTINGS: dict[str, Any] = {
    "envs": [CELL],
    "agent": "direct",
    "prompt": "compact",
    "max_tokens": 16,
    "engine": "vllm",
    "engine_kv_gib": 1.0,
    "lora_rank": 16,
    "clone_steps": 12,
    "clone_batch": 16,
    "clone_noise": 0.0,
    "clone_lr": 1e-3,
    "groups": 8,
    "rollouts": 16,
    "minibatch": 16,
    "token_budget": 2400,
    "lr": 5e-5,
    "entropy": 0.01,
    "critic_lr": 3e-5,
    "critic_warmup": 2,
    "keep_rollouts": [1, 12, 24, 36],
    "save_every": 6,
    "probe_every": 0,
    "gradient_every": 0,
}
SEEDS = 256
STAGES = ("zero-shot", "warm start", "trained")


def learn(model: str, out: Path, iterations: int) -> Path:
    """Train up to an iteration and return the folder of a copy of the model."""
    kept = out / f"model-{iterations}"
    if not kept.exists():
        config = configuration.make(
            "starpo-s", SETTINGS, {"model": model, "iterations": iterations}
        )
        progress = Lines(sys.stderr)
        outcome = train(config, out / "training", progress=progress)
        if not outcome.complete:
            raise SystemExit(3)
        shutil.copytree(outcome.model, kept)
    return kept


def play(model: str | Path, out: Path) -> None:
    """Play the test split, or what is missing of it."""
    rb.run(
        envs=[CELL],
        seeds=SEEDS,
        model=f"hf:{model}",
        model_args={"threads": 1},
        agent="direct",
        prompt="compact",
        max_tokens=16,
        out=out,
    )


def successes(run: Path) -> dict[int, float]:
    """Return whether each instance was solved, 0 or 1, by its seed."""
    return {
        episode.key.seed: float(episode.success is True)
        for episode in read_episodes(run)
    }


def difference(
    one: dict[int, float], other: dict[int, float]
) -> tuple[float, float, float]:
    """Return the mean of paired differences and its 95 % bootstrap interval."""
    apart = np.array([other[seed] - one[seed] for seed in sorted(one) if seed in other])
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(apart), size=(10_000, len(apart)))
    low, high = np.quantile(apart[drawn].mean(1), [0.025, 0.975])
    return float(apart.mean()), float(low), float(high)


def table(out: Path) -> str:
    """Return what the runs hold."""
    lines = ["| model | n | success | valid replies |", "|---|---:|---:|---:|"]
    found = {}
    for stage in STAGES:
        run = out / f"run-{stage.replace(' ', '-')}"
        found[stage] = solved = successes(run)
        rate = float(np.mean(list(solved.values())))
        low, high = wilson(rate, len(solved))
        turns = [turn for episode in read_episodes(run) for turn in episode.turns]
        valid = np.mean([turn.valid for turn in turns])
        lines.append(
            f"| {stage} | {len(solved)} | {rate:.3f} [{low:.3f}, {high:.3f}] "
            f"| {valid:.3f} |"
        )
    mean, low, high = difference(found["warm start"], found["trained"])
    lines += ["", f"trained minus warm start: {mean:+.3f} [{low:+.3f}, {high:+.3f}]"]
    return "\n".join(lines)


def main() -> None:
    """Train, play and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("out", type=Path)
    parser.add_argument("--iterations", type=int, default=36)
    parser.add_argument("--table", action="store_true", help="train and play nothing")
    asked = parser.parse_args()
    if not asked.table:
        with contextlib.suppress(FileExistsError):
            asked.out.mkdir(parents=True)
        play(asked.model, asked.out / "run-zero-shot")
        play(learn(asked.model, asked.out, 0), asked.out / "run-warm-start")
        last = learn(asked.model, asked.out, asked.iterations)
        play(last, asked.out / "run-trained")
    print(table(asked.out))


if __name__ == "__main__":
    main()
