"""One HTTP client of one event loop: a request goes out, a bounded answer comes in.

The openai SDK builds and sends the request; nothing of the answer is interpreted here.
"""

import asyncio
import dataclasses
import importlib
import time
from collections.abc import Mapping
from typing import Any, Literal

from ragen_bench.errors import MissingExtra
from ragen_bench.models.endpoint_key import Key
from ragen_bench.models.endpoint_options import EndpointOptions

BODY_LIMIT = 16 * 2**20
"""Bytes of an answer; a longer one is given up while it comes in."""
_CONNECT_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent back, whatever it says."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    seconds: float
    """From the request to the last byte."""


class NoAnswer(Exception):
    """No whole answer came.  ``kind`` says whether another attempt may help."""

    def __init__(
        self, kind: Literal["network", "timeout", "malformed"], message: str
    ) -> None:
        super().__init__(message)
        self.kind = kind


class _Unreadable(Exception):
    """A body that is not read to its end."""


def require_extra(feature: str) -> None:
    """Import the package of the extra ``api``.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import openai  # noqa: F401
    except ImportError as error:
        raise MissingExtra("api", feature) from error


class Client:
    """Connections of one event loop to one server; made and closed inside that loop."""

    def __init__(self, options: EndpointOptions, key: Key) -> None:
        import openai

        bounded = _bounded_client_class()
        # The SDK's releases build on two generations of one HTTP library.
        http = importlib.import_module(bounded.__mro__[2].__module__.partition(".")[0])
        self._answer_class = http.Response
        self._status_error = openai.APIStatusError
        self._timeout_errors = (openai.APITimeoutError, http.TimeoutException)
        self._errors = (openai.OpenAIError, http.HTTPError, http.StreamError, OSError)
        limit = http.Timeout(None, connect=min(_CONNECT_S, options.timeout))
        self._sdk = openai.AsyncOpenAI(
            api_key=key.reveal(),
            base_url=options.base_url,
            max_retries=0,
            timeout=limit,
            # A compressed body could grow beyond any bound when it is opened.
            default_headers={"Accept-Encoding": "identity"},
            http_client=bounded(
                follow_redirects=False,
                timeout=limit,
                # A proxy of the environment cannot reach this machine's own servers.
                trust_env=not options.is_loopback,
            ),
        )

    async def post(self, path: str, body: Mapping[str, Any], timeout: float) -> Answer:
        """Send JSON and return the answer, of any status.

        Raises:
            NoAnswer: None came within ``timeout`` seconds, or none that can be read.
        """
        send = self._sdk.post(path, body=dict(body), cast_to=self._answer_class)
        return await self._receive(send, timeout)

    async def get(self, path: str, timeout: float) -> Answer:
        """Ask for a resource and return the answer, of any status.

        Raises:
            NoAnswer: None came within ``timeout`` seconds, or none that can be read.
        """
        return await self._receive(
            self._sdk.get(path, cast_to=self._answer_class), timeout
        )

    async def _receive(self, sending: Any, timeout: float) -> Answer:
        began = time.perf_counter()
        late = f"no whole answer came within {timeout:.4g} s"
        try:
            async with asyncio.timeout(timeout):
                response = await sending
        except TimeoutError as error:
            raise NoAnswer("timeout", late) from error
        except self._status_error as error:
            response = error.response
        except self._timeout_errors as error:
            raise NoAnswer("timeout", "no connection came about in time") from error
        except (_Unreadable, *self._errors) as error:
            raise _as_no_answer(error) from error
        return Answer(
            status=response.status_code,
            headers={k.lower(): v for k, v in response.headers.items()},
            body=response.content,
            seconds=time.perf_counter() - began,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._sdk.close()


def _as_no_answer(error: BaseException) -> NoAnswer:
    """Return why no answer came; the SDK's own errors wrap the reason."""
    reason = error
    while reason.__cause__ is not None and not isinstance(reason, _Unreadable):
        reason = reason.__cause__
    if isinstance(reason, _Unreadable):
        return NoAnswer("malformed", str(reason))
    words = str(reason) or type(reason).__name__
    return NoAnswer("network", f"the connection failed: {words}")


def _bounded_client_class() -> type[Any]:
    """Return the SDK's HTTP client, made to read no more than it must."""
    from openai import DefaultAsyncHttpxClient

    class BoundedClient(DefaultAsyncHttpxClient):  # type: ignore[misc]
        async def send(self, request: Any, **options: Any) -> Any:
            options["stream"] = True
            response = await super().send(request, **options)
            try:
                body = await _read(response)
            finally:
                await response.aclose()
            return type(response)(
                response.status_code,
                headers=response.headers,
                content=body,
                request=request,
            )

    return BoundedClient


async def _read(response: Any) -> bytes:
    """Return a body, as long as it stays within the limit.

    Raises:
        _Unreadable: It is too long, or compressed although nobody asked for that.
    """
    encoding = response.headers.get("content-encoding", "identity").strip()
    if encoding.lower() not in ("", "identity"):
        raise _Unreadable(f"the body is compressed with {encoding!r:.40}, unasked")
    too_long = f"the body is longer than {BODY_LIMIT} bytes"
    declared = response.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > BODY_LIMIT:
        raise _Unreadable(too_long)
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > BODY_LIMIT:
            raise _Unreadable(too_long)
    return bytes(body)
