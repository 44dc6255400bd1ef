"""The head on action tokens alone, in chunks: equal to the plain one, but small."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.starpo import logprobs, losses  # noqa: E402
from ragen_bench.starpo.logprobs import Selected  # noqa: E402

pytestmark = pytest.mark.hf


def near(found, expected, abs: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=found.dtype), atol=abs, rtol=0
    )


def test_each_token_is_predicted_by_the_state_before_it() -> None:
    # A model that knows pairs: the state of token i is row i of the table's logits.
    table = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])
    ids = torch.tensor([[0, 1, 2, 2], [2, 0, 0, 1]])
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]]).bool()
    hidden = torch.eye(3)[ids]
    selected = logprobs.select(hidden, ids, mask)
    assert selected.targets.tolist() == ids[mask].tolist() == [1, 2, 0, 1]
    found = logprobs.token_logprobs(selected, table.log().T)
    # 0 to 1, 1 to 2, 0 to 0, 0 to 1.
    near(found.logprobs.exp(), [0.2, 0.8, 0.7, 0.2])


def test_only_action_tokens_are_trained() -> None:
    # Another observation token as a target changes nothing; another action token does.
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 6, 4), torch.randn(9, 4)
    mask = torch.tensor([[0, 0, 1, 1, 0, 1]]).bool()
    ids = torch.randint(9, (1, 6))

    def found(changed: int) -> torch.Tensor:
        other = ids.clone()
        other[0, changed] = (other[0, changed] + 1) % 9
        selected = logprobs.select(hidden, other, mask)
        return logprobs.token_logprobs(selected, weight).logprobs

    plain = logprobs.token_logprobs(logprobs.select(hidden, ids, mask), weight).logprobs
    for place in range(6):
        assert torch.equal(found(place), plain) == (not mask[0, place])


def test_a_first_token_cannot_be_sampled() -> None:
    with pytest.raises(InvalidSpec, match="first token"):
        logprobs.select(
            torch.zeros(1, 2, 3), torch.zeros(1, 2).long(), torch.ones(1, 2).bool()
        )
    with pytest.raises(InvalidSpec, match="want"):
        logprobs.select(
            torch.zeros(1, 2, 3), torch.zeros(1, 3).long(), torch.zeros(1, 3).bool()
        )


def plain(selected: Selected, weight, temperature: float = 1.0):
    """Return log-probabilities and entropies with all logits at once."""
    logits = (selected.hidden @ weight.T).float() / temperature
    log_p = logits.log_softmax(-1)
    return (
        log_p.gather(1, selected.targets[:, None])[:, 0],
        -(log_p.exp() * log_p).sum(-1),
    )


def chunked(selected: Selected, weight, temperature: float = 1.0, chunk: int = 5):
    found = logprobs.token_logprobs(
        selected, weight, temperature=temperature, chunk=chunk
    )
    return found.logprobs, found.entropies


def step(head, seed: int, temperature: float, chunk: int | None):
    """Return loss, entropies and gradients of a random batch through a head."""
    generator = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(3, 11, 8, generator=generator) / 3).requires_grad_(True)
    weight = torch.randn(37, 8, generator=generator).requires_grad_(True)
    ids = torch.randint(37, (3, 11), generator=generator)
    mask = torch.rand(3, 11, generator=generator) < 0.2 * seed + 0.1
    mask[:, 0] = False
    mask[0, 1] = True
    count = int(mask.sum())
    old = torch.randn(count, generator=generator) - 4
    advantages = torch.randn(count, generator=generator)
    weights = torch.rand(count, generator=generator)
    options = {} if chunk is None else {"chunk": chunk}
    selected = logprobs.select(hidden, ids, mask)
    logp, entropies = head(selected, weight, temperature, **options)
    loss = weights * losses.clipped_surrogate(
        logp, old, advantages, low=0.2, high=0.28, dual=3.0
    )
    loss = (loss + 0.1 * losses.kl(logp, old) - 0.01 * entropies).sum() / count
    loss.backward()
    return loss.detach(), entropies.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_the_chunked_head_is_the_plain_one(seed, temperature, chunk) -> None:
    expected = step(plain, seed, temperature, None)
    for found, one in zip(
        step(chunked, seed, temperature, chunk), expected, strict=True
    ):
        torch.testing.assert_close(found, one, atol=1e-6, rtol=1e-5)


def random_tokens(count: int, size: int, width: int, dtype=torch.float32):
    torch.manual_seed(0)
    selected = Selected(
        hidden=torch.randn(count, width, dtype=dtype),
        targets=torch.randint(size, (count,)),
    )
    return selected, torch.randn(size, width, dtype=dtype)


def test_gradients_are_those_of_finite_differences() -> None:
    selected, weight = random_tokens(7, 5, 3, torch.float64)

    def both(hidden, weight):
        return chunked(
            Selected(hidden=hidden, targets=selected.targets), weight, 0.7, 3
        )

    inputs = (selected.hidden.requires_grad_(True), weight.requires_grad_(True))
    assert torch.autograd.gradcheck(both, inputs)


@pytest.mark.parametrize("wanted", ["logprobs", "entropies"])
def test_either_result_may_be_used_alone(wanted: str) -> None:
    selected, weight = random_tokens(6, 9, 4)
    weight.requires_grad_(True)
    getattr(logprobs.token_logprobs(selected, weight, chunk=4), wanted).sum().backward()
    found, weight.grad = weight.grad, None
    pair = dict(zip(("logprobs", "entropies"), plain(selected, weight), strict=True))
    pair[wanted].sum().backward()
    near(found, weight.grad, 1e-5)


def test_a_frozen_head_hands_its_gradient_on() -> None:
    selected, weight = random_tokens(6, 9, 4)
    selected.hidden.requires_grad_(True)
    chunked(selected, weight)[0].sum().backward()
    assert weight.grad is None
    assert selected.hidden.grad.abs().sum() > 0


def test_temperature_is_that_of_sampling() -> None:
    # Logits ln 9, 0 at temperature 2 are ln 3, 0: p = 3/4, 1/4, entropy 0.562335.
    selected = Selected(hidden=torch.eye(1), targets=torch.tensor([0]))
    weight = torch.tensor([[math.log(9)], [0.0]])
    logp, entropies = chunked(selected, weight, 2.0)
    near(logp.exp(), [0.75])
    near(entropies, [0.562335])


def test_uniform_logits_have_the_entropy_log_v() -> None:
    selected = Selected(hidden=torch.ones(3, 4), targets=torch.tensor([0, 1, 2]))
    logp, entropies = chunked(selected, torch.ones(50, 4))
    near(entropies, [math.log(50)] * 3, 1e-5)
    near(logp, [-math.log(50)] * 3, 1e-5)


def test_the_softmax_of_half_precision_states_is_that_of_single_precision() -> None:
    selected, weight = random_tokens(64, 500, 16, torch.bfloat16)
    logp, entropies = chunked(selected, weight)
    assert logp.dtype == entropies.dtype == torch.float32
    expected = plain(selected, weight)
    near(logp, expected[0], 1e-5)
    near(entropies, expected[1], 1e-4)
    # In half precision the normalisation is off by more.
    rough = (selected.hidden @ weight.T).log_softmax(-1)
    rough = rough.gather(1, selected.targets[:, None])[:, 0].float()
    assert (rough - expected[0]).abs().max() > 1e-2


def test_single_precision_masters_serve_half_precision_states() -> None:
    selected, weight = random_tokens(8, 20, 4, torch.bfloat16)
    master = weight.float().requires_grad_(True)
    logp, _ = chunked(selected, master)
    near(logp, plain(selected, weight)[0], 1e-5)
    logp.sum().backward()
    assert master.grad.dtype == torch.float32


def test_no_action_token_is_no_trouble() -> None:
    selected, weight = random_tokens(0, 9, 4)
    weight.requires_grad_(True)
    logp, entropies = chunked(selected, weight)
    assert logp.shape == entropies.shape == (0,)
    (logp.sum() + entropies.sum()).backward()
    assert (weight.grad == 0).all()


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"chunk": 0}])
def test_options_are_checked(options) -> None:
    selected, weight = random_tokens(1, 9, 4)
    with pytest.raises(InvalidSpec, match=f"{next(iter(options))} is 0"):
        logprobs.token_logprobs(selected, weight, **options)


class Largest(TorchDispatchMode):
    """Notes the largest tensor of any operation, those on the way back too."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


def saved_for_backward(head, selected, weight) -> int:
    """Return how many numbers a forward pass keeps."""
    sizes: dict[int, int] = {}

    def note(tensor):
        sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        head(selected, weight)
    return sum(sizes.values())


def test_never_more_than_a_chunk_of_logits_exists() -> None:
    selected, weight = random_tokens(300, 1000, 8)
    selected.hidden.requires_grad_(True)
    weight.requires_grad_(True)
    with Largest() as largest:
        logp, entropies = chunked(selected, weight, chunk=10)
        (logp - entropies).sum().backward()
    # 10 rows of 1000; the states have 2400 numbers, the head has 8000, and all logits
    # would be 300,000.
    assert largest.numbers == 10_000
    few = saved_for_backward(chunked, selected, weight)
    # States, head, and three numbers a token.
    assert few == 300 * 8 + 1000 * 8 + 3 * 300
    assert saved_for_backward(plain, selected, weight) > 300_000
