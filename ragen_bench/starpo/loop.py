"""StarPO's loop: play groups, keep the uncertain ones, update, and play again.

One iteration is `Training.iterate`; it can be followed with a pencil.  The parts it
calls take numbers and tensors.
"""

import asyncio
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ragen_bench.records import Episode
from ragen_bench.registry import make_agent
from ragen_bench.seeding import Stream
from ragen_bench.starpo import (
    canary,
    evaluation,
    filters,
    losses,
    metrics,
    settings,
    update,
)
from ragen_bench.starpo.algorithm import Algorithm, Discounts
from ragen_bench.starpo.echo_trap import Alarm, EchoTrap
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.gae import explained_variance
from ragen_bench.starpo.policy import Policy
from ragen_bench.starpo.rollout import Cell, Instances, Rollouts
from ragen_bench.starpo.train_config import TrainConfig
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
    gradients: Sequence[Mapping[str, float | str]] = ()
    """For ``gradients.csv``, where they were asked for."""


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
        self.checked: int | None = None
        """Version of the weights that the engine is known to play with."""
        self.cloned: dict[str, float] | None = None
        """What the warm start came to, None without one."""
        self.spent = 0.0
        """CPU seconds of the warm start and of all iterations."""
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
        self.probes = settings.probes_of(config, policy, self.longest)
        trained = [parameter for _, parameter in policy.trained()]
        self.optimizer = settings.optimizer_of(config, trained, config.lr)
        self.imitation = settings.imitation_of(config, trained)
        self.critic_optimizer: torch.optim.Optimizer | None = None
        if policy.critic is not None:
            self.critic_optimizer = settings.optimizer_of(
                config, policy.critic.parameters(), config.critic_lr
            )

    @property
    def rate(self) -> float:
        """What is left of learning rates, by iterations or by CPU time, in [0, 1]."""
        config, warm = self.config, (self.cloned or {}).get("cpu_s", 0.0)
        left = config.budget_seconds - warm
        by_time = (self.spent - warm) / left if left > 0 else 0.0
        done = max(by_time, self.iteration / max(config.iterations, 1))
        return update.left_of_rate(min(1.0, done), config.decay)

    def iterate(self) -> Report:
        """Do one iteration: rollout phase, then update phase."""
        config, policy = self.config, self.policy
        began, cpu = time.perf_counter(), time.process_time()
        groups = self.instances.take(config.groups, config.rollouts)
        salt = f"train/{config.seed}/{self.iteration}"
        trajectories = asyncio.run(self.rollouts.play(groups, salt))
        played = time.perf_counter()
        asked = canary.sequence(trajectories)
        if self.checked != self.policy.version:
            self._check_engine(asked)

        spread = filters.group_spread(
            [one.total for one in trajectories], [one.group for one in trajectories]
        )
        probed = self.probes.look(
            self.iteration + 1, trajectories, spread, lambda e: self._lesson(e)[0]
        )
        looked = time.perf_counter()
        kept = set(self.keep(spread))
        chosen = [one for one in trajectories if one.group in kept]
        share = len(kept) / len(spread)
        steps, explained = self._update(chosen, share) if chosen else ([], None)
        imitated = self.imitation.learn(
            policy.network, trajectories, self.iteration, self.rate
        )
        updated = time.perf_counter()
        self.policy.sync()
        canary_row = self._check_engine(asked)
        synced = time.perf_counter()
        self.iteration += 1

        sampled = sum(one.sampled_tokens for one in trajectories)
        row: Row = {
            "iteration": self.iteration,
            "kept_share": share,
            "explained_variance": explained,
            **metrics.of_rollouts(trajectories, spread),
            **metrics.of_steps(steps),
            **imitated,
            **probed.row,
            **canary_row,
        }
        times: Row = {
            "iteration": self.iteration,
            "rollout_s": played - began,
            "probe_s": looked - played,
            "update_s": updated - looked,
            "sync_s": synced - updated,
            "cpu_s": time.process_time() - cpu,
            "sampled_tokens": sampled,
            "trained_tokens": sum(one.sampled_tokens for one in chosen),
            "tokens_per_s": sampled / (played - began),
        }
        episodes = [one.episode for one in trajectories]
        return Report(row, times, episodes, self.watch.watch(row), probed.gradients)

    def _check_engine(self, ids: Sequence[int]) -> Row:
        """Compare engine and trainer over a sequence, if there is one.

        Raises:
            RunIncomplete: The engine plays other weights.
        """
        policy = self.policy
        if not ids:
            return {}
        ours = update.sequence_logprobs(policy.network, ids)
        reading = canary.compare(policy.engine.score(ids), ours)
        canary.check(reading, policy.precision, policy.version)
        self.checked = policy.version
        return {
            "canary_diff_mean": reading.mean,
            "canary_diff_max": reading.largest,
        }

    def _update(
        self, trajectories: list[Trajectory], share: float
    ) -> tuple[list[update.Step], float | None]:
        """Learn from what was kept; return the steps and what values explain."""
        config, policy = self.config, self.policy
        # With dropout, which training mode turns on, it would be another policy than
        # the one that sampled.
        policy.network.eval()
        if policy.critic is not None:
            policy.critic.eval()
        lesson, explained = self._lesson(Experience.of(trajectories))
        objective = settings.objective_of(config, self.longest, share)
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
        config = self.config
        self.steps += 1
        share = min(1.0, self.steps / config.warmup) if config.warmup else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * share * self.rate

    def evaluate(self) -> Row:
        """Play the dev split greedily and return success and return.

        Nothing that training draws from is touched.
        """
        config = self.config
        greedy = {**settings.agent_args(config), "temperature": 0.0}
        player = functools.partial(make_agent, config.agent, self.policy.engine)
        row = evaluation.evaluate(
            lambda: player(**greedy),
            self.cells,
            settings.env_args(config),
            config.eval_seeds,
        )
        # What the engine computed for these prompts, and where it lies, would move the
        # next rollouts by rounding.
        self.policy.sync()
        return row
