"""Shows how many greedy replies depend on what else is in the batch.

    python benchmarks/batch_agreement.py --model tiny
    python benchmarks/batch_agreement.py --model hf:FOLDER --shots 2 --agent direct

Plays the same episodes one by one and 64 at once, in float32 and in bfloat16, and
compares their replies turn by turn.  In float32 all must agree.
"""

import argparse
import importlib.resources
import tempfile
from pathlib import Path
from typing import Any

import ragen_bench as rb
from ragen_bench.run_folder import read_episodes

CELLS = ("ragen/Bandit-v0:1", "ragen/FrozenLake-v0:1", "ragen/Sokoban-v0:1")


def replies(asked: argparse.Namespace, dtype: str, concurrency: int) -> dict[str, Any]:
    """Return the replies of each episode."""
    tiny = importlib.resources.files("ragen_bench.models") / "tiny"
    with tempfile.TemporaryDirectory() as folder:
        summary = rb.run(
            envs=CELLS,
            seeds=asked.seeds,
            model=f"hf:{tiny}" if asked.model == "tiny" else asked.model,
            model_args={"dtype": dtype, "device": asked.device, "batch_size": 64},
            agent=asked.agent,
            shots=asked.shots,
            max_tokens=asked.max_tokens,
            context="full",
            concurrency=concurrency,
            out=Path(folder) / "run",
        )
        if not summary.complete:
            raise SystemExit("stopped")
        return {
            str(episode.key): [turn.response for turn in episode.turns]
            for episode in read_episodes(Path(folder) / "run")
        }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--agent")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=48)
    asked = parser.parse_args()
    print("| dtype | first replies alike | all replies alike | episodes alike |")
    print("|---|---|---|---|")
    for dtype in ("float32", "bfloat16"):
        one, many = (replies(asked, dtype, n) for n in (1, 64))
        assert one.keys() == many.keys()
        firsts = [one[key][:1] == many[key][:1] for key in one]
        turns = [a == b for key in one for a, b in zip(one[key], many[key])]  # noqa: B905
        longest = sum(max(len(one[key]), len(many[key])) for key in one)
        whole = [one[key] == many[key] for key in one]
        counts = ((firsts, len(firsts)), (turns, longest), (whole, len(whole)))
        shown = " | ".join(f"{sum(same)}/{of}" for same, of in counts)
        print(f"| {dtype} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
