"""Scoring reasoning after other prompts equals plain teacher forcing."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.starpo import cross_scoring, template_collapse  # noqa: E402

pytestmark = pytest.mark.hf

PROMPTS = [[1, 5, 9, 30, 2], [1, 5, 7], [3], [1, 5, 9, 30, 2]]
THOUGHTS = [[4, 11, 12, 13, 14, 15], [21], [17, 4], [8, 8, 8]]


@pytest.fixture(scope="module")
def network():
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.4, generator=generator)
    return model.train()


def alone(network, temperature=1.0):
    """Return a scorer that reads one sequence at a time, unpadded."""

    def score(prompt, thought):
        with torch.no_grad():
            logits = network(torch.tensor([[*prompt, *thought]])).logits[0]
        log_p = torch.log_softmax(logits / temperature, dim=-1)
        places = range(len(prompt) - 1, len(prompt) + len(thought) - 1)
        return sum(float(log_p[p, z]) for p, z in zip(places, thought, strict=True))

    return template_collapse.one_by_one(score)


@pytest.mark.parametrize("batch", [1, 3, 32])
@pytest.mark.parametrize("kind", [cross_scoring.shared_prefix, cross_scoring.plain])
def test_scores_equal_those_of_one_sequence_at_a_time(network, kind, batch) -> None:
    want = template_collapse.cross_scores(alone(network), PROMPTS, THOUGHTS)
    found = template_collapse.cross_scores(
        kind(network, batch=batch), PROMPTS, THOUGHTS
    )
    assert np.abs(found - want).max() < 1e-4
    # The prompts matter to this network, or the test would show little.
    assert np.abs(want[:, 0] - want[:, 1]).min() > 0.01


@pytest.mark.parametrize("kind", [cross_scoring.shared_prefix, cross_scoring.plain])
def test_the_temperature_of_sampling_counts(network, kind) -> None:
    want = template_collapse.cross_scores(alone(network, 0.5), PROMPTS, THOUGHTS)
    found = template_collapse.cross_scores(
        kind(network, temperature=0.5), PROMPTS, THOUGHTS
    )
    assert np.abs(found - want).max() < 1e-4


def test_each_prompt_is_read_once(network) -> None:
    read = []
    handle = network.get_input_embeddings().register_forward_hook(
        lambda module, given, out: read.append(given[0].tolist())
    )
    score = cross_scoring.shared_prefix(network, batch=2)
    template_collapse.cross_scores(score, PROMPTS, THOUGHTS)
    handle.remove()
    rows = [row for batch in read for row in batch]
    assert [rows.count(prompt) for prompt in PROMPTS] == [1, 1, 1, 1]
    assert all(len(row) < 6 for row in rows)


def test_scoring_leaves_the_network_as_it_was(network) -> None:
    cross_scoring.shared_prefix(network)(PROMPTS[0], THOUGHTS)
    assert network.training
    assert all(one.grad is None for one in network.parameters())


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"batch": 0}])
def test_settings_out_of_range_are_refused(network, settings) -> None:
    with pytest.raises(InvalidSpec):
        cross_scoring.shared_prefix(network, **settings)
