"""`PolicyEngine`: a model of the harness whose weights a trainer renews."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_bench.model import Model


class PolicyEngine(Model):
    """A model that plays a policy in training.

    Episodes ask it as they ask any model, each on its own; it must give prompt ids,
    sampled ids and one log-probability for each of these.
    """

    version: int = 0
    """That of the weights it plays with."""
    precision: str = "float32"
    """In what it computes, as PyTorch calls it."""

    @abc.abstractmethod
    def sync(self, weights: Mapping[str, Any], version: int) -> None:
        """Play with new weights; whatever was cached of the old ones is forgotten.

        No request may be in flight.

        Args:
            weights: Tensors by the names of the plain model, adapters merged, tied
                ones under each of their names.
            version: Counts the weights.
        """

    @abc.abstractmethod
    def score(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token but the first, in nats, [n - 1].

        They are those of temperature 1, by the weights and caches that replies are
        sampled with.

        Args:
            ids: At least two tokens.
        """

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Free what the engine holds."""
