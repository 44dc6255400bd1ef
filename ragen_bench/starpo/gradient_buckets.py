"""Gradient norms by how much the returns of a group differ.

RAGEN-2 explains template collapse with them: groups whose returns hardly differ have
little to learn from, so there the regularisers' gradients outweigh the task's.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch

from ragen_bench.errors import InvalidSpec

Terms: TypeAlias = Mapping[str, torch.Tensor]
"""Terms of the loss by name, such as ``"task"``, ``"entropy"`` and ``"kl"``: scalars,
summed over tokens and not divided by any number of them."""
Losses: TypeAlias = Callable[[Sequence[Hashable]], Iterable[Terms]]
"""From group ids to the terms of one micro-batch after another."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """How much a group holds."""

    samples: int
    """Trajectories."""
    tokens: int
    """Action tokens."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Groups of alike spread, and what they would do to the weights."""

    groups: tuple[Hashable, ...]
    low: float
    """Smallest spread."""
    high: float
    """Largest spread."""
    samples: int
    tokens: int
    norms: Mapping[str, float]
    """Term to the L2 norm of its summed gradient over all parameters."""

    @property
    def per_sample(self) -> Mapping[str, float]:
        """The norms, divided by the number of trajectories."""
        return {k: v / max(1, self.samples) for k, v in self.norms.items()}

    @property
    def per_token(self) -> Mapping[str, float]:
        """The norms, divided by the number of action tokens."""
        return {k: v / max(1, self.tokens) for k, v in self.norms.items()}


def by_quantile(
    spreads: Mapping[Hashable, float], count: int = 6
) -> tuple[tuple[Hashable, ...], ...]:
    """Return the groups in parts of equal size, from small to large spread.

    Args:
        spreads: Group to the deviation of its returns; equal ones keep their order.
        count: Parts, at least 1; with fewer groups, each is a part.  Where they do not
            divide, the first parts are larger by one.

    Raises:
        InvalidSpec: The count is below 1, or a spread is not finite.
    """
    if count < 1:
        raise InvalidSpec(f"count is {count!r}, but must be at least 1")
    ranked = _ranked(spreads)
    count = min(count, len(ranked))
    parts, start = [], 0
    for index in range(count):
        size = len(ranked) // count + (index < len(ranked) % count)
        parts.append(tuple(ranked[start : start + size]))
        start += size
    return tuple(parts)


def by_edges(
    spreads: Mapping[Hashable, float], edges: Sequence[float] = (1, 2, 3, 4, 5)
) -> tuple[tuple[Hashable, ...], ...]:
    """Return the groups between fixed spreads; empty parts are left out.

    Args:
        spreads: Group to the deviation of its returns.
        edges: Rising; a spread that equals an edge belongs above it.

    Raises:
        InvalidSpec: The edges do not rise, or a spread is not finite.
    """
    if list(edges) != sorted(set(edges)):
        raise InvalidSpec(f"edges are {list(edges)!r}, but must rise")
    parts: list[list[Hashable]] = [[] for _ in range(len(edges) + 1)]
    for group in _ranked(spreads):
        parts[bisect.bisect_right(edges, spreads[group])].append(group)
    return tuple(tuple(part) for part in parts if part)


def gradient_buckets(
    losses: Losses,
    parameters: Iterable[torch.nn.Parameter],
    spreads: Mapping[Hashable, float],
    sizes: Mapping[Hashable, GroupSize],
    parts: Sequence[Sequence[Hashable]] | None = None,
) -> tuple[Bucket, ...]:
    """Return the gradient norms of each term of the loss in each bucket.

    Every term is differentiated by itself; the ``grad`` of the parameters stays as it
    is.

    Args:
        losses: Called once a bucket.
        parameters: Those that require a gradient are asked.
        spreads: Group to the deviation of its returns.
        sizes: Group to what it holds.
        parts: The buckets; None is `by_quantile`'s six.

    Returns:
        One bucket a part, in the order of the parts.

    Raises:
        InvalidSpec: A group has no size or spread, or a term is no scalar.
    """
    wanted = [one for one in parameters if one.requires_grad]
    found = []
    for groups in by_quantile(spreads) if parts is None else parts:
        for group in groups:
            if group not in spreads or group not in sizes:
                raise InvalidSpec(f"group {group!r} has no spread or no size")
        inside = [spreads[group] for group in groups]
        found.append(
            Bucket(
                groups=tuple(groups),
                low=min(inside, default=math.nan),
                high=max(inside, default=math.nan),
                samples=sum(sizes[group].samples for group in groups),
                tokens=sum(sizes[group].tokens for group in groups),
                norms=_norms(losses(groups), wanted),
            )
        )
    return tuple(found)


def _norms(
    batches: Iterable[Terms], parameters: Sequence[torch.nn.Parameter]
) -> dict[str, float]:
    """Return the norm of each term's gradient, summed over the micro-batches."""
    sums: dict[str, list[torch.Tensor]] = {}
    for terms in batches:
        left = len(terms)
        for name, loss in terms.items():
            left -= 1
            if loss.numel() != 1:
                raise InvalidSpec(
                    f"loss term {name!r} has the shape {tuple(loss.shape)}; want a sum"
                )
            total = sums.setdefault(
                name,
                [
                    torch.zeros_like(
                        one, dtype=torch.promote_types(one.dtype, torch.float32)
                    )
                    for one in parameters
                ],
            )
            if not loss.requires_grad:
                continue
            # Terms share one graph, which the last of them may free.
            gradients = torch.autograd.grad(
                loss, parameters, retain_graph=left > 0, allow_unused=True
            )
            for held, gradient in zip(total, gradients, strict=True):
                if gradient is not None:
                    held += gradient
    return {name: _norm(total) for name, total in sums.items()}


def _norm(gradients: Sequence[torch.Tensor]) -> float:
    squares = [float(gradient.double().square().sum()) for gradient in gradients]
    return math.sqrt(math.fsum(squares))


def _ranked(spreads: Mapping[Hashable, float]) -> list[Hashable]:
    for group, spread in spreads.items():
        if not math.isfinite(spread):
            raise InvalidSpec(f"group {group!r} has the spread {spread!r}")
    return sorted(spreads, key=lambda group: spreads[group])
