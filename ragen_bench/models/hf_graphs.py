"""`DecodeGraphs`: passes of one token a slot, recorded once and played back on a GPU.

A small network's pass keeps a GPU busy for less time than it takes to launch it, layer
by layer.  A CUDA graph launches all of it at once, but has a fixed shape: so a pass is
over the first so many slots, whether they wait for a token or not, and over so many
tokens of each.  What it writes into a slot that does not wait lies behind the slot's
tokens, where nothing is read before it is overwritten.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from ragen_bench.models.hf_slot_attention import Slots

Work: TypeAlias = Callable[[], torch.Tensor]
"""A pass: reads the grid's arrays, returns logits that the next call overwrites."""

_LEAST_SLOTS = 8
_TOKENS = 256


class Grid:
    """A pass over the first slots, which all get one token; see `SlotPass`.

    Args:
        slots: All conversations.
        count: Slots that take part.
        length: Tokens of each that are attended to at most.
    """

    def __init__(self, slots: "Slots", count: int, length: int) -> None:
        device = slots.layout.device
        self.ids = torch.zeros((count, 1), dtype=torch.long, device=device)
        self.positions = torch.zeros_like(self.ids)
        self._slots = torch.arange(count, device=device)
        self._block = slots.block
        self._groups = slots.layout.groups
        self._places = torch.arange(length, device=device)
        self._mask: torch.Tensor | None = None

    def logits(self, network: Any) -> torch.Tensor:
        """Return the logits behind the tokens, (count, vocabulary)."""
        seen = self._places <= self.positions[:, :, None]
        self._mask = seen.repeat(1, self._groups, 1)[:, None]
        hidden = network.base_model(
            input_ids=self.ids,
            position_ids=self.positions,
            attention_mask=self._mask,
            use_cache=False,
            slot_pass=self,
        ).last_hidden_state
        found: torch.Tensor = network.get_output_embeddings()(hidden[:, -1])
        return found

    def attend(
        self, layer: int, query: torch.Tensor, both: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write keys and values into the slots and attend; see `SlotPass.attend`."""
        block = self._block[layer]
        rows = self._slots[:, None]
        block[:, rows, :, self.positions] = both.permute(1, 3, 0, 2, 4)
        count, heads, _, width = both.shape[1:]
        held = block[:, :count, :, : len(self._places)]
        out = torch.nn.functional.scaled_dot_product_attention(
            query.reshape(count, heads, -1, width),
            held[0],
            held[1],
            attn_mask=self._mask,
            scale=scale,
        )
        return out.reshape(count, -1, 1, width).transpose(1, 2)


class DecodeGraphs:
    """Decoding passes of some slots, each shape recorded when it is first met.

    Args:
        network: Set to `slot_attention`; its weights may change in place.
        slots: All conversations.
        record: A pass to the same, played back.
    """

    def __init__(
        self, network: Any, slots: "Slots", record: Callable[[Work], Work]
    ) -> None:
        self._network = network
        self._slots = slots
        self._record = record
        self._made: dict[tuple[int, int], tuple[Grid, Work]] = {}
        self._block = slots.block
        self.broken: str | None = None
        """Why passes are not recorded any more."""

    def logits(self, rows: Sequence[int], tokens: Sequence[int]) -> torch.Tensor | None:
        """Return the logits behind one new token of some slots, (rows, vocabulary).

        Args:
            rows: The slots.
            tokens: The token of each.

        Returns:
            None where passes cannot be recorded: make a plain one.
        """
        if self.broken is not None:
            return None
        slots = self._slots
        count = _bucket(max(rows) + 1, slots.count)
        starts = [len(held) for held in slots.tokens[:count]]
        length = -(-(max(starts) + 1) // _TOKENS) * _TOKENS
        slots.reserve(length)
        if slots.block is not self._block:
            self._made.clear()
            self._block = slots.block
        ids = dict(zip(rows, tokens, strict=True))
        try:
            with torch.inference_mode():
                grid, work = self._pass(count, length, ids, starts)
                return work()[torch.tensor(list(rows), device=grid.ids.device)]
        except RuntimeError as problem:  # whatever a driver does not support
            self.broken = str(problem)
            return None

    def _pass(
        self, count: int, length: int, ids: dict[int, int], starts: list[int]
    ) -> tuple[Grid, Work]:
        """Return the pass of a shape, its arrays filled."""
        found = self._made.get((count, length))
        grid = Grid(self._slots, count, length) if found is None else found[0]
        grid.ids.copy_(torch.tensor([[ids.get(row, 0)] for row in range(count)]))
        grid.positions.copy_(torch.tensor(starts)[:, None])
        if found is None:
            # Recording runs the pass too, on the very numbers that it is for.
            found = grid, self._record(lambda: grid.logits(self._network))
            self._made[count, length] = found
        return found


def graphs_of(network: Any, slots: "Slots") -> DecodeGraphs | None:
    """Return the graphs of a network on a CUDA device, None elsewhere."""
    if slots.layout.device.type != "cuda":
        return None
    return DecodeGraphs(network, slots, record_cuda)


def record_cuda(work: Work) -> Work:
    """Return a pass as a CUDA graph, after the two runs that PyTorch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = work()

    def play_back() -> torch.Tensor:
        graph.replay()
        return logits

    return play_back


def _bucket(needed: int, most: int) -> int:
    """Return a power of two that is at least so many slots, or all there are."""
    size = _LEAST_SLOTS
    while size < needed:
        size *= 2
    return min(size, most)
