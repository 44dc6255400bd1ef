"""Whether a prompt can have been too long for the model, as far as a run tells it.

A record says that a prompt did not fit and not how long it was.  Where the model's
context is known, a prompt that must have fitted refutes the claim; else it is believed.
"""

from collections.abc import Mapping
from typing import Any

from ragen_bench.records import Episode, RunConfig
from ragen_bench.verifying.rebuilding import Prompts

_FRAME = 64
"""Tokens that a chat template may put around one message, at most."""
_TEMPLATE = 4096
"""Tokens of a template's own words, at most."""


def max_context_of(config: RunConfig, facts: Mapping[str, Any]) -> int | None:
    """Return how many tokens the model holds, None if the run does not say it."""
    for found in (facts.get("max_context"), config.model_args.get("max_context")):
        if isinstance(found, str) and found.isascii() and found.isdecimal():
            found = int(found[:18])
        if type(found) is int and found > 0:
            return found
    return None


def must_have_fitted(
    prompts: Prompts, episode: Episode, max_tokens: int, max_context: int | None
) -> str | None:
    """Return why the last prompt of an episode cannot have been too long, if so.

    Args:
        prompts: Of the episode's cell.
        episode: One that ended as ``context_overflow``, faithfully recorded.
        max_tokens: Of a reply; a server refuses where prompt and reply do not fit.
        max_context: Tokens that the model holds; None if unknown.
    """
    if max_context is None:
        return None
    most = _most_tokens(prompts, episode)
    if most + max_tokens > max_context:
        return None
    policy = prompts.policy
    if policy.kind == "tokens":
        alone = _size_of_messages(prompts, episode, ())
        if alone + max_tokens > policy.size:
            return None
    return (
        f"outcome is 'context_overflow', but the prompt had at most {most} tokens and "
        f"the reply {max_tokens}, of the {max_context} that the model holds"
    )


def _most_tokens(prompts: Prompts, episode: Episode) -> int:
    """Return how many tokens the prompt behind the last turn has, at most."""
    turns = episode.turns
    least_cut, _ = prompts.cuts(len(turns))
    past = [
        text
        for turn in turns[least_cut:]
        for text in (turn.observation, turn.response + turn.thinking)
    ]
    most = _size_of_messages(prompts, episode, past)
    if turns and least_cut == 0 and turns[-1].context_cut == 0:
        last = turns[-1]
        if last.usage.input_tokens:
            # It goes on from the prompt before it, whose tokens were counted.
            new = (last.response + last.thinking, episode.final_observation)
            most = min(most, last.usage.input_tokens + _size(new))
    return most


def _size_of_messages(prompts: Prompts, episode: Episode, past: Any) -> int:
    opening = [message.content for message in prompts.opening(episode.rules)]
    return _TEMPLATE + _size([*opening, *past, episode.final_observation])


def _size(texts: Any) -> int:
    """Return the tokens of some messages, at most: no token is less than a byte."""
    return sum(len(text.encode("utf-8", "replace")) + _FRAME for text in texts)
