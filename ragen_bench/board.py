"""`Board`: a frozen list of episodes plus rules, read from one TOML file each.

A cell of a board plays the first seeds from 0 on, without those whose instance an
earlier seed has shown already.  `ragen_bench.freezing` finds these and sums the list up
in a digest.
"""

import hashlib
import hmac
import importlib.resources
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from ragen_bench.agent import AgentClass
from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.records import SCHEMA, CellPlan, Record, RunConfig
from ragen_bench.symbolic import Split
from ragen_bench.text_env import PromptLength

_FOLDER = "ragen_bench.leaderboards"
_SUFFIX = ".toml"
SALT = r"^[!-~]{32,200}$"
"""What a salt of a seal looks like: too long to be guessed, on one line."""


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
    """SHA-256 over (cell, split, seed, instance digest) of the list; see
    `ragen_bench.freezing`."""
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


class Instance(NamedTuple):
    """One line of a board's list, as it enters the digest."""

    cell: str
    split: Split
    seed: int
    digest: str
