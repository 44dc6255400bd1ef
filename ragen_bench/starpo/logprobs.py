"""Log-probabilities and entropies of action tokens, in little memory.

The head of a language model makes a row of V logits a token, which is more than all
else in a step.  Here it runs on action tokens alone, some rows at a time, and once more
when gradients are asked for, so that never more than those rows exist.
"""

import dataclasses
from typing import Any

import torch

from ragen_bench.errors import InvalidSpec

CHUNK = 512
"""Tokens whose logits exist at a time, unless told otherwise, ..."""
_CACHED = 2**23
"""... and how many logits on a CPU, whose cache should hold them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selected:
    """Action tokens of a batch, row by row."""

    hidden: torch.Tensor
    """[N, D], the state that predicts the token: the one before it."""
    targets: torch.Tensor
    """[N] int, the token itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """What the policy thinks of its action tokens."""

    logprobs: torch.Tensor
    """[N] fp32, log-probability of the token at the temperature of sampling."""
    entropies: torch.Tensor
    """[N] fp32, entropy in nats of the distribution that it was drawn from."""


def select(hidden: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> Selected:
    """Return the action tokens and the states that predict them.

    Args:
        hidden: [B, T, D], last hidden states of the model.
        ids: [B, T] int, what the model read.
        mask: [B, T] bool, whether the policy sampled the token.

    Returns:
        N tokens, in the order of ``ids[mask]``.

    Raises:
        InvalidSpec: A first token is marked as sampled, so nothing predicts it, or the
            shapes do not match.
    """
    if not hidden.shape[:2] == ids.shape == mask.shape:
        raise InvalidSpec(
            f"hidden states {tuple(hidden.shape)}, ids {tuple(ids.shape)}, mask "
            f"{tuple(mask.shape)}; want [B, T, D], [B, T] and [B, T]"
        )
    mask = mask.bool()
    if mask[:, :1].any():
        raise InvalidSpec("a first token is marked as sampled; nothing comes before it")
    # The state at t - 1 predicts the token at t.
    return Selected(hidden=hidden[:, :-1][mask[:, 1:]], targets=ids[:, 1:][mask[:, 1:]])


def token_logprobs(
    selected: Selected,
    weight: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> TokenLogprobs:
    """Return log-probabilities and entropies through the head of a language model.

    Equal to ``log_softmax((hidden @ weight.T).float() / temperature)`` and what follows
    from it, in values and in gradients, for at most `chunk` rows of logits at a time.

    Args:
        selected: The tokens.
        weight: [V, D], of the head, which has no bias.
        temperature: That of sampling, above 0.
        chunk: Rows at a time, at least 1; None chooses.  The result does not depend on
            it.

    Returns:
        Both differentiable with respect to the states and the weight.

    Raises:
        InvalidSpec: The temperature or the chunk is out of range.
    """
    if temperature <= 0:
        raise InvalidSpec(f"temperature is {temperature!r}; it must be above 0")
    if chunk is None:
        chunk = CHUNK
        if weight.device.type == "cpu":
            chunk = min(CHUNK, max(1, _CACHED // len(weight)))
    if chunk < 1:
        raise InvalidSpec(f"chunk is {chunk!r}; it must be at least 1")
    logprobs, entropies = _ChunkedHead.apply(
        selected.hidden, weight, selected.targets, temperature, chunk
    )
    return TokenLogprobs(logprobs=logprobs, entropies=entropies)


class _ChunkedHead(torch.autograd.Function):  # type: ignore[misc]
    """The head with its logits made twice and never kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities [N] and entropies [N]."""
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)
        kind = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = torch.empty(len(hidden), dtype=kind, device=hidden.device)
        entropies, masses = torch.empty_like(logprobs), torch.empty_like(logprobs)
        head = weight.to(hidden.dtype)
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            logits = _logits(hidden[rows], head, temperature)
            peak = logits.amax(dim=-1)
            logits -= peak[:, None]
            logprobs[rows] = logits.gather(1, targets[rows, None]).squeeze(1)
            p = logits.exp()
            mass = p.sum(dim=-1)
            # H = log sum(e^z) - sum(z e^z) / sum(e^z)
            entropies[rows] = mass.log() - p.mul_(_finite(logits)).sum(dim=-1) / mass
            logprobs[rows] -= mass.log()
            masses[rows] = peak + mass.log()
        ctx.save_for_backward(hidden, weight, targets, masses, entropies)
        return logprobs, entropies

    @staticmethod
    def backward(
        ctx: Any, d_logprobs: torch.Tensor | None, d_entropies: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None]:
        """Return the gradients of states and weight."""
        hidden, weight, targets, masses, entropies = ctx.saved_tensors
        head = weight.to(hidden.dtype)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        d_hidden = torch.zeros_like(hidden) if wants_hidden else None
        kind = torch.promote_types(weight.dtype, torch.float32)
        d_weight = torch.zeros_like(weight, dtype=kind) if wants_weight else None
        for start in range(0, len(hidden), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            log_p = _logits(hidden[rows], head, ctx.temperature)
            log_p -= masses[rows, None]
            if d_entropies is not None:
                p = log_p.exp()
                # dH/dz = -p * (log p + H)
                d_logits = _finite(log_p).add_(entropies[rows, None])
                d_logits *= -d_entropies[rows, None]
                if d_logprobs is not None:
                    d_logits -= d_logprobs[rows, None]
                d_logits *= p
            elif d_logprobs is not None:
                d_logits = log_p.exp_().mul_(-d_logprobs[rows, None])
            else:
                break
            if d_logprobs is not None:
                # dlogp/dz = onehot - p
                d_logits.scatter_add_(1, targets[rows, None], d_logprobs[rows, None])
            d_logits = d_logits.div_(ctx.temperature).to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[rows] = d_logits @ head
            if d_weight is not None and kind == hidden.dtype:
                d_weight.addmm_(d_logits.T, hidden[rows])
            elif d_weight is not None:
                d_weight += d_logits.T @ hidden[rows]
        if d_weight is not None:
            d_weight = d_weight.to(weight.dtype)
        return d_hidden, d_weight, None, None, None


def _logits(
    hidden: torch.Tensor, head: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return logits at a temperature [rows, V], at least in fp32, to be changed."""
    logits = hidden @ head.T
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if temperature == 1 else wide.div_(temperature)


def _finite(log_p: torch.Tensor) -> torch.Tensor:
    """Return logarithms, changed in place so that none is -inf: 0 * -inf is nan."""
    return log_p.clamp_(min=torch.finfo(log_p.dtype).min)
