"""The table of a board as text, Markdown, CSV and JSON-able values."""

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from ragen_bench.intervals import interval
from ragen_bench.ranking.board_table import BoardTable, Bound, Row
from ragen_bench.records import Interval, Summary
from ragen_bench.registry import own_agent
from ragen_bench.tables import NOTHING, Table, interval_text, number_text, to_markdown
from ragen_bench.tables import to_text as aligned

_UNKNOWN = interval(None, None, None, 0)
_HEAD = ("entry", "class", "status", "rank", "score")
_ENDS = ("", "_low", "_high")


def to_table(found: BoardTable) -> Table:
    """Return a table of texts: ranked entries with floor and ceiling, then the others.

    Those that are not ranked have no rank; their reasons are `Row.reason`.
    """
    lines = [
        _bound_line(line) if isinstance(line, Bound) else _line(line, found.envs)
        for line in (*found.lines(), *found.below)
    ]
    return Table(columns=(*_HEAD, *found.envs), rows=tuple(lines))


def _line(row: Row, envs: Sequence[str]) -> tuple[str, ...]:
    return (
        row.name,
        _class_text(row.entry.summary),
        row.entry.status,
        NOTHING if row.rank is None else str(row.rank),
        interval_text(row.scores.score),
        *map(interval_text, _of_envs(row, envs)),
    )


def _is_declared(summary: Summary) -> bool:
    """Return whether nothing but the agent itself says its class."""
    return own_agent(summary.agent) is None


def _class_text(summary: Summary) -> str:
    declared = " (as declared)" if _is_declared(summary) else ""
    return f"{summary.agent_class}{declared}"


def _of_envs(row: Row, envs: Sequence[str]) -> list[Interval]:
    return [row.scores.envs.get(env, _UNKNOWN) for env in envs]


def _bound_line(bound: Bound) -> tuple[str, ...]:
    score = number_text(bound.score)
    cells = [
        score if returned is None else f"{score} (return {number_text(returned)})"
        for returned in bound.returns.values()
    ]
    return (bound.name, NOTHING, NOTHING, NOTHING, score, *cells)


def to_text(found: BoardTable, *, markdown: bool = False) -> str:
    """Return the board's title, its table, and why entries are not ranked."""
    board = found.board
    title = f"{board.name}, version {board.version}: {board.title}"
    table = to_table(found)
    write = to_markdown if markdown else aligned
    blocks = [f"**{title}**\n" if markdown else f"{title}\n"]
    blocks.append(write(table.rows, table.columns))
    if found.below:
        reasons = (f"- {row.name}: {row.reason}\n" for row in found.below)
        blocks += ["Not ranked:\n", "".join(reasons)]
    return "\n".join(blocks)


def to_csv(found: BoardTable) -> str:
    """Return the table as CSV, a line for each row of `to_table`.

    Numbers have all their digits, in columns of their own for means, ends of intervals
    and the best and worst rank.  What is unknown is empty; ``reason`` says why a row
    is not ranked.
    """
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    parts = [f"{name}{end}" for name in ("score", *found.envs) for end in _ENDS]
    ranks = ("best_rank", "worst_rank")
    out.writerow(("entry", "class", "declared", "status", *ranks, *parts, "reason"))
    for line in (*found.lines(), *found.below):
        if isinstance(line, Bound):
            out.writerow(_bound_numbers(line))
        else:
            out.writerow(_numbers(line, found.envs))
    return file.getvalue()


def _numbers(row: Row, envs: Sequence[str]) -> list[Any]:
    ranks = (None, None) if row.rank is None else row.rank
    values = [row.scores.score, *_of_envs(row, envs)]
    numbers = [number for one in values for number in (one.mean, one.low, one.high)]
    entry = row.entry
    head = [row.name, entry.summary.agent_class, _is_declared(entry.summary)]
    head += [entry.status, *ranks]
    return [*head, *numbers, row.reason]


def _bound_numbers(bound: Bound) -> list[Any]:
    scores = [bound.score, None, None] * (1 + len(bound.returns))
    return [bound.name, *[None] * 5, *scores, None]


def to_json(found: BoardTable) -> dict[str, Any]:
    """Return all that is known of a board's table, as JSON-able values."""
    board = found.board
    return {
        "board": board.name,
        "version": board.version,
        "title": board.title,
        "digest": board.digest,
        "envs": list(found.envs),
        "ceiling": _bound_json(found.ceiling),
        "floor": _bound_json(found.floor),
        "rows": [_row_json(row) for row in found.rows],
        "below": [_row_json(row) for row in found.below],
        "pairs": [
            {
                "first": one.first,
                "second": one.second,
                "gap": one.gap,
                "p": one.p,
                "holm_p": one.holm_p,
                "shared": one.shared,
                "winner": one.winner,
                "verdict": one.verdict,
            }
            for one in found.comparisons
        ],
    }


def _bound_json(bound: Bound) -> dict[str, Any]:
    return dataclasses.asdict(dataclasses.replace(bound, returns=dict(bound.returns)))


def _row_json(row: Row) -> dict[str, Any]:
    entry, parts = row.entry, row.scores
    return {
        "entry": row.name,
        "class": entry.summary.agent_class,
        "declared": _is_declared(entry.summary),
        "status": entry.status,
        "rank": None if row.rank is None else list(row.rank),
        "reason": row.reason,
        "agent": entry.summary.agent,
        "model": entry.summary.model,
        "organisation": entry.meta.organisation,
        "attempt": entry.meta.attempt,
        "warnings": list(entry.warnings),
        "score": parts.score.model_dump(),
        "envs": {name: one.model_dump() for name, one in parts.envs.items()},
        "levels": {str(n): one.model_dump() for n, one in parts.levels.items()},
        "cells": {name: one.model_dump() for name, one in parts.cells.items()},
        "episodes": parts.episodes,
    }
