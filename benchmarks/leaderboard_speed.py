"""Times score, report, load_runs and view over 100,000 episodes.

    python benchmarks/leaderboard_speed.py

The episodes are made up but valid: replies of some 300 characters with a block of
thoughts, boards as observations, parses, token counts and outcomes as a middling model
has them.  Each verb runs in a process of its own; CPU seconds and peak memory are those
of that process.  A verb that this version does not know is said to be missing.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ragen_bench.records import CellPlan, Episode, RunConfig, RunRecord
from ragen_bench.run_folder import write_json

ENVS = ("ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0")
LEVELS = (1, 2, 3, 4, 5)
RULES = "You push boxes onto targets.  A box cannot be pulled.  " * 20
BOARD = "######\n#__P_#\n#_X__#\n#__O_#\n#____#\n######\n"
THOUGHT = "The box stands to the left of me, so I walk around it and push it down.  "
NAMES = ("Up", "Down", "Left", "Right")
SECONDS, MEGABYTES = 60, 1024


def turn(rng: np.random.Generator, number: int) -> dict[str, object]:
    """Return one turn, as it stands in a file."""
    count = int(rng.integers(1, 4))
    names = [NAMES[i] for i in rng.integers(4, size=count)]
    bad = rng.random() < 0.08
    thought = THOUGHT * int(rng.integers(1, 6))
    answer = "I give up." if bad else f"<answer>{' || '.join(names)}</answer>"
    return {
        "observation": f"Turn {number}.  You have {10 - number} actions left.\n{BOARD}",
        "response": f"<think>{thought}</think>{answer}",
        "thinking": thought,
        "actions": [] if bad else names,
        "effective": [] if bad else [True] * count,
        "parse": "no_answer" if bad else "ok",
        "valid": not bad,
        "reward": -0.1 if bad else 0.0,
        "reward_parts": {"task": 0.0, "format": -0.1 if bad else 0.0},
        "scored_reward": 0.0,
        "prompt_sha256": f"{int(rng.integers(2**63)):064x}",
        "context_cut": 0,
        "usage": {
            "input_tokens": 600 + 150 * number,
            "cached_tokens": 500,
            "output_tokens": int(rng.integers(40, 160)),
            "reasoning_tokens": None,
        },
        "finish_reason": "stop",
        "latency_s": round(float(rng.gamma(4.0, 0.3)), 6),
        "details": {},
    }


def episode(
    rng: np.random.Generator, env_id: str, level: int, seed: int, rep: int
) -> dict[str, Any]:
    """Return one episode, as it stands in a file."""
    draw = rng.random()
    solved = bool(draw < 0.75 - 0.12 * level)
    outcome = "solved" if solved else "failed" if draw < 0.9 else "turn_limit"
    turns = [turn(rng, i) for i in range(int(rng.integers(2, 9)))]
    return {
        "schema": 1,
        "env_id": env_id,
        "level": level,
        "split": "test",
        "seed": seed,
        "rep": rep,
        "instance": f"{seed * 7919 + level:016x}",
        "outcome": outcome,
        "success": solved,
        "return": float(solved),
        "floor": 0.05,
        "ceiling": 1.0,
        "optimal_cost": 4 * level,
        "terminated": outcome != "turn_limit",
        "truncated": outcome == "turn_limit",
        "error": None,
        "rules": RULES,
        "turns": turns,
        "final_observation": BOARD,
    }


def write_run(folder: Path, episodes: int, seed: int) -> int:
    """Write a run of about so many episodes and return how many they are."""
    rng = np.random.default_rng(seed)
    seeds = tuple(range(max(1, episodes // (len(ENVS) * len(LEVELS) * 2))))
    cells = tuple(
        CellPlan(env_id=env, level=level, seeds=seeds)
        for env in ENVS
        for level in LEVELS
    )
    config = RunConfig(
        cells=cells, repeats=2, agent="think_act", model="openai:made-up"
    )
    record = RunRecord(
        config=config,
        versions={"ragen-bench": "0.1.0"},
        commit=None,
        model_facts={},
        prompt_sha256={},
        started="2026-11-30T00:00:00+00:00",
    )
    folder.mkdir(parents=True)
    write_json(folder / "run.json", record)
    with open(folder / "episodes.jsonl", "w", encoding="ascii") as file:
        for i, key in enumerate(config.keys()):
            line = episode(rng, key.env_id, key.level, key.seed, key.rep)
            if i == 0:
                Episode.model_validate(line)
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    return len(config.keys())


def measure(command: list[str]) -> tuple[float, float, str]:
    """Return CPU seconds and peak megabytes of a process, and how it went."""
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, done.returncode)\n"
        "print(done.stderr.strip().splitlines()[-1:] or '')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        capture_output=True,
        text=True,
        check=True,
    )
    numbers, fault = done.stdout.split("\n", 1)
    cpu, megabytes, status = numbers.split()
    how = "" if status in ("0", "4") else f"exit {status} {fault.strip()}"
    return float(cpu), float(megabytes), how


def main() -> None:
    """Make the episodes, measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--verbs", nargs="*", help="Only these.")
    asked = parser.parse_args()
    cli = [sys.executable, "-m", "ragen_bench"]
    load = "import sys, ragen_bench as rb; rb.load_runs(sys.argv[1], turns=True)"
    with tempfile.TemporaryDirectory() as folder:
        run, out = Path(folder) / "run", Path(folder) / "out"
        began = time.process_time()
        count = write_run(run, asked.episodes, seed=0)
        size = (run / "episodes.jsonl").stat().st_size / 2**20
        spent = time.process_time() - began
        print(f"{count:,} episodes, {size:,.0f} MiB, made in {spent:.0f} s\n")
        commands = {
            "score": [*cli, "score", str(run)],
            "load_runs": [sys.executable, "-c", load, str(run)],
            "report": [*cli, "report", str(run), "--out", str(out / "report")],
            "view": [*cli, "view", str(run), "--out", str(out / "site")],
        }
        print("| what | CPU s | peak MiB | within 60 s and 1,024 MiB |")
        print("|---|---:|---:|---|")
        for name, command in commands.items():
            if asked.verbs and name not in asked.verbs:
                continue
            cpu, megabytes, how = measure(command)
            met = "yes" if cpu <= SECONDS and megabytes <= MEGABYTES else "no"
            print(
                f"| {name} | {cpu:.1f} | {megabytes:,.0f} | {how or met} |", flush=True
            )
    limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nthis script: {limit:,.0f} MiB")


if __name__ == "__main__":
    main()
