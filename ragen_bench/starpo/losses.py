"""Terms of the objective, one number an action token.

Every array is 1-D over action tokens, so neither padding nor observations can enter a
term, and a trajectory that was dropped is in none.  How the numbers become one is told
in `aggregation`.  All terms are to be minimised, entropies aside.
"""

import dataclasses
from typing import Literal

import torch

from ragen_bench.errors import InvalidSpec

Divergence = Literal["k1", "k2", "k3"]

_LARGEST_LOG_RATIO = 20.0
"""Beyond it a ratio is cut off, as verl does, lest its exponential overflow."""


def clipped_surrogate(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    low: float,
    high: float,
    dual: float | None = None,
) -> torch.Tensor:
    """Return PPO's clipped surrogate loss of each token.

    arXiv 1707.06347, eq. 7, with a range of its own for each side (DAPO, arXiv
    2503.14476, "clip-higher"): ``-min(rho A, clip(rho, 1 - low, 1 + high) A)``, where
    ``rho = exp(logprobs - old_logprobs)``.  Dual clip, arXiv 1912.09729: where A is
    negative the loss is at most ``-dual * A``.

    Args:
        logprobs: [N] float, by the policy that is trained.
        old_logprobs: [N] float, by the policy that the step begins with.
        advantages: [N] float.
        low: How far the ratio may fall below 1, in [0, 1].
        high: How far the ratio may rise above 1, at least 0.
        dual: Largest ratio that counts for a negative advantage, above 1; RAGEN's verl
            has 3.  None is no bound.

    Returns:
        [N] float.

    Raises:
        InvalidSpec: A range is out of bounds, or the shapes differ.
    """
    _check_clip(low, high, dual)
    ratio = _ratio(logprobs, old_logprobs, advantages)
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    loss = torch.maximum(free, clipped)
    if dual is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual), loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipped:
    """Which tokens have no gradient because their ratio was clipped."""

    low: torch.Tensor
    """[N] bool, the ratio is too small and the advantage negative."""
    high: torch.Tensor
    """[N] bool, the ratio is too large and the advantage positive."""


def clipped(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    low: float,
    high: float,
) -> Clipped:
    """Return which tokens `clipped_surrogate` clips, for metrics; dual clip aside."""
    _check_clip(low, high, None)
    ratio = _ratio(logprobs, old_logprobs, advantages)
    return Clipped(
        low=(ratio < 1 - low) & (advantages < 0),
        high=(ratio > 1 + high) & (advantages > 0),
    )


def value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    clip: float | None = None,
) -> torch.Tensor:
    """Return the squared error of the critic for each token.

    ``0.5 * max((v - G)^2, (v_c - G)^2)`` with ``v_c`` the value, kept within `clip` of
    the old one; it is the value clipping of OpenAI's PPO code, which TRL and verl have
    taken over.  Without `clip`, ``0.5 * (v - G)^2`` (arXiv 1707.06347, eq. 9).

    Args:
        values: [N] float, by the critic that is trained.
        old_values: [N] float, by the critic that the step begins with.
        returns: [N] float.
        clip: In the unit of the returns, above 0; RAGEN has 0.5.

    Returns:
        [N] float, at least 0.

    Raises:
        InvalidSpec: The range is not above 0, or the shapes differ.
    """
    _check_shapes(values, old_values, returns)
    error = (values - returns) ** 2
    if clip is None:
        return 0.5 * error
    if clip <= 0:
        raise InvalidSpec(f"clip is {clip!r}; it must be above 0, or None")
    near = torch.clamp(values, old_values - clip, old_values + clip)
    return 0.5 * torch.maximum(error, (near - returns) ** 2)


def kl(
    logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    kind: Divergence = "k3",
    *,
    right_gradient: bool = True,
) -> torch.Tensor:
    """Return an estimate of KL(policy || reference) for each token.

    With ``d = logprobs - reference_logprobs``: k1 is ``d``, k2 ``d^2 / 2``, and k3
    ``exp(-d) + d - 1`` (GRPO, arXiv 2402.03300, eq. 4; J. Schulman, Approximating KL
    divergence).  Differentiated as they stand, k1's gradient is 0 in expectation and
    k3's is that of the other direction, KL(reference || policy); only k2's is that of
    the divergence.  So the gradient here is k2's, whatever the value.

    Args:
        logprobs: [N] float, of tokens that the policy sampled.
        reference_logprobs: [N] float, no gradient flows into it.
        kind: Which estimate.
        right_gradient: False differentiates the estimate as it stands, as TRL does.

    Returns:
        [N] float; k2 and k3 are at least 0.

    Raises:
        InvalidSpec: The kind is unknown, or the shapes differ.
    """
    _check_shapes(logprobs, reference_logprobs)
    difference = logprobs - reference_logprobs.detach()
    half_square = 0.5 * difference**2
    if kind == "k1":
        value = difference
    elif kind == "k2":
        value = half_square
    elif kind == "k3":
        bounded = difference.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
        value = torch.expm1(-bounded) + bounded
    else:
        raise InvalidSpec(f"kind is {kind!r}; it must be 'k1', 'k2' or 'k3'")
    if not right_gradient:
        return value
    return value.detach() + half_square - half_square.detach()


def entropy(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Return the entropy of the distribution at each token, differentiable.

    ``-sum p log p`` in nats, where ``p = softmax(logits / temperature)``, in fp32.

    Args:
        logits: [..., V] float.
        temperature: That of sampling, above 0.

    Returns:
        [...] fp32, in [0, log V].

    Raises:
        InvalidSpec: The temperature is not above 0.
    """
    if temperature <= 0:
        raise InvalidSpec(f"temperature is {temperature!r}; it must be above 0")
    wide = logits.float() if logits.dtype != torch.float64 else logits
    log_p = torch.log_softmax(wide / temperature, dim=-1)
    # 0 * -inf is nan, and a token of logit -inf has nothing to add.
    return -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(dim=-1)


def importance_weights(
    train_logprobs: torch.Tensor,
    behaviour_logprobs: torch.Tensor,
    sequence_ids: torch.Tensor | None = None,
    *,
    low: float = 0.0,
    high: float = 2.0,
    outside: Literal["truncate", "mask"] = "truncate",
) -> torch.Tensor:
    """Return the weights that correct for a sampler that is not quite the policy.

    ``w = pi_train / pi_behaviour``, of the token, or of the whole sequence where
    `sequence_ids` is given.  Truncation is that of V-trace, arXiv 1802.01561, sec. 4.1;
    masking drops what is too far off instead.  Sequences must be whole.

    Args:
        train_logprobs: [N] float, by the trainer, before the step.
        behaviour_logprobs: [N] float, by the engine that sampled.
        sequence_ids: [N] int, the sequence of each token, from 0; None is a weight for
            each token.
        low: Least weight.
        high: Largest weight.
        outside: ``"truncate"`` moves a weight into the range, ``"mask"`` makes it 0.

    Returns:
        [N] float without gradient.

    Raises:
        InvalidSpec: The range is empty, `outside` is unknown, or the shapes differ.
    """
    _check_shapes(train_logprobs, behaviour_logprobs)
    if not 0 <= low < high:
        raise InvalidSpec(f"weights from {low!r} to {high!r}; need 0 <= low < high")
    log_weights = (train_logprobs - behaviour_logprobs).detach()
    if sequence_ids is not None:
        _check_shapes(log_weights, sequence_ids)
        log_weights = _sums(log_weights, sequence_ids)[sequence_ids]
    weights = log_weights.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
    if outside == "truncate":
        return weights.clamp(low, high)
    if outside == "mask":
        return torch.where((weights >= low) & (weights <= high), weights, 0.0)
    raise InvalidSpec(f"outside is {outside!r}; it must be 'truncate' or 'mask'")


def _ratio(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    _check_shapes(logprobs, old_logprobs, advantages)
    difference = logprobs - old_logprobs.detach()
    return difference.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()


def _sums(values: torch.Tensor, sequence_ids: torch.Tensor) -> torch.Tensor:
    """Return the sum of each sequence [S]."""
    count = int(sequence_ids.max()) + 1 if len(sequence_ids) else 0
    return values.new_zeros(count).index_add_(0, sequence_ids, values)


def _check_clip(low: float, high: float, dual: float | None) -> None:
    if not 0 <= low <= 1:
        raise InvalidSpec(f"low is {low!r}; it must be in [0, 1]")
    if high < 0:
        raise InvalidSpec(f"high is {high!r}; it must be at least 0")
    if dual is not None and dual <= 1:
        raise InvalidSpec(f"dual is {dual!r}; it must be above 1, or None")


def _check_shapes(*arrays: torch.Tensor) -> None:
    shapes = [tuple(array.shape) for array in arrays]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise InvalidSpec(f"arrays of shapes {shapes}; want 1-D over action tokens")
