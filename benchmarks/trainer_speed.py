"""Times StarPO's trainer against TRL's on the same work, on one CPU core.

    pip install trl
    python benchmarks/trainer_speed.py

Same model, environments, prompts, parser, sampling and forward passes of as many padded
tokens, in float32, without gradient checkpointing and without vLLM (`trainer_trl` says
what TRL's side does).  Both take turns in one process, and ratios are of CPU time, the
median of the turns with the range.  Before anything is timed, both gradients of the
same trajectories are compared.
"""

import argparse
import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import trainer_trl
import trl.trainer.utils
from trainer_workloads import (
    VOCABULARY,
    Lengths,
    llama,
    play,
    record,
    rescore,
    speed_config,
    training_of,
)

from ragen_bench.starpo import filters, settings, update
from ragen_bench.starpo.advantages import group_normalized
from ragen_bench.starpo.algorithm import Algorithm, Discounts, by_trajectory
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.loop import Training
from ragen_bench.starpo.train_config import TrainConfig
from ragen_bench.starpo.trajectories import Trajectory

TRL_EPS = 1e-4
"""TRL adds it to the deviation of a group's returns, we add 1e-6."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model that is measured."""

    name: str
    shape: Any = None
    """Of random weights; None is ``tiny``."""
    lengths: Lengths | None = None
    """Of replies that are played; None lets the model end them."""


def cases() -> list[Case]:
    """Return the two models."""
    forced = Lengths(mean=24, limit=64)
    wide = llama(64, 2, VOCABULARY)
    return [Case(name="tiny"), Case(name="wide head", shape=wide, lengths=forced)]


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Return what a call costs."""
    began = time.process_time()
    work()
    return time.process_time() - began


def learn(training: Training, trajectories: Sequence[Trajectory]) -> None:
    """Filter, update and hand the weights to the engine, as an iteration does."""
    spread = filters.group_spread(
        [one.total for one in trajectories], [one.group for one in trajectories]
    )
    kept = set(training.keep(spread))
    chosen = [one for one in trajectories if one.group in kept]
    training._update(chosen, len(kept) / len(spread))
    training.policy.sync()


def gradients(
    training: Training, trajectories: Sequence[Trajectory], eps: float
) -> torch.Tensor:
    """Return the gradient of the loss, clipped, as one vector; nothing is changed."""
    experience = Experience.of(trajectories)
    algorithm = Algorithm(
        estimate=by_trajectory(lambda e: group_normalized(e.returns, e.groups, eps=eps))
    )
    lesson = update.Lesson(
        experience=experience,
        estimate=algorithm(experience, None, Discounts()),
        old=experience.logprobs,
    )
    config, network = training.config, training.policy.network
    objective = settings.objective_of(config, training.longest, 1.0)
    everybody = range(len(trajectories))
    update.accumulate(network, lesson, everybody, objective, config.token_budget)
    torch.nn.utils.clip_grad_norm_(network.parameters(), config.grad_clip)
    found = torch.cat([one.grad.flatten() for one in network.parameters()])
    network.zero_grad(set_to_none=True)
    return found


class CompactHead:
    """Lets TRL's head skip prompts and padding, as it does where there is a GPU."""

    def __init__(self) -> None:
        self.on = False
        self._plain = trl.trainer.utils._use_triton

    def __enter__(self) -> "CompactHead":
        trl.trainer.utils._use_triton = lambda device: self.on or self._plain(device)
        return self

    def __exit__(self, *fault: object) -> None:
        trl.trainer.utils._use_triton = self._plain


def updates(
    case: Case,
    recorded: list[Trajectory],
    config: TrainConfig,
    *,
    micro: int,
    repeats: int,
) -> tuple[dict[str, list[float]], float]:
    """Return seconds of each way, turn by turn, and how far gradients are apart.

    Args:
        case: The model.
        recorded: What is learned from; one segment each.
        config: The settings.
        micro: Trajectories of TRL's passes; ours have room for as many padded tokens.
        repeats: Turns that count; one more goes before them.
    """
    longest = max(len(one.segments[0].ids) for one in recorded)
    config = dataclasses.replace(config, token_budget=micro * longest)
    training = training_of(config, case.shape)
    network = copy.deepcopy(training.policy.network)
    rescore(recorded, training)
    expected = gradients(training, recorded, TRL_EPS)
    seconds: dict[str, list[float]] = {"all": [], "25 %": []}
    rules = {
        "all": settings.filter_of(dataclasses.replace(config, filter="all")),
        "25 %": settings.filter_of(dataclasses.replace(config, filter="top_k")),
    }
    with CompactHead() as head:

        def between() -> None:
            head.on = not head.on
            if head.on:
                return
            for name, rule in rules.items():
                training.keep = rule
                work = lambda: learn(training, recorded)  # noqa: E731
                seconds[name].append(cpu_seconds(work))

        steps = trainer_trl.Steps(between)
        trainer_trl.train(
            network,
            training.policy.tokenizer,
            config,
            lambda prompts, trainer: trainer_trl.replayed(recorded),
            steps,
            steps=2 * (repeats + 1),
            micro=micro,
        )
    found = torch.cat([g.flatten() for g in steps.gradients.values()])
    apart = float((found - expected).norm() / expected.norm())
    seconds["TRL"] = steps.seconds[0::2]
    seconds["TRL, compact head"] = steps.seconds[1::2]
    # The first turn also pays for what is done once.
    return {name: turns[1:] for name, turns in seconds.items()}, apart


def rollouts(
    case: Case, config: TrainConfig, repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return tokens and turns a CPU second of both ways, turn by turn."""
    training = training_of(config, case.shape, case.lengths)
    theirs = trainer_trl.Lockstep(
        training, copy.deepcopy(training.policy.network), case.lengths
    )
    tokens: dict[str, list[float]] = {"TRL": [], "ours": []}
    turns: dict[str, list[float]] = {"TRL": [], "ours": []}
    for round_ in range(repeats + 1):
        drawn = training.instances.drawn
        began = time.process_time()
        played = play(training, f"speed/{round_}")
        spent = time.process_time() - began
        tokens["ours"].append(sum(one.sampled_tokens for one in played) / spent)
        turns["ours"].append(sum(len(one.turns) for one in played) / spent)
        # Both play the same instances, and replies of the same lengths where given.
        training.instances.drawn = drawn
        groups = training.instances.take(config.groups, config.rollouts)
        began = time.process_time()
        games = theirs.play(groups, f"speed/{round_}")
        spent = time.process_time() - began
        sampled = sum(sum(s.sampled) for game in games for s in game.segments)
        tokens["TRL"].append(sampled / spent)
        turns["TRL"].append(sum(game.turn for game in games) / spent)
    return (
        {name: rates[1:] for name, rates in tokens.items()},
        {name: rates[1:] for name, rates in turns.items()},
    )


def shown(values: Sequence[float]) -> str:
    """Return the median and the range."""
    middle = statistics.median(values)
    return f"{middle:.2f} ({min(values):.2f} to {max(values):.2f})"


def update_rows(name: str, seconds: dict[str, list[float]]) -> Iterator[str]:
    """Yield a row for each pair."""
    for theirs in ("TRL", "TRL, compact head"):
        for ours, what in (("all", "all groups"), ("25 %", "25 % of the groups")):
            pairs = list(zip(seconds[theirs], seconds[ours], strict=True))
            ratios = shown([a / b for a, b in pairs])
            a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
            yield (
                f"| {name} | update, {what} | {theirs} | {a:.2f} | {b:.2f} | {ratios} |"
            )


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--micro", type=int, default=8, help="trajectories of a pass")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("update", "rollout"))
    parser.add_argument("--model", choices=[case.name for case in cases()])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    config = speed_config(groups=asked.groups, rollouts=asked.rollouts)
    measured = [case for case in cases() if asked.model in (None, case.name)]
    apart = {}
    print("| model | what | against | theirs | ours | ratio |")
    print("|---|---|---|---:|---:|---|")
    if asked.only != "rollout":
        recorded = record(config)
        for case in measured:
            seconds, apart[case.name] = updates(
                case, recorded, config, micro=asked.micro, repeats=asked.repeats
            )
            for row in update_rows(case.name, seconds):
                print(row, flush=True)
    if asked.only != "update":
        for case in measured:
            for unit, rates in zip(
                ("tokens/s", "turns/s"),
                rollouts(case, config, asked.repeats),
                strict=True,
            ):
                pairs = zip(rates["TRL"], rates["ours"], strict=True)
                ratios = shown([b / a for a, b in pairs])
                a, b = (statistics.median(rates[side]) for side in ("TRL", "ours"))
                print(
                    f"| {case.name} | rollout, {unit} | TRL | {a:,.1f} | {b:,.1f} "
                    f"| {ratios} |",
                    flush=True,
                )
    for name, distance in apart.items():
        print(f"\ngradients of {name}: {distance:.1e} apart, relative to their norm")
        if not distance < 1e-3:
            raise SystemExit("the two do not compute the same")


if __name__ == "__main__":
    main()
