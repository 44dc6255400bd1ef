"""Oracle: plays the exact optimum, the policy behind every ceiling."""

from collections.abc import Mapping
from typing import Any

from ragen_bench.agent import Agent, Reply
from ragen_bench.prompts import answer_text
from ragen_bench.registry import register_agent


@register_agent("oracle")
class Oracle(Agent):
    """Sees the environment itself, so its entries are reference lines.

    Args:
        reasoning: Whether a reply opens with the environment's own explanation.
    """

    privileged = True

    def __init__(self, *, reasoning: bool = False) -> None:
        self.reasoning = reasoning

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        """Answer with the plan of the environment's solver."""
        assert self.task.env is not None
        core = self.task.env.core
        limit = min(self.task.max_actions_per_turn, core.actions_left)
        plan = core.plan(limit, info["turns_left"])
        names = [core.actions[action] for action in plan]
        if not self.reasoning:
            return Reply(text=answer_text(names, "", "direct"))
        return Reply(text=answer_text(names, core.explain(plan), "think_act"))
