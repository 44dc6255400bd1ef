"""Times the whole harness with a scripted agent, and what imports cost.

    python benchmarks/harness_speed.py

Turns a second of CPU time: `random` plays FrozenLake, Sokoban and Bandit through the
runner, with records on disk and the summary at the end.  Imports: CPU time of fresh
processes, `import ragen_bench` beside `import gymnasium` alone, run in turn, medians.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ragen_bench as rb


def turns_a_second(cells: list[str], seeds: int, repeats: int) -> tuple[int, float]:
    """Return how many turns were played and how many a second of CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        began = time.process_time()
        rb.run(envs=cells, seeds=seeds, repeats=repeats, agent="random", out=out)
        spent = time.process_time() - began
        lines = (out / "episodes.jsonl").read_text().splitlines()
    turns = sum(len(json.loads(line)["turns"]) for line in lines)
    return turns, turns / spent


def cpu_of(*arguments: str) -> float:
    """Return the CPU seconds of a fresh Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--runs", type=int, default=9)
    asked = parser.parse_args()
    print("| cell | turns | turns/s of CPU |")
    print("|---|---|---|")
    for cell in (
        "ragen/Bandit-v0:3",
        "ragen/FrozenLake-v0:1",
        "ragen/FrozenLake-v0:2",
        "ragen/Sokoban-v0:1",
        "ragen/Sokoban-v0:2",
    ):
        turns, rate = turns_a_second([cell], asked.seeds, 5)
        print(f"| {cell} | {turns} | {rate:,.0f} |", flush=True)
    commands = {
        "import gymnasium": ("-c", "import gymnasium"),
        "import ragen_bench": ("-c", "import ragen_bench"),
        "ragen-bench --help": ("-m", "ragen_bench", "--help"),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(asked.runs):
        for name, arguments in commands.items():
            times[name].append(cpu_of(*arguments))
    print("\n| fresh process | CPU s, median | least | most |")
    print("|---|---|---|---|")
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"| {name} | {middle:.3f} | {min(found):.3f} | {max(found):.3f} |")


if __name__ == "__main__":
    main()
