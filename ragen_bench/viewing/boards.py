"""Rows of the boards: entries and runs in order, with what cannot be ranked apart."""

import dataclasses
import importlib.resources
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.board import load, names
from ragen_bench.entries import Entry, read_entry, why_not_current
from ragen_bench.errors import RagenError, RecordError
from ragen_bench.ranking import ranks
from ragen_bench.ranking.comparisons import compare, pairs
from ragen_bench.ranking.played import Played
from ragen_bench.records import Summary
from ragen_bench.viewing import facts

ENTRIES = "entries"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a board."""

    slug: str
    label: str
    board: str | None
    played: Played
    """Labelled by the slug."""
    entry: Entry | None
    """None for a run that nobody submitted."""
    episodes: int
    """How many transcripts the site holds."""

    @property
    def summary(self) -> Summary:
        """What it scored."""
        return self.played.summary

    @property
    def unranked_because(self) -> tuple[str, ...]:
        """Why its board cannot rank it; empty if it can."""
        if not self.summary.rankable:
            return self.summary.unrankable_because or ("not rankable",)
        if self.entry is None:
            return ()
        try:
            board = load(self.entry.board)
        except RagenError:  # a board that this installation does not know
            return ()
        why_not = why_not_current(self.entry, board)
        return (why_not,) if why_not else ()


def entries_folder() -> Path:
    """Return the folder of the entries that ship with the project."""
    return Path(str(importlib.resources.files("ragen_bench.leaderboards"))) / ENTRIES


def entry_files(folder: Path) -> list[Path]:
    """Return the files of entries, ``BOARD/NAME.json`` below a folder, sorted."""
    return sorted(folder.glob("*/*.json"))


def read_entries(folder: Path) -> list[tuple[Path, Entry]]:
    """Return the entries below a folder and their files.

    Raises:
        RecordError: A file is no entry, or lies in the folder of another board.
    """
    found = []
    for path in entry_files(folder):
        entry = read_entry(path)
        if entry.board != path.parent.name or entry.meta.name != path.stem:
            raise RecordError(
                f"entry {str(path)!r} is {entry.meta.name!r} of board {entry.board!r}; "
                f"it must lie in {entry.board}/{entry.meta.name}.json"
            )
        found.append((path, entry))
    return found


def tables(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the boards with their rows, runs of no board last.

    A board of which there is a row is shown; without any row, all that ship are.
    """
    asked: dict[str | None, list[Row]] = {name: [] for name in names()}
    for row in rows:
        asked.setdefault(row.board, []).append(row)
    shown = [name for name in asked if asked[name]] or list(asked)
    shown.sort(key=lambda name: (name is None, name or ""))
    return [_table(name, asked[name]) for name in shown]


def _table(name: str | None, rows: Sequence[Row]) -> dict[str, Any]:
    ranked = [row for row in rows if not row.unranked_because]
    others = [row for row in rows if row.unranked_because]
    # Whoever builds a site must not move the ranks of what was submitted.
    entries = [row for row in ranked if row.entry is not None]
    ranges = rank_ranges(entries or ranked)
    return {
        **_about(name),
        "floors": _reference_lines(rows),
        "ranked": [_row(row, ranges.get(row.slug)) for row in _by_score(ranked)],
        "others": [_row(row, None) for row in _by_score(others)],
    }


def _about(name: str | None) -> dict[str, Any]:
    if name is None:
        return {"name": "", "title": "Runs of no board"}
    try:
        board = load(name)
    except RagenError:  # a board of another version of ragen-bench
        return {"name": name, "title": ""}
    return {
        "name": name,
        "title": board.title,
        "version": board.version,
        "digest": board.digest,
        "split": board.split,
        "repeats": board.repeats,
        "planned": sum(len(plan.seeds) for plan in board.plans()) * board.repeats,
    }


def _by_score(rows: Iterable[Row]) -> list[Row]:
    """Return rows from the best score to the worst, unknown ones last."""

    def place(row: Row) -> tuple[bool, float, str]:
        mean = row.summary.score.mean
        return mean is None, -(mean or 0.0), row.slug

    return sorted(rows, key=place)


def rank_ranges(rows: Sequence[Row]) -> Mapping[str, tuple[int, int]]:
    """Return slug to the best and the worst rank that a row may have among these."""
    found = compare(pairs([row.played for row in rows]), intervals=False)
    return dict(ranks.rank_ranges([row.slug for row in rows], found))


def _reference_lines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return floor and ceiling of each environment and cell, the means of returns.

    All complete runs of a board have the same; the first one that knows them tells.
    """
    known: dict[str, dict[str, Any]] = {}
    for row in _by_score(rows):
        for name, part in [*row.summary.envs.items(), *row.summary.cells.items()]:
            if part.floor is not None and part.ceiling is not None:
                known.setdefault(
                    name, {"name": name, "floor": part.floor, "ceiling": part.ceiling}
                )
    return [known[name] for name in sorted(known)]


def _row(row: Row, places: tuple[int, int] | None) -> dict[str, Any]:
    entry = row.entry
    return {
        "slug": row.slug,
        "label": row.label,
        **facts.standing(row.summary),
        "rankable": not row.unranked_because,
        "because": list(row.unranked_because),
        "ranks": list(places) if places else None,
        "status": entry.status if entry else "run",
        "by": entry.meta.organisation if entry else "",
        "warnings": len(entry.warnings) if entry else 0,
        "episodes": row.episodes,
    }
