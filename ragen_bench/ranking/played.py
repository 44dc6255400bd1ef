"""`Played`: what an agent got on which instance, from a run folder or an entry.

An episode is known by its seed and rep.  Where an agent did not play, or nobody did
(``provider_error``, ``timeout``), the key is missing; nothing is told by position.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ragen_bench.board import Board, load
from ragen_bench.cell_scores import scored_values
from ragen_bench.entries import Entry, read_entry
from ragen_bench.errors import InvalidSpec, RagenError, RecordError
from ragen_bench.intervals import Floats
from ragen_bench.records import CellPlan, Episode, RunRecord, Summary
from ragen_bench.run_folder import read_episodes, read_run
from ragen_bench.scoring import summarise
from ragen_bench.wording import counted

Key: TypeAlias = tuple[int, int]
"""Seed and rep."""

OPEN = "open seeds"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellResults:
    """The episodes of one cell that count, in the order of their keys."""

    keys: tuple[Key, ...]
    success: Floats
    """[N], 1 or 0, NaN where the task has no success."""
    returned: Floats
    """[N], scored return."""
    floor: Floats
    """[N], of each instance; of an entry, the mean over the cell."""
    ceiling: Floats
    instances: tuple[str, ...] | None = None
    """[N], digests; None where only the seeds are known."""

    def take(self, places: Sequence[int]) -> "CellResults":
        """Return the episodes at some places."""
        index = np.asarray(places, dtype=np.intp)
        names = self.instances
        return CellResults(
            keys=tuple(self.keys[i] for i in places),
            success=self.success[index],
            returned=self.returned[index],
            floor=self.floor[index],
            ceiling=self.ceiling[index],
            instances=None if names is None else tuple(names[i] for i in places),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """One agent's results."""

    label: str
    summary: Summary
    cells: Mapping[str, CellResults]
    """Cell, such as ``"ragen/Bandit-v0:1"``, to its results."""
    rules: Mapping[str, Any]
    """``split`` and ``env_args``: what else fixes the task."""
    seeds_from: str = OPEN
    """Which list the seeds stand for; seeds of different lists are never paired."""
    entry: Entry | None = None

    def size(self) -> int:
        """Return how many episodes count."""
        return sum(len(cell.keys) for cell in self.cells.values())


def read_played(path: str | Path) -> Played:
    """Return the results of a run folder, or of an entry's JSON file.

    Raises:
        RecordError: It is neither, or cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return of_folder(path)
    if path.suffix == ".json":
        return of_entry(read_entry(path))
    raise RecordError(
        f"{str(path)!r} is neither a run folder nor an entry (a file that ends in "
        ".json)"
    )


def of_folder(folder: Path, label: str | None = None) -> Played:
    """Return the results of a run folder.

    Args:
        folder: Of the run.
        label: Its name in tables, the path by default.

    Raises:
        RecordError: The folder holds no run, or a file of it cannot be read.
    """
    record = read_run(folder)
    return of_run(record, read_episodes(folder), label or str(folder))


def of_run(record: RunRecord, episodes: Iterable[Episode], label: str) -> Played:
    """Return the results of a run, whose episodes are read once.

    Raises:
        RecordError: An episode was not planned, or comes twice.
    """
    rows: dict[str, list[_Row]] = {plan.cell: [] for plan in record.config.cells}
    summary = summarise(record.config, _noted(episodes, rows), record.price)
    cells = {name: _cell(found) for name, found in rows.items()}
    config = record.config
    return Played(
        label=label,
        summary=summary,
        cells=cells,
        rules={"split": config.split, "env_args": dict(config.env_args)},
    )


_Row: TypeAlias = tuple[Key, float, float, float, float, str]


def _noted(
    episodes: Iterable[Episode], rows: Mapping[str, list[_Row]]
) -> Iterator[Episode]:
    """Yield episodes, noting those that count."""
    for episode in episodes:
        found = rows.get(episode.key.cell)
        if episode.scored and found is not None:
            success, returned = scored_values(episode)
            solved = np.nan if success is None else float(success)
            key = (episode.seed, episode.rep)
            bounds = (episode.floor, episode.ceiling)
            found.append((key, solved, returned, *bounds, episode.instance))
        yield episode


def _cell(rows: list[_Row]) -> CellResults:
    rows.sort()
    numbers = np.array([row[1:5] for row in rows], dtype=float).reshape(-1, 4)
    return CellResults(
        keys=tuple(row[0] for row in rows),
        success=numbers[:, 0],
        returned=numbers[:, 1],
        floor=numbers[:, 2],
        ceiling=numbers[:, 3],
        instances=tuple(row[5] for row in rows),
    )


def of_entry(entry: Entry, board: Board | None = None) -> Played:
    """Return the results of an entry.

    Args:
        entry: One row of a board.
        board: The board; found by its name if None.

    Raises:
        RecordError: The entry has not as many results as episodes.
    """
    board = board or _board_of(entry)
    current = board is not None and board.digest == entry.board_digest
    plans: Sequence[CellPlan] = board.plans() if board and current else ()
    known = {plan.cell: plan.seeds for plan in plans}
    source = OPEN if current else f"{entry.board} version {entry.board_version}"
    if entry.sealed is not None:
        # The seeds are not told: the entry's order stands for them.
        known, source = {}, f"seal {entry.sealed}"
    repeats = int(entry.settings.get("repeats", 1))
    cells = {}
    for name, returns in entry.returns.items():
        seeds = known.get(name, range(len(returns) // repeats))
        cells[name] = _entry_cell(entry, name, seeds, repeats)
    return Played(
        label=entry.meta.name,
        summary=entry.summary,
        cells=cells,
        rules={
            "split": board.split if board else "test",
            "env_args": dict(board.env_args) if board else {},
        },
        seeds_from=source,
        entry=entry,
    )


def _board_of(entry: Entry) -> Board | None:
    try:
        return load(entry.board)
    except RagenError:  # a board that this installation does not know
        return None


def _entry_cell(
    entry: Entry, name: str, seeds: Sequence[int], repeats: int
) -> CellResults:
    returns, successes = entry.returns[name], entry.successes.get(name, ())
    keys = [(seed, rep) for seed in sorted(seeds) for rep in range(repeats)]
    if not len(keys) == len(returns) == len(successes):
        raise RecordError(
            f"entry {entry.meta.name!r} has {counted(len(returns), 'return')} and "
            f"{counted(len(successes), 'success', 'successes')} in {name}, but the "
            f"board has {counted(len(keys), 'episode')} there; verify the entry's "
            "bundle"
        )
    places = [i for i, value in enumerate(returns) if value is not None]
    score = entry.summary.cells[name]
    numbers = np.array([np.nan if x is None else x for x in returns], dtype=float)
    solved = np.array([np.nan if x is None else x for x in successes], dtype=float)
    bounds = (score.floor, score.ceiling)
    floor, ceiling = (np.nan if bound is None else bound for bound in bounds)
    return CellResults(
        keys=tuple(keys),
        success=solved,
        returned=numbers,
        floor=np.full(len(keys), floor),
        ceiling=np.full(len(keys), ceiling),
    ).take(places)


def distinct(played: Sequence[Played]) -> None:
    """Refuse two results of one label.

    Raises:
        InvalidSpec: There are two.
    """
    labels = [one.label for one in played]
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidSpec(
                f"{label!r} comes twice, but must be told from the others; leave one "
                "out"
            )
