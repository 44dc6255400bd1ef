"""The verbs that set runs side by side: ``compare`` and ``report``."""

from pathlib import Path
from typing import NoReturn

import click

from ragen_bench.cli_options import as_json, echo_json, examples, exit_code
from ragen_bench.errors import InvalidSpec


@click.command(
    epilog=examples(
        "ragen-bench compare runs/smoke-random runs/smoke-tiny",
        "ragen-bench compare runs/* --markdown",
        "ragen-bench compare runs/mine leaderboards/entries/smoke/random.json",
        "ragen-bench compare runs/a runs/b --differences",
    ),
)
@click.argument("paths", metavar="DIR|ENTRY...", nargs=-1, required=True)
@click.option(
    "--differences", is_flag=True, help="Name every episode on which two agents differ."
)
@click.option("--markdown", is_flag=True, help="Write the tables as Markdown.")
@as_json("Write one object: runs, pairs, cells and differences.")
@click.pass_context
def compare(
    context: click.Context,
    /,
    *,
    paths: tuple[str, ...],
    differences: bool,
    markdown: bool,
    as_json: bool,
) -> NoReturn:
    """Tell which of several runs is better, on the episodes that they share.

    Each is a run folder or the JSON file of an entry.  Pairs are tested with the sign
    flips of shared instances and Holm's correction; who is not told apart is tied.
    Exit codes are those of run: 3 if a run is incomplete, 4 if a board cannot rank
    one.
    """
    from ragen_bench.ranking.played import read_played
    from ragen_bench.ranking.side_by_side import side_by_side, to_json, to_text

    if markdown and as_json:
        raise InvalidSpec("--markdown and --json exclude each other; leave one out")
    unique = list(dict.fromkeys(paths))
    if len(unique) < 2:
        raise InvalidSpec(
            f"{unique[0]!r} stands alone, but two or more are compared; name another "
            "run, or use score"
        )
    found = side_by_side([read_played(path) for path in unique])
    if as_json:
        echo_json(to_json(found))
    else:
        click.echo(to_text(found, markdown=markdown, every=differences), nl=False)
    context.exit(exit_code(one.summary for one in found.played))


@click.command(
    "report",
    epilog=examples(
        "ragen-bench report runs/smoke-random runs/smoke-tiny --out report",
        "ragen-bench report runs/* --out report --parquet",
    ),
)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    required=True,
    help="Where the report goes; files of an earlier one are replaced.",
)
@click.option("--parquet", is_flag=True, help="Write the data frames, too.")
@click.option("--turns", is_flag=True, help="Write them with that of all turns.")
@click.pass_context
def write_report(
    context: click.Context,
    /,
    *,
    folders: tuple[str, ...],
    out: Path,
    parquet: bool,
    turns: bool,
) -> NoReturn:
    """Write figures, tables for Markdown and LaTeX, and a page with all of them.

    Needs the extra report.  Exit codes are those of run: 3 if a run is incomplete, 4
    if a board cannot rank one.
    """
    from ragen_bench.reporting import report

    paths = [Path(folder) for folder in dict.fromkeys(folders)]
    written = report.write_report(paths, out, parquet=parquet, turns=turns)
    click.echo(written.page)
    context.exit(exit_code(written.summaries.values()))
