"""The episodes of one cell to its score; only a few numbers of each are kept.

Episodes are clustered by instance.  Where a level has the same few instances in every
split, these are all there is and none was sampled: there the cluster is the seed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ragen_bench.errors import UnknownName
from ragen_bench.intervals import (
    Estimate,
    Floats,
    bootstrap,
    interval,
    rate_interval,
    resample,
    rounded,
    unknown,
)
from ragen_bench.passes import Passes, Tries, passes
from ragen_bench.prices import Tokens, cost, tokens_of_turns
from ragen_bench.records import (
    OUTCOMES,
    CellPlan,
    CellScore,
    Episode,
    Interval,
    Outcome,
    Price,
    RunConfig,
)
from ragen_bench.registry import core_class
from ragen_bench.seeding import child

_NO_ROOM = 1e-12
"""A ceiling no further above the floor leaves nothing to measure."""
_FAILURES: frozenset[Outcome] = frozenset({"context_overflow", "agent_error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is kept of an episode that counts."""

    seed: int
    rep: int
    cluster: str
    success: bool | None
    returned: float
    floor: float
    ceiling: float
    efficiency: float | None
    turns: int
    invalid: int
    actions: int
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A cell's score, and what composites need of it."""

    record: CellScore
    rows: Sequence[Row]
    returned: Estimate
    normalized: Estimate
    passes: Passes


class Cell:
    """One cell of a run, collecting its episodes."""

    def __init__(self, plan: CellPlan, config: RunConfig) -> None:
        self.name = plan.cell
        self.env_id = plan.env_id
        self.outcomes: Counter[str] = Counter()
        self.parses: Counter[str] = Counter()
        self.tokens = Tokens()
        self._split = config.split
        self._owed = {
            (seed, rep) for seed in plan.seeds for rep in range(config.repeats)
        }
        self.planned = len(self._owed)
        self._repeats = config.repeats
        self._by_seed = _has_few_instances(plan, config)
        self._rows: list[Row] = []

    def add(self, episode: Episode) -> bool:
        """Count an episode; return False if it is not owed."""
        which = (episode.seed, episode.rep)
        if which not in self._owed or episode.split != self._split:
            return False
        self._owed.remove(which)
        self.outcomes[episode.outcome] += 1
        tokens = tokens_of_turns(episode.turns)
        self.tokens += tokens
        if episode.scored:
            self.parses.update(turn.parse for turn in episode.turns)
            cluster = str(episode.seed) if self._by_seed else episode.instance
            self._rows.append(_row(episode, cluster, tokens.output))
        return True

    def score(self, price: Price | None = None) -> Scored:
        """Return the cell's score, and what it cost at a price."""
        rows = sorted(self._rows, key=lambda row: (row.seed, row.rep))
        success, returned, normalized = estimates(rows, self.name)
        tries = _tries(rows) if self._repeats > 1 else []
        chances = passes(tries, self.name)
        record = CellScore(
            episodes=self.outcomes.total(),
            success=success,
            episode_return=returned.interval,
            normalized=normalized.interval,
            parses=dict(sorted(self.parses.items())),
            outcomes={name: self.outcomes[name] for name in OUTCOMES},
            cost=cost(self.tokens, price),
            pass_at_k={k: chance.interval for k, chance in chances.at.items()},
            pass_hat_k={k: chance.interval for k, chance in chances.hat.items()},
            **means_of(rows),
        )
        return Scored(
            record=record,
            rows=rows,
            returned=returned,
            normalized=normalized,
            passes=chances,
        )


def _has_few_instances(plan: CellPlan, config: RunConfig) -> bool:
    """Return whether a cell is known to have the same instances in every split."""
    try:
        core = core_class(plan.env_id)
    except UnknownName:
        return False
    preset = config.env_args.get("preset")
    known = core.presets.get(preset) if preset else core.levels.get(plan.level)
    return known is not None and known.split_exempt


def scored_values(episode: Episode) -> tuple[bool | None, float]:
    """Return the success and the return that an episode which counts has in scores."""
    if episode.outcome in _FAILURES and episode.success is not None:
        return False, 0.0
    return episode.success, episode.episode_return


def _row(episode: Episode, cluster: str, tokens: int | None) -> Row:
    success, returned = scored_values(episode)
    actions = episode.action_count
    efficiency = None
    if success and actions and episode.optimal_cost is not None:
        efficiency = episode.optimal_cost / actions
    return Row(
        seed=episode.seed,
        rep=episode.rep,
        cluster=cluster,
        success=success,
        returned=returned,
        floor=episode.floor,
        ceiling=episode.ceiling,
        efficiency=efficiency,
        turns=len(episode.turns),
        invalid=sum(not turn.valid for turn in episode.turns),
        actions=actions,
        tokens=tokens,
    )


def _tries(rows: Sequence[Row]) -> list[Tries]:
    """Return how the repeats of each seed ended, where the task has success."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        if row.success is not None:
            found.setdefault(row.seed, []).append(row)
    return [
        Tries(
            cluster=tried[0].cluster,
            n=len(tried),
            c=sum(row.success is True for row in tried),
        )
        for tried in found.values()
    ]


def known_sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum, None if a part of it is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def means_of(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the plain means over episodes, and over turns, of `CellScore`."""
    n = len(rows)
    turns = sum(row.turns for row in rows)
    tokens = known_sum(row.tokens for row in rows)
    solved = [row.efficiency for row in rows if row.efficiency is not None]

    def per(total: float | None, count: int) -> float | None:
        return rounded(total / count) if count and total is not None else None

    return {
        "floor": per(math.fsum(row.floor for row in rows), n),
        "ceiling": per(math.fsum(row.ceiling for row in rows), n),
        "efficiency": per(math.fsum(solved), len(solved)),
        "invalid_rate": per(sum(row.invalid for row in rows), turns),
        "turns": per(turns, n),
        "actions": per(sum(row.actions for row in rows), n),
        "tokens": per(tokens, n),
    }


def estimates(rows: Sequence[Row], name: str) -> tuple[Interval, Estimate, Estimate]:
    """Return success, return and normalized score of a cell."""
    n = len(rows)
    if n == 0:
        return rate_interval(np.zeros(0), np.zeros(0)), unknown(0), unknown(0)
    sums = _cluster_sums(rows)
    clusters = len(sums)
    asked = sums[:, 1] > 0
    success = rate_interval(sums[asked, 2], sums[asked, 1])
    mean, floor, ceiling = (float(total) / n for total in sums[:, 3:].sum(axis=0))
    if all(row.success is not None and row.returned == row.success for row in rows):
        returned = Estimate(interval=success)
        return success, returned, _scaled(success, floor, ceiling)
    totals = resample(sums[:, [0, 3, 4, 5]], child(0, "bootstrap", name))
    draws = totals[:, 1:] / totals[:, :1]  # [RESAMPLES, 3]
    returned = bootstrap(mean, draws[:, 0], clusters, n, floor, ceiling)
    if ceiling - floor <= _NO_ROOM:
        return success, returned, unknown(n)
    normalized = (mean - floor) / (ceiling - floor)
    room = draws[:, 2] - draws[:, 1]
    if room.min() <= _NO_ROOM:
        return success, returned, unknown(n, normalized)
    draws = (draws[:, 0] - draws[:, 1]) / room
    return success, returned, bootstrap(normalized, draws, clusters, n, 0.0, 1.0)


def _cluster_sums(rows: Sequence[Row]) -> Floats:
    """Return [K, 6] sums over the episodes of each cluster.

    The columns: episodes, episodes that have success, successes, return, floor,
    ceiling.
    """
    place: dict[str, int] = {}
    owner = [place.setdefault(row.cluster, len(place)) for row in rows]
    columns = np.array(
        [
            (1, row.success is not None, row.success is True)
            + (row.returned, row.floor, row.ceiling)
            for row in rows
        ],
        dtype=float,
    )
    sums = np.zeros((len(place), columns.shape[1]))
    np.add.at(sums, owner, columns)
    return sums


def _scaled(held: Interval, floor: float, ceiling: float) -> Estimate:
    """Return an interval of a return as one of the normalized score."""
    room = ceiling - floor
    if room <= _NO_ROOM or held.mean is None or held.low is None or held.high is None:
        return unknown(held.n)
    mean, low, high = ((x - floor) / room for x in (held.mean, held.low, held.high))
    return Estimate(interval=interval(mean, low, high, held.n))
