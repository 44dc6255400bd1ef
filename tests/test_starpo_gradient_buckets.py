"""Gradient norms by the spread of returns, on a linear model worked by hand."""

import math

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.starpo.gradient_buckets import (  # noqa: E402
    GroupSize,
    by_edges,
    by_quantile,
    gradient_buckets,
)

pytestmark = pytest.mark.hf

INPUTS = {"a": (3.0, 4.0), "b": (0.0, 1.0), "c": (6.0, 8.0), "d": (0.0, 2.0)}
SPREADS = {"a": 0.5, "b": 0.0, "c": 0.9, "d": 0.1}
SIZES = {
    "a": GroupSize(samples=2, tokens=10),
    "b": GroupSize(samples=2, tokens=4),
    "c": GroupSize(samples=3, tokens=20),
    "d": GroupSize(samples=2, tokens=6),
}


class Linear:
    """A task loss w . x, whose gradient is x, and a KL of w . w / 2, which is w."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 0.0]))
        self.idle = torch.nn.Parameter(torch.ones(3))
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def terms(self, groups):
        shared = self.weight * 1.0
        task = sum(shared @ torch.tensor(INPUTS[group]) for group in groups)
        return {
            "task": task,
            "entropy": torch.zeros(()),
            "kl": 0.5 * (shared @ shared) * len(groups),
        }

    def whole(self, groups):
        return [self.terms(groups)]

    def one_by_one(self, groups):
        return [self.terms([group]) for group in groups]

    @property
    def parameters(self):
        return [self.weight, self.idle, self.frozen]


@pytest.mark.parametrize("way", ["whole", "one_by_one"])
def test_norms_of_a_linear_model(way) -> None:
    model = Linear()
    low, high = gradient_buckets(
        getattr(model, way), model.parameters, SPREADS, SIZES, by_quantile(SPREADS, 2)
    )
    assert (low.groups, high.groups) == (("b", "d"), ("a", "c"))
    assert low.norms == pytest.approx({"task": 3, "entropy": 0, "kl": 2})
    assert high.norms == pytest.approx({"task": 15, "entropy": 0, "kl": 2})
    assert (low.low, low.high, high.low, high.high) == (0.0, 0.1, 0.5, 0.9)
    assert high.per_sample["task"] == pytest.approx(3)
    assert high.per_token["task"] == pytest.approx(0.5)
    assert low.per_token["kl"] == pytest.approx(0.2)


def test_opposite_gradients_of_a_bucket_cancel() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    signs = {"a": 1.0, "b": -1.0}

    def losses(groups):
        return [{"task": (weight * signs[group]).sum()} for group in groups]

    sizes = {group: GroupSize(samples=1, tokens=1) for group in signs}
    spreads = dict.fromkeys(signs, 1.0)
    (both,) = gradient_buckets(losses, [weight], spreads, sizes, [["a", "b"]])
    assert both.norms == {"task": 0}


def test_gradients_that_wait_for_a_step_stay() -> None:
    model = Linear()
    model.weight.grad = torch.tensor([7.0, 8.0])
    gradient_buckets(model.whole, model.parameters, SPREADS, SIZES)
    assert model.weight.grad.tolist() == [7, 8]
    assert model.idle.grad is None


def test_quantiles_are_of_equal_size_and_keep_the_order_of_equals() -> None:
    spreads = dict.fromkeys("abcdefg", 1.0) | {"h": 0.0}
    assert by_quantile(spreads, 3) == (
        ("h", "a", "b"),
        ("c", "d", "e"),
        ("f", "g"),
    )
    assert by_quantile({"a": 1.0}, 6) == (("a",),)
    assert by_quantile({}, 6) == ()


def test_a_spread_on_an_edge_belongs_above_it() -> None:
    spreads = {"a": 0.0, "b": 1.0, "c": 0.5, "d": 9.0}
    assert by_edges(spreads, [1, 2]) == (("a", "c"), ("b",), ("d",))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: by_quantile(SPREADS, 0),
        lambda: by_quantile({"a": math.nan}),
        lambda: by_edges(SPREADS, [2, 1]),
        lambda: gradient_buckets(Linear().whole, [], SPREADS, {}),
        lambda: gradient_buckets(
            lambda groups: [{"task": torch.zeros(2)}], [], SPREADS, SIZES
        ),
    ],
)
def test_what_makes_no_sense_is_refused(wrong) -> None:
    with pytest.raises(InvalidSpec):
        wrong()
