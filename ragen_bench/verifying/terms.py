"""What a run is held to: the list and settings of its board, or its own."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ragen_bench.board import Board, load, names
from ragen_bench.errors import RagenError
from ragen_bench.records import CellPlan, RunConfig
from ragen_bench.registry import core_class, env_ids, find, setting_names
from ragen_bench.sealing import sealed_plans
from ragen_bench.verifying.faults import Faults, Refusal, shown
from ragen_bench.verifying.players import check_player

MAX_EPISODES = 250_000
_MAX_SHOTS = 64
_MAX_LIMIT = 200
"""Of turns and actions, where no board sets them."""
_MAX_SEED = 2**63
_LONGEST_SALT = 1000
_ENV_ID = re.compile(r"ragen/[A-Za-z0-9]+(-[A-Za-z0-9]+)*-v[0-9]{1,4}", re.ASCII)
_BOARD = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}", re.ASCII)
_NUMBERS = frozenset({"max_turns", "max_actions_per_turn", "max_actions"})


def find_board(board: str | Path | Board) -> Board:
    """Return the board that somebody asks for, who is trusted.

    Raises:
        RagenError: There is none, or its file breaks a rule.
    """
    return board if isinstance(board, Board) else load(board)


def named_board(config: RunConfig, faults: Faults) -> Board | None:
    """Return the board that a run names, if it ships with the project."""
    name = config.board
    if name is None:
        return None
    # A stranger's name is never taken for a path.
    if _BOARD.fullmatch(name) and name in names():
        return load(name)
    way_out = "give --board FILE.toml if you have it"
    if config.sealed is not None:
        way_out = "give --board FILE.toml, the board with its seal, and --salt @FILE"
    message = f"no board {shown(name)!r}; {way_out}"
    faults.add("board_unknown", "run.json", message)
    return None


def planned(
    config: RunConfig, board: Board | None, salt: str | None, faults: Faults
) -> RunConfig:
    """Return the configuration that a run is held to: that of its board, if any.

    Raises:
        Refusal: It cannot be played here.
    """
    _check_names(config, faults)
    if len(config.salt) > _LONGEST_SALT:
        message = f"salt has {len(config.salt)} characters; at most {_LONGEST_SALT}"
        raise Refusal("bad_setting", "run.json", message)
    if board is None:
        if not faults.has("board_unknown"):
            _check_no_seal(config, salt, faults)
        _check_own(config)
        return config
    sealed = _sealed(config, board, salt, faults)
    # What the seal is to the run was said by `_sealed`.
    breaches = [b for b in board.breaches(config, sealed) if not b.startswith("sealed")]
    # A salt is such a breach, and the noise is what it made of it.
    held = config.model_copy(
        update={
            "board": board.name,
            "board_version": board.version,
            "split": board.split,
            "repeats": board.repeats,
            "env_args": board.env_args,
            "breaches": tuple(breaches),
        }
    )
    _compare_board(config, breaches, sealed or board.plans(), faults)
    _check_shots(config)
    plans = sealed if config.sealed else board.plans()
    if plans is not None:
        return held.model_copy(update={"cells": plans})
    _check_seeds(config)
    wanted = [(cell.env_id, cell.level) for cell in board.cells]
    if [(cell.env_id, cell.level) for cell in config.cells] != wanted:
        raise Refusal("not_the_board", "run.json", "the cells are not the board's")
    return held


def _check_no_seal(config: RunConfig, salt: str | None, faults: Faults) -> None:
    """Refuse sealed seeds, or a salt for them, where there is no board."""
    if config.sealed is not None:
        message = "the seeds are sealed, but the run names no board; give --board "
        message += "FILE.toml, the board with its seal, and --salt @FILE"
        faults.add("seal_mismatch", "run.json", message)
    elif salt is not None:
        message = "--salt opens a board's seal, but the run is of no board; "
        message += "leave --salt out (a salt of the run's own is in its record)"
        faults.add("seal_mismatch", "run.json", message)


def _sealed(
    config: RunConfig, board: Board, salt: str | None, faults: Faults
) -> tuple[CellPlan, ...] | None:
    """Return the sealed list that a run on sealed seeds must have played."""
    place = "run.json"
    seal = board.seal
    if config.sealed is None:
        if salt is not None:
            message = "--salt is given, but the run has open seeds; leave --salt out"
            faults.add("seal_mismatch", place, message)
        return None
    if seal is None or config.sealed != seal.commitment:
        message = f"sealed is {shown(config.sealed)!r}, but board {board.name!r} has "
        message += f"{seal.commitment if seal else 'no seal'}; give --board FILE.toml, "
        message += "the file with the seal that was played"
        if salt is None:
            message += ", and --salt @FILE unless that file tells the salt"
        faults.add("seal_mismatch", place, message)
        return None
    known = salt or seal.salt
    if known is None:
        message = "the run has sealed seeds, which cannot be checked without the "
        message += "salt of the seal; give --salt @FILE, or wait until it is revealed"
        faults.add("seal_mismatch", place, message)
        return None
    try:
        return sealed_plans(board, known)
    except RagenError as error:
        faults.add("seal_mismatch", place, str(error))
        return None


def _compare_board(
    config: RunConfig,
    breaches: Iterable[str],
    plans: tuple[CellPlan, ...],
    faults: Faults,
) -> None:
    """Note in which ways a run is not its board's, each under its own code."""
    place = "run.json"
    for breach in breaches:
        if breach.startswith("board version"):
            faults.add("board_version", place, breach)
        elif breach.startswith("cells or seeds"):
            _compare_cells(config, plans, faults)
        elif breach.startswith("a salt"):
            way_out = "a board is played without --salt, unless it is sealed"
            faults.add("not_the_board", place, f"{breach}; {way_out}")
        else:
            faults.add("not_the_board", place, breach)


def _compare_cells(
    config: RunConfig, plans: tuple[CellPlan, ...], faults: Faults
) -> None:
    place = "run.json"
    wanted = {plan.cell: set(plan.seeds) for plan in plans}
    if [cell.cell for cell in config.cells] != list(wanted):
        faults.add("not_the_board", place, "the cells are not the board's")
    else:
        for cell in config.cells:
            strange = set(cell.seeds) - wanted[cell.cell]
            if strange:
                message = f"seed {min(strange)} of {cell.cell} is not in the list"
                faults.add("seed_not_in_board", place, message)
            elif len(cell.seeds) != len(wanted[cell.cell]):
                message = f"{cell.cell} has not all seeds of the list"
                faults.add("not_the_board", place, message)


def _check_names(config: RunConfig, faults: Faults) -> None:
    """Refuse names that are no plain ones, and things that are not ours."""
    known = set(env_ids())
    for cell in config.cells:
        name = cell.env_id
        # Only what ships with the project is ever loaded.
        plain = _ENV_ID.fullmatch(name) is not None and name in known
        if not plain or not find(name).kwargs["core"].startswith("ragen_bench.envs."):
            message = f"{shown(name)!r} is no environment of ragen-bench's own"
            raise Refusal("bad_name", "run.json", message)
        if cell.level not in core_class(name).levels:
            message = f"{name} has no level {cell.level}"
            raise Refusal("bad_setting", "run.json", message)
    check_player(config, faults)


def _check_own(config: RunConfig) -> None:
    """Refuse a configuration without a board that could cost too much.

    Raises:
        Refusal: It has too many episodes, or could have instances of any size.
    """
    _check_seeds(config)
    _check_shots(config)
    for cell in config.cells:
        for name, value in config.env_args.items():
            _check_argument(cell, name, value)


def _check_argument(cell: CellPlan, name: str, value: Any) -> None:
    kinds = setting_names(cell.env_id)
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    sound = name in kinds or name == "preset"
    if name in _NUMBERS:
        sound = sound and type(value) is int and 1 <= value <= _MAX_LIMIT
    elif name == "format_penalty":
        sound = sound and numeric
    else:
        sound = sound and (value is None or isinstance(value, str | bool))
    if not sound or (isinstance(value, str) and len(value) > 100):
        raise Refusal(
            "bad_setting",
            "run.json",
            f"env argument {shown(name)}={shown(value)} of {cell.env_id} cannot be "
            "replayed without a board that sets it",
        )


def _check_shots(config: RunConfig) -> None:
    if config.shots > _MAX_SHOTS:
        message = f"shots is {config.shots}; at most {_MAX_SHOTS} are replayed"
        raise Refusal("bad_setting", "run.json", message)


def _check_seeds(config: RunConfig) -> None:
    """Refuse a list that is too long, has something twice, or seeds out of range."""
    place = "run.json"
    total = config.repeats * sum(len(cell.seeds) for cell in config.cells)
    if total > MAX_EPISODES:
        raise Refusal("too_many", place, f"{total} episodes; at most {MAX_EPISODES}")
    cells = [cell.cell for cell in config.cells]
    if len(set(cells)) != len(cells) or not cells or not total:
        raise Refusal("schema", place, "a cell comes twice, or nothing is planned")
    for cell in config.cells:
        if len(set(cell.seeds)) != len(cell.seeds):
            raise Refusal("schema", place, f"{cell.cell} has a seed twice")
        if min(cell.seeds, default=0) < 0 or max(cell.seeds, default=0) >= _MAX_SEED:
            raise Refusal("bad_number", place, f"{cell.cell} has a seed out of range")
