"""Advantages by a critic: over tokens, over turns, or turns first and tokens then.

Time runs over action tokens: an observation token is no step, so nothing is discounted
across it.  Turn ends are given, not guessed, so a turn that earned nothing still is a
turn.  Nothing is whitened here.

Suffixes: ``x_t`` belongs to step t, ``x_tp1`` to step t + 1; k counts turns.
"""

import dataclasses

import torch

from ragen_bench.errors import InvalidSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """The tokens of a batch of trajectories, [B, T], or of one, [T].

    Raises:
        InvalidSpec: The shapes differ, a reward is not finite or lies on a token that
            was not sampled, or a turn does not end on one.
    """

    rewards: torch.Tensor
    """[B, T] float, reward of a turn at its last action token, 0 elsewhere."""
    values: torch.Tensor
    """[B, T] float, the critic's value of what precedes the token."""
    mask: torch.Tensor
    """[B, T] bool, whether the policy sampled the token."""
    turn_ends: torch.Tensor
    """[B, T] bool, whether the token is the last action token of its turn."""

    def __post_init__(self) -> None:
        shapes = {
            tuple(getattr(self, field.name).shape) for field in dataclasses.fields(self)
        }
        if len(shapes) != 1 or len(next(iter(shapes))) not in (1, 2):
            raise InvalidSpec(
                f"token arrays of shapes {sorted(shapes)}; want one, 1-D or 2-D"
            )
        mask, ends = self.mask.bool(), self.turn_ends.bool()
        _check_rewards(self.rewards, mask)
        if (ends & ~mask).any():
            raise InvalidSpec(
                "a turn ends on a token that was not sampled; end it on "
                "its last action token"
            )
        left = _suffix_sum(ends) == 0
        if (mask & left).any():
            raise InvalidSpec(
                "action tokens follow the last turn end; every action "
                "token belongs to a turn"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a critic's estimator gives back, in the shape of the tokens."""

    advantages: torch.Tensor
    """Float, 0 on tokens that were not sampled."""
    returns: torch.Tensor
    """Float, what the critic is to predict; 0 where it is not asked."""
    value_mask: torch.Tensor
    """Bool, the tokens whose value is trained."""


def explained_variance(values: torch.Tensor, estimate: Estimate) -> float | None:
    """Return 1 - Var(return - value) / Var(return) over the asked tokens."""
    asked = estimate.value_mask
    if int(asked.sum()) < 2:
        return None
    returns = estimate.returns[asked]
    spread = float(returns.var())
    if spread == 0:
        return None
    return 1 - float((returns - values[asked]).var()) / spread


def in_rows(tokens: torch.Tensor, sequence_ids: torch.Tensor) -> torch.Tensor:
    """Return an array over action tokens with one row a sequence, padded at the right.

    ``in_rows(x, ids)[in_rows(torch.ones_like(ids), ids).bool()]`` is x again.

    Args:
        tokens: [N], sequence by sequence.
        sequence_ids: [N] int, ascending; the sequence of each token.

    Returns:
        [B, T], 0 or False in the padding; B counts ids up to the largest.

    Raises:
        InvalidSpec: The shapes differ, or the ids are not ascending.
    """
    if tokens.shape != sequence_ids.shape or (sequence_ids.diff() < 0).any():
        raise InvalidSpec(
            f"tokens {tuple(tokens.shape)} with ids {tuple(sequence_ids.shape)}; want "
            "one id a token, in ascending order"
        )
    lengths = torch.bincount(sequence_ids)
    first = lengths.cumsum(0) - lengths
    place = torch.arange(len(tokens), device=tokens.device) - first[sequence_ids]
    width = int(lengths.max()) if len(lengths) else 0
    rows = tokens.new_zeros(len(lengths), width)
    rows[sequence_ids, place] = tokens
    return rows


def discounted_returns(
    rewards: torch.Tensor, mask: torch.Tensor, gamma: float
) -> torch.Tensor:
    """Return the discounted sum of the rewards from each step on.

    ``G_t = r_t + gamma * G_tp1``, where t + 1 is the next step that `mask` holds.

    Args:
        rewards: [B, T] or [T] float.
        mask: Of the same shape, bool; whether the column is a step.
        gamma: In [0, 1].

    Returns:
        Float of the same shape, 0 outside the mask.

    Raises:
        InvalidSpec: A reward is not finite or lies outside the mask.
    """
    mask = mask.bool()
    _check_rewards(rewards, mask)
    return _scan(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)


def gae(rollout: Rollout, gamma: float, lam: float) -> Estimate:
    """Return generalised advantages with one step an action token.

    arXiv 1506.02438, eq. 16, as a recursion: ``delta_t = r_t + gamma * v_tp1 - v_t``,
    ``A_t = delta_t + gamma * lam * A_tp1``.  The step after t is the next action token
    of the trajectory; its observation tokens hand on value and sum as they are.  After
    the last action token everything is 0.

    Args:
        rollout: The tokens.
        gamma: Discount a token, in [0, 1].
        lam: In [0, 1]; 1 is the return less the value, 0 the one-step error.

    Returns:
        Advantages, not whitened, and returns ``A_t + v_t`` on every action token.
    """
    mask = rollout.mask.bool()
    advantages = _scan(rollout.rewards, rollout.values, mask, gamma, lam)
    return _estimate(advantages, rollout.values, mask)


def gae_turns(rollout: Rollout, gamma: float, lam: float) -> Estimate:
    """Return generalised advantages with one step a turn.

    arXiv 1506.02438, eq. 16, where a step is a whole reply, its reward the sum over
    the turn, and its value the one before the turn's first action token.  All action
    tokens of the turn share its advantage; the critic is trained on the first alone.

    Args:
        rollout: The tokens.
        gamma: Discount a turn, in [0, 1].
        lam: In [0, 1].

    Returns:
        Advantages, not whitened; returns on the first action token of each turn.
    """
    turns = _turns(rollout)
    a_k = _scan(turns.rewards, turns.values, turns.exists, gamma, lam)  # [B, K]
    mask = rollout.mask.bool()
    advantages = a_k.gather(-1, turns.index).view_as(mask) * mask  # [B, T]
    return _estimate(advantages, rollout.values, turns.starts.view_as(mask))


def gae_bilevel(
    rollout: Rollout, gamma_token: float, gamma_turn: float, lam: float
) -> Estimate:
    """Return bi-level advantages: across turns first, then within each turn.

    VAGEN, arXiv 2510.16907, and RAGEN's ``bi_level_gae``.  Let ``e`` be the last action
    token of turn k.  Across turns, ``delta_k = r_k + gamma_turn * v_kp1 - v_k`` and
    ``A_k = delta_k + gamma_turn * lam * A_kp1``, with the values at those tokens.  Then
    every turn is an episode of its own that ends with the reward ``A_k + v_k``, and its
    tokens get `gae` with ``gamma_token``.  RAGEN takes a turn to end where a reward is
    not 0, and whitens; here the ends are given, and whitening is left to the caller.

    Args:
        rollout: The tokens.
        gamma_token: Discount a token, in [0, 1].
        gamma_turn: Discount a turn, in [0, 1]; RAGEN's ``high_level_gamma``.
        lam: In [0, 1], for both levels.

    Returns:
        Advantages, not whitened, and returns ``A_t + v_t`` on every action token.
    """
    values, ends = rollout.values, rollout.turn_ends.bool()
    a_k = _scan(rollout.rewards, values, ends, gamma_turn, lam)
    seeded = torch.where(ends, a_k + values.detach(), rollout.rewards)
    mask = rollout.mask.bool()
    advantages = _scan(seeded, values, mask, gamma_token, lam, ends)
    return _estimate(advantages, values, mask)


def _scan(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float,
    lam: float,
    ends: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the recursion of `gae` from the right; past a step in `ends` all is 0."""
    rewards, values = rewards.detach(), values.detach()
    advantages = torch.zeros_like(values)
    v_tp1 = a_tp1 = torch.zeros_like(values[..., 0]) if values.shape[-1] else values
    for t in reversed(range(values.shape[-1])):
        r_t, v_t, acts_t = rewards[..., t], values[..., t], mask[..., t]
        if ends is not None:
            v_tp1 = torch.where(ends[..., t], 0.0, v_tp1)
            a_tp1 = torch.where(ends[..., t], 0.0, a_tp1)
        delta_t = r_t + gamma * v_tp1 - v_t
        a_t = delta_t + gamma * lam * a_tp1
        advantages[..., t] = torch.where(acts_t, a_t, 0.0)
        v_tp1 = torch.where(acts_t, v_t, v_tp1)
        a_tp1 = torch.where(acts_t, a_t, a_tp1)
    return advantages


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Turns:
    """A rollout with one column a turn; the last column holds what is in no turn."""

    rewards: torch.Tensor
    """[B, K] float, sum over the turn."""
    values: torch.Tensor
    """[B, K] float, before the turn's first action token."""
    exists: torch.Tensor
    """[B, K] bool."""
    index: torch.Tensor
    """[B, T] int, the column of each token."""
    starts: torch.Tensor
    """[B, T] bool, whether the token is the first action token of its turn."""


def _turns(rollout: Rollout) -> _Turns:
    rewards, values = torch.atleast_2d(rollout.rewards, rollout.values.detach())
    mask, ends = torch.atleast_2d(rollout.mask.bool(), rollout.turn_ends.bool())
    counts = ends.sum(dim=-1, keepdim=True)
    spare = int(counts.max())
    before = ends.cumsum(dim=-1) - ends.long()
    index = torch.where(mask, before, spare)
    position = torch.arange(ends.shape[-1], device=ends.device).expand_as(index)
    empty = values.new_zeros(len(ends), spare + 1)
    first = empty.long().scatter_reduce_(
        -1, index, position, "amin", include_self=False
    )
    return _Turns(
        rewards=empty.scatter_add(-1, index, rewards.to(values.dtype)),
        values=values.gather(-1, first),
        exists=torch.arange(spare + 1, device=ends.device) < counts,
        index=index,
        starts=mask & (position == first.gather(-1, index)),
    )


def _estimate(
    advantages: torch.Tensor, values: torch.Tensor, asked: torch.Tensor
) -> Estimate:
    returns = torch.where(asked, advantages + values.detach(), 0.0)
    return Estimate(advantages=advantages, returns=returns, value_mask=asked)


def _suffix_sum(flags: torch.Tensor) -> torch.Tensor:
    """Return how many flags stand at or after each position."""
    return flags.long().flip(-1).cumsum(-1).flip(-1)


def _check_rewards(rewards: torch.Tensor, mask: torch.Tensor) -> None:
    if not rewards.isfinite().all():
        raise InvalidSpec("a reward is not finite; mend the environment that gave it")
    stray = (rewards != 0) & ~mask
    if stray.any():
        raise InvalidSpec(
            f"{int(stray.sum())} rewards lie on tokens that are no step; put a turn's "
            "reward on its last action token"
        )
