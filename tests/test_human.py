"""The agent that is a person: what a typed line means, and how a person stops."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import toy

from ragen_bench.agents.human import Human, read_actions
from ragen_bench.episode import play, task_of
from ragen_bench.errors import InvalidSpec
from ragen_bench.records import Episode, EpisodeKey
from ragen_bench.registry import make

MOVES = ("Up", "Down", "Left", "Right")
ARMS = ("Pull left arm", "Pull right arm", "Pull", "Wait")
KEY = EpisodeKey(toy.CELL, 1, "test", 0, 0)


class Terminal:
    """Lines that a person types, and all that was shown."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.shown = ""
        self.threads: set[str] = set()

    def read(self) -> str:
        self.threads.add(threading.current_thread().name)
        return self.lines.pop(0) if self.lines else ""

    def write(self, text: str) -> None:
        self.shown += text

    def agent(self) -> Human:
        return Human(read=self.read, write=self.write)


def episode_of(terminal: Terminal, **settings: object) -> Episode:
    Human._told = ""
    env = make(toy.CELL, split="test", **settings)
    episode, _ = asyncio.run(play(env, terminal.agent(), KEY))
    return episode


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("up", ["Up"]),
        ("UP Up right", ["Up", "Up", "Right"]),
        ("u d l r", ["Up", "Down", "Left", "Right"]),
        ("up || right", ["Up", "Right"]),
        ("up|right, l;d", ["Up", "Right", "Left", "Down"]),
        ("up ||", ["Up"]),
        ("  ri\tle  ", ["Right", "Left"]),
    ],
)
def test_a_line_names_moves(line: str, names: list[str]) -> None:
    assert read_actions(line, MOVES) == names


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("pull left arm", ["Pull left arm"]),
        ("pull left", ["Pull left arm"]),
        ("pull l pull r w", ["Pull left arm", "Pull right arm", "Wait"]),
        # An exact name counts, although longer ones begin like it.
        ("pull", ["Pull"]),
        ("pull || left", None),
        ("pul", None),
    ],
)
def test_names_may_have_several_words(line: str, names: list[str] | None) -> None:
    if names is None:
        with pytest.raises(InvalidSpec):
            read_actions(line, ARMS)
    else:
        assert read_actions(line, ARMS) == names


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("jump", "'jump' is no action; known are Up, Down, Left, Right"),
        ("up jump", "'jump' is no action"),
        ("||", "'||' names no action; known are Up, Down, Left, Right"),
    ],
)
def test_a_line_that_names_no_action_is_explained(line: str, said: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        read_actions(line, MOVES)
    assert said in str(refusal.value)


def test_an_ambiguous_beginning_is_explained() -> None:
    with pytest.raises(InvalidSpec, match="'l' may be any of Left, Lift"):
        read_actions("l", ("Left", "Lift", "Right"))


def test_a_typed_line_becomes_an_answer_of_the_record() -> None:
    terminal = Terminal("r r\n", "<answer>Wait</answer>\n", "<hm\n", "right r\n")
    episode = episode_of(terminal)
    assert [turn.response for turn in episode.turns] == [
        "<answer>Right || Right</answer>",
        "<answer>Wait</answer>",
        "<hm",
        "<answer>Right || Right</answer>",
    ]
    assert [turn.valid for turn in episode.turns] == [True, True, False, True]
    assert episode.outcome == "solved"


def test_a_slip_of_the_keyboard_costs_no_turn() -> None:
    terminal = Terminal("\n", "x\n", "r r r r\n", "R R R\n", "R\n")
    episode = episode_of(terminal)
    assert [turn.valid for turn in episode.turns] == [True]
    assert "'x' is no action" in terminal.shown
    assert "4 actions, but a turn holds at most 3" in terminal.shown


def test_rules_are_shown_once_and_again_when_asked_for() -> None:
    rules = "Walk right through 5 cells to G."
    terminal = Terminal("r\n", "?\n", "r r\n", "r\n")
    episode_of(terminal)
    assert terminal.shown.count(rules) == 2
    again = Terminal("r r r\n", "r\n")
    env = make(toy.CELL, split="test")
    asyncio.run(play(env, again.agent(), KEY))
    assert again.shown.count(rules) == 0
    assert "The rules are as before" in again.shown


def test_every_observation_is_shown() -> None:
    terminal = Terminal("r r r\n", "r\n")
    episode = episode_of(terminal)
    for turn in episode.turns:
        assert f"\n{turn.observation}\n> " in terminal.shown


def test_lines_are_read_beside_the_event_loop() -> None:
    terminal = Terminal("r r r\n", "r\n")
    episode_of(terminal)
    assert terminal.threads == {"ragen-bench human"}


def test_a_reader_that_fails_fails_the_agent() -> None:
    def read() -> str:
        raise OSError("the terminal is gone")

    Human._told = ""
    agent = Human(read=read, write=lambda text: None)
    episode, _ = asyncio.run(play(make(toy.CELL, split="test"), agent, KEY))
    assert (episode.outcome, episode.error) == (
        "agent_error",
        "OSError: the terminal is gone",
    )


@pytest.mark.parametrize("last", ["q\n", "Q\n", ""])
def test_stopping_is_no_outcome(last: str) -> None:
    with pytest.raises(asyncio.CancelledError):
        episode_of(Terminal("r\n", last))


def test_an_action_that_is_called_q_can_be_played() -> None:
    instance = {"names": ["I", "Q"], "means": [0.5, 0.5]}
    env = make("ragen/Bandit-v0", level=3)
    env.reset(options={"instance": instance})
    terminal = Terminal("q\n", "quit\n")
    agent = terminal.agent()
    agent.reset(task_of(KEY, env, env.rules(), (), agent, ""))
    assert asyncio.run(agent.act("", {})).text == "<answer>Q</answer>"
    assert "quit stops" in terminal.shown
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(agent.act("", {}))


def test_what_reads_and_writes_must_be_callable() -> None:
    with pytest.raises(InvalidSpec, match="read is 'keyboard', but must be callable"):
        Human(read="keyboard")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["interrupt", "end of input"])
def test_a_person_at_a_terminal_can_stop(tmp_path: Path, how: str) -> None:
    ours, theirs = pty.openpty()
    command = ["-m", "ragen_bench", "play", f"toy:{toy.CELL}", "--out", "mine"]
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        shown = b""
        while not shown.endswith(b"> "):
            byte = process.stderr.read(1)
            assert byte, shown
            shown += byte
        if how == "interrupt":
            process.send_signal(signal.SIGINT)
        else:
            os.write(ours, b"\x04")
        _, rest = process.communicate()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 3
    assert rest.decode().strip() == (
        "stopped: 0 of 1 episodes finished; the same command goes on"
    )
