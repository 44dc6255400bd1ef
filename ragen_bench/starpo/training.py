"""A training from its configuration to an exported folder, with exact resume.

Everything that can be refused is refused before anything is trained.
"""

import contextlib
import copy
import dataclasses
import logging
import math
import threading
import time
from pathlib import Path

import torch

from ragen_bench.errors import InvalidSpec
from ragen_bench.plan import split_cell
from ragen_bench.run_folder import open_locked
from ragen_bench.seeding import Stream
from ragen_bench.starpo import (
    checkpoint,
    cloning,
    export,
    metrics,
    saving,
    sinks,
    stopping,
    training_folder,
)
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo import policy as policies
from ragen_bench.starpo.algorithm import ALGORITHMS, Algorithm
from ragen_bench.starpo.diagnostics import Diagnostics
from ragen_bench.starpo.loop import Row, Training
from ragen_bench.starpo.rollout import Cell
from ragen_bench.starpo.settings import check_engine, engine_of, lessons_of
from ragen_bench.starpo.train_config import TrainConfig
from ragen_bench.starpo.training_folder import CHECKPOINTS, MODEL
from ragen_bench.starpo.training_log import METRICS

log = logging.getLogger(__name__)


class Progress:
    """Hears of a training; every method may be left as it is."""

    def begin(self, config: TrainConfig, done: int) -> None:
        """Hear that a training begins, or goes on after so many iterations."""

    def cloned(self, facts: dict[str, float]) -> None:
        """Hear that the warm start is over."""

    def iteration(self, row: Row, times: Row) -> None:
        """Hear that an iteration is over and in the files."""

    def alarm(self, text: str) -> None:
        """Hear of a sign of collapse; left as it is, this goes into the log."""
        log.warning("%s", text)

    def warning(self, text: str) -> None:
        """Hear of what went wrong beside the training; likewise."""
        log.warning("%s", text)

    def stopping(self) -> None:
        """Hear that the training ends with this iteration, because a signal came."""

    def close(self) -> None:
        """Leave the terminal as it was."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a training left."""

    folder: Path
    model: Path
    """Played by ``--model hf:FOLDER``."""
    iterations: int
    complete: bool
    """Whether it ran to its end; the same command goes on where it did not."""


def train(
    config: TrainConfig,
    out: Path,
    *,
    progress: Progress | None = None,
    command: str | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Train a policy into a folder; the same call again goes on.

    Args:
        config: The settings.
        out: The folder.
        progress: Hears of it.
        command: Kept on the model's card.
        stop: Ends the training after an iteration, as Ctrl-C does.

    Raises:
        RagenError: A setting is refused, or the folder holds another training, or
            another process trains in it.
        RunIncomplete: The disk is full.
    """
    progress = progress or Progress()
    algorithm, cells = check(config)
    torch.set_num_threads(config.threads)
    with open_locked(out):
        training_folder.refuse_another(out, config)
        training = build(config, algorithm, cells)
        with contextlib.closing(training.policy.engine):
            training_folder.adopt(out, config)
            return _run(training, out, progress, command, stop or threading.Event())


def _run(
    training: Training,
    out: Path,
    progress: Progress,
    command: str | None,
    stop: threading.Event,
) -> Outcome:
    """Train from wherever a folder stands to its end, and export."""
    config = training.config
    found = checkpoint.load(out / CHECKPOINTS)
    if found is not None:
        saving.restore(training, *found)
    progress.begin(config, training.iteration)
    if found is None:
        torch.manual_seed(config.seed)
        facts = _warm_start(training)
        if facts is not None:
            training.cloned = facts
            training.spent = facts["cpu_s"]
            progress.cloned(facts)
    start = sinks.Start(
        folder=out,
        iteration=training.iteration,
        settings=configuration.to_dict(config),
    )
    with sinks.opened(config.sinks, start, progress.warning) as sink:
        if found is None:
            saving.save(training, out / CHECKPOINTS)
        complete = _iterate(training, out, sink, progress, stop)
    saving.save(training, out / CHECKPOINTS)
    rows = metrics.read(out / METRICS)
    model = export.write(training, out / MODEL, command=command, rows=rows)
    return Outcome(
        folder=out, model=model, iterations=training.iteration, complete=complete
    )


def check(config: TrainConfig) -> tuple[Algorithm, list[Cell]]:
    """Return what a configuration names, or refuse it.

    Raises:
        UnknownName: No such algorithm, environment or sink.
        MissingExtra: The package of a sink or of the engine is not installed.
        InvalidSpec: The environments' settings name a level, or another split than
            train, a critic is warmed up where there is none, or is never trained.
    """
    import ragen_bench.starpo.algorithms  # noqa: F401 - registers them

    sinks.check(config.sinks)
    check_engine(config)
    algorithm = ALGORITHMS.get(config.algorithm)
    if not isinstance(algorithm, Algorithm):
        raise InvalidSpec(f"algorithm {config.algorithm!r} is no Algorithm")
    if algorithm.critic and not config.passes:
        raise InvalidSpec(
            f"passes is 0, but algorithm {config.algorithm!r} has a critic, which "
            "would not be trained; name one without, such as grpo"
        )
    if config.critic_warmup and not algorithm.critic:
        raise InvalidSpec(
            f"critic_warmup is {config.critic_warmup!r}, but algorithm "
            f"{config.algorithm!r} has no critic, so that nothing would be trained; "
            "leave it out, or take algorithm='ppo'"
        )
    cells = [Cell(env_id=e, level=n) for e, n in map(split_cell, config.envs)]
    if "level" in config.env_args:
        raise InvalidSpec(
            f"env_args name the level {config.env_args['level']!r}; name it with the "
            "environment, such as ragen/Bandit-v0:2"
        )
    if config.env_args.get("split", "train") != "train":
        raise InvalidSpec(
            f"split is {config.env_args['split']!r}, but only instances of the train "
            "split are trained on; evaluate on dev or test with ragen-bench run"
        )
    return algorithm, cells


def build(config: TrainConfig, algorithm: Algorithm, cells: list[Cell]) -> Training:
    """Load the model and return the training before its first iteration.

    Raises:
        RagenError: Model, agent, context or environments are refused.
    """
    policy = policies.load(
        config.model,
        shape=(config.hidden_size, config.layers),
        seed=config.seed,
        device=config.device,
        engine=engine_of(config),
        lora_rank=config.lora_rank,
    )
    with contextlib.ExitStack() as failing:
        failing.callback(policy.engine.close)
        if algorithm.critic:
            policy.critic = policies.Critic(policy.network)
            policy.critic.to(policies.plain_network(policy.network).device)
        training = Training(config, policy, algorithm, cells)
        training.rollouts.agent(policy.engine)  # is refused here or never
        failing.pop_all()
    return training


def _warm_start(training: Training) -> dict[str, float] | None:
    """Clone the expert, if that is asked for, and fix the reference model."""
    config, policy = training.config, training.policy
    facts = None
    if config.clone_seconds or config.clone_steps:
        lessons = lessons_of(
            config, training.cells, policy.tokenizer, config.clone_noise
        )
        schedule = cloning.Schedule(
            steps=config.clone_steps,
            seconds=config.clone_seconds,
            batch=config.clone_batch,
            lr=config.clone_lr,
            budget=config.token_budget,
        )
        source = lessons.demonstrations()
        if config.clone_episodes:
            order = Stream(config.seed, "demonstrations")
            # Mistakes are nothing to go on imitating.
            taken = [] if config.clone_mistakes else training.imitation.demonstrations
            source = cloning.repeated(source, config.clone_episodes, order, taken)
        facts = cloning.clone(policy.network, source, schedule)
        _check_cloned(config, facts)
    if config.kl:
        training.reference = copy.deepcopy(policy.network).requires_grad_(False)
    if policy.critic is not None:
        policy.critic.begin_at(policy.network)
    policy.sync()
    return facts


def _check_cloned(config: TrainConfig, facts: dict[str, float]) -> None:
    """Refuse to train what a warm start left without weights or without lessons."""
    if not facts["steps"]:
        raise InvalidSpec(
            f"clone_seconds is {config.clone_seconds!r}, over before the first step; "
            "give more, or clone_steps"
        )
    if not math.isfinite(facts["loss"]):
        raise InvalidSpec(
            f"the warm start diverged at clone_lr {config.clone_lr!r}: its loss is "
            f"{facts['loss']!r} nats a token; lower clone_lr"
        )


def _iterate(
    training: Training,
    out: Path,
    sink: sinks.Sink,
    progress: Progress,
    stop: threading.Event,
) -> bool:
    """Run iterations to the end, a signal or the budget; return whether to the end."""
    config = training.config
    files = Diagnostics(out, training.iteration)
    with stopping.on_signal(stop, progress.stopping):
        while training.iteration < config.iterations:
            if stop.is_set():
                return False
            # The same command again leaves a training that has ended so as it is.
            if config.stop_on_collapse and training.watch.should_stop:
                progress.alarm("the echo trap has stood long enough: training ends")
                return True
            if config.budget_seconds and training.spent >= config.budget_seconds:
                return True
            began = time.process_time()
            report = training.iterate()
            if config.eval_every and training.iteration % config.eval_every == 0:
                before = time.perf_counter()
                report.row.update(training.evaluate())
                report.times["eval_s"] = time.perf_counter() - before
            training.spent += time.process_time() - began
            sink.add(report.row, report.times)
            files.add(report.alarms, report.gradients)
            if training.iteration in config.keep_rollouts:
                training_folder.keep(out, training.iteration, report.episodes)
            progress.iteration(report.row, report.times)
            for alarm in report.alarms:
                progress.alarm(str(alarm))
            if config.save_every and training.iteration % config.save_every == 0:
                saving.save(training, out / CHECKPOINTS)
    return True
