"""The attempts at one reply: how many, how long, and how far apart."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from ragen_bench.model import Completion, Usage
from ragen_bench.models.endpoint_faults import Fault
from ragen_bench.models.endpoint_options import EndpointOptions

LONGEST_WAIT_S = 30.0
"""Between two attempts, unless the server asks for more."""


class Tries:
    """The attempts at one reply."""

    def __init__(self, options: EndpointOptions, jitter: random.Random) -> None:
        self.failed: list[str] = []
        """Why each failed, but for the last one of a reply."""
        self.discarded: list[Usage] = []
        """What answers that were not used will be billed for."""
        self.spent = 0.0
        """Seconds in attempts and in waits; the queue for a slot does not count."""
        self.seconds = 0.0
        """Those of the attempt that went well."""
        self._options = options
        self._jitter = jitter
        self._asked_again: set[str] = set()
        self._given_up = ""

    def next_timeout(self) -> float:
        """Return the seconds that the next attempt may take."""
        left = self._options.patience - self.spent
        return max(1e-3, min(self._options.timeout, left))

    def wait_after(self, fault: Fault) -> float | None:
        """Return the seconds to the next attempt, None if there is none."""
        if fault.kind in ("malformed", "empty"):
            if fault.kind in self._asked_again:
                return None
            self._asked_again.add(fault.kind)
        elif fault.kind != "transient" or len(self.failed) > self._options.retries:
            return None
        grown = self._options.backoff * 2.0 ** min(len(self.failed) - 1, 16)
        wait = min(LONGEST_WAIT_S, grown) * self._jitter.uniform(0.5, 1.0)
        asked = fault.retry_after
        if asked is not None:
            # Never before the time; and not all at the same moment after it.
            wait = max(wait, asked + self._jitter.uniform(0.0, min(1.0, 0.1 * asked)))
        left = self._options.patience - self.spent
        if (asked or 0.0) >= left or wait >= left:
            self._given_up = self._why_no_wait(asked, left)
            return None
        return wait

    def _why_no_wait(self, asked: float | None, left: float) -> str:
        patience = f"{self._options.patience:.4g} s of patience"
        if asked is not None and asked >= left:
            return (
                f"; it asks to wait {asked:.4g} s, but so much of the {patience} is "
                "not left"
            )
        return f"; the {patience} are spent"

    def told(self) -> str:
        """Return how often it was tried, as the end of a message."""
        count = len(self.failed)
        times = f" (tried {count} times)" if count > 1 else ""
        return f"{times}{self._given_up}"

    def sign(self, completion: Completion) -> Completion:
        """Return a reply with what it took to get it."""
        facts: dict[str, Any] = dict(completion.details)
        facts["attempts"] = len(self.failed) + 1
        facts["request_s"] = round(self.seconds, 6)
        if self.failed:
            facts["failed_attempts"] = self.failed
        usage = _sum([completion.usage, *self.discarded])
        return dataclasses.replace(completion, details=facts, usage=usage)


def _sum(parts: Sequence[Usage]) -> Usage:
    """Return the tokens of several answers; what one does not tell is not known."""
    totals = {}
    for field in dataclasses.fields(Usage):
        values = [getattr(part, field.name) for part in parts]
        totals[field.name] = None if None in values else sum(values)
    return Usage(**totals)
