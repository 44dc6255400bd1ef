"""A training from its configuration to an exported folder, with exact resume.

Everything that can be refused is refused before anything is trained.
"""

import contextlib
import copy
import dataclasses
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ragen_bench.errors import InvalidSpec, RunMismatch
from ragen_bench.plan import split_cell
from ragen_bench.provenance import commit, versions
from ragen_bench.seeding import Stream
from ragen_bench.starpo import checkpoint, cloning, export, metrics, sinks
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo import policy as policies
from ragen_bench.starpo.algorithm import ALGORITHMS, Algorithm
from ragen_bench.starpo.config import TrainConfig
from ragen_bench.starpo.diagnostics import Diagnostics
from ragen_bench.starpo.loop import Report, Row, Training
from ragen_bench.starpo.rollout import Cell
from ragen_bench.starpo.settings import check_engine, engine_of, lessons_of
from ragen_bench.starpo.training_log import METRICS, ROLLOUTS

log = logging.getLogger(__name__)

CONFIG = "train.json"
CHECKPOINTS = "checkpoints"
MODEL = "model"
_FREE = {"iterations", "preset", "sinks"}
"""Settings that may differ when a training goes on; it is the same one."""


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
        RagenError: A setting is refused, or the folder holds another training.
        RunIncomplete: The disk is full.
    """
    progress = progress or Progress()
    algorithm, cells = check(config)
    torch.set_num_threads(config.threads)
    out.mkdir(parents=True, exist_ok=True)
    _adopt(out, config)
    training = build(config, algorithm, cells)
    with contextlib.closing(training.policy.engine):
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
    progress.begin(config, 0 if found is None else found[1]["iteration"])
    if found is None:
        torch.manual_seed(config.seed)
        facts = _warm_start(training)
        if facts is not None:
            training.cloned = facts
            training.spent = facts["cpu_s"]
            progress.cloned(facts)
    else:
        restore(training, *found)
    start = sinks.Start(
        folder=out,
        iteration=training.iteration,
        settings=configuration.to_dict(config),
    )
    with sinks.opened(config.sinks, start, progress.warning) as sink:
        if found is None:
            save(training, out)
        complete = _iterate(training, out, sink, progress, stop)
    save(training, out)
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
        InvalidSpec: The environments' settings ask for another split than train.
    """
    import ragen_bench.starpo.algorithms  # noqa: F401 - registers them

    sinks.check(config.sinks)
    check_engine(config)
    algorithm = ALGORITHMS.get(config.algorithm)
    if not isinstance(algorithm, Algorithm):
        raise InvalidSpec(f"algorithm {config.algorithm!r} is no Algorithm")
    cells = [Cell(env_id=e, level=n) for e, n in map(split_cell, config.envs)]
    if config.env_args.get("split", "train") != "train":
        raise InvalidSpec(
            f"split is {config.env_args['split']!r}, but only instances of the train "
            "split are trained on; evaluate on dev or test with ragen-bench run"
        )
    return algorithm, cells


def build(config: TrainConfig, algorithm: Algorithm, cells: list[Cell]) -> Training:
    """Load the model and return the training before its first iteration."""
    policy = policies.load(
        config.model,
        shape=(config.hidden_size, config.layers),
        seed=config.seed,
        device=config.device,
        engine=engine_of(config),
        lora_rank=config.lora_rank,
    )
    if algorithm.critic:
        policy.critic = policies.Critic(policy.network)
        policy.critic.to(policies.plain_network(policy.network).device)
    return Training(config, policy, algorithm, cells)


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
            source = cloning.repeated(source, config.clone_episodes, order)
        facts = cloning.clone(policy.network, source, schedule)
    if config.kl:
        training.reference = copy.deepcopy(policy.network).requires_grad_(False)
    if policy.critic is not None:
        # The critic's backbone begins where the policy is, with a head of zeros.
        fresh = policies.Critic(policy.network)
        policy.critic.load_state_dict(fresh.state_dict())
    policy.sync()
    return facts


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
    with _stop_on_signal(progress, stop):
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
                _keep(report, training.iteration, out)
            progress.iteration(report.row, report.times)
            for alarm in report.alarms:
                progress.alarm(str(alarm))
            if config.save_every and training.iteration % config.save_every == 0:
                save(training, out)
    return True


def _keep(report: Report, iteration: int, out: Path) -> None:
    folder = out / ROLLOUTS
    folder.mkdir(exist_ok=True)
    lines = [f"{episode.model_dump_json()}\n" for episode in report.episodes]
    beside = folder / f".{iteration:06d}.part"
    beside.write_text("".join(lines), "utf-8")
    os.replace(beside, folder / f"{iteration:06d}.jsonl")


def save(training: Training, out: Path) -> None:
    """Write a checkpoint."""
    policy = training.policy
    tensors: dict[str, Any] = {
        "network": dict(policy.trained()),
        "optimizer": training.optimizer.state_dict(),
        "torch_rng": torch.get_rng_state(),
    }
    tensors["network"] = {k: v.detach() for k, v in tensors["network"].items()}
    if policy.critic is not None and training.critic_optimizer is not None:
        tensors["critic"] = policy.critic.state_dict()
        tensors["critic_optimizer"] = training.critic_optimizer.state_dict()
    if training.reference is not None:
        tensors["reference"] = training.reference.state_dict()
    state = {
        "iteration": training.iteration,
        "steps": training.steps,
        "drawn": training.instances.drawn,
        "watch": training.watch.get_state(),
        "cloned": training.cloned,
        "spent": training.spent,
        "versions": versions(),
    }
    checkpoint.save(out / CHECKPOINTS, training.iteration, tensors, state)


def restore(training: Training, tensors: dict[str, Any], state: dict[str, Any]) -> None:
    """Go on from a checkpoint."""
    policy = training.policy
    with torch.no_grad():
        for name, parameter in policy.trained():
            parameter.copy_(tensors["network"][name])
    training.optimizer.load_state_dict(tensors["optimizer"])
    if policy.critic is not None and training.critic_optimizer is not None:
        policy.critic.load_state_dict(tensors["critic"])
        training.critic_optimizer.load_state_dict(tensors["critic_optimizer"])
    if "reference" in tensors:
        training.reference = copy.deepcopy(policy.network).requires_grad_(False)
        training.reference.load_state_dict(tensors["reference"])
    torch.set_rng_state(tensors["torch_rng"])
    training.iteration = state["iteration"]
    training.steps = state["steps"]
    training.instances.drawn = state["drawn"]
    training.watch.set_state(state["watch"])
    training.cloned = state.get("cloned")
    training.spent = state.get("spent", 0.0)
    policy.sync()


def _adopt(out: Path, config: TrainConfig) -> None:
    """Write the configuration, or refuse a folder of another one.

    Raises:
        RunMismatch: The folder holds another training.
    """
    path = out / CONFIG
    asked = json.loads(json.dumps(configuration.to_dict(config)))
    if path.exists():
        # What an older version did not know of was as it is by default.
        known = json.loads(path.read_text("utf-8"))["config"]
        held = {**configuration.to_dict(TrainConfig()), **known}
        for name in sorted(asked):
            if name not in _FREE and held[name] != asked[name]:
                raise RunMismatch(
                    f"{str(out)!r} was trained with {name} {held[name]!r}, but "
                    f"{asked[name]!r} is asked for; give another --out, or the same "
                    "setting"
                )
    text = json.dumps(
        {"config": asked, "versions": versions(), "commit": commit()},
        indent=2,
        sort_keys=True,
    )
    beside = path.with_name(f".{CONFIG}.part")
    beside.write_text(f"{text}\n", "utf-8")
    os.replace(beside, path)


@contextlib.contextmanager
def _stop_on_signal(progress: Progress, stop: threading.Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end training at the iteration's end; twice, at once."""

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # A stream that is being written to cannot be written to.
        with contextlib.suppress(RuntimeError):
            progress.stopping()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
