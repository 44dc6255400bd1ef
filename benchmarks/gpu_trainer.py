"""Times the trainer at RAGEN's batch on one GPU, with a model of random weights.

    python benchmarks/gpu_trainer.py --seconds 480 --out runs/gpu
    python benchmarks/gpu_trainer.py --device cpu --miniature --seconds 100

The model has the shape of Qwen2.5-0.5B, and nothing is downloaded.  Random weights
never end a reply, so lengths are given: once drawn from an exponential distribution
that is cut at the limit, once all at the limit.  Then log-probabilities in bfloat16 are
compared with single precision, and what is left of the time trains ``tiny`` on Sokoban
and scores what came out.  ``--miniature`` runs the same code with a small model.
"""

import argparse
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import torch
from gpu_roofline import H200, Shape, rollout_seconds, update_seconds
from trainer_workloads import Lengths, training_of

import ragen_bench as rb
from ragen_bench.run_folder import read_episodes
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo import filters, training, update
from ragen_bench.starpo.experience import Experience, passes
from ragen_bench.starpo.logprobs import Selected, token_logprobs
from ragen_bench.starpo.loop import Report, Training
from ragen_bench.starpo.train_config import TrainConfig
from ragen_bench.starpo.trajectories import Trajectory

SOKOBAN = "ragen/Sokoban-v0:1"
GIB = 2**30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is measured."""

    shape: Any
    config: TrainConfig
    mean: float
    """Mean length of the replies that are drawn."""


def qwen(**numbers: int) -> Any:
    """Return a configuration of Qwen2 with tied embeddings."""
    import transformers

    return transformers.Qwen2Config(
        tie_word_embeddings=True,
        max_position_embeddings=32_768,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
        **numbers,
    )


def full(device: str) -> Size:
    """Return Qwen2.5-0.5B's shape and RAGEN's batch."""
    shape = qwen(
        num_hidden_layers=24,
        hidden_size=896,
        num_attention_heads=14,
        num_key_value_heads=2,
        intermediate_size=4864,
        vocab_size=151_936,
    )
    return Size(shape=shape, config=batch_config(device), mean=100)


def miniature(device: str) -> Size:
    """Return what a CPU does within two minutes."""
    shape = qwen(
        num_hidden_layers=2,
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=192,
        vocab_size=4096,
    )
    small = {"groups": 4, "rollouts": 4, "minibatch": 4, "max_tokens": 16}
    config = batch_config(device, **small, prompt="compact", token_budget=2048)
    return Size(shape=shape, config=config, mean=8)


def batch_config(device: str, **changes: Any) -> TrainConfig:
    """Return StarPO-S with a critic, as RAGEN has it."""
    plain = {
        "envs": (SOKOBAN,),
        "env_args": {"preset": "ragen-v2"},
        "probe_every": 0,
        "gradient_every": 0,
        "device": device,
    }
    return configuration.make("starpo-s", plain, changes)


class Watched:
    """Keeps the trajectories that a training plays."""

    def __init__(self, rollouts: Any) -> None:
        self._rollouts = rollouts
        self.played: list[Trajectory] = []

    async def play(self, *asked: Any) -> list[Trajectory]:
        """Play, and keep."""
        self.played = await self._rollouts.play(*asked)
        return self.played


def kept_of(found: Training, played: list[Trajectory]) -> list[Trajectory]:
    """Return what the filter of an iteration keeps."""
    spread = filters.group_spread(
        [one.total for one in played], [one.group for one in played]
    )
    kept = set(found.keep(spread))
    return [one for one in played if one.group in kept]


def phases(
    size: Size, name: str, lengths: Lengths, iterations: int
) -> tuple[Training, list[Trajectory]]:
    """Print a row for each iteration; return the training and what it played last."""
    found = training_of(size.config, size.shape, lengths)
    watched = Watched(found.rollouts)
    found.rollouts = watched  # type: ignore[assignment]
    on_gpu = size.config.device != "cpu"
    for _ in range(iterations):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        report = found.iterate()
        peak = torch.cuda.max_memory_allocated() / GIB if on_gpu else None
        print(row_of(size, name, found, watched.played, report, peak), flush=True)
    return found, watched.played


def row_of(
    size: Size,
    name: str,
    found: Training,
    played: list[Trajectory],
    report: Report,
    peak: float | None,
) -> str:
    """Return one iteration as a row."""
    shape, times = Shape.of(size.shape), report.times
    kept = kept_of(found, played)
    critic = found.policy.critic is not None
    rollout, learned = times["rollout_s"] or 0.0, times["update_s"] or 0.0
    read = sum(len(segment.ids) for one in kept for segment in one.segments)
    shares = ["", ""]
    if peak is not None:
        least = rollout_seconds(shape, H200, played)
        shares[0] = f"{100 * least / rollout:.1f} %"
        least = update_seconds(shape, H200, kept, critic)
        shares[1] = f"{100 * least / learned:.1f} %"
    sampled = times["sampled_tokens"] or 0.0
    return (
        f"| {name} | {report.row['iteration']} | {rollout:.2f} | {learned:.2f} "
        f"| {times['sync_s'] or 0.0:.2f} | {sampled / rollout:,.0f} "
        f"| {read / learned:,.0f} | {'' if peak is None else f'{peak:.1f}'} "
        f"| {shares[0]} | {shares[1]} |"
    )


def scored(network: Any, batch: Any, temperature: float, half: bool) -> torch.Tensor:
    """Return the log-probabilities of a pass, in bfloat16 or single precision."""
    with (
        torch.no_grad(),
        torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=half),
    ):
        hidden = network.base_model(
            input_ids=batch.ids, use_cache=False
        ).last_hidden_state
    selected = Selected(hidden=hidden[batch.before], targets=batch.targets)
    head = network.get_output_embeddings().weight.detach()
    return token_logprobs(selected, head, temperature=temperature).logprobs


def compare_precisions(found: Training, played: list[Trajectory]) -> None:
    """Print how far bfloat16 and the engine are from single precision."""
    config, network = found.config, found.policy.network
    experience = Experience.of(played[:4])
    differences: dict[str, list[torch.Tensor]] = {"bfloat16": [], "trainer": []}
    for batch in passes(experience, range(4), config.token_budget):
        here = batch.to(network.device)
        exact = scored(network, here, config.temperature, False)
        half = scored(network, here, config.temperature, True)
        with torch.no_grad():
            own = update.logprobs_of(network, here, config.temperature).logprobs
        differences["bfloat16"].append((half - exact).abs())
        differences["trainer"].append((own - exact).abs())
    print("\n| log-probabilities against float32 | mean | largest |\n|---|---:|---:|")
    for name, parts in differences.items():
        apart = torch.cat(parts).float()
        print(f"| {name} | {apart.mean().item():.2g} | {apart.max().item():.2g} |")


def train_tiny(device: str, out: Path, seconds: float) -> None:
    """Train ``tiny`` on Sokoban for some seconds, and score it by the harness."""
    settings = {
        "envs": (SOKOBAN,),
        "model": "tiny",
        "agent": "think_act",
        "context": "single",
        "max_tokens": 128,
        "clone_seconds": 0.0,
        "iterations": 10_000,
        "save_every": 20,
        "lr": 1e-4,
        "device": device,
    }
    if device == "cpu":
        settings.update(groups=4, rollouts=4, max_tokens=64)
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    config = configuration.make("tiny-cpu", settings)
    outcome = training.train(config, out / "training", stop=stop)
    timer.cancel()
    print(f"\n{outcome.iterations} iterations of Sokoban in {seconds:.0f} s")
    seeds = 16 if device == "cpu" else 256
    rb.run(
        envs=[SOKOBAN],
        seeds=seeds,
        model=f"hf:{outcome.model}",
        model_args={"device": device},
        out=out / "run",
    )
    success = [
        episode.success
        for episode in read_episodes(out / "run")
        if episode.success is not None
    ]
    print(f"solved {sum(success)} of {len(success)} test episodes")


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--miniature", action="store_true")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    asked = parser.parse_args()
    began = time.perf_counter()
    size = (miniature if asked.miniature else full)(asked.device)
    limit = size.config.max_tokens
    ways = {
        f"drawn, mean {size.mean:g}": Lengths(mean=size.mean, limit=limit),
        f"all {limit}": Lengths(mean=None, limit=limit),
    }
    print(
        "| replies | iteration | rollout s | update s | sync s | sampled tokens/s "
        "| trained tokens/s | peak GiB | rollout of roofline | update of roofline |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for name, lengths in ways.items():
        found, played = phases(size, name, lengths, asked.iterations)
    compare_precisions(found, played)
    del found
    left = asked.seconds - (time.perf_counter() - began)
    # A quarter of what is left is for the score.
    if left > 10:
        train_tiny(asked.device, asked.out, 0.75 * left)
    print(f"\n{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
