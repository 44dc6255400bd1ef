"""From one number an action token to one number: the four means of the trade.

A mean divides by a `Denominator` that was counted over the whole batch, so that the
gradients of micro-batches and of ranks add up to the same however the batch was split.
"""

import dataclasses
from typing import Literal

import torch

from ragen_bench.errors import InvalidSpec

Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denominator:
    """What a loss is divided by, counted over the whole batch.

    With several ranks, `total` is the sum of the ranks' own, and gradients are summed
    over ranks; where they are averaged instead, multiply the loss by the world size.
    """

    mode: Aggregation
    total: float
    """Tokens, sequences, or sequences times the constant; at least 0."""
    lengths: torch.Tensor
    """[S] float, action tokens of each sequence of this rank."""


def denominator(
    sequence_ids: torch.Tensor, mode: Aggregation, constant: float | None = None
) -> Denominator:
    """Count what `aggregate` divides by, from all action tokens of the batch.

    A sequence without an action token is not counted.

    Args:
        sequence_ids: [N] int, the sequence of each action token of the whole batch (of
            this rank), from 0.  Segments of one trajectory share an id.
        mode: ``"token-mean"`` (DAPO, arXiv 2503.14476), ``"seq-mean-token-mean"``
            (GRPO, arXiv 2402.03300, eq. 3), ``"seq-mean-token-sum"``, or ``"constant"``
            (Dr. GRPO, arXiv 2503.20783), the sum of a sequence over a fixed length.
        constant: The fixed length, above 0; for ``"constant"`` only.

    Raises:
        InvalidSpec: The mode is unknown, or the constant is missing, out of place or
            not above 0.
    """
    if (mode == "constant") != (constant is not None):
        raise InvalidSpec(
            f"constant is {constant!r} for mode {mode!r}; the mode "
            "'constant' needs one, no other takes one"
        )
    if constant is not None and constant <= 0:
        raise InvalidSpec(f"constant is {constant!r}; it must be above 0")
    lengths = torch.bincount(sequence_ids).float()
    sequences = int((lengths > 0).sum())
    if mode == "token-mean":
        total = float(len(sequence_ids))
    elif mode in ("seq-mean-token-mean", "seq-mean-token-sum"):
        total = float(sequences)
    elif mode == "constant" and constant is not None:
        total = sequences * constant
    else:
        raise InvalidSpec(
            f"no aggregation {mode!r}; known are 'token-mean', "
            "'seq-mean-token-mean', 'seq-mean-token-sum' and 'constant'"
        )
    return Denominator(mode=mode, total=total, lengths=lengths)


def aggregate(
    values: torch.Tensor, sequence_ids: torch.Tensor, over: Denominator
) -> torch.Tensor:
    """Return one number from the tokens of a micro-batch.

    The numbers of micro-batches that make up a batch sum to that of the batch, however
    it was split, even within a sequence.

    Args:
        values: [N] float, a term of the loss at each action token.
        sequence_ids: [N] int, the sequence of each, as the denominator counts them.
        over: Counted over the whole batch.

    Returns:
        Scalar float.

    Raises:
        InvalidSpec: The shapes differ, or the batch has no action token.
    """
    if values.ndim != 1 or values.shape != sequence_ids.shape:
        raise InvalidSpec(
            f"values {tuple(values.shape)} for sequence ids "
            f"{tuple(sequence_ids.shape)}; want 1-D over action tokens"
        )
    if over.total <= 0:
        raise InvalidSpec("the batch has no action token; skip the step")
    if over.mode == "seq-mean-token-mean":
        values = values / over.lengths.to(values)[sequence_ids]
    return values.sum() / over.total
