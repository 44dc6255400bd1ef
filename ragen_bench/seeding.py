"""One root seed, and independent random streams named after what they are for.

NumPy does not promise that a ``Generator`` draws the same numbers in its next
release (NEP 19), and a benchmark must.  A `Stream` is therefore BLAKE2b in
counter mode: the same on every platform, process and version, with a state that
is two integers.  Naming a new stream never moves the numbers of another one.
"""

import hashlib
import struct
from collections.abc import MutableSequence, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_WORDS = struct.Struct("<8Q")
_SCALE = 2.0**-53


def _key(seed: int, names: Sequence[str | int]) -> bytes:
    """Return 32 bytes that depend on the seed and on every name."""
    label = "/".join([str(seed), *(f"{type(n).__name__[0]}{n}" for n in names)])
    return hashlib.blake2b(label.encode(), digest_size=32).digest()


class Stream:
    """A stream of random numbers, fixed by a seed and a path of names.

    Args:
        seed: The root seed, any integer.
        *names: What the stream is for, such as ``"instance"`` or ``"noise", 3``.
    """

    __slots__ = ("_key", "_counter", "_words")

    def __init__(self, seed: int, *names: str | int) -> None:
        self._key = _key(seed, names)
        self._counter = 0
        self._words: list[int] = []

    def word(self) -> int:
        """Return a uniform integer in [0, 2**64)."""
        if not self._words:
            block = hashlib.blake2b(
                self._counter.to_bytes(8, "little"), key=self._key
            ).digest()
            self._words = list(_WORDS.unpack(block))
            self._counter += 1
        return self._words.pop()

    def random(self) -> float:
        """Return a uniform float in [0, 1) with 53 random bits."""
        return (self.word() >> 11) * _SCALE

    def below(self, n: int) -> int:
        """Return a uniform integer in [0, n), for 1 <= n < 2**32."""
        return (self.word() * n) >> 64

    def choice(self, items: Sequence[T]) -> T:
        """Return one item of a non-empty sequence, all equally likely."""
        return items[(self.word() * len(items)) >> 64]

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Put the items into a uniformly random order, in place."""
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """Return k different items in random order, for k <= len(items)."""
        pool = list(items)
        for i in range(k):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]

    def get_state(self) -> list[int | str]:
        """Return the state as JSON-able values."""
        return [self._key.hex(), self._counter, len(self._words)]

    def set_state(self, state: Sequence[int | str]) -> None:
        """Go on from a state that `get_state` returned."""
        key, counter, left = state
        self._key = bytes.fromhex(str(key))
        self._counter = int(counter)
        self._words = []
        if int(left):
            self._counter -= 1
            self.word()
            del self._words[int(left) :]


def child_seed(seed: int, *names: str | int) -> int:
    """Return an integer in [0, 2**63) that depends on the seed and every name."""
    return int.from_bytes(_key(seed, names)[:8], "little") >> 1


def child(seed: int, *names: str | int) -> np.random.Generator:
    """Return a NumPy generator for a named purpose.

    Use it where an agent or a trainer needs NumPy; environments draw from a
    `Stream`, whose numbers never change.
    """
    entropy = int.from_bytes(_key(seed, names)[:16], "little")
    return np.random.Generator(np.random.PCG64(entropy))
