"""`check_agent`: conformance tests of an agent, played on small environments."""

import asyncio
import copy
import dataclasses
import functools
import inspect
import json
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

from ragen_bench.agent import Agent, AgentClass, Reply, Task
from ragen_bench.checks.case import expect, expect_same
from ragen_bench.checks.seeds import global_state
from ragen_bench.episode import play
from ragen_bench.errors import CheckFailed, InvalidSpec
from ragen_bench.model import FinishReason, Model, Usage
from ragen_bench.records import EpisodeKey
from ragen_bench.registry import make, make_agent, make_model

ENVS = ("ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0")
"""Small tasks; the bandit's actions are called otherwise in every episode."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentCase:
    """An agent, and the episodes to check it with."""

    build: Callable[[], Agent]
    keys: tuple[EpisodeKey, ...]
    deterministic: bool
    """Whether the same episode must bring the same replies."""
    alone: dict[EpisodeKey, list[Reply]] = dataclasses.field(default_factory=dict)
    """Replies of a new agent that plays by itself, as far as known."""

    async def expected(self, key: EpisodeKey) -> list[Reply]:
        """Return the replies of a new agent that plays by itself."""
        if key not in self.alone:
            self.alone[key] = await _play(self.build(), key)
        return self.alone[key]

    async def compare(
        self, key: EpisodeKey, replies: Sequence[Reply], message: str
    ) -> None:
        """Fail unless the replies are those that are expected."""
        if self.deterministic:
            expect_same(
                [_said(reply) for reply in await self.expected(key)],
                [_said(reply) for reply in replies],
                f"{key}: {message} differ in (text, thinking, finish_reason)",
            )


class _Watched(Agent):
    """Plays as another agent does, and keeps what passes."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.replies: list[Reply] = []
        self.fault: CheckFailed | None = None

    def reset(self, task: Task) -> None:
        """Begin an episode."""
        self.replies = []
        self.agent.reset(task)

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        """Answer, after any other agent that waits for its turn."""
        await asyncio.sleep(0)
        before = copy.deepcopy(dict(info))
        reply = await self.agent.act(observation, info)
        try:
            turn = f"turn {len(self.replies) + 1}"
            expect_same(before, dict(info), f"{turn}: act changed its info")
            _check_reply(reply, turn)
        except CheckFailed as fault:
            self.fault = fault
            raise
        self.replies.append(reply)
        return reply


class _WatchedPrivileged(_Watched):
    privileged = True


def _check_reply(reply: object, turn: str) -> None:
    if not isinstance(reply, Reply):
        raise CheckFailed(f"{turn}: act returned {reply!r}, but must return a Reply")
    kinds = {
        "text": str,
        "thinking": str | None,
        "usage": Usage,
        "prompt_sha256": str | None,
        "context_cut": int,
    }
    for name, kind in kinds.items():
        value = getattr(reply, name)
        expect(isinstance(value, kind), f"{turn}: {name} of the reply is {value!r}")
    expect(
        reply.finish_reason in get_args(FinishReason),
        f"{turn}: finish_reason of the reply is {reply.finish_reason!r}",
    )
    try:
        json.dumps(dict(reply.details), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckFailed(
            f"{turn}: details of the reply are not JSON: {error}"
        ) from error


async def _play(agent: Agent, key: EpisodeKey) -> list[Reply]:
    """Return the replies of one episode."""
    watched = (_WatchedPrivileged if agent.privileged else _Watched)(agent)
    env = make(key.env_id, level=key.level, split=key.split)
    episode, _ = await play(env, watched, key)
    if watched.fault is not None:
        raise CheckFailed(f"{key}, {watched.fault}")
    expect(
        episode.error is None,
        f"{key} ended as {episode.outcome} in turn {len(episode.turns) + 1}: "
        f"{episode.error}",
    )
    return watched.replies


async def declares_what_it_is(case: AgentCase) -> None:
    """It is an `Agent` whose class and privilege are known."""
    agent = case.build()
    expect(isinstance(agent, Agent), f"{agent!r} is not a ragen_bench.Agent")
    expect(
        agent.agent_class in get_args(AgentClass),
        f"agent_class is {agent.agent_class!r}, but must be one of "
        f"{', '.join(get_args(AgentClass))}",
    )
    expect(
        type(agent.privileged) is bool,
        f"privileged is {agent.privileged!r}, but must be a bool",
    )


async def plays_to_the_end(case: AgentCase) -> None:
    """It plays several tasks without error, with well-formed replies."""
    for key in case.keys:
        await case.expected(key)


async def reset_makes_it_fresh(case: AgentCase) -> None:
    """One object plays an episode, after others, as a new object plays it."""
    agent = case.build()
    for key in (*case.keys, case.keys[0]):
        replies = await _play(agent, key)
        await case.compare(key, replies, "a new agent and a used one")


async def agents_are_independent(case: AgentCase) -> None:
    """Two agents that play by turns do not feel each other."""
    for keys in zip(case.keys[::2], case.keys[1::2], strict=False):
        both = await asyncio.gather(*(_play(case.build(), key) for key in keys))
        for key, replies in zip(keys, both, strict=True):
            await case.compare(key, replies, "played alone and beside another agent")


async def global_randomness_is_untouched(case: AgentCase) -> None:
    """Neither `random` nor NumPy's global generator is drawn from or seeded."""
    before = global_state()
    await _play(case.build(), case.keys[0])
    for name, state in global_state().items():
        expect(
            state == before[name],
            f"{case.keys[0]} moved the global generator of {name}; draw from a "
            "stream that task.seed seeds",
        )


def _said(reply: Reply) -> tuple[str, str | None, str]:
    return reply.text, reply.thinking, reply.finish_reason


_CHECKS: tuple[Callable[[AgentCase], Awaitable[None]], ...] = (
    declares_what_it_is,
    plays_to_the_end,
    reset_makes_it_fresh,
    agents_are_independent,
    global_randomness_is_untouched,
)


def check_agent(
    agent: str | type[Agent],
    *,
    model: Model | str | None = None,
    envs: Sequence[str] = ENVS,
    seeds: Sequence[int] = (0, 1),
    deterministic: bool | None = None,
    **arguments: Any,
) -> tuple[str, ...]:
    """Check that an agent keeps every promise that a run relies on.

    Each episode is played several times, so that a slow model takes a while.

    Args:
        agent: A registered name, ``"package.module:Class"``, or a class.
        model: The language model of an agent that takes one, or its name.
        envs: Ids of the tasks to play, at level 1 of the train split.
        seeds: The episodes of each task.
        deterministic: Whether the same episode must bring the same replies; by
            default, unless the model says that it is not.
        **arguments: The agent's own.

    Returns:
        The names of the checks, all of which passed.

    Raises:
        CheckFailed: A promise is broken; the message says which, where and how.
        UnknownName: No such agent, model, argument or environment.
        InvalidSpec: The agent needs a model and has none, or nothing is played.
    """
    keys = [EpisodeKey(env, 1, "train", seed, 0) for env in envs for seed in seeds]
    if len(keys) < 2:
        raise InvalidSpec("envs and seeds must give at least two episodes")
    owned = make_model(model) if isinstance(model, str) else None
    player = owned if owned is not None else model
    assert not isinstance(player, str)
    if deterministic is None:
        deterministic = player is None or player.deterministic
    case = AgentCase(
        build=_builder(agent, player, arguments),
        keys=tuple(keys),
        deterministic=deterministic,
    )
    name = agent if isinstance(agent, str) else agent.__name__

    async def check_all() -> None:
        try:
            for check in _CHECKS:
                await _run(check, case, name)
        finally:
            if owned is not None:
                await owned.aclose()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _in_own_loop(check_all)
    return tuple(check.__name__ for check in _CHECKS)


def _in_own_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run to the end, in a thread of its own where an event loop runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work())
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work()).result()


def _builder(
    agent: str | type[Agent], model: Model | None, arguments: dict[str, Any]
) -> Callable[[], Agent]:
    if isinstance(agent, str):
        return functools.partial(make_agent, agent, model, **arguments)
    if "model" in inspect.signature(agent).parameters:
        arguments = {**arguments, "model": model}
    return functools.partial(agent, **arguments)


async def _run(
    check: Callable[[AgentCase], Awaitable[None]], case: AgentCase, name: str
) -> None:
    which = check.__name__
    try:
        await check(case)
    except CheckFailed as fault:
        raise CheckFailed(f"agent {name} fails {which}: {fault}", which) from fault
    except Exception as fault:  # whatever an agent raises is a finding
        what = f"{type(fault).__name__}: {fault}"
        raise CheckFailed(f"agent {name} fails {which}: {what}", which) from fault
