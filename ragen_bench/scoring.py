"""Episodes to a `Summary`: outcome counts, rates, returns and normalized scores.

Only a few numbers of each episode are kept, so a run may be larger than memory.

How a number comes about:

- A **cell** scores (R - F) / (C - F), where R, F and C are the means of return, floor
  and ceiling over the episodes that count; it is not clipped.  An **environment** is
  the mean of its cells, the **score** the mean over environments.  A mean over cells
  is unknown (None) as long as one of them is.
- ``provider_error`` and ``timeout`` are counted among the outcomes and enter nothing
  else but the run's token counts.  ``context_overflow`` and ``agent_error`` are
  failures: where the task has success they return 0, elsewhere what was collected.
- With repeats, cells and environments also have pass@k and pass^k for each k
  (`ragen_bench.passes`); a cell whose task has no success has none.  A cost is what
  the replies of the recorded episodes cost (`ragen_bench.prices`).
- Success rates have Wilson intervals with the design effect of repeats.  Where every
  return is the success itself (1 or 0), return and normalized score have that very
  interval, scaled by the cell's floor and ceiling; elsewhere they have one from a
  bootstrap over instances.  `ragen_bench.intervals` says how cells combine.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ragen_bench.cell_scores import Cell, Scored, means_of
from ragen_bench.errors import RecordError
from ragen_bench.intervals import Estimate, composite, rounded, weighted
from ragen_bench.passes import pass_at_k as pass_at_k
from ragen_bench.passes import pass_hat_k as pass_hat_k
from ragen_bench.prices import Tokens, cost
from ragen_bench.records import (
    OUTCOMES,
    UNSCORED,
    CellScore,
    Episode,
    Interval,
    Price,
    RunConfig,
    Summary,
)
from ragen_bench.run_folder import read_episodes, read_run

MAX_UNSCORED = 0.01
"""The greatest share of episodes that nobody played in a run that is ranked: of all
episodes, and of those of each cell."""


def score(folder: str | Path) -> Summary:
    """Return the summary of a run folder, computed from its episodes.

    Raises:
        RecordError: The folder holds no run, or a file of it cannot be read.
    """
    folder = Path(folder)
    record = read_run(folder)
    return summarise(record.config, read_episodes(folder), record.price)


def summarise(
    config: RunConfig, episodes: Iterable[Episode], price: Price | None = None
) -> Summary:
    """Return what a run scored; the order of the episodes does not matter.

    Args:
        config: The run, which says what was planned.
        episodes: Its finished episodes, read one at a time.
        price: What the model's replies cost, None if nobody said.

    Raises:
        RecordError: An episode was not planned, or comes twice.
    """
    cells = {plan.cell: Cell(plan, config) for plan in config.cells}
    for episode in episodes:
        cell = cells.get(episode.key.cell)
        if cell is None or not cell.add(episode):
            raise RecordError(
                f"episode {episode.key} was not planned by this run or comes twice"
            )
    planned = sum(cell.planned for cell in cells.values())
    outcomes: Counter[str] = Counter()
    for cell in cells.values():
        outcomes.update(cell.outcomes)
    owed = planned - outcomes.total()
    scored = {name: cells[name].score(price) for name in sorted(cells)}
    by_env: dict[str, list[Scored]] = {}
    for name, item in scored.items():
        by_env.setdefault(cells[name].env_id, []).append(item)
    total = composite(
        [
            (1 / (len(by_env) * len(items)), item.normalized)
            for items in by_env.values()
            for item in items
        ]
    )
    reasons = _faults(config, cells.values(), total)
    tokens = sum((cell.tokens for cell in cells.values()), Tokens())
    return Summary(
        board=config.board,
        agent_class=config.agent_class,
        agent=config.agent,
        model=config.model,
        complete=owed == 0,
        rankable=not reasons,
        unrankable_because=reasons,
        planned=planned,
        owed=owed,
        outcomes={name: outcomes[name] for name in OUTCOMES},
        score=total,
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cost=cost(tokens, price),
        currency=price.currency if price else None,
        price_date=price.date if price else None,
        envs={env_id: _env_score(items) for env_id, items in by_env.items()},
        cells={name: item.record for name, item in scored.items()},
    )


def _env_score(cells: Sequence[Scored]) -> CellScore:
    """Return the score of an environment.

    Success, return, normalized score, floor and ceiling are means over its cells;
    success is that of the cells whose task has it.  The other numbers are those of
    all its episodes together.
    """
    records = [cell.record for cell in cells]
    rows = [row for cell in cells for row in cell.rows]
    share = 1 / len(cells)
    asked = [c for c in cells if c.record.success.n or not c.record.normalized.n]
    rates = [cell.record.success for cell in asked]
    outcomes: Counter[str] = Counter()
    parses: Counter[str] = Counter()
    for record in records:
        outcomes.update(record.outcomes)
        parses.update(record.parses)
    means = means_of(rows)
    means["floor"] = rounded(weighted([(share, r.floor) for r in records]))
    means["ceiling"] = rounded(weighted([(share, r.ceiling) for r in records]))
    return CellScore(
        episodes=sum(record.episodes for record in records),
        success=composite([(1 / len(rates), Estimate(interval=r)) for r in rates]),
        episode_return=composite([(share, cell.returned) for cell in cells]),
        normalized=composite([(share, cell.normalized) for cell in cells]),
        parses=dict(sorted(parses.items())),
        outcomes={name: outcomes[name] for name in OUTCOMES},
        cost=rounded(weighted([(1.0, record.cost) for record in records])),
        pass_at_k=_env_passes([cell.passes.at for cell in asked]),
        pass_hat_k=_env_passes([cell.passes.hat for cell in asked]),
        **means,
    )


def _env_passes(cells: Sequence[Mapping[int, Estimate]]) -> dict[int, Interval]:
    """Return the means over cells of pass@k or pass^k, for each k that all have."""
    if not cells:
        return {}
    common = set.intersection(*(set(cell) for cell in cells))
    share = 1 / len(cells)
    return {k: composite([(share, cell[k]) for cell in cells]) for k in sorted(common)}


def _faults(
    config: RunConfig, cells: Iterable[Cell], total: Interval
) -> tuple[str, ...]:
    """Return why a run cannot be ranked."""
    reasons = []
    counts = {
        cell.name: (cell.planned, sum(cell.outcomes[name] for name in UNSCORED))
        for cell in cells
    }
    planned = sum(count for count, _ in counts.values())
    owed = planned - sum(cell.outcomes.total() for cell in cells)
    if config.board is None:
        reasons.append("no board")
    reasons.extend(config.breaches)
    if owed:
        reasons.append(f"{owed} of {planned} episodes owed")
    lost_of_all = sum(lost for _, lost in counts.values())
    if len(counts) == 1:
        counts.clear()
    counts["episodes"] = planned, lost_of_all
    for name, (count, lost) in reversed(counts.items()):
        # What is lost in one cell alone could be chosen to lift the score.
        if lost > MAX_UNSCORED * count:
            reasons.append(
                f"{100 * lost / count:.3g} % of {name} were nobody's play "
                f"(provider_error, timeout); at most {100 * MAX_UNSCORED:g} % may be"
            )
    if total.mean is None and not owed:
        reasons.append("no score: a cell has no episode that counts, or no room")
    return tuple(reasons)
