"""The command line ``ragen-bench``: results on stdout, all else on stderr.

Exit codes: 0 complete, 1 unexpected failure, 2 wrong usage (said before any model is
asked), 3 incomplete, 4 complete but unrankable.

Only click and light modules are imported here; a verb imports what it needs.
"""

import functools
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from ragen_bench import __version__
from ragen_bench.cli_boards import board
from ragen_bench.cli_compare import compare, write_report
from ragen_bench.cli_models import doctor, plan
from ragen_bench.cli_options import (
    INCOMPLETE,
    as_json,
    echo_json,
    examples,
    imports,
    pairs_option,
)
from ragen_bench.cli_run import play, report, run
from ragen_bench.cli_submit import submit
from ragen_bench.cli_train import algorithms, diagnose, train
from ragen_bench.cli_verify import verify
from ragen_bench.cli_view import view
from ragen_bench.errors import CheckFailed, InvalidSpec, RagenError, RunIncomplete


class Refused(click.ClickException):
    """Wrong usage, in one sentence on stderr."""

    exit_code = 2


class Incomplete(click.ClickException):
    """A run that had to stop, in one sentence on stderr."""

    exit_code = INCOMPLETE


class Verbs(click.Group):
    """A group whose verbs may raise our errors: one sentence and an exit code each."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the command line, which ``run.json`` records."""
        ctx.obj = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except RunIncomplete as error:
            raise Incomplete(str(error)) from error
        except RagenError as error:
            raise Refused(str(error)) from error
        except KeyboardInterrupt as error:
            raise Incomplete("stopped; the same command goes on") from error


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "ragen-bench ls envs -v",
        "ragen-bench run --env ragen/Sokoban-v0:1 --agent random --seeds 20",
        "ragen-bench run --env ragen/Bandit-v0:1 --agent think_act --model tiny",
        "ragen-bench score runs/*",
    ),
)
@click.version_option(__version__, prog_name="ragen-bench")
def cli() -> None:
    """Language-model agents measured on symbolic multi-turn tasks."""
    # Last, so that a file of the working directory never hides an installed module.
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


cli.add_command(run)
cli.add_command(play)
cli.add_command(compare)
cli.add_command(write_report)
cli.add_command(doctor)
cli.add_command(plan)
cli.add_command(train)
cli.add_command(diagnose)
cli.add_command(view)
cli.add_command(submit)
cli.add_command(verify)
cli.add_command(board)


@cli.command(
    epilog=examples(
        "ragen-bench score runs/smoke-random",
        "ragen-bench score runs/* --markdown",
        "ragen-bench score runs/repeated --pass-at 1 --pass-at 4",
    ),
)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True)
@click.option("--markdown", is_flag=True, help="Write the table as Markdown.")
@click.option(
    "--pass-at",
    type=click.IntRange(1),
    metavar="K",
    multiple=True,
    help="Show pass@K and pass^K of runs with repeats.  Repeatable.",
)
@as_json("Write JSON: the summary, or a list of them for several folders.")
@click.pass_context
def score(
    context: click.Context,
    /,
    *,
    folders: tuple[str, ...],
    markdown: bool,
    pass_at: tuple[int, ...],
    as_json: bool,
) -> NoReturn:
    """Compute scores from the episodes of run folders, as one table.

    Exit codes are those of run: 3 if a run is incomplete, 4 if a board cannot
    rank one.
    """
    from ragen_bench.scoring import score as score_folder

    if markdown and as_json:
        raise InvalidSpec("--markdown and --json exclude each other; leave one out")
    summaries = {folder: score_folder(folder) for folder in dict.fromkeys(folders)}
    ks = tuple(dict.fromkeys(pass_at))
    report(context, summaries, as_json=as_json, markdown=markdown, pass_at=ks)


@cli.command(
    "ls",
    epilog=examples(
        "ragen-bench ls envs -v",
        "ragen-bench ls agents --json",
        "ragen-bench ls algorithms -v",
    ),
)
@click.argument(
    "what",
    type=click.Choice(("envs", "agents", "models", "boards", "algorithms")),
)
@click.option("-v", "--verbose", is_flag=True, help="Say what each one is.")
@imports
@as_json("Write a list of objects.")
def list_names(*, what: str, verbose: bool, as_json: bool) -> None:
    """List the names of what there is, one a line."""
    from ragen_bench import listing

    found = algorithms() if what == "algorithms" else listing.LISTS[what]()
    if as_json:
        echo_json(found)
        return
    for item in found:
        click.echo(item["name"])
        for line in listing.details(item) if verbose else ():
            click.echo(f"  {line}")


@cli.command(
    epilog=examples(
        "ragen-bench check ragen/Sokoban-v0:2",
        "ragen-bench check --import my_agent --agent my_agent",
    ),
)
@click.argument("cell", metavar="[ID[:LEVEL]]", required=False)
@click.option("--agent", metavar="NAME|MODULE:CLASS", help="Check this agent.")
@click.option("--model", metavar="SPEC", help="The agent's model.")
@pairs_option("--agent-arg", "agent_args", "An argument of the agent.")
@pairs_option("--env-arg", "env_args", "A setting of the environment.")
@imports
@click.pass_context
def check(
    context: click.Context,
    /,
    *,
    cell: str | None,
    agent: str | None,
    model: str | None,
    agent_args: dict[str, Any],
    env_args: dict[str, Any],
) -> NoReturn:
    """Check that an environment or an agent keeps the rules of its interface.

    Exit codes: 0 if every check passes, 1 if one fails.
    """
    from ragen_bench.checks import ENV_CHECKS, check_agent, check_env
    from ragen_bench.plan import split_cell
    from ragen_bench.registry import AGENTS

    if cell is None and agent is None:
        raise InvalidSpec("nothing to check: give ID[:LEVEL] or --agent NAME")
    if agent is not None:
        AGENTS.get(agent)
    passed = True
    if cell is not None:
        env_id, level = split_cell(cell)
        for name in ENV_CHECKS:
            one = functools.partial(check_env, only=[name], level=level, **env_args)
            passed &= _passes(functools.partial(one, env_id))
    if agent is not None:
        passed &= _passes(lambda: check_agent(agent, model=model, **agent_args))
    context.exit(0 if passed else 1)


def _passes(check: Callable[[], tuple[str, ...]]) -> bool:
    """Run checks and say how they went."""
    try:
        names = check()
    except CheckFailed as fault:
        click.echo(f"FAIL {fault}")
        return False
    for name in names:
        click.echo(f"ok   {name}")
    return True


@cli.command(
    epilog=examples(
        "ragen-bench new env my_maze",
        "ragen-bench new agent my_agent --out agents",
        "ragen-bench new algorithm my_algorithm",
    ),
)
@click.argument("kind", type=click.Choice(("env", "agent", "board", "algorithm")))
@click.argument("name")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Folder or file; the working directory by default.",
)
def new(*, kind: Any, name: str, out: Path | None) -> None:
    """Write the one file of a new environment, agent, board or algorithm.

    It works before it is edited; the commands that try it are shown.
    """
    from ragen_bench import templates

    written = templates.write(kind, name, out)
    click.echo(written.path)
    for command in written.commands:
        click.echo(f"try: {command}", err=True)


@cli.command(
    "lm-eval-path",
    epilog=examples(
        "ragen-bench lm-eval-path  # what --include_path takes",
        'lm_eval --include_path "$(ragen-bench lm-eval-path)" --tasks ragen_smoke '
        "--apply_chat_template --model hf --model_args pretrained=FOLDER",
    ),
)
def lm_eval_path() -> None:
    """Write the folder of our tasks for lm-eval's own command."""
    from ragen_bench.lm_eval_tasks import FOLDER

    click.echo(FOLDER)


def main() -> None:
    """Run the command line in a process of its own."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character must not end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cli(prog_name="ragen-bench")
