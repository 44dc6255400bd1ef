"""Attention over rows of different lengths, packed one after the other.

One forward pass takes the new tokens of all rows, packed without padding: one token
of a row that decodes, many of a row whose prompt is read.  The linear layers see one
long row; here the keys and values go into each row's own cache, in place, and every
row attends to that.  What rows share is attended to once for all of them, and both
parts are joined by their log-sum-exp, which is exact.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.integrations import sdpa_attention

from ragen_bench.models.hf_cache import Cache

NAME = "ragen_bench_packed"
_UNKNOWN = ("softcap", "s_aux", "position_bias", "sinks")


@dataclasses.dataclass(slots=True)
class Segment:
    """The new tokens of one row in a packed pass."""

    cache: Cache
    tokens: list[int]
    mask: torch.Tensor | None = None
    """Added to the scores, (1, 1, groups * new, old + new); None for one token."""


class Pack:
    """The segments of one forward pass and what all layers need of them.

    Args:
        segments: Rows in the order of their tokens; each cache has room for them.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.layout = segments[0].cache.layout
        self.sizes = [len(segment.tokens) for segment in segments]
        starts = [len(segment.cache) for segment in segments]
        spans = [
            range(start, start + size)
            for start, size in zip(starts, self.sizes, strict=True)
        ]
        tokens = [token for segment in segments for token in segment.tokens]
        positions = [position for span in spans for position in span]
        self.tokens = torch.tensor([tokens], device=self.layout.device)
        self.positions = torch.tensor([positions], device=self.layout.device)
        for segment in segments:
            if len(segment.tokens) > 1:
                segment.mask = _causal(segment)
        self.shared = self._share()

    def _share(self) -> list[tuple[Cache, int, torch.Tensor | None]]:
        """Return base, length and packed positions of each set of rows that share.

        The positions are None where all rows share the same.
        """
        found: dict[tuple[int, int], tuple[Cache, list[int]]] = {}
        start = 0
        for segment, size in zip(self.segments, self.sizes, strict=True):
            cache = segment.cache
            if cache.base is not None and cache.shared:
                key = (id(cache.base), cache.shared)
                _, places = found.setdefault(key, (cache.base, []))
                places.extend(range(start, start + size))
            start += size
        device = self.tokens.device
        return [
            (
                base,
                length,
                None if len(places) == start else torch.tensor(places, device=device),
            )
            for (_, length), (base, places) in found.items()
        ]

    def commit(self) -> None:
        """Count the tokens as part of their caches, after the forward pass."""
        for segment in self.segments:
            segment.cache.tail.extend(segment.tokens)


def _causal(segment: Segment) -> torch.Tensor:
    layout = segment.cache.layout
    new, old = len(segment.tokens), len(segment.cache.tail)
    mask = torch.full(
        (new, old + new), float("-inf"), dtype=layout.dtype, device=layout.device
    ).triu_(old + 1)
    return mask.repeat(layout.groups, 1)[None, None]


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    pack: Pack | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend, as an attention function of ``transformers``.

    Args:
        module: The attention layer, which knows its ``layer_idx``.
        query: (1, heads, tokens, width).
        key: (1, key-value heads, tokens, width), of the new tokens alone.
        value: Like ``key``.
        attention_mask: For passes without a pack; a pack knows what may be seen.
        scaling: Factor of the scores, the square root of 1 / width by default.
        pack: The rows; without it this is PyTorch's own attention, so that the same
            network serves others too.
        **options: What else a model hands over; some models must be refused.

    Returns:
        (1, tokens, heads, width), and no weights.

    Raises:
        NotImplementedError: The model's attention is of another kind.
    """
    if pack is None:
        plain: tuple[torch.Tensor, None] = sdpa_attention.sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            **options,
        )
        return plain
    _refuse(options, pack.layout.max_context)
    layer = int(module.layer_idx)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    own, own_lse = _attend_to_tails(query, key, value, pack, layer, scale)
    if pack.shared:
        own = _join_shared(query, own, own_lse, pack, layer, scale)
    return own.reshape(1, query.shape[2], query.shape[1], query.shape[3]), None


def _refuse(options: Mapping[str, Any], max_context: int) -> None:
    for name in _UNKNOWN:
        if options.get(name) is not None:
            raise NotImplementedError(f"attention with {name!r}")
    window = options.get("sliding_window")
    if window is not None and window < max_context:
        raise NotImplementedError(f"attention with a window of {window} tokens")


def _attend_to_tails(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pack: Pack,
    layer: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write keys and values into the caches and let every row see its own tail.

    Returns:
        Output (tokens, key-value heads, groups, width) and its log-sum-exp (tokens,
        key-value heads, groups).
    """
    heads, width, groups = key.shape[1], key.shape[3], pack.layout.groups
    queries = torch.split(query.view(heads, groups, -1, width), pack.sizes, 2)
    news = torch.split(torch.stack((key, value)), pack.sizes, 3)
    outs, sums = [], []
    for segment, size, q, new in zip(
        pack.segments, pack.sizes, queries, news, strict=True
    ):
        old = len(segment.cache.tail)
        both = segment.cache.layers[layer]
        both.narrow(3, old, size).copy_(new)
        k, v = both.narrow(3, 0, old + size).unbind(0)
        q = q.reshape(1, heads, groups * size, width)
        out, lse = attend(q, k, v, segment.mask, scale)
        if size > 1:
            out = out.view(heads, groups, size, width).permute(2, 0, 1, 3)
            lse = lse.view(heads, groups, size).permute(2, 0, 1)
        outs.append(out)
        sums.append(lse)
    return torch.cat(outs), torch.cat(sums)


def _join_shared(
    query: torch.Tensor,
    own: torch.Tensor,
    own_lse: torch.Tensor,
    pack: Pack,
    layer: int,
    scale: float,
) -> torch.Tensor:
    """Return the output over shared heads and tails together."""
    heads, groups, width = own.shape[1:]
    for base, length, places in pack.shared:
        both = base.layers[layer].narrow(3, 0, length)
        k, v = both.unbind(0)
        q = query if places is None else query.index_select(2, places)
        count = q.shape[2]
        q = q.reshape(1, heads, groups * count, width)
        out, lse = attend(q, k, v, None, scale)
        out = out.view(heads, groups, count, width).permute(2, 0, 1, 3)
        lse = lse.view(heads, groups, count).permute(2, 0, 1)
        if places is None:
            weight = torch.sigmoid(lse - own_lse).unsqueeze(-1).to(own.dtype)
            return torch.lerp(own, out, weight)
        weight = torch.sigmoid(lse - own_lse[places]).unsqueeze(-1).to(own.dtype)
        own[places] = torch.lerp(own[places], out, weight)
    return own


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(scale * q k + mask) v and the log-sum-exp of the scores.

    Args:
        query: (1, heads, queries, width).
        key: (1, heads, keys, width).
        value: Like ``key``.
        mask: Added to the scores, broadcast over heads.
        scale: Factor of the scores.

    Returns:
        (1, heads, queries, width) of the query's type; (1, heads, queries) of
        float32.
    """
    if query.device.type == "cpu":
        return attend_on_cpu(query, key, value, mask, scale)
    return attend_by_matmul(query, key, value, mask, scale)


def attend_on_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `attend` does, by the kernel of PyTorch that also gives the sum."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, False, attn_mask=mask, scale=scale
    )
    return out, lse


def attend_by_matmul(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `attend` does, on any device."""
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.unsqueeze(-1)).to(value.dtype)
    return torch.matmul(weights, value), lse
