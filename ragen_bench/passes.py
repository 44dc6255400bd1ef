"""pass@k and pass^k: the chance that one of k tries, or all of them, succeed.

Tries are the repeats of an instance.  Each has sampling and noise streams of its own,
and a replay cache never gives one the reply of another.  (At temperature 0 a model
still says the same in each of them, as long as the task does.)
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ragen_bench.errors import InvalidSpec
from ragen_bench.intervals import Estimate, Floats, bootstrap, resample
from ragen_bench.seeding import child


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that one of k tries or more succeeds, without bias.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1).

    Args:
        n: Tries on one instance, with sampling streams of their own.
        c: How many of them succeeded.
        k: Tries that are allowed, 1 to n.

    Raises:
        InvalidSpec: The three do not fit together.
    """
    _check_tries(n, c, k)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the chance that all of k tries succeed (pass^k), without bias.

    C(c, k) / C(n, k) (Yao et al. 2024, arXiv 2406.12045, section 3).

    Args:
        n: Tries on one instance, with sampling streams of their own.
        c: How many of them succeeded.
        k: Tries that must succeed, 1 to n.

    Raises:
        InvalidSpec: The three do not fit together.
    """
    _check_tries(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check_tries(n: int, c: int, k: int) -> None:
    if not 1 <= k <= n:
        raise InvalidSpec(
            f"k is {k!r}, but must lie from 1 to the {n!r} tries of an instance; "
            "play more --repeats"
        )
    if not 0 <= c <= n:
        raise InvalidSpec(f"c is {c!r}, but must lie from 0 to n = {n!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """How the repeats of one seed ended."""

    cluster: str
    """The instance, which other seeds may share."""
    n: int
    """Tries that count."""
    c: int
    """Successes among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Both chances by k, from 1 on."""

    at: Mapping[int, Estimate]
    hat: Mapping[int, Estimate]


def passes(tries: Sequence[Tries], name: str) -> Passes:
    """Return pass@k and pass^k of a cell, the means over its seeds.

    Each k counts the seeds that have k tries or more; ``n`` says how many these are.
    The intervals are those of a bootstrap over instances.

    Args:
        tries: Of each seed.
        name: The cell, which seeds the bootstrap.
    """
    most = max((one.n for one in tries), default=0)
    groups = itertools.groupby(
        range(1, most + 1), key=lambda k: sum(one.n >= k for one in tries)
    )
    at: dict[int, Estimate] = {}
    hat: dict[int, Estimate] = {}
    for _, group in groups:
        ks = list(group)
        counted = [one for one in tries if one.n >= ks[0]]
        columns = [[pass_at_k(one.n, one.c, k) for k in ks] for one in counted]
        hats = [[pass_hat_k(one.n, one.c, k) for k in ks] for one in counted]
        values = np.concatenate([columns, hats], axis=1)  # [seeds, 2 ks]
        found = _means([one.cluster for one in counted], values, name)
        at.update(zip(ks, found[: len(ks)], strict=True))
        hat.update(zip(ks, found[len(ks) :], strict=True))
    return Passes(at=at, hat=hat)


def _means(clusters: Sequence[str], values: Floats, name: str) -> list[Estimate]:
    """Return the mean of each column of values, [seeds, M]."""
    place: dict[str, int] = {}
    owner = [place.setdefault(cluster, len(place)) for cluster in clusters]
    sums = np.zeros((len(place), 1 + values.shape[1]))
    np.add.at(sums, owner, np.insert(values, 0, 1.0, axis=1))
    totals = resample(sums, child(0, "passes", name))
    draws = totals[:, 1:] / totals[:, :1]
    n = len(values)
    return [
        bootstrap(float(mean), draws[:, j], len(place), n, 0.0, 1.0)
        for j, mean in enumerate(values.mean(axis=0))
    ]
