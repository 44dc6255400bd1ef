"""The trainer's benchmarks run, and both sides of a comparison do the same work."""

import asyncio
import dataclasses
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import gpu_roofline  # noqa: E402
import gpu_trainer  # noqa: E402
import head_memory  # noqa: E402
import trainer_workloads as workloads  # noqa: E402

from ragen_bench.seeding import Stream  # noqa: E402
from ragen_bench.starpo.trajectories import Segment, Trajectory  # noqa: E402

pytestmark = pytest.mark.hf

SMALL = workloads.llama(32, 1, 512)


def recorded(groups: int = 4, rollouts: int = 2) -> list[Trajectory]:
    """Return two-turn trajectories of random ids, lengths and rewards."""
    found = []
    for index in range(groups * rollouts):
        draw = Stream(7, "recorded", index)
        segment = Segment()
        for turn in range(2):
            segment.read([3 + draw.below(500) for _ in range(4 + draw.below(9))])
            size = 1 + draw.below(5)
            segment.write([3 + draw.below(500) for _ in range(size)], [0.0] * size)
            segment.turns[turn].reward = draw.random() * (1 + index // rollouts)
        found.append(Trajectory(index // rollouts, [segment], None))  # type: ignore[arg-type]
    return found


def config(**changes):
    plain = {"groups": 4, "rollouts": 2, "max_tokens": 3}
    return workloads.speed_config(**{**plain, **changes})


@pytest.fixture(scope="module")
def speed():
    pytest.importorskip("trl")
    import trainer_speed

    return trainer_speed


class TestLengths:
    def test_without_a_mean_all_are_the_limit(self) -> None:
        assert workloads.Lengths(mean=None, limit=9).of("a", 0) == 9

    def test_they_have_the_mean_and_depend_on_nothing_else(self) -> None:
        lengths = workloads.Lengths(mean=10, limit=10**6)
        drawn = [lengths.of("a", turn) for turn in range(4000)]
        assert sum(drawn) / len(drawn) == pytest.approx(10, rel=0.05)
        assert drawn[7] == lengths.of("a", 7)

    def test_none_is_above_the_limit_or_empty(self) -> None:
        lengths = workloads.Lengths(mean=10, limit=12)
        assert {lengths.of("a", turn) for turn in range(4000)} == set(range(1, 13))


class TestRoofline:
    def test_the_weights_of_qwen_are_known(self) -> None:
        # 357.9 and 136.1 million, less norms and biases.
        shape = gpu_roofline.Shape.of(gpu_trainer.full("cpu").shape)
        assert shape.body == pytest.approx(357.9e6, rel=1e-3)
        assert shape.head == 896 * 151_936

    def test_the_least_time_of_an_update_by_hand(self) -> None:
        shape = gpu_roofline.Shape(layers=1, width=2, query=2, keys=2, inner=3, words=5)
        # Body: 2 * 2 * (2 + 2) + 3 * 2 * 3 = 34 weights, head: 10.
        assert (shape.body, shape.head) == (34, 10)
        segment = Segment()
        segment.read([1, 1, 1])
        segment.write([1], [0.0])
        one = Trajectory(0, [segment], None)  # type: ignore[arg-type]
        # Body: 4 * (2 * 34 + 4 * 1 * 2 * 2) = 336; head: 2 * 10 for one token.
        machine = gpu_roofline.Machine(flops=1.0, bytes_per_s=1.0)
        assert gpu_roofline.update_seconds(shape, machine, [one], False) == 3 * 356
        # One step reads 44 weights, and keys and values of two tokens: 2 * 4 * 2;
        # three tokens are read: 3 * (68 + 16).
        found = gpu_roofline.rollout_seconds(shape, machine, [one])
        assert found == 2 * 44 + 16 + 252


class TestAgainstTRL:
    def test_gradients_of_both_are_the_same(self, speed) -> None:
        case = speed.Case(name="small", shape=SMALL)
        alike, played = config(), recorded()
        _, apart = speed.updates(case, played, alike, micro=4, repeats=0)
        assert apart < 1e-3
        found = workloads.training_of(alike, SMALL)
        other = workloads.training_of(
            dataclasses.replace(alike, aggregation="token-mean"), SMALL
        )
        one, two = (speed.gradients(t, played, speed.TRL_EPS) for t in (found, other))
        assert (one - two).norm() / one.norm() > 0.01

    def test_lockstep_plays_the_same_environments(self, speed) -> None:
        import trainer_trl

        lengths = workloads.Lengths(mean=None, limit=3)
        found = workloads.training_of(config(), SMALL, lengths)
        ours = workloads.play(found, "x")
        found.instances.drawn = 0
        groups = found.instances.take(4, 2)
        side = trainer_trl.Lockstep(found, found.policy.network, lengths)
        games = side.play(groups, "x")
        assert [len(game.segments) for game in games] == [1] * 8
        for game, one in zip(games, ours, strict=True):
            (segment,), (same,) = game.segments, one.segments
            start = same.turns[0].start
            assert segment.ids[:start] == same.ids[:start]
            assert game.turn == len(one.turns)
            assert sum(segment.sampled) == one.sampled_tokens == 3 * game.turn

    def test_every_lever_of_the_update_has_a_row(self, speed) -> None:
        import trainer_levers

        rows = list(trainer_levers.update_rows(config(), recorded(), 1))
        assert len(rows) == len(trainer_levers.UPDATE)

    def test_every_lever_of_the_rollout_has_a_row(self, speed) -> None:
        import trainer_levers

        bandit = config(envs=("ragen/Bandit-v0:1",), env_args={}, groups=1)
        rows = list(trainer_levers.rollout_rows(bandit, 1, "anyone", drawn=True))
        assert len(rows) == len(trainer_levers.ROLLOUT) - 1


def test_a_replay_gives_back_what_was_recorded() -> None:
    played = recorded()
    assert asyncio.run(workloads.Replay(played).play([], "")) == played


def test_the_gpu_benchmark_times_every_iteration(capsys) -> None:
    small = {"groups": 2, "rollouts": 2, "minibatch": 2, "max_tokens": 2}
    size = gpu_trainer.Size(
        shape=gpu_trainer.miniature("cpu").shape,
        config=gpu_trainer.batch_config("cpu", **small, prompt="compact"),
        mean=2,
    )
    lengths = workloads.Lengths(mean=None, limit=2)
    found, played = gpu_trainer.phases(size, "all 2", lengths, 1)
    assert all(one.sampled_tokens == 2 * len(one.turns) for one in played)
    gpu_trainer.compare_precisions(found, played)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| all 2 | 1 | ")
    # The trainer computes in single precision on a CPU.
    assert [line.split()[1] for line in lines[-2:]] == ["bfloat16", "trainer"]
    assert float(lines[-1].split()[-2]) < 1e-4 < float(lines[-2].split()[-2])


@pytest.mark.parametrize("way", ["whole", "chunks"])
def test_the_head_is_measured_either_way(way: str, monkeypatch) -> None:
    monkeypatch.setattr(head_memory, "WORDS", 64)
    assert head_memory.forward_and_backward(way, 8) >= 0
