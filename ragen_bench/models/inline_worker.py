"""`InlineWorker`: serves a decoder in the event loop itself, without a thread.

What is decoded together then depends on nothing but the requests, so that a training
repeats itself to the last bit.  The loop does nothing else during a pass.
"""

import asyncio
import collections
import concurrent.futures

from ragen_bench.errors import ProviderError
from ragen_bench.models.batching import Decoder, Draft, Request, as_failure

_ROUNDS = 4
"""Rounds of the loop in which a finished reply becomes the next request."""


class InlineWorker:
    """Queue and driver; requests come from one event loop at a time.

    Args:
        decoder: Used in the loop's thread.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._waiting: collections.deque[Request] = collections.deque()
        self._driver: asyncio.Task[None] | None = None

    def submit(self, request: Request) -> "concurrent.futures.Future[Draft]":
        """Queue a request of the running loop; its future is resolved there."""
        self._waiting.append(request)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._drive())
        return request.future

    def stop(self) -> None:
        """Fail what waits."""
        failure = ProviderError("the model was closed before it answered")
        self._decoder.abandon(failure)
        while self._waiting:
            self._waiting.popleft().fail(failure)

    async def _drive(self) -> None:
        while self._waiting or self._decoder.busy:
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            try:
                if self._waiting:
                    self._decoder.admit(self._waiting)
                self._decoder.step()
            except Exception as error:
                self._decoder.abandon(as_failure(error))
