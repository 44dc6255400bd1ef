"""The trainer as a whole: tokens in, tokens out; exact resume; what it refuses."""

import asyncio
import dataclasses
import datetime
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import typing

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.errors import (  # noqa: E402
    InvalidSpec,
    RunIncomplete,
    RunMismatch,
    UnknownName,
)
from ragen_bench.model import Completion, Model  # noqa: E402
from ragen_bench.seeding import Stream  # noqa: E402
from ragen_bench.starpo import (  # noqa: E402
    checkpoint,
    cloning,
    metrics,
    setting_rules,
    training,
    update,
)
from ragen_bench.starpo import config as configuration  # noqa: E402
from ragen_bench.starpo.algorithm import ALGORITHMS, Algorithm, by_trajectory  # noqa: E402
from ragen_bench.starpo.experience import Experience, passes  # noqa: E402
from ragen_bench.starpo.gae import Estimate  # noqa: E402
from ragen_bench.starpo.rollout import Cell, Instances, Rollouts  # noqa: E402
from ragen_bench.starpo.settings import lessons_of  # noqa: E402
from ragen_bench.starpo.train_config import TrainConfig  # noqa: E402
from ragen_bench.starpo.trajectories import Segment  # noqa: E402

pytestmark = pytest.mark.hf

LAKE = "ragen/FrozenLake-v0:1"


def small(**changed):
    settings = {
        "envs": [LAKE],
        "groups": 4,
        "rollouts": 3,
        "max_tokens": 10,
        "lr": 1e-3,
        "iterations": 2,
        "entropy": 0.01,
        "hidden_size": 32,
        "layers": 1,
        **changed,
    }
    return configuration.make(None, settings)


def built(**changed):
    config = small(**changed)
    return training.build(config, *training.check(config))


@pytest.fixture(scope="module")
def untrained():
    """A training whose policy is random, and its first trajectories."""
    made = built(hidden_size=64, seed=3)
    groups = made.instances.take(4, 3)
    return made, asyncio.run(made.rollouts.play(groups, "salt"))


class TestTokens:
    def test_untrained_replies_do_not_survive_decoding(self, untrained):
        """Else the tests below could not tell sampled ids from re-tokenised ones."""
        made, trajectories = untrained
        tokenizer = made.policy.tokenizer
        changed = 0
        for one in trajectories:
            for segment in one.segments:
                for turn in segment.turns:
                    ids = segment.ids[turn.start : turn.end]
                    text = tokenizer.decode(ids, skip_special_tokens=True)
                    changed += tokenizer(text)["input_ids"] != ids
        assert changed > len(trajectories) // 2

    def test_a_prompt_begins_with_the_very_ids_of_the_turns_before(self, untrained):
        _, trajectories = untrained
        long = [one for one in trajectories if len(one.turns) > 1]
        assert long
        assert all(len(one.segments) == 1 for one in long)

    def test_single_context_gives_a_segment_for_each_turn(self):
        made = built(context="single")
        found = asyncio.run(made.rollouts.play(made.instances.take(2, 2), "salt"))
        for one in found:
            assert len(one.segments) == len(one.turns)

    def test_the_mask_marks_what_the_engine_sampled_and_nothing_else(self, untrained):
        _, trajectories = untrained
        for one in trajectories:
            counted = [turn.usage.output_tokens for turn in one.episode.turns]
            assert [turn.end - turn.start for turn in one.turns] == counted
            assert one.sampled_tokens == sum(counted)

    def test_rewards_add_up_to_the_return_and_lie_on_turn_ends(self, untrained):
        _, trajectories = untrained
        experience = Experience.of(trajectories)
        for index, one in enumerate(trajectories):
            mine = experience.trajectory == index
            rewards = sum(turn.reward for turn in one.episode.turns)
            assert experience.rewards[mine].sum().item() == pytest.approx(rewards)
            assert experience.returns[index].item() == pytest.approx(rewards)
        assert not experience.rewards[~experience.turn_end].any()
        turns = sum(len(one.turns) for one in trajectories)
        assert int(experience.turn_end.sum()) == turns

    def test_an_engine_without_ids_is_refused(self):
        segment = Segment()
        with pytest.raises(ValueError, match="one of each"):
            segment.write([1, 2], [0.1])
        with pytest.raises(ValueError, match="one of each"):
            segment.write([], [])

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    def test_the_trainer_finds_the_log_probabilities_of_the_sampler(self, temperature):
        made = built(temperature=temperature, hidden_size=64)
        found = asyncio.run(made.rollouts.play(made.instances.take(3, 3), "salt"))
        experience = Experience.of(found)
        scored = update.reference_logprobs(
            made.policy.network, experience, temperature, budget=2000
        )
        assert (scored - experience.logprobs).abs().max().item() < 1e-4

    def test_passes_hold_every_token_once_at_any_budget(self, untrained):
        _, trajectories = untrained
        experience = Experience.of(trajectories)
        flat = torch.cat(
            [
                torch.tensor(segment.ids)[torch.tensor(segment.sampled)]
                for one in trajectories
                for segment in one.segments
            ]
        )
        for budget in (1, 500, 100_000):
            seen = torch.zeros_like(flat)
            for batch in passes(experience, range(len(trajectories)), budget):
                seen[batch.tokens] = batch.targets
            assert torch.equal(seen, flat)

    def test_members_of_a_group_differ_and_a_rerun_repeats_them(self, untrained):
        made, trajectories = untrained
        first = [one for one in trajectories if one.group == 0]
        assert len({tuple(one.segments[0].ids) for one in first}) > 1
        assert len({one.episode.turns[0].observation for one in first}) == 1
        again = Instances(made.cells, made.config.seed).take(4, 3)
        # What the engine still knows of these prompts would move numbers by rounding.
        made.policy.sync()
        found = asyncio.run(made.rollouts.play(again, "salt"))
        assert [one.segments for one in found] == [o.segments for o in trajectories]


class TestUpdate:
    def lesson(self, trajectories):
        experience = Experience.of(trajectories)
        generator = torch.Generator().manual_seed(0)
        advantages = torch.randn(len(experience.trajectory), generator=generator)
        nothing = torch.zeros_like(advantages)
        estimate = Estimate(
            advantages=advantages, returns=nothing, value_mask=nothing.bool()
        )
        return update.Lesson(
            experience=experience, estimate=estimate, old=experience.logprobs
        )

    def gradients(self, network, lesson, objective, budget):
        network.zero_grad()
        chosen = range(len(lesson.experience.trajectories))
        update.accumulate(network, lesson, chosen, objective, budget)
        return torch.cat([p.grad.flatten() for p in network.parameters()])

    @pytest.mark.parametrize(
        "mode",
        ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"],
    )
    def test_gradients_do_not_depend_on_the_micro_batches(self, untrained, mode):
        made, trajectories = untrained
        lesson = self.lesson(trajectories)
        objective = update.Objective(
            aggregation=mode,
            constant=10.0 if mode == "constant" else None,
            entropy=0.01,
        )
        whole = self.gradients(made.policy.network, lesson, objective, 10**6)
        for budget in (1, 1000):
            split = self.gradients(made.policy.network, lesson, objective, budget)
            assert torch.allclose(whole, split, atol=1e-6)

    def test_the_ratio_is_one_before_the_first_step(self):
        made = built(filter="all")
        for _ in range(2):
            row = made.iterate().row
            assert row["start_diff_max"] < 1e-4

    def test_the_engine_plays_the_new_weights(self):
        made = built(lr=0.05, filter="all")
        before = {
            k: v.clone() for k, v in made.policy.engine.network.state_dict().items()
        }
        made.iterate()
        after = made.policy.engine.network.state_dict()
        assert any(not torch.equal(before[name], after[name]) for name in after)
        trained = made.policy.network.state_dict()
        assert all(torch.equal(trained[name], after[name]) for name in after)

    def test_a_filter_that_keeps_nothing_leaves_the_weights(self):
        made = built(filter="nonzero", env_args={}, format_penalty=0.0)
        before = [p.clone() for p in made.policy.network.parameters()]
        report = made.iterate()
        if report.row["kept_share"] == 0:
            after = made.policy.network.parameters()
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def test_importance_weights_are_one_where_sampler_and_policy_agree(self):
        plain, weighted = built(), built(importance_cap=2.0)
        for made in (plain, weighted):
            made.iterate()
        pairs = zip(
            plain.policy.network.parameters(),
            weighted.policy.network.parameters(),
            strict=True,
        )
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)

    def test_importance_weights_truncate_what_the_sampler_did_not_know(self, untrained):
        made, trajectories = untrained
        lesson = self.lesson(trajectories)
        doubled = dataclasses.replace(lesson, weights=torch.full_like(lesson.old, 2.0))
        objective = update.Objective()
        once = self.gradients(made.policy.network, lesson, objective, 10**6)
        twice = self.gradients(made.policy.network, doubled, objective, 10**6)
        assert torch.allclose(twice, 2 * once, atol=1e-6)

    @pytest.mark.parametrize("name", ["ppo", "ppo_turn", "ppo_bilevel"])
    def test_a_critic_begins_at_zero_and_learns(self, name):
        made = built(algorithm=name, critic_lr=1e-2, passes=3)
        assert made.policy.critic is not None
        assert not made.policy.critic.head.weight.any()
        row = made.iterate().row
        assert row["value_loss"] > 0
        assert made.policy.critic.head.weight.any()

    @pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp"])
    def test_an_algorithm_without_a_critic_trains(self, name):
        row = built(algorithm=name, max_tokens=20).iterate().row
        assert row["steps"] == 1
        assert row["grad_norm"] is not None

    def test_lora_trains_the_adapter_alone_and_is_played(self):
        pytest.importorskip("peft")
        made = built(lora_rank=2, lr=0.1, filter="all")
        names = [name for name, _ in made.policy.trained()]
        assert names and all("lora" in name for name in names)
        before = {
            k: v.clone() for k, v in made.policy.engine.network.state_dict().items()
        }
        for _ in range(2):
            made.iterate()
        after = made.policy.engine.network.state_dict()
        assert any(not torch.equal(before[name], after[name]) for name in after)


class TestFolder:
    def test_a_training_leaves_a_model_that_the_harness_plays(self, tmp_path):
        import ragen_bench as rb

        outcome = training.train(small(), tmp_path / "t", command="ragen-bench train")
        assert outcome.complete and outcome.iterations == 2
        rows = metrics.read(tmp_path / "t" / "metrics.csv")
        assert [row["iteration"] for row in rows] == ["1", "2"]
        settings = json.loads((outcome.model / "ragen.json").read_text())
        assert settings["trained"] and settings["agent"] == "direct"
        summary = rb.run(
            envs=[LAKE], seeds=2, model=f"hf:{outcome.model}", out=tmp_path / "run"
        )
        assert summary.complete and summary.agent_class == "trained"

    def test_six_iterations_equal_three_and_three(self, tmp_path):
        changed = {"max_tokens": 20, "algorithm": "ppo", "critic_lr": 1e-3}
        training.train(small(iterations=6, **changed), tmp_path / "whole")
        training.train(small(iterations=3, **changed), tmp_path / "parts")
        training.train(small(iterations=6, **changed), tmp_path / "parts")
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        assert (whole / "metrics.csv").read_bytes() == (
            parts / "metrics.csv"
        ).read_bytes()
        name = "model/model.safetensors"
        assert (whole / name).read_bytes() == (parts / name).read_bytes()

    def test_a_killed_training_goes_on_exactly(self, tmp_path):
        config = {"max_tokens": 20, "save_every": 2, "clone_steps": 2, "iterations": 6}
        training.train(small(**config), tmp_path / "whole")
        script = (
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "from ragen_bench.starpo import config, training\n"
            "class Killer(training.Progress):\n"
            "    def iteration(self, row, times):\n"
            "        if row['iteration'] == 3:\n"
            "            os.kill(os.getpid(), signal.SIGKILL)\n"
            f"made = config.make(None, {dataclasses.asdict(small(**config))!r})\n"
            "training.train(made, Path(sys.argv[1]), progress=Killer())\n"
        )
        found = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "killed")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert found.returncode == -signal.SIGKILL
        assert len(metrics.read(tmp_path / "killed" / "metrics.csv")) == 3
        training.train(small(**config), tmp_path / "killed")
        for name in ("metrics.csv", "model/model.safetensors"):
            whole = (tmp_path / "whole" / name).read_bytes()
            assert (tmp_path / "killed" / name).read_bytes() == whole

    def test_a_budget_that_is_spent_stays_spent(self, tmp_path):
        bounded = {"iterations": 10_000, "budget_seconds": 0.01, "clone_steps": 1}
        first = training.train(small(**bounded), tmp_path / "t")
        again = training.train(small(**bounded), tmp_path / "t")
        assert first.complete and again.complete
        assert first.iterations == again.iterations < 10_000

    @pytest.mark.parametrize("mistakes", [False, True])
    def test_random_replies_are_learned_on_request_alone(self, mistakes):
        made = built(clone_noise=1.0, clone_mistakes=mistakes)
        config, policy = made.config, made.policy
        source = lessons_of(config, made.cells, policy.tokenizer, config.clone_noise)
        shown = list(itertools.islice(source.demonstrations(), 5))
        assert all(one.episode.turns for one in shown)
        assert all((one.sampled_tokens > 0) == mistakes for one in shown)

    def test_mistakes_are_not_imitated_any_further(self):
        clone = {"clone_steps": 2, "clone_batch": 2, "clone_episodes": 3}
        sound, wrong = built(**clone), built(**clone, clone_mistakes=True)
        for made in (sound, wrong):
            training._warm_start(made)
        assert len(sound.imitation.demonstrations) == 3
        assert not wrong.imitation.demonstrations

    def test_a_fixed_set_of_demonstrations_is_used_again_in_another_order(self):
        played, taken = itertools.count(), []
        shown = cloning.repeated(
            (next(played) for _ in itertools.count()), 3, Stream(0, "order"), taken
        )
        epochs = [list(itertools.islice(shown, 3)) for _ in range(20)]
        assert epochs[0] == taken == [0, 1, 2] and next(played) == 3
        assert all(sorted(epoch) == [0, 1, 2] for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) > 3

    def test_evaluation_does_not_move_the_training(self, tmp_path):
        training.train(small(iterations=3), tmp_path / "without")
        training.train(
            small(iterations=3, eval_every=1, eval_seeds=2), tmp_path / "with"
        )
        name = "model/model.safetensors"
        without = (tmp_path / "without" / name).read_bytes()
        assert (tmp_path / "with" / name).read_bytes() == without
        rows = metrics.read(tmp_path / "with" / "metrics.csv")
        assert all(row["dev_success"] for row in rows)
        blank = dict.fromkeys(("dev_success", "dev_return"), "")
        unevaluated = metrics.read(tmp_path / "without" / "metrics.csv")
        assert [row | blank for row in rows] == unevaluated

    def test_another_setting_is_refused_by_name(self, tmp_path):
        training.train(small(iterations=0), tmp_path / "t")
        with pytest.raises(RunMismatch, match="lr 0.001, but 0.01 is asked for"):
            training.train(small(iterations=0, lr=0.01), tmp_path / "t")

    @pytest.mark.parametrize("split", ["dev", "test"])
    def test_only_the_train_split_is_trained_on(self, split):
        with pytest.raises(InvalidSpec, match="only instances of the train split"):
            training.check(small(env_args={"split": split}))
        with pytest.raises(InvalidSpec, match="only instances of the train split"):
            Rollouts(_Silent(), "direct", {}, {"split": split})

    def test_kept_rollouts_are_episode_records(self, tmp_path):
        from ragen_bench.records import Episode, parse_record

        training.train(small(keep_rollouts=[2]), tmp_path / "t")
        lines = (tmp_path / "t/rollouts/000002.jsonl").read_text().splitlines()
        episodes = [parse_record(Episode, line, "line") for line in lines]
        assert len(episodes) == 12
        assert {episode.split for episode in episodes} == {"train"}


class TestCheckpoint:
    def test_a_failure_between_any_two_writes_leaves_the_last_one(
        self, tmp_path, monkeypatch
    ):
        folder = tmp_path / "checkpoints"
        old = {"x": torch.zeros(3)}
        new = {"x": torch.ones(3)}
        calls = {"left": 10**9}

        def failing(real):
            def call(*args, **options):
                calls["left"] -= 1
                if calls["left"] < 0:
                    raise OSError(28, "No space left on device")
                return real(*args, **options)

            return call

        monkeypatch.setattr(os, "replace", failing(os.replace))
        monkeypatch.setattr(os, "fsync", failing(os.fsync))
        monkeypatch.setattr(torch, "save", failing(torch.save))
        failed = 0
        for allowed in range(20):
            calls["left"] = 10**9
            checkpoint.save(folder, 1, old, {"iteration": 1})
            calls["left"] = allowed
            try:
                checkpoint.save(folder, 2, new, {"iteration": 2})
            except RunIncomplete:
                failed += 1
            tensors, state = checkpoint.load(folder)
            expected = new if state["iteration"] == 2 else old
            assert torch.equal(tensors["x"], expected["x"])
            for place in folder.iterdir():
                if place.is_dir():
                    for file in place.iterdir():
                        file.unlink()
                    place.rmdir()
                else:
                    place.unlink()
        assert 4 <= failed < 20

    def test_a_table_keeps_the_rows_of_the_checkpoint(self, tmp_path):
        table = metrics.Table(tmp_path / "m.csv", ["iteration", "loss"])
        for number in range(3):
            table.add({"iteration": number, "loss": 0.1 + number})
        with (tmp_path / "m.csv").open("a") as file:
            file.write("3,0.")
        metrics.Table(tmp_path / "m.csv", ["iteration", "loss"], rows=2)
        rows = metrics.read(tmp_path / "m.csv")
        assert rows == [
            {"iteration": "0", "loss": "0.1"},
            {"iteration": "1", "loss": "1.1"},
        ]


class TestConfig:
    @pytest.mark.parametrize("name", sorted(configuration.PRESETS))
    def test_every_preset_is_a_configuration(self, name):
        config = configuration.make(name)
        training.check(config)

    def test_an_unknown_setting_gets_a_suggestion(self):
        with pytest.raises(UnknownName, match="did you mean 'clip_high'"):
            configuration.make(None, {"clip_hihg": 0.3})

    def test_later_layers_are_stronger(self):
        config = configuration.make("starpo-s", {"lr": 1e-5}, {"lr": 2e-5})
        assert config.lr == 2e-5
        assert config.filter == "top_k" and config.kl == 0

    @pytest.mark.parametrize(
        "setting",
        [
            {"lr": "high"},
            {"groups": 1.5},
            {"betas": [0.9]},
            {"betas": [0.9, 1.0]},
            {"betas": None},
            {"keep_rollouts": [0]},
            {"env_args": {"since": datetime.date(2026, 1, 1)}},
            {"filter_value": 0.0, "filter": "top_k"},
            {"filter_value": 2.0, "filter": "min_p"},
            {"clip_dual": 1.0},
            {"importance_cap": 0.0},
            {"engine_kv_gib": 0.0},
            {"envs": []},
        ],
    )
    def test_a_wrong_value_is_refused_by_name(self, setting):
        name = next(iter(setting))
        with pytest.raises(InvalidSpec, match=name):
            configuration.make(None, setting)

    def test_every_number_has_a_range(self):
        kinds = typing.get_type_hints(TrainConfig)
        numbers = {name for name, kind in kinds.items() if kind in (int, float)}
        numbers |= {"max_actions_per_turn"}
        assert set(setting_rules.RANGES) == numbers

    @pytest.mark.parametrize("name", setting_rules.RANGES)
    def test_a_number_out_of_its_range_is_refused(self, name):
        kind = typing.get_type_hints(TrainConfig)[name]
        least, most = setting_rules.RANGES[name]
        beyond = [least - 1] * (least > -math.inf) + [most + 1] * (most < math.inf)
        assert beyond
        for value in beyond:
            given = float(value) if kind is float else int(value)
            with pytest.raises(InvalidSpec, match=f"{name} is .* must be"):
                configuration.make(None, {name: given})

    def test_a_preset_that_is_no_name_is_refused(self, tmp_path):
        path = tmp_path / "c.toml"
        path.write_text('preset = ["grpo"]\n')
        with pytest.raises(InvalidSpec, match="the name of one; starpo"):
            configuration.read(path)

    def test_toml_names_its_preset(self, tmp_path):
        path = tmp_path / "c.toml"
        path.write_text('preset = "grpo"\nlr = 1e-4\nenvs = ["ragen/Bandit-v0:2"]\n')
        preset, settings = configuration.read(path)
        config = configuration.make(preset, settings)
        assert config.algorithm == "grpo" and config.lr == 1e-4


def test_an_algorithm_is_one_file_outside_the_package(tmp_path, monkeypatch):
    (tmp_path / "my_algorithm.py").write_text(
        "from ragen_bench.starpo.algorithm import Algorithm, by_trajectory\n"
        "plain = Algorithm(estimate=by_trajectory(lambda e: e.returns))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = built(algorithm="my_algorithm:plain")
    assert made.iterate().row["steps"] == 1


def test_instances_go_on_where_they_stopped():
    cells = [Cell(env_id="ragen/Bandit-v0", level=1)]
    whole = Instances(cells, 5)
    first, second = whole.take(3, 2), whole.take(3, 2)
    other = Instances(cells, 5)
    other.drawn = 3
    assert other.take(3, 2) == second != first


def test_registered_algorithms_estimate():
    import ragen_bench.starpo.algorithms  # noqa: F401

    for name in ALGORITHMS:
        assert isinstance(ALGORITHMS.get(name), Algorithm)
    assert callable(by_trajectory(lambda e: e.returns))


class _Silent(Model):
    name = "silent"

    async def generate(self, conversation, sampling):
        return Completion(text="")
