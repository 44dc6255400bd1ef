"""A model whose replies are counted, for the tests of prices, budgets and caches."""

import asyncio
from collections.abc import Mapping
from typing import Any

import ragen_bench as rb
from ragen_bench.errors import ProviderError
from ragen_bench.model import Usage
from ragen_bench.registry import MODELS
from ragen_bench.seeding import Stream

USAGE = Usage(input_tokens=100, cached_tokens=40, output_tokens=10, reasoning_tokens=4)
TABLE = """
date = 2026-11-30
currency = "EUR"

[models.paid]
input = 1000
cached_input = 500
output = 10000
per_request = 0.01

[models."some/model"]
input = 1
output = 2
"""


class Paid(rb.Model):
    """Goes right when greedy; at a temperature it goes right, or waits and says why.

    Args:
        usage: Of each reply.
        fails: A part of the episodes' keys that are answered with an error.
        facts: What it says of itself.
    """

    calls = 0
    """Replies that all objects gave."""

    def __init__(self, usage: Usage, fails: str, facts: Mapping[str, Any]) -> None:
        self.name = "paid"
        self.usage = usage
        self.fails = fails
        self.facts = facts

    async def generate(
        self, conversation: rb.Conversation, sampling: rb.Sampling
    ) -> rb.Completion:
        await asyncio.sleep(0)
        Paid.calls += 1
        if self.fails and self.fails in conversation.key:
            raise ProviderError("503 after 5 tries")
        text = "<answer>Right</answer>"
        if sampling.temperature:
            stream = Stream(conversation.turn_seed())
            why = stream.below(10**9)
            text = f"{why} <answer>{stream.choice(('Right', 'Wait'))}</answer>"
        return rb.Completion(
            text=text,
            thinking="so be it",
            token_ids=(7, 8),
            logprobs=(-0.1, -1 / 3),
            usage=self.usage,
            details={"id": f"r{Paid.calls}"},
        )

    def describe(self) -> Mapping[str, Any]:
        return self.facts


def load(
    rest: str,
    *,
    known: bool = True,
    fails: str = "",
    template: str = "a",
    revision: str = "1",
    deaf: int = 0,
) -> Paid:
    """Return the model ``paid``; ``deaf`` is an argument that changes no fact."""
    facts = {"template": template, "revision": revision}
    return Paid(USAGE if known else Usage(), fails, facts)


MODELS.add("paid", load)
