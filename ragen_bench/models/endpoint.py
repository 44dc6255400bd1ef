"""``openai:NAME``: a model behind any HTTP server that speaks OpenAI's chat protocol.

Each waiting episode has one request in flight.  Faults that pass are asked again here,
within bounds; what is left ends one episode, or the run where no request can go well.

`EndpointModel.probe` and `EndpointModel.look_up` send one raw request each, without
retry and judgement: ``ragen-bench doctor`` finds out with them what a server takes.
"""

import asyncio
import dataclasses
import json
import os
import random
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from ragen_bench.errors import (
    ContextOverflow,
    InvalidSpec,
    ProviderError,
    ProviderRefusal,
)
from ragen_bench.model import (
    Completion,
    Conversation,
    Examination,
    Model,
    Sampling,
)
from ragen_bench.models import endpoint_options as settings
from ragen_bench.models.endpoint_client import Answer, NoAnswer, require_extra
from ragen_bench.models.endpoint_faults import Fault, error_text, judge
from ragen_bench.models.endpoint_key import USUAL, Key, find_key
from ragen_bench.models.endpoint_lines import Line, Lines
from ragen_bench.models.endpoint_options import EndpointOptions
from ragen_bench.models.endpoint_reply import BadReply, read_reply
from ragen_bench.models.endpoint_request import request_body
from ragen_bench.models.endpoint_tries import Tries
from ragen_bench.models.hf_options import switch, whole_number

_FAILURES_IN_A_ROW = 20
_CHAT = "/chat/completions"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one raw request led to."""

    status: int | None
    """HTTP status, None if no whole answer came."""
    body: Any
    """The parsed JSON, None if there is none."""
    error: str | None
    """What went wrong, in one line; None for a success with a JSON body."""
    seconds: float | None
    """From the request to the last byte."""


class EndpointModel(Model):
    """A model that a server serves.  May be used from several event loops at once.

    Args:
        name: What the server calls the model.
        options: How it is asked.
        key: The server's key.
        max_context: Tokens of prompt and reply together, None if unknown.
    """

    deterministic: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        options: EndpointOptions,
        key: Key,
        *,
        max_context: int | None = None,
    ) -> None:
        self.name = f"openai:{name}"
        self.served_name = name
        self.options = options
        self.max_context = max_context
        self._key = key
        self._lines = Lines(options, key)
        self._lock = threading.Lock()
        self._refused: str | None = None
        self._failed_in_a_row = 0
        # Waits of this class alone hang on it, never a result.
        self._jitter = random.Random()

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message of a conversation.

        Raises:
            ContextOverflow: The prompt leaves no room for a reply.
            ProviderError: No reply came, as often as it was asked for.
            ProviderRefusal: The key, the account or a parameter is refused, or nothing
                has gone well for a long time.
        """
        body = self.request(conversation, sampling)
        line = self._lines.here()
        tries = Tries(self.options, self._jitter)
        while True:
            if self._refused is not None:
                raise ProviderRefusal(self._refused)
            outcome = await self._attempt(line, body, sampling, tries)
            if isinstance(outcome, Completion):
                self._failed_in_a_row = 0
                return tries.sign(outcome)
            tries.failed.append(outcome.message)
            if outcome.usage is not None:
                tries.discarded.append(outcome.usage)
            wait = tries.wait_after(outcome)
            if wait is None:
                raise self._failure(outcome, tries, line)
            tries.spent += wait
            await asyncio.sleep(wait)

    def request(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        """Return the body that is sent for a reply."""
        return request_body(self.served_name, conversation, sampling, self.options)

    async def _attempt(
        self,
        line: Line,
        body: Mapping[str, Any],
        sampling: Sampling,
        tries: Tries,
    ) -> Completion | Fault:
        async with line.gate.slot():
            if self._refused is not None:
                raise ProviderRefusal(self._refused)
            began = asyncio.get_running_loop().time()
            try:
                answer = await line.client.post(_CHAT, body, tries.next_timeout())
                fault = judge(answer, body)
                if fault is None:
                    completion = read_reply(answer, body, sampling, self._key)
                    tries.seconds = answer.seconds
            except NoAnswer as error:
                transient = error.kind != "malformed"
                fault = Fault(
                    kind="transient" if transient else "malformed",
                    message=str(error),
                    overload=error.kind == "timeout",
                )
            except BadReply as error:
                fault = error.fault
            tries.spent += asyncio.get_running_loop().time() - began
            if fault is None:
                line.gate.answered()
                return completion
            if fault.overload:
                line.gate.overloaded()
        hidden = self._key.hide_parts(fault.message)
        return dataclasses.replace(fault, message=hidden)

    def _failure(self, fault: Fault, tries: Tries, line: Line) -> Exception:
        """Return the error that a last fault becomes."""
        if fault.kind == "context":
            self._failed_in_a_row = 0
            return ContextOverflow(
                f"{fault.message}; shorten the context or the prompt"
            )
        if fault.kind == "refusal":
            self._refused = f"{self.name}: {fault.message}{self._about_key(fault)}"
            return ProviderRefusal(self._refused)
        message = f"{fault.message}{tries.told()}"
        if fault.kind == "filtered":
            self._failed_in_a_row = 0
            return ProviderError(message)
        with self._lock:
            self._failed_in_a_row += 1
            failed = self._failed_in_a_row
        if failed > max(_FAILURES_IN_A_ROW - 1, line.gate.most_in_flight):
            self._refused = (
                f"{self.name}: is the server down? The last {failed} requests failed "
                f"for good and none went well between them, the last one so: {message}"
            )
            return ProviderRefusal(self._refused)
        return ProviderError(message)

    def _about_key(self, fault: Fault) -> str:
        if "refuses the key" not in fault.message:
            return ""
        if self._key.is_known:
            return f"; set {self._key.source} right and run the same command again"
        return (
            f"; put a key into {USUAL}, or name another variable with "
            "--model-arg api_key_env=NAME"
        )

    async def probe(self, body: Mapping[str, Any], path: str = _CHAT) -> Probe:
        """Send one raw request and tell what came back, whatever it is.

        Nothing is retried, judged or counted; the key shows nowhere.

        Args:
            body: The JSON to send; ``model`` is added if it is missing.
            path: Where, behind the base URL.
        """
        whole_body = {"model": self.served_name, **body}
        client = self._lines.here().client
        try:
            answer = await client.post(path, whole_body, self.options.timeout)
        except NoAnswer as error:
            return self._no_probe(error)
        return self._probe_of(answer)

    async def look_up(self, path: str = "/models") -> Probe:
        """Ask for a resource and tell what came back; see `probe`."""
        try:
            answer = await self._lines.here().client.get(path, self.options.timeout)
        except NoAnswer as error:
            return self._no_probe(error)
        return self._probe_of(answer)

    def _no_probe(self, error: NoAnswer) -> Probe:
        message = self._key.hide_parts(str(error))
        return Probe(status=None, body=None, error=message, seconds=None)

    def _probe_of(self, answer: Answer) -> Probe:
        error = None
        try:
            text = answer.body.decode("utf-8-sig")
            body = json.loads(self._key.hide(text))
        except (ValueError, RecursionError):
            body, error = None, f"not JSON: {error_text(answer)}"
        if not 200 <= answer.status < 300:
            error = error_text(answer) or f"status {answer.status}"
        return Probe(
            status=answer.status,
            body=body,
            error=None if error is None else self._key.hide_parts(error),
            seconds=answer.seconds,
        )

    async def examine(
        self, conversation: Conversation, sampling: Sampling
    ) -> Examination:
        """Find out what the server takes and tells, with a few requests."""
        from ragen_bench.models.endpoint_probe import examine_endpoint

        return await examine_endpoint(self, conversation, sampling)

    def describe(self) -> Mapping[str, Any]:
        """Return where the model is served and which fields are sent."""
        return {
            "base_url": self.options.base_url,
            "parameters": self.options.sent(),
            "template": "server-side",
        }

    async def aclose(self) -> None:
        """Close the connections of the running event loop.

        They open again on demand.
        """
        self._refused = None
        self._failed_in_a_row = 0
        await self._lines.close_here()


def load(
    rest: str,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    max_tokens_field: str = "max_tokens",
    omit: str | list[str] = "",
    extra_body: str | Mapping[str, Any] = "{}",
    system: str = "system",
    send_reasoning: str | bool = False,
    send_stop: str | bool = True,
    max_in_flight: int | str = 64,
    timeout: float | str = 120,
    patience: float | str = 600,
    retries: int | str = 8,
    backoff: float | str = 0.5,
    max_context: int | str | None = None,
) -> EndpointModel:
    """Return the model that a server calls ``rest``.

    Args:
        rest: The model's name there.
        base_url: Where it is served; None takes ``OPENAI_BASE_URL``, then OpenAI.
        api_key_env: The environment variable that holds the key, ``OPENAI_API_KEY``
            by default.  Servers that want no key need none.
        max_tokens_field: ``"max_tokens"`` or ``"max_completion_tokens"``.
        omit: Parameters that are not sent: ``temperature``, ``top_p``, ``stop``,
            ``seed``, as a list or separated by commas.
        extra_body: Further fields of each request, as a JSON object.
        system: The role of the rules: ``"system"``, ``"developer"``, or ``"merge"``
            to put them into the first user message.
        send_reasoning: Whether a reply's reasoning goes back on later turns: false,
            ``"reasoning_content"``, ``"reasoning"``, or ``"inline"`` as ``<think>``.
        send_stop: Whether the server is told where a reply ends; the text is cut
            there in any case.
        max_in_flight: Requests at once, at most; fewer while the server is slow.
        timeout: Seconds of one attempt.
        patience: Seconds of one reply: all attempts and the waits between them.
        retries: Further attempts after faults that pass.
        backoff: Seconds of the first wait; each later one is twice as long.
        max_context: Tokens of prompt and reply together, if they are known.

    Raises:
        InvalidSpec: A setting breaks a rule, or there is no key where there must be.
        UnknownName: A setting names what does not exist.
        MissingExtra: The openai SDK is not installed.
    """
    if not rest:
        raise InvalidSpec("openai: names no model; give openai:NAME")
    address = settings.parse_base_url(
        base_url or os.environ.get("OPENAI_BASE_URL") or settings.HOSTED
    )
    omitted = settings.parse_omit(omit, switch("send_stop", send_stop))
    options = EndpointOptions(
        base_url=address,
        max_tokens_field=settings.one_of(
            "max_tokens_field", max_tokens_field, get_args(settings.TokensField)
        ),
        omit=omitted,
        extra_body=settings.parse_extra_body(extra_body),
        system=settings.one_of("system", system, get_args(settings.SystemRole)),
        send_reasoning=settings.parse_send_reasoning(send_reasoning),
        max_in_flight=whole_number("max_in_flight", max_in_flight) or 1,
        timeout=settings.positive("timeout", timeout),
        patience=settings.positive("patience", patience),
        retries=settings.count_from_zero("retries", retries),
        backoff=settings.positive("backoff", backoff),
    )
    key = find_key(api_key_env, hosted=address == settings.HOSTED)
    settings.refuse_key(key, address, options.extra_body)
    require_extra("a model behind an HTTP endpoint")
    limit = whole_number("max_context", max_context)
    return EndpointModel(rest, options, key, max_context=limit)
