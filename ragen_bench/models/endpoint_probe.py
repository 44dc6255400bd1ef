"""What a server takes and tells, found out with a few raw requests.

Nothing is guessed from a model's name: the request of an ordinary run is sent, and
whatever the server refuses is left out or sent another way until it answers.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from ragen_bench.model import Conversation, Examination, Finding, Sampling
from ragen_bench.models.endpoint import EndpointModel, Probe
from ragen_bench.models.endpoint_faults import refused_parameter
from ragen_bench.models.endpoint_options import (
    OMITTABLE,
    EndpointOptions,
    TokensField,
)
from ragen_bench.models.endpoint_request import request_body

MOST_REQUESTS = 5
"""Chat requests of one examination; the list of models is asked for besides."""

_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_CHANGES = {
    "max_tokens_field": "the length of a reply is bounded by {0}",
    "omit": "the server takes no {0}",
    "system": "the server takes no such role for the rules; they go into the first "
    "user message",
}


async def examine_endpoint(
    model: EndpointModel, conversation: Conversation, sampling: Sampling
) -> Examination:
    """Return what a server takes and tells; see `Model.examine`."""
    search = _Search(model, conversation, sampling)
    answer = await search.run()
    listed = await model.look_up()
    findings = [*search.findings]
    arguments = search.arguments()
    if answer is not None:
        findings += _about_parameters(arguments, search.options)
        findings += _about_answer(answer, model.served_name, sampling)
    limit = _context_of(listed, model.served_name)
    findings += _about_list(listed, model, limit)
    if limit is not None and model.max_context is None and answer is not None:
        arguments["max_context"] = limit
    return Examination(
        findings=tuple(findings), arguments=arguments, requests=search.requests
    )


class _Search:
    """The search for a request that a server takes.

    Args:
        model: The server's model.
        conversation: What is asked.
        sampling: How.
    """

    def __init__(
        self, model: EndpointModel, conversation: Conversation, sampling: Sampling
    ) -> None:
        self.options = model.options
        self.requests = 0
        self.findings: list[Finding] = []
        self._model = model
        self._conversation = conversation
        self._sampling = sampling
        self._sent: Mapping[str, Any] = {}

    async def run(self) -> Probe | None:
        """Return the answer to the first request that was taken, None if none was."""
        tried: list[EndpointOptions] = []
        while True:
            probe = await self._ask(self.options)
            if probe.error is None:
                return probe
            if probe.status not in (400, 422) or self.requests >= MOST_REQUESTS:
                break
            tried.append(self.options)
            name = refused_parameter(_bytes(probe), self._sent)
            changed = _without(self.options, name) if name else None
            if changed is None or changed in tried:
                found = await self._search_in_the_dark()
                if found is not None:
                    return found
                break
            self.options = changed
        self.findings.append(_failure(probe))
        return None

    def arguments(self) -> dict[str, Any]:
        """Return the model arguments that differ from those that were given."""
        before, now = self._model.options, self.options
        found: dict[str, Any] = {}
        if now.max_tokens_field != before.max_tokens_field:
            found["max_tokens_field"] = now.max_tokens_field
        if now.omit != before.omit:
            found["omit"] = ",".join(name for name in OMITTABLE if name in now.omit)
        if now.system != before.system:
            found["system"] = now.system
        return found

    async def _ask(self, options: EndpointOptions) -> Probe:
        self.requests += 1
        self._sent = request_body(
            self._model.served_name, self._conversation, self._sampling, options
        )
        return await self._model.probe(self._sent)

    async def _search_in_the_dark(self) -> Probe | None:
        """Find what is refused where the server does not say.

        First all optional fields are left out, then the others are sent another way;
        what was left out comes back in halves.
        """
        start = self.options
        bare = dataclasses.replace(start, omit=frozenset(OMITTABLE))
        other = next(f for f in get_args(TokensField) if f != start.max_tokens_field)
        ways = [
            bare,
            dataclasses.replace(bare, max_tokens_field=other),
            dataclasses.replace(bare, system="merge"),
        ]
        for way in ways:
            if self.requests >= MOST_REQUESTS:
                return None
            probe = await self._ask(way)
            if probe.error is None:
                self.options = way
                return await self._bring_back(way, start.omit, probe)
        return None

    async def _bring_back(
        self, way: EndpointOptions, omit: frozenset[str], probe: Probe
    ) -> Probe:
        """Send as many of the optional fields again as the server takes."""
        halves = [frozenset({"stop", "seed"}), frozenset({"temperature", "top_p"})]
        # Where another field was the culprit, all optional ones may come back.
        before = self._model.options
        alike = (way.max_tokens_field, way.system) == (
            before.max_tokens_field,
            before.system,
        )
        whole = [] if alike else [omit]
        for left_out in [*whole, *(omit | half for half in halves)]:
            if self.requests >= MOST_REQUESTS:
                break
            options = dataclasses.replace(way, omit=left_out)
            again = await self._ask(options)
            if again.error is None:
                self.options = options
                return again
        return probe


def _without(options: EndpointOptions, name: str) -> EndpointOptions | None:
    """Return options that send a refused field in another way, or not at all.

    None if there are none.
    """
    if name in OMITTABLE:
        return dataclasses.replace(options, omit=options.omit | {name})
    if name in get_args(TokensField):
        other = next(f for f in get_args(TokensField) if f != name)
        return dataclasses.replace(options, max_tokens_field=other)
    if name in ("system", "developer"):
        return dataclasses.replace(options, system="merge")
    return None


def _bytes(probe: Probe) -> bytes:
    return json.dumps(probe.error if probe.body is None else probe.body).encode()


def _failure(probe: Probe) -> Finding:
    """Return what it means that no request was taken."""
    status = probe.status
    text = f"no reply: {probe.error}"
    if status is None:
        text += "; is the server up, and is --base-url its address?"
    elif status in (401, 403):
        text += "; put the key into OPENAI_API_KEY, or name another variable with "
        text += "--model-arg api_key_env=NAME"
    elif status == 404:
        text += "; look at the model's name and at the end of --base-url, often /v1"
    return Finding(level="fix", topic="connection", text=text)


def _about_parameters(
    arguments: Mapping[str, Any], options: EndpointOptions
) -> Iterator[Finding]:
    sent = ", ".join(options.sent())
    yield Finding(level="ok", topic="parameters", text=f"the server takes {sent}")
    for name, value in arguments.items():
        shown = value.replace(",", ", ") if isinstance(value, str) else value
        yield Finding(
            level="fix",
            topic="parameters",
            text=_CHANGES[name].format(shown),
            flags=("--model-arg", f"{name}={value}"),
        )
    if "temperature" in options.omit:
        yield Finding(
            level="note",
            topic="parameters",
            text="without a temperature the server samples as it likes: no result "
            "here is greedy, and a repeat differs",
        )


def _about_answer(probe: Probe, name: str, sampling: Sampling) -> Iterator[Finding]:
    body = probe.body if isinstance(probe.body, dict) else {}
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    choice = choice if isinstance(choice, dict) else {}
    found = choice.get("message")
    message: Mapping[str, Any] = found if isinstance(found, dict) else {}
    if not message:
        yield Finding(level="fix", topic="reply", text="it holds no choice or message")
        return
    yield Finding(
        level="ok",
        topic="reply",
        text=f"finish_reason {choice.get('finish_reason')!r:.40}",
    )
    yield from _about_reasoning(message)
    usage = body.get("usage")
    written = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if isinstance(written, int) and written > sampling.max_tokens:
        yield Finding(
            level="note",
            topic="parameters",
            text=f"the bound of {sampling.max_tokens} tokens is not kept: {written} "
            "were written",
        )
    served = body.get("model")
    if isinstance(served, str) and served != name:
        yield Finding(
            level="note", topic="model", text=f"the server calls it {served!r:.80}"
        )


def _about_reasoning(message: Mapping[str, Any]) -> Iterator[Finding]:
    fields = [name for name in _REASONING_FIELDS if message.get(name)]
    content = message.get("content")
    if isinstance(content, list):
        kinds = {str(b.get("type")) for b in content if isinstance(b, dict)}
        fields += sorted(kinds & {"thinking", "reasoning"})
    elif isinstance(content, str) and re.search("</?think", content):
        fields.append("content, as <think>")
    if fields:
        yield Finding(
            level="note",
            topic="thinking",
            text=f"reasoning stands in {', '.join(fields)}; it is sent back on later "
            "turns only with --model-arg send_reasoning=...",
        )


def _about_list(
    listed: Probe, model: EndpointModel, limit: int | None
) -> Iterator[Finding]:
    names = [entry["id"] for entry in _entries(listed)]
    if names and model.served_name not in names:
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        yield Finding(
            level="note",
            topic="model",
            text=f"the server lists no {model.served_name!r}, but {shown}",
        )
    if limit is not None and model.max_context is None:
        yield Finding(
            level="note",
            topic="context",
            text=f"the server tells of {limit} tokens",
            flags=("--model-arg", f"max_context={limit}"),
        )


def _entries(listed: Probe) -> list[Mapping[str, Any]]:
    """Return the models of a server's list that have a name."""
    body = listed.body if isinstance(listed.body, dict) else {}
    data = body.get("data")
    entries = data if isinstance(data, list) and listed.error is None else []
    return [
        entry
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]


def _context_of(listed: Probe, name: str) -> int | None:
    """Return the context length that a server's list tells, as vLLM's does."""
    for entry in _entries(listed):
        for field in ("max_model_len", "context_length"):
            limit = entry.get(field)
            if entry["id"] == name and type(limit) is int and limit > 0:
                return limit
    return None
