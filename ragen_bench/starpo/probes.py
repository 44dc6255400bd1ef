"""`Probes`: what a training is asked every few iterations, before the update.

Do replies still depend on their prompts, and what would groups of little spread do to
the weights?  Both only look: neither weights nor gradients nor any stream of random
numbers that training draws from are touched.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import torch

from ragen_bench.seeding import Stream
from ragen_bench.starpo import losses, update
from ragen_bench.starpo.cross_scoring import shared_prefix
from ragen_bench.starpo.experience import Experience, passes
from ragen_bench.starpo.gradient_buckets import (
    Bucket,
    GroupSize,
    Losses,
    Terms,
    gradient_buckets,
)
from ragen_bench.starpo.policy import Policy, plain_network
from ragen_bench.starpo.reasoning_samples import probe_samples, random_turns
from ragen_bench.starpo.template_collapse import TemplateCollapse
from ragen_bench.starpo.trajectories import Trajectory

GRADIENTS = (
    "iteration",
    "bucket",
    "groups",
    "spread_low",
    "spread_high",
    "samples",
    "tokens",
    "term",
    "norm",
    "norm_per_sample",
    "norm_per_token",
)
"""Columns of ``gradients.csv``, a row for each bucket and term of the loss."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What is asked, and when; the first time in the first iteration."""

    probe_every: int = 0
    """Iterations from one probe of templates to the next; 0 is none."""
    gradient_every: int = 0
    """The same of gradients."""
    samples: int = 64
    """Replies of a probe of templates; it costs their square."""
    whole: bool = False
    """Whether replies are scored whole, because the agent is asked for no reasoning."""
    seed: int = 0
    """Draws the replies."""
    budget: int = 16384
    """Padded tokens of a pass."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an iteration was asked; empty where nothing was due."""

    row: Mapping[str, float | None]
    """For ``metrics.csv``."""
    gradients: Sequence[Mapping[str, float | str]]
    """For ``gradients.csv``."""


class Probes:
    """Looks at a policy in training.

    Args:
        policy: What is trained.
        schedule: What is asked, and when.
        objective: Numbers of the loss, unfiltered.
    """

    def __init__(
        self, policy: Policy, schedule: Schedule, objective: update.Objective
    ) -> None:
        self._policy = policy
        self._schedule = schedule
        self._objective = objective

    def look(
        self,
        iteration: int,
        trajectories: Sequence[Trajectory],
        spread: Mapping[Hashable, float],
        teach: Callable[[Experience], update.Lesson],
    ) -> Findings:
        """Return what the policy says before it learns from some trajectories.

        Args:
            iteration: The number it will have, from 1.
            trajectories: All of them, before any filter.
            spread: Group to the deviation of its returns.
            teach: What there is to learn from experience, asked if it is needed.
        """
        row: Mapping[str, float | None] = {}
        gradients: Sequence[Mapping[str, float | str]] = ()
        if _is_due(iteration, self._schedule.probe_every):
            row = template_row(self._templates(iteration, trajectories))
        if _is_due(iteration, self._schedule.gradient_every):
            lesson = teach(Experience.of(trajectories))
            gradients = gradient_rows(iteration, self._buckets(lesson, spread))
        return Findings(row=row, gradients=gradients)

    def _templates(
        self, iteration: int, trajectories: Sequence[Trajectory]
    ) -> TemplateCollapse | None:
        policy, schedule = self._policy, self._schedule
        samples = random_turns(
            trajectories,
            None if schedule.whole else policy.tokenizer.decode,
            Stream(schedule.seed, "probe", iteration),
            schedule.samples,
        )
        score = shared_prefix(policy.network, temperature=self._objective.temperature)
        with update.autocast(plain_network(policy.network).device):
            return probe_samples(score, samples)

    def _buckets(
        self, lesson: update.Lesson, spread: Mapping[Hashable, float]
    ) -> tuple[Bucket, ...]:
        network, members = self._policy.network, members_of(lesson.experience)
        counts = torch.bincount(lesson.experience.trajectory).tolist()
        sizes = {
            group: GroupSize(samples=len(some), tokens=sum(counts[i] for i in some))
            for group, some in members.items()
        }
        training = network.training
        network.eval()
        try:
            return gradient_buckets(
                loss_terms(network, lesson, self._objective, self._schedule.budget),
                [parameter for _, parameter in self._policy.trained()],
                spread,
                sizes,
            )
        finally:
            network.train(training)


def template_row(found: TemplateCollapse | None) -> dict[str, float | None]:
    """Return the columns of ``metrics.csv`` that a probe of templates fills.

    RAGEN-2 reports the z-score of the estimate by the token as the one that goes with
    success, while only the estimate by the sequence is a mutual information.
    """
    if found is None:
        return {"probe_samples": 0}
    return {
        "probe_samples": found.samples,
        "conditional_entropy": found.by_token.conditional_entropy,
        "mutual_information": found.by_sequence.mutual_information,
        "information_bound": found.prompt_entropy,
        "mi_z_score": found.by_token.z_score,
        "retrieval": found.retrieval.accuracy[1],
        "retrieval_chance": found.retrieval.chance[1],
    }


def gradient_rows(
    iteration: int, buckets: Sequence[Bucket]
) -> list[dict[str, float | str]]:
    """Return the rows of ``gradients.csv``, buckets from small to large spread."""
    return [
        {
            "iteration": iteration,
            "bucket": number,
            "groups": len(bucket.groups),
            "spread_low": bucket.low,
            "spread_high": bucket.high,
            "samples": bucket.samples,
            "tokens": bucket.tokens,
            "term": term,
            "norm": norm,
            "norm_per_sample": bucket.per_sample[term],
            "norm_per_token": bucket.per_token[term],
        }
        for number, bucket in enumerate(buckets, 1)
        for term, norm in bucket.norms.items()
    ]


def members_of(experience: Experience) -> dict[Hashable, list[int]]:
    """Return the trajectories of each group, by their places in the experience."""
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(experience.groups.tolist()):
        members.setdefault(group, []).append(index)
    return members


def loss_terms(
    network: object, lesson: update.Lesson, objective: update.Objective, budget: int
) -> Losses:
    """Return a function from groups to the terms of their loss, summed over tokens.

    Terms are ``task``, the clipped surrogate, and with their coefficients ``entropy``
    and ``kl``, where the objective has them.
    """
    members = members_of(lesson.experience)

    def losses_of(groups: Sequence[Hashable]) -> Iterator[Terms]:
        chosen = [index for group in groups for index in members[group]]
        device = plain_network(network).device
        for batch in passes(lesson.experience, chosen, budget):
            scored = update.logprobs_of(
                network, batch.to(device), objective.temperature
            )
            at = batch.tokens
            terms = {"task": _surrogate(scored.logprobs, lesson, at, objective).sum()}
            if objective.entropy:
                terms["entropy"] = -objective.entropy * scored.entropies.sum()
            if lesson.reference is not None:
                terms["kl"] = (
                    objective.kl
                    * losses.kl(
                        scored.logprobs,
                        lesson.reference[at].to(device),
                        objective.kl_kind,
                    ).sum()
                )
            yield terms

    return losses_of


def _surrogate(
    logprobs: torch.Tensor,
    lesson: update.Lesson,
    at: torch.Tensor,
    objective: update.Objective,
) -> torch.Tensor:
    device = logprobs.device
    found = losses.clipped_surrogate(
        logprobs,
        lesson.old[at].to(device),
        lesson.estimate.advantages[at].to(device),
        low=objective.clip_low,
        high=objective.clip_high,
        dual=objective.clip_dual,
    )
    if lesson.weights is None:
        return found
    return found * lesson.weights[at].to(device)


def _is_due(iteration: int, every: int) -> bool:
    return every > 0 and (iteration - 1) % every == 0
