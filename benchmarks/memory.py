"""Shows that the memory of a run does not grow with its episodes.

    python benchmarks/memory.py
    python benchmarks/memory.py --model tiny --episodes 1000

Plays episodes through the runner and prints the resident memory as they finish.  By
default a decoder without a model answers, so that all else is seen: conversations,
the worker's queue, the runner, records on disk.

On a CPU PyTorch itself keeps the kernels of up to 1024 shapes of a batch, a few hundred
MB, until it has met them all.  To look past those, set ``LRU_CACHE_CAPACITY=8`` and
``ONEDNN_PRIMITIVE_CACHE_CAPACITY=8``, which is slow, and play 500 episodes.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ragen_bench as rb
from ragen_bench.records import Episode
from ragen_bench.runner import Observer

sys.path.insert(0, str(Path(__file__).parent))
from refill_speed import LONGEST, FixedSpeedDecoder, FixedSpeedModel  # noqa: E402

from ragen_bench.registry import MODELS  # noqa: E402


def resident_mb() -> float:
    """Return the resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Scale(Observer):
    """Prints a row at a tenth of the episodes, and again and again."""

    def __init__(self, episodes: int) -> None:
        self.every = max(1, episodes // 10)
        self.finished = 0
        self.turns = 0
        self.began = time.perf_counter()

    def episode(self, episode: Episode) -> None:
        """Count and print."""
        self.finished += 1
        self.turns += len(episode.turns)
        if self.finished % self.every == 0:
            spent = time.perf_counter() - self.began
            print(
                f"| {self.finished:,} | {self.turns:,} | {resident_mb():.1f} "
                f"| {spent:.0f} |",
                flush=True,
            )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--model", default="free")
    parser.add_argument("--concurrency", type=int, default=32)
    asked = parser.parse_args()
    MODELS.add("free", lambda rest: FixedSpeedModel(FixedSpeedDecoder(LONGEST)))
    settings: dict[str, Any] = {"model": asked.model}
    if asked.model == "free":
        settings["agent"] = "direct"
    print("| episodes | turns | resident MB | s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        rb.run(
            envs=["ragen/FrozenLake-v0:1"],
            seeds=asked.episodes,
            out=Path(folder) / "run",
            concurrency=asked.concurrency,
            observer=Scale(asked.episodes),
            **settings,
        )
    print(f"after the summary: {resident_mb():.1f} MB")


if __name__ == "__main__":
    main()
