"""Whole iterations: the phases fit each other, and what is dropped is out of all."""

import asyncio

import pytest

torch = pytest.importorskip("torch")

import trainees  # noqa: E402
import transformers  # noqa: E402
from trainees import built  # noqa: E402

from ragen_bench.model import Conversation, Message, Sampling  # noqa: E402
from ragen_bench.starpo import update  # noqa: E402
from ragen_bench.starpo.experience import Experience  # noqa: E402

pytestmark = pytest.mark.hf


def folder(place, **changed):
    """Write a small Llama with the tokenizer of `tiny` and return where it is."""
    torch.manual_seed(0)
    tokenizer = trainees.tokenizer()
    config = transformers.LlamaConfig(
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "max_position_embeddings": 1024,
            "eos_token_id": tokenizer.eos_token_id,
            **changed,
        }
    )
    transformers.LlamaForCausalLM(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return str(place)


def weights(made) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for _, p in made.policy.trained()])


def pay(made, *totals: float) -> None:
    """Let the rollout phase end with these returns."""
    play = made.rollouts.play

    async def paid(groups, salt):
        found = await play(groups, salt)
        for one, total in zip(found, totals, strict=True):
            for turn in one.turns:
                turn.reward = 0.0
            one.turns[-1].reward = total
        return found

    made.rollouts.play = paid


UNEVEN = (1.0, 0.0, 0.0, 0.0, 2.0, 1.0)


class TestModes:
    def test_dropout_is_off_in_every_pass(self, tmp_path) -> None:
        made = built(model=folder(tmp_path, attention_dropout=0.5), passes=2)
        held = Experience.of(
            asyncio.run(made.rollouts.play(made.instances.take(2, 3), "s"))
        )
        one, two = (
            update.reference_logprobs(made.policy.network, held, 1.0, 2000)
            for _ in range(2)
        )
        assert torch.equal(one, two)
        for _ in range(2):
            pay(made, *UNEVEN)
            assert made.iterate().row["start_diff_max"] < 1e-4

    def test_dropout_changes_no_gradient(self, tmp_path) -> None:
        found = []
        for share in (0.0, 0.5):
            place = tmp_path / str(share)
            made = built(
                model=folder(place, attention_dropout=share),
                algorithm="ppo",
                critic_lr=1e-2,
            )
            pay(made, *UNEVEN)
            made.iterate()
            critic = [p.detach().flatten() for p in made.policy.critic.parameters()]
            found.append(torch.cat([weights(made), *critic]))
        assert torch.equal(*found)

    def test_no_phase_is_in_training_mode(self) -> None:
        made = built(algorithm="ppo", kl=0.1, passes=2, eval_seeds=1)
        made.policy.network.train()
        made.policy.critic.train()
        made.reference = made.policy.network
        modes = []
        for network in (made.policy.network, made.policy.critic):
            for module in network.modules():
                module.register_forward_pre_hook(lambda m, _: modes.append(m.training))
        pay(made, *UNEVEN)
        trajectories = asyncio.run(made.rollouts.play(made.instances.take(2, 3), "s"))
        made._update(trajectories, 1.0)
        made.evaluate()
        assert modes and not any(modes)

    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
    def test_recomputed_activations_give_the_same_gradients(self) -> None:
        made = trainees.network()
        held = trainees.experience(*trainees.random_segments(5))
        what = trainees.lesson(held, made)
        found, _ = trainees.learn(made, what)
        made.train()
        made.gradient_checkpointing_enable()
        assert torch.allclose(trainees.learn(made, what)[0], found, atol=1e-6)


class TestAnchor:
    def test_every_iteration_begins_with_ratios_of_1(self) -> None:
        made = built(lr=0.02)
        pay(made, *UNEVEN)
        before = weights(made)
        for _ in range(3):
            row = made.iterate().row
            assert row["start_diff_max"] < 1e-4
            assert row["ratio_max"] == pytest.approx(1.0, abs=1e-4)
            # What ratios are taken to is the sampler's, token for token.
            assert row["clip_low"] == row["clip_high"] == 0
        assert (weights(made) - before).abs().max() > 1e-2

    @pytest.mark.parametrize("temperature", [0.7, 1.5])
    def test_sampler_and_trainer_heat_alike(self, temperature) -> None:
        made = built(temperature=temperature)
        pay(made, *UNEVEN)
        assert made.iterate().row["start_diff_max"] < 1e-4

    def test_every_row_tells_how_far_sampler_and_trainer_are_apart(self) -> None:
        made = built()
        pay(made, *UNEVEN)
        logprobs = []
        play = made.rollouts.play

        async def moved(groups, salt):
            found = await play(groups, salt)
            for one in found:
                (only,) = one.segments
                last = only.turns[-1].end - 1
                only.logprobs[last] += 0.25
                logprobs.append(only.logprobs[last])
            return found

        made.rollouts.play = moved
        row = made.iterate().row
        tokens = 6 * row["turns"] * row["reply_tokens"]
        assert row["logprob_diff_max"] == pytest.approx(0.25, abs=1e-4)
        assert row["logprob_diff_mean"] == pytest.approx(6 * 0.25 / tokens, abs=1e-4)

    def test_a_new_engine_says_what_the_engine_says(self) -> None:
        made, fresh = built(), built()
        talk = Conversation(key="k", seed=0)
        talk.messages = [Message(role="user", content="a long enough question " * 4)]
        asked = Sampling(max_tokens=12)
        before = asyncio.run(made.policy.engine.generate(talk, asked))
        with torch.no_grad():
            for one in made.policy.network.parameters():
                one.mul_(1.5)
        made.policy.sync()
        # What the engine computed of this conversation is of older weights.
        after = asyncio.run(made.policy.engine.generate(talk, asked))
        fresh.policy.network.load_state_dict(made.policy.network.state_dict())
        fresh.policy.sync()
        talk.engine_state = None
        expected = asyncio.run(fresh.policy.engine.generate(talk, asked))
        assert after.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        assert after.token_ids == expected.token_ids
        assert before.logprobs != pytest.approx(expected.logprobs, abs=1e-2)

    def test_the_engine_plays_what_was_learned(self) -> None:
        made = built(lr=0.05)
        pay(made, *UNEVEN)
        made.iterate()
        ids = list(range(40))
        ours = update.sequence_logprobs(made.policy.network, ids)
        assert made.policy.engine.score(ids) == pytest.approx(ours.tolist(), abs=1e-4)


class TestFilter:
    SETTINGS = {"filter": "nonzero", "entropy": 0.1, "kl": 0.1}

    def test_a_group_without_spread_adds_nothing_to_any_term(self) -> None:
        found = []
        for drop in (False, True):
            made = built(**self.SETTINGS)
            made.reference = trainees.copy.deepcopy(made.policy.network)
            pay(made, 1.0, 0.0, 0.0, 0.5, 0.5, 0.5)
            if drop:
                play = made.rollouts.play

                async def without(groups, salt, play=play):
                    return (await play(groups, salt))[:3]

                made.rollouts.play = without
            row = made.iterate().row
            assert row["kept_share"] == (1.0 if drop else 0.5)
            found.append(weights(made))
        assert torch.equal(*found)

    def test_where_all_groups_are_flat_nothing_is_learned(self) -> None:
        made = built(**self.SETTINGS)
        made.reference = trainees.copy.deepcopy(made.policy.network)
        pay(made, *[0.5] * 6)
        before = weights(made)
        row = made.iterate().row
        assert row["kept_share"] == row["steps"] == 0
        assert torch.equal(weights(made), before)

    def test_advantages_are_made_before_a_batch_is_split(self, monkeypatch) -> None:
        lessons = []
        accumulate = update.accumulate
        monkeypatch.setattr(
            update, "accumulate", lambda *a: lessons.append(a[1]) or accumulate(*a)
        )
        made = built(minibatch=2)
        pay(made, *UNEVEN)
        assert made.iterate().row["steps"] == 3
        assert all(one is lessons[0] for one in lessons)
        held, estimate = lessons[0].experience, lessons[0].estimate
        first = [estimate.advantages[held.trajectory == i][0] for i in range(6)]
        for members in (first[:3], first[3:]):
            assert abs(float(sum(members))) < 1e-5
        assert float(first[0]) == pytest.approx(1.1547, abs=1e-3)


class TestCritic:
    def test_it_begins_with_values_of_0(self) -> None:
        made = built(algorithm="ppo")
        groups = made.instances.take(2, 3)
        held = Experience.of(asyncio.run(made.rollouts.play(groups, "s")))
        assert not update.values_of(made.policy.critic, held, 2000).any()

    def test_its_loss_leaves_the_policy_alone(self) -> None:
        found = []
        for rate in (0.0, 0.1):
            made = built(algorithm="ppo", critic_lr=rate, passes=2)
            pay(made, *UNEVEN)
            critic = [p.detach().clone() for p in made.policy.critic.parameters()]
            made.iterate()
            now = list(made.policy.critic.parameters())
            same = [torch.equal(a, b) for a, b in zip(critic, now, strict=True)]
            assert all(same) if rate == 0 else not any(same)
            found.append(weights(made))
        assert torch.equal(*found)


class TestEvaluation:
    def test_it_does_not_move_the_training(self) -> None:
        found = []
        for looks in (False, True):
            made = built(eval_seeds=4)
            for _ in range(3):
                pay(made, *UNEVEN)
                made.iterate()
                if looks:
                    version = made.policy.version
                    assert made.evaluate()["dev_return"] is not None
                    # What it cached is forgotten with a sync.
                    assert made.policy.version > version
            found.append(weights(made))
        assert torch.equal(*found)
