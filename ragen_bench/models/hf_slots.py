"""`SlotDecoder`: replies for many short conversations, one batched pass at a time.

All keys and values lie in one block of memory with a slot for each conversation, so
that a pass attends to all rows by one call.  It is the faster decoder where networks
are small and rows many, as in training; `PackedDecoder` needs less memory where
prompts are long and of different lengths.
"""

import collections
import dataclasses
from collections.abc import Sequence, Set
from typing import Any

import torch
from transformers.integrations import sdpa_attention

from ragen_bench.models.batching import Request, as_failure
from ragen_bench.models.chat_template import Chat
from ragen_bench.models.hf_cache import Layout, common_prefix
from ragen_bench.models.hf_graphs import graphs_of
from ragen_bench.models.hf_sampler import ReplyInProgress, sample

NAME = "ragen_bench_slots"
PREFILL_TOKENS = 16384
_ROUND = 64
_HEAD = 16
_PATIENCE = 4


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


@dataclasses.dataclass(slots=True)
class Place:
    """What a conversation keeps between two replies: its slot, while it has it."""

    slot: int
    taken: int


@dataclasses.dataclass(slots=True, eq=False)
class Row:
    """A request that is being answered."""

    request: Request
    reply: ReplyInProgress
    slot: int
    pending: list[int]
    """Tokens to feed next: the rest of the prompt, then the newest token."""
    cached_tokens: int


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


class SlotDecoder:
    """Decodes with `slot_attention`.

    Args:
        network: A causal language model that packed passes could serve too; it is
            set to that attention.
        chat: Decodes tokens.
        end_ids: Ids that end a reply.
        layout: Of the network.
        batch_size: Rows at once, and conversations that keep what they computed.
        reuse: Whether a conversation keeps its slot between two replies.
        share: Whether a slot may begin with a copy of another one's beginning.
        refill: Whether requests join while others are being answered.
    """

    def __init__(
        self,
        network: Any,
        chat: Chat,
        end_ids: Set[int],
        layout: Layout,
        *,
        batch_size: int,
        reuse: bool = True,
        share: bool = True,
        refill: bool = True,
    ) -> None:
        register()
        network.set_attn_implementation(NAME)
        self._network = network
        self._chat = chat
        self._end_ids = end_ids
        self._slots = Slots(layout, batch_size)
        self._graphs = graphs_of(network, self._slots)
        self._reuse, self._share, self._refill = reuse, share, refill
        self._rows: list[Row] = []
        self._heads: dict[tuple[int, ...], int] = {}
        self._free = set(range(batch_size))
        self._delayed = 0
        self._deferred = False

    @property
    def busy(self) -> bool:
        """Whether replies are being decoded."""
        return bool(self._rows)

    def clear(self) -> None:
        """Forget all keys and values, as after a change of the weights."""
        self._slots.clear()
        self._heads.clear()

    def admit(self, waiting: "collections.deque[Request]") -> None:
        """Take as many requests from the left as there are slots for."""
        if self._rows and not (self._refill or self._deferred):
            return
        reading = {
            key
            for row in self._rows
            if len(row.pending) > 1
            for key in self._read_by(row)
        }
        later: list[Request] = []
        while waiting and len(self._rows) < self._slots.count:
            request = waiting.popleft()
            if request.future.cancelled():
                continue
            keys = {tuple(request.ids[:_HEAD]), tuple(request.ids)}
            if not reading.isdisjoint(keys) and self._place(request) is None:
                # Another row is reading it, or its head, and can then be copied.
                later.append(request)
                continue
            try:
                row = self._start(request)
            except Exception as error:
                request.fail(as_failure(error))
                continue
            reading.update(self._read_by(row))
            self._rows.append(row)
        waiting.extendleft(reversed(later))
        self._deferred = bool(later)

    def _read_by(self, row: Row) -> list[tuple[int, ...]]:
        """Return the beginnings that others can copy once a new row has been read."""
        if not self._share:
            return []
        whole = tuple(row.request.ids)
        return [whole] if row.cached_tokens >= _HEAD else [whole, whole[:_HEAD]]

    def step(self) -> None:
        """Feed one pass, or two, and resolve the requests that they finish."""
        left = [row for row in self._rows if row.request.future.cancelled()]
        if left:
            self._free.update(row.slot for row in left)
            self._rows = [row for row in self._rows if row not in left]
        reading = [row for row in self._rows if len(row.pending) > 1]
        writing = [row for row in self._rows if len(row.pending) == 1]
        if reading:
            # A pass costs much even for few rows: let some come together.
            self._delayed += 1
            if len(reading) * 8 >= len(writing) or self._delayed > _PATIENCE:
                self._delayed = 0
                self._feed(self._within_budget(reading))
        if writing:
            self._feed(writing)

    def abandon(self, error: BaseException) -> None:
        """Fail every request that is being decoded."""
        rows, self._rows = self._rows, []
        for row in rows:
            self._free.add(row.slot)
            row.request.fail(error)

    def _within_budget(self, rows: list[Row]) -> list[Row]:
        """Return the leading rows that fit into one padded pass, at least one."""
        longest, kept = 0, 0
        for row in rows:
            longest = max(longest, len(row.pending))
            if kept and (kept + 1) * longest > PREFILL_TOKENS:
                break
            kept += 1
        return rows[:kept]

    def _feed(self, rows: list[Row]) -> None:
        slots = self._slots
        rows = sorted(rows, key=lambda row: row.slot)
        width = max(len(row.pending) for row in rows)
        logits = None
        if width == 1 and self._graphs is not None:
            tokens = [row.pending[0] for row in rows]
            logits = self._graphs.logits([row.slot for row in rows], tokens)
        if logits is None:
            logits = self._plain_pass(rows, width)
        for row in rows:
            slots.tokens[row.slot].extend(row.pending)
            slots.touch(row.slot)
            if len(row.pending) > 1:
                whole = tuple(row.request.ids)
                self._heads.setdefault(whole[:_HEAD], row.slot)
                self._heads[whole] = row.slot
        self._push(rows, logits)

    def _plain_pass(self, rows: list[Row], width: int) -> torch.Tensor:
        """Return the logits behind the last pending token of each row."""
        slots = self._slots
        starts = [len(slots.tokens[row.slot]) for row in rows]
        slots.reserve(max(starts) + width)
        device = slots.layout.device
        # What stands behind a short row is written too, and overwritten before any
        # later token can attend to it.
        ids = [row.pending + [0] * (width - len(row.pending)) for row in rows]
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(
            width, device=device
        )
        ends = torch.tensor([len(row.pending) - 1 for row in rows], device=device)
        return self._logits(
            torch.tensor(ids, device=device),
            SlotPass(slots, [row.slot for row in rows], positions),
            ends,
        )

    def _logits(
        self, ids: torch.Tensor, slot_pass: SlotPass, ends: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits behind the last new token of each row."""
        base = self._network.base_model
        with torch.inference_mode():
            hidden = base(
                input_ids=ids,
                position_ids=slot_pass.positions,
                # A mask of four dimensions keeps the network from making its own.
                attention_mask=slot_pass.mask,
                use_cache=False,
                slot_pass=slot_pass,
            ).last_hidden_state
            last = hidden[torch.arange(len(ends), device=ends.device), ends]
            logits: torch.Tensor = self._network.get_output_embeddings()(last)
        return logits

    def _push(self, rows: list[Row], logits: torch.Tensor) -> None:
        tokens, logprobs = sample(logits, [row.reply for row in rows])
        finished = set()
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if row.reply.push(token, logprob):
                finished.add(row)
            else:
                row.pending = [token]
        if finished:
            self._rows = [row for row in self._rows if row not in finished]
        for row in finished:
            self._free.add(row.slot)
            if self._reuse:
                row.request.cache = Place(row.slot, self._slots.taken[row.slot])
            row.request.resolve(row.reply.draft(row.cached_tokens))

    def _start(self, request: Request) -> Row:
        slots = self._slots
        ids = request.ids
        place = self._place(request)
        slot = self._free_slot() if place is None else place.slot
        known = min(common_prefix(slots.tokens[slot], ids), len(ids) - 1)
        if place is None:
            known = 0
            donor = self._donor(ids)
            if donor is not None:
                known = min(common_prefix(slots.tokens[donor], ids), len(ids) - 1)
            if donor is not None and known >= _HEAD and donor != slot:
                slots.copy(donor, slot, known)
            elif donor != slot:
                known = 0
        slots.tokens[slot] = slots.tokens[slot][:known]
        slots.touch(slot)
        self._free.discard(slot)
        return Row(
            request=request,
            reply=ReplyInProgress(
                request.sampling, request.stream, self._chat, self._end_ids
            ),
            slot=slot,
            pending=ids[known:],
            cached_tokens=known,
        )

    def _donor(self, ids: list[int]) -> int | None:
        """Return a slot that holds this prompt, or at least one that begins like it."""
        if not self._share:
            return None
        whole = tuple(ids)
        return self._heads.get(whole, self._heads.get(whole[:_HEAD]))

    def _place(self, request: Request) -> Place | None:
        """Return where a conversation still has what it computed before."""
        place = request.cache
        if not isinstance(place, Place) or place.slot >= self._slots.count:
            return None
        return place if self._slots.taken[place.slot] == place.taken else None

    def _free_slot(self) -> int:
        slots = self._slots
        slot = min(self._free, key=lambda slot: (slots.used_at[slot], slot))
        slots.taken[slot] += 1
        gone = [head for head, owner in self._heads.items() if owner == slot]
        for head in gone:
            del self._heads[head]
        return slot
