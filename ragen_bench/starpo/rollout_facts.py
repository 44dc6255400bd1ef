"""What the kept episodes of an iteration look like: how valid, varied and long."""

import dataclasses
import statistics
from collections import Counter
from pathlib import Path

from ragen_bench.errors import RecordError
from ragen_bench.records import Episode, parse_record
from ragen_bench.starpo.repetition import distinct_share, mean_words


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """What the kept episodes of an iteration look like."""

    name: str
    """Of the file."""
    episodes: int
    success: float | None
    """Share of solved episodes, None where the task has no success."""
    valid_rate: float | None
    """Share of valid replies."""
    distinct_4: float | None
    """Share of distinct 4-grams in reasoning and replies."""
    thought_tokens: float | None
    """Mean words of reasoning in a reply, None where there is none at all."""
    top_reply: str
    """The most frequent reply."""
    top_share: float | None
    """Share of the replies that are it."""


def rollout_facts(path: Path) -> RolloutFacts:
    """Return what the episodes of a file of records look like.

    Raises:
        RecordError: The file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    episodes = [
        parse_record(Episode, line, f"{path}, line {i}")
        for i, line in enumerate(lines, start=1)
        if line.strip()
    ]
    turns = [turn for episode in episodes for turn in episode.turns]
    solved = [e.success for e in episodes if e.success is not None]
    thoughts = [turn.thinking for turn in turns]
    texts = [
        # A model may give its reasoning apart from the reply.
        t.response if t.thinking in t.response else f"{t.thinking}\n{t.response}"
        for t in turns
    ]
    top, count = (Counter(t.response for t in turns).most_common(1) or [("", 0)])[0]
    return RolloutFacts(
        name=path.name,
        episodes=len(episodes),
        success=statistics.fmean(solved) if solved else None,
        valid_rate=statistics.fmean(t.valid for t in turns) if turns else None,
        distinct_4=distinct_share(texts),
        thought_tokens=mean_words(thoughts) if any(thoughts) else None,
        top_reply=top,
        top_share=count / len(turns) if turns else None,
    )
