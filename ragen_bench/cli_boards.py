"""The verbs of boards: ``board show``, ``board seal`` and ``board reveal``."""

import importlib.resources
from pathlib import Path
from typing import get_args

import click

from ragen_bench.agent import AgentClass
from ragen_bench.cli_options import as_json, echo_json, examples
from ragen_bench.errors import InvalidSpec


@click.group(
    epilog=examples(
        "ragen-bench board show standard",
        "ragen-bench board seal leaderboards/standard.toml --salt-file ~/std.salt",
        "ragen-bench board reveal standard --salt-file ~/std.salt",
    ),
)
def board() -> None:
    """Show a board's table; seal it with seeds that only its keepers know."""


@board.command(
    epilog=examples(
        "ragen-bench board show standard",
        "ragen-bench board show standard --class llm --markdown",
        "ragen-bench board show mine.toml --entries entries --csv > mine.csv",
    ),
)
@click.argument("name", metavar="NAME|FILE")
@click.option(
    "--entries",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Entries, BOARD/NAME.json; those of the project by default.",
)
@click.option(
    "--class",
    "classes",
    type=click.Choice(get_args(AgentClass)),
    multiple=True,
    help="Rank this class among itself.  Repeatable; all by default.",
)
@click.option("--markdown", is_flag=True, help="Write the table as Markdown.")
@click.option("--csv", "as_csv", is_flag=True, help="Write it as CSV, with all digits.")
@as_json("Write one object: rows, bounds, what is not ranked, and pairs.")
def show(
    *,
    name: str,
    entries: Path | None,
    classes: tuple[AgentClass, ...],
    markdown: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Show a board's entries between its ceiling and its floor.

    A rank is a range: the places that the paired tests leave open.  Scores have 95 %
    intervals.  Below the floor stands what is not ranked, with the reason.
    """
    from ragen_bench.board import load
    from ragen_bench.entries import entries_of
    from ragen_bench.ranking.board_table import board_table
    from ragen_bench.ranking.board_texts import to_csv, to_json, to_text

    if markdown + as_csv + as_json > 1:
        raise InvalidSpec(
            "--markdown, --csv and --json exclude each other; give one of them"
        )
    held = load(name)
    found = entries_of(held, None if entries is None else entries / held.name)
    table = board_table(held, (*found.ranked, *found.outdated), classes=classes)
    if as_json:
        echo_json(to_json(table))
    elif as_csv:
        click.echo(to_csv(table), nl=False)
    else:
        click.echo(to_text(table, markdown=markdown), nl=False)


_salt_file = click.option(
    "--salt-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="Holds the salt; whoever reads it knows the seeds.",
)


@board.command(
    epilog=examples(
        "ragen-bench board seal leaderboards/standard.toml --salt-file ~/std.salt"
    ),
)
@click.argument("name", metavar="NAME|FILE")
@_salt_file
@click.option("--seeds", type=int, metavar="N", help="Seeds a cell; the board's own.")
def seal(*, name: str, salt_file: Path, seeds: int | None) -> None:
    """Write a commitment to a salt into a board's file.

    The salt file is made, readable by its owner alone, unless it exists.  Keep it: what
    is lost with it cannot be revealed.
    """
    from ragen_bench import sealing

    if seeds is not None and seeds < 1:
        raise InvalidSpec(f"--seeds is {seeds}, but must be at least 1")
    path = _file_of(name)
    sealed = sealing.seal(path, salt_file, seeds=seeds)
    click.echo(f"{path}: sealed, {sealing.seal_of(sealed).commitment}")
    click.echo(
        f"keep {salt_file} secret; play the sealed seeds with ragen-bench run --board "
        f"{name} --salt @{salt_file}",
        err=True,
    )


@board.command(
    epilog=examples(
        "ragen-bench board reveal leaderboards/standard.toml --salt-file ~/std.salt"
    ),
)
@click.argument("name", metavar="NAME|FILE")
@_salt_file
def reveal(*, name: str, salt_file: Path) -> None:
    """Write the salt of a sealed board into its file, for all to check."""
    from ragen_bench import sealing

    path = _file_of(name)
    sealing.reveal(path, salt_file)
    click.echo(f"{path}: revealed; anyone can verify runs on its sealed seeds now")


def _file_of(name: str) -> Path:
    """Return the file of a board."""
    from ragen_bench.board import load

    if not name.endswith(".toml"):
        load(name)  # refuses an unknown one
        folder = importlib.resources.files("ragen_bench.leaderboards")
        return Path(str(folder)) / f"{name}.toml"
    return Path(name)
