"""Self-imitation: what is remembered, what is learned from it, exact resume."""

import io
import itertools
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from trainees import built, network, segment, small  # noqa: E402

from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.starpo import (  # noqa: E402
    checkpoint,
    imitation,
    metrics,
    progress,
    training,
)
from ragen_bench.starpo.experience import Experience  # noqa: E402
from ragen_bench.starpo.settings import lessons_of  # noqa: E402
from ragen_bench.starpo.trajectories import Trajectory  # noqa: E402
from ragen_bench.starpo.update import reference_logprobs  # noqa: E402

pytestmark = pytest.mark.hf

IMITATING = {
    "imitate_steps": 3,
    "imitate_batch": 4,
    "imitate_lr": 1e-2,
    "clone_steps": 2,
    "clone_batch": 2,
    "clone_episodes": 3,
    "max_tokens": 20,
}


def played(group: int, *parts, success: bool | None, rewards=(1.0,)) -> Trajectory:
    """Return one trajectory of one segment."""
    return Trajectory(
        group=group,
        segments=[segment(*parts, rewards=rewards)],
        episode=SimpleNamespace(success=success),
    )


def imitating(made, **changed) -> imitation.SelfImitation:
    schedule = imitation.Schedule(**{"steps": 1, "batch": 4, **changed})
    return imitation.SelfImitation(made.parameters(), schedule)


def remembered(found: imitation.SelfImitation) -> list[list[int]]:
    return [one.segments[0].ids for one in found._memory]


class TestMemory:
    def test_the_best_of_each_group_is_remembered_if_it_solved_its_task(self):
        mine = imitating(network())
        mine.remember(
            [
                played(7, [1], [2], success=False, rewards=[0.0]),
                played(7, [1], [3], success=True),
                played(8, [1], [4], success=False, rewards=[0.9]),
                played(8, [1], [5], success=False, rewards=[0.1]),
                played(9, [1], [6], success=True, rewards=[0.5]),
                played(9, [1], [7], success=True, rewards=[1.0]),
            ]
        )
        assert remembered(mine) == [[1, 3], [1, 7]]

    def test_a_group_without_spread_is_remembered_too(self):
        """Else the policy would forget what it does well on the way."""
        mine = imitating(network())
        mine.remember([played(0, [1], [2], success=True) for _ in range(3)])
        assert remembered(mine) == [[1, 2]]

    def test_among_equals_the_shorter_is_better(self):
        mine = imitating(network())
        mine.remember(
            [
                played(0, [1], [2, 3, 4], success=True),
                played(0, [1], [2], [1], [2], success=True, rewards=[0.0, 1.0]),
                played(0, [1], [5, 3], success=True),
            ]
        )
        assert remembered(mine) == [[1, 5, 3]]

    def test_without_success_it_must_be_above_the_groups_mean(self):
        mine = imitating(network())
        mine.remember(
            [
                played(0, [1], [2], success=None, rewards=[0.4]),
                played(0, [1], [3], success=None, rewards=[0.6]),
                played(1, [1], [4], success=None, rewards=[0.5]),
                played(1, [1], [5], success=None, rewards=[0.5]),
            ]
        )
        assert remembered(mine) == [[1, 3]]

    def test_the_oldest_is_forgotten_first_but_no_demonstration(self):
        mine = imitating(network(), memory=2)
        mine.demonstrations = [played(0, [1], [9], success=True)]
        for token in (2, 3, 4):
            mine.remember([played(0, [1], [token], success=True)])
        assert remembered(mine) == [[1, 3], [1, 4]]
        assert len(mine) == 3

    def test_what_is_restored_is_what_was_remembered(self):
        mine = imitating(network())
        many = [
            Trajectory(
                group=number,
                segments=[
                    segment([1, 2], [3], [4], [5, 6], rewards=[0.0, 0.0]),
                    segment([7, 8, 9]),
                    segment([7] * (number + 1), [2] * (number + 2), rewards=[1.0]),
                ],
                episode=SimpleNamespace(success=True),
            )
            for number in range(4)
        ]
        mine.remember(many)
        mine.learn(network(), [], 0, 1.0)
        again = imitating(network())
        again.set_state(mine.get_state())
        assert list(again._memory) == list(mine._memory)
        assert again.steps == mine.steps == 1
        assert [len(one.segments) for one in again._memory] == [3] * 4


class TestLearning:
    def probability(self, made, *trajectories) -> torch.Tensor:
        held = Experience.of(trajectories)
        return reference_logprobs(made, held, 1.0, 10**6).sum().exp()

    def test_what_was_solved_becomes_likelier_and_what_was_not_does_not(self):
        made = network()
        good = played(0, [1, 2], [3, 4], success=True)
        bad = played(0, [1, 2], [5, 6], success=False, rewards=[0.0])
        before = [self.probability(made, one).item() for one in (good, bad)]
        mine = imitating(made, steps=30, lr=1e-2)
        row = mine.learn(made, [good, bad], 0, 1.0)
        after = [self.probability(made, one).item() for one in (good, bad)]
        assert after[0] > 0.9 > before[0]
        assert after[1] < max(before[1], 0.1)
        assert row["remembered"] == 1 and row["imitation_loss"] > 0

    def test_demonstrations_are_learned_too(self):
        made = network()
        shown = played(0, [1, 2], [3, 4], success=True)
        mine = imitating(made, steps=30, lr=1e-2)
        mine.demonstrations = [shown]
        mine.learn(made, [], 0, 1.0)
        assert self.probability(made, shown) > 0.9

    @pytest.mark.parametrize("rate", [0.0, 1.0])
    def test_the_rate_is_that_of_the_training(self, rate):
        made = network()
        before = [p.clone() for p in made.parameters()]
        mine = imitating(made)
        mine.learn(made, [played(0, [1], [2], success=True)], 0, rate)
        same = [
            torch.equal(a, b) for a, b in zip(before, made.parameters(), strict=True)
        ]
        assert all(same) == (rate == 0.0)

    def test_nothing_is_learned_from_nothing(self):
        made = network()
        row = imitating(made).learn(made, [], 0, 1.0)
        assert row == {"imitation_loss": None, "remembered": 0}


class TestTraining:
    def test_without_steps_a_training_is_as_it_was(self):
        row = built(imitate_steps=0).iterate().row
        assert "imitation_loss" not in row

    def test_without_passes_it_is_all_that_is_learned(self):
        made = built(passes=0, **IMITATING)
        training._warm_start(made)
        before = [p.clone() for p in made.policy.network.parameters()]
        row = made.iterate().row
        assert row["steps"] == 0
        assert row["imitation_loss"] > 0
        assert not made.optimizer.state
        after = made.policy.network.parameters()
        assert not all(map(torch.equal, before, after))

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"imitate_steps": 0}, "imitate_steps"),
            ({"kl": 0.1}, "kl is 0.1"),
            ({"importance_cap": 2.0}, "importance_cap is 2.0"),
            ({"algorithm": "ppo"}, "'ppo' has a critic"),
        ],
    )
    def test_without_passes_nothing_is_left_unlearned(self, changed, said):
        with pytest.raises(InvalidSpec, match=said):
            built(**{"passes": 0, **IMITATING, **changed})

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"imitate_steps": 0}, "4 iterations of grpo,"),
            ({"algorithm": "rloo"}, "4 iterations of rloo and self-imitation,"),
            ({"passes": 0}, "4 iterations of self-imitation,"),
        ],
    )
    def test_what_learns_is_told(self, changed, said):
        stream = io.StringIO()
        config = small(**{"iterations": 4, **IMITATING, **changed})
        progress.Lines(stream).begin(config, 0)
        assert said in stream.getvalue()

    def test_a_warm_start_alone_needs_no_passes(self):
        assert built(passes=0, iterations=0, clone_steps=2).config.passes == 0

    def test_the_row_tells_of_it(self, tmp_path):
        training.train(small(**IMITATING), tmp_path / "t")
        rows = metrics.read(tmp_path / "t" / "metrics.csv")
        # Two steps of two demonstrations each: all three were shown.
        assert all(int(row["remembered"]) >= 3 for row in rows)
        assert all(float(row["imitation_loss"]) > 0 for row in rows)

    @pytest.mark.parametrize("passes", [1, 0])
    def test_four_iterations_equal_two_and_two(self, passes, tmp_path):
        changed = {**IMITATING, "passes": passes, "envs": ["toy:toy/Corridor-v0:1"]}
        changed.update(clone_steps=150, clone_batch=8)
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        training.train(small(iterations=4, **changed), whole)
        training.train(small(iterations=2, **changed), parts)
        _, state = checkpoint.load(parts / "checkpoints")
        assert state["demonstrated"] == 3
        training.train(small(iterations=4, **changed), parts)
        for name in ("metrics.csv", "model/model.safetensors"):
            assert (whole / name).read_bytes() == (parts / name).read_bytes()
        rows = metrics.read(whole / "metrics.csv")
        assert int(rows[-1]["remembered"]) > 3, "nothing of its own was remembered"

    def test_demonstrations_are_those_of_the_warm_start(self):
        made = built(**IMITATING)
        training._warm_start(made)
        config, policy = made.config, made.policy
        source = lessons_of(config, made.cells, policy.tokenizer, config.clone_noise)
        first = list(itertools.islice(source.demonstrations(), 3))
        shown = made.imitation.demonstrations
        assert [one.segments for one in shown] == [one.segments for one in first]


class TestRate:
    """What is left of learning rates."""

    def left(self, iteration=0, spent=0.0, cloned=None, **changed):
        made = built(decay="linear", **changed)
        made.iteration, made.spent, made.cloned = iteration, spent, cloned
        return made.rate

    def test_it_falls_over_the_iterations(self):
        assert self.left(iteration=1, iterations=4) == pytest.approx(0.75)

    def test_it_falls_over_the_seconds_where_they_are_over_sooner(self):
        bounded = {"iterations": 1000, "budget_seconds": 40.0}
        cloned = {"cpu_s": 20.0}
        left = self.left(iteration=1, spent=25.0, cloned=cloned, **bounded)
        assert left == pytest.approx(0.75)
        assert self.left(spent=45.0, cloned=cloned, **bounded) == 0.0

    def test_without_decay_nothing_falls(self):
        made = built(iterations=4)
        made.iteration = 3
        assert made.rate == 1.0
