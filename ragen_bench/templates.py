"""What ``ragen-bench new`` writes: one file each, that works before it is edited."""

import importlib.util
import keyword
import re
import shlex
import string
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from ragen_bench import template_texts
from ragen_bench.errors import InvalidSpec

Kind: TypeAlias = Literal["env", "agent", "board", "algorithm"]

_MODULE_NAME = re.compile(r"[a-z][a-z0-9_]*")
_BOARD_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")

_TEXTS: Mapping[Kind, str] = MappingProxyType(
    {
        "env": template_texts.ENV,
        "agent": template_texts.AGENT,
        "board": template_texts.BOARD,
        "algorithm": template_texts.ALGORITHM,
    }
)


_HOMES: Mapping[Kind, tuple[str, str]] = MappingProxyType(
    {
        "env": ("ragen_bench.envs", ""),
        "agent": ("ragen_bench.agents", ""),
        # To import algorithms themselves takes PyTorch.
        "algorithm": ("ragen_bench.starpo", "algorithms"),
    }
)
"""Package, and folder in it, where a file is found by its name alone."""


class Written(NamedTuple):
    """A new file, and commands that try it."""

    path: Path
    commands: tuple[str, ...]


def write(kind: Kind, name: str, out: Path | None = None) -> Written:
    """Write the one file of a new environment, agent, board or algorithm.

    Args:
        kind: What it is.
        name: Of the module, or of the board.
        out: A folder, or the file itself; the working directory by default.

    Raises:
        InvalidSpec: The name is not allowed or taken, or the file exists already or
            cannot be made.
    """
    _check_name(kind, name)
    suffix = ".toml" if kind == "board" else ".py"
    path = out or Path()
    if path.suffix != suffix:
        path = path / f"{name}{suffix}"
    if path.stem != name:
        raise InvalidSpec(
            f"--out is {str(path)!r}, but the file of {name!r} is called {name}{suffix}"
        )
    filled = string.Template(_TEXTS[kind]).substitute(name=name, cls=_class_name(name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="ascii", newline="\n") as file:
            file.write(filled)
    except OSError as error:
        raise InvalidSpec(
            f"{str(path)!r} cannot be written: {error.strerror}; choose another name "
            "or --out"
        ) from error
    return Written(path, _commands(kind, name, path))


def _check_name(kind: Kind, name: str) -> None:
    if kind == "board":
        if not _BOARD_NAME.fullmatch(name):
            raise InvalidSpec(
                f"name is {name!r}, but must be lower-case letters, digits, '.', '_' "
                "and '-', such as 'my-board'"
            )
        return
    if not _MODULE_NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InvalidSpec(
            f"name is {name!r}, but must be a module's name: lower-case letters, "
            "digits and '_', such as 'my_maze'"
        )
    found = importlib.util.find_spec(name)
    # A module of the working directory is the file itself, of which open() speaks.
    if found is not None and not _lies_here(found.origin):
        raise InvalidSpec(
            f"name is {name!r}, but a module of that name is installed and would be "
            "imported in its place; choose another"
        )


def _lies_here(origin: str | None) -> bool:
    return origin is not None and Path(origin).resolve().parent == Path.cwd()


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in re.split(r"[._-]", name))


def _commands(kind: Kind, name: str, path: Path) -> tuple[str, ...]:
    if kind == "board":
        return (f"ragen-bench run --board {shlex.quote(str(path))} --agent random",)
    program, imported = _found_by(kind, name, path)
    if kind == "agent":
        return (
            f"{program} check{imported} --agent {name}",
            f"{program} run{imported} --agent {name} --env ragen/Bandit-v0:1",
        )
    if kind == "algorithm":
        settings = "--preset tiny-cpu --set iterations=3 --set clone_seconds=1"
        return (
            f"{program} train{imported} {settings} --set algorithm={name}",
            f"python -m doctest {shlex.quote(str(path))}",
        )
    env_id = f"my/{_class_name(name)}-v0"
    return (
        f"{program} check{imported} {env_id}",
        f"{program} play{imported} {env_id}",
        f"{program} run{imported} --env {env_id} --agent random",
    )


def _found_by(kind: Kind, name: str, path: Path) -> tuple[str, str]:
    """Return the program and the option with which a new module is imported."""
    folder = path.resolve().parent
    package, inner = _HOMES[kind]
    own = importlib.import_module(package).__path__
    if folder in (Path(place, inner).resolve() for place in own):
        return "ragen-bench", ""
    if folder == Path.cwd():
        return "ragen-bench", f" --import {name}"
    return f"PYTHONPATH={shlex.quote(str(folder))} ragen-bench", f" --import {name}"
