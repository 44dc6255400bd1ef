"""Which groups of rollouts are worth an update: StarPO-S's uncertainty filter.

Scores of groups go in, the ids of the kept groups come out, best first.  A group is
known by its id alone, never by where its trajectories stand in the batch, and its
score is taken over trajectories, never over tokens or segments.

Sources: StarPO-S is RAGEN, arXiv 2504.20073; the prefix rules, the treatment
of zeros and the loss scaling are those of RAGEN's second release (its file
``rollout_filter.py``).  Equal scores keep the order in which the groups appear, where
RAGEN leaves the choice to an unstable sort.
"""

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from ragen_bench.errors import InvalidSpec

Scores: TypeAlias = Mapping[Hashable, float]
"""One number a group, in the order of the batch."""
Kept: TypeAlias = tuple[Hashable, ...]
"""Ids of the groups that stay, best first."""
Rule: TypeAlias = Callable[[Scores], Kept]

LossScaling = Literal["none", "linear", "sqrt"]

NOISE = 1e-6
"""Returns that differ by less, relative to 1 or to the largest, count as equal."""
ZERO = 1e-10
"""Scores up to this size count as zero."""


def group_spread(
    returns: Sequence[float], groups: Sequence[Hashable], ddof: int = 1
) -> dict[Hashable, float]:
    """Return the standard deviation of the returns in each group.

    RAGEN, arXiv 2504.20073: ``U(s0) = Std(R)``, the deviation of the return over the
    rollouts of a prompt.

    Args:
        returns: One return a trajectory.
        groups: The group of each trajectory, in the same order.
        ddof: 1 divides by n - 1, as RAGEN's code does; 0 divides by n.

    Returns:
        Group id to spread, at least 0, in the order of first appearance.  A group of
        one trajectory has the spread 0, and so has one whose returns are equal but for
        rounding.

    Raises:
        InvalidSpec: The lengths differ, a return is not finite, or `ddof` is neither
            0 nor 1.
    """
    if len(returns) != len(groups):
        raise InvalidSpec(
            f"{len(returns)} returns for {len(groups)} group ids; give one id a return"
        )
    if ddof not in (0, 1):
        raise InvalidSpec(f"ddof is {ddof!r}; it must be 0 or 1")
    members: dict[Hashable, list[float]] = {}
    for value, group in zip(returns, groups, strict=True):
        if not math.isfinite(value):
            raise InvalidSpec(
                f"group {group!r} has the return {value!r}; returns must be finite"
            )
        members.setdefault(group, []).append(float(value))
    return {group: _deviation(values, ddof) for group, values in members.items()}


def _deviation(values: Sequence[float], ddof: int) -> float:
    low, high = min(values), max(values)
    if high - low <= NOISE * max(1.0, abs(low), abs(high)):
        return 0.0
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - ddof))


def scale_free(scores: Scores) -> dict[Hashable, float]:
    """Return the scores divided by the largest, so that rewards may have any unit.

    The softmax rule and the slack of the linear one depend on the unit of reward; on
    these scores they do not.  The result also is RAGEN's soft weight of a group.

    Returns:
        Group id to a score of at most 1; all 0 where no score is above zero.
    """
    _check(scores)
    top = max(scores.values(), default=0.0)
    if top <= ZERO:
        return dict.fromkeys(scores, 0.0)
    return {group: score / top for group, score in scores.items()}


def keep_all(scores: Scores) -> Kept:
    """Return every group, in the order of the batch."""
    _check(scores)
    return tuple(scores)


def keep_nonzero(scores: Scores) -> Kept:
    """Return the groups whose score is not zero, in the order of the batch."""
    _check(scores)
    return tuple(group for group, score in scores.items() if abs(score) > ZERO)


def keep_top_k(
    scores: Scores,
    share: float,
    *,
    smallest: bool = False,
    include_zero: bool = True,
    at_least: int = 1,
) -> Kept:
    """Return a fixed share of the groups, those of the largest score.

    Args:
        scores: Score of each group.
        share: Share of *all* groups, in (0, 1]; the count is rounded down.
        smallest: Whether the smallest scores are kept instead.
        include_zero: Whether groups of score zero may be kept.
        at_least: Groups to keep, if there are so many, where the share rounds to less.

    Raises:
        InvalidSpec: A score is not finite, or the share is outside (0, 1].
    """
    _check_share("share", share)
    ranked = _ranked(scores, smallest, include_zero)
    return tuple(ranked[: max(int(share * len(scores)), at_least)])


def keep_top_p_linear(
    scores: Scores,
    p: float,
    slack: float = 0.01,
    *,
    smallest: bool = False,
    include_zero: bool = True,
) -> Kept:
    """Return the shortest prefix of the ranking that holds the share `p` of the sum.

    The prefix ends as soon as its sum is at least ``p * total - slack``.  It never
    takes in a score of zero or below.  So nothing is kept where the ranking begins with
    one, as when all scores are 0.

    Args:
        scores: Score of each group.
        p: Share of the sum, in (0, 1]; 1 keeps every group that may be kept.
        slack: In the unit of the scores; RAGEN's ``selection_eps``.
        smallest: Whether the ranking begins with the smallest score.
        include_zero: Whether groups of score zero count as candidates at all.

    Raises:
        InvalidSpec: A score is not finite, or `p` is outside (0, 1].
    """
    _check_share("p", p)
    ranked = _ranked(scores, smallest, include_zero)
    if p >= 1:
        return _in_batch_order(scores, ranked)
    target = p * math.fsum(scores[group] for group in ranked) - slack
    kept: list[Hashable] = []
    mass = 0.0
    for group in ranked:
        if mass >= target or scores[group] <= 0:
            break
        mass += scores[group]
        kept.append(group)
    return tuple(kept)


def keep_top_p_softmax(
    scores: Scores, p: float, *, smallest: bool = False, include_zero: bool = True
) -> Kept:
    """Return the shortest prefix whose softmax probability is at least `p`.

    The softmax is over the raw scores, so the rule depends on the unit of reward: with
    returns in [0, 1] it hardly filters.  `scale_free` cures the dependence.

    Args:
        scores: Score of each group.
        p: Probability to reach, in (0, 1]; 1 keeps every group that may be kept.
        smallest: Whether small scores are the probable ones.
        include_zero: Whether groups of score zero count as candidates at all.

    Raises:
        InvalidSpec: A score is not finite, or `p` is outside (0, 1].
    """
    _check_share("p", p)
    ranked = _ranked(scores, smallest, include_zero)
    if p >= 1:
        return _in_batch_order(scores, ranked)
    sign = -1.0 if smallest else 1.0
    best = max((sign * scores[group] for group in ranked), default=0.0)
    weights = [math.exp(sign * scores[group] - best) for group in ranked]
    total = math.fsum(weights)
    mass = 0.0
    for count, weight in enumerate(weights, start=1):
        mass += weight / total
        if mass >= p:
            return tuple(ranked[:count])
    return tuple(ranked)


def keep_min_p(
    scores: Scores, share: float, *, smallest: bool = False, include_zero: bool = True
) -> Kept:
    """Return the groups whose score is at least a share of the largest.

    Args:
        scores: Score of each group.
        share: In (0, 1]; with `smallest`, scores up to the smallest divided by the
            share are kept instead.
        smallest: See `share`.
        include_zero: Whether groups of score zero count as candidates at all.

    Raises:
        InvalidSpec: A score is not finite, or the share is outside (0, 1].
    """
    _check_share("share", share)
    ranked = _ranked(scores, smallest, include_zero)
    if not ranked:
        return ()
    first = scores[ranked[0]]
    if smallest:
        limit = first / (share + ZERO) + ZERO
        return tuple(group for group in ranked if scores[group] <= limit)
    return tuple(group for group in ranked if scores[group] >= share * first - ZERO)


PRESETS: Mapping[str, Rule] = {
    "all": keep_all,
    "nonzero": keep_nonzero,
    # RAGEN's first release and paper: the most uncertain quarter, rounded down even
    # to nothing.
    "ragen-v1": functools.partial(keep_top_k, share=0.25, at_least=0),
    # The second release as its guide recommends it ...
    "ragen-v2": functools.partial(
        keep_top_p_linear, p=0.9, slack=0.01, include_zero=False
    ),
    # ... and as the scripts of its main table ran it.
    "ragen-v2-softmax": functools.partial(keep_top_p_softmax, p=0.9),
}
"""Rules by name; RAGEN's expect `group_spread` with ``ddof=1``."""


def loss_scale(kept_share: float, scaling: LossScaling) -> float:
    """Return the factor of a loss whose batch was filtered.

    A mean over fewer trajectories moves the weights further per trajectory; the factor
    takes that back, wholly or by its root.

    Args:
        kept_share: Share of the groups that were kept, in [0, 1].
        scaling: ``"none"`` gives 1, ``"linear"`` the share, ``"sqrt"`` its root.

    Raises:
        InvalidSpec: The share is outside [0, 1], or the scaling is unknown.
    """
    if not 0 <= kept_share <= 1:
        raise InvalidSpec(f"kept_share is {kept_share!r}; it must be in [0, 1]")
    if scaling == "none":
        return 1.0
    if scaling == "linear":
        return kept_share
    if scaling == "sqrt":
        return math.sqrt(kept_share)
    raise InvalidSpec(f"scaling is {scaling!r}; it must be 'none', 'linear' or 'sqrt'")


def _ranked(scores: Scores, smallest: bool, include_zero: bool) -> list[Hashable]:
    """Return the candidates, best first; equal ones in the order of the batch."""
    candidates = keep_all(scores) if include_zero else keep_nonzero(scores)
    sign = 1.0 if smallest else -1.0
    return sorted(candidates, key=lambda group: sign * scores[group])


def _in_batch_order(scores: Scores, groups: Iterable[Hashable]) -> Kept:
    members = set(groups)
    return tuple(group for group in scores if group in members)


def _check(scores: Scores) -> None:
    for group, score in scores.items():
        if not math.isfinite(score):
            raise InvalidSpec(
                f"group {group!r} has the score {score!r}; scores must be finite"
            )


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise InvalidSpec(f"{name} is {value!r}; it must be in (0, 1]")
