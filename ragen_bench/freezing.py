"""Freezing a board: its list of instances, the digest over it, the text of its file."""

import itertools
import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from ragen_bench.board import Board, BoardCell, Instance
from ragen_bench.errors import GenerationError
from ragen_bench.records import sha256_of
from ragen_bench.registry import make
from ragen_bench.symbolic import SymbolicEnv

_PATIENCE = 1000
"""Seeds in a row without a new instance, after which a cell has no more."""
_WIDTH = 88
_HEAD = "# scripts/freeze_board.py fills in digest and skip."


def freeze(board: Board) -> Board:
    """Return the board with the skipped seeds and the digest that it should have.

    No instance comes twice among the cells of one environment, except where a level
    or preset has only the same few in every split.  A seal is dropped with the digest
    that it was made for.

    Raises:
        GenerationError: A cell has fewer different instances than seeds.
    """
    listed: list[Instance] = []
    seen: dict[str, set[str]] = {}
    cells = []
    for cell in board.cells:
        known = seen.setdefault(cell.env_id, set())
        kept, skip = choose(cell, board, itertools.count(), known)
        listed += kept
        cells.append(cell.model_copy(update={"skip": skip}))
    digest = sha256_of(listed)
    seal = board.seal if digest == board.digest else None
    facts = {"cells": tuple(cells), "digest": digest, "seal": seal}
    return board.model_copy(update=facts)


def choose(
    cell: BoardCell, board: Board, seeds: Iterable[int], seen: set[str]
) -> tuple[list[Instance], tuple[int, ...]]:
    """Return the instances that a cell plays, and the seeds that it skips.

    Args:
        cell: Its ``seeds`` is how many instances are wanted.
        board: Says split and settings.
        seeds: Endless; tried in this order.
        seen: Digests of earlier instances of the environment; new ones are added.

    Raises:
        GenerationError: The cell has fewer different instances.
    """
    env = make(cell.env_id, level=cell.level, split=board.split, **board.env_args)
    core: SymbolicEnv[Any] = env.core
    name = cell.plan().cell
    kept: list[Instance] = []
    skip: list[int] = []
    since = 0
    for seed in seeds:
        core.reset(seed=seed)
        digest = core.instance_digest()
        since += 1
        if core.level_spec.split_exempt or digest not in seen:
            seen.add(digest)
            kept.append(Instance(name, board.split, seed, digest))
            since = 0
            if len(kept) == cell.seeds:
                break
        elif since < _PATIENCE:
            skip.append(seed)
        else:
            raise GenerationError(
                f"{name} has only {len(kept)} different instances in split "
                f"{board.split!r}, but board {board.name!r} asks for {cell.seeds}; "
                "lower its seeds"
            )
    return kept, tuple(skip)


def to_toml(board: Board) -> str:
    """Return the text of a board's file; `load` gives the same board."""
    table = board.model_dump(mode="json")
    sections = {key: table.pop(key) for key in ("env_args", "rules", "seal")}
    cells = table.pop("cells")
    lines = [_HEAD, *_assignments(table)]
    for key, section in sections.items():
        # TOML has no null: what is None is left out.
        known = {k: v for k, v in (section or {}).items() if v is not None}
        if known:
            lines += ["", f"[{key}]", *_assignments(known)]
    for cell in cells:
        shown = {key: value for key, value in cell.items() if value != []}
        lines += ["", "[[cells]]", *_assignments(shown)]
    return "\n".join(lines) + "\n"


def _assignments(table: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, value in table.items():
        line = f"{key} = {_toml(value)}"
        if len(line) > _WIDTH and isinstance(value, list):
            items = ", ".join(map(_toml, value))
            body = textwrap.fill(f"{items},", _WIDTH - 4, break_long_words=False)
            line = f"{key} = [\n{textwrap.indent(body, '    ')}\n]"
        lines.append(line)
    return lines


def _toml(value: Any) -> str:
    """Return a JSON value as TOML, on one line."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # Strings, numbers and truth values are written alike in JSON and TOML.
    return json.dumps(value)
