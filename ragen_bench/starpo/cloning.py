"""The warm start: behaviour cloning of an expert that now and then errs.

The expert plays train instances in the trainer's own protocol.  Its replies are
learned; the random ones in between are only read, so that the policy also meets the
states that errors lead to.  On request they are learned too, as from somebody who errs.
"""

import asyncio
import dataclasses
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ragen_bench.chat import ChatAgent
from ragen_bench.episode import play
from ragen_bench.errors import InvalidSpec
from ragen_bench.model import Completion, Conversation, Model, Sampling
from ragen_bench.models.chat_template import Chat, Transcript
from ragen_bench.prompts import Protocol, answer_text
from ragen_bench.records import EpisodeKey
from ragen_bench.registry import make, make_agent
from ragen_bench.seeding import Stream
from ragen_bench.starpo.experience import Experience, passes
from ragen_bench.starpo.rollout import UNKNOWN, Cell
from ragen_bench.starpo.trajectories import Played, Segment, Trajectory, continued
from ragen_bench.starpo.update import clip_and_step, logprobs_of
from ragen_bench.text_env import TextEnv

WARMUP = 20
"""Steps over which a learning rate of cloning rises."""
_GRAD_CLIP = 1.0


class Expert(Model):
    """Replies with the solver's plan, or at random, in the policy's own tokens.

    Args:
        env: What is played.
        chat: Of the policy.
        end_id: Ends a reply.
        protocol: Form of a reply.
        stream: Decides what is random.
        noise: Share of random replies.
        mistakes: Whether random replies count as its own, and are learned too.
    """

    def __init__(
        self,
        env: TextEnv,
        chat: Chat,
        end_id: int,
        protocol: Protocol,
        stream: Stream,
        noise: float,
        mistakes: bool = False,
    ) -> None:
        self.name = "expert"
        self.segments: list[Segment] = []
        """What was played; the solver's replies count as sampled, and random ones if
        mistakes are learned."""
        self._env = env
        self._chat = chat
        self._end_id = end_id
        self._protocol = protocol
        self._stream = stream
        self._noise = noise
        self._mistakes = mistakes
        self._last: Transcript | None = None

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Reply, and remember the tokens."""
        text, prompt = self._chat.prompt(conversation.messages, self._last)
        errs = self._stream.random() < self._noise
        reply = self._random() if errs else self._planned()
        ids = [*self._chat.encode_inside(reply), self._end_id]
        segment = continued(self.segments, prompt)
        if errs and not self._mistakes:
            segment.read(ids)
        else:
            segment.write(ids, [0.0] * len(ids))
        self._last = Transcript(text, prompt, reply, tuple(ids))
        return Completion(text=reply, token_ids=tuple(ids))

    def _planned(self) -> str:
        core, limits = self._env.core, self._env.limits
        room = min(limits.max_actions_per_turn, core.actions_left)
        plan = core.plan(room, limits.max_turns - self._env.turns)
        names = [core.actions[action] for action in plan]
        return answer_text(names, core.explain(plan), self._protocol)

    def _random(self) -> str:
        env = self._env
        room = min(env.limits.max_actions_per_turn, env.core.actions_left)
        count = 1 + self._stream.below(room)
        names = [self._stream.choice(env.action_names) for _ in range(count)]
        return answer_text(names, "", self._protocol)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Where demonstrations come from."""

    cells: Sequence[Cell]
    agent: str
    agent_args: Mapping[str, Any]
    env_args: Mapping[str, Any]
    chat: Chat
    end_id: int
    noise: float
    """Share of replies that are random."""
    mistakes: bool = False
    """Whether those are learned too."""
    seed: int

    def demonstrations(self) -> Iterator[Trajectory]:
        """Yield the expert's episodes on train instances, without end.

        Raises:
            InvalidSpec: The agent is no chat agent, so its protocol is not known.
        """
        envs = [
            make(cell.env_id, level=cell.level, **{**self.env_args, "split": "train"})
            for cell in self.cells
        ]
        number = 0
        while True:
            cell, env = (
                self.cells[number % len(envs)],
                envs[number % len(envs)],
            )
            stream = Stream(self.seed, "demonstration", number)
            seed = stream.below(2**31)
            key = EpisodeKey(cell.env_id, cell.level, "train", seed, number)
            expert = Expert(
                env,
                self.chat,
                self.end_id,
                self._protocol(),
                stream,
                self.noise,
                self.mistakes,
            )
            agent = make_agent(self.agent, expert, **self.agent_args)
            episode, _ = asyncio.run(play(env, agent, key, known=UNKNOWN))
            if episode.outcome == "agent_error":
                raise InvalidSpec(f"the expert failed in {key}: {episode.error}")
            yield Trajectory(group=number, segments=expert.segments, episode=episode)
            number += 1

    def _protocol(self) -> Protocol:
        from ragen_bench.registry import AGENTS

        cls = AGENTS.get(self.agent)
        if not (isinstance(cls, type) and issubclass(cls, ChatAgent)):
            raise InvalidSpec(
                f"agent {self.agent!r} is no chat agent; train direct or think_act"
            )
        return cls.protocol


def repeated(
    source: Iterator[Trajectory], count: int, stream: Stream, pool: list[Trajectory]
) -> Iterator[Trajectory]:
    """Yield the first trajectories of a source again and again, in random order.

    Args:
        source: Demonstrations.
        count: How many are taken from it.
        stream: Decides the order.
        pool: Is given those that were taken.
    """
    for one in itertools.islice(source, count):
        pool.append(one)
        yield one
    again = list(pool)
    while True:
        stream.shuffle(again)
        yield from again


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long and how fast is learned: by steps if they are given, else by time."""

    steps: int = 0
    seconds: float = 0.0
    """CPU seconds of this process."""
    batch: int = 64
    """Trajectories of a step."""
    lr: float = 3e-3
    """Peak, after a short warm-up; it falls to a hundredth along a cosine."""
    budget: int = 16384
    """Padded tokens of a pass."""

    def progress(self, step: int, began: float) -> float:
        """Return which share is over, in [0, 1]."""
        if self.steps:
            return min(1.0, step / self.steps)
        return min(1.0, (time.process_time() - began) / self.seconds)


def clone(
    network: Any, source: Iterator[Trajectory], schedule: Schedule
) -> dict[str, float]:
    """Minimise the cross-entropy of the expert's replies.

    AdamW with betas 0.9 and 0.98, weight decay 0.01, gradients clipped at 1.

    Args:
        network: Its parameters that ask for gradients are trained.
        source: Demonstrations.
        schedule: When to stop.

    Returns:
        ``steps``, ``cpu_s`` and the ``loss`` of the last steps, nats a token.
    """
    optimizer = optimizer_of(
        (p for p in network.parameters() if p.requires_grad), schedule.lr
    )
    began, step, mean = time.process_time(), 0, math.nan
    network.train()
    while (done := schedule.progress(step, began)) < 1:
        factor = min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * done))
        lessons = [next(source) for _ in range(schedule.batch)]
        lr = schedule.lr * max(factor, 0.01)
        loss = take_step(network, optimizer, lessons, lr, schedule.budget)
        mean = loss if step == 0 else 0.95 * mean + 0.05 * loss
        step += 1
    network.eval()
    return {"steps": step, "cpu_s": time.process_time() - began, "loss": mean}


def optimizer_of(
    parameters: Iterable[torch.nn.Parameter], lr: float
) -> torch.optim.Optimizer:
    """Return what cloning trains parameters with."""
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)


def take_step(
    network: Any,
    optimizer: torch.optim.Optimizer,
    trajectories: Sequence[Played],
    lr: float,
    budget: int,
) -> float:
    """Take one step towards the sampled tokens of trajectories.

    Args:
        network: What is trained.
        optimizer: Of `optimizer_of`.
        trajectories: Their sampled tokens are the targets.
        lr: Learning rate of this step.
        budget: Padded tokens of a pass.

    Returns:
        Mean cross-entropy before the step, nats a token.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = _backward(network, trajectories, budget)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    clip_and_step(optimizer, parameters, _GRAD_CLIP)
    return loss


def _backward(network: Any, trajectories: Sequence[Played], budget: int) -> float:
    """Add the gradients of the mean cross-entropy of a token, and return that mean."""
    experience = Experience.of(trajectories)
    count, total = len(experience.trajectory), 0.0
    device = next(network.parameters()).device
    for batch in passes(experience, range(len(trajectories)), budget):
        scored = logprobs_of(network, batch.to(device), 1.0)
        loss = -scored.logprobs.sum() / max(count, 1)
        loss.backward()
        total += loss.item()
    return total
