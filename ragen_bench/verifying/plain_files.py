"""Opens regular files, and nothing that only looks like one."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ragen_bench.verifying.faults import Refusal


def open_plain(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading; nothing else is waited for or opened.

    Raises:
        Refusal: It is a link (unless followed), a device, a pipe or a folder.
    """
    place = path.name
    flags = os.O_RDONLY
    # A pipe without a writer must not hold us up, a terminal must not become ours.
    for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        if not follow and not stat.S_ISREG(os.lstat(path).st_mode):
            raise Refusal("not_a_file", place, "a link, device, pipe or folder")
        descriptor = os.open(path, flags)
    except OSError as error:
        code = "missing_file" if error.errno == errno.ENOENT else "not_a_file"
        raise Refusal(code, place, why(error)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refusal("not_a_file", place, "a device, pipe or folder")
    return os.fdopen(descriptor, "rb", buffering=1 << 16)


def why(error: Exception) -> str:
    """Return what an error of the file system says."""
    return getattr(error, "strerror", None) or str(error)
