"""What serves each event loop: its connections, and the gate before them."""

import asyncio
import threading

from ragen_bench.models.endpoint_client import Client
from ragen_bench.models.endpoint_key import Key
from ragen_bench.models.endpoint_options import EndpointOptions
from ragen_bench.models.endpoint_pacing import Gate


class Line:
    """What serves one event loop; made inside it."""

    def __init__(self, options: EndpointOptions, key: Key) -> None:
        self.client = Client(options, key)
        self.gate = Gate(options.max_in_flight)


class Lines:
    """The lines of all event loops that use one model, whatever their threads."""

    def __init__(self, options: EndpointOptions, key: Key) -> None:
        self._options = options
        self._key = key
        self._lines: dict[asyncio.AbstractEventLoop, Line] = {}
        self._lock = threading.Lock()

    def here(self) -> Line:
        """Return what serves the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            line = self._lines.get(loop)
            if line is None:
                # Connections of a loop that has ended are gone with it.
                for old in [old for old in self._lines if old.is_closed()]:
                    del self._lines[old]
                line = self._lines[loop] = Line(self._options, self._key)
        return line

    async def close_here(self) -> None:
        """Close the connections of the running event loop; they open on demand."""
        with self._lock:
            line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.client.aclose()
