"""How often agents that are alike are called different, by simulation.

    python benchmarks/ranking_errors.py

Equal agents play the same instances, some of which are easy and some hard for all of
them: a cell of successes and one of returns, in two environments.  Counted is how often
any pair of a board is called different after Holm's correction, at 0.05.
"""

import argparse
import itertools

import numpy as np

from ragen_bench.intervals import Floats
from ragen_bench.ranking.comparisons import ALPHA
from ragen_bench.ranking.permutation import holm, p_values


def board(rng: np.random.Generator, agents: int, seeds: int, reps: int) -> list[Floats]:
    """Return each pair's parts of the difference, of one board of equal agents."""
    chances = rng.beta(0.6, 0.9, seeds)
    solved = rng.binomial(reps, chances, (agents, seeds)) / reps  # [agents, seeds]
    worth = rng.exponential(size=seeds)
    paid = worth + rng.standard_t(4, (agents, seeds)) / np.sqrt(reps)
    # Half the score is each environment's mean over seeds; the room of pay is 3.
    parts = np.concatenate([solved, paid / 3], axis=1) / (2 * seeds)
    pairs = itertools.combinations(range(agents), 2)
    return [parts[i] - parts[j] for i, j in pairs]


def wrong_share(boards: int, agents: int, seeds: int, reps: int) -> float:
    """Return on which share of boards any two equal agents are called different."""
    rng = np.random.default_rng([agents, seeds, reps])
    tests = [board(rng, agents, seeds, reps) for _ in range(boards)]
    values = p_values([parts for pairs in tests for parts in pairs])
    size = len(tests[0])
    groups = (values[i : i + size] for i in range(0, len(values), size))
    return float(np.mean([min(holm(group)) <= ALPHA for group in groups]))


def main() -> None:
    """Simulate and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--boards", type=int, default=2000)
    asked = parser.parse_args()
    print("| agents | seeds a cell | repeats | called different |")
    print("|---:|---:|---:|---:|")
    for agents, seeds, reps in (
        (2, 16, 1),
        (2, 64, 1),
        (2, 64, 4),
        (6, 16, 1),
        (6, 64, 1),
    ):
        share = wrong_share(asked.boards, agents, seeds, reps)
        print(f"| {agents} | {seeds} | {reps} | {100 * share:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
