"""`PlainDecoder`: replies one by one, by the network's own ``generate``.

It serves models that packed passes cannot: sliding windows, state spaces and the
like.  Nothing is kept between two replies.
"""

import collections
from collections.abc import Set
from typing import Any

import torch

from ragen_bench.models.batching import Request
from ragen_bench.models.chat_template import Chat
from ragen_bench.models.hf_sampler import ReplyInProgress, sample


class PlainDecoder:
    """Decodes one request at a time.

    Args:
        network: A causal language model.
        chat: Decodes tokens.
        end_ids: Ids that end a reply.
    """

    def __init__(self, network: Any, chat: Chat, end_ids: Set[int]) -> None:
        # The folder's own settings, such as a repetition penalty, are not asked for.
        network.generation_config = type(network.generation_config)(pad_token_id=0)
        self._network = network
        self._chat = chat
        self._end_ids = end_ids
        self._request: Request | None = None

    @property
    def busy(self) -> bool:
        """Whether a reply is due."""
        return self._request is not None

    def admit(self, waiting: "collections.deque[Request]") -> None:
        """Take one request, if none is taken yet."""
        if self._request is None:
            self._request = waiting.popleft()

    def step(self) -> None:
        """Answer the request."""
        if self._request is None or self._request.future.cancelled():
            self._request = None
            return
        request = self._request
        reply = ReplyInProgress(
            request.sampling, request.stream, self._chat, self._end_ids
        )
        generate(self._network, request, reply)
        self._request = None
        request.resolve(reply.draft(cached_tokens=0))

    def clear(self) -> None:
        """Forget nothing: nothing is kept."""

    def abandon(self, error: BaseException) -> None:
        """Fail the request."""
        request, self._request = self._request, None
        if request is not None:
            request.fail(error)


def generate(network: Any, request: Request, reply: ReplyInProgress) -> None:
    """Fill a reply by the network's own ``generate``.

    Sampling and stopping stay ours: each step draws a token from the logits, leaves
    no other to choose, and tells whether the reply ends with it.
    """

    def draw(input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        tokens, logprobs = sample(logits, [reply])
        reply.push(tokens[0], logprobs[0])
        only = torch.full_like(logits, float("-inf"))
        only[0, tokens[0]] = 0.0
        return only

    def stop(
        input_ids: torch.Tensor, scores: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        ended = reply.finish_reason is not None or request.future.cancelled()
        return torch.tensor([ended], device=input_ids.device)

    ids = torch.tensor([request.ids], device=network.device)
    network.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.sampling.max_tokens,
        do_sample=False,
        logits_processor=[draw],
        stopping_criteria=[stop],
    )
