"""Where the episodes of a run come from: a run folder, a bundle, or an entry beside it.

A folder is taken for the reader's own.  Bundles and entries may be a stranger's: they
are read as `ragen_bench.verifying` reads them, within its bounds, but nothing of them
is played again.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from ragen_bench.entries import (
    EPISODES_MEMBER,
    RUN_MEMBER,
    Entry,
    sha256_of_stream,
)
from ragen_bench.errors import RecordError
from ragen_bench.records import Episode, RunRecord
from ragen_bench.run_folder import RUN, read_episodes, read_run
from ragen_bench.verifying.archive import Bundle, Source, open_source
from ragen_bench.verifying.comparing import read_entry
from ragen_bench.verifying.faults import Faults, Refusal
from ragen_bench.verifying.plain_files import open_plain
from ragen_bench.verifying.strict_json import read

BUNDLE = ".zip"
ENTRY = ".json"
KINDS = f"run folder, bundle ({BUNDLE}) or entry ({ENTRY})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Episodes and how they were played."""

    path: Path
    record: RunRecord
    bundled: bool
    """Whether a stranger packed it, who may have written anything."""
    entry: Entry | None = None
    """What the path holds, if it is an entry."""

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes in the order of the file.

        Raises:
            RecordError: One cannot be read.
        """
        if not self.bundled:
            yield from read_episodes(self.path)
            return
        with _refusing(self.path), _open(self.path, self.entry) as source:
            for number, line in enumerate(source.lines(), 1):
                yield read(Episode, line, f"{EPISODES_MEMBER}:{number}")


def open_run(path: Path) -> Run:
    """Return the run of a folder or a bundle, or of the bundle beside an entry.

    Raises:
        RecordError: The path is none of them, or a file of it cannot be read.
    """
    if (path / RUN).is_file():
        return Run(path=path, record=read_run(path), bundled=False)
    if path.is_dir() or path.suffix not in (BUNDLE, ENTRY):
        raise RecordError(_no_run(path))
    entry = open_entry(path) if path.suffix == ENTRY else None
    with _refusing(path), _open(path, entry) as source:
        record = read(RunRecord, source.read(RUN_MEMBER), RUN_MEMBER)
    return Run(path=path, record=record, bundled=True, entry=entry)


def open_entry(path: Path) -> Entry:
    """Return a stranger's entry, whose bundle need not be there.

    Raises:
        RecordError: It cannot be read, or names a bundle elsewhere.
    """
    with _refusing(path):
        return read_entry(path)


def _no_run(path: Path) -> str:
    lack = "it does not exist"
    if path.exists():
        lack = f"it has no {RUN}" if path.is_dir() else f"{path.suffix!r} is another"
    return f"{str(path)!r} is no {KINDS}: {lack}; give what run or submit wrote"


@contextlib.contextmanager
def _open(path: Path, entry: Entry | None) -> Iterator[Source]:
    """Open a bundle whose members are all sound.

    Raises:
        Refusal: Something is wrong with it.
    """
    faults = Faults()
    if entry is None:
        with open_source(path, faults) as source:
            _check(source, faults)
            yield source
        return
    with open_plain(path.with_name(entry.bundle), follow=False) as file:
        digest = sha256_of_stream(file)
        if digest != entry.bundle_sha256:
            message = f"{entry.bundle} has SHA-256 {digest}, but the entry has "
            message += f"{entry.bundle_sha256}"
            raise Refusal("hash_mismatch", entry.bundle, message)
        source = Bundle(file, entry.bundle, faults)
        _check(source, faults)
        yield source


def _check(source: Source, faults: Faults) -> None:
    for name in source.needed:
        if name not in source.names:
            faults.add("missing_file", source.place, f"there is no {name}")
    for fault in faults.all():
        raise Refusal(fault.code, fault.place, fault.message)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn a refusal into the error of whoever only reads."""
    try:
        yield
    except Refusal as refusal:
        fault = refusal.fault
        raise RecordError(
            f"{str(path)!r} cannot be read: {fault.place}: {fault.message}; "
            f"ragen-bench verify says more; give another {KINDS}"
        ) from None
