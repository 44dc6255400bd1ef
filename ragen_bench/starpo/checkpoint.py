"""Checkpoints: written beside, then renamed; a torn one is never taken for whole.

``DIR/checkpoints/000120`` holds weights, critic, optimizers, the random state of
PyTorch and where training stood; ``DIR/checkpoints/latest`` names the newest.
"""

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ragen_bench.errors import RecordError, RunIncomplete

_STATE = "state.json"
_TENSORS = "tensors.pt"
_LATEST = "latest"
_UNREADABLE = (
    OSError,
    ValueError,
    RuntimeError,
    EOFError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)


def save(
    folder: Path, iteration: int, tensors: Mapping[str, Any], state: Mapping[str, Any]
) -> Path:
    """Write a checkpoint whole, or not at all, and drop the older ones.

    Args:
        folder: Of all checkpoints of a training.
        iteration: How many are done.
        tensors: What PyTorch saves.
        state: JSON-able facts.

    Returns:
        The checkpoint's folder.

    Raises:
        RunIncomplete: The disk is full; the last checkpoint is as it was.
    """
    final = folder / f"{iteration:06d}"
    beside = folder / f".{iteration:06d}.part"
    if final.is_dir() and newest(folder) == final:
        return final
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        with (beside / _TENSORS).open("wb") as file:
            torch.save(dict(tensors), file)
            _settle(file)
        with (beside / _STATE).open("w", encoding="utf-8") as text:
            json.dump(dict(state), text, indent=2, sort_keys=True, allow_nan=False)
            _settle(text)
        _settle_names(beside)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(beside, final)
        _settle_names(folder)
        pointer = folder / f".{_LATEST}.part"
        with pointer.open("w", encoding="utf-8") as text:
            text.write(final.name)
            _settle(text)
        os.replace(pointer, folder / _LATEST)
        _settle_names(folder)
    # PyTorch tells of a full disk in words of its own.
    except (OSError, RuntimeError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise RunIncomplete(
            f"cannot write checkpoint {final}: {why}; make room and run the same "
            "command again"
        ) from error
    for old in folder.iterdir():
        if old.is_dir() and old != final:
            shutil.rmtree(old, ignore_errors=True)
    return final


def newest(folder: Path) -> Path | None:
    """Return the folder of the newest whole checkpoint."""
    pointer = folder / _LATEST
    if not pointer.exists():
        return None
    return folder / pointer.read_text("utf-8", errors="replace").strip()


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return tensors and state of the newest whole checkpoint, None without any.

    Raises:
        RecordError: The newest cannot be read, or is not as it was written.
    """
    place = newest(folder)
    if place is None:
        return None
    try:
        # PyTorch writes a checksum of each array, but does not look at it.
        with zipfile.ZipFile(place / _TENSORS) as archive:
            torn = archive.testzip()
        if torn is not None:
            raise ValueError(f"{_TENSORS} is damaged at {torn}")
        tensors = torch.load(place / _TENSORS, map_location="cpu", weights_only=True)
        state = json.loads((place / _STATE).read_text("utf-8"))
        if not (isinstance(tensors, dict) and isinstance(state, dict)):
            raise ValueError("it holds other things than a checkpoint")
    except _UNREADABLE as error:
        why = str(error).partition("\n")[0]
        raise RecordError(
            f"checkpoint {place} cannot be read: {why}; put back a copy of it, or move "
            f"{folder} away, and the same command begins anew"
        ) from error
    return tensors, state


def _settle(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _settle_names(folder: Path) -> None:
    """Have on disk what a folder calls its files; not every system can be asked."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
