"""The verbs that help to choose and set up a model: ``doctor`` and ``plan``."""

from pathlib import Path
from typing import Any, NoReturn

import click

from ragen_bench.cli_options import (
    SPLITS,
    as_json,
    base_url_option,
    echo_json,
    examples,
    imports,
    pairs_option,
    prices_option,
    with_base_url,
)
from ragen_bench.errors import InvalidSpec


@click.command(
    epilog=examples(
        "ragen-bench doctor --model tiny",
        "ragen-bench doctor --model hf:my/model --max-tokens 512",
        "ragen-bench doctor --model openai:my-model --base-url http://127.0.0.1:8000/v1",
    ),
)
@click.option("--model", metavar="SPEC", required=True, help="The model to examine.")
@pairs_option("--model-arg", "model_args", "An argument of the model.")
@base_url_option
@click.option(
    "--agent", metavar="NAME", help="Who asks it; its own default, or think_act."
)
@click.option("--temperature", type=float, help="0, the default, is greedy.")
@click.option("--max-tokens", type=int, metavar="N", help="New tokens of a reply.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the model arguments that it needs as JSON.",
)
@imports
@as_json("Write the findings as JSON.")
@click.pass_context
def doctor(
    context: click.Context,
    /,
    *,
    base_url: str | None,
    save: Path | None,
    as_json: bool,
    **settings: Any,
) -> NoReturn:
    """Examine a model's set-up, and say which flags it needs.

    Each line is a finding: ok, note (worth knowing) or fix (something must be set).
    A model in this process is asked twice.  A server gets at most six short
    conversations, which cost what they cost, and is asked for its list of models.

    Exit codes: 0 if there is nothing to fix, 1 otherwise.
    """
    from ragen_bench import doctor as examination
    from ragen_bench.plan import Settings, resolve

    settings["model_args"] = with_base_url(settings["model_args"], base_url)
    asked = Settings(envs=[examination.CELL], seeds=1, **settings)
    report = examination.examine(resolve(asked))
    if as_json:
        echo_json(examination.to_json(report))
    else:
        click.echo(examination.to_text(report))
    if save is not None:
        _save(save, {**settings["model_args"], **report.arguments})
    context.exit(0 if report.healthy else 1)


def _save(path: Path, arguments: dict[str, Any]) -> None:
    import json

    text = json.dumps(arguments, indent=2, sort_keys=True)
    try:
        path.write_text(f"{text}\n", "utf-8")
    except OSError as error:
        raise InvalidSpec(
            f"--save {str(path)!r} cannot be written: {error.strerror}"
        ) from error


@click.command(
    epilog=examples(
        "ragen-bench plan --gap 0.05 --power 0.8",
        "ragen-bench plan --gap 0.1 --env ragen/Sokoban-v0:1 --model tiny",
        "ragen-bench plan --gap 0.05 --board lite --from runs/tiny --prices p.toml",
    ),
)
@click.option(
    "--gap",
    type=float,
    required=True,
    help="The difference of success rates to be found, such as 0.05.",
)
@click.option(
    "--power",
    type=float,
    default=0.8,
    show_default=True,
    help="The chance to find it.",
)
@click.option(
    "--alpha",
    type=float,
    default=0.05,
    show_default=True,
    help="The chance to find one that is not there.",
)
@click.option(
    "--success",
    type=float,
    help="Success rate between the two models; 0.5, or that of --from.",
)
@click.option(
    "--correlation",
    type=float,
    default=0.5,
    show_default=True,
    help="Of the two outcomes on one instance.",
)
@click.option("--board", metavar="NAME|FILE", help="Where it is played: a board.")
@click.option(
    "--env",
    "envs",
    metavar="ID[:LEVEL]",
    multiple=True,
    help="Where it is played: a cell.  Repeatable.",
)
@click.option("--split", type=click.Choice(SPLITS), help="Instances; test by default.")
@click.option("--agent", metavar="NAME|MODULE:CLASS", help="Who plays.")
@click.option("--model", metavar="SPEC", help="The agent's model, for its tokens.")
@pairs_option("--model-arg", "model_args", "An argument of the model.")
@base_url_option
@click.option("--max-tokens", type=int, metavar="N", help="New tokens of a reply.")
@click.option(
    "--from",
    "played",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A run to take tokens, time and success from.",
)
@prices_option
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    metavar="N",
    help="Episodes in flight.",
)
@imports
@as_json("Write the plan as JSON.")
def plan(
    *,
    gap: float,
    power: float,
    alpha: float,
    success: float | None,
    correlation: float,
    base_url: str | None,
    played: Path | None,
    prices: Path | None,
    concurrency: int,
    as_json: bool,
    **settings: Any,
) -> None:
    """Say how many seeds it takes to tell two models apart, and what they cost.

    Give a place to play (--board, --env or the run of --from) for seeds a cell, and
    a model or a run for tokens, cost and time.  Nothing is played and nothing asked.
    """
    from ragen_bench import study
    from ragen_bench.plan import Settings
    from ragen_bench.power import Comparison

    settings["model_args"] = with_base_url(settings["model_args"], base_url)
    learnt = study.learn(played) if played else None
    if success is None:
        known = learnt.success if learnt else None
        success = 0.5 if known is None else known
    comparison = Comparison(
        gap=gap, power=power, alpha=alpha, success=success, correlation=correlation
    )
    asked = Settings(**settings)
    found = study.prepare(
        comparison, asked, learnt=learnt, prices=prices, concurrency=concurrency
    )
    if as_json:
        echo_json(study.to_json(found))
    else:
        click.echo(study.to_text(found))
