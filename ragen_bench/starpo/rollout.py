"""The rollout phase: groups of episodes played by the harness, with their tokens.

Environment, prompt, parser and player are those of an evaluation; only the model is
wrapped, so that it remembers what it read and sampled.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_bench.agent import Agent
from ragen_bench.episode import Reference, play
from ragen_bench.errors import InvalidSpec, RunIncomplete
from ragen_bench.model import Completion, Conversation, Message, Model, Sampling
from ragen_bench.records import Episode, EpisodeKey
from ragen_bench.registry import make, make_agent
from ragen_bench.seeding import Stream
from ragen_bench.starpo.trajectories import Segment, Trajectory, continued
from ragen_bench.symbolic import Split
from ragen_bench.text_env import TextEnv

UNKNOWN = Reference(instance="", floor=0.0, ceiling=1.0, optimal_cost=None)
"""Training needs neither floor nor ceiling of an instance, which cost time to know."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An environment at a level."""

    env_id: str
    level: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Several episodes on one training instance."""

    cell: Cell
    seed: int
    """Picks the instance."""
    size: int


class RecordingModel(Model):
    """Answers by another model and remembers the tokens of every conversation.

    Args:
        model: Must give token ids and log-probabilities.
    """

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self.max_context = model.max_context
        self._model = model
        self._segments: dict[str, list[Segment]] = {}

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer, and add prompt and reply to the conversation's segments.

        Raises:
            RunIncomplete: The engine left out tokens, which no text could replace.
        """
        asked = dataclasses.replace(sampling, processed_logprobs=True)
        completion = await self._model.generate(conversation, asked)
        _check_tokens(self.name, completion)
        prompt = list(completion.prompt_token_ids)
        segments = self._segments.setdefault(conversation.key, [])
        segment = continued(segments, prompt)
        segment.write(list(completion.token_ids), list(completion.logprobs))
        return completion

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return what the model counts."""
        return self._model.count_tokens(messages)

    def take(self, key: str) -> list[Segment]:
        """Hand over the segments of a conversation that is over."""
        return self._segments.pop(key, [])


class Rollouts:
    """Plays groups of training episodes.

    Args:
        model: The policy's engine.
        agent: Name of a chat agent.
        agent_args: Its arguments: context, temperature, max_tokens.
        env_args: Settings of the environments, split left out.

    Raises:
        InvalidSpec: The settings ask for another split than train.
    """

    def __init__(
        self,
        model: Model,
        agent: str,
        agent_args: Mapping[str, Any],
        env_args: Mapping[str, Any],
    ) -> None:
        if env_args.get("split", "train") != "train":
            raise InvalidSpec(
                f"split is {env_args['split']!r}, but only instances of the train "
                "split are trained on; evaluate on dev or test with ragen-bench run"
            )
        self._model = RecordingModel(model)
        self._agent = agent
        self._agent_args = dict(agent_args)
        self._env_args = {**env_args, "split": "train"}
        self._spare: dict[Cell, list[TextEnv]] = {}

    async def play(self, groups: Sequence[Group], salt: str) -> list[Trajectory]:
        """Return the trajectories of groups, in order of group and member.

        Args:
            groups: What to play.
            salt: Moves all noise and sampling; another one for every iteration.

        Raises:
            RunIncomplete: The engine failed in an episode, or none has a reply.
        """
        plays = [
            self._one(index, group, rep, salt)
            for index, group in enumerate(groups)
            for rep in range(group.size)
        ]
        found = list(await asyncio.gather(*plays))
        if not any(one.sampled_tokens for one in found):
            outcomes = sorted({one.episode.outcome for one in found})
            raise RunIncomplete(
                f"no episode of an iteration has a reply to learn from (they ended in "
                f"{', '.join(outcomes)}); give prompts more room, by context or model"
            )
        return found

    async def _one(self, index: int, group: Group, rep: int, salt: str) -> Trajectory:
        cell = group.cell
        split: Split = "train"
        key = EpisodeKey(cell.env_id, cell.level, split, group.seed, rep)
        spare = self._spare.setdefault(cell, [])
        env = spare.pop() if spare else self.env(cell)
        # Two groups of an iteration may hold the same instance.
        model = _Renamed(self._model, f"{index}/{key}")
        episode, _ = await play(
            env, self.agent(model), key, known=UNKNOWN, salt=f"{salt}/{index}"
        )
        spare.append(env)
        if episode.outcome in ("agent_error", "provider_error", "timeout"):
            raise RunIncomplete(f"episode {key} of training failed: {episode.error}")
        segments = self._model.take(model.key)
        _pay(segments, episode)
        return Trajectory(group=index, segments=segments, episode=episode)

    def agent(self, model: Model) -> Agent:
        """Return a new player that asks a model."""
        return make_agent(self._agent, model, **self._agent_args)

    def env(self, cell: Cell) -> TextEnv:
        """Return a new environment of a cell."""
        return make(cell.env_id, level=cell.level, **self._env_args)


class _Renamed(Model):
    """A model under whose eyes one conversation has a key of its own."""

    def __init__(self, model: RecordingModel, key: str) -> None:
        self.name = model.name
        self.max_context = model.max_context
        self.key = key
        self._model = model

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        conversation.key = self.key
        return await self._model.generate(conversation, sampling)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return self._model.count_tokens(messages)


def _check_tokens(name: str, completion: Completion) -> None:
    """Refuse a completion that training cannot learn from.

    Raises:
        RunIncomplete: Ids of the prompt or of the reply are missing, or there is not
            one log-probability for each sampled id.
    """
    prompt, ids, logprobs = (
        len(completion.prompt_token_ids),
        len(completion.token_ids),
        len(completion.logprobs),
    )
    if prompt and ids and ids == logprobs:
        return
    raise RunIncomplete(
        f"engine {name!r} gave {prompt} token ids of a prompt, {ids} of the reply and "
        f"{logprobs} log-probabilities; training needs all ids, and one "
        "log-probability for each that was sampled: take an engine that gives them"
    )


def _pay(segments: Sequence[Segment], episode: Episode) -> None:
    """Put the reward of every turn on its tokens."""
    turns = [turn for segment in segments for turn in segment.turns]
    for tokens, played in zip(turns, episode.turns, strict=True):
        tokens.reward = played.reward


class Instances:
    """The training instances in the order they are used, without end.

    The state is one number, the groups drawn so far, so that training resumes where
    it stopped.

    Args:
        cells: Take turns.
        seed: Of the training.
    """

    def __init__(self, cells: Sequence[Cell], seed: int) -> None:
        self._cells = tuple(cells)
        self._seed = seed
        self.drawn = 0

    def take(self, count: int, size: int) -> list[Group]:
        """Return the next groups, each of so many episodes."""
        groups = []
        for _ in range(count):
            cell = self._cells[self.drawn % len(self._cells)]
            seed = Stream(self._seed, "instance", self.drawn).below(2**31)
            groups.append(Group(cell=cell, seed=seed, size=size))
            self.drawn += 1
        return groups
