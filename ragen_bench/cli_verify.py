"""The verb ``verify``: does a replay confirm a run?"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ragen_bench.cli_options import as_json, echo_json, examples, salt_option
from ragen_bench.wording import counted

if TYPE_CHECKING:
    from ragen_bench.verifying import Verification


@click.command(
    epilog=examples(
        "ragen-bench verify runs/smoke-random",
        "ragen-bench verify entry.zip --board standard",
        "ragen-bench verify leaderboards/entries/smoke/*.json --json",
    ),
)
@click.argument(
    "paths",
    metavar="PATH...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@click.option(
    "--board",
    metavar="B",
    help="Name or TOML file of the board; by default the one that a run names.",
)
@salt_option("The secret of the board's seal, for sealed seeds.  @FILE reads it.")
@as_json("Write JSON: one object for each path.")
@click.pass_context
def verify(
    context: click.Context,
    /,
    *,
    paths: tuple[Path, ...],
    board: str | None,
    salt: str,
    as_json: bool,
) -> NoReturn:
    """Play runs again from their replies and compare every number.

    A path is a run folder, a bundle (.zip), or an entry (.json) beside its bundle.
    Nothing in them is trusted, imported or extracted.  Faults come one a line, as
    "code  place: message"; warnings, which refuse nothing, go to stderr.

    Exit codes: 0 without faults, 1 with faults.
    """
    from ragen_bench.verifying import verify as check
    from ragen_bench.verifying.terms import find_board

    asked = None if board is None else find_board(board)
    told = []
    failed = False
    for path in paths:
        found = check(path, board=asked, salt=salt or None)
        failed |= bool(found.faults)
        if as_json:
            told.append(_facts(path, found))
            continue

        for fault in found.faults:
            # Several paths need to be told apart.
            place = f"{path}: {fault.place}" if len(paths) > 1 else fault.place
            click.echo(str(dataclasses.replace(fault, place=place)))
        for warning in found.warnings:
            click.echo(f"warning: {path}: {warning}", err=True)
        click.echo(f"{path}: {_verdict(found)}", err=True)
    if as_json:
        echo_json(told)
    context.exit(1 if failed else 0)


def _verdict(found: "Verification") -> str:
    """Return what was found, in a few words."""
    actions = counted(found.actions, "action")
    played = f"{actions} replayed in {found.seconds:.1f} s"
    if found.faults:
        return f"{counted(len(found.faults), 'fault')}; {played}"
    board = f"board {found.board}" if found.board else "no board"
    mean = found.summary.score.mean if found.summary else None
    score = "unknown" if mean is None else f"{mean:.4f}"
    return f"confirmed, {board}, score {score}; {played}"


def _facts(path: Path, found: "Verification") -> dict[str, Any]:
    """Return a verification as JSON."""
    return {
        "path": str(path),
        "confirmed": not found.faults,
        "board": found.board,
        "faults": [dataclasses.asdict(fault) for fault in found.faults],
        "warnings": [dataclasses.asdict(warning) for warning in found.warnings],
        "summary": found.summary.model_dump(mode="json") if found.summary else None,
        "actions": found.actions,
        "seconds": round(found.seconds, 3),
    }
