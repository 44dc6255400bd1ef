"""Logits to tokens, and tokens to a reply: greedy or nucleus sampling, where to stop.

Each reply draws from a stream of its own, one number a token, so that what else is in
the batch never moves its draws.
"""

from collections.abc import Sequence, Set

import torch

from ragen_bench.errors import InvalidSpec
from ragen_bench.model import FinishReason, Sampling
from ragen_bench.models.batching import Draft
from ragen_bench.models.chat_template import Chat
from ragen_bench.seeding import Stream

_LIKELY = 1024
_UNDECODABLE = "\N{REPLACEMENT CHARACTER}"


class ReplyInProgress:
    """The tokens of one reply so far.

    Args:
        sampling: How to draw, and when to stop.
        stream: One number a token is drawn from it, unless greedy.
        chat: Decodes tokens.
        end_ids: Ids that end a reply.

    Raises:
        InvalidSpec: A sampling setting is out of its range.
    """

    def __init__(
        self, sampling: Sampling, stream: Stream, chat: Chat, end_ids: Set[int]
    ) -> None:
        check_sampling(sampling)
        self.sampling = sampling
        self.stream = stream
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason: FinishReason | None = None
        self._chat = chat
        self._end_ids = end_ids
        self._text: str | None = None
        self._endings = {stop[-1] for stop in sampling.stop}
        self._look_always = not all(
            ending.isascii() and not ending.isspace() for ending in self._endings
        )

    def push(self, token: int, logprob: float) -> bool:
        """Add a sampled token; return whether the reply is finished with it."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self._end_ids or self._completes_stop(token):
            self.finish_reason = "stop"
        elif len(self.tokens) >= self.sampling.max_tokens:
            self.finish_reason = "length"
        return self.finish_reason is not None

    def draft(self, cached_tokens: int) -> Draft:
        """Return the finished reply."""
        text = self._chat.decode(self.tokens) if self._text is None else self._text
        return Draft(
            text=text,
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason or "length",
            cached_tokens=cached_tokens,
        )

    def _completes_stop(self, token: int) -> bool:
        """Return whether the text now holds a stop string, and cut it behind that.

        The whole reply is decoded only if the new token can be the end of a stop
        string: if it holds a last character of one or is no text by itself.
        """
        if not self._endings:
            return False
        if not self._look_always:
            piece = self._chat.piece(token)
            if _UNDECODABLE not in piece and self._endings.isdisjoint(piece):
                return False
        text = self._chat.decode(self.tokens)
        ends = [
            found + len(stop)
            for stop in self.sampling.stop
            if (found := text.find(stop)) >= 0
        ]
        if not ends:
            return False
        self._text = text[: min(ends)]
        return True


def check_sampling(sampling: Sampling) -> None:
    """Check the ranges of sampling settings.

    Raises:
        InvalidSpec: One is out of its range.
    """
    if not sampling.temperature >= 0:
        raise InvalidSpec(
            f"temperature is {sampling.temperature!r}, but must be at least 0"
        )
    if not 0 < sampling.top_p <= 1:
        raise InvalidSpec(f"top_p is {sampling.top_p!r}, but must be in (0, 1]")
    if sampling.max_tokens < 1:
        raise InvalidSpec(
            f"max_tokens is {sampling.max_tokens!r}, but must be at least 1"
        )
    if "" in sampling.stop:
        raise InvalidSpec("stop holds an empty string, which would end every reply")


def sample(
    logits: torch.Tensor, replies: Sequence[ReplyInProgress]
) -> tuple[list[int], list[float]]:
    """Return one token for each row and its log-probability.

    Args:
        logits: (rows, vocabulary).
        replies: How each row draws.

    Returns:
        Token ids; log-probabilities in nats under the model's own distribution, that
        of temperature 1 without nucleus, whatever the token was drawn from; at the
        temperature of sampling where ``processed_logprobs`` asks for that.
    """
    logits = logits.float()
    chosen = logits.argmax(-1)
    plain: list[int] = []
    cut: list[int] = []
    for row, reply in enumerate(replies):
        if reply.sampling.temperature > 0:
            (plain if reply.sampling.top_p >= 1 else cut).append(row)
    if plain:
        chosen[plain] = _draw_all(logits[plain], [replies[row] for row in plain])
    for row in cut:
        reply = replies[row]
        chosen[row] = _draw(logits[row], reply.sampling, reply.stream.random())
    heat = [
        reply.sampling.temperature
        if reply.sampling.processed_logprobs and reply.sampling.temperature > 0
        else 1.0
        for reply in replies
    ]
    if any(one != 1.0 for one in heat):
        logits = logits / torch.tensor(heat, device=logits.device)[:, None]
    picked = logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    logprobs = picked - logits.logsumexp(-1)
    return chosen.tolist(), logprobs.tolist()


def _draw_all(logits: torch.Tensor, replies: Sequence[ReplyInProgress]) -> torch.Tensor:
    """Return for each row the id at which the cumulative probability passes a draw."""
    heat = torch.tensor([[reply.sampling.temperature] for reply in replies])
    draws = torch.tensor(
        [[reply.stream.random()] for reply in replies], dtype=torch.float64
    )
    scaled = (logits - logits.max(-1, keepdim=True).values) / heat.to(logits.device)
    probs = torch.softmax(scaled, -1)
    if probs.device.type != "cuda":
        # Other accelerators have no double precision.
        probs = probs.cpu()
    total = probs.double().cumsum(-1)
    reached = draws.to(total.device) * total[:, -1:]
    index = torch.searchsorted(total, reached, right=True).squeeze(-1)
    return index.clamp(max=logits.shape[-1] - 1).to(logits.device)


def _draw(logits: torch.Tensor, sampling: Sampling, uniform: float) -> int:
    """Return the id at which the cumulative probability passes a number in [0, 1).

    With ``top_p`` below 1 the ids are those of highest probability, most likely
    first, that reach ``top_p`` together.
    """
    probs = torch.softmax((logits - logits.max()) / sampling.temperature, -1)
    if sampling.top_p >= 1:
        return _inverse(probs, uniform)
    likely, ids = probs.topk(min(_LIKELY, len(probs)))
    if likely.sum() < sampling.top_p:
        likely, ids = probs.sort(descending=True)
    before = likely.cumsum(0) - likely
    kept = int((before < sampling.top_p).sum())
    return int(ids[_inverse(likely[: max(kept, 1)], uniform)])


def _inverse(weights: torch.Tensor, uniform: float) -> int:
    total = weights.cpu().double().cumsum(0)
    index = int(torch.searchsorted(total, uniform * total[-1], right=True))
    return min(index, len(weights) - 1)
