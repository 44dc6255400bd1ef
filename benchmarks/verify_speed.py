"""Times verification by replay, and shows how much memory it takes.

    python benchmarks/verify_speed.py

Actions a second of CPU time over all that `verify` does: reading, strict parsing,
replay, solving, prompts, score.  The first verification of a process draws and solves
the instances, a second one knows them; so does the first one of a run with repeats for
all repeats but one.  Each row is a process of its own; its peak memory stands beside.
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

import ragen_bench as rb
from ragen_bench.verifying import verify

CELLS = (
    "ragen/Bandit-v0:3",
    "ragen/FrozenLake-v0:2",
    "ragen/FrozenLake-v0:4",
    "ragen/Sokoban-v0:2",
    "ragen/Sokoban-v0:3",
)
REPLIES = [
    "<think>The goal is to the right of me and below.</think><answer>Right</answer>",
    "<think>There is a hole below, so I go up first.</think><answer>Up</answer>",
    "<answer>Down || Left</answer>",
    "I do not know what to do.",
]
ROWS: dict[str, dict[str, Any]] = {
    "random": {"agent": "random"},
    "think_act, full context": {"agent": "think_act"},
    "think_act, window:4, 2 shots": {
        "agent": "think_act",
        "context": "window:4",
        "shots": 2,
    },
}


def measure(name: str, seeds: int, repeats: int) -> None:
    """Play a run, verify it twice, and write what was measured as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        settings = dict(ROWS[name])
        if settings["agent"] != "random":
            script = Path(folder) / "script.json"
            script.write_text(json.dumps(REPLIES))
            settings["model"] = f"scripted:{script}"
        out = Path(folder) / "run"
        rb.run(envs=CELLS, seeds=seeds, repeats=repeats, out=out, **settings)
        rates = []
        for _ in range(2):
            began = time.process_time()
            found = verify(out)
            spent = time.process_time() - began
            assert not found.faults, found.faults
            rates.append(found.actions / spent)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"actions": found.actions, "rates": rates, "peak": peak}))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--row", choices=ROWS)
    asked = parser.parse_args()
    if asked.row:
        measure(asked.row, asked.seeds, asked.repeats)
        return
    print("| run | actions | actions/s, first | again | peak MB |")
    print("|---|---|---|---|---|")
    for name in ROWS:
        command = [sys.executable, __file__, "--row", name]
        command += ["--seeds", str(asked.seeds), "--repeats", str(asked.repeats)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        first, again = found["rates"]
        print(
            f"| {name} | {found['actions']} | {first:,.0f} | {again:,.0f} "
            f"| {found['peak']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
