"""`RunFolder`: the files of a run, written so that a kill at any moment loses nothing.

``run.json`` and ``summary.json`` appear whole (written beside, then renamed);
``episodes.jsonl`` grows by whole lines, and a torn last line is cut off when the
folder is opened again.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ragen_bench.errors import InvalidSpec, RecordError, RunIncomplete, RunMismatch
from ragen_bench.records import (
    UNSCORED,
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


def write_json(path: Path, record: Record) -> None:
    """Write a record as JSON; the file appears whole or not at all.

    Raises:
        RunIncomplete: The file cannot be written.
    """
    beside = path.with_name(f".{path.name}.part")
    text = json.dumps(
        record.model_dump(mode="json"), indent=2, sort_keys=True, allow_nan=False
    )
    try:
        with open(beside, "w", encoding="utf-8", newline="\n") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunIncomplete(f"cannot write {path}: {error.strerror}") from error


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


def _scan(path: Path) -> Iterator[tuple[Episode, int]]:
    """Yield episodes and the offset at which each one's line ends."""
    if not path.exists():
        return
    end = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            end += len(line)
            try:
                episode = parse_record(Episode, line, f"{path} line {number}")
            except RecordError:
                # Only a line that the end of the file cut short may be unreadable.
                if line.endswith(b"\n"):
                    raise
                return
            yield episode, end


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
    """

    def __init__(
        self, path: Path, record: RunRecord, *, retry_errors: bool = False
    ) -> None:
        self.path = path
        self._lock = _open_locked(path)
        try:
            self.record = self._adopt(record)
            self.finished: set[EpisodeKey] = set()
            self._load(retry_errors)
            self._file = os.open(
                path / EPISODES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
            )
        except BaseException:
            self._lock.close()
            raise
        self._size = os.fstat(self._file).st_size
        self._synced = time.monotonic()

    def append(self, episode: Episode) -> None:
        """Add a finished episode, whole or not at all.

        Raises:
            RunIncomplete: The disk is full, or the file cannot be written.
        """
        line = episode.model_dump_json().encode() + b"\n"
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._file, view) :]
            now = time.monotonic()
            if now - self._synced > _SYNC_SECONDS:
                os.fsync(self._file)
                self._synced = now
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise RunIncomplete(
                f"cannot write {self.path / EPISODES}: {error.strerror}; "
                f"{len(self.finished)} finished episodes are safe: make room and run "
                "the same command again"
            ) from error
        self._size += len(line)
        self.finished.add(episode.key)

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
        finally:
            os.close(self._file)
            self._lock.close()

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
        return held

    def _load(self, retry_errors: bool) -> None:
        path = self.path / EPISODES
        planned = set(self.record.config.keys())
        end = 0
        dropped = False
        for episode, line_end in _scan(path):
            end = line_end
            key = episode.key
            if key not in planned or key in self.finished:
                fault = "twice" if key in self.finished else "unplanned"
                raise RecordError(f"{path} holds episode {key} {fault}")
            if retry_errors and episode.outcome in UNSCORED:
                dropped = True
                continue
            self.finished.add(key)
        if dropped:
            self._rewrite(path)
        elif path.exists():
            self._mend(path, end)

    def _rewrite(self, path: Path) -> None:
        """Leave out the episodes that nobody played."""
        beside = path.with_name(f".{path.name}.part")
        with open(beside, "wb") as file:
            for episode, _ in _scan(path):
                if episode.outcome not in UNSCORED:
                    file.write(episode.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)

    @staticmethod
    def _mend(path: Path, end: int) -> None:
        """Cut a torn last line off, or end a whole one that lacks its newline."""
        with open(path, "r+b") as file:
            file.truncate(end)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")


def _open_locked(path: Path) -> IO[bytes]:
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
    except ImportError:  # no such locks on this system
        pass
    except OSError as error:
        lock.close()
        raise InvalidSpec(
            f"output {str(path)!r} is in use by another process; wait for it or give "
            "another --out"
        ) from error
    return lock


def _refuse_difference(path: Path, held: RunRecord, asked: RunRecord) -> None:
    """Raise if two records would not play the same episodes the same way."""
    for name in ("config", "model_facts", "prompt_sha256"):
        before = getattr(held, name)
        now = getattr(asked, name)
        if isinstance(before, Record):
            before = before.model_dump(mode="json")
            now = now.model_dump(mode="json")
        difference = _first_difference(dict(before), dict(now))
        if difference:
            _refuse(path, *difference)
    ours = "ragen-bench"
    if held.versions.get(ours) != asked.versions.get(ours):
        _refuse(path, ours, held.versions.get(ours), asked.versions.get(ours))


def _refuse(path: Path, name: str, before: object, now: object) -> None:
    raise RunMismatch(
        f"{str(path)!r} was played with {name} {_short(before)}, but {_short(now)} is "
        "asked for; give another --out, or the same setting"
    )


def _first_difference(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[str, object, object] | None:
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            return key, before.get(key), now.get(key)
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
