"""Reply text to thinking and actions.  Legality is the environment's business."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

ParseOutcome: TypeAlias = Literal[
    "ok", "empty", "no_answer", "unparsable", "too_many", "cut_off"
]


@dataclasses.dataclass(frozen=True, slots=True)
class ParsedReply:
    """What a reply says."""

    outcome: ParseOutcome
    thinking: str
    answer: str
    """The text of the answer that counts, "" if there is none."""
    actions: tuple[int, ...]
    """Indices of the actions to play, at most ``max_actions``."""


_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.S | re.I)


class ReplyParser:
    """PLACEHOLDER."""

    def __init__(
        self, names: tuple[str, ...], max_actions: int, strict: bool = False
    ) -> None:
        self.names = names
        self.max_actions = max_actions
        self.strict = strict
        self._index = {name.casefold(): i for i, name in enumerate(names)}

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def of(names: Sequence[str], max_actions: int, strict: bool) -> "ReplyParser":
        """Return a shared parser for these names."""
        return ReplyParser(tuple(names), max_actions, strict)

    def parse(
        self,
        reply: str,
        *,
        thinking: str | None = None,
        finish_reason: str | None = None,
    ) -> ParsedReply:
        """Return what a reply says; never raises."""
        if finish_reason == "length":
            return ParsedReply("cut_off", thinking or "", "", ())
        found = _ANSWER.findall(reply)
        if not found:
            return ParsedReply("no_answer", thinking or "", "", ())
        answer = found[-1]
        actions = []
        for part in answer.split("||"):
            index = self._index.get(part.strip().casefold())
            if index is None:
                return ParsedReply("unparsable", thinking or "", answer, ())
            actions.append(index)
        outcome: ParseOutcome = "ok" if len(actions) <= self.max_actions else "too_many"
        return ParsedReply(
            outcome, thinking or "", answer, tuple(actions[: self.max_actions])
        )
