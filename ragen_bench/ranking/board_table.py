"""The table of a board: entries by score with rank ranges, floor and ceiling."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from ragen_bench.agent import AgentClass
from ragen_bench.board import Board
from ragen_bench.entries import Entry, why_not_current
from ragen_bench.errors import RecordError
from ragen_bench.ranking.comparisons import Comparison, compare, pairs
from ragen_bench.ranking.played import of_entry
from ragen_bench.ranking.ranks import RankRange, rank_ranges
from ragen_bench.ranking.scores import Scores, scores


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
    """Entries that are not ranked: incomplete, unrankable, or of other
    episodes than the board's own."""
    comparisons: tuple[Comparison, ...]
    """Every two of the ranked entries."""

    def lines(self) -> "list[Row | Bound]":
        """Return ranked entries and bounds together, best score first."""
        found: list[tuple[float, Row | Bound]] = [(1.0, self.ceiling)]
        found += [(row.scores.score.mean or 0.0, row) for row in self.rows]
        found.append((0.0, self.floor))
        found.sort(key=lambda line: line[0], reverse=True)  # keeps the order of equals
        return [line for _, line in found]


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
    if reason := why_not_current(entry, board):
        return reason
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
