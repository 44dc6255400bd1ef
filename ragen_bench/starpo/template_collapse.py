"""Template collapse: does the reasoning still depend on the prompt?

RAGEN-2's diagnosis.  Each of N pieces of reasoning z_i, sampled after its own prompt
x_i, is scored after every prompt x_j by teacher forcing, l_j(z_i) = log p(z_i | x_j).
If it fits any prompt as well as its own, it is a template, however varied it looks:

| entropy | information | reasoning is |
|---|---|---|
| high | high | diverse |
| high | low | a template: the collapse that entropy does not show |
| low | high | compressed, but grounded |
| low | low | collapsed altogether |

Bias.  With z_i drawn from p(. | x_i) itself at temperature 1, the estimate of the
mutual information by the sequence has no bias for *these N prompts, drawn evenly*;
that is at most ln N, so of an information near ln N or above only so much is seen:
compare estimates of one N.  Single estimates scatter and may be below 0.
Reasoning sampled at another temperature, by older weights, or filtered is another
distribution than the one that scores it, and adds a bias of either sign.  The
estimate per token averages over tokens before it mixes prompts; it does not depend on
length, but is no mutual information, and ln N does not bound it.

How a model scores is told in `ragen_bench.starpo.cross_scoring`.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ragen_bench.errors import InvalidSpec

Array: TypeAlias = npt.NDArray[np.float64]
Tokens: TypeAlias = Sequence[int]
Score: TypeAlias = Callable[[Tokens, Sequence[Tokens]], Sequence[float]]
"""Log-likelihoods, in nats, of several continuations after one prompt."""

RANKS = (1, 2, 4, 8)
"""Ranks at which retrieval is reported."""
Z_EPSILON = 1e-3
"""Added to the deviation that a z-score divides by; in nats."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Information:
    """Entropies and information in nats, of whole reasonings or by the token."""

    conditional_entropy: float
    """H(Z|X) = -mean of l_i(z_i)."""
    reasoning_entropy: float
    """H(Z) = -mean of the marginals."""
    mutual_information: float
    """The difference, H(Z) - H(Z|X)."""
    z_score: float
    """Mean of (l_i(z_i) - marginal) / (std of the marginals + 0.001)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """How often a piece of reasoning finds its own prompt."""

    accuracy: Mapping[int, float]
    """Rank k to the share whose prompt is among the k likeliest; identical prompts are
    one, and equal likelihoods share their ranks."""
    chance: Mapping[int, float]
    """The same for reasoning that tells nothing."""

    @property
    def above_chance(self) -> Mapping[int, float]:
        """Accuracy less chance."""
        return {k: self.accuracy[k] - self.chance[k] for k in self.accuracy}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCollapse:
    """What a probe of N pieces of reasoning found."""

    samples: int
    """N, the usable ones."""
    prompts: int
    """Different prompts among them."""
    valid_share: float
    """Share of usable samples among all."""
    bound: float
    """ln N in nats, which no mutual information by the sequence exceeds."""
    prompt_entropy: float
    """H(X) of the prompts as they were drawn: ln N less what identical ones take off;
    the tighter bound."""
    by_sequence: Information
    by_token: Information
    retrieval: Retrieval


def probe(
    scores: npt.ArrayLike,
    tokens: Sequence[int],
    prompts: Sequence[Hashable],
    asked: int | None = None,
) -> TemplateCollapse | None:
    """Return what the cross-scores of reasoning say.

    Args:
        scores: [N, N] float, nats; row i holds l_j(z_i) of reasoning i after prompt j.
        tokens: N counts of the reasonings' tokens, each at least 1.
        prompts: N identities; equal ones are one prompt.
        asked: Samples that were drawn, unusable ones included; None is N.

    Returns:
        The findings, or None without any sample.

    Raises:
        InvalidSpec: The shapes do not match, a score is NaN or its own prompt's is not
            finite, or a count is below 1.
    """
    matrix = _checked(scores, tokens, prompts)
    count = len(matrix)
    if count == 0:
        return None
    if asked is not None and asked < count:
        raise InvalidSpec(f"asked is {asked!r}, but {count} samples were scored")
    lengths = np.asarray(tokens, dtype=np.float64)
    classes = _numbered(prompts)
    shares = np.bincount(classes) / count
    return TemplateCollapse(
        samples=count,
        prompts=len(shares),
        valid_share=count / (asked or count),
        bound=math.log(count),
        prompt_entropy=float(-(shares * np.log(shares)).sum()) + 0.0,
        by_sequence=information(matrix),
        by_token=information(matrix / lengths[:, None]),
        retrieval=retrieval(matrix, prompts),
    )


def matched(scores: Array) -> Array:
    """Return the log-likelihood of each reasoning after its own prompt, [N]."""
    return np.diagonal(scores).copy()


def marginal(scores: Array) -> Array:
    """Return ``logsumexp_j l_j(z_i) - ln N`` for each reasoning i, [N]."""
    highest = scores.max(axis=1)
    summed = np.exp(scores - highest[:, None]).sum(axis=1)
    return np.asarray(highest + np.log(summed) - math.log(scores.shape[1]))


def information(scores: Array) -> Information:
    """Return entropies, mutual information and z-score of cross-scores [N, N]."""
    own, mixed = matched(scores), marginal(scores)
    # One sample has no deviation.
    deviation = float(mixed.std(ddof=1)) if len(mixed) > 1 else 0.0
    # The sum keeps zeros from being negative ones.
    return Information(
        conditional_entropy=float(-own.mean()) + 0.0,
        reasoning_entropy=float(-mixed.mean()) + 0.0,
        mutual_information=float((own - mixed).mean()) + 0.0,
        z_score=float((own - mixed).mean()) / (deviation + Z_EPSILON) + 0.0,
    )


def retrieval(
    scores: Array, prompts: Sequence[Hashable], ranks: Sequence[int] = RANKS
) -> Retrieval:
    """Return how often reasoning finds its own prompt among the different ones.

    Args:
        scores: [N, N] float, row i holds l_j(z_i).
        prompts: N identities.
        ranks: At which to report, each at least 1.
    """
    classes = _numbered(prompts)
    firsts = np.unique(classes, return_index=True)[1]
    choices = scores[:, firsts]  # [N, D]
    own = choices[np.arange(len(scores)), classes][:, None]
    # Copies of a prompt may be scored in batches of their own, and differ by rounding.
    noise = 1e-9 * np.maximum(1.0, np.abs(own))
    better = (choices > own + noise).sum(axis=1)
    equal = (np.abs(choices - own) <= noise).sum(axis=1)
    accuracy, chance = {}, {}
    for rank in ranks:
        accuracy[rank] = float(np.clip((rank - better) / equal, 0.0, 1.0).mean())
        chance[rank] = min(rank, len(firsts)) / len(firsts)
    return Retrieval(accuracy=accuracy, chance=chance)


def smoothed(previous: float | None, value: float, decay: float = 0.9) -> float:
    """Return RAGEN-2's moving average of z-scores after one more probe.

    Args:
        previous: The average before, None at the first probe.
        value: Of the new probe.
        decay: In [0, 1).
    """
    return value if previous is None else decay * previous + (1 - decay) * value


def cross_scores(
    score: Score, prompts: Sequence[Tokens], thoughts: Sequence[Tokens]
) -> Array:
    """Return l_j(z_i) of each reasoning i after each prompt j, [N, N].

    Args:
        score: Scores all thoughts after one prompt; each different prompt is asked for
            once.  `one_by_one` makes it of a function of one continuation.
        prompts: N prompts, up to where the reasoning begins.
        thoughts: N reasonings, the i-th sampled after the i-th prompt; each has a
            token.

    Raises:
        InvalidSpec: The numbers of prompts and thoughts differ, or one is empty.
    """
    if len(prompts) != len(thoughts):
        raise InvalidSpec(
            f"{len(prompts)} prompts for {len(thoughts)} thoughts; give one each"
        )
    if not all(map(len, prompts)) or not all(map(len, thoughts)):
        raise InvalidSpec("a prompt or thought is empty; leave such samples out")
    columns: dict[tuple[int, ...], Array] = {}
    for prompt in map(tuple, prompts):
        if prompt not in columns:
            columns[prompt] = np.asarray(score(prompt, thoughts), dtype=np.float64)
    if not columns:
        return np.zeros((0, 0))
    return np.stack([columns[tuple(prompt)] for prompt in prompts], axis=1)


def one_by_one(score: Callable[[Tokens, Tokens], float]) -> Score:
    """Return a scorer of many continuations that asks a scorer of one for each."""
    return lambda prompt, thoughts: [score(prompt, thought) for thought in thoughts]


def _numbered(prompts: Sequence[Hashable]) -> npt.NDArray[np.int64]:
    """Return the number of each prompt among the different ones, [N]."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(p, len(numbers)) for p in prompts], dtype=int)


def _checked(
    scores: npt.ArrayLike, tokens: Sequence[int], prompts: Sequence[Hashable]
) -> Array:
    matrix = np.asarray(scores, dtype=np.float64)
    count = len(tokens)
    if matrix.size == 0 and count == 0 and not prompts:
        return np.zeros((0, 0))
    if matrix.shape != (count, count) or len(prompts) != count:
        raise InvalidSpec(
            f"scores of shape {matrix.shape} for {count} token counts and "
            f"{len(prompts)} prompts; want [N, N], N and N"
        )
    if min(tokens) < 1:
        raise InvalidSpec(f"a thought has {min(tokens)} tokens; leave such samples out")
    if np.isnan(matrix).any() or not np.isfinite(np.diagonal(matrix)).all():
        raise InvalidSpec("a score is not a number; the model's logits overflowed")
    return matrix
