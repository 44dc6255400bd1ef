"""Probes see what a training does, and leave it as it is."""

import asyncio
import json

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.errors import RecordError  # noqa: E402
from ragen_bench.starpo import config as configuration  # noqa: E402
from ragen_bench.starpo import metrics, probes, settings, training  # noqa: E402
from ragen_bench.starpo.diagnostics import Diagnostics  # noqa: E402
from ragen_bench.starpo.echo_trap import Alarm  # noqa: E402
from ragen_bench.starpo.experience import Experience  # noqa: E402
from ragen_bench.starpo.filters import group_spread  # noqa: E402

pytestmark = pytest.mark.hf

LAKE = "ragen/FrozenLake-v0:1"
PROBE = ("conditional_entropy", "mutual_information", "retrieval", "mi_z_score")
ASKED = {"probe_every": 1, "probe_samples": 6, "gradient_every": 1}


def small(**changed):
    shape = {"hidden_size": 32, "layers": 1, "groups": 4, "rollouts": 3}
    fixed = {"envs": [LAKE], "max_tokens": 10, "lr": 1e-3, "entropy": 0.01}
    return configuration.make(None, {**shape, **fixed, "iterations": 3, **changed})


def built(**changed):
    config = small(**changed)
    return training.build(config, *training.check(config))


def played(made, groups=4, size=3):
    found = asyncio.run(made.rollouts.play(made.instances.take(groups, size), "salt"))
    spread = group_spread([one.total for one in found], [one.group for one in found])
    return found, spread


class TestTheTrainingIsNotDisturbed:
    @pytest.mark.parametrize(
        "changed",
        [{}, {"algorithm": "ppo", "critic_lr": 1e-3, "kl": 0.1, "minibatch": 4}],
        ids=["grpo", "ppo with a reference"],
    )
    def test_weights_and_metrics_are_the_same_to_the_last_bit(self, tmp_path, changed):
        for name, asked in (("without", {}), ("with", ASKED)):
            training.train(small(**changed, **asked), tmp_path / name)
        weights = [
            (tmp_path / name / "model/model.safetensors").read_bytes()
            for name in ("without", "with")
        ]
        assert weights[0] == weights[1]
        plain, probed = (
            metrics.read(tmp_path / name / "metrics.csv")
            for name in ("without", "with")
        )
        assert all(not row[name] for row in plain for name in PROBE)
        assert all(row[name] for row in probed for name in PROBE)
        ours = {"probe_samples", "information_bound", "retrieval_chance", *PROBE}
        for before, after in zip(plain, probed, strict=True):
            assert {k: v for k, v in before.items() if k not in ours} == {
                k: v for k, v in after.items() if k not in ours
            }

    def test_gradients_and_modes_stay_as_they_are(self):
        made = built(**ASKED)
        made.policy.network.train()
        for parameter in made.policy.network.parameters():
            parameter.grad = torch.full_like(parameter, 7.0)
        state = torch.get_rng_state()
        found, spread = played(made)
        made.probes.look(1, found, spread, lambda e: made._lesson(e)[0])
        assert all((p.grad == 7.0).all() for p in made.policy.network.parameters())
        assert made.policy.network.training
        assert torch.equal(torch.get_rng_state(), state)


class TestSchedule:
    def test_the_first_iteration_and_every_nth_after_it_are_probed(self, tmp_path):
        training.train(
            small(iterations=4, probe_every=2, gradient_every=3), tmp_path / "t"
        )
        rows = metrics.read(tmp_path / "t/metrics.csv")
        assert [bool(row["retrieval"]) for row in rows] == [True, False, True, False]
        gradients = metrics.read(tmp_path / "t/gradients.csv")
        assert {row["iteration"] for row in gradients} == {"1", "4"}

    def test_nothing_is_asked_by_default_of_a_tiny_training(self):
        config = configuration.make("tiny-cpu")
        assert (config.probe_every, config.gradient_every) == (0, 0)

    @pytest.mark.parametrize("preset", ["starpo", "starpo-s", "starpo-s-v2", "grpo"])
    def test_presets_of_language_models_ask(self, preset):
        config = configuration.make(preset)
        assert config.probe_every and config.gradient_every

    def test_what_is_not_due_asks_for_no_lesson(self):
        made = built(gradient_every=2)
        found, spread = played(made)
        made.probes.look(2, found, spread, lambda e: pytest.fail("asked"))


class TestTemplates:
    def test_replies_of_an_agent_that_only_answers_are_scored_whole(self):
        assert settings.probing_of(small()).whole
        assert not settings.probing_of(small(agent="think_act")).whole

    def test_an_untrained_policy_reasons_nowhere_and_the_columns_stay_empty(self):
        made = built(agent="think_act", probe_every=1)
        row = made.iterate().row
        assert row["probe_samples"] == 0
        assert all(row.get(name) is None for name in PROBE)

    def test_columns_are_those_of_a_probe_by_hand(self):
        made = built(**ASKED)
        found, spread = played(made)
        row = made.probes.look(1, found, spread, lambda e: made._lesson(e)[0]).row
        by_hand = made.probes._templates(1, found)
        assert row["probe_samples"] == by_hand.samples == 6
        assert row["mutual_information"] == by_hand.by_sequence.mutual_information
        assert row["conditional_entropy"] == by_hand.by_token.conditional_entropy
        assert row["mi_z_score"] == by_hand.by_token.z_score
        assert row["retrieval"] == by_hand.retrieval.accuracy[1]
        assert row["information_bound"] == by_hand.prompt_entropy
        assert set(row) <= set(metrics.COLUMNS)

    def test_scores_after_own_prompts_are_the_samplers_log_probabilities(self):
        # One turn an episode, so that every reply is among the samples.
        made = built(probe_every=1, temperature=0.7, envs=["ragen/Bandit-v0:1"])
        found, spread = played(made)
        row = made.probes.look(1, found, spread, lambda e: made._lesson(e)[0]).row
        own = [Experience.of([one]).logprobs.double().mean().item() for one in found]
        assert row["probe_samples"] == len(found)
        assert row["conditional_entropy"] == pytest.approx(
            -sum(own) / len(own), abs=1e-4
        )


@pytest.fixture(scope="module")
def looked():
    """A training, its trajectories, and gradients by spreads that are in order."""
    made = built(gradient_every=1, kl=0.1, max_tokens=20, groups=8)
    made.reference = built(seed=5).policy.network
    found, spread = played(made, 8, 3)
    spread = {group: float(group) for group in spread}
    rows = made.probes.look(1, found, spread, lambda e: made._lesson(e)[0])
    return made, found, rows.gradients


class TestGradients:
    def test_there_is_a_row_for_each_bucket_and_term(self, looked):
        _, _, rows = looked
        assert [(row["bucket"], row["term"]) for row in rows] == [
            (bucket, term)
            for bucket in range(1, 7)
            for term in ("task", "entropy", "kl")
        ]
        assert all(tuple(row) == probes.GRADIENTS for row in rows)

    def test_buckets_go_from_small_to_large_spread_and_hold_all(self, looked):
        _, found, rows = looked
        task = [row for row in rows if row["term"] == "task"]
        assert [row["spread_low"] for row in task] == [0, 2, 4, 5, 6, 7]
        assert [row["spread_high"] for row in task] == [1, 3, 4, 5, 6, 7]
        assert sum(row["samples"] for row in task) == len(found)
        assert sum(row["tokens"] for row in task) == sum(
            one.sampled_tokens for one in found
        )

    def test_terms_add_up_to_the_loss_that_is_trained(self, looked):
        from ragen_bench.starpo import update

        made, found, _ = looked
        lesson = made._lesson(Experience.of(found))[0]
        objective = settings.objective_of(made.config, made.longest, 1.0)
        network = made.policy.network
        parameters = list(network.parameters())
        network.zero_grad()
        update.accumulate(network, lesson, range(len(found)), objective, 10**6)
        want = [p.grad * len(lesson.experience.trajectory) for p in parameters]
        groups = sorted({one.group for one in found})
        total = [torch.zeros_like(p) for p in parameters]
        for terms in probes.loss_terms(network, lesson, objective, 900)(groups):
            gradients = torch.autograd.grad(sum(terms.values()), parameters)
            for held, gradient in zip(total, gradients, strict=True):
                held += gradient
        network.zero_grad()
        for one, other in zip(want, total, strict=True):
            assert torch.allclose(one, other, atol=1e-3, rtol=1e-3)

    def test_a_term_without_a_coefficient_has_no_row(self):
        made = built(gradient_every=1, entropy=0.0)
        rows = made.iterate().gradients
        assert {row["term"] for row in rows} == {"task"}


class TestFiles:
    def alarm(self, iteration):
        return Alarm(iteration=iteration, sign="entropy", text=f"at {iteration}")

    def test_a_training_without_findings_has_neither_file(self, tmp_path):
        Diagnostics(tmp_path, 0).add((), ())
        assert list(tmp_path.iterdir()) == []

    def test_a_resume_never_repeats_an_alarm_or_a_row(self, tmp_path):
        row = dict.fromkeys(probes.GRADIENTS, 1.0) | {"term": "task"}
        first = Diagnostics(tmp_path, 0)
        for iteration in (1, 2, 3):
            rows = [{**row, "iteration": iteration}] * 2
            first.add([self.alarm(iteration)] * 2, rows)
        with (tmp_path / "alarms.jsonl").open("a") as file:
            file.write('{"iteration": 4, "si')
        second = Diagnostics(tmp_path, 2)
        second.add([self.alarm(3)], [{**row, "iteration": 3}])
        lines = (tmp_path / "alarms.jsonl").read_text().splitlines()
        assert [json.loads(line)["iteration"] for line in lines] == [1, 1, 2, 2, 3]
        assert json.loads(lines[-1]) == {
            "iteration": 3,
            "sign": "entropy",
            "text": "at 3",
        }
        found = metrics.read(tmp_path / "gradients.csv")
        assert [one["iteration"] for one in found] == ["1", "1", "2", "2", "3"]
        assert found[-1]["term"] == "task"

    def test_a_line_that_is_no_alarm_is_named(self, tmp_path):
        (tmp_path / "alarms.jsonl").write_text("[]\n")
        with pytest.raises(RecordError, match="no alarm"):
            Diagnostics(tmp_path, 2)

    def test_six_iterations_equal_three_and_three(self, tmp_path):
        for name, parts in (("whole", [6]), ("parts", [3, 6])):
            for iterations in parts:
                training.train(small(iterations=iterations, **ASKED), tmp_path / name)
        for file in ("metrics.csv", "gradients.csv"):
            whole = (tmp_path / "whole" / file).read_bytes()
            assert (tmp_path / "parts" / file).read_bytes() == whole
