"""Options that several verbs of the command line share."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from ragen_bench.errors import InvalidSpec
from ragen_bench.registry import load_module

if TYPE_CHECKING:
    from ragen_bench.records import Summary

F = TypeVar("F", bound=Callable[..., Any])

SPLITS = ("train", "dev", "test")
PROMPTS = ("full", "compact")

INCOMPLETE = 3
"""The exit code of a run that owes episodes."""
UNRANKABLE = 4
"""The exit code of a complete run that its board cannot rank."""


def key_values(
    context: click.Context, option: click.Parameter, pairs: Sequence[str]
) -> dict[str, Any]:
    """Return the settings that repeated ``key=value`` options give.

    A value that is JSON is read as JSON, any other is kept as text.

    Raises:
        InvalidSpec: A pair has no ``=``, no key, or a key that came before.
    """
    name = option.opts[0]
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidSpec(
                f"{name} is {pair!r}, but must be KEY=VALUE, such as {name} size=3"
            )
        if key in given:
            raise InvalidSpec(
                f"{name} gives {key!r} twice, the second time as {pair!r}; "
                "leave one out"
            )
        given[key] = read_value(value)
    return given


def read_value(text: str) -> Any:
    """Return the JSON value of a text, or the text itself if it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        # A number such as 1e999 is JSON, but no float holds it.
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def import_modules(
    context: click.Context, option: click.Parameter, names: Sequence[str]
) -> tuple[str, ...]:
    """Import modules that register environments, agents or algorithms.

    Raises:
        InvalidSpec: A name is that of a file.
        UnknownName: There is no such module.
    """
    for name in names:
        stem, dot, ending = name.rpartition(".")
        if "/" in name or (dot and ending == "py"):
            raise InvalidSpec(
                f"--import is {name!r}, but must be a module's name, such as "
                f"{(stem or name).split('/')[-1]!r}, and its folder the working "
                "directory or on PYTHONPATH"
            )
        load_module(name, f"module for --import {name}")
    return tuple(names)


def imports(verb: F) -> F:
    """Add ``--import``, which is obeyed before any other option is read."""
    return click.option(
        "--import",
        "imported",
        metavar="MODULE",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=import_modules,
        help="Import a module that registers environments, agents or algorithms.  "
        "Repeatable.",
    )(verb)


def pairs_option(name: str, field: str, help: str) -> Callable[[F], F]:
    """Return a decorator that adds a repeatable ``KEY=VALUE`` option."""
    return click.option(
        name,
        field,
        metavar="KEY=VALUE",
        multiple=True,
        callback=key_values,
        help=f"{help}  Repeatable.",
    )


def base_url_option(verb: F) -> F:
    """Add ``--base-url``, short for the model argument of that name."""
    return click.option(
        "--base-url",
        metavar="URL",
        help="Where the model is served, such as http://127.0.0.1:8000/v1.",
    )(verb)


def with_base_url(model_args: dict[str, Any], base_url: str | None) -> dict[str, Any]:
    """Return model arguments with the address that ``--base-url`` gives.

    Raises:
        InvalidSpec: The arguments give another one.
    """
    if base_url is None:
        return model_args
    if model_args.setdefault("base_url", base_url) != base_url:
        raise InvalidSpec(
            f"--base-url is {base_url!r}, but --model-arg gives "
            f"{model_args['base_url']!r}; leave one out"
        )
    return model_args


def salt_option(help: str) -> Callable[[F], F]:
    """Return a decorator that adds ``--salt``, whose value may stand in a file."""
    return click.option(
        "--salt", default="", metavar="S|@FILE", callback=read_salt, help=help
    )


def read_salt(context: click.Context, option: click.Parameter, value: str) -> str:
    """Return a salt, from its file if it is ``@FILE``.

    Raises:
        InvalidSpec: The file cannot be read, or holds no salt.
    """
    if not value.startswith("@"):
        return value
    from ragen_bench import sealing

    return sealing.read_salt(Path(value[1:]))


def prices_option(verb: F) -> F:
    """Add ``--prices``."""
    return click.option(
        "--prices",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A dated price table (TOML), for costs.",
    )(verb)


def examples(*commands: str) -> str:
    """Return the lines that end a verb's help."""
    # The first character keeps click from filling the lines that follow.
    return "\n  ".join(["\b\nExamples:", *commands])


def as_json(help: str) -> Callable[[F], F]:
    """Return a decorator that adds ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def echo_json(value: Any) -> None:
    """Write strict JSON, in ASCII, to stdout."""
    click.echo(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))


def exit_code(summaries: Iterable["Summary"]) -> int:
    """Return 3 if episodes are owed, 4 if a board cannot rank a run, else 0."""
    code = 0
    for summary in summaries:
        if summary.owed:
            return INCOMPLETE
        if summary.board is not None and not summary.rankable:
            code = UNRANKABLE
    return code
