"""Key-value caches: one per conversation, and shared ones for common prompt heads.

A `Cache` owns the keys and values of its tail, and may stand on the first tokens of
another cache, its base, which never changes again.  Episodes of one cell all begin
with the same rules and shots: these are computed once, kept once, and attended to
once for the whole batch.
"""

import collections
import dataclasses
import os
import weakref
from collections.abc import Iterable, Sequence

import torch

_ROUND = 64
_LEAST_BYTES = 2 * 2**30
_CPU_SHARE = 0.25
_GPU_SHARE = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """What caches and packed passes need to know of a model; all layers are alike."""

    layers: int
    heads: int
    """Key-value heads."""
    groups: int
    """Query heads for each key-value head."""
    width: int
    max_context: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.layers * self.heads * self.width * int(self.dtype.itemsize)


class Cache:
    """Keys and values of the tokens that one conversation has fed so far.

    Args:
        layout: Of the model.
        base: A finished cache without a base of its own.
        shared: How many of its first tokens this cache begins with.
    """

    def __init__(
        self, layout: Layout, base: "Cache | None" = None, shared: int = 0
    ) -> None:
        self.layout = layout
        self.base = base
        self.shared = shared
        self.tail: list[int] = []
        """Ids of the tokens behind the shared ones."""
        self.capacity = 0
        """Tokens that the tail has room for."""
        self.layers: list[torch.Tensor] = []
        """Per layer keys and values, (2, 1, heads, capacity, width)."""
        self.used_at = 0

    def __len__(self) -> int:
        return self.shared + len(self.tail)

    def common(self, ids: Sequence[int]) -> int:
        """Return how many leading tokens this cache and a prompt share."""
        if self.base is not None:
            head = min(common_prefix(self.base.tail, ids), self.shared)
            if head < self.shared:
                return head
        return self.shared + common_prefix(self.tail, ids[self.shared :])

    def crop(self, length: int) -> None:
        """Forget all but the first tokens."""
        self.shared = min(self.shared, length)
        del self.tail[length - self.shared :]

    def reserve(self, length: int) -> None:
        """Make room for so many tokens, shared ones included."""
        needed = length - self.shared
        if needed <= self.capacity:
            return
        capacity = -(-max(needed, self.capacity * 3 // 2) // _ROUND) * _ROUND
        layout = self.layout
        buffer = torch.empty(
            (layout.layers, 2, 1, layout.heads, capacity, layout.width),
            dtype=layout.dtype,
            device=layout.device,
        )
        layers = list(buffer.unbind(0))
        kept = len(self.tail)
        if kept:
            for new, old in zip(layers, self.layers, strict=True):
                new[..., :kept, :].copy_(old[..., :kept, :])
        self.layers, self.capacity = layers, capacity

    def clear(self) -> None:
        """Free everything; the cache can be filled anew."""
        self.base, self.shared, self.capacity = None, 0, 0
        self.tail, self.layers = [], []

    def head(self, length: int) -> "Cache":
        """Return a copy of the first tokens, as a cache without a base."""
        copy = Cache(self.layout)
        copy.reserve(length)
        base = min(self.shared, length)
        for index, layer in enumerate(copy.layers):
            if self.base is not None:
                layer[..., :base, :].copy_(self.base.layers[index][..., :base, :])
            if length > base:
                own = self.layers[index][..., : length - base, :]
                layer[..., base:length, :].copy_(own)
        shared = self.base.tail[:base] if self.base is not None else []
        copy.tail = [*shared, *self.tail[: length - base]]
        return copy


class CacheStore:
    """All caches of a model, within a budget of tokens, the oldest freed first.

    Args:
        layout: Of the model.
        budget: Tokens that all caches together may have room for.  What is being
            decoded may exceed it, by one request and its head at most.
        grain: Shared heads are multiples of so many tokens, so that prompts which
            part a few tokens apart still share the same head.
    """

    def __init__(self, layout: Layout, budget: int, grain: int = 16) -> None:
        self.layout = layout
        self.budget = budget
        self._grain = grain
        self._heads: list[Cache] = []
        self._recent: collections.deque[list[int]] = collections.deque(maxlen=64)
        self._all: weakref.WeakSet[Cache] = weakref.WeakSet()
        self._clock = 0

    def new(self, base: Cache | None = None, shared: int = 0) -> Cache:
        """Return an empty cache that stands on a shared head."""
        return self.track(Cache(self.layout, base, shared))

    def track(self, cache: Cache) -> Cache:
        """Count a cache in the budget, and note that it was used now."""
        self._clock += 1
        cache.used_at = self._clock
        self._all.add(cache)
        return cache

    def size(self) -> int:
        """Return the tokens that all living caches have room for."""
        return sum(cache.capacity for cache in list(self._all))

    def find(self, ids: Sequence[int]) -> tuple[Cache | None, int]:
        """Return the shared head that covers most of a prompt, and how much of it."""
        best, length = None, 0
        for head in self._heads:
            common = min(common_prefix(head.tail, ids), len(ids) - 1)
            common -= common % self._grain
            if common > length:
                best, length = head, common
        if best is not None:
            self.track(best)
        return best, length

    def donor(self, ids: Sequence[int]) -> tuple[Cache | None, int]:
        """Return the cache of any kind that covers most of a prompt, and how much."""
        best, length = None, 0
        for cache in list(self._all):
            common = cache.common(ids)
            if common > length:
                best, length = cache, common
        return best, length

    def note(self, ids: list[int]) -> None:
        """Remember the first prompt of a conversation, to see what prompts share."""
        self._recent.append(ids)

    def worth_sharing(self, ids: list[int], waiting: Iterable[list[int]]) -> int:
        """Return the length of the head that a prompt best shares with others.

        Best is what saves most tokens: its length times the prompts that have it.

        Args:
            ids: The prompt.
            waiting: Other prompts, beside those noted before.
        """
        lengths = []
        for other in [*self._recent, *waiting]:
            common = min(common_prefix(other, ids), len(ids) - 1)
            lengths.append(common - common % self._grain)
        lengths.sort(reverse=True)
        saved = {length: length * rank for rank, length in enumerate(lengths, 2)}
        return max(saved, key=lambda length: (saved[length], length), default=0)

    def add_head(self, head: Cache) -> None:
        """Keep a finished cache for others to stand on."""
        self._heads.append(head)

    def clear(self) -> None:
        """Free all caches, as after a change of the weights."""
        for cache in list(self._all):
            cache.clear()
        self._heads.clear()
        self._recent.clear()

    def make_room(self, tokens: int, busy: Sequence[Cache]) -> bool:
        """Free old caches until so many tokens fit; return whether they do.

        Caches of idle conversations go first, then shared heads that nobody uses.
        """
        held = self.size()
        bases = {id(cache.base) for cache in busy}
        kept = {id(cache) for cache in [*busy, *self._heads]}
        idle = [cache for cache in list(self._all) if id(cache) not in kept]
        unused = [head for head in self._heads if id(head) not in bases]
        for group in (idle, unused):
            for cache in sorted(group, key=lambda cache: cache.used_at):
                if held + tokens <= self.budget:
                    return True
                held -= cache.capacity
                cache.clear()
                if group is unused:
                    self._heads.remove(cache)
        return held + tokens <= self.budget


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading items two sequences share."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def default_budget(layout: Layout) -> int:
    """Return the tokens that all caches may hold unless somebody says otherwise."""
    if layout.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(layout.device)
        return int(free * _GPU_SHARE) // layout.bytes_per_token
    # Long prompts of many episodes that do not fit are read anew every turn.
    size = max(_LEAST_BYTES, int(_free_memory() * _CPU_SHARE))
    return size // layout.bytes_per_token


def _free_memory() -> int:
    """Return the bytes of memory that are free, 0 where the system does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
