"""What somebody says about a run, compared with what the replay gives."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen_bench.entries import SETTINGS, Entry
from ragen_bench.records import Summary
from ragen_bench.verifying.faults import Faults, Refusal, shown
from ragen_bench.verifying.plain_files import open_plain
from ragen_bench.verifying.strict_json import read

_MAX_ENTRY = 16 << 20
_NEAR = 1e-9
_OF_RUN = ("versions", "commit", "command", "started", "model_facts", "prompt_sha256")


def read_entry(path: Path) -> Entry:
    """Return a stranger's entry.

    Raises:
        Refusal: It cannot be read, or names a bundle elsewhere.
    """
    with open_plain(path) as file:
        text = file.read(_MAX_ENTRY + 1)
    if len(text) > _MAX_ENTRY:
        raise Refusal("too_large", path.name, f"over {_MAX_ENTRY} bytes")
    entry = read(Entry, text, path.name)
    name = entry.bundle
    plain = name.isascii() and name.isprintable() and not set(name) & set('/\\:*?"<>|')
    if not plain or not name.endswith(".zip") or name.startswith("."):
        message = f"bundle is {shown(name)!r}, but must be the name of a zip beside it"
        raise Refusal("path_escape", path.name, message)
    return entry


def compare_summary(said: Summary, found: Summary, place: str, faults: Faults) -> None:
    """Add a fault for what a summary says otherwise than the replay."""
    before, now = said.model_dump(mode="json"), found.model_dump(mode="json")
    for name, told, real in differences(before, now, ""):
        faults.add(
            "score_mismatch",
            place,
            f"{shown(name)} is {shown(told)}, but the replay gives {shown(real)}",
        )


def compare_entry(
    entry: Entry, checked: Any, digest: str, place: str, faults: Faults
) -> None:
    """Add a fault for what an entry says otherwise than the replay of its bundle.

    Args:
        entry: The entry.
        checked: The `Verification` of its bundle.
        digest: SHA-256 of the bundle's episodes, as they were read.
        place: The entry's file name.
        faults: Takes the differences.
    """
    if checked.run is None or checked.summary is None:
        return
    compare_summary(entry.summary, checked.summary, place, faults)
    for name in ("returns", "successes"):
        for where, told, real in differences(
            _lists(getattr(entry, name)), _lists(getattr(checked, name)), name
        ):
            message = f"{where} is {shown(told)}, but the replay gives {shown(real)}"
            faults.add("score_mismatch", place, message)
    if digest != entry.episodes_sha256:
        message = f"episodes have SHA-256 {digest}, not {entry.episodes_sha256}"
        faults.add("hash_mismatch", place, message)
    config = checked.run.config.model_dump(mode="json")
    run = checked.run.model_dump(mode="json")
    real = {name: run[name] for name in _OF_RUN}
    real["settings"] = {name: config[name] for name in SETTINGS}
    real |= {"board": config["board"], "board_version": config["board_version"]}
    real["sealed"] = config["sealed"]
    real["meta"] = checked.meta.model_dump(mode="json") if checked.meta else None
    real["warnings"] = [str(warning) for warning in checked.warnings]
    if entry.status == "sealed" and config["sealed"] is None:
        real["status"] = "replayed"
    told = entry.model_dump(mode="json")
    for where, one, other in differences({n: told[n] for n in real}, real, ""):
        message = f"{shown(where)} is {shown(one)}, but the bundle has {shown(other)}"
        faults.add("entry_mismatch", place, message)


def _lists(by_cell: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {cell: list(values) for cell, values in by_cell.items()}


def differences(said: Any, found: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """Return where two JSON values differ, and both values there.

    Numbers may differ by 1e-9, as between two machines.

    Args:
        said: One value.
        found: The other.
        name: Of both; what is inside is named by its path, such as ``"score.mean"``.
    """
    if isinstance(said, dict) and isinstance(found, dict):
        parts: list[tuple[str, Any, Any]] = []
        for key in sorted(said.keys() | found.keys()):
            where = f"{name}.{key}".lstrip(".")
            parts += differences(said.get(key), found.get(key), where)
        return parts
    if isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        parts = []
        for index, (one, other) in enumerate(zip(said, found, strict=True)):
            parts += differences(one, other, f"{name}.{index}")
        return parts
    return [] if _is_near(said, found) else [(name, said, found)]


def _is_near(said: Any, found: Any) -> bool:
    if isinstance(said, bool) or isinstance(found, bool):
        return said is found
    if isinstance(said, int | float) and isinstance(found, int | float):
        return math.isclose(said, found, rel_tol=_NEAR, abs_tol=_NEAR)
    return bool(said == found)
