"""What no replay shows and still cannot be: tokens, times, endings and copied plays.

Only what is certain is a fault: servers count oddly, and an honest run is not refused.
"""

import datetime
import math
from collections.abc import Mapping
from typing import get_args

from ragen_bench.model import FinishReason
from ragen_bench.records import Episode, Price, RunConfig, Turn
from ragen_bench.verifying.faults import Faults, shown
from ragen_bench.verifying.usage import UsageRules

_ENDINGS = frozenset(get_args(FinishReason))
_DAY = datetime.timedelta(days=1)
_LONGEST = 1e8
"""Seconds, some three years: longer than any reply takes."""
_EARLIEST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_ENTROPY = 15.0
"""Decimal digits that two plays must share before they are called copies."""


def start_of(
    started: str, now: datetime.datetime, faults: Faults
) -> datetime.datetime | None:
    """Return when a run began, None where that cannot be."""
    try:
        began = datetime.datetime.fromisoformat(started)
        if began.tzinfo is None:
            raise ValueError("it has no time zone")
        sound = _EARLIEST <= began <= now + _DAY
    except (ValueError, OverflowError) as error:
        message = f"started is {shown(started)!r}, which is no time: {error}"
        faults.add("time_impossible", "run.json", message)
        return None
    if not sound:
        message = f"started is {shown(started)}, but now it is {now:%Y-%m-%d}"
        faults.add("time_impossible", "run.json", message)
        return None
    return began


class Consistency:
    """Looks at the episodes of one run.

    Args:
        config: The run.
        chat: Whether one of our chat agents played.
        program: Whether one of our agents without a model played.
        max_context: Tokens that the model holds; None if unknown.
        price: What its model cost, if the run says it.
        seconds: Since the run began; None if unknown.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        chat: bool,
        program: bool,
        max_context: int | None,
        price: Price | None,
        seconds: float | None,
    ) -> None:
        self._tokens = UsageRules(
            chat=chat,
            program=program,
            model=(config.model or "").partition(":")[0],
            max_tokens=config.max_tokens,
            max_context=max_context,
            price=price,
        )
        self._chat = chat
        self._program = program
        self._seconds = seconds
        self._plays: set[int] = set()
        self._ids: set[int] = set()
        self._repeated: list[str] = []

    def check(self, episode: Episode, faults: Faults) -> None:
        """Look at one episode."""
        seconds = 0.0
        for number, turn in enumerate(episode.turns):
            fault = (
                self._usage(turn)
                or self._ending(turn)
                or self._time(turn)
                or self._prompt(turn)
            )
            if fault:
                faults.add(fault[0], f"{episode.key} turn {number}", fault[1])
            seconds += max(0.0, turn.latency_s or 0.0)
            self._note_id(turn, f"{episode.key} turn {number}")
        if self._program and episode.outcome in ("context_overflow", "provider_error"):
            message = f"outcome is {episode.outcome!r}, but the agent asks no model"
            faults.add("outcome_mismatch", episode.key, message)
        if self._seconds is not None and seconds > self._seconds:
            message = f"its replies took {seconds:.0f} s, longer than since the start"
            faults.add("time_impossible", episode.key, message)
        self._note_play(episode, faults)

    def finish(self, faults: Faults) -> None:
        """Say what only all episodes together show."""
        # A server that gives few ids says nothing by repeating one.
        if len(self._ids) > 20 * len(self._repeated):
            for place in self._repeated:
                message = "the answer has the response_id of another one"
                faults.add("duplicate_transcript", place, message)

    def _usage(self, turn: Turn) -> tuple[str, str] | None:
        fault = self._tokens.fault_of(turn)
        return ("usage_impossible", fault) if fault else None

    def _ending(self, turn: Turn) -> tuple[str, str] | None:
        reason = turn.finish_reason
        code = "finish_reason_impossible"
        if reason not in _ENDINGS:
            return code, f"finish_reason is {shown(reason)!r}"
        if self._program and reason != "stop":
            return code, f"finish_reason is {reason!r}, but the agent asks no model"
        return None

    def _time(self, turn: Turn) -> tuple[str, str] | None:
        code = "time_impossible"
        latency = turn.latency_s
        if latency is None:
            return None
        if not 0 <= latency <= _LONGEST:
            return code, f"latency_s is {latency!r}"
        asked = turn.details.get("request_s")
        if (
            self._chat
            and isinstance(asked, int | float)
            and not isinstance(asked, bool)
        ):
            # A reply from a cache keeps the time of the request that it once took.
            late = asked > latency + 1 and turn.details.get("cached") is not True
            if asked < 0 or late:
                return code, f"request_s is {asked!r}, but latency_s {latency!r}"
        return None

    def _prompt(self, turn: Turn) -> tuple[str, str] | None:
        if self._program and (turn.prompt_sha256 is not None or turn.context_cut):
            return "prompt_mismatch", "the agent has no prompt, but the record has one"
        return None

    def _note_id(self, turn: Turn, place: str) -> None:
        found = turn.details.get("response_id")
        if not isinstance(found, str) or turn.details.get("cached") is True:
            return
        before = len(self._ids)
        self._ids.add(hash(found))
        if len(self._ids) == before:
            self._repeated.append(place)

    def _note_play(self, episode: Episode, faults: Faults) -> None:
        """Refuse a second play with the same replies in the same microseconds."""
        latencies = [turn.latency_s or 0.0 for turn in episode.turns]
        # Of a latency in microseconds, the last digits are chance.
        shared = sum(math.log10(max(1.0, s * 1e5)) for s in latencies if s < _LONGEST)
        if shared < _ENTROPY:
            return
        replies = tuple(turn.response for turn in episode.turns)
        play = hash((replies, tuple(latencies)))
        if play in self._plays:
            message = "same replies in the same microseconds as another episode"
            faults.add("duplicate_transcript", episode.key, message)
        self._plays.add(play)


def start_prompts(
    said: Mapping[str, str], found: Mapping[str, str], faults: Faults
) -> None:
    """Compare the hashes of the first prompts in ``run.json``."""
    for cell in sorted(said.keys() | found.keys()):
        if said.get(cell) != found.get(cell):
            message = (
                f"prompt_sha256 is {shown(said.get(cell))}, but the replay gives "
                f"{found.get(cell)}"
            )
            faults.add("prompt_mismatch", f"run.json {shown(cell)}", message)
