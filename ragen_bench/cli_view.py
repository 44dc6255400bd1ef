"""The verb of the viewer: ``view``."""

from pathlib import Path

import click

from ragen_bench.cli_options import as_json, echo_json, examples, imports


@click.command(
    epilog=examples(
        "ragen-bench view --out site  # the boards alone",
        "ragen-bench view runs/smoke-random runs/smoke-oracle --out site",
        "ragen-bench view runs/* --out site --solved 200",
    ),
)
@click.argument(
    "folders", metavar="[PATH...]", nargs=-1, type=click.Path(path_type=Path)
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="SITE",
    required=True,
    help="Folder of the site; an older site in it is replaced.",
)
@click.option(
    "--entries",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Entries, BOARD/NAME.json; those of the project by default.",
)
@click.option(
    "--solved",
    type=click.IntRange(0),
    metavar="N",
    help="Find optimal actions for N episodes a cell of each run; 40 by default.",
)
@imports
@as_json("Write the path and what the site holds as JSON.")
def view(
    *,
    folders: tuple[Path, ...],
    out: Path,
    entries: Path | None,
    solved: int | None,
    as_json: bool,
) -> None:
    """Write a site of boards, runs and trainings that any browser opens.

    PATH is a run folder, a bundle (.zip), an entry (.json), or the folder of a
    training.  The site is plain files: open its index.html, or put the folder on any
    web server.
    """
    from ragen_bench.viewing.optimal import EPISODES
    from ragen_bench.viewing.site import build

    count = EPISODES if solved is None else solved
    site = build(folders, out, entries=entries, solved=count)
    if as_json:
        facts = {"index": str(site.index), "runs": site.runs}
        echo_json({**facts, "trainings": site.trainings, "episodes": site.episodes})
        return
    click.echo(site.index)
