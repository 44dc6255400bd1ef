"""Weights in full precision, saved and exported to the last bit."""

import pytest

torch = pytest.importorskip("torch")

import transformers  # noqa: E402
from test_starpo_phases import UNEVEN, folder, pay, weights  # noqa: E402
from trainees import built, small  # noqa: E402

from ragen_bench.starpo import (  # noqa: E402
    checkpoint,
    export,
    saving,
    training,
    update,
)
from ragen_bench.starpo.loop import Training  # noqa: E402

pytestmark = pytest.mark.hf


def half(place) -> str:
    """Write a folder whose weights are in half precision."""
    made = transformers.AutoModelForCausalLM.from_pretrained(folder(place))
    made.to(torch.bfloat16).save_pretrained(place)
    return str(place)


class TestPrecision:
    def test_masters_of_a_half_precision_model_are_in_full(self, tmp_path) -> None:
        made = built(model=half(tmp_path), algorithm="ppo")
        for network in (made.policy.network, made.policy.critic):
            assert {p.dtype for p in network.parameters()} == {torch.float32}

    def test_the_smallest_rate_moves_a_weight_of_1(self, tmp_path) -> None:
        made = built(model=half(tmp_path), lr=1e-6, weight_decay=0.0)
        norm = made.policy.network.base_model.norm.weight
        assert (norm == 1).all()
        for _ in range(100):
            norm.grad = torch.ones_like(norm)
            update.clip_and_step(made.optimizer, [norm], 0.0)
        assert norm.tolist() == pytest.approx([1 - 1e-4] * 32, abs=2e-6)


def tensors(made: Training) -> list[torch.Tensor]:
    """Return all numbers that training moves."""
    found = [*made.policy.network.state_dict().values()]
    optimizers = [made.optimizer]
    if made.policy.critic is not None:
        found += made.policy.critic.state_dict().values()
        optimizers.append(made.critic_optimizer)
    for optimizer in optimizers:
        for state in optimizer.state_dict()["state"].values():
            found += [state["exp_avg"], state["exp_avg_sq"], state["step"]]
    return found


class TestCheckpoints:
    def test_all_that_moves_is_kept_to_the_last_bit(self, tmp_path) -> None:
        settings = {"algorithm": "ppo", "critic_lr": 1e-3, "lr": 1e-5}
        made = built(**settings)
        pay(made, *UNEVEN)
        made.iterate()
        saving.save(made, tmp_path)
        again = built(**settings)
        saving.restore(again, *checkpoint.load(tmp_path))
        for one, other in zip(tensors(made), tensors(again), strict=True):
            assert one.dtype == other.dtype == torch.float32
            assert torch.equal(one, other)
        assert (again.iteration, again.steps) == (made.iteration, made.steps) == (1, 1)

    def test_one_and_one_are_two_iterations(self, tmp_path, monkeypatch) -> None:
        iterate = Training.iterate

        def paid(made):
            pay(made, *UNEVEN)
            return iterate(made)

        monkeypatch.setattr(Training, "iterate", paid)
        settings = {"algorithm": "ppo", "critic_lr": 1e-3, "warmup": 4, "passes": 2}
        settings |= {"eval_every": 1, "eval_seeds": 1}
        training.train(small(iterations=2, **settings), tmp_path / "whole")
        training.train(small(iterations=1, **settings), tmp_path / "parts")
        training.train(small(iterations=2, **settings), tmp_path / "parts")
        for name in ("metrics.csv", "model/model.safetensors"):
            whole, parts = (tmp_path / n / name for n in ("whole", "parts"))
            assert whole.read_bytes() == parts.read_bytes(), name


class TestExport:
    @pytest.mark.parametrize("tied", [True, False])
    def test_a_folder_holds_the_very_policy(self, tmp_path, tied) -> None:
        place = folder(tmp_path / "start", tie_word_embeddings=tied)
        made = built(model=place, lr=0.01)
        pay(made, *UNEVEN)
        before = weights(made)
        made.iterate()
        assert not torch.equal(weights(made), before)
        written = export.write(made, tmp_path / "out")
        found = transformers.AutoModelForCausalLM.from_pretrained(written)
        policy = made.policy.network
        assert sum(p.numel() for p in found.parameters()) == len(weights(made))
        head, embeddings = found.get_output_embeddings(), found.get_input_embeddings()
        assert (head.weight is embeddings.weight) == tied
        ids = torch.arange(40)[None]
        for other in (found, made.policy.engine.network):
            torch.testing.assert_close(
                other(ids).logits, policy(ids).logits, atol=1e-5, rtol=0
            )

    def test_an_adapter_is_in_the_folder(self, tmp_path) -> None:
        pytest.importorskip("peft")
        made = built(lora_rank=2, lr=0.1)
        for _ in range(2):
            pay(made, *UNEVEN)
            made.iterate()
        written = export.write(made, tmp_path / "out")
        found = transformers.AutoModelForCausalLM.from_pretrained(written)
        ids = torch.arange(40)[None]
        theirs = made.policy.network(ids).logits
        torch.testing.assert_close(found(ids).logits, theirs, atol=1e-4, rtol=0)
        with made.policy.network.disable_adapter():
            assert (made.policy.network(ids).logits - theirs).abs().max() > 1e-2
