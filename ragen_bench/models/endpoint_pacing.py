"""How many requests are in flight: more while it helps, fewer when a server groans."""

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable

_START = 8
_CUT = 0.7
_COOL_S = 1.0
_DOUBLING_GAIN = 1.25
"""A doubled limit must answer this much faster to be doubled again."""
_STALE_WINDOWS = 8
"""After so many windows without gain, the rate to beat is forgotten."""


class Gate:
    """Lets requests through in the order they came, as many at once as go well.

    The limit is doubled as long as answers then come clearly faster, and grows by one
    at a time from there on while the rate of answers still rises; from time to time
    one more is tried again.  A sign of overload
    cuts it to 0.7 of what is in flight, at most once a second, since the requests of
    one burst all tell of the same overload.

    It belongs to one event loop.

    Args:
        most: The limit's bound.
        now: A clock, in seconds.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self.limit = min(_START, most)
        self.in_flight = 0
        self.most_in_flight = 0
        """The most so far."""
        self._most = most
        self._now = now
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._doubling = True
        self._cool_until = -1.0
        self._rate: float | None = None
        self._stale = 0
        self._open_window()

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def _enter(self) -> None:
        if not self._waiting and self.in_flight < self.limit:
            self._count_in()
            return
        self._saturated = True
        ticket = asyncio.get_running_loop().create_future()
        self._waiting.append(ticket)
        try:
            await ticket
        except asyncio.CancelledError:
            # The turn may have come in the moment in which its owner was cancelled.
            if not ticket.cancelled():
                self._leave()
            raise

    def _count_in(self) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def _leave(self) -> None:
        self.in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.in_flight < self.limit:
            ticket = self._waiting.popleft()
            if not ticket.done():
                self._count_in()
                ticket.set_result(None)

    def answered(self) -> None:
        """Hear that a request went well."""
        self._answers += 1
        if self._answers < self.limit:
            return
        rate = self._answers / max(self._now() - self._began, 1e-9)
        if self._saturated and self.limit < self._most:
            self._grow(rate)
        self._open_window()
        self._admit()

    def overloaded(self) -> None:
        """Hear that a request failed in a way that fewer of them might not have."""
        if self._now() < self._cool_until:
            return
        self._cool_until = self._now() + _COOL_S
        self.limit = max(1, int(min(self.limit, self.in_flight) * _CUT))
        self._doubling = False
        self._rate = None
        self._open_window()

    def _open_window(self) -> None:
        """Begin to count answers; a window holds as many as the limit."""
        self._began = self._now()
        self._answers = 0
        self._saturated = bool(self._waiting)

    def _grow(self, rate: float) -> None:
        if self._doubling:
            if self._rate is not None and rate < self._rate * _DOUBLING_GAIN:
                self._doubling = False
            else:
                self.limit = min(self._most, 2 * self.limit)
            self._rate = rate
        elif self._rate is None or rate >= self._rate * (1 + 0.5 / self.limit):
            self.limit = min(self._most, self.limit + 1)
            self._rate, self._stale = rate, 0
        else:
            if self._stale == 0:  # the last one more did not help
                self.limit = max(1, self.limit - 1)
            self._stale += 1
            if self._stale >= _STALE_WINDOWS:
                self._rate, self._stale = None, 0
