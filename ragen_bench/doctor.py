"""What is wrong with a model's set-up, before a run finds out the hard way.

Two ordinary replies, the first two turns of one episode, show how replies end, what
they cost in tokens and time and whether they can be played.  What else there is to
know depends on the kind of model, which tells it itself (`Model.examine`).
"""

import asyncio
import dataclasses
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragen_bench.agent import Reply
from ragen_bench.chat import ChatAgent
from ragen_bench.episode import task_of
from ragen_bench.errors import (
    ContextOverflow,
    InvalidSpec,
    ProviderError,
    ProviderRefusal,
    RagenError,
)
from ragen_bench.model import Conversation, Examination, Finding, Model
from ragen_bench.plan import Plan
from ragen_bench.records import EpisodeKey
from ragen_bench.registry import make_model

CELL = "ragen/Sokoban-v0:2"
"""Where the two turns are played; one reply cannot solve it."""

_SEED = 0
_MANY = 5
"""Requests of the model's own examination, after which one more must do."""
_LONGER = 4
"""How many times as long a reply may be that was cut in mid-thought."""
_OPEN_THOUGHT = re.compile(r"<think(?:ing)?>(?!.*</think(?:ing)?>)", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an examination found."""

    model: str
    findings: tuple[Finding, ...]
    requests: int
    """How often the model was asked."""
    arguments: Mapping[str, Any]
    """Model arguments with which it works, beyond those that were given."""

    @property
    def healthy(self) -> bool:
        """Whether nothing has to be set."""
        return all(finding.level != "fix" for finding in self.findings)

    @property
    def flags(self) -> tuple[str, ...]:
        """The words to add to ``ragen-bench run``, each once."""
        words: list[str] = []
        for finding in self.findings:
            # Flags come in pairs of a name and a value.
            for pair in zip(finding.flags[::2], finding.flags[1::2], strict=True):
                known = list(zip(words[::2], words[1::2], strict=True))
                words += [] if pair in known else pair
        return tuple(words)


def examine(plan: Plan) -> Report:
    """Examine a plan's model; no event loop may be running in this thread.

    Args:
        plan: A plan that plays `CELL` with a `ChatAgent`.

    Raises:
        InvalidSpec: The agent asks no model, or in a way of its own.
    """
    return asyncio.run(_examine(plan))


async def _examine(plan: Plan) -> Report:
    model, agent = plan.model, plan.agent()
    if model is None or not isinstance(agent, ChatAgent):
        raise InvalidSpec(
            f"agent {plan.config.agent!r} does not ask a model as a chat; give --agent "
            "think_act or direct"
        )
    findings: list[Finding] = []
    try:
        found = await _ask_model(plan, model, agent)
        findings += found.findings
        requests = found.requests
        if not any(finding.topic == "connection" for finding in findings):
            if found.arguments:
                await model.aclose()
                given = {**plan.config.model_args, **found.arguments}
                model = make_model(plan.config.model or "", **given)
            turns = 2 if requests < _MANY else 1
            visit = await _visit(dataclasses.replace(plan, model=model), turns)
            requests += visit.asked
            findings += visit.findings
    finally:
        await model.aclose()
    return Report(
        model=model.name,
        findings=tuple(findings),
        requests=requests,
        arguments=found.arguments,
    )


async def _ask_model(plan: Plan, model: Model, agent: ChatAgent) -> Examination:
    """Return what the model tells of itself, and the facts that all models tell."""
    cell = plan.config.cells[0]
    conversation = Conversation(
        key=f"{cell.cell}/{plan.config.split}/{_SEED}/0",
        seed=_SEED,
        messages=plan.opening(cell),
    )
    try:
        found = await model.examine(conversation, agent.sampling)
    except (ProviderError, ProviderRefusal) as error:
        text = Finding(level="fix", topic="connection", text=str(error))
        return Examination(findings=(text,), requests=1)
    facts = tuple(_facts(model.describe()))
    return dataclasses.replace(found, findings=(*facts, *found.findings))


def _facts(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what a model's facts say, as far as they have a usual name."""
    names = ("class", "parameters", "dtype", "device")
    told = [f"{name} {facts[name]}" for name in names if facts.get(name) is not None]
    if told:
        yield Finding(level="ok", topic="model", text=", ".join(told))
    for note in facts.get("notes", ()):
        yield Finding(level="note", topic="model", text=str(note))


@dataclasses.dataclass(slots=True)
class _Visit:
    """Two turns of an episode, and what they show."""

    findings: list[Finding] = dataclasses.field(default_factory=list)
    asked: int = 0

    def say(self, level: Any, topic: str, text: str, *flags: str) -> None:
        self.findings.append(
            Finding(level=level, topic=topic, text=text, flags=tuple(flags))
        )


async def _visit(plan: Plan, turns: int) -> _Visit:
    """Play one turn or two and return what they show."""
    visit = _Visit()
    cell = plan.config.cells[0]
    env = plan.env(cell.env_id, cell.level)
    agent = plan.agent()
    assert isinstance(agent, ChatAgent)
    key = EpisodeKey(cell.env_id, cell.level, plan.config.split, _SEED, rep=0)
    observation, info = env.reset(seed=_SEED)
    shots = plan.shots(cell.env_id, cell.level)
    agent.reset(task_of(key, env, info["rules"], shots, agent, plan.config.salt))
    _about_context(visit, agent, observation)
    replies: list[tuple[Reply, float]] = []
    try:
        while len(replies) < turns and not (env.terminated or env.truncated):
            began = time.perf_counter()
            visit.asked += 1
            reply = await agent.act(observation, {})
            replies.append((reply, time.perf_counter() - began))
            observation, *_, told = env.step(
                reply.text, thinking=reply.thinking, finish_reason=reply.finish_reason
            )
            if len(replies) == 1:
                _about_answer(visit, agent, reply, told["parse"])
    except ContextOverflow as error:
        # The first prompt holds no past that could be left out.
        way_out = ("--context", "single") if replies else ("--prompt", "compact")
        visit.say("fix", "context", str(error), *way_out)
    except RagenError as error:
        visit.say("fix", "connection", str(error))
    if replies:
        _about_stop(visit, agent, [reply for reply, _ in replies])
        _about_thinking(visit, replies[0][0])
        _about_usage(visit, replies)
    return visit


def _about_context(visit: _Visit, agent: ChatAgent, observation: str) -> None:
    limit = agent.model.max_context
    prompt = agent.model.count_tokens(agent.messages(observation)[0])
    reply = agent.sampling.max_tokens
    if limit is None:
        visit.say(
            "note",
            "context",
            f"its length is unknown; the first prompt has about {prompt} tokens",
        )
    elif prompt + reply > limit:
        visit.say(
            "fix",
            "context",
            f"{limit} tokens do not hold the first prompt ({prompt}) and a reply "
            f"({reply})",
            "--prompt",
            "compact",
        )
    else:
        visit.say(
            "ok",
            "context",
            f"{limit} tokens; the first prompt has {prompt}, a reply at most {reply}",
        )


def _about_answer(visit: _Visit, agent: ChatAgent, reply: Reply, parse: str) -> None:
    if parse == "ok":
        visit.say("ok", "answer", "the first reply can be played")
        return
    limit = agent.sampling.max_tokens
    thinks = bool(reply.thinking) or _OPEN_THOUGHT.search(reply.text) is not None
    if reply.finish_reason == "length" and (thinks or not reply.text):
        visit.say(
            "fix",
            "answer",
            f"a reply of {limit} tokens was cut off in mid-thought, before its answer",
            "--max-tokens",
            str(_LONGER * limit),
        )
        return
    shown = " ".join(reply.text.split())
    visit.say(
        "note",
        "answer",
        f"the first reply cannot be played ({parse}): {shown!r:.90}; solved examples "
        "may help (--shots 2), or --agent direct",
    )


def _about_stop(visit: _Visit, agent: ChatAgent, replies: Sequence[Reply]) -> None:
    for stop in agent.sampling.stop:
        holders = [reply.text for reply in replies if stop in reply.text]
        if not holders:
            visit.say("note", "stop", f"no reply held {stop!r}, so nothing was seen")
        elif all(text.endswith(stop) and text.count(stop) == 1 for text in holders):
            visit.say("ok", "stop", f"a reply ends with {stop!r}, which is kept")
        else:
            visit.say(
                "fix",
                "stop",
                f"a reply goes on behind {stop!r}, which no setting mends: the model's "
                "class must cut it",
            )
    for reply in replies:
        for note in reply.details.get("notes", ()):
            visit.say("note", "stop", str(note))
            return


def _about_thinking(visit: _Visit, reply: Reply) -> None:
    hidden = reply.usage.reasoning_tokens or 0
    if reply.thinking:
        visit.say(
            "note",
            "thinking",
            f"reasoning comes apart from the reply ({len(reply.thinking)} characters)",
        )
    elif hidden:
        visit.say("note", "thinking", f"{hidden} reasoning tokens that nobody shows")
    elif re.search(r"</?think", reply.text):
        visit.say("ok", "thinking", "reasoning is part of the reply, and is parsed")
    else:
        visit.say("ok", "thinking", "none beside the reply")


def _about_usage(visit: _Visit, replies: Sequence[tuple[Reply, float]]) -> None:
    usages = [reply.usage for reply, _ in replies]
    if any(None in (usage.input_tokens, usage.output_tokens) for usage in usages):
        visit.say(
            "note", "usage", "tokens are not told: costs are unknown, no --budget works"
        )
    else:
        told = "; then ".join(
            f"{usage.input_tokens} read"
            + (f" ({usage.cached_tokens} cached)" if usage.cached_tokens else "")
            + f", {usage.output_tokens} written"
            for usage in usages
        )
        visit.say("ok", "usage", told)
    times = ", ".join(f"{seconds:.2g} s" for _, seconds in replies)
    visit.say("ok", "latency", f"replies took {times}")


def to_text(report: Report) -> str:
    """Return a report for people, a line for each finding."""
    lines = []
    for finding in report.findings:
        line = f"{finding.level:<4} {finding.topic}: {finding.text}"
        if finding.flags:
            line += f": {shlex.join(finding.flags)}"
        lines.append(line)
    times = "once" if report.requests == 1 else f"{report.requests} times"
    lines.append(f"{report.model} was asked {times}")
    if report.flags:
        lines.append(f"give: {shlex.join(report.flags)}")
    return "\n".join(lines)


def to_json(report: Report) -> dict[str, Any]:
    """Return a report as JSON-able values."""
    return {
        "model": report.model,
        "healthy": report.healthy,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "requests": report.requests,
        "model_args": dict(report.arguments),
        "flags": list(report.flags),
    }
