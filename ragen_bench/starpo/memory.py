"""How much memory a training needs, by arithmetic alone."""

import dataclasses

from ragen_bench.starpo.logprobs import CHUNK

PROCESS = 420 * 2**20
"""Bytes of Python with PyTorch and transformers loaded, on a CPU."""
_FLOAT = 4
_ADAM = 8
"""AdamW's two moments."""
_KERNEL = 420 * 2**10
"""Bytes of a kernel that PyTorch makes for a shape of a batch, about."""
_LOGITS = 5
"""Arrays of a chunk's size that live at once in the head's backward pass."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder and what is trained of it."""

    plain: int
    """Parameters of the model itself."""
    adapter: int
    """Parameters of an adapter, 0 without one; the model itself is fixed then."""
    critic: int
    """Parameters of the critic, 0 without one."""
    layers: int
    width: int
    """Of hidden states."""
    query: int
    """Width of all queries of a token."""
    keys: int
    """Width of all keys of a token, and of all values."""
    inner: int
    """Width within the feed-forward part."""
    vocabulary: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is done with it."""

    conversations: int
    """Played at once."""
    context: int
    """Tokens of the longest prompt with its reply."""
    passed: int
    """Padded tokens of a training pass, where replies are as long as they may be."""
    reference: bool
    """Whether a copy of the first model is kept."""
    engine_bytes: int
    """Of a number in the engine's copy: 4 or 2."""
    compute_bytes: int
    """Of a number in a training pass."""
    kernels: int = 0
    """Kernels that PyTorch keeps, 0 on a GPU."""
    reserved: int | None = None
    """Bytes that the engine takes for keys and values whatever they need."""


def estimate(shape: Shape, work: Work) -> dict[str, int]:
    """Return the bytes of a training, by what they hold, and their sum.

    With P parameters of the model, A of the adapter, C of the critic, T = A with an
    adapter and else P trained ones, L layers, widths D of hidden states, Q of queries,
    K of keys and I of the feed-forward part, V words, e and c bytes of a number of the
    engine and of a pass:

    - weights: ``4 (P + A + C)``, again ``4 (P + A)`` for the reference of ``kl``, and
      ``e P`` for the engine's copy; an adapter is merged in a passing copy, ``4 P``.
    - optimizer: ``8 (T + C)``, two moments of AdamW.
    - gradients: ``4 max(T, C)``; the policy's are gone before the critic's come.
    - keys and values: ``2 L K e`` a token, for as many tokens as all conversations
      could have if each were as long as the longest, or what the engine reserves.
    - logits: ``5 * 4 V`` a token, for `CHUNK` tokens or one of each conversation; they
      are made anew in the backward pass, so no more live at once.
    - activations: ``c L (8 D + 3 Q + 4 K + 4 I)`` a token of a padded pass, without
      checkpointing: two norms (3 D each), queries, keys and values turned and repeated
      for the attention, its output twice, and the four arrays of a gated feed-forward
      part; and ``c (2 D + 3 I)`` for what is on its way in the backward pass.
    - kernels: 420 KiB each of those that PyTorch keeps on a CPU, for every size that
      the batch of the engine has had and six matrices of a layer, 1,024 at most.
    - the process itself, 420 MiB on a CPU.

    It is a bound rather than a mean: replies are as long as they may be, and what a
    padded pass shares at its beginning is not taken off; what an allocator keeps is not
    added.  Peaks on a CPU, each of a process of its own, against this sum: 1,021 MiB
    against 1,115 (tiny-cpu on FrozenLake, three iterations), 838 against 1,089 (on the
    bandit), 2,119 against 2,276 (width 512, 6 layers, critic and reference, passes of
    4,096 tokens), 4,788 against 5,848 (width 768, 8 layers, passes of 8,192).
    """
    s, w = shape, work
    trained = s.adapter or s.plain
    policy = s.plain + s.adapter
    weights = _FLOAT * (policy * (2 if w.reference else 1) + s.critic)
    weights += w.engine_bytes * s.plain + (_FLOAT * s.plain if s.adapter else 0)
    per_token = s.layers * (8 * s.width + 3 * s.query + 4 * s.keys + 4 * s.inner)
    passing = 2 * s.width + 3 * s.inner
    held = 2 * s.layers * s.keys * w.engine_bytes
    found = {
        "weights": weights,
        "optimizer": _ADAM * (trained + s.critic),
        "gradients": _FLOAT * max(trained, s.critic),
        "keys and values": (
            w.conversations * w.context * held if w.reserved is None else w.reserved
        ),
        "logits": _LOGITS * _FLOAT * s.vocabulary * max(CHUNK, w.conversations),
        "activations": w.compute_bytes * (per_token + passing) * w.passed,
        "kernels": _KERNEL * w.kernels,
        "process": PROCESS,
    }
    return {**found, "sum": sum(found.values())}
