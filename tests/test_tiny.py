"""Greedy play of `tiny` in float32: nothing but the conversation moves a reply."""

import os
import random
import signal

import pytest

import ragen_bench as rb
from ragen_bench import runner
from ragen_bench.run_folder import read_episodes
from ragen_bench.runner import Observer

pytest.importorskip("torch")
pytestmark = pytest.mark.hf

CELLS = ["ragen/FrozenLake-v0:1", "ragen/Sokoban-v0:1"]
SEEDS = 5


def play(out, concurrency, observer=None):
    """Play with all past turns in the prompt, which `tiny` has never seen."""
    return rb.run(
        envs=CELLS,
        seeds=SEEDS,
        model="tiny",
        model_args={"threads": 1},
        context="full",
        max_tokens=48,
        concurrency=concurrency,
        observer=observer,
        out=out,
    )


def told(out):
    """Return all that was said, asked and scored, by episode."""
    return {
        str(episode.key): (
            episode.outcome,
            episode.episode_return,
            [
                (t.prompt_sha256, t.response, t.finish_reason, t.usage.input_tokens)
                for t in episode.turns
            ],
        )
        for episode in read_episodes(out)
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("tiny") / "alone"
    play(out, concurrency=1)
    found = told(out)
    assert len(found) == len(CELLS) * SEEDS
    assert max(len(turns) for _, _, turns in found.values()) > 2
    assert {outcome for outcome, _, _ in found.values()} <= {
        "context_overflow",
        "failed",
        "finished",
        "solved",
        "turn_limit",
    }
    return found


@pytest.mark.parametrize("concurrency", [7, 64])
def test_concurrency_changes_no_reply(concurrency, alone, tmp_path):
    play(tmp_path, concurrency)
    assert told(tmp_path) == alone


def test_the_order_of_episodes_changes_no_reply(alone, tmp_path, monkeypatch):
    begin = runner._Run.__init__

    def shuffled(run, *arguments, **options):
        begin(run, *arguments, **options)
        owed = list(run.owed)
        run.owed = iter(random.Random(1).sample(owed, len(owed)))

    monkeypatch.setattr(runner._Run, "__init__", shuffled)
    play(tmp_path, concurrency=7)
    assert [str(e.key) for e in read_episodes(tmp_path)] != list(alone)
    assert told(tmp_path) == alone


def test_a_resumed_run_says_the_same(alone, tmp_path):
    class Stopper(Observer):
        finished = 0

        def episode(self, episode):
            self.finished += 1
            if self.finished == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    stopped = play(tmp_path, concurrency=7, observer=Stopper())
    assert 0 < stopped.owed < len(alone)
    assert play(tmp_path, concurrency=7).complete
    assert told(tmp_path) == alone
