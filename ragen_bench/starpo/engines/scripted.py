"""`ScriptedEngine`: written replies, or random tokens; for tests, without a network."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_bench.model import Completion, Conversation, Message, Sampling, Usage
from ragen_bench.models.chat_template import Chat
from ragen_bench.seeding import Stream
from ragen_bench.starpo.engines.engine import PolicyEngine


class ScriptedEngine(PolicyEngine):
    """Plays what is written, or draws every token uniformly from the vocabulary.

    What is written has log-probability 0, what is drawn -log of the vocabulary's size:
    that of a network whose head is zero.

    Args:
        tokenizer: Defines the form of prompts.
        replies: By turn, over and over; empty draws at random.
        max_context: Tokens of prompt and reply together.
    """

    def __init__(
        self, tokenizer: Any, replies: Sequence[str] = (), max_context: int = 4096
    ) -> None:
        self.name = "scripted"
        self.max_context: int = max_context
        self.weights: Mapping[str, Any] = {}
        """As last synced."""
        self._vocabulary = len(tokenizer)
        self._replies = tuple(replies)
        self._chat = Chat(tokenizer, [tokenizer.eos_token_id])

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message of a conversation."""
        _, prompt = self._chat.prompt(conversation.messages)
        room = min(sampling.max_tokens, self.max_context - len(prompt))
        if self._replies:
            text = self._replies[conversation.turn % len(self._replies)]
            ids = self._chat.encode_inside(text)[:room]
        else:
            stream = Stream(conversation.seed, "turn", conversation.turn)
            ids = []
            while len(ids) < room and not self._chat.end_ids.intersection(ids[-1:]):
                ids.append(stream.below(self._vocabulary))
        return Completion(
            text=self._chat.decode(ids),
            prompt_token_ids=tuple(prompt),
            token_ids=tuple(ids),
            logprobs=(self._logprob,) * len(ids),
            usage=Usage(input_tokens=len(prompt), output_tokens=len(ids)),
            finish_reason="length" if len(ids) == room else "stop",
        )

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a prompt of these messages has, template included."""
        return len(self._chat.encode(self._chat.render(messages)))

    def sync(self, weights: Mapping[str, Any], version: int) -> None:
        """Keep the weights, which change nothing."""
        self.weights = weights
        self.version = version

    def score(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token but the first, in nats, [n - 1]."""
        return [self._logprob] * (len(ids) - 1)

    @property
    def _logprob(self) -> float:
        return 0.0 if self._replies else -math.log(self._vocabulary)
