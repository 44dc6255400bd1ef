"""Random: uniform action names, the policy behind every floor."""

from collections.abc import Mapping
from typing import Any

from ragen_bench.agent import Agent, Reply, Task
from ragen_bench.registry import register_agent
from ragen_bench.seeding import Stream


@register_agent("random")
class Random(Agent):
    """Each reply holds ``max_actions_per_turn`` uniform action names."""

    def reset(self, task: Task) -> None:
        """Begin an episode with a stream of its own."""
        super().reset(task)
        self._stream = Stream(task.seed, "random")

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        """Draw a reply."""
        names = [
            self._stream.choice(self.task.action_names)
            for _ in range(self.task.max_actions_per_turn)
        ]
        return Reply(text=f"<answer>{' || '.join(names)}</answer>")
