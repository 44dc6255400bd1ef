"""A policy that vLLM plays: weights arrive, nothing stale is read, what is left loads.

In float32 on the CPU, on a small model with random weights.
"""

import asyncio
import multiprocessing
import time

import pytest

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")
pytest.importorskip("peft")

import transformers  # noqa: E402
from trainees import built, tokenizer  # noqa: E402

from ragen_bench.errors import InvalidSpec, RunIncomplete  # noqa: E402
from ragen_bench.model import Conversation, Message, Sampling  # noqa: E402
from ragen_bench.models import hf_loading, vllm_weights  # noqa: E402
from ragen_bench.registry import make_model  # noqa: E402
from ragen_bench.starpo import canary, export, policy, update  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

GREEDY = Sampling(max_tokens=24, stop=())
QUESTION = "Which of the two arms is the better one, and why do you think so? " * 6
"""Longer than a block of keys and values on a CPU, 128 tokens."""
LARGE = 0.3
"""Of random weights: a step of training would hardly show in greedy replies."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small Llama with random weights, in a folder; its heads are 32 wide."""
    place = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer().pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer().eos_token_id,
        initializer_range=0.1,
    )
    with hf_loading.quiet():
        transformers.LlamaForCausalLM(config).save_pretrained(place)
        tokenizer().save_pretrained(place)
    return str(place)


@pytest.fixture(scope="module")
def trained(base):
    """A training with an adapter, played by vLLM in float32."""
    made = built(
        model=base,
        engine="vllm",
        engine_kv_gib=0.25,
        lora_rank=4,
        temperature=0.7,
        lr=1e-2,
    )
    yield made
    made.policy.engine.close()
    deadline = time.monotonic() + 30
    while multiprocessing.active_children():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def move(made, seed):
    """Change the adapter so much that greedy replies change."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in made.policy.trained():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter += LARGE * noise


def reply(model, content=QUESTION):
    """Return the greedy reply's completion."""
    message = Message(role="user", content=content)
    asked = Conversation(key="k", seed=1, messages=[message])
    return asyncio.run(model.generate(asked, GREEDY))


def apart(made, ids):
    """Return how far engine and trainer are apart over a sequence."""
    ours = update.sequence_logprobs(made.policy.network, ids)
    return canary.compare(made.policy.engine.score(ids), ours)


def test_what_it_samples_is_scored_alike_by_the_trainer(trained):
    """Its log-probabilities are those at the temperature of sampling, 0.7."""
    for _ in range(2):
        row = trained.iterate().row
        assert row["start_diff_max"] < 1e-4
        assert row["canary_diff_max"] < 1e-4
        assert row["grad_norm"] > 0
    assert trained.policy.engine.version == trained.policy.version == 2


def test_a_prompt_that_was_cached_is_read_afresh_after_a_sync(trained):
    before = reply(trained.policy.engine)
    assert reply(trained.policy.engine).usage.cached_tokens > 0
    move(trained, 1)
    trained.policy.sync()
    after = reply(trained.policy.engine)
    assert after.usage.cached_tokens == 0
    assert after.token_ids != before.token_ids
    assert reply(trained.policy.engine).token_ids == after.token_ids


def test_keys_and_values_of_old_weights_are_found_out(trained, monkeypatch):
    async def load(engine, path):
        await engine.collective_rpc("read_ragen_weights", args=(path,))

    found = reply(trained.policy.engine)
    ids = [*found.prompt_token_ids, *found.token_ids]
    move(trained, 2)
    with monkeypatch.context() as patch:
        patch.setattr(vllm_weights, "load", load)
        trained.policy.sync()
    assert apart(trained, ids).largest > canary.LARGEST
    trained.policy.sync()
    assert apart(trained, ids).largest < 1e-4


@pytest.mark.parametrize("fault", ["nothing", "no adapter", "no head"])
def test_a_sync_that_is_not_whole_is_found_out(trained, monkeypatch, fault):
    engine = trained.policy.engine
    whole = engine.sync

    def sync(weights, version):
        kept = dict(weights)
        if fault == "nothing":
            engine.version = version
            return
        if fault == "no adapter":
            plain = policy.plain_network(trained.policy.network)
            with hf_loading.quiet():
                kept = dict(plain.base_model.state_dict())
            kept = {
                f"model.{name.replace('.base_layer', '')}": tensor
                for name, tensor in kept.items()
                if "lora_" not in name
            }
            kept["lm_head.weight"] = weights["lm_head.weight"]
        if fault == "no head":
            del kept["lm_head.weight"]
            kept["model.embed_tokens.weight"] = 2 * kept["model.embed_tokens.weight"]
        whole(kept, version)

    move(trained, 3)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "sync", sync)
        trained.policy.sync()
    with pytest.raises(RunIncomplete, match="other weights"):
        trained.iterate()
    trained.policy.sync()
    trained.iterate()


def test_a_request_in_flight_is_no_time_for_new_weights(trained):
    """Its keys and values would be of both."""

    async def both():
        message = Message(role="user", content=QUESTION)
        asked = Conversation(key="k", seed=1, messages=[message])
        long = Sampling(max_tokens=900, temperature=1.0, stop=())
        going = asyncio.create_task(trained.policy.engine.generate(asked, long))
        await asyncio.sleep(0.3)
        try:
            await asyncio.to_thread(trained.policy.sync)
        finally:
            going.cancel()

    with pytest.raises(Exception, match="a request was in flight"):
        asyncio.run(both())
    trained.policy.sync()


def test_prompts_that_fill_more_than_a_pass_are_answered(trained):
    """A seeded request whose prompt is read in two parts would end the engine."""
    engine = trained.policy.engine

    async def every():
        asked = [
            Conversation(
                key=f"{seed}",
                seed=seed,
                messages=[Message(role="user", content=f"{seed} {QUESTION * 2}")],
            )
            for seed in range(40)
        ]
        hot = Sampling(temperature=0.7, max_tokens=3, stop=(), processed_logprobs=True)
        return await asyncio.gather(*(engine.generate(one, hot) for one in asked))

    found = asyncio.run(every())
    assert sum(len(one.prompt_token_ids) for one in found) > 2 * 4096
    assert all(len(one.token_ids) == len(one.logprobs) > 0 for one in found)


def test_what_is_exported_plays_as_the_engine_does(trained, base, tmp_path):
    """The merged model and the adapter over its base, through hf and vllm."""
    trained.policy.sync()
    expected = reply(trained.policy.engine)
    out = export.write(trained, tmp_path / "model")
    adapter = str(out / export.ADAPTER)
    for name, arguments in (
        (f"hf:{out}", {"threads": 1}),
        (f"hf:{base}", {"threads": 1, "lora": adapter}),
        (f"vllm:{out}", {"kv_cache_gib": 0.25}),
        (f"vllm:{base}", {"kv_cache_gib": 0.25, "lora": adapter}),
    ):
        model = make_model(name, **arguments)
        found = reply(model)
        asyncio.run(model.aclose())
        assert found.token_ids == expected.token_ids, name


def test_heads_that_vllm_cannot_compute_are_refused_before_it_starts():
    with pytest.raises(InvalidSpec, match="16 wide.*engine='hf'"):
        built(engine="vllm")


def test_log_probabilities_of_another_kind_are_refused():
    model = make_model("vllm:tiny", kv_cache_gib=0.25)
    asked = Conversation(
        key="k", seed=1, messages=[Message(role="user", content=QUESTION)]
    )
    hot = Sampling(temperature=0.7, processed_logprobs=True)
    with pytest.raises(InvalidSpec, match="processed_logprobs"):
        asyncio.run(model.generate(asked, hot))
    asyncio.run(model.aclose())
