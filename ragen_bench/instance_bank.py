"""The instances of a shipped board and their exact values, drawn and solved once.

Drawing and solving is most of what a replay costs.  A bank changes no result: it
belongs to one digest of a board, which sums up its instances, and the tests compare it
with what is drawn and solved anew.  ``scripts/freeze_board.py --bank`` writes it.
"""

import gzip
import importlib.resources
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ragen_bench.board import Board
from ragen_bench.episode import Reference, reference
from ragen_bench.registry import make

_FOLDER = "ragen_bench.leaderboards"


class Known(NamedTuple):
    """An instance and what it is worth."""

    instance: Any
    reference: Reference


def file_name(board: Board) -> str:
    """Return the name of a board's bank, beside its TOML file."""
    return f"{board.name}.instances.json.gz"


def bank(board: Board) -> Mapping[tuple[str, int], Known]:
    """Return (cell, seed) to what is known of a board's instances.

    Empty where no bank ships for this very board.
    """
    file = importlib.resources.files(_FOLDER) / file_name(board)
    if not board.digest or not file.is_file():
        return {}
    held = json.loads(gzip.decompress(file.read_bytes()))
    if held["digest"] != board.digest:
        return {}
    return dict(_known(board, held["cells"]))


def _known(
    board: Board, cells: Mapping[str, list[Any]]
) -> Iterator[tuple[tuple[str, int], Known]]:
    for plan in board.plans():
        for seed, row in zip(plan.seeds, cells[plan.cell], strict=True):
            instance, digest, floor, ceiling, cost = row
            yield (
                (plan.cell, seed),
                Known(
                    instance,
                    Reference(
                        instance=digest,
                        floor=floor,
                        ceiling=ceiling,
                        optimal_cost=cost,
                    ),
                ),
            )


def to_bytes(board: Board) -> bytes:
    """Return the bank of a board; the same bytes at any time.

    It draws and solves every instance, which may take minutes.
    """
    cells: dict[str, list[Any]] = {}
    for plan in board.plans():
        env = make(plan.env_id, level=plan.level, split=board.split, **board.env_args)
        rows = cells[plan.cell] = []
        for seed in plan.seeds:
            env.reset(seed=seed)
            worth = reference(env)
            rows.append(
                [
                    env.core.instance,
                    worth.instance,
                    worth.floor,
                    worth.ceiling,
                    worth.optimal_cost,
                ]
            )
    text = json.dumps(
        {"digest": board.digest, "cells": cells}, separators=(",", ":"), allow_nan=False
    )
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        file.write(text.encode("ascii"))
    return packed.getvalue()
