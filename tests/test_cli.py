"""The command line: what it plays, writes, shows and refuses, and how it exits."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy
from click.testing import CliRunner, Result

from ragen_bench.agents.direct import Direct
from ragen_bench.agents.human import Human
from ragen_bench.cli import cli
from ragen_bench.cli_options import read_value
from ragen_bench.forecast import bound_input
from ragen_bench.prompts import ContextPolicy
from ragen_bench.run_folder import read_episodes, read_run

ENV = f"toy:{toy.CELL}"
WALK = ["run", "--env", ENV, "--agent", "toy:Walker", "--seeds", "3", "--out", "walk"]
PARROT = ["run", "--import", "toy", "--env", ENV, "--agent", "direct"]
PARROT += ["--model", "parrot", "--out", "parrot"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(Human, "_told", "")
    yield tmp_path


def invoke(*words: str, input: str | None = None) -> Result:
    result = CliRunner().invoke(cli, words, input=input)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refusal(*words: str) -> str:
    """Return the one sentence with which the command is refused."""
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if "Error: " in line]
    return line.removeprefix("Error: ")


def process(*words: str, **variables: str) -> "subprocess.Popen[str]":
    """Start the command as a shell would, without the working directory in front."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ragen_bench", *words],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


# Help ---------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from ragen_bench.cli import cli\n"
        "cli(['run', '--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'rich', 'scipy.stats', 'pandas'}"
        "\nassert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@pytest.mark.parametrize("verb", sorted(cli.commands))
def test_every_verb_has_an_example_in_its_help(verb: str) -> None:
    help = invoke(verb, "--help").stdout
    assert f"Examples:\n    ragen-bench {verb} " in help


def test_version_is_that_of_the_package() -> None:
    assert invoke("--version").stdout == "ragen-bench, version 0.1.0\n"


# Run ----------------------------------------------------------------------------


def test_run_leaves_a_folder_and_shows_a_table(here: Path) -> None:
    result = invoke(*WALK)
    assert result.exit_code == 0
    assert len(list(read_episodes(here / "walk"))) == 3
    header, total, *_ = result.stdout.splitlines()
    assert {"success", "normalized", "floor", "ceiling", "invalid"} <= set(
        header.split()
    )
    assert total.split()[:3] == ["toy:Walker", "all", "3"]
    assert "toy:Walker: solved 3, of 3 planned" in result.stdout
    assert "walk: 3 planned, 0 finished before, 3 to play" in result.stderr
    assert "3/3 episodes: solved 3" in result.stderr


def test_the_command_is_kept_in_the_run(here: Path) -> None:
    invoke(*WALK, "--salt", "a b")
    command = read_run(here / "walk").command
    assert command is not None
    assert command.startswith("ragen-bench run --env toy:toy/Corridor-v0")
    assert command.endswith("--salt 'a b'")


def test_a_complete_run_is_shown_again_and_not_played_again(here: Path) -> None:
    first = invoke(*WALK)
    files = {path.name: path.read_bytes() for path in (here / "walk").iterdir()}
    again = invoke(*WALK)
    assert again.exit_code == 0
    assert again.stdout == first.stdout
    assert "walk is complete: nothing to play" in again.stderr
    assert files == {path.name: path.read_bytes() for path in (here / "walk").iterdir()}


def test_json_is_the_summary_and_nothing_else(here: Path) -> None:
    result = invoke(*WALK, "--json")
    summary = json.loads(result.stdout)
    assert summary == json.loads((here / "walk" / "summary.json").read_bytes())
    assert summary["outcomes"]["solved"] == 3


def test_what_an_agent_prints_is_kept_out_of_the_json(here: Path) -> None:
    (here / "talker.py").write_text(
        "import toy\n"
        "class Talker(toy.Walker):\n"
        "    async def act(self, observation, info):\n"
        "        print('hello')\n"
        "        return await super().act(observation, info)\n"
    )
    result = invoke(*WALK, "--agent", "talker:Talker", "--json")
    assert json.loads(result.stdout)["agent"] == "talker:Talker"
    assert "hello" in result.stderr


def test_quiet_says_nothing_on_the_way() -> None:
    assert invoke(*WALK, "-q").stderr == ""


def test_the_folder_is_named_after_who_plays(here: Path) -> None:
    invoke("run", "--env", ENV, "--agent", "null", "--seeds", "1", "-q")
    (folder,) = (here / "runs").iterdir()
    assert folder.name.startswith("custom-null-")


def test_long_names_make_folders_of_their_own(here: Path) -> None:
    (here / "script.json").write_text('["<answer>Right</answer>"]')
    words = ["run", "--env", ENV, "--agent", "direct", "--seeds", "1", "-q", "--model"]
    for path in ("./" * 150, "./" * 151):
        assert invoke(*words, f"scripted:{path}script.json").exit_code == 0
    names = [folder.name for folder in (here / "runs").iterdir()]
    assert len(names) == 2
    assert max(map(len, names)) <= 120


def test_a_foreign_name_makes_a_folder_that_any_system_takes(here: Path) -> None:
    name = "\N{HIRAGANA LETTER A}" * 80
    (here / name).write_text('["<answer>Right</answer>"]')
    words = ["run", "--env", ENV, "--agent", "direct", "--seeds", "1", "-q", "--model"]
    assert invoke(*words, f"scripted:{name}").exit_code == 0
    (folder,) = (here / "runs").iterdir()
    assert folder.name.isascii()


def test_every_flag_reaches_the_configuration(here: Path) -> None:
    result = invoke(
        *("run", "--import", "toy", "--env", f"{ENV}:1", "--env", f"{ENV}:2"),
        *("--split", "dev", "--seeds", "2", "--agent", "direct", "--model", "parrot"),
        *("--model-arg", "context=9000", "--env-arg", "show_legal=true"),
        *("--env-arg", "invalid=retry:1", "--prompt", "compact"),
        *("--context", "window:2", "--temperature", "0.5", "--top-p", "0.9"),
        *("--max-tokens", "7", "--shots", "1", "--repeats", "2", "--salt", "s"),
        *("--concurrency", "3", "--episode-timeout", "60", "--out", "all", "-q"),
    )
    assert result.exit_code == 0
    config = read_run(here / "all").config
    assert config.model_dump(mode="json") == {
        "schema": 1,
        "board": None,
        "board_version": None,
        "split": "dev",
        "cells": [{"env_id": ENV, "level": n, "seeds": [0, 1]} for n in (1, 2)],
        "repeats": 2,
        "agent": "direct",
        "agent_args": {},
        "class": "llm",
        "model": "parrot",
        "model_args": {"context": 9000},
        "env_args": {"show_legal": True, "invalid": "retry:1"},
        "prompt": "compact",
        "shots": 1,
        "context": "window:2",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
        "salt": "s",
        "sealed": None,
        "breaches": [],
    }


def test_retry_errors_plays_again_what_nobody_played(here: Path) -> None:
    command = [*WALK[:4], "toy:Awkward", "--agent-arg", "how=provider"]
    command += ["--agent-arg", "seeds=[1]", *WALK[5:]]
    outcomes = json.loads(invoke(*command, "--json").stdout)["outcomes"]
    assert (outcomes["solved"], outcomes["provider_error"]) == (2, 1)
    assert "1 to play" in invoke(*command, "--retry-errors").stderr


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("retry:2", "retry:2"),
        ("a=b", "a=b"),
        ("", ""),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_value_is_json_if_it_can_be(text: str, value: object) -> None:
    found = read_value(text)
    assert (type(found), found) == (type(value), value)


# Exit codes ---------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_and_the_same_command_goes_on(
    here: Path, number: signal.Signals
) -> None:
    words = ["run", "--env", ENV, "--agent", "toy:Sleeper", "--agent-arg", "after=8"]
    words += ["--seeds", "4", "--concurrency", "1", "--out", "slow"]
    stopped = process(*words)
    assert stopped.stderr is not None
    assert "waiting\n" in iter(stopped.stderr.readline, "")
    stopped.send_signal(number)
    out, err = stopped.communicate()
    finished = len(list(read_episodes(here / "slow")))
    assert stopped.returncode == 3
    assert 0 < finished < 4
    said = f"stopped: {finished} of 4 episodes finished; the same command goes on"
    assert said in err
    assert "Traceback" not in err
    assert f"owed {4 - finished}, of 4 planned" in out
    assert invoke("score", "slow").exit_code == 3
    went_on = process(*words, TOY_AWAKE="1")
    assert f"{4 - finished} to play" in went_on.communicate()[1]
    assert went_on.returncode == 0


def board(**fields: object) -> None:
    Path("walks.toml").write_text(
        'schema = 1\nname = "walks"\ntitle = "Walks"\n'
        f'[[cells]]\nenv_id = "{ENV}"\nlevel = 1\nseeds = 5\n'
    )


@pytest.mark.parametrize(("how", "code"), [("wait", 0), ("provider", 4)])
def test_a_board_run_that_nobody_can_rank_exits_4(how: str, code: int) -> None:
    board()
    words = ["--board", "walks.toml", "--agent", "toy:Awkward"]
    words += ["--agent-arg", f"how={how}", "--agent-arg", "seeds=[0]", "--out", "b"]
    result = invoke("run", *words)
    assert result.exit_code == code
    assert ("not rankable: 20 % of episodes" in result.stdout) == (code == 4)
    assert invoke("score", "b").exit_code == code


def test_a_bug_of_an_environment_is_an_unexpected_failure() -> None:
    result = CliRunner().invoke(cli, [*WALK, "--env-arg", "fault_at=2"])
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_full_disk_exits_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    result = CliRunner().invoke(cli, WALK)
    assert result.exit_code == 3
    assert "No space left on device" in result.stderr


# Refusals -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "toy:toy/Coridor-v0"], "did you mean 'toy/Corridor-v0'?"),
        (["--env", f"{ENV}:9"], f"{ENV} has no level 9; it has 1, 2, 3"),
        (["--env", f"{ENV}:x"], "level 'x'"),
        (["--env", "nowhere:a/B-v0"], "no module 'nowhere'"),
        (["--env", ":a/B-v0"], "no module ''"),
        (["--agent", "orakle"], "no agent 'orakle'; did you mean 'oracle'?"),
        (["--agent", "toy:Nobody"], "module 'toy' has no 'Nobody'"),
        (["--agent", "direct", "--model", "tinny"], "did you mean 'tiny'?"),
        (["--model", "parrot"], "agent 'toy:Walker' uses no model"),
        (["--agent-arg", "stepz=2"], "did you mean 'steps'?"),
        (["--env-arg", "lenght=2"], "did you mean 'length'?"),
        (["--env-arg", "invalid=3"], "env_args {'invalid': 3} cannot be used: "),
        (["--env-arg", "strict=no"], "strict is 'no', but must be true or false"),
        (["--env-arg", "split=dev"], "split is a setting of the run"),
        (["--context", "full"], "agent 'toy:Walker' takes no context"),
        (["--seeds", "0"], "seeds is 0, but must be at least 1"),
        (["--seeds", "-1"], "seeds is -1, but must be at least 1"),
        (["--seeds", "x"], "'x' is not a valid integer"),
        (["--repeats", "0"], "repeats is 0, but must be at least 1"),
        (["--shots", "-1"], "shots is -1, but must be at least 0"),
        (["--concurrency", "0"], "concurrency is 0, but must be at least 1"),
        (["--episode-timeout", "0"], "episode_timeout is 0.0"),
        (["--split", "tset"], "'tset' is not one of 'train', 'dev', 'test'"),
        (["--import", "nowhere"], "no module 'nowhere'"),
        (["--import", ".maze"], "no module '.maze'"),
        (["--import", "envs/maze.py"], "must be a module's name, such as 'maze'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_said_before_anything_is_written(
    here: Path, words: list[str], said: str
) -> None:
    assert said in refusal(*WALK, *words)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--context", "window:0"], "context is 'window:0'"),
        (["--model-arg", "context"], "--model-arg is 'context', but must be KEY=VALUE"),
        (["--model-arg", "=3"], "--model-arg is '=3', but must be KEY=VALUE"),
        (
            ["--model-arg", "a=1", "--model-arg", "a=2"],
            "twice, the second time as 'a=2'",
        ),
        (["--model-arg", "contxt=3"], "did you mean 'context'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_settings_of_a_model_are_said_before_it_is_asked(
    here: Path, words: list[str], said: str
) -> None:
    toy.Parrot.prompts.clear()
    assert said in refusal(*PARROT, *words)
    assert toy.Parrot.prompts == []
    assert list(here.iterdir()) == []


def test_a_board_and_cells_exclude_each_other() -> None:
    board()
    said = refusal("run", "--board", "walks.toml", "--env", ENV, "--agent", "null")
    assert "board 'walks' fixes envs; leave it out" in said


def test_an_unknown_board_is_refused_with_a_suggestion() -> None:
    said = refusal("run", "--board", "smok", "--agent", "null")
    assert "no board 'smok'; did you mean 'smoke'?" in said


def test_nothing_to_play_is_refused() -> None:
    assert "give --board NAME or --env ID[:level]" in refusal("run")


@pytest.mark.parametrize("model", ["tiny", "hf:somewhere"])
def test_a_missing_extra_is_one_sentence_with_the_install_line(
    here: Path, model: str
) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from ragen_bench.cli import main\n"
        "main()\n"
    )
    words = ("run", "--env", "ragen/Bandit-v0", "--agent", "direct", "--model", model)
    told = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True
    )
    assert told.returncode == 2
    assert len(told.stderr.splitlines()) == 1
    assert told.stderr.endswith("pip install 'ragen-bench[hf]'\n")
    assert told.stdout == ""
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_refused(here: Path, out: str) -> None:
    (here / "file").write_text("mine")
    said = refusal(*WALK[:-1], out)
    assert "out" in said
    assert (here / "file").read_text() == "mine"


def test_a_folder_that_cannot_be_read_is_refused(here: Path) -> None:
    (here / "walk" / "run.json").mkdir(parents=True)
    assert "run.json cannot be read" in refusal(*WALK)


def test_a_folder_of_another_run_is_refused_by_what_differs() -> None:
    invoke(*WALK, "-q")
    said = refusal(*WALK, "--salt", "other")
    assert "'walk' was played with salt '', but 'other' is asked for" in said
    said = refusal(*WALK, "--split", "dev")
    assert "played with split 'test', but 'dev' is asked for" in said


# Dry runs -----------------------------------------------------------------------


def test_a_dry_run_shows_prompts_and_tokens_and_writes_nothing(here: Path) -> None:
    toy.Parrot.prompts.clear()
    result = invoke(*PARROT, "--env", f"{ENV}:2", "--dry-run", "--shots", "1")
    assert result.exit_code == 0
    assert result.stdout.startswith("direct parrot would play into parrot\n")
    assert f"{ENV}:2: episodes 8; tokens read at most " in result.stdout
    assert "\nall: episodes 16; tokens read at most " in result.stdout
    assert result.stdout.count("=== first prompt of") == 1
    assert "[system]\nWalk right through 5 cells to G." in result.stdout
    assert "[assistant]\n<answer>Right || Right || Right</answer>" in result.stdout
    assert list(here.iterdir()) == []
    assert toy.Parrot.prompts == []


def test_a_dry_run_bounds_what_is_read(here: Path) -> None:
    words = [*PARROT, "--max-tokens", "22", "--env", f"{ENV}:2"]
    forecast = json.loads(invoke(*words, "--dry-run", "--json").stdout)
    assert forecast["planned"] == 16
    # 16 episodes of at most 5 turns.
    assert forecast["output_tokens"] == 16 * 5 * 22
    toy.Parrot.prompts.clear()
    invoke(*words, "-q")
    read = sum(len(text) for _, said in toy.Parrot.prompts for _, text in said)
    assert 0.5 * forecast["input_tokens"] < read <= forecast["input_tokens"]


@pytest.mark.parametrize(
    "words",
    [
        ["--concurrency", "0"],
        ["--concurrency", "-3"],
        ["--episode-timeout", "-1"],
        ["--episode-timeout", "0"],
        ["--episode-timeout", "nan"],
        ["--cache", ""],
        ["--cache", "file"],
        ["--budget", "1"],
        ["--prices", "nowhere"],
    ],
    ids=str,
)
def test_a_dry_run_refuses_what_the_run_does(here: Path, words: list[str]) -> None:
    (here / "file").write_text("")
    said = refusal(*PARROT, *words)
    assert refusal(*PARROT, *words, "--dry-run") == said
    assert [path.name for path in here.iterdir()] == ["file"]


def test_a_dry_run_refuses_a_cache_for_no_model() -> None:
    said = refusal(*WALK, "--cache", "cache")
    assert refusal(*WALK, "--cache", "cache", "--dry-run") == said


def test_a_dry_run_without_a_model_asks_for_no_tokens() -> None:
    result = invoke(*WALK, "--dry-run")
    assert f"{ENV}:1: episodes 3; no tokens, for no model is asked" in result.stdout


@pytest.mark.parametrize(
    ("context", "longest", "total"),
    [
        ("full", None, 100 + 125 + 140),
        ("window:1", None, 100 + 125 + 125),
        ("single", None, 100 + 110 + 110),
        ("tokens:110", None, 100 + 105 + 105),
        ("full", 120, 100 + 120 + 120),
    ],
)
def test_the_bound_of_three_turns_is_worked_by_hand(
    context: str, longest: int | None, total: int
) -> None:
    model = toy.load_parrot("")
    model.max_context = longest
    agent = Direct(model, context=context, max_tokens=5)
    assert agent.context == ContextPolicy.parse(context)
    # An opening of 100 tokens, observations of 10, replies of 5.
    assert bound_input(agent, opening=100, observation=10, turns=3) == total


# Scores and lists ---------------------------------------------------------------


def test_score_puts_runs_into_one_table(here: Path) -> None:
    invoke(*WALK, "-q")
    invoke("run", "--env", ENV, "--agent", "null", "--seeds", "2", "--out", "n", "-q")
    result = invoke("score", "walk", "n")
    assert result.exit_code == 0
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:7]] == [
        [run, cell] for run in ("walk", "n") for cell in ("all", ENV, f"{ENV}:1")
    ]
    markdown = invoke("score", "walk", "n", "--markdown").stdout.splitlines()
    assert markdown[1].startswith("| --- | --- | ---: |")
    assert len(markdown) == 8
    both = json.loads(invoke("score", "walk", "n", "--json").stdout)
    assert [summary["agent"] for summary in both] == ["toy:Walker", "null"]
    one = json.loads(invoke("score", "walk", "--json").stdout)
    assert one == both[0]


def test_score_refuses_what_is_no_run(here: Path) -> None:
    (here / "empty").mkdir()
    assert "'empty' is no run folder" in refusal("score", "empty")
    assert "leave one out" in refusal("score", "empty", "--json", "--markdown")


def test_ls_lists_names_and_what_they_are() -> None:
    envs = invoke("ls", "envs", "--import", "toy").stdout.splitlines()
    assert toy.CELL in envs
    assert "ragen/Sokoban-v0" in envs
    verbose = invoke("ls", "envs", "-v").stdout
    assert f"\n{toy.CELL}\n  Walk right to the end" in verbose
    assert "\n  1  five cells\n  2  five cells, slippery\n" in verbose
    agents = invoke("ls", "agents").stdout.splitlines()
    assert {"direct", "human", "null", "oracle", "random", "think_act"} <= set(agents)
    assert {"hf", "scripted", "tiny"} <= set(invoke("ls", "models").stdout.split())
    assert "smoke" in invoke("ls", "boards").stdout.splitlines()


def test_ls_writes_json() -> None:
    agents = json.loads(invoke("ls", "agents", "--json").stdout)
    (oracle,) = [item for item in agents if item["name"] == "oracle"]
    assert (oracle["class"], oracle["privileged"]) == ("solver", True)
    envs = json.loads(invoke("ls", "envs", "--json", "--import", "toy").stdout)
    (corridor,) = [item for item in envs if item["name"] == toy.CELL]
    assert corridor["levels"]["1"] == "five cells"
    for what in ("models", "boards"):
        listed = json.loads(invoke("ls", what, "--json").stdout)
        assert all("name" in item for item in listed)


def test_ls_refuses_an_unknown_kind() -> None:
    assert "'env' is not one of 'envs'" in refusal("ls", "env")


# Check --------------------------------------------------------------------------


def test_check_goes_on_after_a_failure_and_exits_1(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("texts_are_ascii", "rules_are_complete")
    monkeypatch.setattr("ragen_bench.checks.ENV_CHECKS", names)
    (here / "oblique.py").write_text(
        "import toy\n"
        "class Oblique(toy.Corridor):\n"
        "    def rules(self):\n"
        "        return 'Walk \\u2192'\n"
        "toy.rb.register('toy/Oblique', Oblique)\n"
    )
    result = invoke("check", "oblique:toy/Oblique-v0:2")
    assert result.exit_code == 1
    failed, passed = result.stdout.splitlines()
    assert failed.startswith("FAIL oblique:toy/Oblique-v0:2 fails texts_are_ascii: ")
    assert passed == "ok   rules_are_complete"
    result = invoke("check", f"{ENV}:2")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)


def test_check_refuses_to_check_nothing() -> None:
    assert "give ID[:LEVEL] or --agent NAME" in refusal("check")
    assert "no level 7" in refusal("check", f"{ENV}:7")
    assert "did you mean 'oracle'" in refusal("check", "--agent", "orakle")


# Play ---------------------------------------------------------------------------


def test_play_records_what_a_person_plays(here: Path) -> None:
    said = "right right\nwait\n?\nr || r\n"
    result = invoke("play", ENV, "--seed", "5", "--out", "mine", input=said)
    assert result.exit_code == 0
    assert result.stdout == "mine: solved 1, of 1 planned\n"
    (episode,) = read_episodes(here / "mine")
    assert (episode.seed, episode.split, episode.outcome) == (5, "test", "solved")
    assert [turn.actions for turn in episode.turns][:2] == [
        ("Right", "Right"),
        ("Wait",),
    ]
    assert read_run(here / "mine").config.agent_class == "human"
    assert result.stderr.count("Walk right through 5 cells to G.") == 2
    assert "solved in turn 3: return 1" in result.stderr
    assert invoke("score", "mine").exit_code == 0


@pytest.mark.parametrize("last", ["q\n", ""])
def test_play_stops_on_q_and_at_the_end_of_input(here: Path, last: str) -> None:
    first = invoke("play", ENV, "--out", "mine", input=f"right\n{last}")
    assert first.exit_code == 3
    assert "stopped: 0 of 1 episodes finished" in first.stderr
    assert list(read_episodes(here / "mine")) == []
    again = invoke("play", ENV, "--out", "mine", input="r r r\nr\n")
    assert again.exit_code == 0


def test_play_takes_settings(here: Path) -> None:
    words = ["--seeds", "2", "--prompt", "compact", "--split", "train"]
    words += ["--env-arg", "max_turns=1", "--out", "mine", "--json"]
    result = invoke("play", ENV, *words, input="wait\nwait\n")
    summary = json.loads(result.stdout)
    assert summary["outcomes"]["failed"] == 2
    config = read_run(here / "mine").config
    assert (config.prompt, config.split) == ("compact", "train")
    said = refusal("play", ENV, "--seed", "1", "--seeds", "2")
    assert said == "--seed and --seeds exclude each other; leave one out"
    assert "-1 is not in the range" in refusal("play", ENV, "--seed", "-1")


# Surroundings -------------------------------------------------------------------


def test_files_of_the_working_directory_hide_no_module(here: Path) -> None:
    for name in ("tomllib", "click", "statistics"):
        (here / f"{name}.py").write_text("raise SystemExit(9)\n")
    listing = process("ls", "boards")
    out, err = listing.communicate()
    assert (listing.returncode, err) == (0, "")
    assert "smoke" in out


@pytest.mark.parametrize(
    # Click writes UTF-8 where a stream claims to be ASCII.
    ("encoding", "arrow"),
    [("cp1252", "\\u2192"), ("ascii", "\u2192")],
)
def test_a_poor_encoding_ends_no_run(encoding: str, arrow: str) -> None:
    shown = process(*WALK[:-1], "\u2192", "--dry-run", PYTHONIOENCODING=encoding)
    out, err = shown.communicate()
    assert (shown.returncode, err) == (0, "")
    assert f"into {arrow}" in out


def test_every_model_says_what_it_is() -> None:
    # In a process of its own: tests register models too.
    code = "from ragen_bench import listing; [m['summary'] for m in listing.models()]"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False
    )
    assert found.returncode == 0, found.stderr
