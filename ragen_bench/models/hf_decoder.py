"""`PackedDecoder`: replies for many conversations, one packed forward pass at a time.

Requests join between two passes and leave as soon as they are finished.  Prompts are
read in chunks beside the rows that decode already.
"""

import collections
import dataclasses
from collections.abc import Set
from typing import Any

import torch

from ragen_bench.models.batching import Request, as_failure
from ragen_bench.models.chat_template import Chat
from ragen_bench.models.hf_attention import Pack, Segment
from ragen_bench.models.hf_cache import Cache, CacheStore
from ragen_bench.models.hf_sampler import ReplyInProgress, sample

PREFILL_TOKENS = 512
_MIN_GAIN = 32
_PEERS = 64


@dataclasses.dataclass(slots=True, eq=False)
class Row:
    """A request that is being answered."""

    request: Request
    reply: ReplyInProgress
    cache: Cache
    pending: list[int]
    """Tokens to feed next: the rest of the prompt, then the newest token."""
    cached_tokens: int


class PackedDecoder:
    """Decodes with `packed_attention`; see there which models it can serve.

    Args:
        network: A causal language model that was set to that attention.
        chat: Decodes tokens.
        end_ids: Ids that end a reply.
        store: Holds all caches.
        batch_size: Rows at most.
        reuse: Whether caches outlive a reply.
    """

    def __init__(
        self,
        network: Any,
        chat: Chat,
        end_ids: Set[int],
        store: CacheStore,
        *,
        batch_size: int,
        reuse: bool = True,
    ) -> None:
        self._network = network
        self._chat = chat
        self._end_ids = end_ids
        self._store = store
        self._batch_size = batch_size
        self._reuse = reuse
        self._rows: list[Row] = []

    @property
    def busy(self) -> bool:
        """Whether replies are being decoded."""
        return bool(self._rows)

    def admit(self, waiting: "collections.deque[Request]") -> None:
        """Take as many requests from the left as there is room for, at least one."""
        while waiting and len(self._rows) < self._batch_size:
            request = waiting[0]
            busy = [row.cache for row in self._rows]
            needed = len(request.ids) + request.sampling.max_tokens
            if request.cache is not None:
                busy.append(request.cache)
                needed -= request.cache.shared + request.cache.capacity
            if not self._store.make_room(needed, busy) and self._rows:
                return
            waiting.popleft()
            if not request.future.cancelled():
                try:
                    self._rows.append(self._start(request, waiting))
                except Exception as error:
                    request.fail(as_failure(error))

    def step(self) -> None:
        """Feed one packed pass and resolve the requests that it finishes."""
        self._rows = [row for row in self._rows if not row.request.future.cancelled()]
        if not self._rows:
            return
        fed, segments, room = [], [], PREFILL_TOKENS
        for row in self._rows:
            count = min(len(row.pending), room) if len(row.pending) > 1 else 1
            if count:
                fed.append(row)
                segments.append(Segment(row.cache, row.pending[:count]))
                row.pending = row.pending[count:]
                room -= count if count > 1 else 0
        logits = forward(self._network, segments, [not row.pending for row in fed])
        ready = [row for row in fed if not row.pending]
        if ready:
            self._push(ready, logits)

    def abandon(self, error: BaseException) -> None:
        """Fail every request that is being decoded."""
        rows, self._rows = self._rows, []
        for row in rows:
            row.request.fail(error)

    def clear(self) -> None:
        """Forget what was computed with weights that are no more."""
        self._store.clear()

    def _push(self, rows: list[Row], logits: torch.Tensor) -> None:
        tokens, logprobs = sample(logits, [row.reply for row in rows])
        finished = []
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if row.reply.push(token, logprob):
                finished.append(row)
            else:
                row.pending = [token]
        for row in finished:
            self._rows.remove(row)
            if self._reuse:
                row.request.cache = row.cache
            row.request.resolve(row.reply.draft(row.cached_tokens))

    def _start(self, request: Request, waiting: "collections.deque[Request]") -> Row:
        cache = self._best_cache(request, waiting)
        cached = len(cache)
        cache.reserve(len(request.ids) + request.sampling.max_tokens)
        return Row(
            request=request,
            reply=ReplyInProgress(
                request.sampling, request.stream, self._chat, self._end_ids
            ),
            cache=cache,
            pending=request.ids[cached:],
            cached_tokens=cached,
        )

    def _best_cache(
        self, request: Request, waiting: "collections.deque[Request]"
    ) -> Cache:
        """Return a cache that holds as much of the prompt's head as is known."""
        ids, own = request.ids, request.cache
        if not self._reuse:
            return self._store.new()
        if own is None:
            others = [other.ids for other in waiting if other.cache is None]
            self._share_head(ids, others[:_PEERS])
            self._store.note(ids)
        base, shared = self._store.find(ids)
        known = min(own.common(ids), len(ids) - 1) if own is not None else 0
        if own is not None and known >= shared:
            own.crop(known)
            return self._store.track(own)
        return self._store.new(base, shared)

    def _share_head(self, ids: list[int], others: list[list[int]]) -> None:
        """Compute a head that others want too, if it is not there yet."""
        length = self._store.worth_sharing(ids, others)
        if length < self._store.find(ids)[1] + _MIN_GAIN:
            return
        self._store.make_room(length, [row.cache for row in self._rows])
        ids = ids[:length]
        donor, given = self._store.donor(ids)
        head = Cache(self._store.layout) if donor is None else donor.head(given)
        head.reserve(length)
        self._store.track(head)
        for start in range(given, length, PREFILL_TOKENS):
            chunk = ids[start : start + PREFILL_TOKENS]
            forward(self._network, [Segment(head, chunk)], [False])
        self._store.add_head(head)


def forward(network: Any, segments: list[Segment], wanted: list[bool]) -> torch.Tensor:
    """Feed a pack through a network and into the caches.

    Args:
        network: Was set to `packed_attention`.
        segments: New tokens; each cache has room for them.
        wanted: Whether the logits behind a segment's last token are asked for.

    Returns:
        (wanted segments, vocabulary); if none is wanted, one row that means nothing.
    """
    pack = Pack(segments)
    ends, end = [], -1
    for size, asked in zip(pack.sizes, wanted, strict=True):
        end += size
        if asked:
            ends.append(end)
    keep = torch.tensor(ends or [0], device=pack.tokens.device)
    with torch.inference_mode():
        logits: torch.Tensor = network(
            input_ids=pack.tokens,
            position_ids=pack.positions,
            # A mask of four dimensions keeps the network from making its own.
            attention_mask=pack.tokens[None, None],
            use_cache=False,
            logits_to_keep=keep,
            pack=pack,
        ).logits[0]
    pack.commit()
    return logits
