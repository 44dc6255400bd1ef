"""`Agent`: what plays an episode: text in, text out."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from ragen_bench.model import FinishReason, Usage
from ragen_bench.text_env import PromptLength, TextEnv

AgentClass: TypeAlias = Literal["llm", "trained", "solver", "human"]
"""What an entry is listed as."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShotTurn:
    """One turn of a solved example."""

    observation: str
    actions: tuple[str, ...]
    """Names of the actions that the oracle chose."""
    reasoning: str
    """A sentence or two that lead to them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A solved example: oracle play on an instance of the train split."""

    turns: tuple[ShotTurn, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an agent is told before an episode."""

    key: str
    """The episode, such as ``"ragen/Bandit-v0:1/test/7/0"``."""
    env_id: str
    level: int
    rules: str
    """Goal, symbols, actions, limits and the form of an answer."""
    action_names: tuple[str, ...]
    max_turns: int
    max_actions: int
    max_actions_per_turn: int
    seed: int
    """Seeds the agent's own choices in this episode."""
    prompt: PromptLength = "full"
    """Length of the rules, and of what an agent may add to them."""
    shots: tuple[Shot, ...] = ()
    env: TextEnv | None = None
    """The environment itself, for a privileged agent alone."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an agent says in one turn."""

    text: str
    thinking: str | None = None
    """Reasoning that came apart from the text."""
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    prompt_sha256: str | None = None
    """SHA-256 of the prompt that led to the text, None without a model."""
    context_cut: int = 0
    """Earlier turns that the context policy left out of the prompt."""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further JSON-able facts."""


class Agent(abc.ABC):
    """A player.  Each episode has an object of its own.

    A subclass that takes a ``model`` argument is handed the run's model; its other
    arguments are what ``--agent-arg`` gives.
    """

    agent_class: ClassVar[AgentClass] = "solver"
    """A program, a language model, a person."""
    privileged: ClassVar[bool] = False
    """Whether `Task.env` is handed over; such an agent is always of class solver."""

    def reset(self, task: Task) -> None:
        """Begin an episode."""
        self.task = task

    @abc.abstractmethod
    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        """Answer an observation; ``info`` is what `TextEnv` returned with it.

        An unprivileged agent must not read ``action_mask`` or ``progress``; the
        runner hands it neither.
        """
