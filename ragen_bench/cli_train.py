"""The verbs of the trainer: ``train`` and ``diagnose``."""

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ragen_bench.cli_options import (
    as_json,
    echo_json,
    examples,
    imports,
    pairs_option,
)

if TYPE_CHECKING:
    from ragen_bench.starpo.train_config import TrainConfig

INCOMPLETE = 3


@click.command(
    epilog=examples(
        "ragen-bench train --preset tiny-cpu --env ragen/Bandit-v0 --out runs/bandit",
        "ragen-bench train --preset starpo-s --model hf:my/model --set lr=2e-6",
        "ragen-bench train my.toml --dry-run",
    ),
)
@click.argument(
    "file",
    metavar="[CONFIG]",
    required=False,
    type=click.Path(path_type=Path),
)
@click.option("--preset", metavar="NAME", help="Settings to begin with.")
@click.option(
    "--env",
    "envs",
    metavar="ID[:LEVEL]",
    multiple=True,
    help="Train on a cell; level 1 by default.  Repeatable.",
)
@click.option("--model", metavar="SPEC", help="fresh, tiny, or hf:FOLDER_OR_ID.")
@pairs_option("--set", "changed", "Change a setting.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would be trained; write nothing."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The training's folder; runs/train-PRESET-ENV by default.",
)
@imports
@as_json("Write the outcome as JSON, and nothing else, to stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.pass_context
def train(
    context: click.Context,
    /,
    *,
    file: Path | None,
    preset: str | None,
    envs: tuple[str, ...],
    model: str | None,
    changed: dict[str, Any],
    dry_run: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> NoReturn:
    """Train an agent with StarPO or StarPO-S.

    The same command again goes on where the last one stopped.  The trained model is
    DIR/model, which ``ragen-bench run --model hf:DIR/model`` plays.  Exit codes: 0
    trained to the end, 2 wrong usage, 3 stopped before it.
    """
    from ragen_bench.starpo import public

    public.require_extra()
    config = public.configure(
        file, preset=preset, envs=envs, model=model, settings=changed
    )
    out = out or public.default_folder(config, file)
    if dry_run:
        _show(config, out, as_json)
        context.exit(0)
    from ragen_bench.starpo import progress, training

    command = shlex.join(["ragen-bench", *context.find_root().obj])
    with contextlib.closing(progress.choose(quiet=quiet)) as watch:
        outcome = training.train(config, out, progress=watch, command=command)
    if as_json:
        echo_json(
            {
                "folder": str(outcome.folder),
                "model": str(outcome.model),
                "iterations": outcome.iterations,
                "complete": outcome.complete,
            }
        )
    else:
        click.echo(f"{outcome.model}: {outcome.iterations} iterations")
        cell = config.envs[0]
        play = f"ragen-bench run --env {cell} --model hf:{outcome.model}"
        click.echo(f"play it: {play}", err=True)
    if not outcome.complete:
        click.echo(
            f"stopped after iteration {outcome.iterations} of {config.iterations}, all "
            f"is saved; the same command goes on: {command}",
            err=True,
        )
    context.exit(0 if outcome.complete else INCOMPLETE)


@click.command(
    epilog=examples(
        "ragen-bench diagnose runs/train-starpo-s",
        "ragen-bench diagnose runs/seed-* --plot curves.png",
        "ragen-bench diagnose wandb.csv --column valid_rate=my/valid",
    ),
)
@click.argument(
    "folders",
    metavar="DIR...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@pairs_option(
    "--column",
    "columns",
    "Name a column of a CSV file that is not called as ours, OURS=THEIRS; those of "
    "RAGEN are known.",
)
@as_json("Write a list of the diagnoses as JSON, and nothing else, to stdout.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the metrics too: .png, .svg or .pdf.  Several folders, such as seeds, "
    "are drawn as mean and range.",
)
def diagnose(
    *,
    folders: tuple[Path, ...],
    columns: dict[str, Any],
    as_json: bool,
    plot: Path | None,
) -> None:
    """Tell from the files of trainings whether and when they collapsed.

    DIR is a training's folder, or a CSV file of metrics, of another trainer too.
    """
    from ragen_bench.starpo import curves
    from ragen_bench.starpo.diagnosis import diagnose as diagnose_one

    named = {ours: str(theirs) for ours, theirs in columns.items()}
    found = [(folder, diagnose_one(folder, columns=named)) for folder in folders]
    if as_json:
        echo_json([{"place": str(place), **one.to_dict()} for place, one in found])
    else:
        for place, one in found:
            click.echo(f"{place}:\n{one}" if len(found) > 1 else str(one))
    if plot is not None:
        click.echo(curves.draw(folders, plot, named), err=True)


def algorithms() -> list[dict[str, Any]]:
    """Return the algorithms of the trainer, as `ragen_bench.listing` does others."""
    from ragen_bench.starpo import public

    return public.algorithms()


def _show(config: "TrainConfig", out: Path, as_json: bool) -> None:
    from ragen_bench.starpo import dry_run

    found = dry_run.describe(config)
    if as_json:
        echo_json(found)
        return
    click.echo(f"would train into {out}")
    for name, value in found["config"].items():
        click.echo(f"  {name} = {value!r}")
    if found["sizes"] is None:
        click.echo(f"sizes: unknown, {config.model!r} is not on this machine")
        return
    for name, value in found["sizes"].items():
        click.echo(f"{name}: {value:,}")
    click.echo("memory, about:")
    for name, value in found["memory"].items():
        click.echo(f"  {name}: {value / 2**20:,.0f} MiB")
