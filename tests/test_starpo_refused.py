"""What cannot be trained is refused in a sentence, and what diverges never goes on."""

import math

import pytest

torch = pytest.importorskip("torch")

import transformers  # noqa: E402
from trainees import built, small  # noqa: E402

from ragen_bench.errors import InvalidSpec, RunIncomplete  # noqa: E402
from ragen_bench.starpo import (  # noqa: E402
    canary,
    policy,
    public,
    trainable,
    training,
    update,
)

pytestmark = pytest.mark.hf


def heads():
    """Return networks whose logits are no product of states and head."""
    plain = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32}
    plain |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    plain |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    biased = transformers.PhiForCausalLM(transformers.PhiConfig(**plain))
    torch.nn.init.normal_(biased.lm_head.bias)
    return {
        "bias": biased,
        "scale": transformers.GraniteForCausalLM(
            transformers.GraniteConfig(**plain, logits_scaling=4.0)
        ),
        "cap": transformers.Gemma2ForCausalLM(
            transformers.Gemma2Config(
                **plain,
                num_key_value_heads=1,
                head_dim=16,
                final_logit_softcapping=0.1,
            )
        ),
    }


class TestModel:
    @pytest.mark.parametrize("name", ["bias", "scale", "cap"])
    def test_a_head_that_is_no_matrix_is_refused(self, name) -> None:
        made = heads()[name].eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.normal_(0.0, 0.5)
        _, tokenizer = policy.fresh((32, 1), 0, "cpu")
        made.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with pytest.raises(InvalidSpec, match="times the matrix of its head"):
            trainable.check(made.eval(), tokenizer)

    def test_a_tokenizer_of_another_model_is_refused(self, tmp_path) -> None:
        network, tokenizer = policy.fresh((32, 1), 0, "cpu")
        network.resize_token_embeddings(100)
        network.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        with pytest.raises(InvalidSpec, match="knows 100 tokens"):
            built(model=str(tmp_path))

    def test_a_tokenizer_that_ends_no_reply_is_refused(self) -> None:
        network, tokenizer = policy.fresh((32, 1), 0, "cpu")
        trainable.check(network, tokenizer)
        tokenizer.eos_token = None
        with pytest.raises(InvalidSpec, match="no eos_token"):
            trainable.check(network, tokenizer)


class TestSettings:
    def test_a_critic_that_is_not_there_is_not_warmed_up(self) -> None:
        with pytest.raises(InvalidSpec, match="has no critic"):
            training.check(small(critic_warmup=1))
        training.check(small(critic_warmup=1, algorithm="ppo"))

    def test_a_level_belongs_to_the_environment(self) -> None:
        with pytest.raises(InvalidSpec, match="ragen/Bandit-v0:2"):
            training.check(small(env_args={"level": 2}))

    @pytest.mark.parametrize("where", ["file", "settings", "flag"])
    def test_a_model_is_named_alike_everywhere(self, tmp_path, where) -> None:
        file = None
        if where == "file":
            file = tmp_path / "c.toml"
            file.write_text('model = "hf:tiny"\n')
        given = {"model": "hf:tiny"} if where == "settings" else {}
        flag = "hf:tiny" if where == "flag" else None
        found = public.configure(file, preset=None, envs=(), model=flag, settings=given)
        assert found.model == "tiny"
        with pytest.raises(InvalidSpec, match="must be fresh, tiny or hf:"):
            public.configure(
                None, preset=None, envs=(), model=None, settings={"model": "openai:x"}
            )


class TestWarmStart:
    def test_one_that_diverges_ends_there(self, tmp_path, monkeypatch) -> None:
        facts = {"steps": 3, "cpu_s": 0.1, "loss": math.nan}
        monkeypatch.setattr(training.cloning, "clone", lambda *_: facts)
        with pytest.raises(InvalidSpec, match="lower clone_lr"):
            training.train(small(clone_steps=3), tmp_path)

    def test_one_without_a_step_is_told_of(self, tmp_path, monkeypatch) -> None:
        facts = {"steps": 0, "cpu_s": 0.0, "loss": math.nan}
        monkeypatch.setattr(training.cloning, "clone", lambda *_: facts)
        with pytest.raises(InvalidSpec, match="before the first step"):
            training.train(small(clone_seconds=1e-9), tmp_path)

    @pytest.mark.parametrize("rank", [0, 2])
    def test_the_critic_begins_where_the_clone_ended(self, rank, monkeypatch) -> None:
        if rank:
            pytest.importorskip("peft")
        made = built(
            algorithm="ppo", clone_steps=2, clone_batch=2, clone_lr=0.1, lora_rank=rank
        )
        critic = made.policy.critic
        monkeypatch.setattr(policy, "Critic", None)  # one is made, and no other
        ids = torch.arange(20)[None]
        whole = policy.merged(made.policy.network).base_model
        before = whole(ids).last_hidden_state
        training._warm_start(made)
        assert made.policy.critic is critic
        assert not [n for n, _ in critic.named_parameters() if "lora" in n]
        theirs = policy.merged(made.policy.network).base_model(ids).last_hidden_state
        assert (theirs - before).abs().max() > 1e-3
        torch.testing.assert_close(critic.trunk(ids).last_hidden_state, theirs)
        assert not critic.head.weight.any()


class TestDivergence:
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_no_step_is_taken_along_what_is_not_finite(self, bad) -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([weight], lr=0.1)
        weight.grad = torch.tensor([1.0, bad, 1.0])
        norm = update.clip_and_step(optimizer, [weight], 1.0)
        assert not math.isfinite(norm)
        assert weight.tolist() == [1.0, 1.0, 1.0] and weight.grad is None
        weight.grad = torch.ones(3)
        update.clip_and_step(optimizer, [weight], 1.0)
        assert (weight < 1).all()

    def test_weights_that_are_not_finite_are_called_so(self) -> None:
        reading = canary.compare([-1.0, math.nan], torch.tensor([-1.0, math.nan]))
        with pytest.raises(RunIncomplete, match="diverged.*lower lr"):
            canary.check(reading, "float32", 3)


def test_an_iteration_without_any_reply_ends_the_training():
    """Such as of prompts that no context can hold: nothing would ever be learned."""
    made = built(context="tokens:1")
    with pytest.raises(RunIncomplete, match="context_overflow"):
        made.iterate()
