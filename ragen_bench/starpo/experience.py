"""Trajectories to what the update phase needs: padded passes and flat arrays.

Everything that enters a loss is one number for each sampled token, in one order:
trajectory by trajectory, token by token.  Padding and observations cannot enter.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch

from ragen_bench.starpo.gae import Estimate, Rollout
from ragen_bench.starpo.shared_prefix import LEAST, shared_length
from ragen_bench.starpo.trajectories import Played, Segment


@dataclasses.dataclass(slots=True)
class Experience:
    """The sampled tokens of some trajectories; A of them in N trajectories."""

    trajectories: list[Played]
    trajectory: torch.Tensor
    """[A] int64, index of the trajectory that a token belongs to."""
    turn_end: torch.Tensor
    """[A] bool, True on the last token of a reply; a reply without reward has one."""
    rewards: torch.Tensor
    """[A] float32, the reply's reward at its last token, 0 elsewhere."""
    logprobs: torch.Tensor
    """[A] float32, nats, under the policy that sampled."""
    returns: torch.Tensor
    """[N] float32, sum of the rewards of a trajectory."""
    groups: torch.Tensor
    """[N] int64, which trajectories played the same instance."""

    @classmethod
    def of(cls, trajectories: Sequence[Played]) -> "Experience":
        """Return the experience of trajectories."""
        owner: list[int] = []
        ends: list[bool] = []
        rewards: list[float] = []
        logprobs: list[float] = []
        for index, one in enumerate(trajectories):
            for segment in one.segments:
                for turn in segment.turns:
                    size = turn.end - turn.start
                    owner += [index] * size
                    ends += [False] * (size - 1) + [True]
                    rewards += [0.0] * (size - 1) + [turn.reward]
                    logprobs += segment.logprobs[turn.start : turn.end]
        return cls(
            trajectories=list(trajectories),
            trajectory=torch.tensor(owner, dtype=torch.long),
            turn_end=torch.tensor(ends, dtype=torch.bool),
            rewards=torch.tensor(rewards),
            logprobs=torch.tensor(logprobs),
            returns=torch.tensor([one.total for one in trajectories]),
            groups=torch.tensor([one.group for one in trajectories], dtype=torch.long),
        )

    def pad(self, values: torch.Tensor) -> torch.Tensor:
        """Return flat numbers as one row a trajectory, [N, L], 0 behind its end.

        Args:
            values: [A].
        """
        padded = values.new_zeros(self._shape())
        padded[self.trajectory, self._column()] = values
        return padded

    def flat(self, values: torch.Tensor) -> torch.Tensor:
        """Return [A] numbers of padded ones, [N, L]."""
        return values[self.trajectory, self._column()]

    def rollout(self, values: torch.Tensor | None) -> Rollout:
        """Return the padded arrays that estimators with a critic read.

        Args:
            values: [A] float; None is 0 everywhere.
        """
        return Rollout(
            rewards=self.pad(self.rewards),
            values=self.pad(
                torch.zeros_like(self.rewards) if values is None else values
            ),
            mask=self.pad(torch.ones_like(self.turn_end)),
            turn_ends=self.pad(self.turn_end),
        )

    def flatten(
        self, found: Estimate, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> Estimate:
        """Return a padded estimate as flat arrays, its advantages changed."""
        return Estimate(
            advantages=change(self.flat(found.advantages)),
            returns=self.flat(found.returns),
            value_mask=self.flat(found.value_mask),
        )

    def _counts(self) -> torch.Tensor:
        return torch.bincount(self.trajectory, minlength=len(self.trajectories))

    def _column(self) -> torch.Tensor:
        """Return the place of each token among those of its trajectory, [A]."""
        counts = self._counts()
        firsts = counts.cumsum(0) - counts
        return torch.arange(len(self.trajectory)) - firsts[self.trajectory]

    def _shape(self) -> tuple[int, int]:
        counts = self._counts()
        return len(counts), int(counts.max()) if len(counts) else 0

    def tokens_of(self, chosen: Sequence[int]) -> torch.Tensor:
        """Return the indices of the sampled tokens of some trajectories, [a] int64."""
        wanted = torch.zeros(len(self.trajectories), dtype=torch.bool)
        wanted[list(chosen)] = True
        return wanted[self.trajectory].nonzero()[:, 0]


@dataclasses.dataclass(slots=True)
class Pass:
    """One padded forward pass of B segments, T tokens at most."""

    ids: torch.Tensor
    """[B, T] int64; padding stands to the right."""
    before: torch.Tensor
    """[B, T] bool, True at the token before each sampled one: where it is predicted."""
    targets: torch.Tensor
    """[a] int64, the sampled tokens, row by row."""
    tokens: torch.Tensor
    """[a] int64, their places in the arrays of the experience."""
    shared: int = 0
    """Leading columns in which all rows are equal and nothing is predicted."""

    def to(self, device: torch.device) -> "Pass":
        """Return the same on another device; ``tokens`` stay where they are."""
        return Pass(
            self.ids.to(device),
            self.before.to(device),
            self.targets.to(device),
            self.tokens,
            self.shared,
        )


def passes(
    experience: Experience, chosen: Sequence[int], budget: int
) -> Iterator[Pass]:
    """Yield padded passes that hold the sampled tokens of some trajectories once each.

    A segment without any, such as the prompt of an expert's mistake, is left out.

    Args:
        experience: All of an iteration.
        chosen: Trajectories.
        budget: Padded tokens of a pass; a longer segment gets one of its own.
    """
    counts = experience._counts()
    firsts = (counts.cumsum(0) - counts).tolist()
    rows: list[tuple[Segment, int]] = []
    for index in chosen:
        first = firsts[index]
        for segment in experience.trajectories[index].segments:
            if segment.turns:
                rows.append((segment, first))
            first += sum(segment.sampled)
    # Rows of one task begin with the same rules, which a pass then reads once.
    rows.sort(key=lambda row: (row[0].ids[:LEAST], len(row[0].ids)))
    batch: list[tuple[Segment, int]] = []
    longest = 0
    for row in rows:
        longest = max(longest, len(row[0].ids))
        if batch and (len(batch) + 1) * longest > budget:
            yield _pad(batch)
            batch, longest = [], len(row[0].ids)
        batch.append(row)
    if batch:
        yield _pad(batch)


def _pad(rows: Sequence[tuple[Segment, int]]) -> Pass:
    width = max(len(segment.ids) for segment, _ in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    sampled = torch.zeros((len(rows), width), dtype=torch.bool)
    tokens: list[int] = []
    for row, (segment, first) in enumerate(rows):
        size = len(segment.ids)
        ids[row, :size] = torch.tensor(segment.ids)
        sampled[row, :size] = torch.tensor(segment.sampled)
        tokens += range(first, first + sum(segment.sampled))
    before = torch.zeros_like(sampled)
    before[:, :-1] = sampled[:, 1:]
    places = torch.tensor(tokens, dtype=torch.long)
    shared = shared_length(
        [segment.ids for segment, _ in rows],
        [_first_state(segment) for segment, _ in rows],
    )
    return Pass(ids, before, ids[sampled], places, shared)


def _first_state(segment: Segment) -> int:
    """Return the index of the token that predicts the first sampled one."""
    return min(turn.start for turn in segment.turns) - 1
