"""The table of a board: entries by score with rank ranges, floor and ceiling."""

import dataclasses
import importlib.resources
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ragen_bench.agent import AgentClass
from ragen_bench.board import Board
from ragen_bench.entries import Entry, read_entry
from ragen_bench.errors import RecordError
from ragen_bench.intervals import interval
from ragen_bench.ranking.comparisons import Comparison, compare, pairs
from ragen_bench.ranking.played import of_entry
from ragen_bench.ranking.ranks import RankRange, rank_ranges
from ragen_bench.ranking.scores import Scores, scores
from ragen_bench.records import Interval
from ragen_bench.tables import NOTHING, Table, interval_text, number_text

_FOLDER = "ragen_bench.leaderboards"
_ENTRIES = "entries"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One entry in the table."""

    entry: Entry
    rank: RankRange | None
    """None where it is not ranked."""
    reason: str
    """Why it is not ranked, empty where it is."""
    scores: Scores

    @property
    def name(self) -> str:
        """The entry's name."""
        return self.entry.meta.name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The floor or the ceiling: its normalized score is 0 or 1 by definition."""

    name: str
    score: float
    returns: Mapping[str, float | None]
    """Environment to mean return, None while no entry has told it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BoardTable:
    """All that there is to show of a board."""

    board: Board
    envs: tuple[str, ...]
    ceiling: Bound
    rows: tuple[Row, ...]
    """Ranked entries, best score first."""
    floor: Bound
    below: tuple[Row, ...]
    """Entries that are not ranked: incomplete, unrankable or of another version."""
    comparisons: tuple[Comparison, ...]
    """Every two of the ranked entries."""


def board_table(
    board: Board,
    entries: Sequence[Entry],
    *,
    classes: Collection[AgentClass] = (),
    intervals: bool = False,
) -> BoardTable:
    """Return the table of a board.

    Args:
        board: The board as it is now.
        entries: Its entries, of any version.
        classes: Those to show, which are ranked among themselves; empty for all.
        intervals: Whether comparisons get intervals, which takes longer.

    Raises:
        RecordError: An entry is of another board, does not fit it, or comes twice.
    """
    _check(board, entries)
    shown = [e for e in entries if not classes or e.summary.agent_class in classes]
    faults = {entry.meta.name: _why_not(board, entry) for entry in shown}
    ranked = [of_entry(e, board) for e in shown if not faults[e.meta.name]]
    found = compare(pairs(ranked), intervals=intervals)
    ranks = rank_ranges([one.label for one in ranked], found)
    rows = [
        Row(
            entry=entry,
            rank=ranks.get(entry.meta.name),
            reason=faults[entry.meta.name],
            scores=scores(of_entry(entry, board)),
        )
        for entry in sorted(shown, key=_order)
    ]
    envs = tuple(dict.fromkeys(cell.env_id for cell in board.cells))
    current = [entry for entry in entries if entry.board_digest == board.digest]
    return BoardTable(
        board=board,
        envs=envs,
        ceiling=_bound("ceiling", 1.0, envs, current),
        rows=tuple(row for row in rows if row.rank is not None),
        floor=_bound("floor", 0.0, envs, current),
        below=tuple(row for row in rows if row.rank is None),
        comparisons=tuple(found),
    )


def _check(board: Board, entries: Iterable[Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        name = entry.meta.name
        if entry.board != board.name:
            raise RecordError(
                f"entry {name!r} is of board {entry.board!r}, but must be of "
                f"{board.name!r}; move its file to the entries of its board"
            )
        if name in seen:
            raise RecordError(
                f"entry {name!r} comes twice on board {board.name!r}, but names must "
                "differ; rename one"
            )
        seen.add(name)


def _why_not(board: Board, entry: Entry) -> str:
    """Return why an entry is not ranked, empty if it is."""
    if entry.board_version != board.version:
        return (
            f"played version {entry.board_version} of the board, which is "
            f"{board.version} now"
        )
    if entry.board_digest != board.digest:
        return "played another list of episodes than the board's"
    summary = entry.summary
    if not summary.complete or not summary.rankable or summary.score.mean is None:
        return "; ".join(summary.unrankable_because) or "no score"
    return ""


def _order(entry: Entry) -> tuple[float, str]:
    mean = entry.summary.score.mean
    return (float("inf") if mean is None else -mean, entry.meta.name)


def _bound(
    name: str, score: float, envs: Sequence[str], entries: Sequence[Entry]
) -> Bound:
    """Return a bound; its returns are those of the first entry that knows them."""
    returns: dict[str, float | None] = dict.fromkeys(envs)
    for entry in entries:
        for env_id, found in entry.summary.envs.items():
            if env_id in returns and returns[env_id] is None and not entry.sealed:
                returns[env_id] = getattr(found, name)
    return Bound(name=name, score=score, returns=returns)


def to_table(found: BoardTable) -> Table:
    """Return a table of texts: ceiling, ranked entries, floor, and those below.

    Below the floor's row stand the entries that are not ranked, without a rank; their
    reasons are `Row.reason`.
    """
    columns = ("entry", "class", "rank", "score", *found.envs)
    lines = [_bound_line(found.ceiling)]
    lines += [_line(row, found.envs) for row in found.rows]
    lines.append(_bound_line(found.floor))
    lines += [_line(row, found.envs) for row in found.below]
    return Table(columns=columns, rows=tuple(lines))


def _line(row: Row, envs: Sequence[str]) -> tuple[str, ...]:
    unknown = interval(None, None, None, 0)
    values: list[Interval] = [row.scores.envs.get(env, unknown) for env in envs]
    return (
        row.name,
        row.entry.summary.agent_class,
        NOTHING if row.rank is None else str(row.rank),
        interval_text(row.scores.score),
        *map(interval_text, values),
    )


def _bound_line(bound: Bound) -> tuple[str, ...]:
    score = number_text(bound.score)
    cells = [
        score if returned is None else f"{score} (return {number_text(returned)})"
        for returned in bound.returns.values()
    ]
    return (bound.name, NOTHING, NOTHING, score, *cells)


def read_entries(board: str, folder: Path | None = None) -> list[Entry]:
    """Return the entries of a board, in the order of their file names.

    Args:
        board: Its name.
        folder: Holds a folder of JSON files for each board; by default that of the
            entries which ship with the project.

    Raises:
        RecordError: A file cannot be read.
    """
    root = folder or Path(str(importlib.resources.files(_FOLDER) / _ENTRIES))
    return [read_entry(path) for path in sorted((root / board).glob("*.json"))]
