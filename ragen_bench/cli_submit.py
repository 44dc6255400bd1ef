"""The verb that enters a board: ``submit``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from ragen_bench.cli_options import INCOMPLETE, UNRANKABLE, examples, salt_option
from ragen_bench.errors import InvalidSpec
from ragen_bench.wording import counted

if TYPE_CHECKING:
    from ragen_bench.board import Board
    from ragen_bench.entries import Entry, Meta
    from ragen_bench.submission import Obstacle

_WRONG = 2
_CODES = {"wrong": _WRONG, "incomplete": INCOMPLETE, "unrankable": UNRANKABLE}
_SHIPPED = 5_000_000
"""Bytes of the largest bundle that is committed beside its entry."""


@click.command(
    epilog=examples(
        "ragen-bench submit --meta-template me.toml",
        "ragen-bench submit runs/lite-tiny --board lite --meta me.toml --out tiny.zip",
    ),
)
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path())
@click.option("--board", "board_name", metavar="NAME|FILE", help="The run's board.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="NAME.zip",
    help="The bundle; the entry NAME.json lies beside it.",
)
@click.option(
    "--meta",
    "meta_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What you say about the entry (TOML or JSON); asked for on a terminal.",
)
@click.option(
    "--meta-template",
    "template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a file for --meta to fill in, and nothing else.",
)
@click.option("--force", is_flag=True, help="Replace a bundle and an entry of old.")
@salt_option(
    "The secret of the board's seal, for a run on sealed seeds.  @FILE reads it."
)
@click.pass_context
def submit(
    context: click.Context,
    /,
    *,
    folder: str | None,
    board_name: str | None,
    out: Path | None,
    meta_file: Path | None,
    template: Path | None,
    force: bool,
    salt: str,
) -> NoReturn:
    """Check a run, verify it by replay, and write its bundle and its entry.

    Keys, passwords and absolute paths do not leave the machine.  Exit codes: 0
    written, 1 the replay finds a fault, 2 wrong usage, 3 incomplete, 4 not rankable.
    """
    if template is not None:
        _write_template(template)
        context.exit(0)
    if folder is None or board_name is None or out is None:
        raise InvalidSpec("submit needs DIR, --board NAME and --out NAME.zip")
    from ragen_bench import submission
    from ragen_bench.board import load

    board = load(board_name)
    if out.suffix != ".zip":
        raise InvalidSpec(f"--out is {str(out)!r}, but must end in .zip")
    if not force:
        submission.refuse_existing(out)
    found = submission.obstacles(Path(folder), board, salt or None)
    if found:
        _refuse(context, folder, found)
    meta = _meta(meta_file, out.stem)
    made = submission.submit(
        Path(folder), board, out, meta, salt=salt or None, replace=force
    )
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)
    for fault in made.faults:
        click.echo(str(fault))
    if made.entry is None:
        faults = counted(len(made.faults), "fault")
        click.echo(
            f"{folder}: {faults} in the replay, so nothing was written; ragen-bench "
            f"verify {folder} tells more",
            err=True,
        )
        context.exit(1)
    _tell(board, out, made.entry)
    context.exit(0)


def _refuse(
    context: click.Context, folder: str, found: "tuple[Obstacle, ...]"
) -> NoReturn:
    """Say all that stands in the way, and leave with the gravest code."""
    for obstacle in found:
        click.echo(f"{folder}: {obstacle.message}", err=True)
    context.exit(min(_CODES[obstacle.kind] for obstacle in found))


def _meta(path: Path | None, name: str) -> "Meta":
    from ragen_bench import meta_files

    if path is not None:
        return meta_files.read_meta(path, name)
    if not is_terminal():
        fields = ", ".join(meta_files.QUESTIONS)
        raise InvalidSpec(
            f"--meta is missing, and there is nobody to ask for {fields}; "
            "ragen-bench submit --meta-template FILE writes a file to fill in"
        )
    click.echo("What stands beside the scores; nothing of it can be checked.", err=True)
    return meta_files.ask(
        name,
        lambda text, suggested: str(click.prompt(text, default=suggested, err=True)),
    )


def is_terminal() -> bool:
    """Return whether there is somebody to ask."""
    return sys.stdin.isatty()


def _write_template(path: Path) -> None:
    from ragen_bench import meta_files

    if path.suffix != ".toml":
        raise InvalidSpec(f"--meta-template is {str(path)!r}, but must end in .toml")
    try:
        with open(path, "x", encoding="utf-8", newline="\n") as file:
            file.write(meta_files.template(path.stem))
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be written: {error.strerror}") from error
    click.echo(path)


def _tell(board: "Board", out: Path, entry: "Entry") -> None:
    """Say what was written and what comes next."""
    score = entry.summary.score
    click.echo(out)
    click.echo(out.with_suffix(".json"))
    click.echo(
        f"{entry.meta.name}: {entry.status}, score {score.mean:.3f} "
        f"[{score.low:.3f}, {score.high:.3f}]",
        err=True,
    )
    home = f"leaderboards/entries/{board.name}/"
    if entry.status == "sealed":
        rest = "keep the bundle, which shows the seeds, until the salt is revealed"
    elif out.stat().st_size > _SHIPPED:
        rest = f"and attach {out.name} to it, which is too large to be committed"
    else:
        rest = f"and {out.name} beside it"
    click.echo(
        f"next: open a pull request that adds {out.stem}.json to {home}, {rest}; "
        "see CONTRIBUTING.md",
        err=True,
    )
