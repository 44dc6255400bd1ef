"""Sealed seeds: a second list of a board that its keepers alone know, until they tell.

A keeper makes a salt and publishes a commitment to it in the board's file.  The salt
fixes seeds that nobody can know before: agents that were trained or tuned on the open
seeds, or on all the test split, meet new instances.  When the salt is revealed, anyone
can check that it is the one that was promised, and play and verify the sealed seeds.
"""

import hashlib
import hmac
import itertools
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from ragen_bench.board import (
    SALT,
    Board,
    Seal,
    commitment_of,
    load,
)
from ragen_bench.errors import InvalidSpec
from ragen_bench.freezing import choose, to_toml
from ragen_bench.records import CellPlan

SEEDS = 2**48
"""Sealed seeds lie below it; every JSON reader holds them exactly."""


def sealed_plans(board: Board, salt: str) -> tuple[CellPlan, ...]:
    """Return the cells of a board with their sealed seeds, ascending.

    No instance comes twice among the cells of one environment, except where a level
    or preset has only the same few in every split, as on the open list.  An instance
    of the open list may come again: small cells have too few others.

    Raises:
        InvalidSpec: The board has no seal, or the salt is not the one of its seal.
        GenerationError: A cell has fewer different instances than seeds.
    """
    seal = seal_of(board)
    if not seal.is_opened_by(salt, board.digest):
        raise InvalidSpec(
            f"the salt does not open the seal of board {board.name!r}, version "
            f"{board.version}: its commitment is another one; give the salt that the "
            "board was sealed with"
        )
    seen: dict[str, set[str]] = {}
    plans = []
    for cell in board.cells:
        wanted = cell.model_copy(update={"seeds": seal.seeds or cell.seeds, "skip": ()})
        name = wanted.plan().cell
        known = seen.setdefault(cell.env_id, set())
        kept, _ = choose(wanted, board, _seeds(board, name, salt), known)
        seeds = tuple(sorted(instance.seed for instance in kept))
        plans.append(CellPlan(env_id=cell.env_id, level=cell.level, seeds=seeds))
    return tuple(plans)


def _seeds(board: Board, cell: str, salt: str) -> Iterator[int]:
    """Yield the seeds of a cell, those of repeated instances too, none twice."""
    given: set[int] = set()
    for index in itertools.count():
        message = f"{board.name}:{board.version}:{cell}:{index}"
        digest = hmac.digest(salt.encode(), message.encode(), hashlib.sha256)
        seed = int.from_bytes(digest, "big") % SEEDS
        if seed not in given:
            given.add(seed)
            yield seed


def seal_of(board: Board) -> Seal:
    """Return the seal of a board.

    Raises:
        InvalidSpec: It has none.
    """
    if board.seal is None:
        raise InvalidSpec(
            f"board {board.name!r} has no seal; ragen-bench board seal makes one"
        )
    return board.seal


def seal(path: Path, salt_file: Path, *, seeds: int | None = None) -> Board:
    """Write a commitment into a board's file, and return the sealed board.

    Args:
        path: The board's TOML file.
        salt_file: Holds the salt; made with a random one, for its owner's eyes only,
            if it does not exist.
        seeds: How many seeds a cell plays; by default as many as the board's own.

    Raises:
        InvalidSpec: The board is sealed already or not frozen, or the file holds no
            salt or cannot be written.
    """
    board = load(path)
    if board.seal is not None:
        raise InvalidSpec(
            f"board {board.name!r} is sealed already, with commitment "
            f"{board.seal.commitment}; take the table [seal] out of {path} to replace "
            "a seal whose salt is lost or revealed"
        )
    if not board.digest:
        raise InvalidSpec(
            f"board {board.name!r} has no digest to be sealed with; freeze it first: "
            f"python scripts/freeze_board.py {path}"
        )
    salt = read_salt(salt_file) if salt_file.exists() else _make_salt(salt_file)
    made = Seal(commitment=commitment_of(salt, board.digest), seeds=seeds)
    return _rewrite(path, board.model_copy(update={"seal": made}))


def reveal(path: Path, salt_file: Path) -> Board:
    """Write the salt into a sealed board's file, and return the open board.

    Raises:
        InvalidSpec: The board has no seal, or the salt is not the one of it.
    """
    board = load(path)
    held = seal_of(board)
    salt = read_salt(salt_file)
    if not held.is_opened_by(salt, board.digest):
        raise InvalidSpec(
            f"the salt in {str(salt_file)!r} does not open the seal of board "
            f"{board.name!r}, version {board.version}; give the file that it was "
            "sealed with"
        )
    opened = held.model_copy(update={"salt": salt})
    return _rewrite(path, board.model_copy(update={"seal": opened}))


def read_salt(path: Path) -> str:
    """Return the salt that a file holds; no message repeats it.

    Raises:
        InvalidSpec: The file cannot be read, or holds no salt.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidSpec(
            f"salt file {str(path)!r} cannot be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise InvalidSpec(f"salt file {str(path)!r} is not text") from error
    if not re.fullmatch(SALT, text):
        raise InvalidSpec(
            f"salt file {str(path)!r} must hold one line of 32 to 200 visible ASCII "
            "characters, such as ragen-bench board seal makes"
        )
    return text


def _make_salt(path: Path) -> str:
    """Write a new salt into a new file that its owner alone may read."""
    salt = secrets.token_hex(32)
    try:
        # Made closed: a file that is closed afterwards was open for a moment.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{salt}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InvalidSpec(
            f"salt file {str(path)!r} cannot be written: {error.strerror}"
        ) from error
    return salt


def _rewrite(path: Path, board: Board) -> Board:
    """Put a board's text in the place of its file, whole or not at all."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(to_toml(board), encoding="utf-8", newline="\n")
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidSpec(
            f"board file {str(path)!r} cannot be written: {error.strerror}"
        ) from error
    return load(path)
