"""Terms of the loss, against numbers worked by hand and finite differences."""

import math

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.starpo import losses  # noqa: E402

pytestmark = pytest.mark.hf


def near(found, expected, abs: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=found.dtype), atol=abs, rtol=0
    )


def surrogate(ratio: float, advantage: float, **clip) -> tuple[float, float]:
    """Return the loss of a token and its derivative by the log-probability."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    loss = losses.clipped_surrogate(
        logprob, torch.zeros_like(logprob), torch.tensor([advantage]).double(), **clip
    )
    loss.sum().backward()
    return loss.item(), logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # The loss is -A rho, its derivative by the log-probability the same again;
        # where clipped it stays at the bound, with no derivative.
        (1.0, 2.0, -2.0, -2.0),
        (1.0, -2.0, 2.0, 2.0),
        (1.25, 2.0, -2.5, -2.5),  # between 1.2 and 1.28: still free
        (1.25, -2.0, 2.5, 2.5),
        (0.85, 2.0, -1.7, -1.7),
        (0.85, -2.0, 1.7, 1.7),
        (1.5, 2.0, -2.56, 0.0),  # too likely and good: enough, at 1.28
        (1.5, -2.0, 3.0, 3.0),  # too likely and bad: back, unclipped
        (0.75, 2.0, -1.5, -1.5),  # too unlikely and good: back, unclipped
        (0.75, -2.0, 1.6, 0.0),  # too unlikely and bad: enough, at 0.8
    ],
)
def test_each_quadrant_of_the_clipped_surrogate(ratio, advantage, loss, slope) -> None:
    found = surrogate(ratio, advantage, low=0.2, high=0.28)
    assert found == pytest.approx((loss, slope))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (2.5, -2.0, 5.0, 5.0),
        (4.0, -2.0, 6.0, 0.0),  # 3 * 2 and no further
        (4.0, 2.0, -2.56, 0.0),  # a positive advantage has its own bound
        (0.1, -2.0, 1.6, 0.0),
        (0.1, 2.0, -0.2, -0.2),
    ],
)
def test_dual_clip_bounds_negative_advantages_alone(
    ratio, advantage, loss, slope
) -> None:
    found = surrogate(ratio, advantage, low=0.2, high=0.28, dual=3.0)
    assert found == pytest.approx((loss, slope))


def test_the_ratio_is_1_and_the_gradient_that_of_the_policy_at_the_start() -> None:
    torch.manual_seed(0)
    old, advantages = torch.randn(7), torch.randn(7)
    logprobs = old.clone().requires_grad_(True)
    loss = losses.clipped_surrogate(logprobs, old, advantages, low=0.0, high=0.0)
    near(loss, -advantages)
    inside = losses.clipped_surrogate(logprobs, old, advantages, low=0.2, high=0.2)
    inside.sum().backward()
    near(logprobs.grad, -advantages)


def test_an_extreme_ratio_overflows_nothing() -> None:
    logprobs = torch.tensor([0.0, -500.0], requires_grad=True)
    loss = losses.clipped_surrogate(
        logprobs,
        torch.tensor([-500.0, 0.0]),
        torch.tensor([-1.0, 1.0]),
        low=0.2,
        high=0.2,
    )
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logprobs.grad.isfinite().all()


def test_no_gradient_flows_into_the_old_policy() -> None:
    old = torch.zeros(2, requires_grad=True)
    new = torch.zeros(2, requires_grad=True)
    losses.clipped_surrogate(
        new, old, torch.ones(2), low=0.2, high=0.2
    ).sum().backward()
    assert old.grad is None


def test_clipped_tokens_are_those_without_gradient() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.75, 0.75, 1.25, 1.0])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    found = losses.clipped(ratio.log(), torch.zeros(6), advantages, low=0.2, high=0.28)
    assert found.high.tolist() == [True, False, False, False, False, False]
    assert found.low.tolist() == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    "clip", [{"low": -0.1}, {"low": 1.1}, {"high": -0.1}, {"dual": 1.0}]
)
def test_clip_ranges_are_checked(clip) -> None:
    with pytest.raises(InvalidSpec, match=f"{next(iter(clip))} is"):
        surrogate(1.0, 1.0, **{"low": 0.2, "high": 0.2, **clip})


def test_value_loss_is_half_the_squared_error() -> None:
    # 0.5 * (1 - 3)^2 = 2.
    near(losses.value_loss(*(torch.tensor([x]) for x in (1.0, 0.0, 3.0))), [2.0])


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope"),
    [
        # The old value is 0 and the range 0.5.
        (0.4, 2.0, 1.28, -1.6),  # within: 0.5 * 1.6^2
        (1.0, 2.0, 1.125, 0.0),  # moved far towards it: held at 0.5, 0.5 * 1.5^2
        (-1.0, 2.0, 4.5, -3.0),  # moved away: 0.5 * 3^2, and back it goes
        (3.0, 2.0, 1.125, 0.0),  # far past it, but 0.5 is worse
    ],
)
def test_value_loss_holds_the_critic_near_the_old_value(
    value, target, loss, slope
) -> None:
    values = torch.tensor([value], requires_grad=True)
    found = losses.value_loss(values, torch.zeros(1), torch.tensor([target]), 0.5)
    found.sum().backward()
    assert (found.item(), values.grad.item()) == pytest.approx((loss, slope))


def test_the_range_of_values_is_checked() -> None:
    with pytest.raises(InvalidSpec, match="clip is 0"):
        losses.value_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), 0)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        # d = ln 2: ln 2; (ln 2)^2 / 2 = 0.240227; 1/2 + ln 2 - 1 = 0.193147.
        ("k1", 0.693147),
        ("k2", 0.240227),
        ("k3", 0.193147),
    ],
)
def test_estimates_of_the_divergence(kind, value: float) -> None:
    found = losses.kl(torch.tensor([-1.0]), torch.tensor([-1.0 - math.log(2)]), kind)
    near(found, [value])


def toy() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of a policy over five tokens, and a reference's log p."""
    logits = torch.tensor([0.3, -1.2, 0.8, 0.1, -0.4], dtype=torch.float64)
    reference = torch.tensor([1.0, 0.2, -0.7, 0.0, 0.5], dtype=torch.float64)
    return logits.requires_grad_(True), reference.log_softmax(0)


def gradient_in_expectation(kind: str, **options) -> torch.Tensor:
    """Return the mean gradient of an estimate over tokens that the policy samples."""
    logits, reference = toy()
    log_p = logits.log_softmax(0)
    term = losses.kl(log_p, reference, kind, **options)
    (log_p.exp().detach() * term).sum().backward()
    return logits.grad


def divergence(logits: torch.Tensor) -> torch.Tensor:
    log_p = logits.log_softmax(0)
    return (log_p.exp() * (log_p - toy()[1])).sum()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_every_estimate_has_the_gradient_of_the_divergence(kind: str) -> None:
    logits = toy()[0].detach()
    step = 1e-6
    exact = torch.stack(
        [
            (divergence(logits + step * unit) - divergence(logits - step * unit))
            / (2 * step)
            for unit in torch.eye(5, dtype=torch.float64)
        ]
    )
    assert exact.abs().max() > 0.1
    near(gradient_in_expectation(kind), exact, 1e-8)


def test_differentiated_as_they_stand_only_k2_is_right() -> None:
    right = gradient_in_expectation("k2", right_gradient=False)
    near(right, gradient_in_expectation("k2"), 1e-12)
    near(gradient_in_expectation("k1", right_gradient=False), torch.zeros(5), 1e-12)
    k3 = gradient_in_expectation("k3", right_gradient=False)
    assert (k3 - right).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_have_the_mean_of_the_divergence(kind: str) -> None:
    logits, reference = toy()
    log_p = logits.detach().log_softmax(0)
    mean = (log_p.exp() * losses.kl(log_p, reference, kind)).sum()
    near(mean, divergence(logits.detach()), 1e-12)


def test_an_unknown_divergence_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="'k4'"):
        losses.kl(torch.zeros(1), torch.zeros(1), "k4")


def test_the_entropy_of_uniform_logits_is_log_v() -> None:
    found = losses.entropy(torch.full((3, 50), 7.0))
    near(found, [math.log(50)] * 3, 1e-5)


def test_the_entropy_is_that_of_the_sampling_temperature() -> None:
    # Logits ln 9, 0 at temperature 2 are ln 3, 0: p = 3/4, 1/4, and
    # H = 3/4 ln 4/3 + 1/4 ln 4 = 0.562335.
    logits = torch.tensor([[math.log(9), 0.0]])
    near(losses.entropy(logits, temperature=2.0), [0.562335])
    # At temperature 1, p = 0.9, 0.1: 0.325083.
    near(losses.entropy(logits), [0.325083])
    with pytest.raises(InvalidSpec, match="temperature is 0"):
        losses.entropy(logits, temperature=0)


def test_the_entropy_has_its_gradient() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: losses.entropy(x, 0.7), logits)


def test_impossible_tokens_add_no_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    found = losses.entropy(logits)
    found.sum().backward()
    near(found, [math.log(2)])
    assert logits.grad.isfinite().all()


TRAIN = torch.tensor([4.0, 0.5, 1.5, 0.5]).log()
SEQUENCES = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("sequences", "options", "weights"),
    [
        (None, {"high": 2.0}, [2.0, 0.5, 1.5, 0.5]),
        (None, {"low": 0.8, "high": 2.0}, [2.0, 0.8, 1.5, 0.8]),
        (None, {"high": 2.0, "outside": "mask"}, [0.0, 0.5, 1.5, 0.5]),
        (None, {"low": 0.8, "high": 9.0, "outside": "mask"}, [4.0, 0.0, 1.5, 0.0]),
        # Of sequences: 4 * 0.5 = 2 and 1.5 * 0.5 = 0.75.
        (SEQUENCES, {"high": 1.8}, [1.8, 1.8, 0.75, 0.75]),
        (SEQUENCES, {"high": 1.8, "outside": "mask"}, [0.0, 0.0, 0.75, 0.75]),
    ],
)
def test_importance_weights(sequences, options, weights) -> None:
    found = losses.importance_weights(TRAIN, torch.zeros(4), sequences, **options)
    near(found, weights)


def test_importance_weights_carry_no_gradient_and_are_1_for_the_same_policy() -> None:
    logprobs = torch.randn(3, requires_grad=True)
    found = losses.importance_weights(logprobs, logprobs)
    assert not found.requires_grad
    near(found, [1.0, 1.0, 1.0])


def test_importance_weights_refuse_what_makes_no_sense() -> None:
    with pytest.raises(InvalidSpec, match="need 0 <= low < high"):
        losses.importance_weights(TRAIN, TRAIN, low=2.0, high=2.0)
    with pytest.raises(InvalidSpec, match="'drop'"):
        losses.importance_weights(TRAIN, TRAIN, outside="drop")


def test_terms_are_one_number_an_action_token() -> None:
    square = torch.zeros(2, 2)
    with pytest.raises(InvalidSpec, match="1-D over action tokens"):
        losses.clipped_surrogate(square, square, square, low=0.2, high=0.2)
    with pytest.raises(InvalidSpec, match="1-D over action tokens"):
        losses.kl(torch.zeros(2), torch.zeros(3))
