"""A collapse through the whole loop: alarms, their file, and the end of training."""

import json

import pytest
import starpo_curves as curves

pytest.importorskip("torch")

from ragen_bench.starpo import config as configuration  # noqa: E402
from ragen_bench.starpo import metrics, training  # noqa: E402
from ragen_bench.starpo.diagnosis import diagnose  # noqa: E402
from ragen_bench.starpo.echo_trap import scan  # noqa: E402

pytestmark = pytest.mark.hf

LENGTH = 60
ROWS = curves.rows(curves.bursts, 0, LENGTH)
ALARMS = [(a.iteration, a.sign, a.text) for a in scan(ROWS)]


class Heard(training.Progress):
    """Remembers what it hears."""

    def __init__(self, dies_in=None):
        self.alarms = []
        self.dies_in = dies_in

    def alarm(self, text):
        self.alarms.append(text)

    def iteration(self, row, times):
        if row["iteration"] == self.dies_in:
            raise InterruptedError


@pytest.fixture
def fabricated(monkeypatch):
    """Make every training show the metrics of a collapse; hold the iteration."""
    held = {"iteration": 0}

    def of_rollouts(trajectories, spread):
        row = dict(ROWS[held["iteration"]])
        held["iteration"] += 1
        del row["iteration"], row["grad_norm"], row["entropy"]
        return row

    def of_steps(steps):
        row = ROWS[held["iteration"] - 1]
        return {"grad_norm": row["grad_norm"], "entropy": row["entropy"]}

    monkeypatch.setattr(metrics, "of_rollouts", of_rollouts)
    monkeypatch.setattr(metrics, "of_steps", of_steps)
    return held


def settings(**changed):
    small = {"hidden_size": 32, "layers": 1, "groups": 1, "rollouts": 2}
    fixed = {"envs": ["ragen/Bandit-v0:1"], "max_tokens": 2, "iterations": LENGTH}
    return configuration.make(None, {**small, **fixed, **changed})


def lines(folder):
    text = (folder / "alarms.jsonl").read_text()
    return [tuple(json.loads(line).values()) for line in text.splitlines()]


def test_alarms_are_told_and_written_as_they_arise(tmp_path, fabricated) -> None:
    heard = Heard()
    outcome = training.train(settings(), tmp_path / "t", progress=heard)
    assert outcome.complete and outcome.iterations == LENGTH
    assert lines(tmp_path / "t") == ALARMS
    assert heard.alarms == [f"iteration {i}: {text}" for i, _, text in ALARMS]


def test_a_collapse_ends_training_before_success_has_fallen_by_half(
    tmp_path, fabricated
) -> None:
    heard = Heard()
    asked = settings(stop_on_collapse=True)
    outcome = training.train(asked, tmp_path / "t", progress=heard)
    trapped = next(i for i, sign, _ in ALARMS if sign == "echo_trap")
    # The combined alarm has stood for five iterations.
    assert outcome.complete and outcome.iterations == trapped + 4
    assert "training ends" in heard.alarms[-1]
    assert outcome.model.is_dir()
    fall = diagnose(curves.write(tmp_path / "whole", ROWS)).half_fall
    assert fall is not None and trapped < fall
    assert len(metrics.read(tmp_path / "t/metrics.csv")) == outcome.iterations


def test_the_same_command_leaves_a_training_that_collapsed(
    tmp_path, fabricated
) -> None:
    asked = settings(stop_on_collapse=True)
    first = training.train(asked, tmp_path / "t")
    before = (tmp_path / "t/metrics.csv").read_bytes(), lines(tmp_path / "t")
    heard = Heard()
    again = training.train(asked, tmp_path / "t", progress=heard)
    assert again == first
    assert ((tmp_path / "t/metrics.csv").read_bytes(), lines(tmp_path / "t")) == before
    assert len(heard.alarms) == 1


def test_a_training_that_died_repeats_no_alarm(tmp_path, fabricated) -> None:
    asked = settings(save_every=20, stop_on_collapse=False)
    with pytest.raises(InterruptedError):
        training.train(asked, tmp_path / "t", progress=Heard(dies_in=32))
    assert any(20 < iteration <= 32 for iteration, _, _ in lines(tmp_path / "t"))
    fabricated["iteration"] = 20
    training.train(asked, tmp_path / "t", progress=Heard())
    assert lines(tmp_path / "t") == ALARMS
