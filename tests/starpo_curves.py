"""Metrics of made-up trainings, healthy and collapsing, with sampling noise."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

GROUPS, ROLLOUTS = 16, 8

Row = dict[str, float | None]


def ramp(t: float, start: float, end: float, low: float, high: float) -> float:
    """Return a line from low at the start to high at the end, flat outside."""
    share = min(1.0, max(0.0, (t - start) / (end - start)))
    return low + share * (high - low)


def learns(t: int) -> Mapping[str, float]:
    """Success rises to 0.95; spread, entropy, length and variety fall with it."""
    return {
        "p": ramp(t, 0, 40, 0.2, 0.95),
        "entropy": ramp(t, 0, 40, 1.0, 0.03),
        "thought_tokens": ramp(t, 0, 40, 40, 8),
        "distinct_4": ramp(t, 0, 40, 0.5, 0.05),
        "valid_rate": ramp(t, 0, 10, 0.6, 0.99),
        "grad_norm": ramp(t, 0, 40, 1.0, 0.1),
    }


def improves(t: int) -> Mapping[str, float]:
    """A warm start that gets better slowly, and is not done at the end."""
    return {
        "p": ramp(t, 0, 100, 0.5, 0.75),
        "entropy": ramp(t, 0, 100, 0.6, 0.15),
        "thought_tokens": 20,
        "distinct_4": 0.2,
        "valid_rate": 0.98,
        "grad_norm": 0.5,
    }


def stays(t: int) -> Mapping[str, float]:
    """Nothing is learnt, and nothing breaks."""
    return {**improves(0), "p": 0.3}


def hardly_tries(t: int) -> Mapping[str, float]:
    """Success stays near 0 while replies become valid."""
    return {
        **improves(0),
        "p": 0.02,
        "entropy": ramp(t, 0, 20, 3.0, 0.4),
        "valid_rate": ramp(t, 0, 20, 0.1, 0.98),
    }


def echoes(t: int) -> Mapping[str, float]:
    """RAGEN's echo trap: spread and entropy go first, then gradients, then success."""
    return {
        "p": ramp(t, 0, 25, 0.3, 0.55) if t < 45 else ramp(t, 45, 60, 0.55, 0.05),
        "alike": ramp(t, 28, 36, 0.0, 1.0),
        "entropy": ramp(t, 28, 40, 0.8, 0.02),
        "thought_tokens": ramp(t, 30, 50, 40, 5),
        "distinct_4": ramp(t, 30, 50, 0.4, 0.02),
        "valid_rate": 0.97,
        "grad_norm": 30.0 if t in (44, 47, 48) else 0.8,
    }


def bursts(t: int) -> Mapping[str, float]:
    """Too large a learning rate: the policy writes at random within 10 iterations."""
    return {
        "p": ramp(t, 0, 20, 0.4, 0.7) if t < 22 else ramp(t, 22, 32, 0.7, 0.02),
        "entropy": ramp(t, 20, 28, 0.4, 4.0),
        "thought_tokens": 20,
        "distinct_4": 0.3,
        "valid_rate": ramp(t, 22, 32, 0.98, 0.1),
        "grad_norm": 25.0 if t > 21 else 0.8,
    }


def forgets(t: int) -> Mapping[str, float]:
    """Success is near its maximum before it falls."""
    return {
        "p": ramp(t, 0, 20, 0.4, 0.97) if t < 40 else ramp(t, 40, 60, 0.97, 0.1),
        "alike": ramp(t, 38, 50, 0.0, 1.0),
        "entropy": ramp(t, 0, 20, 0.8, 0.1) if t < 40 else ramp(t, 40, 55, 0.1, 1.5),
        "thought_tokens": 20,
        "distinct_4": 0.3,
        "valid_rate": ramp(t, 40, 60, 0.99, 0.4),
        "grad_norm": 9.0 if t in (41, 45) else 0.4,
    }


HEALTHY: tuple[Callable[[int], Mapping[str, float]], ...] = (
    learns,
    improves,
    stays,
    hardly_tries,
)
COLLAPSING: tuple[Callable[[int], Mapping[str, float]], ...] = (
    echoes,
    bursts,
    forgets,
)


def rows(
    curve: Callable[[int], Mapping[str, float]], seed: int, iterations: int = 100
) -> list[Row]:
    """Return what a training's metrics would be, seen through 16 groups of 8."""
    rng = np.random.default_rng(seed)
    found = []
    for t in range(iterations):
        now = dict(curve(t))
        p = min(max(now.pop("p"), 0.01), 0.99)
        # Alike groups are wholly solved or not at all.
        sharp = 0.02 + 2.0 * (1 - now.pop("alike", 0.0))
        chances = rng.beta(p * sharp, (1 - p) * sharp, GROUPS)
        solved = rng.random((GROUPS, ROLLOUTS)) < chances[:, None]
        valid = rng.binomial(GROUPS * ROLLOUTS, now.pop("valid_rate"))
        row: Row = {
            "iteration": t + 1,
            "success": float(solved.mean()),
            "return_mean": float(solved.mean()),
            "spread_mean": float(solved.std(axis=1, ddof=1).mean()),
            "valid_rate": valid / (GROUPS * ROLLOUTS),
            "reply_tokens": 2 * now["thought_tokens"],
        }
        found.append(
            row | {k: v * float(rng.lognormal(0, 0.1)) for k, v in now.items()}
        )
    return found


def write(folder: Path, table: list[Row]) -> Path:
    """Write metrics as a training leaves them and return the folder."""
    folder.mkdir(parents=True)
    with (folder / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return folder
