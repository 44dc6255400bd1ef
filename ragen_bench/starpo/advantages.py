"""Returns to advantages without a critic: within a group, or over the batch.

Trajectories belong together by their group's id alone, never by where they stand, and
a group is made of trajectories, never of their segments or tokens.  What a critic says
is used in `gae`.
"""

from collections.abc import Hashable, Sequence
from typing import TypeAlias

import torch

from ragen_bench.errors import InvalidSpec
from ragen_bench.starpo.gae import discounted_returns

Groups: TypeAlias = Sequence[Hashable] | torch.Tensor
"""The group of each trajectory, in the order of the returns."""

NOISE = 1e-6
"""Numbers that differ by less, relative to 1 or to the largest, count as equal."""


def group_normalized(
    returns: torch.Tensor, groups: Groups, ddof: int = 1, eps: float = 1e-6
) -> torch.Tensor:
    """Return the group-normalised advantages of GRPO.

    arXiv 2402.03300, sec. 4.1.2: ``A_i = (r_i - mean(r)) / std(r)``; here ``eps`` is
    added to the deviation.

    Args:
        returns: [N] float, return of each trajectory.
        groups: N ids.
        ddof: 1 divides the squares by n - 1, as TRL, verl and RAGEN do; 0 by n.
        eps: At least 0.

    Returns:
        [N] float; exactly 0 in a group of one trajectory or of equal returns.

    Raises:
        InvalidSpec: The lengths differ, a return is not finite, or `ddof` is neither
            0 nor 1.
    """
    if ddof not in (0, 1):
        raise InvalidSpec(f"ddof is {ddof!r}; it must be 0 or 1")
    index, counts = _grouped(returns, groups)
    centred = _centred(returns, index, counts)
    squares = torch.zeros_like(counts).index_add_(0, index, centred**2)
    deviation = (squares / (counts - ddof).clamp(min=1)).sqrt()
    return (centred / (deviation[index] + eps).clamp(min=1e-12)).to(returns.dtype)


def group_centred(returns: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Return the advantages of Dr. GRPO, which leaves out the deviation.

    arXiv 2503.20783, sec. 3.2: ``A_i = r_i - mean(r)``.

    Args:
        returns: [N] float, return of each trajectory.
        groups: N ids.

    Returns:
        [N] float; exactly 0 in a group of one trajectory or of equal returns.

    Raises:
        InvalidSpec: The lengths differ, or a return is not finite.
    """
    index, counts = _grouped(returns, groups)
    return _centred(returns, index, counts).to(returns.dtype)


def leave_one_out(returns: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Return each return less the mean of the others in its group (RLOO).

    arXiv 2402.14740, sec. 2.3: ``A_i = r_i - sum_{j != i} r_j / (n - 1)``, which is
    ``n / (n - 1) * (r_i - mean(r))``.

    Args:
        returns: [N] float, return of each trajectory.
        groups: N ids.

    Returns:
        [N] float; exactly 0 in a group of one trajectory or of equal returns.

    Raises:
        InvalidSpec: The lengths differ, or a return is not finite.
    """
    index, counts = _grouped(returns, groups)
    factor = counts / (counts - 1).clamp(min=1)
    return (factor[index] * _centred(returns, index, counts)).to(returns.dtype)


def rebn(returns: torch.Tensor) -> torch.Tensor:
    """Return the returns normalised over the batch of turns (ReBN).

    GEM, arXiv 2510.01051: ``A_k = (G_k - mean(G)) / std(G)`` over all turns of all
    trajectories, where ``G_k`` is the discounted return from turn k on; it is
    `discounted_returns` of arrays with one column a turn.

    Args:
        returns: [M] float, one number a turn.

    Returns:
        [M] float; all 0 where the returns are equal.
    """
    return whiten(returns)


def reinforce_pp(
    rewards: torch.Tensor, mask: torch.Tensor, gamma: float = 1.0
) -> torch.Tensor:
    """Return the advantages of REINFORCE++: returns, whitened over the batch.

    arXiv 2501.03262: ``A_t = (G_t - mean(G)) / std(G)``, over all action tokens of
    the batch and without a baseline by group.

    Args:
        rewards: [B, T] float, reward of a turn at its last action token.
        mask: [B, T] bool, whether the policy sampled the token.
        gamma: In [0, 1].

    Returns:
        [B, T] float, 0 outside the mask.

    Raises:
        InvalidSpec: A reward is not finite or lies outside the mask.
    """
    return whiten(discounted_returns(rewards, mask, gamma), mask)


def whiten(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the numbers with mean 0 and variance 1 over the mask.

    ``(x - mean) / sqrt(var + 1e-8)`` with the unbiased variance.  Call it on the whole
    batch, before that is split into micro-batches.

    Args:
        x: Any shape, float.
        mask: Of the same shape, bool; None is everything.

    Returns:
        Float of the same shape, 0 outside the mask; all 0 where the numbers are equal.
    """
    mask = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.bool()
    x = x.detach()
    inside = x[mask].double()
    out = torch.zeros_like(x)
    if inside.numel() < 2 or _flat(inside.min(), inside.max()):
        return out
    centred = inside - inside.mean()
    out[mask] = (centred * torch.rsqrt(inside.var() + 1e-8)).to(x.dtype)
    return out


def _grouped(
    returns: torch.Tensor, groups: Groups
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of each trajectory's group [N], and the sizes [G]."""
    ids = groups.tolist() if isinstance(groups, torch.Tensor) else list(groups)
    if returns.ndim != 1 or len(ids) != len(returns):
        raise InvalidSpec(
            f"returns of shape {tuple(returns.shape)} for {len(ids)} "
            "group ids; give one id a return"
        )
    if not returns.isfinite().all():
        raise InvalidSpec(f"returns {returns.tolist()}; they must be finite")
    numbers: dict[Hashable, int] = {}
    index = torch.tensor(
        [numbers.setdefault(group, len(numbers)) for group in ids],
        dtype=torch.long,
        device=returns.device,
    )
    counts = torch.bincount(index, minlength=len(numbers)).double()
    return index, counts


def _centred(
    returns: torch.Tensor, index: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Return each return less its group's mean [N], exactly 0 in a flat group."""
    wide = returns.detach().double()
    low = torch.zeros_like(counts).scatter_reduce_(
        0, index, wide, "amin", include_self=False
    )
    high = torch.zeros_like(counts).scatter_reduce_(
        0, index, wide, "amax", include_self=False
    )
    mean = torch.zeros_like(counts).index_add_(0, index, wide) / counts
    return torch.where(_flat(low, high)[index], 0.0, wide - mean[index])


def _flat(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    size = torch.maximum(low.abs(), high.abs()).clamp(min=1.0)
    return high - low <= NOISE * size
