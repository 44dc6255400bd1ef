"""A server of chat completions on real sockets that behaves as a test tells it.

`Server` plays the part of a good server; a script gives single requests another
behaviour.  Behaviours are asynchronous functions of a request and its connection.
"""

import asyncio
import dataclasses
import email.utils
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ragen_bench.model import Conversation
from ragen_bench.records import EpisodeKey
from ragen_bench.seeding import child_seed

JSON = "application/json"


@dataclasses.dataclass(frozen=True)
class Request:
    """What a client sent."""

    path: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: Mapping[str, Any]
    at: float
    """Seconds of the monotonic clock."""

    @property
    def seed(self) -> int | None:
        return self.body.get("seed")


@dataclasses.dataclass
class Wire:
    """The connection that a request came on."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: int = 0

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.sent += len(data)

    def reset(self) -> None:
        """Break the connection off with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Request, Wire], Awaitable[None]]


# Behaviours -------------------------------------------------------------------


def raw(
    body: bytes,
    status: int = 200,
    kind: str | None = JSON,
    headers: Mapping[str, str] | None = None,
) -> Behaviour:
    """Return a behaviour that answers with these bytes."""

    async def answer(request: Request, wire: Wire) -> None:
        lines = [f"HTTP/1.1 {status} Thus", f"Content-Length: {len(body)}"]
        if kind is not None:
            lines.append(f"Content-Type: {kind}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await wire.send("\r\n".join([*lines, "", ""]).encode() + body)

    return answer


def error(
    status: int, message: str = "no", headers: Mapping[str, str] | None = None, **facts
) -> Behaviour:
    """Return a behaviour that answers with an error in OpenAI's form."""
    body = json.dumps({"error": {"message": message, **facts}}).encode()
    return raw(body, status, headers=headers)


def completion(
    content: Any = "<answer>Up</answer>", finish: Any = "stop", **more: Any
) -> dict[str, Any]:
    """Return the body of a good reply; ``choice`` and ``message`` add to it."""
    message = {"role": "assistant", "content": content, **more.pop("message", {})}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        "id": "reply-1",
        "object": "chat.completion",
        "model": "fake",
        "system_fingerprint": "fp_1",
        "choices": [{**choice, **more.pop("choice", {})}],
        "usage": {
            "prompt_tokens": 50,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        **more,
    }


def says(content: Any = "<answer>Up</answer>", finish: Any = "stop", **more: Any):
    """Return a behaviour that answers with a reply."""
    return raw(json.dumps(completion(content, finish, **more)).encode())


async def never(request: Request, wire: Wire) -> None:
    """Take the request and say nothing."""
    await wire.reader.read()  # until the client has left


async def trickle(request: Request, wire: Wire) -> None:
    """Send a good body, so slowly that it takes minutes."""
    body = json.dumps(completion()).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}"
    await wire.send(f"{head}\r\n\r\n".encode())
    for byte in body:
        await wire.send(bytes([byte]))
        await asyncio.sleep(0.1)


async def reset_in_body(request: Request, wire: Wire) -> None:
    """Break off in the middle of a body."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\nContent-Length: 500\r\n\r\n"
    await wire.send(head.encode() + b'{"choices": [')
    wire.reset()


async def hang_up(request: Request, wire: Wire) -> None:
    """Close the connection without a word."""
    wire.writer.close()


def huge(size: int, *, declared: bool) -> Behaviour:
    """Return a behaviour that answers with a body of so many bytes."""

    async def answer(request: Request, wire: Wire) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\n"
        if declared:
            head += f"Content-Length: {size}\r\n\r\n"
        else:
            head += "Transfer-Encoding: chunked\r\n\r\n"
        await wire.send(head.encode())
        piece = b" " * 2**16
        for _ in range(size // len(piece)):
            framed = b"10000\r\n" + piece + b"\r\n"
            await wire.send(piece if declared else framed)
        await wire.send(b"" if declared else b"0\r\n\r\n")

    return answer


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """Return a behaviour that is another each time; the last one stays."""
    left = list(behaviours)

    async def answer(request: Request, wire: Wire) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(request, wire)

    return answer


def http_date(seconds: float) -> str:
    """Return the HTTP date that lies so many seconds ahead."""
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


# A good player ----------------------------------------------------------------


def chosen_action(body: Mapping[str, Any]) -> str:
    """Return an action that hangs on the request alone."""
    text = "\n".join(str(message["content"]) for message in body["messages"])
    listed = re.findall(r"^Actions: (.*)\.$", text, re.MULTILINE)
    names = [name.strip() for name in listed[-1].split(",")]
    facts = json.dumps([body["messages"], body.get("seed")])
    digest = hashlib.sha256(facts.encode()).digest()
    return names[digest[0] % len(names)]


async def play(request: Request, wire: Wire) -> None:
    """Answer sensibly; the stop string is cut off, as OpenAI does."""
    text = f"<think>hm</think><answer>{chosen_action(request.body)}</answer>"
    if "stop" in request.body:
        text = text.removesuffix("</answer>")
    await says(text)(request, wire)


def slow_by_content(longest: float) -> Behaviour:
    """Return a good player whose answers come in an order of their own."""

    async def answer(request: Request, wire: Wire) -> None:
        digest = hashlib.sha256(json.dumps(request.body).encode()).digest()
        await asyncio.sleep(longest * digest[1] / 255)
        await play(request, wire)

    return answer


def first_seed(cell: str, seed: int, split: str = "test", rep: int = 0) -> int:
    """Return the seed that the first request of an episode carries."""
    env_id, level = cell.rsplit(":", 1)
    key = EpisodeKey(env_id, int(level), split, seed, rep)
    own = child_seed(seed, "agent", str(key), "")
    return Conversation(key=str(key), seed=own).turn_seed()


# The server -------------------------------------------------------------------


class Server:
    """A server in a thread of its own, from ``with`` to its end.

    Args:
        good: How most requests are answered.
        victims: Requests of these seeds are answered otherwise.
    """

    def __init__(
        self,
        good: Behaviour = play,
        victims: Mapping[int, Behaviour] | None = None,
    ) -> None:
        self.good = good
        self.victims = dict(victims or {})
        self.requests: list[Request] = []
        self.wires: list[Wire] = []
        self.in_flight = 0
        self.most_in_flight = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def of_seed(self, seed: int) -> list[Request]:
        return [request for request in self.requests if request.seed == seed]

    def __enter__(self) -> "Server":
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.ensure_future(self._serve(Wire(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, wire: Wire) -> None:
        self.wires.append(wire)
        try:
            while (request := await self._read(wire.reader)) is not None:
                await self._answer(request, wire)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            wire.writer.transport.abort()

    async def _answer(self, request: Request, wire: Wire) -> None:
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.victims.get(request.seed, self.good)(request, wire)
        finally:
            self.in_flight -= 1

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in lines if line]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Request(
            path=first.split()[1],
            headers=headers,
            body=json.loads(body) if body else {},
            at=time.monotonic(),
        )


def closed_url() -> str:
    """Return an address at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}/v1"


def contents(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the messages of a request say."""
    return [str(message["content"]) for message in messages]
