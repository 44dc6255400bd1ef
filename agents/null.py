"""Null: says nothing, and shows that doing nothing scores nothing."""

from collections.abc import Mapping
from typing import Any

from ragen_bench.agent import Agent, Reply
from ragen_bench.registry import register_agent


@register_agent("null")
class Null(Agent):
    """Every reply is empty."""

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        """Say nothing."""
        return Reply(text="")
