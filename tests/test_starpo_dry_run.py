"""What `--dry-run` says of sizes is what a training then has."""

import asyncio
import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402
from trainees import LAKE, built, small  # noqa: E402

from ragen_bench.cli import cli  # noqa: E402
from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.starpo import dry_run, memory, policy  # noqa: E402

pytestmark = pytest.mark.hf


@pytest.mark.parametrize("changed", [{}, {"algorithm": "ppo"}, {"model": "tiny"}])
def test_parameters_are_those_of_the_training(changed) -> None:
    sizes = dry_run.describe(small(**changed))["sizes"]
    made = built(**changed)
    trained = sum(p.numel() for _, p in made.policy.trained())
    critic = made.policy.critic
    more = sum(p.numel() for p in critic.parameters()) if critic else 0
    assert sizes["parameters of the policy"] == trained
    assert sizes["parameters of the critic"] == more
    assert sizes["parameters trained"] == trained + more


def test_an_adapter_alone_is_trained() -> None:
    pytest.importorskip("peft")
    found = dry_run.describe(small(lora_rank=2))
    made = built(lora_rank=2)
    trained = sum(p.numel() for _, p in made.policy.trained())
    whole = sum(p.numel() for p in made.policy.network.parameters())
    assert found["sizes"]["parameters trained"] == trained
    assert found["sizes"]["parameters of the policy"] == whole
    assert found["memory"]["optimizer"] == 8 * trained


def test_no_trajectory_is_longer_than_the_longest() -> None:
    config = small(env_args={})
    sizes = dry_run.describe(config)["sizes"]
    made = built(env_args={})
    groups = made.instances.take(2, 3)
    played = asyncio.run(made.rollouts.play(groups, "salt"))
    read = sum(len(segment.ids) for one in played for segment in one.segments)
    sampled = sum(one.sampled_tokens for one in played)
    assert sampled <= sizes["sampled tokens an iteration, longest"]
    assert read <= sizes["tokens an iteration, longest"]
    assert (
        sizes["tokens an iteration, expected"] < sizes["tokens an iteration, longest"]
    )
    prompt = sum(one.turns[0].start for one in played) / len(played)
    assert sizes["tokens of a first prompt, mean"] == pytest.approx(prompt, rel=0.1)


SHAPE = memory.Shape(
    plain=1000,
    adapter=0,
    critic=0,
    layers=2,
    width=8,
    query=8,
    keys=4,
    inner=16,
    vocabulary=50,
)
WORK = memory.Work(
    conversations=3,
    context=10,
    passed=100,
    reference=False,
    engine_bytes=4,
    compute_bytes=4,
)


def test_the_estimate_is_the_formula_worked_by_hand() -> None:
    assert memory.estimate(SHAPE, WORK) == {
        "weights": 4 * 1000 + 4 * 1000,
        "optimizer": 8000,
        "gradients": 4000,
        "keys and values": 3 * 10 * (2 * 2 * 4 * 4),
        "logits": 5 * 4 * 50 * 512,
        # 8 * 8 + 3 * 8 + 4 * 4 + 4 * 16 = 168 a layer; 2 * 8 + 3 * 16 = 64 passing
        "activations": 4 * (2 * 168 + 64) * 100,
        "kernels": 0,
        "process": memory.PROCESS,
        "sum": 8000 + 8000 + 4000 + 1920 + 512_000 + 160_000 + memory.PROCESS,
    }


def test_kernels_of_a_cpu_are_counted() -> None:
    work = dataclasses.replace(WORK, kernels=10)
    assert memory.estimate(SHAPE, work)["kernels"] == 10 * 420 * 1024
    few = dry_run.describe(small(device="cpu"))["memory"]["kernels"]
    many = dry_run.describe(small(device="cpu", groups=400))["memory"]["kernels"]
    assert few == 6 * 6 * 420 * 1024 and many == 1024 * 420 * 1024


def test_a_critic_and_an_adapter_are_counted_where_they_are_trained() -> None:
    shape = dataclasses.replace(SHAPE, adapter=10, critic=1001)
    work = dataclasses.replace(WORK, reference=True)
    found = memory.estimate(shape, work)
    # Policy and reference with adapters, critic, engine, and the merged copy.
    assert found["weights"] == 4 * (2 * 1010 + 1001) + 4 * 1000 + 4 * 1000
    assert found["optimizer"] == 8 * (10 + 1001)
    assert found["gradients"] == 4 * 1001


def test_nothing_is_written_and_json_is_json(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--env", LAKE, "--set", "hidden_size=32", "--dry-run"]
    shown = CliRunner().invoke(cli, words)
    assert "parameters of the policy: " in shown.stdout
    assert "  sum: " in shown.stdout
    found = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert found["config"]["hidden_size"] == 32 and found["memory"]["sum"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_here_has_unknown_sizes() -> None:
    found = dry_run.describe(small(model="/no/such/folder"))
    assert found["sizes"] is None and found["memory"] is None


@pytest.mark.parametrize("context", ["full", "single", "window:1", "tokens:200"])
def test_every_context_has_a_longest_that_no_trajectory_exceeds(context) -> None:
    config = small(context=context, max_tokens=24, env_args={"max_turns": 6})
    sizes = dry_run.describe(config)["sizes"]
    made = built(context=context, max_tokens=24, env_args={"max_turns": 6})
    played = asyncio.run(made.rollouts.play(made.instances.take(2, 3), "salt"))
    longest = sizes["tokens an iteration, longest"] / 6
    read = [sum(len(segment.ids) for segment in one.segments) for one in played]
    assert longest / 3 < max(read) <= longest


def test_where_no_prompt_fits_there_is_nothing_to_train() -> None:
    with pytest.raises(InvalidSpec, match="no prompt fits into context 'tokens:1'"):
        dry_run.describe(small(context="tokens:1"))


def test_a_model_without_the_usual_names_has_sizes(tmp_path) -> None:
    import transformers

    _, tokenizer = policy.fresh((32, 1), 0, "cpu")
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=512
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = dry_run.describe(small(model=str(tmp_path)))
    assert found["sizes"]["parameters trained"] > 0


def test_a_critic_beside_an_adapter_is_a_whole_backbone() -> None:
    pytest.importorskip("peft")
    changed = {"algorithm": "ppo", "lora_rank": 2}
    sizes = dry_run.describe(small(**changed))["sizes"]
    critic = built(**changed).policy.critic
    assert sizes["parameters of the critic"] == sum(
        p.numel() for p in critic.parameters()
    )
