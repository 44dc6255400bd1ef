"""What is seen of a training, in a log and on a terminal, and how it is stopped."""

import io
import logging
import os
import signal

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402
from trainees import small  # noqa: E402

from ragen_bench.starpo import metrics, progress, training  # noqa: E402

pytestmark = pytest.mark.hf


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def row(iteration, **more):
    known = {"return_mean": 0.25, "success": 0.5, "entropy": 1.5, "kept_share": 1.0}
    return {"iteration": iteration, **known, **more}


def followed(iterations, seconds, done=0, **more):
    """Return the lines of a log with so many seconds an iteration."""
    stream, clock = io.StringIO(), Clock()
    lines = progress.Lines(stream, every=5.0, clock=clock)
    lines.begin(small(iterations=iterations), done)
    for number in range(done + 1, iterations + 1):
        clock.now += seconds
        lines.iteration(row(number, **more), {"tokens_per_s": 1234.0})
    return stream.getvalue().splitlines()


def test_a_line_has_reward_success_entropy_rate_and_time_left() -> None:
    first = followed(10, 2)[1]
    assert first == (
        " 1/10  return   0.250  success  50.0%  entropy  1.500  kept 100%"
        "    1,234 tokens/s   0:18 left"
    )


def test_a_log_has_the_first_and_the_last_iteration_and_one_in_five_seconds() -> None:
    numbers = [line.split("/")[0].strip() for line in followed(10, 2)[1:]]
    assert numbers == ["1", "4", "7", "10"]


def test_an_evaluated_iteration_is_always_told() -> None:
    lines = followed(10, 0.1, dev_return=0.75, dev_success=1.0)
    assert len(lines) == 11
    assert lines[3].endswith("dev return 0.750  dev success 100.0%")


def test_the_time_left_counts_what_is_played_now_alone() -> None:
    lines = followed(10, 3, done=8)
    assert lines[0] == "goes on after iteration 8 of 10"
    assert "0:03 left" in lines[1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(59.6, "1:00"), (5, "0:05"), (3723, "1:02:03")]
)
def test_durations_read_as_on_a_clock(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


def test_a_terminal_has_a_bar_beneath_the_lines() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    live = progress.Live(console)
    live.begin(small(iterations=3), 0)
    live.iteration(row(1), {})
    live.alarm("success fell")
    live.close()
    text = stream.getvalue()
    assert "ALARM success fell" in text and "1/3" in text and "━" in text


@pytest.mark.parametrize("quiet", [True, False])
def test_a_pipe_gets_lines_and_who_wants_quiet_nothing(quiet: bool) -> None:
    chosen = progress.choose(quiet=quiet, stream=io.StringIO())
    expected = training.Progress if quiet else progress.Lines
    assert type(chosen) is expected


def test_without_a_listener_alarms_go_into_the_log(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        training.Progress().alarm("success fell")
    assert [record.getMessage() for record in caplog.records] == ["success fell"]


class Interrupting(progress.Lines):
    """Presses Ctrl-C while the first iteration is told of."""

    def __init__(self, stream, times):
        super().__init__(stream)
        self._times = times

    def iteration(self, row, times):
        super().iteration(row, times)
        for _ in range(self._times):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_and_the_same_call_goes_on(tmp_path) -> None:
    stream = io.StringIO()
    config = small(iterations=3)
    outcome = training.train(config, tmp_path, progress=Interrupting(stream, 1))
    assert not outcome.complete and outcome.iterations == 1
    assert "stopping after this iteration; once more stops at once" in stream.getvalue()
    assert outcome.model.is_dir()
    again = training.train(config, tmp_path, progress=progress.Lines(stream))
    assert again.complete and "goes on after iteration 1 of 3" in stream.getvalue()
    numbers = [row["iteration"] for row in metrics.read(tmp_path / "metrics.csv")]
    assert numbers == ["1", "2", "3"]


def test_ctrl_c_twice_stops_at_once(tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        training.train(
            small(iterations=3), tmp_path, progress=Interrupting(io.StringIO(), 2)
        )
    assert training.train(small(iterations=3), tmp_path).complete
