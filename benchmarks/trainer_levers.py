"""Shows what each lever of the trainer gains, by switching off one at a time.

    python benchmarks/trainer_levers.py

CPU time on one core, all variants in turns, the median of the ratios with the range.
Rollouts are played by ``tiny``, once more on FrozenLake with replies of at most twelve
tokens, and by random weights whose replies have lengths from an exponential
distribution; updates are of recorded trajectories, by a model with a vocabulary of
49,152.  Passes are those of the decoder: on a GPU they are what a rollout costs, while
a CPU pays for their rows.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from trainer_speed import cpu_seconds, learn, shown
from trainer_workloads import (
    VOCABULARY,
    ForcedLengths,
    Lengths,
    llama,
    options_of,
    play,
    record,
    rescore,
    speed_config,
    training_of,
)

from ragen_bench.starpo import experience, policy, settings, update
from ragen_bench.starpo.engines.hf import HFEngine
from ragen_bench.starpo.experience import Pass
from ragen_bench.starpo.logprobs import TokenLogprobs
from ragen_bench.starpo.loop import Training
from ragen_bench.starpo.rollout import Rollouts
from ragen_bench.starpo.train_config import TrainConfig
from ragen_bench.starpo.trajectories import Trajectory

ROLLOUT: Mapping[str, Mapping[str, Any]] = {
    "all on": {},
    "refill of the batch": {"refill": False},
    "keys and values kept across turns": {"kv_reuse": False},
    "beginnings shared": {"share_heads": False},
    "kept and shared": {"kv_reuse": False, "share_heads": False},
}


class Played:
    """One engine's rollouts, and how many passes they took.

    Args:
        config: The settings.
        options: Of the engine, as they differ from the trainer's.
        drawn: Whether random weights play, with replies of drawn lengths.
    """

    def __init__(
        self, config: TrainConfig, options: Mapping[str, Any], drawn: bool
    ) -> None:
        self.training = training_of(config, llama(128, 4, 512) if drawn else None)
        found = self.training.policy
        engine = HFEngine(
            policy.plain_network(found.network),
            found.tokenizer,
            dtype="float32",
            options=options_of(config, **options),
        )
        found.engine = engine
        found.sync()
        lengths = Lengths(mean=config.max_tokens / 3, limit=config.max_tokens)
        self.training.rollouts = Rollouts(
            ForcedLengths(engine, lengths) if drawn else engine,
            config.agent,
            settings.agent_args(config),
            settings.env_args(config),
        )
        self.passes = 0
        engine.network.base_model.register_forward_pre_hook(self._count)

    def _count(self, *call: Any) -> None:
        self.passes += 1

    def seconds_a_token(self, salt: str) -> float:
        """Play once, the same episodes whoever plays."""
        engine = self.training.policy.engine
        assert isinstance(engine, HFEngine)
        engine.refresh()
        self.training.instances.drawn = self.passes = 0
        began = time.process_time()
        played = play(self.training, salt)
        spent = time.process_time() - began
        return spent / sum(one.sampled_tokens for one in played)


def rollout_rows(
    config: TrainConfig, repeats: int, player: str, *, drawn: bool
) -> Iterator[str]:
    """Yield a row for each lever of the rollout."""
    engines = {
        name: Played(config, options, drawn) for name, options in ROLLOUT.items()
    }
    costs: dict[str, list[float]] = {name: [] for name in engines}
    for round_ in range(repeats + 1):
        for name, engine in engines.items():
            costs[name].append(engine.seconds_a_token(f"lever/{round_}"))
    on = costs.pop("all on")
    for name, off in costs.items():
        ratios = [b / a for a, b in zip(on[1:], off[1:], strict=True)]
        passes = f"{engines[name].passes} / {engines['all on'].passes}"
        yield f"| rollout, {player}: {name} | {passes} | {shown(ratios)} |"


def whole_head(everything: bool) -> Callable[..., TokenLogprobs]:
    """Return `update.logprobs_of` as a textbook has it, all logits at once.

    Args:
        everything: Whether logits are made of observations and padding too.
    """

    def logprobs_of(network: Any, batch: Pass, temperature: float) -> TokenLogprobs:
        plain = policy.plain_network(network)
        hidden = plain.base_model(
            input_ids=batch.ids, use_cache=False
        ).last_hidden_state
        head = plain.get_output_embeddings()
        if everything:
            logits = head(hidden)[batch.before]
        else:
            logits = head(hidden[batch.before])
        log_p = torch.log_softmax(logits / temperature, dim=-1)
        return TokenLogprobs(
            logprobs=log_p.gather(1, batch.targets[:, None])[:, 0],
            entropies=-(log_p.exp() * log_p).sum(-1).detach(),
        )

    return logprobs_of


def one_by_one(training: Training, recorded: Sequence[Trajectory]) -> None:
    """Learn in passes of one trajectory."""
    before = training.config
    training.config = dataclasses.replace(before, token_budget=1)
    learn(training, recorded)
    training.config = before


def with_old_logprobs(training: Training, recorded: Sequence[Trajectory]) -> None:
    """Learn with one more pass for the log-probabilities before the step."""
    before = training.config
    training.config = dataclasses.replace(before, importance_cap=2.0)
    learn(training, recorded)
    training.config = before


def with_head(everything: bool) -> Callable[..., None]:
    """Return how to learn with another head, and beginnings read by every row."""

    def learn_so(training: Training, recorded: Sequence[Trajectory]) -> None:
        head = whole_head(everything)
        with mock.patch.object(update, "logprobs_of", head):
            unshared(training, recorded)

    return learn_so


def unshared(training: Training, recorded: Sequence[Trajectory]) -> None:
    """Learn with the beginning of every row read anew."""
    with mock.patch.object(experience, "shared_length", lambda rows, limits: 0):
        learn(training, recorded)


UPDATE: Mapping[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "filter of 25 % before any pass": (learn, learn),
    "no pass for old log-probabilities": (with_old_logprobs, learn),
    "head on sampled tokens alone": (with_head(True), with_head(False)),
    "head in chunks, against all sampled tokens at once": (with_head(False), unshared),
    "token budget, against one trajectory a pass": (one_by_one, learn),
    "beginnings shared in the update": (unshared, learn),
}
"""Each lever to what is done without it and with it."""


def update_rows(
    config: TrainConfig, recorded: Sequence[Trajectory], repeats: int
) -> Iterator[str]:
    """Yield a row for each lever of the update."""
    longest = max(len(one.segments[0].ids) for one in recorded)
    config = dataclasses.replace(config, token_budget=8 * longest)
    training = training_of(config, llama(64, 2, VOCABULARY))
    rescore(recorded, training)
    everything, few = (
        settings.filter_of(dataclasses.replace(config, filter=rule))
        for rule in ("all", "top_k")
    )
    learn(training, recorded)
    for name, (without, with_it) in UPDATE.items():
        ratios = []
        for _ in range(repeats):
            training.keep = everything
            off = cpu_seconds(lambda: without(training, recorded))  # noqa: B023
            training.keep = few if name.startswith("filter") else everything
            on = cpu_seconds(lambda: with_it(training, recorded))  # noqa: B023
            ratios.append(off / on)
        yield f"| update: {name} | | {shown(ratios)} |"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("update", "rollout"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    config = speed_config(groups=asked.groups, rollouts=asked.rollouts)
    print("| lever | passes off / on | seconds off / on |\n|---|---|---|")
    short = dataclasses.replace(
        config, envs=("ragen/FrozenLake-v0:1",), agent="direct", max_tokens=12
    )
    workloads = (
        ("tiny", config, False),
        ("tiny, short replies", short, False),
        ("lengths drawn", config, True),
    )
    if asked.only != "update":
        for player, played, drawn in workloads:
            for row in rollout_rows(played, asked.repeats, player, drawn=drawn):
                print(row, flush=True)
    if asked.only != "rollout":
        for row in update_rows(config, record(config), asked.repeats):
            print(row, flush=True)


if __name__ == "__main__":
    main()
