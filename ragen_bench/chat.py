"""`ChatAgent`: an agent that asks a language model, the whole conversation at hand."""

from collections.abc import Mapping
from typing import Any, ClassVar

from ragen_bench.agent import Agent, AgentClass, Reply, Task
from ragen_bench.errors import InvalidSpec
from ragen_bench.model import Conversation, Message, Model, Sampling
from ragen_bench.parsing import whole
from ragen_bench.prompts import (
    ContextPolicy,
    Protocol,
    assemble,
    sha256_of_messages,
    shot_messages,
    system_text,
)


class ChatAgent(Agent):
    """Rules, shots and the past turns to one question; the model's text is the reply.

    Args:
        model: The language model.
        context: How much of the past a prompt holds (see `ContextPolicy`).
        temperature: 0 is greedy.
        top_p: Nucleus sampling, in (0, 1].
        max_tokens: New tokens of a reply; None takes the class's default.
    """

    agent_class: ClassVar[AgentClass] = "llm"
    protocol: ClassVar[Protocol]
    default_max_tokens: ClassVar[int]

    def __init__(
        self,
        model: Model,
        *,
        context: str = "full",
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_tokens: int | None = None,
    ) -> None:
        if not temperature >= 0:
            raise InvalidSpec(f"temperature is {temperature!r}, but must be at least 0")
        if not 0 < top_p <= 1:
            raise InvalidSpec(f"top_p is {top_p!r}, but must be in (0, 1]")
        tokens = self.default_max_tokens if max_tokens is None else max_tokens
        if type(tokens) is not int or tokens < 1:
            raise InvalidSpec(f"max_tokens is {tokens!r}, but must be at least 1")
        self.model = model
        self.context = ContextPolicy.parse(context)
        self.sampling = Sampling(
            temperature=temperature, top_p=top_p, max_tokens=tokens
        )

    def reset(self, task: Task) -> None:
        """Begin an episode with an empty conversation."""
        super().reset(task)
        system = system_text(task, self.protocol, task.prompt)
        self._opening = [
            Message(role="system", content=system),
            *shot_messages(task.shots, self.protocol),
        ]
        self._turns: list[Message] = []
        self._conversation = Conversation(key=task.key, seed=task.seed)

    def messages(self, observation: str) -> tuple[list[Message], int]:
        """Return the prompt for an observation, and how many turns it leaves out."""
        return assemble(
            self._opening,
            [*self._turns, Message(role="user", content=observation)],
            self.context,
            shots=bool(self.task.shots),
            reserve=self.sampling.max_tokens,
            count=self.model.count_tokens,
        )

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        """Ask the model."""
        conversation = self._conversation
        conversation.messages, cut = self.messages(observation)
        completion = await self.model.generate(conversation, self.sampling)
        conversation.turn += 1
        self._turns.append(Message(role="user", content=observation))
        self._turns.append(
            Message(
                role="assistant",
                # As the record has it, so that the prompt can be rebuilt from that.
                content=whole(completion.text),
                token_ids=completion.token_ids or None,
                thinking=completion.thinking,
            )
        )
        return Reply(
            text=completion.text,
            thinking=completion.thinking,
            finish_reason=completion.finish_reason,
            usage=completion.usage,
            prompt_sha256=sha256_of_messages(conversation.messages),
            context_cut=cut,
            details=completion.details,
        )
