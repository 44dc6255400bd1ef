"""Tokens that a reply cannot have cost.

Only what is certain is a fault.  Some servers count reasoning on top of the output, and
one protocol counts what was cached beside what was read; neither is refused.
"""

import dataclasses

from ragen_bench.prices import billed_requests
from ragen_bench.records import Price, Turn

_MOST_TOKENS = 1 << 24
"""Of one answer: no context in use holds as many."""
_MOST_ANSWERS = 1000
"""To one question, of which all but the last were of no use."""
BYTES_PER_TOKEN = 128
"""No tokenizer in use has longer tokens, but for runs of one character."""
_PUT_BACK = 64
"""Bytes of a reply that cost no tokens: a stop string that was put back."""
_IN_PROCESS = frozenset({"tiny", "hf", "vllm"})
"""Models that count their own tokens; servers add those of answers they discard."""
_CACHED_APART = frozenset({"lm-eval"})
"""Hand on Anthropic's counts, whose input leaves out what was cached."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsageRules:
    """What the tokens of a run's replies must keep to."""

    chat: bool
    """Whether one of our chat agents played."""
    program: bool
    """Whether one of our agents without a model played."""
    model: str
    """The model's prefix, such as ``"hf"``; empty without a model."""
    max_tokens: int | None
    max_context: int | None
    """Tokens that the model holds, None if unknown."""
    price: Price | None

    def fault_of(self, turn: Turn) -> str | None:
        """Return why the tokens of a turn cannot be, None if they may."""
        usage = turn.usage
        most = _MOST_TOKENS * min(_MOST_ANSWERS, billed_requests(turn.details))
        for name, count in usage.model_dump().items():
            if count is None:
                continue
            if self.program:
                return f"{name} is {count}, but the agent asks no model"
            if not 0 <= count <= most:
                return f"{name} is {count}, but must be from 0 to {most}"
        if not self.chat:
            return None
        return (
            self._of_prompt(turn)
            or self._of_reasoning(turn)
            or self._of_text(turn)
            or self._of_context(turn)
        )

    @property
    def _counts_itself(self) -> bool:
        return self.model in _IN_PROCESS

    def _of_prompt(self, turn: Turn) -> str | None:
        read, cached = turn.usage.input_tokens, turn.usage.cached_tokens
        if read == 0:
            return "input_tokens is 0, but every prompt holds the rules"
        if read is None or cached is None or self.model in _CACHED_APART:
            return None
        if cached > read:
            return f"cached_tokens is {cached}, but only {read} were read"
        return None

    def _of_reasoning(self, turn: Turn) -> str | None:
        written, thought = turn.usage.output_tokens, turn.usage.reasoning_tokens
        if written is None or thought is None or thought <= written:
            return None
        found = f"reasoning_tokens is {thought}, but output_tokens {written}"
        if self._counts_itself:
            return found
        if self.price is not None and self.price.reasoning is None:
            return (
                f"{found}, and the price says that they are within it; if they come on "
                "top, give the price table their price and run the same command again"
            )
        return None

    def _of_text(self, turn: Turn) -> str | None:
        output = turn.usage.output_tokens
        if output is None:
            return None
        size = len(turn.response.encode())
        if output == 0 and turn.response.strip():
            return f"output_tokens is 0, but the reply has {size} bytes"
        if size > BYTES_PER_TOKEN * output + _PUT_BACK:
            rule = f"over {BYTES_PER_TOKEN} a token"
            return f"output_tokens is {output} for {size} bytes: {rule}"
        limit = self.max_tokens if self._counts_itself else None
        if limit is not None and output > limit:
            return f"output_tokens is {output}, but max_tokens {limit}"
        return None

    def _of_context(self, turn: Turn) -> str | None:
        read, written = turn.usage.input_tokens, turn.usage.output_tokens
        limit = self.max_context if self._counts_itself else None
        if read is None or written is None or limit is None or read + written <= limit:
            return None
        found = f"input_tokens is {read} and output_tokens {written}"
        return f"{found}, but the model holds {limit}"
