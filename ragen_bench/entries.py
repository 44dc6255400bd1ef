"""`Entry`: one row of a board, as ``leaderboards/entries/BOARD/NAME.json`` holds it.

Every number of an entry was computed from a replay of its episodes; what somebody
wrote about themselves is in `Meta` and nowhere else.
"""

import dataclasses
import hashlib
import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from ragen_bench.board import Board
from ragen_bench.errors import RecordError
from ragen_bench.records import Summary, Versioned, parse_record

RUN_MEMBER = "run.json"
EPISODES_MEMBER = "episodes.jsonl"
META_MEMBER = "meta.json"
MEMBERS = (RUN_MEMBER, EPISODES_MEMBER, META_MEMBER)
"""All that a bundle holds: a zip archive of these files, at its top."""

SETTINGS: tuple[str, ...]
SETTINGS = ("prompt", "shots", "context", "temperature", "top_p", "max_tokens")
SETTINGS += ("agent_args", "model_args", "repeats")
"""What an entry tells of a run's configuration, beside who played."""

Status: TypeAlias = Literal["replayed", "sealed"]
"""``replayed``: the moves give the scores, whoever made them.  ``sealed``: the board's
keepers ran the agent themselves, on seeds that nobody else knew."""

Standing: TypeAlias = Literal["current", "outdated", "strange"]
"""``outdated``: of an older version of the board, or of a seal that is gone.
``strange``: of a version that never was, or with other episodes than its own."""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
_CHUNK = 1 << 20
_HEX = r"^[0-9a-f]{64}$"


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must hold printable characters alone")
    return text


_Filled: TypeAlias = Annotated[str, AfterValidator(_filled)]
_Line: TypeAlias = Annotated[_Filled, AfterValidator(_printable)]


class Meta(Versioned):
    """What the people behind an entry say about it; nothing here can be checked."""

    name: str = Field(pattern=_NAME)
    """The entry's name, ASCII; also that of its file."""
    model: _Line = Field(max_length=200)
    """The language model as its makers call it, or ``none``."""
    organisation: _Line = Field(max_length=200)
    link: str = Field(default="", max_length=500, pattern=r"^(https?://[!-~]+)?$")
    """A page about the agent, ``https://`` or ``http://``; empty for none."""
    licence: _Line = Field(max_length=100)
    """Of the model's weights, an SPDX name or words."""
    training_data: _Filled = Field(max_length=2000)
    """Whether the agent was trained on tasks of this kind, and on what."""
    attempt: int = Field(default=1, ge=1, le=1_000_000)
    """How many complete runs of this agent on this board there were, this one
    included; the best of several is not an estimate of any."""


class Entry(Versioned):
    """One row of a board."""

    board: str
    board_version: int
    board_digest: str
    status: Status
    meta: Meta
    summary: Summary
    """Recomputed by replay; its class, agent and model are those of ``run.json``."""
    returns: Mapping[str, tuple[float | None, ...]]
    """Cell to the scored return of each episode, in the board's order (seed, then
    rep); None where nobody played.  What paired comparisons work on."""
    successes: Mapping[str, tuple[bool | None, ...]]
    """Cell to the success of each episode, in the same order."""
    settings: Mapping[str, Any]
    """``prompt``, ``shots``, ``context``, ``temperature``, ``top_p``, ``max_tokens``,
    ``agent_args``, ``model_args`` and ``repeats`` of the run."""
    versions: Mapping[str, str]
    commit: str | None
    command: str | None
    started: str
    model_facts: Mapping[str, Any]
    """What the model said of itself, such as template and weight hashes."""
    prompt_sha256: Mapping[str, str]
    """Cell to the hash of its first prompt."""
    sealed: str | None = Field(default=None, pattern=_HEX)
    """The commitment of the seal that the seeds come from, None for the open seeds."""
    warnings: tuple[str, ...] = ()
    """What verification noticed but does not refuse, such as ``solver_like``."""
    bundle: str
    """File name of the bundle."""
    bundle_sha256: str = Field(pattern=_HEX)
    episodes_sha256: str = Field(pattern=_HEX)
    """Of ``episodes.jsonl`` inside it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        repeats = self.settings.get("repeats")
        if type(repeats) is not int or repeats < 1:
            raise ValueError(f"settings.repeats is {repeats!r}, but must be at least 1")
        cells = self.summary.cells
        for name in ("returns", "successes"):
            if getattr(self, name).keys() != cells.keys():
                raise ValueError(f"{name} and the summary have different cells")
        for name, cell in cells.items():
            if self.returns[name] and None in (cell.floor, cell.ceiling):
                if any(value is not None for value in self.returns[name]):
                    raise ValueError(f"{name} has no floor or no ceiling")
        return self


def sha256_of_stream(file: IO[bytes]) -> str:
    """Return the SHA-256 of all that is left to read, as hex digits."""
    found = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        found.update(chunk)
    return found.hexdigest()


def read_entry(path: Path) -> Entry:
    """Return the entry that a file holds.

    Raises:
        RecordError: The file cannot be read, or is no entry.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RecordError(f"entry {str(path)!r}: {error.strerror}") from error
    return parse_record(Entry, text, str(path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoardEntries:
    """What was submitted to a board."""

    ranked: tuple[Entry, ...]
    """Of the board as it stands, by name."""
    outdated: tuple[Entry, ...]
    """Not of the board as it stands: shown, but never ranked beside the others."""


def entries_of(board: Board, folder: Path | None = None) -> BoardEntries:
    """Return all entries of a board.

    Args:
        board: The board.
        folder: Holds ``NAME.json`` files; by default those that ship with the project.

    Raises:
        RecordError: A file is no entry, or not one of this board, or is not named
            like its entry, or two entries have one name.
    """
    folder = shipped_folder(board.name) if folder is None else folder
    ranked: list[Entry] = []
    outdated: list[Entry] = []
    taken: dict[str, Path] = {}
    for path in sorted(folder.glob("*.json")):
        entry = read_entry(path)
        name = entry.meta.name
        # Some file systems take names that differ in case alone for one.
        other = taken.setdefault(name.casefold(), path)
        if other != path:
            raise RecordError(
                f"entries {str(other)!r} and {str(path)!r} have one name, {name!r}, "
                "case apart; rename one"
            )
        if path.stem != name:
            raise RecordError(
                f"entry {str(path)!r} has the name {name!r}, but a file must be named "
                f"like its entry: {name}.json"
            )
        if entry.board != board.name:
            raise RecordError(
                f"entry {str(path)!r} is one of board {entry.board!r}, but lies among "
                f"those of {board.name!r}; move it"
            )
        current = standing_of(entry, board) == "current"
        (ranked if current else outdated).append(entry)
    return BoardEntries(ranked=tuple(ranked), outdated=tuple(outdated))


def standing_of(entry: Entry, board: Board) -> Standing:
    """Return whether an entry's episodes are those of the board as it stands."""
    commitment = board.seal.commitment if board.seal else None
    older = 0 < entry.board_version < board.version
    if older or entry.sealed not in (None, commitment):
        return "outdated"
    held = (entry.board_version, entry.board_digest)
    return "current" if held == (board.version, board.digest) else "strange"


def why_not_current(entry: Entry, board: Board) -> str:
    """Return why an entry is not one of the board as it stands, empty if it is."""
    if standing_of(entry, board) == "current":
        return ""
    if entry.board_version != board.version:
        return (
            f"played version {entry.board_version} of the board, which is "
            f"{board.version} now"
        )
    if entry.board_digest != board.digest:
        return "played another list of episodes than the board's"
    return "played the seeds of a seal that the board no longer has"


def shipped_folder(board: str) -> Path:
    """Return where the entries of a board lie that ship with the project."""
    root = importlib.resources.files("ragen_bench.leaderboards")
    return Path(str(root)) / "entries" / board
