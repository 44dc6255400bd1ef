"""Summaries to one table over runs, as plain strings that any renderer can show."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from ragen_bench.errors import InvalidSpec
from ragen_bench.prices import money
from ragen_bench.records import CellScore, Interval, Summary

COLUMNS = (
    "run",
    "cell",
    "n",
    "success",
    "normalized",
    "return",
    "floor",
    "ceiling",
    "invalid",
    "turns",
    "tokens",
)
"""The header of `rows`."""

NOTHING = "-"
"""What stands for an unknown value."""

_LEFT = 2
"""Columns of names; all others hold numbers and are aligned to the right."""


def rows(
    runs: Mapping[str, Summary], *, cells: bool = True
) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a table over runs, one value for each of `COLUMNS`.

    Each run has a row ``all``, which holds its score, then one for every
    environment, each followed by those of its cells.

    Args:
        runs: Label to summary, in the order of the table.
        cells: Whether to list cells, too.
    """
    return tuple(
        row for label, summary in runs.items() for row in _of_run(label, summary, cells)
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A header and its rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table(
    runs: Mapping[str, Summary], *, cells: bool = True, pass_at: Sequence[int] = ()
) -> Table:
    """Return `rows` with further columns where there is something to show.

    A run whose model has a price gets its cost; each k of ``pass_at`` gets pass@k
    and pass^k.

    Args:
        runs: Label to summary, in the order of the table.
        cells: Whether to list cells, too.
        pass_at: Numbers of tries.

    Raises:
        InvalidSpec: A run has no instance with so many tries that count.
    """
    for label, summary in runs.items():
        _check_tries(label, summary, pass_at)
    columns = list(COLUMNS)
    lines = [list(row) for row in rows(runs, cells=cells)]
    scores = [score for summary in runs.values() for score in _scores(summary, cells)]
    if any(summary.cost is not None for summary in runs.values()):
        columns.append("cost")
        costs = [money for run in runs.values() for money in _costs(run, cells)]
        for line, cost in zip(lines, costs, strict=True):
            line.append(cost)
    for k in pass_at:
        columns += [f"pass@{k}", f"pass^{k}"]
        for line, score in zip(lines, scores, strict=True):
            line += _passes(score, k)
    return Table(columns=tuple(columns), rows=tuple(map(tuple, lines)))


def _scores(summary: Summary, cells: bool) -> list[CellScore | None]:
    """Return what each row of a run shows, None for the row of the whole run."""
    return [None, *(score for _, score in _parts(summary, cells))]


def _costs(summary: Summary, cells: bool) -> Iterator[str]:
    for score in _scores(summary, cells):
        cost = summary.cost if score is None else score.cost
        known = cost is not None and summary.currency is not None
        yield money(cost, summary.currency or "") if known else NOTHING


def _passes(score: CellScore | None, k: int) -> list[str]:
    if score is None:
        return [NOTHING, NOTHING]
    both = (score.pass_at_k.get(k), score.pass_hat_k.get(k))
    return [interval_text(chance) if chance else NOTHING for chance in both]


def _check_tries(label: str, summary: Summary, pass_at: Sequence[int]) -> None:
    most = max((k for s in summary.cells.values() for k in s.pass_at_k), default=1)
    for k in pass_at:
        if k > most:
            raise InvalidSpec(
                f"pass@{k} needs {k} tries of an instance, but {label!r} has {most} "
                "that count; play more --repeats, or ask for fewer"
            )


def to_markdown(
    table: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS
) -> str:
    """Return a table as GitHub-flavoured Markdown, ended by a newline."""
    rule = ["---" if i < _LEFT else "---:" for i in range(len(columns))]
    lines = [columns, rule, *table]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n"
        for line in lines
    )


def to_text(table: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> str:
    """Return a table as aligned plain text, ended by a newline."""
    lines = [columns, *table]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(f"{_aligned(line, widths)}\n" for line in lines)


def interval_text(interval: Interval) -> str:
    """Return such as ``"0.53 [0.41, 0.65]"``, ``"-"`` for an unknown mean."""
    mean = number_text(interval.mean)
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} [{interval.low:z.2f}, {interval.high:z.2f}]"


def number_text(value: float | None, digits: int = 2) -> str:
    """Return a number with so many decimals, ``"-"`` for an unknown one."""
    return NOTHING if value is None else f"{value:z.{digits}f}"


def _of_run(label: str, summary: Summary, cells: bool) -> Iterator[tuple[str, ...]]:
    played = str(summary.planned - summary.owed)
    blank = [NOTHING] * (len(COLUMNS) - 5)
    yield (label, "all", played, NOTHING, interval_text(summary.score), *blank)
    for name, score in _parts(summary, cells):
        yield (label, name, *_values(score))


def _parts(summary: Summary, cells: bool) -> Iterator[tuple[str, CellScore]]:
    """Yield each environment of a run, followed by its cells."""
    for env_id, score in summary.envs.items():
        yield env_id, score
        if cells:
            for name, cell in summary.cells.items():
                if name.rpartition(":")[0] == env_id:
                    yield name, cell


def _values(score: CellScore) -> tuple[str, ...]:
    return (
        str(score.episodes),
        interval_text(score.success),
        interval_text(score.normalized),
        interval_text(score.episode_return),
        number_text(score.floor),
        number_text(score.ceiling),
        number_text(score.invalid_rate),
        number_text(score.turns, 1),
        number_text(score.tokens, 1),
    )


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if i < _LEFT else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
