"""What people see of a run in progress, on a terminal and in a log."""

import io
import json
from pathlib import Path

import pytest
import toy
from rich.console import Console

import ragen_bench as rb
from ragen_bench.progress import (
    Commentary,
    LiveProgress,
    PlainProgress,
    Tally,
    Watch,
    choose,
)
from ragen_bench.records import Episode
from ragen_bench.run_folder import read_episodes
from ragen_bench.runner import Observer


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 100.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Screen(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def run(out: Path, observer: Observer | None = None, **settings: object) -> None:
    settings = {"agent": "toy:Walker", "seeds": 3, "concurrency": 1, **settings}
    rb.run(envs=toy.CELL, out=out, observer=observer, **settings)


def an_episode(tmp_path: Path, tokens: int | None = None, **changes: object) -> Episode:
    folder = tmp_path / "one"
    run(folder, seeds=1)
    episode = next(read_episodes(folder))
    usage = {"output_tokens": tokens}
    record = json.loads(episode.model_dump_json())
    for turn in record["turns"]:
        turn["usage"] = usage
    return Episode.model_validate({**record, **changes})


# Counting -----------------------------------------------------------------------


def test_a_tally_counts_episodes_tokens_and_time(tmp_path: Path) -> None:
    clock = Clock()
    tally = Tally(planned=10, held=4, has_model=True, clock=clock)
    assert tally.seconds_left() is None
    assert (tally.buckets(), tally.tokens()) == ("", "0 tokens (0/s)")
    solved = an_episode(tmp_path, tokens=500)
    tally.add(solved)
    tally.add(solved.model_copy(update={"outcome": "failed"}))
    clock.now += 8.0
    assert tally.finished == 6
    assert tally.buckets() == "solved 1, failed 1"
    # Two episodes in 8 s leave four for 16 s.
    assert tally.seconds_left() == 16.0
    written = 2 * 500 * len(solved.turns)
    assert tally.tokens() == f"{written:,} tokens ({written / 8:,.0f}/s)"


def test_without_a_model_no_tokens_are_told() -> None:
    assert Tally(10, 0, has_model=False, clock=Clock()).tokens() == ""


def test_the_last_error_is_kept_in_one_line(tmp_path: Path) -> None:
    tally = Tally(10, 0, has_model=False, clock=Clock())
    tally.add(an_episode(tmp_path, outcome="agent_error", error="KeyError:\n  'x'"))
    assert tally.error == "toy/Corridor-v0:1/test/0/0: agent_error: KeyError: 'x'"


# Lines --------------------------------------------------------------------------


def test_a_log_has_a_first_and_a_last_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    run(tmp_path / "out", PlainProgress(stream, clock=Clock()))
    first, last = stream.getvalue().splitlines()
    assert first == f"{tmp_path / 'out'}: 3 planned, 0 finished before, 3 to play"
    assert last == "3/3 episodes: solved 3"


def test_a_log_has_a_line_every_few_seconds(tmp_path: Path) -> None:
    stream = io.StringIO()
    # The clock is asked several times an episode, and moves 2 s each time.
    observer = PlainProgress(stream, every=8.0, clock=Clock(step=2.0))
    run(tmp_path / "out", observer, seeds=20)
    lines = stream.getvalue().splitlines()
    assert 3 < len(lines) < 20
    assert "; about 0:0" in lines[1]


def test_a_log_names_an_error_once(tmp_path: Path) -> None:
    stream = io.StringIO()
    run(
        tmp_path / "out",
        PlainProgress(stream, every=0.0, clock=Clock()),
        agent="toy:Awkward",
        agent_args={"how": "provider", "seeds": [0]},
    )
    told = "last error: toy/Corridor-v0:1/test/0/0: provider_error: 503 after 5 tries"
    assert stream.getvalue().splitlines().count(told) == 1


def test_a_run_that_goes_on_says_so(tmp_path: Path) -> None:
    run(tmp_path / "out")
    lines = (tmp_path / "out" / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "out" / "episodes.jsonl").write_bytes(b"".join(lines[:2]))
    stream = io.StringIO()
    run(tmp_path / "out", PlainProgress(stream, clock=Clock()))
    first, last = stream.getvalue().splitlines()
    assert first.endswith(": 3 planned, 2 finished before, 1 to play")
    assert last == "3/3 episodes: solved 1"


def test_a_complete_run_says_so_and_no_more(tmp_path: Path) -> None:
    run(tmp_path / "out")
    stream = io.StringIO()
    run(tmp_path / "out", PlainProgress(stream))
    assert stream.getvalue() == f"{tmp_path / 'out'} is complete: nothing to play\n"


# A terminal ---------------------------------------------------------------------


def live(tmp_path: Path, stream: io.StringIO, **settings: object) -> str:
    console = Console(file=stream, force_terminal=True, width=100)
    with LiveProgress(console) as observer:
        run(tmp_path / "out", observer, **settings)
    return stream.getvalue()


def test_a_terminal_shows_a_bar_and_gets_its_cursor_back(tmp_path: Path) -> None:
    shown = live(tmp_path, Screen())
    assert "3/3" in shown
    assert "solved 3" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_a_terminal_shows_the_last_error_beneath_the_bar(tmp_path: Path) -> None:
    settings = {"how": "raise", "seeds": [2]}
    shown = live(tmp_path, Screen(), agent="toy:Awkward", agent_args=settings)
    assert "last error: toy/Corridor-v0:1/test/2/0: agent_error: LookupError" in shown


def test_tokens_are_shown_where_a_model_plays(tmp_path: Path) -> None:
    shown = live(tmp_path, Screen(), agent="direct", model="parrot")
    assert "0 tokens (0/s)" in shown


def test_a_complete_run_needs_no_bar(tmp_path: Path) -> None:
    run(tmp_path / "out")
    shown = live(tmp_path, Screen())
    assert "is complete: nothing to play" in shown
    assert "3/3" not in shown


def test_a_run_that_fails_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    stream = Screen()
    with pytest.raises(ZeroDivisionError):
        live(tmp_path, stream, env_args={"fault_at": 2})
    shown = stream.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_colours_are_left_out_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coloured = live(tmp_path / "one", Screen())
    monkeypatch.setenv("NO_COLOR", "1")
    plain = live(tmp_path / "two", Screen())
    assert "\x1b[3" in coloured
    assert "\x1b[3" not in plain


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_terminal_without_box_characters_shows_a_bar(
    tmp_path: Path, encoding: str
) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    live_to = Console(file=stream, force_terminal=True, width=100)
    with LiveProgress(live_to) as observer:
        run(tmp_path / "out", observer)
    stream.flush()
    assert b"3/3" in raw.getvalue()


# Which one ----------------------------------------------------------------------


def test_the_observer_suits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(choose(quiet=True, stream=Screen())) is Watch
    assert type(choose(quiet=False, stream=Screen())) is LiveProgress
    assert type(choose(quiet=False, stream=io.StringIO())) is PlainProgress
    monkeypatch.setenv("TERM", "dumb")
    assert type(choose(quiet=False, stream=Screen())) is PlainProgress


def test_it_is_told_at_once_that_a_run_will_not_be_ranked(tmp_path: Path) -> None:
    shown: list[str] = []
    rb.run(
        "smoke",
        agent="null",
        repeats=2,
        out=tmp_path / "out",
        observer=Commentary(shown.append),
    )
    assert "not to be ranked: repeats is 2, but must be 1" in shown[0]


def test_a_person_is_told_how_each_episode_ended(tmp_path: Path) -> None:
    shown: list[str] = []
    run(tmp_path / "out", Commentary(shown.append), seeds=2)
    opening, *endings = shown
    assert opening == f"{tmp_path / 'out'}: 2 planned, 0 finished before, 2 to play\n"
    assert len(endings) == 2
    for text, episode in zip(endings, read_episodes(tmp_path / "out"), strict=True):
        assert episode.final_observation in text
        assert f"solved in turn {len(episode.turns)}: return 1 (random play" in text
