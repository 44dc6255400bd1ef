"""What a folder of entries must hold, and whether their bundles confirm them.

``scripts/check_entries.py`` and the tests run it over all boards.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from ragen_bench.board import Board
from ragen_bench.entries import Entry, read_entry, shipped_folder, standing_of
from ragen_bench.errors import RagenError
from ragen_bench.records import CellPlan
from ragen_bench.sealing import sealed_plans
from ragen_bench.submission import entry_of, sha256_of_file
from ragen_bench.verifying import verify
from ragen_bench.verifying.comparing import differences

_MOST_BYTES = 16 << 20
_CLOSE = 1e-6
"""Relative: how far a mean may be from that of the rounded numbers beside it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What was found about the entries of one board."""

    faults: tuple[str, ...]
    verified: int
    """Entries whose bundle was played again."""
    outdated: int
    """Entries of other versions of the board, which are read and no more."""
    unverified: int
    """Entries whose bundle is not here."""
    confirmed: tuple[Path, ...] = ()
    """Entries without a fault."""


def check_board(
    board: Board,
    folder: Path | None = None,
    *,
    kept: Mapping[str, str] | None = None,
    bundles: Path | None = None,
    salt: str | None = None,
) -> Report:
    """Return what is wrong with the entries of a board, a line each.

    An entry needs its bundle, or a keeper's word that it was confirmed with it.

    Args:
        board: The board.
        folder: Holds its entries; by default those that ship with the project.
        kept: ``BOARD/FILE`` to the SHA-256 of an entry that a keeper confirmed.
        bundles: A folder of further bundles.
        salt: Of the board's seal, for its keepers.
    """
    folder = shipped_folder(board.name) if folder is None else folder
    kept = {} if kept is None else kept
    faults: list[str] = []
    entries: dict[Path, Entry] = {}
    for path in sorted(folder.glob("*.json")):
        if path.is_symlink() or not path.is_file():
            faults.append(f"{path.name}: is no plain file")
            continue
        if path.stat().st_size > _MOST_BYTES:
            faults.append(f"{path.name}: has more than {_MOST_BYTES} bytes")
            continue
        try:
            entries[path] = read_entry(path)
        except RagenError as error:
            faults.append(f"{path.name}: {error}")
    faults += _strangers(folder)
    faults += _names(entries)
    faults += _copies(entries)
    counts = {"verified": 0, "outdated": 0, "unverified": 0}
    confirmed: list[Path] = []
    for path, entry in entries.items():
        if entry.board != board.name:
            faults.append(
                f"{path.name}: is of board {entry.board!r}, but lies among the entries "
                f"of {board.name!r}; move it"
            )
        elif standing_of(entry, board) == "outdated":
            counts["outdated"] += 1
            faults += [f"{path.name}: {fault}" for fault in _of_numbers(entry)]
        else:
            found = [*_of_board(entry, board), *_of_numbers(entry)]
            is_kept = kept.get(f"{board.name}/{path.name}") == sha256_of_file(path)
            bundle = None if found else _bundle_of(entry, path, bundles)
            if bundle is not None:
                counts["verified"] += 1
                found += _of_bundle(entry, bundle, board, path.parent, salt)
            else:
                counts["unverified"] += 1
                if not is_kept and not found:
                    found.append(
                        f"{entry.bundle} is not here, and no keeper has confirmed this "
                        "file with it; put the bundle beside it"
                    )
            claims = entry.status == "sealed" and entry.sealed is not None
            if claims and not (is_kept or salt):
                found.append("only the board's keepers may give the status sealed")
            faults += [f"{path.name}: {fault}" for fault in found]
            if not found:
                confirmed.append(path)
    return Report(faults=tuple(faults), confirmed=tuple(confirmed), **counts)


def _bundle_of(entry: Entry, path: Path, bundles: Path | None) -> Path | None:
    """Return where the bundle of an entry lies, None if it is nowhere."""
    places = [path.parent] + ([bundles] if bundles else [])
    found = (place / entry.bundle for place in places)
    return next((bundle for bundle in found if bundle.is_file()), None)


def _copies(entries: Mapping[Path, Entry]) -> Iterator[str]:
    """Yield which entries have the very episodes of another one."""
    taken: dict[str, Path] = {}
    for path, entry in entries.items():
        other = taken.setdefault(entry.episodes_sha256, path)
        if other != path:
            yield f"{path.name}: has the episodes of {other.name}; remove one"


def _strangers(folder: Path) -> Iterator[str]:
    """Yield the files that are neither an entry nor the bundle of one."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        known = path.suffix == ".json" or (
            path.suffix == ".zip" and path.with_suffix(".json").is_file()
        )
        if not known or not path.is_file():
            yield f"{path.name}: is neither an entry nor the bundle of one; remove it"


def _names(entries: Mapping[Path, Entry]) -> Iterator[str]:
    taken: dict[str, Path] = {}
    for path, entry in entries.items():
        name = entry.meta.name
        if path.stem != name:
            yield (
                f"{path.name}: has the name {name!r}, but a file must be named like "
                f"its entry: {name}.json"
            )
        other = taken.setdefault(name.casefold(), path)
        if other != path:
            yield f"{path.name}: has the name of {other.name}, case apart; rename one"


def _of_board(entry: Entry, board: Board) -> Iterator[str]:
    """Yield in which ways an entry is not one of the board as it stands."""
    if entry.board_version != board.version:
        yield (
            f"is of version {entry.board_version}, but the board is at {board.version}"
        )
    if entry.board_digest != board.digest:
        yield (
            f"has the board digest {entry.board_digest}, but version {board.version} "
            f"has {board.digest}"
        )
    if entry.bundle != f"{entry.meta.name}.zip":
        yield f"names the bundle {entry.bundle!r}, but must name {entry.meta.name}.zip"
    if entry.settings["repeats"] != board.repeats:
        yield (
            f"has {entry.settings['repeats']} repeats, but the board {board.repeats}"
        )
    if not entry.summary.rankable:
        yield f"is not rankable: {'; '.join(entry.summary.unrankable_because)}"
    if entry.status == "sealed" and entry.sealed is None:
        yield "has the status sealed, but no seal"
    plans = _plans(entry, board)
    if plans is None:
        return
    wanted = {plan.cell: len(plan.seeds) * board.repeats for plan in plans}
    for name in ("returns", "successes"):
        held = {cell: len(values) for cell, values in getattr(entry, name).items()}
        if held != wanted:
            yield f"{name} have other cells or episodes than the board"
    if set(entry.summary.cells) != set(wanted):
        yield "the summary has other cells than the board"


def _plans(entry: Entry, board: Board) -> tuple[CellPlan, ...] | None:
    """Return the cells of an entry's seeds, None if only the keepers know them."""
    if entry.sealed is None:
        return board.plans()
    if board.seal is None or board.seal.salt is None:
        return None
    return sealed_plans(board, board.seal.salt)


def _of_numbers(entry: Entry) -> Iterator[str]:
    """Yield which numbers do not follow from the entry's own returns."""
    normalized: dict[str, list[float]] = {}
    for cell, score in entry.summary.cells.items():
        played = [r for r in entry.returns.get(cell, ()) if r is not None]
        won = [float(s) for s in entry.successes.get(cell, ()) if s is not None]
        for name, values in (("episode_return", played), ("success", won)):
            told = getattr(score, name).mean
            mean = sum(values) / len(values) if values else None
            if not _same(told, mean):
                yield f"{cell}: {name} is {told}, but its episodes give {mean}"
        if not played or score.floor is None or score.ceiling is None:
            continue
        room = score.ceiling - score.floor
        mean = (sum(played) / len(played) - score.floor) / room if room else None
        # Floor and ceiling are rounded, which a small room makes large.
        if not _same(score.normalized.mean, mean, _CLOSE * max(1, 4 / (room or 1))):
            yield (
                f"{cell}: normalized is {score.normalized.mean}, but its returns, "
                f"floor and ceiling give {mean}"
            )
        elif score.normalized.mean is not None:
            env_id = cell.rpartition(":")[0]
            normalized.setdefault(env_id, []).append(score.normalized.mean)
    if normalized:
        means_of = [sum(cells) / len(cells) for cells in normalized.values()]
        total = sum(means_of) / len(means_of)
        if not _same(entry.summary.score.mean, total):
            yield f"score is {entry.summary.score.mean}, but its cells give {total}"


def _of_bundle(
    entry: Entry, bundle: Path, board: Board, folder: Path, secret: str | None
) -> Iterator[str]:
    """Yield what a replay of the bundle tells against the entry."""
    salt = None
    if entry.sealed is not None:
        told = board.seal.salt if board.seal else None
        salt = told or (secret if bundle.parent != folder else None)
    if entry.sealed is not None and salt is None:
        yield (
            f"{bundle.name} shows sealed seeds; take it away until the salt is revealed"
        )
        return
    found = sha256_of_file(bundle)
    if found != entry.bundle_sha256:
        yield f"{bundle.name} has SHA-256 {found}, but must have {entry.bundle_sha256}"
        return
    checked = verify(bundle, board=board, salt=salt)
    if checked.faults:
        yield from (f"{bundle.name}: {fault}" for fault in checked.faults)
        return
    # Who submitted it is nothing that a bundle tells.
    made = entry_of(checked, bundle, board, entry.status)
    found_now = made.model_dump(mode="json")
    for place, _, _ in differences(entry.model_dump(mode="json"), found_now)[:1]:
        yield f"{place} is not what submit would write now; submit the run again"


def _same(one: object, other: object, close: float = _CLOSE) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=close)
    return bool(one == other)
