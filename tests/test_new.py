"""What `new` writes works before it is edited."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import ragen_bench
from ragen_bench.cli import cli
from ragen_bench.errors import InvalidSpec
from ragen_bench.templates import write


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path


def command(*words: str, input: str | None = None) -> str:
    """Run the command as a shell would and return what it writes to stdout."""
    finished = subprocess.run(
        [sys.executable, "-P", "-m", "ragen_bench", *words],
        input=input,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr + finished.stdout
    return finished.stdout


def test_a_new_environment_is_checked_run_and_scored(here: Path) -> None:
    assert command("new", "env", "my_maze") == "my_maze.py\n"
    assert [path.name for path in here.iterdir()] == ["my_maze.py"]
    checked = command("check", "--import", "my_maze", "my/MyMaze-v0:2")
    assert len(checked.splitlines()) > 20
    assert all(line.startswith("ok   ") for line in checked.splitlines())
    cells = ["--env", "my/MyMaze-v0:1", "--env", "my/MyMaze-v0:2"]
    command("run", "--import", "my_maze", *cells, "--agent", "oracle", "--out", "runs")
    summary = json.loads(command("score", "runs", "--json"))
    assert summary["outcomes"]["solved"] == summary["planned"] == 16
    assert summary["score"]["mean"] == 1


def test_a_new_environment_is_played_by_a_person() -> None:
    command("new", "env", "my_maze")
    words = ["play", "--import", "my_maze", "my/MyMaze-v0", "--out", "mine"]
    played = command(*words, input="add sub\n" * 5)
    assert ", of 1 planned" in played


def test_a_new_agent_is_checked_run_and_scored() -> None:
    assert command("new", "agent", "my_agent") == "my_agent.py\n"
    checked = command("check", "--import", "my_agent", "--agent", "my_agent")
    assert all(line.startswith("ok   ") for line in checked.splitlines())
    words = ["--agent", "my_agent:MyAgent", "--agent-arg", "first=1", "--out", "runs"]
    command("run", "--env", "ragen/Bandit-v0:1", *words)
    summary = json.loads(command("score", "runs", "--json"))
    assert (summary["agent"], summary["owed"]) == ("my_agent:MyAgent", 0)


def test_a_new_board_is_run_and_scored() -> None:
    assert command("new", "board", "my-board") == "my-board.toml\n"
    words = ["--board", "my-board.toml", "--agent", "oracle", "--out", "runs"]
    command("run", *words)
    summary = json.loads(command("score", "runs", "--json"))
    assert (summary["board"], summary["planned"]) == ("my-board", 30)
    assert summary["rankable"]


TINY = ["iterations=2", "groups=2", "rollouts=2", "max_tokens=4", "layers=1"]


@pytest.mark.hf
@pytest.mark.parametrize("how", ["by its name", "by its module"])
def test_a_new_algorithm_trains_and_passes_its_own_test(here: Path, how: str) -> None:
    pytest.importorskip("torch")
    assert command("new", "algorithm", "my_way") == "my_way.py\n"
    subprocess.run([sys.executable, "-m", "doctest", "my_way.py"], check=True)
    named = ["--import", "my_way"] if how == "by its name" else []
    words = ["--set", f"algorithm={'my_way' if named else 'my_way:plain'}"]
    words += [word for pair in TINY for word in ("--set", pair)]
    command("train", *named, "--set", "hidden_size=32", *words, "--out", "t")
    settings = json.loads((here / "t" / "train.json").read_text())["config"]
    assert settings["algorithm"] == words[1].removeprefix("algorithm=")
    assert len((here / "t" / "metrics.csv").read_text().splitlines()) == 3


@pytest.mark.hf
def test_algorithms_are_listed_with_critic_and_source(here: Path) -> None:
    pytest.importorskip("torch")
    write("algorithm", "my_way")
    words = ["ls", "algorithms", "--import", "my_way"]
    listed = {one["name"]: one for one in json.loads(command(*words, "--json"))}
    assert command(*words).split() == sorted(listed)
    assert listed["grpo"] == {
        "name": "grpo",
        "summary": "GRPO: returns normalised within the group (arXiv 2402.03300).",
        "critic": False,
        "source": "arXiv 2402.03300",
    }
    assert listed["my_way"]["summary"].startswith("MyWay: each return less the median")
    assert {name for name, one in listed.items() if one["critic"]} == {
        "ppo",
        "ppo_bilevel",
        "ppo_turn",
    }
    ours = {name: one for name, one in listed.items() if name != "my_way"}
    assert all(one["source"] for one in ours.values())


def test_the_commands_of_a_new_algorithm_find_it_wherever_it_lies(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write("algorithm", "my_way").commands
    assert first.startswith("ragen-bench train --import my_way --preset tiny-cpu ")
    assert first.endswith(" --set algorithm=my_way")
    assert second == "python -m doctest my_way.py"
    monkeypatch.setattr("ragen_bench.starpo.__path__", [str(here / "starpo")])
    commands = write("algorithm", "my_way", here / "starpo" / "algorithms").commands
    assert commands[0].startswith("ragen-bench train --preset tiny-cpu ")


def test_the_commands_that_are_shown_are_real() -> None:
    result = CliRunner().invoke(cli, ["new", "board", "small"])
    (shown,) = result.stderr.splitlines()
    program, *words = shown.removeprefix("try: ").split()
    assert program == "ragen-bench"
    command(*words)


def test_the_commands_find_a_module_wherever_it_lies(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = write("agent", "my_agent", here / "be low").commands
    assert commands[0] == (
        f"PYTHONPATH='{here / 'be low'}' ragen-bench check --import my_agent "
        "--agent my_agent"
    )
    monkeypatch.setattr("ragen_bench.agents.__path__", [str(here / "agents")])
    commands = write("agent", "my_agent", here / "agents").commands
    assert commands[0] == "ragen-bench check --agent my_agent"


def test_what_lies_in_the_projects_own_folders_is_found_by_name(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = here / "ragen_bench"
    shutil.copytree(Path(ragen_bench.__file__).parent, own)
    write("env", "my_maze", own / "envs")
    write("agent", "my_agent", own / "agents")
    write("board", "mine", own / "leaderboards")
    monkeypatch.setenv("PYTHONPATH", str(here))
    assert "my/MyMaze-v0" in command("ls", "envs").splitlines()
    words = ["--env", "my/MyMaze-v0", "--agent", "my_agent", "--out", "run"]
    assert "of 8 planned" in command("run", *words)
    assert "mine" in command("ls", "boards").splitlines()


def test_a_folder_or_a_file_may_be_named(here: Path) -> None:
    assert write("env", "maze_a", here / "below").path == here / "below" / "maze_a.py"
    named = here / "boards" / "b.toml"
    assert write("board", "b", named).path == named
    assert named.exists()


def test_nothing_is_overwritten(here: Path) -> None:
    (here / "my_maze.py").write_text("mine")
    with pytest.raises(InvalidSpec, match="cannot be written: File exists"):
        write("env", "my_maze")
    assert (here / "my_maze.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("env", "My Maze", "must be a module's name"),
        ("env", "../maze", "must be a module's name"),
        ("agent", "class", "must be a module's name"),
        ("algorithm", "My-Way", "must be a module's name"),
        ("agent", "random", "is installed and would be imported in its place"),
        ("agent", "numpy", "is installed and would be imported in its place"),
        ("board", "My Board", "must be lower-case letters"),
        ("board", "../board", "must be lower-case letters"),
    ],
)
def test_a_name_that_cannot_work_is_refused(
    here: Path, kind: str, name: str, said: str
) -> None:
    result = CliRunner().invoke(cli, ["new", kind, name])
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(here.iterdir()) == []


def test_a_file_of_another_name_is_refused(here: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"the file of 'maze_a' is called maze_a.py"):
        write("env", "maze_a", here / "maze_b.py")


def test_a_place_that_cannot_be_written_is_refused(here: Path) -> None:
    (here / "file").write_text("mine")
    with pytest.raises(InvalidSpec, match="cannot be written: .*; choose another"):
        write("env", "maze_a", here / "file" / "below")
