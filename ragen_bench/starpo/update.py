"""The update phase: one optimizer step over some trajectories, in micro-batches.

Numbers and tensors in, numbers out; what is divided by is counted over the whole step,
so that the gradient does not depend on how the step is split.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch

from ragen_bench.starpo import losses
from ragen_bench.starpo.aggregation import Aggregation, aggregate, denominator
from ragen_bench.starpo.experience import Experience, Pass, passes
from ragen_bench.starpo.gae import Estimate
from ragen_bench.starpo.logprobs import Selected, TokenLogprobs, token_logprobs
from ragen_bench.starpo.policy import Critic, plain_network
from ragen_bench.starpo.shared_prefix import states


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The numbers of the loss."""

    aggregation: Aggregation = "token-mean"
    constant: float | None = None
    """Fixed length of the aggregation ``"constant"``."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_dual: float | None = None
    kl: float = 0.0
    kl_kind: losses.Divergence = "k3"
    entropy: float = 0.0
    value_clip: float = 0.5
    temperature: float = 1.0
    scale: float = 1.0
    """Factor of the whole loss of the policy, for filtered batches."""


@dataclasses.dataclass(slots=True)
class Step:
    """What one optimizer step saw; means are over its sampled tokens."""

    tokens: int = 0
    loss: float = 0.0
    value_loss: float = 0.0
    entropy: float = 0.0
    approx_kl: float = 0.0
    """Mean of (ratio - 1) - log ratio (k3) between sampler and policy."""
    kl_reference: float = 0.0
    clip_low: float = 0.0
    clip_high: float = 0.0
    ratio_max: float = 0.0
    logprob_diff_mean: float = 0.0
    """Mean absolute difference of log-probabilities between sampler and policy."""
    logprob_diff_max: float = 0.0
    grad_norm: float = 0.0
    critic_grad_norm: float = 0.0


@contextlib.contextmanager
def autocast(device: torch.device) -> Iterator[None]:
    """Compute in bfloat16 on a GPU, over float32 masters."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        yield


def logprobs_of(network: Any, batch: Pass, temperature: float) -> TokenLogprobs:
    """Return log-probabilities and entropies of the sampled tokens of a pass, [a]."""
    plain = plain_network(network)
    with autocast(batch.ids.device):
        hidden = states(plain.base_model, batch.ids, batch.shared)
    before = batch.before[:, batch.shared :]
    return token_logprobs(
        Selected(hidden=hidden[before], targets=batch.targets),
        plain.get_output_embeddings().weight,
        temperature=temperature,
    )


def values_of(critic: Critic, experience: Experience, budget: int) -> torch.Tensor:
    """Return the critic's value of the state before each sampled token, [A]."""
    device = critic.head.weight.device
    found = torch.zeros_like(experience.logprobs)
    everybody = range(len(experience.trajectories))
    with torch.no_grad():
        for batch in passes(experience, everybody, budget):
            here = batch.to(device)
            values = critic(here.ids, here.before, here.shared)
            found[batch.tokens] = values.float().cpu()
    return found


def reference_logprobs(
    network: Any, experience: Experience, temperature: float, budget: int
) -> torch.Tensor:
    """Return the log-probabilities of the sampled tokens under a network, [A]."""
    found = torch.zeros_like(experience.logprobs)
    device = plain_network(network).device
    everybody = range(len(experience.trajectories))
    with torch.no_grad():
        for batch in passes(experience, everybody, budget):
            scored = logprobs_of(network, batch.to(device), temperature)
            found[batch.tokens] = scored.logprobs.float().cpu()
    return found


def sequence_logprobs(network: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the log-probability of each token but the first at temperature 1, [n - 1].

    Args:
        network: The policy.
        ids: n tokens, at least two.
    """
    row = torch.tensor([ids])
    before = torch.ones_like(row, dtype=torch.bool)
    before[:, -1] = False
    one = Pass(row, before, row[0, 1:], row[0, 1:])
    with torch.no_grad():
        scored = logprobs_of(network, one.to(plain_network(network).device), 1.0)
    return scored.logprobs.float().cpu()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """All that an update phase learns from; A sampled tokens."""

    experience: Experience
    estimate: Estimate
    """Advantages and returns, [A]."""
    old: torch.Tensor
    """[A], log-probabilities that ratios are taken to: the sampler's own, or those of
    the policy before the phase."""
    weights: torch.Tensor | None = None
    """[A], importance weights between sampler and policy, None for 1."""
    values: torch.Tensor | None = None
    """[A], by the critic before the phase."""
    reference: torch.Tensor | None = None
    """[A], log-probabilities under the model that training began with."""


def accumulate(
    network: Any,
    lesson: Lesson,
    chosen: Sequence[int],
    objective: Objective,
    budget: int,
) -> Step:
    """Add the gradients of the policy's loss over some trajectories.

    Args:
        network: Its parameters that ask for gradients get them.
        lesson: What an iteration learned from.
        chosen: Trajectories of this step.
        objective: Numbers of the loss.
        budget: Padded tokens of a pass.
    """
    experience = lesson.experience
    tokens = experience.tokens_of(chosen)
    over = denominator(
        experience.trajectory[tokens], objective.aggregation, objective.constant
    )
    device = plain_network(network).device
    step = Step(tokens=len(tokens))
    for batch in passes(experience, chosen, budget):
        scored = logprobs_of(network, batch.to(device), objective.temperature)
        terms = _terms(scored, lesson, batch.tokens.to(device), objective, step)
        owner = experience.trajectory[batch.tokens].to(device)
        loss = objective.scale * aggregate(terms, owner, over)
        loss.backward()
        step.loss += loss.item()
    _as_means(step)
    return step


def accumulate_values(
    critic: Critic, lesson: Lesson, chosen: Sequence[int], clip: float, budget: int
) -> float:
    """Add the gradients of the critic's loss, a mean over tokens, and return it."""
    experience, estimate = lesson.experience, lesson.estimate
    assert lesson.values is not None
    tokens = experience.tokens_of(chosen)
    asked = int(estimate.value_mask[tokens].sum())
    device = critic.head.weight.device
    total = 0.0
    for batch in passes(experience, chosen, budget):
        here = batch.to(device)
        with autocast(device):
            values = critic(here.ids, here.before, here.shared).float()
        wanted = estimate.value_mask[batch.tokens].to(device)
        loss = losses.value_loss(
            values,
            lesson.values[batch.tokens].to(device),
            estimate.returns[batch.tokens].to(device),
            clip or None,
        )
        mean = (loss * wanted).sum() / max(asked, 1)
        mean.backward()
        total += mean.item()
    return total


def left_of_rate(done: float, decay: Literal["none", "linear", "cosine"]) -> float:
    """Return the factor of the learning rate, 1 to 0 over a training.

    Args:
        done: Share of the training that is over, in [0, 1].
        decay: Its shape.
    """
    if decay == "linear":
        return 1 - done
    if decay == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0


def clip_and_step(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[torch.nn.Parameter],
    largest: float,
) -> float:
    """Take an optimizer step and return the gradient's norm before clipping.

    Where the norm is not finite no step is taken: no weight would be finite after it.
    """
    norm = torch.nn.utils.clip_grad_norm_(list(parameters), largest or float("inf"))
    if norm.isfinite():
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)


def _terms(
    scored: TokenLogprobs,
    lesson: Lesson,
    tokens: torch.Tensor,
    objective: Objective,
    step: Step,
) -> torch.Tensor:
    """Return the loss of each token, [a], and count what metrics need."""
    device, at = tokens.device, tokens.cpu()
    logprobs = scored.logprobs
    old = lesson.old[at].to(device)
    advantages = lesson.estimate.advantages[at].to(device)
    clip = {"low": objective.clip_low, "high": objective.clip_high}
    terms = losses.clipped_surrogate(
        logprobs, old, advantages, **clip, dual=objective.clip_dual
    )
    if lesson.weights is not None:
        terms = terms * lesson.weights[at].to(device)
    if objective.entropy:
        terms = terms - objective.entropy * scored.entropies
    if lesson.reference is not None:
        divergence = losses.kl(
            logprobs, lesson.reference[at].to(device), objective.kl_kind
        )
        terms = terms + objective.kl * divergence
        step.kl_reference += divergence.sum().item()
    with torch.no_grad():
        difference = logprobs - lesson.experience.logprobs[at].to(device)
        clipped = losses.clipped(logprobs, old, advantages, **clip)
        step.entropy += scored.entropies.sum().item()
        step.approx_kl += (difference.exp() - 1 - difference).sum().item()
        step.clip_low += clipped.low.sum().item()
        step.clip_high += clipped.high.sum().item()
        step.logprob_diff_mean += difference.abs().sum().item()
        if len(difference):
            largest = difference.abs().max().item()
            step.logprob_diff_max = max(step.logprob_diff_max, largest)
            step.ratio_max = max(step.ratio_max, difference.max().exp().item())
    return terms


def _as_means(step: Step) -> None:
    for name in (
        "entropy",
        "approx_kl",
        "kl_reference",
        "clip_low",
        "clip_high",
        "logprob_diff_mean",
    ):
        setattr(step, name, getattr(step, name) / max(step.tokens, 1))
