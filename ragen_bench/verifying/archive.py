"""A run folder or bundle of a stranger, read without extracting or following anything.

A bundle's members are streamed out of the archive; a folder's files are opened only if
they are regular files themselves.  Sizes are counted as bytes arrive, whatever the
headers say.
"""

import contextlib
import hashlib
import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from ragen_bench.entries import EPISODES_MEMBER, MEMBERS, META_MEMBER, RUN_MEMBER
from ragen_bench.ledger import LEDGER
from ragen_bench.run_folder import SUMMARY
from ragen_bench.verifying.faults import Faults, Refusal, shown
from ragen_bench.verifying.plain_files import open_plain, why

MAX_ARCHIVE = 1 << 30
MAX_EPISODES_FILE = (4 << 30) - 2
MAX_LINE = 16 << 20
MAX_RATIO = 400
"""Of unpacked to packed bytes, once `_RATIO_FROM` bytes are unpacked."""
_RATIO_FROM = 64 << 20
MAX_SMALL: dict[str, int] = {
    RUN_MEMBER: 4 << 20,
    META_MEMBER: 64 << 10,
    SUMMARY: 4 << 20,
}
"""Bytes of the files that are read at once."""
_MAX_MEMBERS = 64
_MAX_DIRECTORY = 64 << 10
_LEFT_BY_RUN = {SUMMARY, ".lock", LEDGER}
"""What `ragen_bench.run_folder` and its friends leave beside a run."""

_END = struct.Struct("<4s4H2LH")
_END64 = b"PK\x06\x07"
_DRIVE = re.compile(r"[A-Za-z]:")
_BROKEN: tuple[type[Exception], ...]
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError)
_BROKEN += (ValueError,)
_NO_ARCHIVE: tuple[type[Exception], ...] = (*_BROKEN, OSError)


class Source:
    """The files of a run; see `open_source`."""

    needed: tuple[str, ...] = MEMBERS

    def __init__(self, place: str, names: frozenset[str]) -> None:
        self.place = place
        self.names = names
        """Of the files that it holds."""

    def open(self, name: str) -> IO[bytes]:
        """Open one of its files for reading.

        Raises:
            Refusal: It is no plain file.
        """
        raise NotImplementedError

    def packed(self, name: str) -> int | None:
        """Return the packed size of a file, None if it is not packed."""
        return None

    def declared(self, name: str) -> int | None:
        """Return the size that a directory declares for a file, None without one."""
        return None

    def read(self, name: str) -> bytes:
        """Return one of the small files.

        Raises:
            Refusal: It cannot be read, or is too large.
        """
        most = MAX_SMALL[name]
        with _guarded(name), self.open(name) as file:
            data = file.read(most + 1)
            if len(data) > most:
                raise Refusal("too_large", name, f"over {most} bytes")
        self._check_size(name, len(data))
        return data

    def lines(self, digest: "hashlib._Hash | None" = None) -> Iterator[bytes]:
        """Yield the lines of the episodes, each with its line break.

        Args:
            digest: Updated with all that is read.

        Raises:
            Refusal: A line, the file or its compression ratio is beyond its bound, or
                the file cannot be read.
        """
        name = EPISODES_MEMBER
        packed = self.packed(name)
        total = number = 0
        with _guarded(name), self.open(name) as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                total += len(line)
                if len(line) > MAX_LINE:
                    place = f"{name}:{number}"
                    raise Refusal("too_large", place, f"over {MAX_LINE} bytes")
                if total > MAX_EPISODES_FILE:
                    raise Refusal("too_large", name, f"over {MAX_EPISODES_FILE} bytes")
                if packed is not None and total > max(_RATIO_FROM, MAX_RATIO * packed):
                    raise Refusal(
                        "too_large",
                        name,
                        f"{packed} bytes unpack to over {total}: more than "
                        f"{MAX_RATIO} to 1",
                    )
                if digest is not None:
                    digest.update(line)
                yield line
        self._check_size(name, total)

    def _check_size(self, name: str, size: int) -> None:
        declared = self.declared(name)
        if declared is not None and size != declared:
            message = f"declares {declared} bytes and has {size}"
            raise Refusal("bad_archive", name, message)


@contextlib.contextmanager
def open_source(path: Path, faults: Faults) -> Iterator[Source]:
    """Open a run folder or a bundle.

    Args:
        path: The folder or zip archive.
        faults: Takes what is wrong with single members.

    Raises:
        Refusal: It cannot be read at all.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise Refusal("missing_file", str(path), why(error)) from None
    if stat.S_ISDIR(mode):
        yield _Folder(path, faults)
    elif stat.S_ISREG(mode):
        with open_plain(path) as file:
            yield Bundle(file, path.name, faults)
    else:
        raise Refusal("not_a_file", str(path), "neither a file nor a folder")


class _Folder(Source):
    """A run folder; `run` leaves more there than a bundle holds."""

    needed = (RUN_MEMBER, EPISODES_MEMBER)

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path = path
        names = set()
        with _guarded(str(path)), os.scandir(path) as entries:
            for count, entry in enumerate(entries, 1):
                if count > _MAX_MEMBERS:
                    raise Refusal("too_many", str(path), f"over {_MAX_MEMBERS} files")
                known = {*MEMBERS, *_LEFT_BY_RUN}
                if entry.name in known or _is_torn(entry.name, known):
                    names.add(entry.name)
                else:
                    faults.add("extra_file", shown(entry.name), "no file of a run")
        super().__init__(str(path), frozenset(names))

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading, if it is a regular one."""
        return open_plain(self._path / name, follow=False)


def _is_torn(name: str, known: set[str]) -> bool:
    """Return whether a file is one that was being written when a run was killed."""
    return name.startswith(".") and name[1:].removesuffix(".part") in known


class Bundle(Source):
    """A zip archive of exactly `MEMBERS`."""

    def __init__(self, file: IO[bytes], place: str, faults: Faults) -> None:
        _check_frame(file, place)
        try:
            self._zip = zipfile.ZipFile(file)
        except _NO_ARCHIVE as error:
            raise Refusal("bad_archive", place, f"no zip archive: {error}") from None
        members = self._zip.infolist()
        if len(members) > _MAX_MEMBERS:
            raise Refusal("too_many", place, f"{len(members)} members")
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in members:
            if self._accept(member, place, faults):
                self._members[member.orig_filename] = member
        super().__init__(place, frozenset(self._members))

    def _accept(self, member: zipfile.ZipInfo, place: str, faults: Faults) -> bool:
        """Return whether a member may be opened; note why not."""
        name = member.orig_filename
        fault = _fault_of_name(name)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if fault is None and name in self._members:
            fault = "bad_archive", "two members of this name"
        if fault is None and (kind not in (0, stat.S_IFREG) or member.is_dir()):
            fault = "not_a_file", "a link, device, pipe or folder"
        if fault is None and name not in MEMBERS:
            fault = "extra_file", f"a bundle holds {', '.join(MEMBERS)} and no more"
        if fault is None and member.flag_bits & 0x41:
            fault = "bad_archive", "it is encrypted"
        packings = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if fault is None and member.compress_type not in packings:
            fault = "bad_archive", f"packed in way {member.compress_type}, not deflate"
        most = MAX_SMALL.get(name, MAX_EPISODES_FILE)
        if fault is None and member.file_size > most:
            fault = "too_large", f"declares {member.file_size} bytes; at most {most}"
        if fault is not None:
            faults.add(fault[0], f"{place}/{shown(name)}", fault[1])
        return fault is None

    def packed(self, name: str) -> int:
        """Return the packed size that the directory declares."""
        return max(1, self._members[name].compress_size)

    def declared(self, name: str) -> int:
        """Return the unpacked size that the directory declares."""
        return self._members[name].file_size

    def open(self, name: str) -> IO[bytes]:
        """Open a member for reading; nothing is extracted."""
        member = cast(io.RawIOBase, self._zip.open(self._members[name]))
        return io.BufferedReader(member, 1 << 16)


def _fault_of_name(name: str) -> tuple[str, str] | None:
    """Return what is wrong with the name of a member."""
    if not name.isascii() or not name.isprintable() or not name:
        return "bad_name", "the name is not plain ASCII"
    parts = name.replace("\\", "/").split("/")
    if name[0] in "/\\" or ".." in parts or "\\" in name or _DRIVE.match(name):
        return "path_escape", "the name leads out of the archive"
    return None


def _check_frame(file: IO[bytes], place: str) -> None:
    """Refuse an archive whose directory is not small and at its very end.

    Python's reader takes in the whole directory at once, however large.
    """
    size = file.seek(0, os.SEEK_END)
    if size > MAX_ARCHIVE:
        raise Refusal("too_large", place, f"{size} bytes; at most {MAX_ARCHIVE}")
    if size < _END.size:
        raise Refusal("bad_archive", place, "too short for a zip archive")
    file.seek(max(0, size - _END.size - 20))
    locator = file.read(20)
    file.seek(size - _END.size)
    tail = file.read(_END.size)
    file.seek(0)
    sign, disk, disk2, here, count, length, start, comment = _END.unpack(tail)
    if sign != b"PK\x05\x06" or comment:
        raise Refusal(
            "bad_archive", place, "no zip archive, or something stands behind its end"
        )
    if count > _MAX_MEMBERS or length > _MAX_DIRECTORY:
        raise Refusal("too_many", place, f"{count} members, directory {length} bytes")
    if locator.startswith(_END64) or disk or disk2 or here != count:
        raise Refusal("bad_archive", place, "a zip archive of several parts, or zip64")
    if start + length + _END.size != size:
        raise Refusal("bad_archive", place, "something stands around its directory")


@contextlib.contextmanager
def _guarded(name: str) -> Iterator[None]:
    """Turn what reading a damaged file raises into a refusal."""
    try:
        yield
    except _BROKEN as error:
        raise Refusal("bad_archive", name, f"cannot be unpacked: {error}") from None
    except OSError as error:
        raise Refusal("not_a_file", name, why(error)) from None
