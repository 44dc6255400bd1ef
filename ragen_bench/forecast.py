"""What a run would ask of a model: episodes, prompts and an upper bound of tokens."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ragen_bench.cell_scores import known_sum
from ragen_bench.chat import ChatAgent
from ragen_bench.model import Message
from ragen_bench.plan import Plan
from ragen_bench.prices import Tokens, cost, money
from ragen_bench.records import CellPlan, Price
from ragen_bench.seeding import Stream
from ragen_bench.text_env import TextEnv

_SAMPLES = 3

ASSUMPTION = (
    "upper bound: every episode takes all its turns, every reply all its tokens, and "
    f"no observation is longer than the longest of {_SAMPLES} random episodes of its "
    "cell"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CellForecast:
    """What one cell of a run would ask of a model."""

    cell: str
    """Such as ``"ragen/Bandit-v0:1"``."""
    env_id: str
    episodes: int
    opening: tuple[Message, ...]
    """The first prompt of the first episode."""
    input_tokens: int | None
    """Upper bound over all episodes, under `ASSUMPTION`.

    0 without a model, None for an agent that is no `ChatAgent`.
    """
    output_tokens: int | None
    """Upper bound over all episodes, or 0 or None likewise."""
    replies: int = 0
    """Upper bound over all episodes; 0 for an agent that is no `ChatAgent`."""


def forecast(plan: Plan) -> list[CellForecast]:
    """Return what each cell of a plan would ask, in the order of the plan."""
    return [_cell(plan, cell) for cell in plan.config.cells]


def _cell(plan: Plan, cell: CellPlan) -> CellForecast:
    episodes = len(cell.seeds) * plan.config.repeats
    opening = plan.opening(cell)
    agent = plan.agent()
    read = written = None if plan.model else 0
    replies = 0
    if isinstance(agent, ChatAgent):
        env = plan.env(cell.env_id, cell.level)
        turns = env.limits.max_turns + env.invalid.retries
        observation = _longest_observation(env, cell, agent)
        first = agent.model.count_tokens(opening)
        read = episodes * bound_input(agent, first, observation, turns)
        replies = episodes * turns
        written = replies * agent.sampling.max_tokens
    return CellForecast(
        cell=cell.cell,
        env_id=cell.env_id,
        episodes=episodes,
        opening=tuple(opening),
        input_tokens=read,
        output_tokens=written,
        replies=replies,
    )


def cost_of(cells: Sequence[CellForecast], price: Price | None) -> float | None:
    """Return what a run would cost at most, None if a count or the price is unknown.

    It is unknown, too, where reasoning is billed on top: nothing bounds that.
    """
    tokens = Tokens(
        requests=sum(cell.replies or 0 for cell in cells),
        input=known_sum(cell.input_tokens for cell in cells),
        output=known_sum(cell.output_tokens for cell in cells),
        reasoning=None,
    )
    return cost(tokens, price)


def to_text(cells: Sequence[CellForecast], price: Price | None = None) -> str:
    """Return a forecast for people, with one prompt of each environment."""
    lines = [
        f"{cell.cell}: episodes {cell.episodes}; {_tokens(cell)}" for cell in cells
    ]
    planned = sum(cell.episodes for cell in cells)
    lines.append(f"all: episodes {planned}; {_tokens(*cells)}")
    if price is not None:
        most = money(cost_of(cells, price), price.currency)
        lines.append(f"cost at most {most}, by prices of {price.date}")
    if any(cell.input_tokens for cell in cells):
        lines.append(f"({ASSUMPTION})")
    for env_id, prompt in _prompts(cells).items():
        lines += ["", f"=== first prompt of {env_id} ==="]
        for message in prompt:
            lines += [f"[{message.role}]", message.content]
    return "\n".join(lines)


def to_json(
    cells: Sequence[CellForecast], price: Price | None = None
) -> dict[str, Any]:
    """Return a forecast as JSON-able values."""
    return {
        "planned": sum(cell.episodes for cell in cells),
        "input_tokens": known_sum(cell.input_tokens for cell in cells),
        "output_tokens": known_sum(cell.output_tokens for cell in cells),
        "cost": cost_of(cells, price),
        "currency": price.currency if price else None,
        "assumption": ASSUMPTION,
        "cells": {
            cell.cell: {
                "episodes": cell.episodes,
                "input_tokens": cell.input_tokens,
                "output_tokens": cell.output_tokens,
            }
            for cell in cells
        },
        "prompts": {
            env_id: [{"role": m.role, "content": m.content} for m in prompt]
            for env_id, prompt in _prompts(cells).items()
        },
    }


def _prompts(cells: Sequence[CellForecast]) -> dict[str, tuple[Message, ...]]:
    """Return environment to the first prompt of its first cell."""
    prompts: dict[str, tuple[Message, ...]] = {}
    for cell in cells:
        prompts.setdefault(cell.env_id, cell.opening)
    return prompts


def _tokens(*cells: CellForecast) -> str:
    read = known_sum(cell.input_tokens for cell in cells)
    written = known_sum(cell.output_tokens for cell in cells)
    if read is None or written is None:
        return "tokens unknown, for the agent asks its model in a way of its own"
    if not written:
        return "no tokens, for no model is asked"
    return f"tokens read at most {read:,}, written at most {written:,}"


def bound_input(agent: ChatAgent, opening: int, observation: int, turns: int) -> int:
    """Return the most tokens that the prompts of one episode hold together.

    Args:
        agent: Its context policy and its longest reply count.
        opening: Tokens of the first prompt.
        observation: Tokens of the longest later observation.
        turns: The most replies of an episode.
    """
    policy = agent.context
    reply = agent.sampling.max_tokens
    total = 0
    for past in range(turns):
        kept = past
        if policy.kind == "single":
            kept = 0
        elif policy.kind == "window":
            kept = min(past, policy.size)
        # The opening holds the first observation, which may be shorter than the open
        # one of this turn.
        size = opening + kept * (reply + observation) + (observation if past else 0)
        if policy.kind == "tokens":
            size = min(size, policy.size - reply)
        if agent.model.max_context is not None:
            size = min(size, agent.model.max_context)
        total += size
    return total


def _longest_observation(env: TextEnv, cell: CellPlan, agent: ChatAgent) -> int:
    """Return the tokens of the longest observation of some random episodes."""
    longest = 0
    stream = Stream(0, "forecast")
    for seed in cell.seeds[:_SAMPLES]:
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            message = Message(role="user", content=observation)
            longest = max(longest, agent.model.count_tokens([message]))
            names = [
                stream.choice(env.action_names)
                for _ in range(env.limits.max_actions_per_turn)
            ]
            reply = f"<answer>{' || '.join(names)}</answer>"
            observation, _, terminated, truncated, _ = env.step(reply)
            over = terminated or truncated
    return longest
