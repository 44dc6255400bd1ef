"""Pairs of prompt and reasoning out of trajectories, for the probe of templates.

The prompt goes up to and includes the tag that opens the reasoning; the reasoning
stands between the tags.  Both are the very tokens that were read and sampled.  Where
an agent is asked for no reasoning, its whole replies can stand for it.
"""

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ragen_bench.seeding import Stream
from ragen_bench.starpo.template_collapse import (
    Score,
    TemplateCollapse,
    cross_scores,
    probe,
)
from ragen_bench.starpo.trajectories import Segment, Trajectory, TurnTokens

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens included."""

OPEN, CLOSE = "<think>", "</think>"
MOST = 64
"""Samples of a probe; it costs their square."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """N usable samples."""

    prompts: tuple[tuple[int, ...], ...]
    thoughts: tuple[tuple[int, ...], ...]
    asked: int
    """Turns that were looked at."""


def first_turns(trajectories: Sequence[Trajectory], decode: Decode) -> Samples:
    """Return the reasoning of the first turn of each group's first trajectory."""
    firsts: dict[int, Trajectory] = {}
    for one in trajectories:
        firsts.setdefault(one.group, one)
    turns = [(s, t) for one in firsts.values() for s, t in _turns(one)[:1]]
    return _samples(turns[:MOST], decode)


def random_turns(
    trajectories: Sequence[Trajectory],
    decode: Decode | None,
    stream: Stream,
    most: int = MOST,
) -> Samples:
    """Return the reasoning of a random turn of each of some trajectories.

    Args:
        trajectories: To choose from, evenly.
        decode: Of the policy's tokenizer; None takes whole replies.
        stream: Draws trajectories and turns.
        most: Trajectories at most.
    """
    order = [one for one in trajectories if one.turns]
    stream.shuffle(order)
    chosen = [_turns(one) for one in order[:most]]
    return _samples([stream.choice(turns) for turns in chosen], decode)


def probe_samples(score: Score, samples: Samples) -> TemplateCollapse | None:
    """Return what samples say of template collapse, None if none is usable."""
    return probe(
        cross_scores(score, samples.prompts, samples.thoughts),
        [len(thought) for thought in samples.thoughts],
        samples.prompts,
        samples.asked,
    )


def reasoning_span(ids: Sequence[int], decode: Decode) -> tuple[int, int] | None:
    """Return where the reasoning of a reply starts and ends, in tokens.

    Args:
        ids: The reply.
        decode: Of the policy's tokenizer.

    Returns:
        None where a tag is missing, nothing stands between them, or the token that
        ends the opening tag begins the reasoning too.  A reply without an opening
        tag, whose prompt then held it, is reasoning from its first token on.
    """
    text = decode(ids)
    opened, closed = text.find(OPEN), text.find(CLOSE)
    if closed < 0 or opened > closed:
        return None
    start = 0
    if opened >= 0:
        start = _first(ids, decode, lambda head: OPEN in head)
        if decode(ids[:start])[opened + len(OPEN) :].strip():
            return None
    # The first token that reaches into the closing tag is not reasoning any more.
    end = _first(ids, decode, lambda head: len(head) > closed) - 1
    return (start, end) if start < end else None


def _first(ids: Sequence[int], decode: Decode, holds: Callable[[str], bool]) -> int:
    """Return how many tokens it takes until a claim about their text holds."""
    return bisect.bisect_left(
        range(len(ids) + 1), True, key=lambda count: holds(decode(ids[:count]))
    )


def _turns(trajectory: Trajectory) -> list[tuple[Segment, TurnTokens]]:
    return [(one, turn) for one in trajectory.segments for turn in one.turns]


def _samples(
    turns: Sequence[tuple[Segment, TurnTokens]], decode: Decode | None
) -> Samples:
    prompts, thoughts = [], []
    for segment, turn in turns:
        reply = segment.ids[turn.start : turn.end]
        span = reasoning_span(reply, decode) if decode else (0, len(reply))
        if span is not None:
            prompts.append((*segment.ids[: turn.start], *reply[: span[0]]))
            thoughts.append(tuple(reply[span[0] : span[1]]))
    return Samples(prompts=tuple(prompts), thoughts=tuple(thoughts), asked=len(turns))
