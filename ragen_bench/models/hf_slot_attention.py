"""Attention over slots: keys and values in one block, a slot a conversation."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.integrations import sdpa_attention

from ragen_bench.models.hf_cache import Layout

NAME = "ragen_bench_slots"
_ROUND = 64


class Slots:
    """Keys and values of all conversations, and which tokens each slot holds.

    Args:
        layout: Of the model.
        count: Conversations that keep theirs at the same time.
    """

    def __init__(self, layout: Layout, count: int) -> None:
        self.layout = layout
        self.count = count
        self.capacity = 0
        """Tokens that each slot has room for."""
        self.block = torch.empty(0)
        """(layers, 2, slots, heads, capacity, width)."""
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        """Ids whose keys and values a slot holds."""
        self.taken = [0] * count
        """How often a slot was given to another conversation."""
        self.used_at = [0] * count
        self._clock = 0

    def reserve(self, length: int) -> None:
        """Make room for so many tokens in every slot."""
        if length <= self.capacity:
            return
        capacity = -(-max(length, self.capacity * 3 // 2) // _ROUND) * _ROUND
        layout = self.layout
        block = torch.zeros(
            (layout.layers, 2, self.count, layout.heads, capacity, layout.width),
            dtype=layout.dtype,
            device=layout.device,
        )
        if self.capacity:
            block[..., : self.capacity, :].copy_(self.block)
        self.block, self.capacity = block, capacity

    def touch(self, slot: int) -> None:
        """Remember that a slot is in use now."""
        self._clock += 1
        self.used_at[slot] = self._clock

    def copy(self, source: int, target: int, length: int) -> None:
        """Let a slot begin with the first tokens of another one."""
        self.block[:, :, target, :, :length] = self.block[:, :, source, :, :length]
        self.tokens[target] = self.tokens[source][:length]

    def clear(self) -> None:
        """Forget all tokens, as after a change of the weights."""
        self.tokens = [[] for _ in range(self.count)]
        self.taken = [times + 1 for times in self.taken]


class SlotPass:
    """What the attention of all layers needs of one pass.

    Args:
        slots: All conversations.
        rows: Slot of each row of the batch.
        positions: (rows, new) positions of the new tokens.
    """

    def __init__(
        self, slots: Slots, rows: Sequence[int], positions: torch.Tensor
    ) -> None:
        self.slots = slots
        self.positions = positions
        device = slots.layout.device
        self.rows = torch.tensor(rows, device=device)
        self.length = int(positions.max()) + 1
        first, last = min(rows), max(rows) + 1
        # Rows that lie close together are attended to where they are: the slots
        # between them cost less than a copy of the others.
        close = 2 * (last - first) <= 3 * len(rows)
        self.span = slice(first, last) if close else None
        self.places = self.rows - first
        seen = torch.arange(self.length, device=device) <= positions[:, :, None]
        groups = slots.layout.groups
        mask = seen.repeat(1, groups, 1)[:, None]  # (rows, 1, groups * new, T)
        if self.span is not None and last - first > len(rows):
            whole = mask.new_ones((last - first, *mask.shape[1:]))
            whole[self.places] = mask
            mask = whole
        self.mask = mask

    def attend(
        self, layer: int, query: torch.Tensor, both: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write keys and values into the slots and attend to all of each row's.

        Args:
            layer: Index.
            query: (rows, heads, new, width).
            both: (2, rows, key-value heads, new, width).
            scale: Factor of the scores.

        Returns:
            (rows, new, heads, width).
        """
        block = self.slots.block[layer]
        # Indices apart from each other come first: (rows, new, 2, heads, width).
        block[:, self.rows[:, None], :, self.positions] = both.permute(1, 3, 0, 2, 4)
        count, heads, new, width = both.shape[1:]
        query = query.reshape(count, heads, -1, width)
        if self.span is None:
            held = block[:, self.rows, :, : self.length]
        else:
            held = block[:, self.span, :, : self.length]
        spread = held.shape[1] > count
        if spread:
            whole = query.new_zeros((held.shape[1], *query.shape[1:]))
            whole[self.places] = query
            query = whole
        out = torch.nn.functional.scaled_dot_product_attention(
            query, held[0], held[1], attn_mask=self.mask, scale=scale
        )
        if spread:
            out = out[self.places]
        return out.reshape(count, -1, new, width).transpose(1, 2)


def slot_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    slot_pass: SlotPass | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend, as an attention function of ``transformers``; see `packed_attention`."""
    if slot_pass is None:
        plain: tuple[torch.Tensor, None] = sdpa_attention.sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return plain
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    both = torch.stack((key, value))
    return slot_pass.attend(int(module.layer_idx), query, both, scale), None


def register() -> None:
    """Make this attention known to ``transformers``."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, slot_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
