"""Self-imitation: a policy clones the best of what it did itself.

Source: self-imitation learning, Oh et al. 2018, arXiv 1806.05635, which adds
``-log pi(a|s) (R - V(s))_+`` over remembered play to the loss of a policy gradient.
The group of a trajectory stands in for the critic here, as in GRPO: its best trajectory
is remembered, if that solved its task or, where a task knows no success, if it came to
more than the group's mean.  All remembered ones weigh the same.

A gradient of rewards uses a trajectory once and learns only from groups with spread;
what was found once can be learned from many times, and solved groups keep the policy
from forgetting.
"""

import collections
import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ragen_bench.seeding import Stream
from ragen_bench.starpo.cloning import WARMUP, optimizer_of, take_step
from ragen_bench.starpo.trajectories import Played, Segment, Trajectory, TurnTokens


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How much is imitated, and how fast."""

    steps: int = 0
    """Optimizer steps after each update phase; 0 is none."""
    batch: int = 32
    """Trajectories of a step."""
    memory: int = 4096
    """Own trajectories that are remembered, the newest."""
    lr: float = 1e-3
    """Of AdamW with betas 0.9 and 0.98, after 20 steps of linear warm-up."""
    budget: int = 16384
    """Padded tokens of a pass."""
    seed: int = 0


class SelfImitation:
    """Remembers trajectories and clones them.

    Args:
        parameters: What is trained.
        schedule: How much and how fast.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], schedule: Schedule
    ) -> None:
        self.schedule = schedule
        self.demonstrations: list[Trajectory] = []
        """Of a warm start; drawn like own trajectories, and never forgotten."""
        self.steps = 0
        self._memory: collections.deque[Played] = collections.deque(
            maxlen=schedule.memory
        )
        self._optimizer = optimizer_of(parameters, schedule.lr)

    def __len__(self) -> int:
        """Return how many trajectories are remembered, demonstrations included."""
        return len(self.demonstrations) + len(self._memory)

    def remember(self, trajectories: Sequence[Trajectory]) -> None:
        """Remember the best of each group, if it is worth it; see the module."""
        groups: dict[int, list[Trajectory]] = {}
        for one in trajectories:
            groups.setdefault(one.group, []).append(one)
        for group in groups.values():
            best = max(group, key=_merit)
            if _is_worth_it(best, group):
                self._memory.append(_tokens_of(best))

    def learn(
        self,
        network: Any,
        trajectories: Sequence[Trajectory],
        iteration: int,
        rate: float,
    ) -> dict[str, float | None]:
        """Remember what an iteration played, and take the steps that follow it.

        Args:
            network: Whose parameters are trained.
            trajectories: All of the iteration.
            iteration: Decides what is drawn.
            rate: Factor of the learning rate, in [0, 1].

        Returns:
            ``imitation_loss``, the mean cross-entropy of the steps in nats a token,
            and ``remembered``, the trajectories to draw from; nothing without steps.
        """
        if not self.schedule.steps:
            return {}
        self.remember(trajectories)
        loss = self._train(network, iteration, rate) if len(self) else None
        return {"imitation_loss": loss, "remembered": len(self)}

    def _train(self, network: Any, iteration: int, rate: float) -> float:
        network.eval()
        schedule = self.schedule
        pool = [*self.demonstrations, *self._memory]
        stream = Stream(schedule.seed, "imitation", iteration)
        losses = []
        for _ in range(schedule.steps):
            self.steps += 1
            factor = rate * min(1.0, self.steps / WARMUP)
            batch = [stream.choice(pool) for _ in range(schedule.batch)]
            lr = schedule.lr * factor
            losses.append(
                take_step(network, self._optimizer, batch, lr, schedule.budget)
            )
        return statistics.fmean(losses)

    def get_state(self) -> dict[str, Any]:
        """Return what `set_state` takes: tensors and plain values alone."""
        return {
            "steps": self.steps,
            "memory": _pack(self._memory),
            "optimizer": self._optimizer.state_dict(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on as after `get_state`; demonstrations are no part of it."""
        self.steps = state["steps"]
        self._memory.clear()
        self._memory.extend(_unpack(state["memory"]))
        self._optimizer.load_state_dict(state["optimizer"])


def _merit(one: Trajectory) -> tuple[float, int, int]:
    """Return what the best of a group has most of: return, then brevity."""
    return one.total, -len(one.turns), -one.sampled_tokens


def _is_worth_it(best: Trajectory, group: Sequence[Trajectory]) -> bool:
    solved = best.episode.success
    if solved is None:
        return best.total > statistics.fmean(one.total for one in group)
    return solved


def _tokens_of(one: Trajectory) -> Played:
    """Return the tokens alone: rewards and log-probabilities are not needed again."""
    return Played(
        group=0,
        segments=[
            Segment(
                ids=list(segment.ids),
                logprobs=[0.0] * len(segment.ids),
                sampled=list(segment.sampled),
                turns=[TurnTokens(turn.start, turn.end) for turn in segment.turns],
            )
            for segment in one.segments
        ],
    )


def _pack(memory: Iterable[Played]) -> dict[str, torch.Tensor]:
    """Return trajectories as flat arrays.

    Returns:
        ``ids`` [T] int32, all tokens; ``segments`` [S, 2] int64, trajectory and length
        of each segment; ``turns`` [U, 3] int64, segment, start and end of each reply.
    """
    ids: list[int] = []
    segments: list[tuple[int, int]] = []
    turns: list[tuple[int, int, int]] = []
    for number, one in enumerate(memory):
        for segment in one.segments:
            turns += [(len(segments), turn.start, turn.end) for turn in segment.turns]
            segments.append((number, len(segment.ids)))
            ids += segment.ids
    return {
        "ids": torch.tensor(ids, dtype=torch.int32),
        "segments": torch.tensor(segments, dtype=torch.long).reshape(-1, 2),
        "turns": torch.tensor(turns, dtype=torch.long).reshape(-1, 3),
    }


def _unpack(packed: Mapping[str, torch.Tensor]) -> list[Played]:
    """Return the trajectories that `_pack` made arrays of."""
    owners, sizes = packed["segments"].T.tolist()
    segments = [
        Segment(ids=part.tolist(), logprobs=[0.0] * size, sampled=[False] * size)
        for part, size in zip(packed["ids"].split(sizes), sizes, strict=True)
    ]
    for segment, start, end in packed["turns"].tolist():
        segments[segment].sampled[start:end] = [True] * (end - start)
        segments[segment].turns.append(TurnTokens(start, end))
    found: dict[int, Played] = {}
    for owner, segment in zip(owners, segments, strict=True):
        found.setdefault(owner, Played(group=0, segments=[])).segments.append(segment)
    return list(found.values())
