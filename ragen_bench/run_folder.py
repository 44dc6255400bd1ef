"""`RunFolder`: the files of a run, written so that a kill at any moment loses nothing.

``run.json`` and ``summary.json`` appear whole (written beside, then renamed);
``episodes.jsonl`` grows by whole lines, and a torn last line is cut off when the
folder is opened again.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ragen_bench.errors import InvalidSpec, RecordError, RunIncomplete, RunMismatch
from ragen_bench.records import (
    Episode,
    EpisodeKey,
    Record,
    RunRecord,
    Summary,
    parse_record,
)

RUN = "run.json"
EPISODES = "episodes.jsonl"
SUMMARY = "summary.json"
_LOCK = ".lock"
_SYNC_SECONDS = 1.0

log = logging.getLogger(__name__)


def write_json(path: Path, record: Record) -> None:
    """Write a record as JSON; the file appears whole or not at all.

    Raises:
        RunIncomplete: The file cannot be written.
    """
    text = json.dumps(
        record.model_dump(mode="json"), indent=2, sort_keys=True, allow_nan=False
    )
    with replacing(path) as file:
        file.write(f"{text}\n".encode("ascii"))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of another one when all of it is on disk."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunIncomplete(
            f"cannot write {path}: {error.strerror}; make room and run the same "
            "command again"
        ) from error


def read_run(folder: Path) -> RunRecord:
    """Return ``run.json`` of a folder.

    Raises:
        RecordError: There is none, or it cannot be read.
    """
    path = folder / RUN
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RecordError(
            f"{str(folder)!r} is no run folder: {RUN} cannot be read ({error.strerror})"
        ) from error
    return parse_record(RunRecord, text, str(path))


def read_episodes(folder: Path) -> Iterator[Episode]:
    """Yield the whole episodes of a folder, in the order they finished.

    A torn last line is left out.

    Raises:
        RecordError: A line before the last is not an episode.
    """
    for episode, _ in _scan(folder / EPISODES):
        yield episode


def _scan(path: Path) -> Iterator[tuple[Episode, bytes]]:
    """Yield each whole episode and its line, as it stands in the file."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, 1):
            try:
                episode = parse_record(Episode, line, f"{path} line {number}")
            except RecordError:
                # Only a line that the end of the file cut short may be unreadable.
                if line.endswith(b"\n"):
                    raise
                return
            yield episode, line


class RunFolder:
    """A run's folder, open for one process at a time.

    Args:
        path: The folder; made if it does not exist.
        record: What the run is; compared with what the folder holds.
        retry_errors: Whether episodes that nobody played (``provider_error``,
            ``timeout``) are dropped, to be played again.

    Attributes:
        finished: The keys of the episodes that the folder holds.

    Raises:
        InvalidSpec: The path is a file, cannot be written, or is in use.
        RunMismatch: The folder holds a run of another configuration.
        RecordError: A file of the folder cannot be read.
        RunIncomplete: The disk is full.
    """

    def __init__(
        self, path: Path, record: RunRecord, *, retry_errors: bool = False
    ) -> None:
        self.path = path
        self.finished: set[EpisodeKey] = set()
        self._size = 0  # bytes of whole episodes
        with contextlib.ExitStack() as files:
            files.enter_context(open_locked(path))
            self.record = self._adopt(record)
            ending = self._load(retry_errors)
            self._file = _open_to_append(path / EPISODES)
            files.callback(os.close, self._file)
            self._synced = time.monotonic()
            os.ftruncate(self._file, self._size)
            if ending != b"\n":
                self._write(b"\n")
            self._files = files.pop_all()

    def append(self, episode: Episode) -> None:
        """Add a finished episode, whole or not at all.

        Raises:
            RunIncomplete: The disk is full, or the file cannot be written.
        """
        self._write(episode.model_dump_json().encode() + b"\n")
        self.finished.add(episode.key)

    def _write(self, line: bytes) -> None:
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._file, view) :]
            now = time.monotonic()
            if now - self._synced > _SYNC_SECONDS:
                os.fsync(self._file)
                self._synced = now
        except OSError as error:
            # What cannot be cut off is a torn last line, which the next run cuts off.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise self._full(error) from error
        self._size += len(line)

    def _full(self, error: OSError) -> RunIncomplete:
        return RunIncomplete(
            f"cannot write {self.path / EPISODES}: {error.strerror}; "
            f"{len(self.finished)} finished episodes are safe: make room and run "
            "the same command again"
        )

    def episodes(self) -> Iterator[Episode]:
        """Yield the finished episodes."""
        return read_episodes(self.path)

    def write_summary(self, summary: Summary) -> None:
        """Write ``summary.json``."""
        write_json(self.path / SUMMARY, summary)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            os.fsync(self._file)
        except OSError as failure:
            if error is None:
                raise self._full(failure) from failure
        finally:
            self._files.close()

    def _adopt(self, record: RunRecord) -> RunRecord:
        """Return the folder's own record if it has one, else write this one."""
        if not (self.path / RUN).exists():
            if (self.path / EPISODES).exists():
                raise RecordError(
                    f"{str(self.path)!r} holds {EPISODES} but no {RUN}; "
                    "use another --out"
                )
            write_json(self.path / RUN, record)
            return record
        held = read_run(self.path)
        _refuse_difference(self.path, held, record)
        if record.price not in (None, held.price):
            held = held.model_copy(update={"price": record.price})
            write_json(self.path / RUN, held)
        return held

    def _load(self, retry_errors: bool) -> bytes:
        """Take in the finished episodes and return the byte that ends the last one."""
        path = self.path / EPISODES
        planned = set(self.record.config.keys())
        dropped = False
        ending = b"\n"
        for episode, line in _scan(path):
            key = episode.key
            if key not in planned or key in self.finished:
                fault = "twice" if key in self.finished else "unplanned"
                raise RecordError(f"{path} holds episode {key} {fault}")
            if retry_errors and not episode.scored:
                dropped = True
                continue
            self.finished.add(key)
            self._size += len(line)
            ending = line[-1:]
        if dropped:
            self._drop_unscored(path)
        return ending

    def _drop_unscored(self, path: Path) -> None:
        """Leave out the episodes that nobody played; the others stay as they are."""
        # A summary that counts them must not outlive them.
        (self.path / SUMMARY).unlink(missing_ok=True)
        with replacing(path) as file:
            for episode, line in _scan(path):
                if episode.scored:
                    file.write(line)


def open_locked(path: Path) -> IO[bytes]:
    """Make the folder and return its lock, held until it is closed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / _LOCK, "wb")
    except OSError as error:
        raise InvalidSpec(
            f"output {str(path)!r} cannot be a folder: {error.strerror}; "
            "give another --out"
        ) from error
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise InvalidSpec(
            f"output {str(path)!r} is in use by another run; wait for it or give "
            "another --out"
        ) from error
    except (ImportError, OSError):  # this system, or this file system, has no locks
        log.warning("%s cannot be locked: let no other run use it", path)
    return lock


def _open_to_append(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise InvalidSpec(
            f"output {str(path)!r} cannot be written: {error.strerror}; "
            "give another --out"
        ) from error


def _refuse_difference(path: Path, held: RunRecord, asked: RunRecord) -> None:
    """Raise if two records would not play the same episodes the same way."""
    for before, now in zip(_fixed(held), _fixed(asked), strict=True):
        difference = _difference(before, now)
        if difference:
            name, was, wanted = difference
            raise RunMismatch(
                f"{str(path)!r} was played with {name} {_short(was)}, but "
                f"{_short(wanted)} is asked for; give another --out, or the same "
                "setting"
            )
    # Folders of before sources were hashed have none.
    if held.agent_sha256 not in (None, asked.agent_sha256):
        raise RunMismatch(
            f"{str(path)!r} was played by agent {held.config.agent!r} from a source "
            f"file of SHA-256 {held.agent_sha256}, but now it has "
            f"{asked.agent_sha256}; give another --out, or put the old source back"
        )


def _fixed(record: RunRecord) -> tuple[dict[str, Any], ...]:
    """Return what must not change while a folder fills, causes before effects."""
    facts = record.model_dump(mode="json")
    return (
        facts["config"],
        {"version of ragen-bench": facts["versions"].get("ragen-bench")},
        {name: facts[name] for name in ("model_facts", "prompt_sha256")},
    )


def _difference(
    before: Any, now: Any, name: str = ""
) -> tuple[str, object, object] | None:
    """Return where two JSON values differ first, and both values there."""
    pairs: list[tuple[object, Any, Any]]
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted(before.keys() | now.keys())
        pairs = [(key, before.get(key), now.get(key)) for key in keys]
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = list(zip(range(len(now)), before, now, strict=True))
    else:
        return None if before == now else (name, before, now)
    places = (_difference(b, n, f"{name}.{k}".lstrip(".")) for k, b, n in pairs)
    return next((place for place in places if place), None)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
