"""The verbs of the trainer: ``train`` and ``diagnose``."""

import shlex
import sys
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
from ragen_bench.errors import InvalidSpec, MissingExtra

if TYPE_CHECKING:
    from ragen_bench.starpo.config import TrainConfig

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
    _require_extra()
    config = _configure(file, preset, envs, model, changed)
    out = out or _default_folder(config, preset, file)
    if dry_run:
        _show(config, out, as_json)
        context.exit(0)
    from ragen_bench.starpo.progress import Lines
    from ragen_bench.starpo.training import Progress, train

    progress = Progress() if quiet else Lines(sys.stderr, config.iterations)
    command = shlex.join(["ragen-bench", *context.find_root().obj])
    outcome = train(config, out, progress=progress, command=command)
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
        click.echo("stopped before the end; the same command goes on", err=True)
    context.exit(0 if outcome.complete else INCOMPLETE)


@click.command(
    epilog=examples(
        "ragen-bench diagnose runs/train-starpo-s",
    ),
)
@click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False)
)
def diagnose(*, folder: Path) -> None:
    """Tell from a training's files whether and when it collapsed."""
    from ragen_bench.starpo.diagnosis import diagnose as diagnose_folder

    click.echo(str(diagnose_folder(folder)))


def _require_extra() -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtra("train", "ragen-bench train") from error


def _configure(
    file: Path | None,
    preset: str | None,
    envs: tuple[str, ...],
    model: str | None,
    changed: dict[str, Any],
) -> "TrainConfig":
    """Return the configuration: preset, then file, then flags."""
    from ragen_bench.starpo import config

    held: dict[str, Any] = {}
    if file is not None:
        named, held = config.read(file)
        preset = preset or named
    flags: dict[str, Any] = {}
    if envs:
        flags["envs"] = envs
    if model is not None:
        prefix, _, rest = model.partition(":")
        if rest and prefix != "hf":
            raise InvalidSpec(
                f"model is {model!r}, but must be fresh, tiny or hf:FOLDER_OR_ID"
            )
        flags["model"] = rest or model
    return config.make(preset, held, flags, changed)


def _default_folder(
    config: "TrainConfig", preset: str | None, file: Path | None
) -> Path:
    import re

    source = file.stem if file is not None else preset or "default"
    name = "-".join(["train", source, *config.envs])
    return Path("runs") / re.sub(r"[^A-Za-z0-9._-]", "_", name)[:120]


def _show(config: "TrainConfig", out: Path, as_json: bool) -> None:
    from ragen_bench.starpo import dry_run

    found = dry_run.describe(config)
    if as_json:
        echo_json(found)
        return
    click.echo(f"would train into {out}")
    for name, value in found["config"].items():
        click.echo(f"  {name} = {value!r}")
    for name, value in found["sizes"].items():
        click.echo(f"{name}: {value:,}" if value is not None else f"{name}: unknown")
