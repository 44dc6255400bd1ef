"""What a StarPO iteration costs at least, from the shape of its model.

Matrix products and attention alone: two operations a multiply-add, three times the
forward pass for an update.  A decoding step has to read all weights and the keys and
values of everything before each token; that, not arithmetic, bounds it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ragen_bench.starpo.trajectories import Trajectory


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Peaks of a device."""

    flops: float
    """Operations a second in bfloat16."""
    bytes_per_s: float
    """Of its memory."""


H200 = Machine(flops=790e12, bytes_per_s=4.3e12)
"""As measured on one; its data sheet promises more."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Numbers of a Llama or Qwen2."""

    layers: int
    width: int
    query: int
    """Query heads times their width."""
    keys: int
    """Key heads times their width."""
    inner: int
    words: int

    @classmethod
    def of(cls, config: Any) -> "Shape":
        """Return the numbers of a configuration of ``transformers``."""
        head = getattr(config, "head_dim", None)
        head = head or config.hidden_size // config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            query=config.num_attention_heads * head,
            keys=config.num_key_value_heads * head,
            inner=config.intermediate_size,
            words=config.vocab_size,
        )

    @property
    def body(self) -> int:
        """Return the weights of all layers."""
        attention = 2 * self.width * (self.query + self.keys)
        return self.layers * (attention + 3 * self.width * self.inner)

    @property
    def head(self) -> int:
        """Return the weights of the head."""
        return self.width * self.words

    def forward(self, tokens: int, context: float) -> float:
        """Return the operations of the body, over tokens with so many before each."""
        return tokens * (2 * self.body + 4 * self.layers * self.query * context)


def update_seconds(
    shape: Shape, machine: Machine, kept: Sequence[Trajectory], critic: bool
) -> float:
    """Return the least time of an update, heads on sampled tokens alone."""
    operations = 0.0
    for one in kept:
        for segment in one.segments:
            body = shape.forward(len(segment.ids), len(segment.ids) / 2)
            operations += 3 * (body + 2 * shape.head * sum(segment.sampled))
            # Values before the update, and the critic's own.
            operations += 4 * body if critic else 0.0
    return operations / machine.flops


def rollout_seconds(
    shape: Shape, machine: Machine, played: Sequence[Trajectory]
) -> float:
    """Return the least time of a rollout in bfloat16.

    As many steps as the longest trajectory has sampled tokens; all that was read is
    computed once.
    """
    steps = max(one.sampled_tokens for one in played)
    moved = float(steps * 2 * (shape.body + shape.head))
    operations = 0.0
    for one in played:
        for segment in one.segments:
            middle = len(segment.ids) / 2
            sampled = sum(segment.sampled)
            moved += sampled * middle * 4 * shape.layers * shape.keys
            operations += shape.forward(len(segment.ids) - sampled, middle)
    return moved / machine.bytes_per_s + operations / machine.flops
