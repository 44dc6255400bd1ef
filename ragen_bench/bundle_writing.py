"""A run folder to a bundle: equal runs and words give equal bytes.

A bundle holds all that the verification needs and nothing that somebody keeps secret
(`ragen_bench.redaction`).
"""

import contextlib
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from ragen_bench.entries import EPISODES_MEMBER, META_MEMBER, RUN_MEMBER, Meta
from ragen_bench.errors import InvalidSpec, RecordError
from ragen_bench.records import Record
from ragen_bench.redaction import KEYS, redact_run, secrets_here
from ragen_bench.run_folder import EPISODES, read_run

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive can hold."""


def write_bundle(folder: Path, meta: Meta, out: Path) -> None:
    """Write a run as a bundle: equal runs and words give equal bytes.

    Raises:
        InvalidSpec: A secret of this machine stands in the episodes.
        RecordError: The folder cannot be read.
    """
    run = redact_run(read_run(folder))
    with zipfile.ZipFile(out, "w") as archive:
        _add(archive, RUN_MEMBER, io.BytesIO(_json(run)))
        try:
            with open(folder / EPISODES, "rb") as episodes:
                _add(archive, EPISODES_MEMBER, _without_secrets(episodes))
        except FileNotFoundError as error:
            raise RecordError(f"{str(folder)!r} has no {EPISODES}") from error
        _add(archive, META_MEMBER, io.BytesIO(_json(meta)))


def _add(archive: zipfile.ZipFile, name: str, lines: Iterable[bytes]) -> None:
    info = zipfile.ZipInfo(name, date_time=_EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # else it tells on which system it was packed
    info.external_attr = 0o100644 << 16
    with archive.open(info, "w") as member:
        for line in lines:
            member.write(line)


def _without_secrets(episodes: IO[bytes]) -> Iterator[bytes]:
    """Yield whole lines, none of which holds a secret of this machine."""
    secrets = [json.dumps(secret)[1:-1].encode() for secret in secrets_here()]
    for number, line in enumerate(episodes, 1):
        if any(secret in line for secret in secrets):
            raise InvalidSpec(
                f"{EPISODES} line {number} holds the value of an environment variable "
                "that is named like a secret; look at it, and play the run again "
                "without that variable if it is one"
            )
        if KEYS.search(line.decode("utf-8", "replace")):
            raise InvalidSpec(
                f"{EPISODES} line {number} holds what looks like a provider's key; "
                "look at it, and play the run again without it"
            )
        if line.endswith(b"\n"):
            yield line
            continue
        # The last one: whole, or cut off by what stopped the run.
        with contextlib.suppress(ValueError):
            json.loads(line)
            yield line + b"\n"


def _json(record: Record) -> bytes:
    facts = record.model_dump(mode="json")
    text = json.dumps(facts, indent=2, sort_keys=True, allow_nan=False)
    return f"{text}\n".encode("ascii")
