"""Summaries to one table over runs, as plain strings that any renderer can show."""

from collections.abc import Iterator, Mapping, Sequence

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
    for env_id, score in summary.envs.items():
        yield (label, env_id, *_values(score))
        if cells:
            for name, cell in summary.cells.items():
                if name.rpartition(":")[0] == env_id:
                    yield (label, name, *_values(cell))


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
