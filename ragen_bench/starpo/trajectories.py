"""What a rollout phase leaves: sampled tokens, turn by turn, never re-tokenised."""

import dataclasses

from ragen_bench.records import Episode


@dataclasses.dataclass(slots=True)
class TurnTokens:
    """One reply within a `Segment`."""

    start: int
    """Index of its first sampled token."""
    end: int
    """One past its last sampled token."""
    reward: float = 0.0
    """What the environment paid for it, format penalty included."""


@dataclasses.dataclass(slots=True)
class Segment:
    """Tokens that were one prompt to the model: what it read and what it sampled.

    A trajectory is one segment as long as each prompt continues the last one; a
    context policy or a template that rewrites history begins another segment.
    """

    ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    """Of each token under the policy that sampled it, in nats; 0 where none did."""
    sampled: list[bool] = dataclasses.field(default_factory=list)
    """Whether the policy sampled the token."""
    turns: list[TurnTokens] = dataclasses.field(default_factory=list)

    def read(self, ids: list[int]) -> None:
        """Add tokens that the policy was given."""
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.sampled += [False] * len(ids)

    def write(self, ids: list[int], logprobs: list[float]) -> None:
        """Add a reply that the policy sampled.

        Raises:
            ValueError: There is not one log-probability for each token, or none.
        """
        if not ids or len(ids) != len(logprobs):
            raise ValueError(
                f"an engine gave {len(ids)} token ids and {len(logprobs)} "
                "log-probabilities for a reply; training needs one of each"
            )
        start = len(self.ids)
        self.ids += ids
        self.logprobs += logprobs
        self.sampled += [True] * len(ids)
        self.turns.append(TurnTokens(start, len(self.ids)))


def continued(segments: list[Segment], prompt: list[int]) -> Segment:
    """Return the segment that has read a prompt: the last, if the prompt extends it.

    Otherwise a new one is added to the segments.
    """
    if not segments or prompt[: len(segments[-1].ids)] != segments[-1].ids:
        segments.append(Segment())
    segments[-1].read(prompt[len(segments[-1].ids) :])
    return segments[-1]


@dataclasses.dataclass(slots=True)
class Played:
    """The tokens of one episode."""

    group: int
    """Trajectories of one instance and iteration share it."""
    segments: list[Segment]

    @property
    def turns(self) -> list[TurnTokens]:
        """The replies in the order they were given."""
        return [turn for segment in self.segments for turn in segment.turns]

    @property
    def total(self) -> float:
        """Sum of the rewards that are trained on."""
        return sum(turn.reward for turn in self.turns)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(sum(segment.sampled) for segment in self.segments)


@dataclasses.dataclass(slots=True)
class Trajectory(Played):
    """One episode as the trainer sees it."""

    episode: Episode
