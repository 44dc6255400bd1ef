"""`SlotDecoder`: replies for many short conversations, one batched pass at a time.

All keys and values lie in one block of memory with a slot for each conversation, so
that a pass attends to all rows by one call.  It is the faster decoder where networks
are small and rows many, as in training; `PackedDecoder` needs less memory where
prompts are long and of different lengths.
"""

import collections
import dataclasses
from collections.abc import Set
from typing import Any

import torch

from ragen_bench.models.batching import Request, as_failure
from ragen_bench.models.chat_template import Chat
from ragen_bench.models.hf_cache import Layout, common_prefix
from ragen_bench.models.hf_graphs import graphs_of
from ragen_bench.models.hf_sampler import ReplyInProgress, sample
from ragen_bench.models.hf_slot_attention import NAME, SlotPass, Slots, register

PREFILL_TOKENS = 16384
_HEAD = 16
_PATIENCE = 4


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
