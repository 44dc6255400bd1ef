"""What a path given to the viewer is: a run folder, a bundle or a training's folder."""

import contextlib
import dataclasses
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ragen_bench.entries import EPISODES_MEMBER, MEMBERS, RUN_MEMBER
from ragen_bench.errors import InvalidSpec, RecordError
from ragen_bench.records import Episode, RunRecord, parse_record
from ragen_bench.run_folder import RUN, read_episodes, read_run

TRAINING = "train.json"
METRICS = "metrics.csv"
_BUNDLE = ".zip"
_MAX_RUN = 64 * 2**20
"""Bytes of a bundle's ``run.json``."""
_MAX_EPISODES = 8 * 2**30
_MAX_LINE = 16 * 2**20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Episodes and how they were played."""

    path: Path
    record: RunRecord
    bundled: bool
    """Whether a stranger packed it, who may have written anything."""

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes in the order of the file.

        Raises:
            RecordError: One cannot be read.
        """
        return _bundled(self.path) if self.bundled else read_episodes(self.path)


def is_training(path: Path) -> bool:
    """Return whether a folder is that of a training."""
    return (path / TRAINING).is_file() or (path / METRICS).is_file()


def open_run(path: Path) -> Run:
    """Return the run of a folder or a bundle.

    Raises:
        InvalidSpec: The path is neither.
        RecordError: Its ``run.json`` cannot be read.
    """
    if path.is_dir():
        if not (path / RUN).is_file():
            raise InvalidSpec(
                f"{str(path)!r} is no run folder (it has no {RUN}) and no training's "
                f"(no {TRAINING}); give one that run or train wrote"
            )
        return Run(path=path, record=read_run(path), bundled=False)
    if path.suffix == _BUNDLE and path.is_file():
        with _members(path) as archive:
            _check_size(archive, path, RUN_MEMBER, _MAX_RUN)
            text = archive.read(RUN_MEMBER)
        record = parse_record(RunRecord, text, f"{path}: {RUN_MEMBER}")
        return Run(path=path, record=record, bundled=True)
    raise InvalidSpec(
        f"{str(path)!r} is no folder and no bundle; give the folder of a run or of a "
        f"training, or a {_BUNDLE} file that submit wrote"
    )


@contextlib.contextmanager
def _members(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            if sorted(archive.namelist()) != sorted(MEMBERS):
                raise RecordError(
                    f"bundle {str(path)!r} must hold {', '.join(MEMBERS)} and nothing "
                    "else; verify says more"
                )
            yield archive
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        NotImplementedError,
    ) as error:
        raise RecordError(f"bundle {str(path)!r} cannot be read: {error}") from error
    except RuntimeError as error:  # an encrypted member
        raise RecordError(f"bundle {str(path)!r} cannot be read: {error}") from error


def _check_size(archive: zipfile.ZipFile, path: Path, name: str, most: int) -> None:
    size = archive.getinfo(name).file_size
    if size > most:
        raise RecordError(
            f"bundle {str(path)!r}: {name} has {size} bytes, but at most {most} "
            "are read"
        )


def _bundled(path: Path) -> Iterator[Episode]:
    with _members(path) as archive:
        _check_size(archive, path, EPISODES_MEMBER, _MAX_EPISODES)
        with archive.open(EPISODES_MEMBER) as file:
            yield from _lines(file, f"{path}: {EPISODES_MEMBER}")


def read_rollouts(path: Path) -> Iterator[Episode]:
    """Yield the episodes of one file that a training kept.

    Raises:
        RecordError: The file or a line of it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            yield from _lines(file, str(path))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error


def _lines(file: IO[bytes], where: str) -> Iterator[Episode]:
    number = 0
    while line := file.readline(_MAX_LINE):
        number += 1
        yield parse_record(Episode, line, f"{where} line {number}")
