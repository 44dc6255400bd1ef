"""Slots of a batch are filled again at once, and nothing of an episode is kept."""

import collections
import gc
import importlib.util
import threading
from pathlib import Path

import pytest

from ragen_bench.agent import Reply, Task
from ragen_bench.model import Completion, Conversation, Message, Usage
from ragen_bench.models.batching import Draft, Request, Worker
from ragen_bench.records import Episode, Turn
from ragen_bench.runner import Observer

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "refill_speed.py"
SLOTS, SEEDS = 32, 50


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("refill_speed", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


class Patient(Observer):
    """Lets a decoder step only when every episode that is played waits for it.

    So the number of steps depends on no clock.
    """

    def __init__(self, decoder, episodes):
        self.unfinished = episodes
        self.changed = threading.Condition()
        self.decoder = decoder
        self.step, self.admit = decoder.step, decoder.admit
        decoder.step = self.step_if_all_wait

    def episode(self, episode):
        with self.changed:
            self.unfinished -= 1
            self.changed.notify_all()

    def step_if_all_wait(self):
        with self.changed:
            expected = min(self.decoder.slots, self.unfinished)
            # What was asked meanwhile is admitted only after this returns.
            if len(self.decoder.rows) < expected:
                self.changed.wait(0.001)
                return
        self.step()


def test_refilled_slots_need_two_thirds_of_the_steps_of_a_lockstep_loop(bench):
    decoder = bench.FixedSpeedDecoder(SLOTS)
    patient = Patient(decoder, SEEDS * len(bench.CELLS))
    turns = bench.refilled(decoder, SEEDS, observer=patient)
    rounds = bench.FixedSpeedDecoder(SLOTS)
    assert bench.lockstep(rounds, SEEDS) == turns
    assert decoder.steps * 1.5 <= rounds.steps


def test_the_same_replies_are_given_either_way(bench):
    decoder = bench.FixedSpeedDecoder(4)
    first = bench.refilled(decoder, 3)
    assert first == bench.refilled(bench.FixedSpeedDecoder(1), 3)
    assert first == bench.lockstep(bench.FixedSpeedDecoder(64), 3)


class Census(Observer):
    """Counts what is alive after some episodes."""

    def __init__(self, *marks):
        self.marks = marks
        self.finished = 0
        self.alive = []
        self.objects = []

    def episode(self, episode):
        self.finished += 1
        if self.finished in self.marks:
            del episode
            gc.collect()
            kinds = (Completion, Conversation, Draft, Episode, Message)
            kinds += (Reply, Request, Task, Turn, Usage)
            everything = gc.get_objects()
            names = [type(o).__name__ for o in everything if type(o) in kinds]
            self.alive.append(collections.Counter(names))
            self.objects.append(len(everything))


def test_nothing_of_a_finished_episode_is_kept(bench):
    census = Census(500, 1000, 1500)
    decoder = bench.FixedSpeedDecoder(8)
    bench.refilled(decoder, 1600, ["ragen/FrozenLake-v0:1"], observer=census)
    early, _, late = census.alive
    # Eight are in flight, and some have just ended.
    assert 0 < late["Conversation"] <= 32
    for name in late:
        # Eight are in flight, each with the messages of at most five turns.
        assert late[name] <= early[name] + 8 * 11, name
    # The key of a finished episode stays, to tell what is owed.
    assert (census.objects[2] - census.objects[1]) / 500 < 5


class TestWorker:
    def test_it_waits_for_those_it_answered_but_not_for_long(self, bench):
        decoder = bench.FixedSpeedDecoder(2, step_s=0.001)
        worker = Worker(decoder)
        requests = [bench.request_of(seed, 0) for seed in range(6)]
        for future in [worker.submit(request) for request in requests]:
            assert future.result(10).finish_reason == "stop"
        # Nobody asks again, and others are still served.
        assert worker.submit(bench.request_of(9, 0)).result(10).text
        worker.stop()
        assert decoder.steps >= 10
