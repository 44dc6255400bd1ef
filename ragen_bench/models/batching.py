"""One thread that serves a decoder: requests come from any thread or event loop."""

import atexit
import collections
import concurrent.futures
import dataclasses
import threading
import time
import weakref
from typing import Any, Protocol

from ragen_bench.errors import ProviderError, RagenError
from ragen_bench.model import FinishReason, Sampling
from ragen_bench.seeding import Stream

_IDLE_S = 2.0
_GATHER_S = 0.002
_GATHER_ROUNDS = 64
_PATIENCE = 0.1


@dataclasses.dataclass(slots=True)
class Draft:
    """A finished reply, before it becomes a `Completion`."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    cached_tokens: int


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """A prompt that waits for its reply."""

    ids: list[int]
    sampling: Sampling
    stream: Stream
    """Draws of this reply alone."""
    cache: Any = None
    """Key-value cache of the conversation; the decoder puts the newer one here."""
    future: "concurrent.futures.Future[Draft]" = dataclasses.field(
        default_factory=concurrent.futures.Future
    )

    def resolve(self, draft: Draft) -> None:
        """Hand the reply to whoever waits, unless they have left."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(draft)

    def fail(self, error: BaseException) -> None:
        """Hand an error to whoever waits, unless they have left."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def as_failure(error: Exception) -> RagenError:
    """Return an error as callers of a model expect it."""
    if isinstance(error, RagenError):
        return error
    failure = ProviderError(f"the model failed: {error!r}")
    failure.__cause__ = error
    return failure


class Decoder(Protocol):
    """What the thread drives."""

    @property
    def busy(self) -> bool:
        """Whether replies are being decoded."""

    def admit(self, waiting: "collections.deque[Request]") -> None:
        """Take as many requests from the left as there is room for, at least one."""

    def step(self) -> None:
        """Go on a little and resolve the requests that are finished."""

    def abandon(self, error: BaseException) -> None:
        """Fail every request that is being decoded."""

    def clear(self) -> None:
        """Forget what was computed with weights that are no more."""


class Worker:
    """Queue and thread.  The thread starts on demand, ends when idle and at exit.

    Args:
        decoder: Used by the thread alone.
        threads: Cores that PyTorch may use, None for its own default.
    """

    def __init__(self, decoder: Decoder, threads: int | None = None) -> None:
        self._decoder = decoder
        self._threads = threads
        self._inbox: list[Request] = []
        self._wakeup = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._answered = 0
        self._step_s = 0.0
        _WORKERS.add(self)

    def submit(self, request: Request) -> "concurrent.futures.Future[Draft]":
        """Queue a request; its future is resolved by the thread."""
        request.future.add_done_callback(self._note_answer)
        with self._wakeup:
            self._inbox.append(request)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="ragen-bench hf model", daemon=True
                )
                self._thread.start()
            self._wakeup.notify()
        return request.future

    def stop(self) -> None:
        """End the thread, failing what waits; a later request starts a new one."""
        with self._wakeup:
            thread, self._stopping = self._thread, self._thread is not None
            self._wakeup.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        if self._threads is not None:
            import torch

            # PyTorch keeps this number for each thread that calls it.
            torch.set_num_threads(self._threads)
        waiting: collections.deque[Request] = collections.deque()
        while self._await_work(waiting):
            try:
                if waiting:
                    self._decoder.admit(waiting)
                began = time.perf_counter()
                self._decoder.step()
                self._step_s = time.perf_counter() - began
            except Exception as error:
                self._decoder.abandon(as_failure(error))

    def _await_work(self, waiting: "collections.deque[Request]") -> bool:
        """Move what came in to what waits; return whether the thread goes on."""
        with self._wakeup:
            if not (self._stopping or waiting or self._decoder.busy):
                if not self._inbox:
                    self._wakeup.wait(_IDLE_S)
                self._gather()
            elif self._answered and not self._stopping:
                self._await_answered()
            self._answered = 0
            waiting.extend(self._inbox)
            self._inbox.clear()
            if self._stopping:
                failure = ProviderError("the model was closed before it answered")
                self._decoder.abandon(failure)
                while waiting:
                    waiting.popleft().fail(failure)
            if waiting or self._decoder.busy:
                return True
            self._thread, self._stopping = None, False
            return False

    def _gather(self) -> None:
        """Wait while requests keep coming, so that the first batch is not of one."""
        for _ in range(_GATHER_ROUNDS):
            if not self._inbox or not self._wakeup.wait(_GATHER_S):
                return

    def _await_answered(self) -> None:
        """Give those who were just answered a moment to ask again.

        Environments answer much faster than a model decodes: without this, each of
        them would miss the step that begins meanwhile.
        """
        deadline = time.perf_counter() + _PATIENCE * self._step_s
        while len(self._inbox) < self._answered and not self._stopping:
            left = deadline - time.perf_counter()
            if left <= 0 or not self._wakeup.wait(left):
                return

    def _note_answer(self, _: object) -> None:
        with self._wakeup:
            self._answered += 1


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End all threads: one inside PyTorch when Python goes down aborts the process."""
    for worker in list(_WORKERS):
        worker.stop()
