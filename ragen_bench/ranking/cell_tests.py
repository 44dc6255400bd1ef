"""Where two agents differ: tests of each cell, and the instances themselves."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ragen_bench.ranking.pairing import Pair, SharedCell
from ragen_bench.ranking.permutation import holm, p_values


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CellTest:
    """Two agents in one cell."""

    cell: str
    n: int
    """Shared episodes."""
    gap: float
    """Mean return of the first less that of the second, in units of the room."""
    return_p: float
    """Paired permutation of the returns, by instance."""
    only_first: int | None
    """Episodes that the first alone solved; None where the task has no success."""
    only_second: int | None
    success_p: float | None
    """McNemar's exact test; with several episodes on an instance, the permutation of
    successes by instance, since McNemar's takes all episodes to be independent."""
    holm_p: float
    """That of success, or else of the returns, corrected for all cells of the pair."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One episode on which two agents got different returns."""

    cell: str
    seed: int
    rep: int
    first: float
    """Return."""
    second: float


def cell_tests(found: Pair) -> list[CellTest]:
    """Return how two agents compare in each shared cell."""
    returns = p_values([cell.sums() for cell in found.cells])
    rates = [_success(cell) for cell in found.cells]
    values = [
        value if rate is None else rate[2]
        for value, rate in zip(returns, rates, strict=True)
    ]
    return [
        CellTest(
            cell=cell.name,
            n=len(cell.keys),
            gap=cell.normalized(),
            return_p=value,
            only_first=rate[0] if rate else None,
            only_second=rate[1] if rate else None,
            success_p=rate[2] if rate else None,
            holm_p=corrected,
        )
        for cell, value, rate, corrected in zip(
            found.cells, returns, rates, holm(values), strict=True
        )
    ]


def _success(cell: SharedCell) -> tuple[int, int, float] | None:
    """Return who alone solved how many, and the p value of that."""
    known = ~np.isnan(cell.first.success) & ~np.isnan(cell.second.success)
    if not known.any():
        return None
    gains = np.where(known, cell.first.success - cell.second.success, 0.0)
    first, second = int((gains > 0).sum()), int((gains < 0).sum())
    if len(cell.keys) > cell.instances:
        sums = np.bincount(cell.owner, gains, cell.instances).astype(float)
        return first, second, p_values([sums])[0]
    return first, second, mcnemar(first, second)


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p value of McNemar's exact test (McNemar 1947).

    Args:
        only_first: Pairs in which the first alone succeeded.
        only_second: Pairs in which the second alone did.
    """
    from scipy.stats import binomtest

    n = only_first + only_second
    return float(binomtest(only_first, n).pvalue) if n else 1.0


def differences(found: Pair) -> Iterator[Difference]:
    """Yield the shared episodes on which the returns differ, by cell and key."""
    for cell in found.cells:
        for i in np.flatnonzero(cell.gains).tolist():
            seed, rep = cell.keys[i]
            yield Difference(
                cell=cell.name,
                seed=seed,
                rep=rep,
                first=float(cell.first.returned[i]),
                second=float(cell.second.returned[i]),
            )


def won(listed: Sequence[Difference]) -> tuple[int, int]:
    """Return on how many episodes the first, and the second, got more."""
    first = sum(one.first > one.second for one in listed)
    return first, len(listed) - first
