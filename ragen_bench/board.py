"""`Board`: a frozen list of episodes plus rules, read from one TOML file each.

A cell of a board plays the first seeds from 0 on, without those whose instance an
earlier seed has shown already.  `freeze` finds these and sums the list up in a digest.
"""

import hashlib
import hmac
import importlib.resources
import itertools
import json
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from ragen_bench.agent import AgentClass
from ragen_bench.errors import GenerationError, InvalidSpec, UnknownName
from ragen_bench.records import SCHEMA, CellPlan, Record, RunConfig, sha256_of
from ragen_bench.registry import make
from ragen_bench.symbolic import Split, SymbolicEnv
from ragen_bench.text_env import PromptLength

_FOLDER = "ragen_bench.leaderboards"
_SUFFIX = ".toml"
_PATIENCE = 1000
"""Seeds in a row without a new instance, after which a cell has no more."""
_WIDTH = 88
SALT = r"^[!-~]{32,200}$"
"""What a salt of a seal looks like: too long to be guessed, on one line."""
_HEAD = "# scripts/freeze_board.py fills in digest and skip."


class BoardCell(Record):
    """One cell of a board."""

    env_id: str
    level: int = Field(ge=1)
    seeds: int = Field(ge=1)
    """How many seeds are played."""
    skip: tuple[int, ...] = ()
    """Seeds that are left out: their instance repeats an earlier one."""

    @field_validator("skip")
    @classmethod
    def _ascending(cls, skip: tuple[int, ...]) -> tuple[int, ...]:
        if list(skip) != sorted(set(skip)) or (skip and skip[0] < 0):
            raise ValueError("must be ascending seeds of at least 0, none twice")
        return skip

    def plan(self) -> CellPlan:
        """Return the cell with its seeds, the first ones that are not skipped."""
        skip = set(self.skip)
        seeds = [seed for seed in range(self.seeds + len(skip)) if seed not in skip]
        return CellPlan(
            env_id=self.env_id, level=self.level, seeds=tuple(seeds[: self.seeds])
        )


class Rules(Record):
    """What an entry is free to choose."""

    prompts: tuple[PromptLength, ...] = get_args(PromptLength)
    """Lengths of the prompt."""
    max_shots: int = Field(default=8, ge=0)
    """The most solved examples in a prompt."""
    classes: tuple[AgentClass, ...] = get_args(AgentClass)
    """What may play."""


class Seal(Record):
    """A promise about seeds that nobody but the board's keepers knows yet.

    `ragen_bench.sealing` draws the seeds from the salt.
    """

    commitment: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the salt, a line break and the board's digest."""
    seeds: int | None = Field(default=None, ge=1)
    """How many seeds a cell plays; None: as many as the board's own."""
    salt: str | None = Field(default=None, pattern=SALT)
    """None until it is revealed."""

    def is_opened_by(self, salt: str, digest: str) -> bool:
        """Return whether the commitment was made with a salt, for a board's digest."""
        return hmac.compare_digest(commitment_of(salt, digest), self.commitment)


def commitment_of(salt: str, digest: str) -> str:
    """Return the commitment to a salt for the board with a digest, as hex digits."""
    return hashlib.sha256(f"{salt}\n{digest}".encode()).hexdigest()


class Board(Record):
    """A frozen list of (cell, split, seed, rep), and rules.

    Load one by `load`; every key of the TOML file is a field of this record.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    version: int = Field(1, ge=1)
    """Raised whenever the list or the rules change."""
    title: str
    """One line for people."""
    split: Split = "test"
    repeats: int = Field(1, ge=1)
    """Episodes on each seed."""
    digest: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 over (cell, split, seed, instance digest) of the list; see `freeze`."""
    env_args: Mapping[str, Any] = Field(default_factory=dict)
    """Settings of every environment, such as a preset."""
    rules: Rules = Rules()
    seal: Seal | None = None
    """A second list of seeds, not yet known to those who submit."""
    cells: tuple[BoardCell, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.schema_version != SCHEMA:
            raise ValueError(
                f"schema is {self.schema_version}, but this version of ragen-bench "
                f"reads {SCHEMA}"
            )
        names = [cell.plan().cell for cell in self.cells]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"cell {name} stands there twice")
        seal = self.seal
        if seal and seal.salt and not seal.is_opened_by(seal.salt, self.digest):
            raise ValueError(
                "seal.salt does not belong to seal.commitment and digest; take the "
                "salt out, or put back the board that was sealed"
            )
        return self

    def plans(self) -> tuple[CellPlan, ...]:
        """Return the cells with their seeds."""
        return tuple(cell.plan() for cell in self.cells)

    def breaches(
        self, config: RunConfig, sealed: tuple[CellPlan, ...] | None = None
    ) -> tuple[str, ...]:
        """Return in which ways a run is not this board's; none if it is.

        Each is a short phrase that names the setting, its value and the rule.

        Args:
            config: The run.
            sealed: What `ragen_bench.sealing.sealed_plans` gives, for a run on sealed
                seeds; without it their cells and seeds are not compared.
        """
        commitment = self.seal.commitment if self.seal and config.sealed else None
        fixed = {
            "board": (config.board, self.name),
            "board version": (config.board_version, self.version),
            "split": (config.split, self.split),
            "repeats": (config.repeats, self.repeats),
            "env_args": (dict(config.env_args), dict(self.env_args)),
            "sealed": (config.sealed, commitment),
        }
        found = [
            f"{name} is {given!r}, but must be {wanted!r}"
            for name, (given, wanted) in fixed.items()
            if given != wanted
        ]
        if config.salt:
            # Whoever may choose the noise may try until it is kind.  A salt may be a
            # secret of the keepers, so that it is not shown.
            found.append("a salt moves the noise, but a board's noise is fixed")
        plans = sealed if config.sealed else self.plans()
        if plans is not None and config.cells != plans:
            found.append("cells or seeds are not those of the board")
        if config.prompt not in self.rules.prompts:
            allowed = " or ".join(self.rules.prompts)
            found.append(f"prompt is {config.prompt!r}, but must be {allowed}")
        if config.shots > self.rules.max_shots:
            found.append(
                f"shots is {config.shots}, but may be at most {self.rules.max_shots}"
            )
        if config.agent_class not in self.rules.classes:
            allowed = " or ".join(self.rules.classes)
            found.append(f"class is {config.agent_class!r}, but must be {allowed}")
        return tuple(found)


def names() -> tuple[str, ...]:
    """Return the names of the boards that ship with the project, sorted."""
    files = importlib.resources.files(_FOLDER).iterdir()
    return tuple(
        sorted(
            file.name.removesuffix(_SUFFIX)
            for file in files
            if file.name.endswith(_SUFFIX)
        )
    )


def load(name_or_path: str | Path) -> Board:
    """Return a board.

    Args:
        name_or_path: A name of `names`, or the path of a file that ends in ``.toml``.

    Raises:
        UnknownName: No such board or file, or a key of the file is unknown.
        InvalidSpec: The file breaks a rule.
    """
    text = str(name_or_path)
    if text.endswith(_SUFFIX):
        try:
            raw = Path(text).read_bytes()
        except OSError as error:
            raise UnknownName(
                f"board file {text!r} cannot be read: {error.strerror}"
            ) from error
        return _parse(raw, text)
    known = names()
    if text not in known:
        raise UnknownName.of("board", text, known, "ragen-bench ls boards lists all")
    file = importlib.resources.files(_FOLDER) / f"{text}{_SUFFIX}"
    board = _parse(file.read_bytes(), f"board {text!r}")
    if board.name != text:
        raise InvalidSpec(
            f"board {text!r} has the name {board.name!r}, but must be named like its "
            "file"
        )
    return board


def _parse(raw: bytes, where: str) -> Board:
    try:
        table = tomllib.loads(raw.decode())
    except ValueError as error:
        raise InvalidSpec(f"{where} is not TOML: {error}") from error
    try:
        return Board.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        *above, key = first["loc"]
        fields = _fields_at(above)
        fault = UnknownName.of(f"key of {where}", key, fields)
        raise UnknownName(f"{fault} (at {place})")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        message = f"{place} is missing"
    elif place:
        message = (
            f"{place} is {first['input']!r:.80}: {message[0].lower()}{message[1:]}"
        )
    raise InvalidSpec(f"{where}: {message}")


def _fields_at(above: Sequence[int | str]) -> list[str]:
    """Return the keys that a place of the file may hold."""
    kinds: dict[str, type[BaseModel]] = {
        "rules": Rules,
        "seal": Seal,
        "cells": BoardCell,
    }
    kind = kinds[str(above[0])] if above else Board
    return [field.alias or name for name, field in kind.model_fields.items()]


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


class Instance(NamedTuple):
    """One line of a board's list, as it enters the digest."""

    cell: str
    split: Split
    seed: int
    digest: str


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
