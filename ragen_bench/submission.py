"""From a run folder to a bundle and its entry, and what stands in the way.

`ragen_bench.bundle_writing` says what a bundle holds.  Every number of the entry comes
from a replay of it.
"""

import dataclasses
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ragen_bench.board import Board
from ragen_bench.bundle_writing import write_bundle
from ragen_bench.entries import (
    EPISODES_MEMBER,
    META_MEMBER,
    SETTINGS,
    Entry,
    Meta,
    Status,
    sha256_of_stream,
)
from ragen_bench.errors import InvalidSpec, RecordError, RunIncomplete
from ragen_bench.records import CellPlan, RunConfig
from ragen_bench.run_folder import read_episodes, read_run, write_json
from ragen_bench.scoring import summarise
from ragen_bench.sealing import sealed_plans
from ragen_bench.verifying import Fault, Verification, verify

Kind: TypeAlias = Literal["wrong", "incomplete", "unrankable"]


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason why a run cannot be submitted to a board."""

    kind: Kind
    message: str
    """What it is, and the way out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
    """What `submit` made; nothing was written if there are faults."""

    faults: tuple[Fault, ...]
    warnings: tuple[Fault, ...]
    entry: Entry | None


def obstacles(
    folder: Path, board: Board, salt: str | None = None
) -> tuple[Obstacle, ...]:
    """Return everything that stands between a run folder and a board.

    Args:
        folder: The run.
        board: The board that it is meant for.
        salt: The salt of the board's seal, from whoever keeps it.

    Raises:
        RecordError: The folder holds no run, or a file of it cannot be read.
        InvalidSpec: The salt is not the one of the seal.
    """
    config = read_run(folder).config
    found = list(_of_another(config, board))
    if not found:
        found += _of_seeds(config, board, salt)
        plans = _plans(config, board, salt)
        found += [
            Obstacle(
                "unrankable",
                f"{breach}; play it again with the board's settings: ragen-bench run "
                f"--board {board.name}",
            )
            for breach in board.breaches(config, plans)
        ]
    # Whether it is the board's was just asked.
    neutral = config.model_copy(update={"board": board.name, "breaches": ()})
    summary = summarise(neutral, read_episodes(folder))
    reasons = list(summary.unrankable_because)
    if summary.owed:
        found.append(
            Obstacle(
                "incomplete",
                f"{reasons.pop(0)}; the command that began the run goes on with them",
            )
        )
    found += [
        Obstacle(
            "unrankable",
            f"{reason}; the command that began the run plays what nobody played with "
            "--retry-errors",
        )
        for reason in reasons
    ]
    return tuple(found)


def _of_another(config: RunConfig, board: Board) -> Iterator[Obstacle]:
    """Yield what shows that a run was never meant for a board as it stands."""
    again = f"ragen-bench run --board {board.name}"
    if config.board is None:
        yield Obstacle("wrong", f"the run is of no board; play one: {again}")
    elif config.board != board.name:
        yield Obstacle(
            "wrong",
            f"the run is of board {config.board!r}, but --board is {board.name!r}; "
            f"give --board {config.board}, or play the other: {again}",
        )
    elif config.board_version != board.version:
        yield Obstacle(
            "wrong",
            f"the run is of version {config.board_version} of board {board.name!r}, "
            f"but version {board.version} is here; play that: {again}",
        )


def _of_seeds(config: RunConfig, board: Board, salt: str | None) -> Iterator[Obstacle]:
    if config.sealed is None and salt is not None:
        yield Obstacle(
            "wrong", "--salt is given, but the run has open seeds; leave it out"
        )
    if config.sealed is not None and _known_salt(board, salt) is None:
        yield Obstacle(
            "wrong",
            "the run has sealed seeds, which cannot be checked without their salt; "
            "give --salt @FILE, or wait until the board's keepers reveal it",
        )


def _known_salt(board: Board, salt: str | None) -> str | None:
    return salt or (board.seal.salt if board.seal else None)


def _plans(
    config: RunConfig, board: Board, salt: str | None
) -> tuple[CellPlan, ...] | None:
    """Return the sealed cells that a run is compared with, None for the open ones."""
    known = _known_salt(board, salt)
    if config.sealed is None or board.seal is None or known is None:
        return None
    return sealed_plans(board, known)


def refuse_existing(out: Path) -> None:
    """Refuse to write over a bundle or an entry.

    Args:
        out: The bundle, ``NAME.zip``; the entry is ``NAME.json``.

    Raises:
        InvalidSpec: One of them exists.
    """
    there = [path for path in (out, out.with_suffix(".json")) if os.path.lexists(path)]
    if there:
        names = " and ".join(str(path) for path in there)
        exist = "exist" if len(there) > 1 else "exists"
        raise InvalidSpec(
            f"{names} {exist} already; give --force to replace a submission, or "
            "another --out"
        )


def submit(
    folder: Path,
    board: Board,
    out: Path,
    meta: Meta,
    *,
    salt: str | None = None,
    replace: bool = False,
) -> Submission:
    """Write the bundle of a run, and beside it the entry, unless it has faults.

    Args:
        folder: A run without `obstacles`.
        board: Its board.
        out: The bundle, ``NAME.zip``; the entry is ``NAME.json``.
        meta: What its people say about it.
        salt: The salt of the board's seal, for a run on sealed seeds.
        replace: Whether to write over an older bundle and entry.

    Raises:
        InvalidSpec: ``out`` is not named like the entry, or exists and is not to be
            replaced, or a secret of this machine stands in the episodes.
        RecordError: The folder cannot be read.
        RunIncomplete: A file cannot be written.
    """
    if out.name != f"{meta.name}.zip":
        raise InvalidSpec(
            f"--out is {str(out)!r}, but a bundle is named like its entry: give "
            f"--out {out.with_name(f'{meta.name}.zip')}, or the entry another name"
        )
    if not replace:
        refuse_existing(out)
    # Hidden, and still an archive by its name, which is how it is verified.
    beside = out.with_name(f".part-{out.name}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(folder, meta, beside)
        checked = verify(beside, board=board, salt=salt)
        entry = None
        if not checked.faults:
            entry = entry_of(checked, beside, board, status_of(checked, board, salt))
            entry = entry.model_copy(update={"bundle": out.name})
            os.replace(beside, out)
            write_json(out.with_suffix(".json"), entry)
    except OSError as error:
        raise RunIncomplete(
            f"cannot write {out}: {error.strerror}; make room, or give another --out"
        ) from error
    finally:
        beside.unlink(missing_ok=True)
    return Submission(faults=checked.faults, warnings=checked.warnings, entry=entry)


def status_of(checked: Verification, board: Board, salt: str | None) -> Status:
    """Return what a verified run may be called.

    It is ``sealed`` only from somebody who knows a salt that is not revealed.
    """
    assert checked.run is not None
    unknown = board.seal is not None and board.seal.salt is None
    keeper = checked.run.config.sealed is not None and salt is not None and unknown
    return "sealed" if keeper else "replayed"


def entry_of(
    checked: Verification, bundle: Path, board: Board, status: Status
) -> Entry:
    """Return the entry of a bundle that was verified without faults."""
    assert not checked.faults, "a bundle with faults has no entry"
    run, summary, meta = checked.run, checked.summary, checked.meta
    assert run is not None and summary is not None
    if meta is None:
        raise RecordError(f"bundle {str(bundle)!r} has no {META_MEMBER}")
    config = run.config.model_dump(mode="json")
    settings = {name: config[name] for name in sorted(SETTINGS)}
    with zipfile.ZipFile(bundle) as archive, archive.open(EPISODES_MEMBER) as member:
        episodes_sha256 = sha256_of_stream(member)
    return Entry(
        board=board.name,
        board_version=board.version,
        board_digest=board.digest,
        status=status,
        meta=meta,
        summary=summary,
        returns=_tuples(checked.returns),
        successes=_tuples(checked.successes),
        settings=settings,
        versions=run.versions,
        commit=run.commit,
        command=run.command,
        started=run.started,
        model_facts=run.model_facts,
        prompt_sha256=run.prompt_sha256,
        sealed=run.config.sealed,
        warnings=tuple(str(warning) for warning in checked.warnings),
        bundle=bundle.name,
        bundle_sha256=sha256_of_file(bundle),
        episodes_sha256=episodes_sha256,
    )


def _tuples(by_cell: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {cell: tuple(values) for cell, values in by_cell.items()}


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, as hex digits."""
    with open(path, "rb") as file:
        return sha256_of_stream(file)
