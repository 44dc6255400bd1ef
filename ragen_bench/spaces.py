"""`FreeText`: the Gymnasium space of any text, for observations and replies."""

import string
from typing import Any

from gymnasium.spaces import Text

_CHARSET = frozenset(string.printable)


class FreeText(Text):
    """Any string of up to ``max_length`` characters, of any alphabet.

    It stays a `gymnasium.spaces.Text` for ``isinstance``, batching and pickling.
    Membership costs O(1), because a language model may write any character, and
    `sample` draws one of ``samples``, so that a random player says legal things.

    Args:
        max_length: The greatest number of code points, at least 1.
        samples: The texts that `sample` draws from.
        seed: The seed of the space's own generator.
    """

    def __init__(
        self,
        max_length: int = 1_000_000,
        *,
        samples: tuple[str, ...] = ("",),
        seed: int | None = None,
    ) -> None:
        super().__init__(max_length, min_length=0, charset=_CHARSET, seed=seed)
        self.samples = samples

    def contains(self, x: Any) -> bool:
        """Return whether x is a string that is short enough."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return one of ``samples``; masks of the parent class are ignored."""
        return self.samples[int(self.np_random.integers(len(self.samples)))]

    def __repr__(self) -> str:
        return f"FreeText({self.max_length})"
