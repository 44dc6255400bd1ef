"""Ctrl-C and SIGTERM end a training after its iteration; a second one, at once."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_signal(stop: threading.Event, told: Callable[[], object]) -> Iterator[None]:
    """Let signals set an event while this lasts; outside the main thread, none does.

    Args:
        stop: Set by the first signal.
        told: Called then; it may write to a terminal.
    """

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # A stream that is being written to cannot be written to.
        with contextlib.suppress(RuntimeError):
            told()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
