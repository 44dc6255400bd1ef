"""The numbers of a training, from its files or from what another trainer logged.

A table of another tool needs a column of iterations and some of those that the
detectors look at; the names that RAGEN gives them, as wandb exports them, are known.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ragen_bench.errors import RecordError, UnknownName

METRICS = "metrics.csv"
GRADIENT_ROWS = "gradients.csv"
ROLLOUTS = "rollouts"
"""Folder of the episodes that were kept."""

FOREIGN: Mapping[str, str] = MappingProxyType(
    {
        "iteration": r"_?step|training/global_step",
        "success": r"train/[^/]+/success",
        "return_mean": r"rollout/in_group_reward_mean",
        "spread_mean": r"rollout/in_group_reward_std",
        "entropy": r"actor/entropy(_loss)?",
        "grad_norm": r"actor/grad_norm",
        "reply_tokens": r"response_length/mean",
        "valid_rate": r"train/[^/]+/action_is_valid",
    }
)
"""Our columns to RAGEN's, as patterns; a run's name may stand before them."""

Numbers = dict[str, float | None]


def read_metrics(path: Path, columns: Mapping[str, str] | None = None) -> list[Numbers]:
    """Return the rows of a table of metrics; what is no number becomes None.

    Args:
        path: A training's folder, its ``metrics.csv``, or another CSV file.
        columns: Our names to those in the file, where they differ.

    Raises:
        RecordError: There is no such table, or it has no iterations.
        UnknownName: The table has no column of a name that is given.
    """
    if not path.exists():
        raise RecordError(f"{path} is neither a training's folder nor a CSV file")
    if path.is_dir():
        if not (path / METRICS).exists():
            raise RecordError(
                f"{path} has no {METRICS}: give the folder of a training, or a CSV "
                "file of metrics"
            )
        path = path / METRICS
    names, lines = _read(path)
    ours = _named(names, columns or {})
    if "iteration" not in ours:
        raise RecordError(
            f"{path} has no column 'iteration'; the metrics of a training have one, "
            "or name it with --column iteration=NAME"
        )
    rows = [{k: _number(line.get(v)) for k, v in ours.items()} for line in lines]
    return [row for row in rows if row["iteration"] is not None]


def read_gradients(folder: Path) -> list[tuple[str, Numbers]]:
    """Return term and numbers of each row of ``gradients.csv``; none without a file.

    Raises:
        RecordError: The file cannot be read, or is of another kind.
    """
    path = folder / GRADIENT_ROWS
    if not path.exists():
        return []
    names, lines = _read(path)
    wanted = ("iteration", "bucket", "spread_low", "spread_high", "norm_per_token")
    for name in ("term", *wanted):
        if name not in names:
            raise RecordError(f"{path} has no column {name!r}; write it anew")
    rows = [(line["term"], {n: _number(line[n]) for n in wanted}) for line in lines]
    if any(row[name] is None for _, row in rows for name in wanted[:2]):
        raise RecordError(f"{path} has a row without iteration or bucket")
    return rows


def _read(path: Path) -> tuple[Sequence[str], list[dict[str, str]]]:
    """Return the columns of a CSV file and its whole lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        # A training that was killed, or still runs, may leave half a row.
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        lines = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    return reader.fieldnames or (), lines


def _named(names: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Return our names to those of a file: as given, the same, or RAGEN's."""
    for name in columns.values():
        if name not in names:
            raise UnknownName.of("column", name, names)
    found = dict(columns)
    taken = set(columns.values())
    for name in names:
        if name and name not in taken:
            found.setdefault(name, name)
    for ours, pattern in FOREIGN.items():
        whole = re.compile(rf"(.* - )?({pattern})", re.IGNORECASE)
        match = next((name for name in names if whole.fullmatch(name)), None)
        if match is not None:
            found.setdefault(ours, match)
    return found


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
