"""StarPO's loop: play groups, keep the uncertain ones, update, and play again.

One iteration is `Training.iterate`; it can be followed with a pencil.  The parts it
calls take numbers and tensors.
"""

import asyncio
import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from ragen_bench.episode import play
from ragen_bench.records import Episode, EpisodeKey
from ragen_bench.registry import make
from ragen_bench.seeding import Stream
from ragen_bench.starpo import filters, losses, metrics, settings, update
from ragen_bench.starpo.algorithm import Algorithm, Discounts
from ragen_bench.starpo.config import TrainConfig
from ragen_bench.starpo.echo_trap import Alarm, EchoTrap
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.gae import Estimate
from ragen_bench.starpo.policy import Policy
from ragen_bench.starpo.rollout import Cell, Instances, Rollouts
from ragen_bench.starpo.trajectories import Trajectory

Row = dict[str, float | None]


@dataclasses.dataclass(slots=True)
class Report:
    """What an iteration gives back."""

    row: Row
    """For ``metrics.csv``."""
    times: Row
    """For ``timing.csv``."""
    episodes: list[Episode]
    alarms: tuple[Alarm, ...]
    """Signs of collapse that begin with it."""


class Training:
    """A policy and all that moves while it is trained.

    Args:
        config: The settings.
        policy: What is trained.
        algorithm: Experience to advantages.
        cells: What is played.
        reference: The model that training began with, if the loss asks for it.
    """

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        algorithm: Algorithm,
        cells: Sequence[Cell],
        reference: Any = None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.algorithm = algorithm
        self.cells = tuple(cells)
        self.reference = reference
        self.iteration = 0
        self.steps = 0
        self.watch = EchoTrap()
        self.instances = Instances(cells, config.seed)
        self.rollouts = Rollouts(
            policy.engine,
            config.agent,
            settings.agent_args(config),
            settings.env_args(config),
        )
        self.longest = config.max_tokens * max(
            self.rollouts.env(cell).limits.max_turns for cell in cells
        )
        self.keep = settings.filter_of(config)
        self.optimizer = torch.optim.AdamW(
            [parameter for _, parameter in policy.trained()],
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )
        self.critic_optimizer: torch.optim.Optimizer | None = None
        if policy.critic is not None:
            self.critic_optimizer = torch.optim.AdamW(
                policy.critic.parameters(),
                lr=config.critic_lr,
                betas=config.betas,
                weight_decay=config.weight_decay,
            )

    def iterate(self) -> Report:
        """Do one iteration: rollout phase, then update phase."""
        config, began, cpu = self.config, time.perf_counter(), time.process_time()
        groups = self.instances.take(config.groups, config.rollouts)
        salt = f"train/{config.seed}/{self.iteration}"
        trajectories = asyncio.run(self.rollouts.play(groups, salt))
        played = time.perf_counter()

        spread = filters.group_spread(
            [one.total for one in trajectories], [one.group for one in trajectories]
        )
        kept = set(self.keep(spread))
        chosen = [one for one in trajectories if one.group in kept]
        share = len(kept) / len(spread)
        steps, explained = self._update(chosen, share) if chosen else ([], None)
        updated = time.perf_counter()
        self.policy.sync()
        synced = time.perf_counter()
        self.iteration += 1

        sampled = sum(one.sampled_tokens for one in trajectories)
        row: Row = {
            "iteration": self.iteration,
            "kept_share": share,
            "explained_variance": explained,
            **metrics.of_rollouts(trajectories, spread),
            **metrics.of_steps(steps),
        }
        times: Row = {
            "iteration": self.iteration,
            "rollout_s": played - began,
            "update_s": updated - played,
            "sync_s": synced - updated,
            "cpu_s": time.process_time() - cpu,
            "sampled_tokens": sampled,
            "trained_tokens": sum(one.sampled_tokens for one in chosen),
            "tokens_per_s": sampled / (played - began),
        }
        episodes = [one.episode for one in trajectories]
        return Report(row, times, episodes, self.watch.watch(row))

    def _update(
        self, trajectories: list[Trajectory], share: float
    ) -> tuple[list[update.Step], float | None]:
        """Learn from what was kept; return the steps and what values explain."""
        config, policy = self.config, self.policy
        lesson, explained = self._lesson(Experience.of(trajectories))
        objective = settings.objective_of(config, self.longest, share)
        policy.network.train()
        steps = []
        order = Stream(config.seed, "order", self.iteration)
        for _ in range(config.online * config.passes):
            for chosen in self._minibatches(len(trajectories), order):
                step = update.Step()
                if self.iteration >= config.critic_warmup:
                    step = update.accumulate(
                        policy.network, lesson, chosen, objective, config.token_budget
                    )
                    self._set_rate()
                    step.grad_norm = update.clip_and_step(
                        self.optimizer,
                        (parameter for _, parameter in policy.trained()),
                        config.grad_clip,
                    )
                if policy.critic is not None and self.critic_optimizer is not None:
                    step.value_loss = update.accumulate_values(
                        policy.critic,
                        lesson,
                        chosen,
                        config.value_clip,
                        config.token_budget,
                    )
                    step.critic_grad_norm = update.clip_and_step(
                        self.critic_optimizer,
                        policy.critic.parameters(),
                        config.grad_clip,
                    )
                steps.append(step)
        policy.network.eval()
        return steps, explained

    def _lesson(self, experience: Experience) -> tuple[update.Lesson, float | None]:
        """Return what there is to learn, and the share of returns values explain."""
        config, policy = self.config, self.policy
        budget = config.token_budget
        values = reference = explained = None
        if policy.critic is not None:
            values = update.values_of(policy.critic, experience, budget)
        if self.reference is not None:
            reference = update.reference_logprobs(
                self.reference, experience, config.temperature, budget
            )
        by = Discounts(gamma=config.gamma, lam=config.lam, gamma_turn=config.gamma_turn)
        estimate = self.algorithm(experience, values, by)
        if values is not None:
            explained = explained_variance(values, estimate)
        old, weights = experience.logprobs, None
        if config.importance_cap is not None:
            old = update.reference_logprobs(
                policy.network, experience, config.temperature, budget
            )
            weights = losses.importance_weights(
                old, experience.logprobs, high=config.importance_cap
            )
        lesson = update.Lesson(
            experience=experience,
            estimate=estimate,
            old=old,
            weights=weights,
            values=values,
            reference=reference,
        )
        return lesson, explained

    def _minibatches(self, count: int, order: Stream) -> list[list[int]]:
        """Return all trajectories in random order, in parts of a minibatch."""
        indices = list(range(count))
        order.shuffle(indices)
        size = self.config.minibatch or count
        return [indices[i : i + size] for i in range(0, count, size)]

    def _set_rate(self) -> None:
        self.steps += 1
        share = min(1.0, self.steps / self.config.warmup) if self.config.warmup else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * share

    def evaluate(self) -> Row:
        """Play the dev split greedily and return success and return.

        Nothing that training draws from is touched.
        """
        episodes = asyncio.run(self._play_dev())
        known = [one.success for one in episodes if one.success is not None]
        return {
            "dev_success": statistics.fmean(known) if known else None,
            "dev_return": statistics.fmean(one.episode_return for one in episodes),
        }

    async def _play_dev(self) -> list[Episode]:
        config = self.config
        dev = {**settings.env_args(config), "split": "dev"}
        greedy = Rollouts(
            self.policy.engine,
            config.agent,
            {**settings.agent_args(config), "temperature": 0.0},
            {**settings.env_args(config)},
        )

        async def one(cell: Cell, seed: int) -> Episode:
            env = make(cell.env_id, level=cell.level, **dev)
            key = EpisodeKey(cell.env_id, cell.level, "dev", seed, 0)
            episode, _ = await play(env, greedy.agent(self.policy.engine), key)
            return episode

        return list(
            await asyncio.gather(
                *(
                    one(cell, seed)
                    for cell in self.cells
                    for seed in range(config.eval_seeds)
                )
            )
        )


def explained_variance(values: torch.Tensor, estimate: Estimate) -> float | None:
    """Return 1 - Var(return - value) / Var(return) over the asked tokens."""
    asked = estimate.value_mask
    if int(asked.sum()) < 2:
        return None
    returns = estimate.returns[asked]
    spread = float(returns.var())
    if spread == 0:
        return None
    return 1 - float((returns - values[asked]).var()) / spread
