"""One episode: an environment and an agent take turns until one of them ends it."""

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any, get_args

from ragen_bench.agent import Agent, Reply, Shot, Task
from ragen_bench.errors import ContextOverflow, ProviderError, RunIncomplete
from ragen_bench.model import FinishReason, Usage
from ragen_bench.records import (
    MAX_INT,
    MAX_VALUES,
    Episode,
    EpisodeKey,
    Outcome,
    Turn,
    TurnUsage,
    count_values,
    plain_json,
)
from ragen_bench.seeding import child_seed
from ragen_bench.symbolic import SymbolicEnv
from ragen_bench.text_env import TextEnv

_HIDDEN = frozenset({"action_mask", "progress", "success", "scored_reward", "thinking"})
"""What an environment's info tells that a player must not know."""

_FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)
_REPLY: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "thinking": (str, type(None)),
    "prompt_sha256": (str, type(None)),
    "context_cut": (int,),
    "usage": (Usage,),
    "details": (Mapping,),
}
_MOST_DETAILS = MAX_VALUES * 3 // 4
"""Values in the details of all replies to one episode; the rest is for the moves."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What an instance is worth: the same for every episode on it."""

    instance: str
    floor: float
    ceiling: float
    optimal_cost: int | None


def reference(env: TextEnv) -> Reference:
    """Return the reference values of a freshly reset environment."""
    core: SymbolicEnv[Any] = env.core
    limits = env.limits
    player = core
    reach = limits.max_turns * limits.max_actions_per_turn
    if reach < core.actions_left:
        # The replies cannot hold all actions: random play ends sooner.
        player = core.clone()
        player.actions_taken = core.limits.max_actions - reach
    return Reference(
        instance=core.instance_digest(),
        floor=player.random_value(),
        ceiling=core.turn_limited_value(limits.max_turns, limits.max_actions_per_turn),
        optimal_cost=core.optimal_cost(),
    )


def outcome_of(env: TextEnv) -> Outcome:
    """Return the bucket of an episode that ran to its end."""
    if env.core.success:
        return "solved"
    if env.truncated:
        return "turn_limit"
    return "finished" if env.core.success is None else "failed"


def noise_rep(rep: int, salt: str) -> int:
    """Return what `TextEnv.reset` is given as ``rep``: salt moves the noise."""
    return child_seed(rep, "salt", salt) if salt else rep


def task_of(
    key: EpisodeKey,
    env: TextEnv,
    rules: str,
    shots: tuple[Shot, ...],
    agent: Agent,
    salt: str,
) -> Task:
    """Return what an agent is told before an episode of a reset environment."""
    return Task(
        key=str(key),
        env_id=key.env_id,
        level=key.level,
        rules=rules,
        action_names=env.action_names,
        max_turns=env.limits.max_turns,
        max_actions=env.core.limits.max_actions,
        max_actions_per_turn=env.limits.max_actions_per_turn,
        seed=child_seed(key.seed, "agent", str(key), salt),
        prompt=env.prompt,
        shots=shots,
        env=env if agent.privileged else None,
    )


async def play(
    env: TextEnv,
    agent: Agent,
    key: EpisodeKey,
    *,
    known: Reference | None = None,
    shots: tuple[Shot, ...] = (),
    salt: str = "",
    timeout: float | None = None,
) -> tuple[Episode, Reference]:
    """Play one episode and return its record.

    Whatever the agent raises is an outcome, never an exception of this function, but
    for `RunIncomplete`, which ends the whole run.  What the environment raises is a
    bug of the environment and passes through.

    Args:
        env: An environment of the episode's cell.
        agent: A player that no other running episode uses.
        key: Which episode.
        known: The instance's reference, if an earlier episode computed it.
        shots: Solved examples for the prompt.
        salt: Moves noise and sampling.
        timeout: Wall-clock seconds that the whole episode may take.
    """
    options = {"rep": noise_rep(key.rep, salt)}
    observation, info = env.reset(seed=key.seed, options=options)
    known = known or reference(env)
    task = task_of(key, env, info["rules"], shots, agent, salt)
    game = _Game(env, agent, observation, info)
    outcome: Outcome | None = None
    error: str | None = None
    deadline = asyncio.timeout(timeout)
    try:
        async with deadline:
            agent.reset(task)
            while game.playing:
                await game.take_turn()
    except ContextOverflow as fault:
        outcome, error = "context_overflow", str(fault)
    except ProviderError as fault:
        outcome, error = "provider_error", str(fault)
    except RunIncomplete:
        raise
    except _EnvironmentFault as fault:
        raise fault.__cause__ or fault from None
    except asyncio.CancelledError as fault:
        if _is_cancelled():
            raise
        outcome, error = "agent_error", _describe(fault)
    # An agent may fail in any way, and that is a result.
    except (Exception, SystemExit) as fault:
        if isinstance(fault, TimeoutError) and deadline.expired():
            outcome, error = "timeout", f"took more than {timeout} s"
        else:
            outcome, error = "agent_error", _describe(fault)
    return game.record(key, known, task, outcome or outcome_of(env), error), known


def _is_cancelled() -> bool:
    """Return whether somebody stops this task; an agent may raise on its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _describe(fault: BaseException) -> str:
    try:
        return f"{type(fault).__name__}: {fault}"
    except Exception:  # even the message of a stranger's exception may fail
        return type(fault).__name__


class _EnvironmentFault(Exception):
    """The environment itself raised: a bug of ours, not an agent's failure."""


class _Game:
    """An episode in progress."""

    def __init__(
        self, env: TextEnv, agent: Agent, observation: str, info: Mapping[str, Any]
    ) -> None:
        self.env = env
        self.agent = agent
        self.observation = observation
        self.info = info
        self.turns: list[Turn] = []
        self.details_left = _MOST_DETAILS
        self.playing = True

    async def take_turn(self) -> None:
        """Ask the agent and play what it says."""
        shown = {k: v for k, v in self.info.items() if k not in _HIDDEN}
        began = time.perf_counter()
        reply = await self.agent.act(self.observation, shown)
        latency = time.perf_counter() - began
        # All that can be refused is refused before the environment moves.
        usage, details = _facts(reply, self.details_left)
        self.details_left -= count_values(details)
        try:
            after, reward, terminated, truncated, info = self.env.step(
                reply.text, thinking=reply.thinking, finish_reason=reply.finish_reason
            )
        except Exception as fault:
            raise _EnvironmentFault from fault
        self.turns.append(
            Turn(
                observation=self.observation,
                response=reply.text,
                thinking=info["thinking"],
                actions=info["actions"],
                effective=info["effective"],
                parse=info["parse"],
                valid=info["valid"],
                reward=reward,
                reward_parts=info["reward_parts"],
                scored_reward=info["scored_reward"],
                prompt_sha256=reply.prompt_sha256,
                context_cut=reply.context_cut,
                usage=usage,
                finish_reason=reply.finish_reason,
                latency_s=round(latency, 6),
                details=details,
            )
        )
        self.observation = after
        self.info = info
        self.playing = not (terminated or truncated)

    def record(
        self,
        key: EpisodeKey,
        known: Reference,
        task: Task,
        outcome: Outcome,
        error: str | None,
    ) -> Episode:
        """Return the episode as it stands."""
        success = self.env.core.success
        return Episode(
            env_id=key.env_id,
            level=key.level,
            split=key.split,
            seed=key.seed,
            rep=key.rep,
            instance=known.instance,
            outcome=outcome,
            success=success,
            episode_return=sum(turn.scored_reward for turn in self.turns),
            floor=known.floor,
            ceiling=known.ceiling,
            optimal_cost=known.optimal_cost,
            terminated=self.env.terminated,
            truncated=self.env.truncated,
            error=error,
            rules=task.rules,
            turns=tuple(self.turns),
            final_observation=self.observation,
        )


def _facts(reply: Reply, room: int) -> tuple[TurnUsage, dict[str, Any]]:
    """Return a reply's usage and details for the record.

    What verification could not read back is refused here, before it is recorded.

    Args:
        reply: What the agent returned.
        room: How many values its details may hold.

    Raises:
        TypeError: The agent returned something else than a sound `Reply`.
        ValueError: A value is out of range, or its details are not strict JSON or
            hold too many values.
    """
    if not isinstance(reply, Reply):
        raise TypeError(f"act returned {reply!r:.80}, but must return a Reply")
    for name, kinds in _REPLY.items():
        value = getattr(reply, name)
        if not isinstance(value, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"the reply's {name} is {value!r:.80}, not {wanted}")
    if reply.finish_reason not in _FINISH_REASONS:
        raise ValueError(
            f"the reply's finish_reason is {reply.finish_reason!r:.80}, but must be "
            f"one of {_FINISH_REASONS}"
        )
    tokens = reply.usage
    usage = TurnUsage(
        input_tokens=tokens.input_tokens,
        cached_tokens=tokens.cached_tokens,
        output_tokens=tokens.output_tokens,
        reasoning_tokens=tokens.reasoning_tokens,
    )
    for name, count in (("context_cut", reply.context_cut), *usage):
        if count is not None and not 0 <= count < MAX_INT:
            raise ValueError(f"the reply's {name} is {count}, but must be from 0 on")
    details = plain_json(dict(reply.details)) if reply.details else {}
    if count_values(details) > room:
        raise ValueError(
            f"the reply's details hold {count_values(details)} values, but those of an "
            f"episode may hold {_MOST_DETAILS} in all; {max(room, 0)} are left"
        )
    return usage, details
