"""The verbs that play episodes: ``run`` and ``play``."""

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ragen_bench.cli_options import (
    PROMPTS,
    SPLITS,
    as_json,
    base_url_option,
    echo_json,
    examples,
    exit_code,
    imports,
    pairs_option,
    prices_option,
    salt_option,
    with_base_url,
)
from ragen_bench.errors import InvalidSpec

if TYPE_CHECKING:
    from ragen_bench.plan import Plan
    from ragen_bench.progress import Watch
    from ragen_bench.records import Price, Summary

_JSON_HELP = "Write the summary as JSON, and nothing else, to stdout."


@click.command(
    epilog=examples(
        "ragen-bench run --env ragen/Sokoban-v0:1 --agent random --seeds 20",
        "ragen-bench run --env ragen/Bandit-v0:1 --agent think_act --model hf:my/model",
        "ragen-bench run --board smoke --agent direct --model tiny --out runs/tiny",
    ),
)
@click.option("--board", metavar="NAME|FILE", help="Play a board.")
@click.option(
    "--env",
    "envs",
    metavar="ID[:LEVEL]",
    multiple=True,
    help="Play a cell, in place of a board; level 1 by default.  Repeatable.",
)
@click.option("--split", type=click.Choice(SPLITS), help="Instances; test by default.")
@click.option("--seeds", type=int, metavar="N", help="Episodes a cell; 8 by default.")
@click.option(
    "--agent", metavar="NAME|MODULE:CLASS", help="Who plays; think_act by default."
)
@click.option("--model", metavar="SPEC", help="The agent's model; tiny by default.")
@pairs_option("--agent-arg", "agent_args", "An argument of the agent.")
@pairs_option("--model-arg", "model_args", "An argument of the model.")
@base_url_option
@pairs_option("--env-arg", "env_args", "A setting of the environments.")
@click.option("--prompt", type=click.Choice(PROMPTS), help="Length of the rules.")
@click.option(
    "--context",
    metavar="POLICY",
    help="Past in a prompt: full, window:K, single or tokens:N.",
)
@click.option("--temperature", type=float, help="0, the default, is greedy.")
@click.option("--top-p", type=float, help="Nucleus sampling; 1 by default.")
@click.option("--max-tokens", type=int, metavar="N", help="New tokens of a reply.")
@click.option("--shots", type=int, metavar="N", help="Solved examples in the prompt.")
@click.option("--repeats", type=int, metavar="K", help="Episodes an instance.")
@salt_option(
    "Moves noise and sampling; on a sealed board, its secret: plays the sealed seeds.  "
    "@FILE reads it."
)
@click.option(
    "--concurrency",
    type=int,
    default=32,
    show_default=True,
    metavar="N",
    help="Episodes in flight.",
)
@click.option(
    "--episode-timeout",
    type=float,
    metavar="SECONDS",
    help="Give an episode up after this long.",
)
@click.option(
    "--retry-errors", is_flag=True, help="Play episodes again that nobody played."
)
@prices_option
@click.option(
    "--budget",
    type=float,
    metavar="X",
    help="Stop when the folder's replies have cost this much; needs --prices.",
)
@click.option(
    "--cache",
    type=click.Path(),  # a Path would make the working directory of ""
    metavar="DIR",
    help="Keep replies here, and ask for none that is kept.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would be played; write nothing."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run's folder; runs/BOARD-AGENT-MODEL by default.",
)
@imports
@as_json(_JSON_HELP)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    out: Path | None,
    concurrency: int,
    episode_timeout: float | None,
    retry_errors: bool,
    prices: Path | None,
    budget: float | None,
    cache: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    base_url: str | None,
    **settings: Any,
) -> None:
    """Play episodes with an agent and show its scores.

    The same command again goes on where the last one stopped.  Exit codes: 0
    complete, 2 wrong usage, 3 incomplete, 4 complete but not rankable on its board.
    """
    from ragen_bench import progress
    from ragen_bench.plan import Settings, default_folder, resolve
    from ragen_bench.prices import price_for
    from ragen_bench.runner import check

    settings["model_args"] = with_base_url(settings["model_args"], base_url)
    plan = resolve(Settings(**settings))
    price = price_for(prices, budget, plan.config.model)
    out = out or default_folder(plan.config)
    check(plan, concurrency, episode_timeout, cache)
    if dry_run:
        _show_forecast(plan, out, price, as_json)
        return
    human = plan.config.agent_class == "human"
    watch = _commentary() if human else progress.choose(quiet=quiet)
    summary = _execute(
        context,
        plan,
        out,
        watch,
        concurrency=concurrency,
        retry_errors=retry_errors,
        episode_timeout=episode_timeout,
        price=price,
        budget=budget,
        cache=cache,
    )
    report(context, {player(plan): summary}, as_json=as_json)


@click.command(
    epilog=examples(
        "ragen-bench play ragen/Sokoban-v0:1 --seed 3",
        "ragen-bench play ragen/FrozenLake-v0:2 --env-arg style=coord",
    ),
)
@click.argument("cell", metavar="ID[:LEVEL]")
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Play this one instance; 0 by default.",
)
@click.option("--seeds", type=int, metavar="N", help="Play instances 0 to N - 1.")
@click.option("--split", type=click.Choice(SPLITS), help="Instances; test by default.")
@click.option("--prompt", type=click.Choice(PROMPTS), help="Length of the rules.")
@pairs_option("--env-arg", "env_args", "A setting, such as style=coord.")
@click.option("--salt", default="", help="Moves noise; instances stay.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run's folder; one under runs/ by default.",
)
@imports
@as_json(_JSON_HELP)
@click.pass_context
def play(
    context: click.Context,
    /,
    *,
    cell: str,
    seed: int | None,
    seeds: int | None,
    out: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Be the agent, in the terminal.

    What you play is recorded like any other run.
    """
    from ragen_bench.plan import Settings, default_folder, resolve

    if seed is not None and seeds is not None:
        raise InvalidSpec("--seed and --seeds exclude each other; leave one out")
    count = 1 if seeds is None else seeds
    plan = resolve(Settings(envs=[cell], seeds=count, agent="human", **settings))
    if seed is not None:
        only = [plan.config.cells[0].model_copy(update={"seeds": (seed,)})]
        config = plan.config.model_copy(update={"cells": tuple(only)})
        plan = dataclasses.replace(plan, config=config)
    out = out or default_folder(plan.config)
    summary = _execute(context, plan, out, _commentary())
    if as_json:
        report(context, {player(plan): summary}, as_json=True)
    # A table of one or two episodes would tell nothing that was not seen.
    click.echo(f"{out}: {_standing(summary)}")
    context.exit(exit_code([summary]))


def player(plan: "Plan") -> str:
    """Return who plays, such as ``"think_act tiny"``."""
    return " ".join(filter(None, (plan.config.agent, plan.config.model)))


def report(
    context: click.Context,
    summaries: Mapping[str, "Summary"],
    *,
    as_json: bool,
    markdown: bool = False,
    pass_at: Sequence[int] = (),
) -> NoReturn:
    """Show the scores of runs, and leave with the exit code that they call for.

    Args:
        context: The running verb.
        summaries: Label to summary.
        as_json: JSON alone: an object for one run, a list for several.
        markdown: A Markdown table in place of a plain one.
        pass_at: Numbers of tries for columns of pass@k and pass^k.
    """
    from ragen_bench import tables

    table = tables.table(summaries, pass_at=pass_at)
    if as_json:
        records = [summary.model_dump(mode="json") for summary in summaries.values()]
        echo_json(records[0] if len(records) == 1 else records)
    elif markdown:
        click.echo(tables.to_markdown(table.rows, table.columns), nl=False)
    else:
        click.echo(tables.to_text(table.rows, table.columns))
        for label, summary in summaries.items():
            click.echo(f"{label}: {_standing(summary)}")
    context.exit(exit_code(summaries.values()))


def _standing(summary: "Summary") -> str:
    """Return how the planned episodes ended, and why a board cannot rank them."""
    counts = [(name, count) for name, count in summary.outcomes.items() if count]
    counts += [("owed", summary.owed)] if summary.owed else []
    ended = ", ".join(f"{name} {count}" for name, count in counts)
    text = f"{ended}, of {summary.planned} planned"
    if summary.board is not None and not summary.rankable:
        text += f"; not rankable: {'; '.join(summary.unrankable_because)}"
    return text


def _execute(
    context: click.Context, plan: "Plan", out: Path, watch: "Watch", **how: Any
) -> "Summary":
    from ragen_bench.runner import execute

    words = ["ragen-bench", *context.find_root().obj]
    if plan.config.sealed is not None:
        # The salt is a secret until the keepers reveal it.
        words = [word.replace(context.params["salt"], "[salt]") for word in words]
    command = shlex.join(words)
    # Whatever an agent or a package prints must not mix with the results.
    with watch, contextlib.redirect_stdout(sys.stderr):
        summary = execute(plan, out, observer=watch, command=command, **how)
    if summary.owed:
        finished = summary.planned - summary.owed
        what_now = watch.why or "the same command goes on"
        if watch.why and watch.ledger is not None:
            # What was in flight then has ended since, and was paid for.
            what_now = watch.ledger.refusal or watch.why
        click.echo(
            f"stopped: {finished} of {summary.planned} episodes finished; {what_now}",
            err=True,
        )
    return summary


def _commentary() -> "Watch":
    from ragen_bench.progress import Commentary

    return Commentary(lambda text: click.echo(text, nl=False, err=True))


def _show_forecast(
    plan: "Plan", out: Path, price: "Price | None", as_json: bool
) -> None:
    from ragen_bench import forecast

    found = forecast.forecast(plan)
    if as_json:
        echo_json(forecast.to_json(found, price))
        return
    text = forecast.to_text(found, price)
    click.echo(f"{player(plan)} would play into {out}\n{text}")
