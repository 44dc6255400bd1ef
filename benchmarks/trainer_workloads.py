"""What the trainer's benchmarks train: models of random weights, recorded play.

Recorded play comes from the model that ships with the package, so that turns, lengths
and rewards are those of real episodes.  Any model whose vocabulary holds those ids can
be trained on them.
"""

import asyncio
import dataclasses
import importlib.resources
import math
from collections.abc import Sequence
from typing import Any

import torch

from ragen_bench.model import Completion, Conversation, Message, Model, Sampling
from ragen_bench.models.hf_options import Options
from ragen_bench.seeding import Stream
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo import settings, training, update
from ragen_bench.starpo.engines.hf import HFEngine
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.loop import Training
from ragen_bench.starpo.policy import Critic, Policy
from ragen_bench.starpo.rollout import Group, Rollouts
from ragen_bench.starpo.train_config import TrainConfig
from ragen_bench.starpo.trajectories import Trajectory

VOCABULARY = 49_152
"""SmolLM2's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long the replies of a model are that never ends one itself."""

    mean: float | None
    """Of an exponential distribution, cut at the limit; None is always the limit."""
    limit: int
    seed: int = 0

    def of(self, key: str, turn: int) -> int:
        """Return the tokens of a reply, the same whoever asks."""
        if self.mean is None:
            return self.limit
        drawn = -self.mean * math.log(1 - Stream(self.seed, key, turn).random())
        return max(1, min(self.limit, round(drawn)))


class ForcedLengths(Model):
    """Another model whose replies are cut at given lengths."""

    def __init__(self, model: Model, lengths: Lengths) -> None:
        self.name, self.max_context = model.name, model.max_context
        self._model, self._lengths = model, lengths

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer in so many tokens."""
        length = self._lengths.of(conversation.key, conversation.turn)
        asked = dataclasses.replace(sampling, max_tokens=length)
        return await self._model.generate(conversation, asked)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return what the model counts."""
        return self._model.count_tokens(messages)


class Replay:
    """Stands for `Rollouts` and gives back what was played once."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self.trajectories = list(trajectories)

    async def play(self, groups: Sequence[Group], salt: str) -> list[Trajectory]:
        """Return the recorded trajectories, whatever is asked for."""
        return self.trajectories


def llama(width: int, layers: int, vocabulary: int) -> Any:
    """Return the configuration of a Llama with tied embeddings and heads of 32."""
    import transformers

    return transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )


def random_policy(
    shape: Any, *, device: str, options: Options, critic: bool = False
) -> Policy:
    """Return a policy of random weights that plays with the tokenizer of ``tiny``.

    Args:
        shape: A configuration of ``transformers``.
        device: As PyTorch calls it; on a GPU the engine plays in bfloat16.
        options: How the engine serves.
        critic: Whether it has one.
    """
    import transformers

    tiny = str(importlib.resources.files("ragen_bench.models") / "tiny")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = transformers.AutoModelForCausalLM.from_config(shape).to(device)
    engine = HFEngine(network, tokenizer, dtype="auto", options=options)
    policy = Policy(network=network, tokenizer=tokenizer, engine=engine)
    if critic:
        policy.critic = Critic(network).to(device)
    return policy


def options_of(config: TrainConfig, **changes: Any) -> Options:
    """Return how the trainer's engine serves, some of it changed."""
    plain = Options(
        batch_size=config.groups * config.rollouts,
        threads=config.threads,
        decoder="slots",
        inline=True,
    )
    return dataclasses.replace(plain, **changes)


def training_of(
    config: TrainConfig,
    shape: Any = None,
    lengths: Lengths | None = None,
    **options: Any,
) -> Training:
    """Return a training before its first iteration.

    Args:
        config: The settings.
        shape: Of a model with random weights; None loads the one that is configured.
        lengths: Of its replies; None lets it end them itself.
        **options: Of the engine.
    """
    algorithm, cells = training.check(config)
    if shape is None:
        found = training.build(config, algorithm, cells)
    else:
        policy = random_policy(
            shape,
            device=config.device,
            options=options_of(config, **options),
            critic=algorithm.critic,
        )
        found = Training(config, policy, algorithm, cells)
    if lengths is not None:
        found.rollouts = Rollouts(
            ForcedLengths(found.policy.engine, lengths),
            config.agent,
            settings.agent_args(config),
            settings.env_args(config),
        )
    found.policy.sync()
    return found


def play(found: Training, salt: str) -> list[Trajectory]:
    """Play the groups of one iteration."""
    config = found.config
    groups = found.instances.take(config.groups, config.rollouts)
    return asyncio.run(found.rollouts.play(groups, salt))


def record(config: TrainConfig) -> list[Trajectory]:
    """Return one iteration's trajectories, played by ``tiny``.

    Groups without any spread are left out, and play goes on until there are enough,
    so that every trajectory has a gradient.
    """
    tiny = training_of(dataclasses.replace(config, model="tiny", device="cpu"))
    kept: list[Trajectory] = []
    for round_ in range(32):
        played = play(tiny, f"record/{round_}")
        for index in range(config.groups):
            group = [one for one in played if one.group == index]
            if len({round(one.total, 6) for one in group}) > 1:
                number = len(kept) // config.rollouts
                kept += [dataclasses.replace(one, group=number) for one in group]
        if len(kept) >= config.groups * config.rollouts:
            return kept[: config.groups * config.rollouts]
    raise SystemExit("the recorded groups hardly ever differ in their rewards")


def rescore(trajectories: Sequence[Trajectory], found: Training) -> None:
    """Put the policy's own log-probabilities in place of those of the player."""
    config = found.config
    experience = Experience.of(trajectories)
    scores = update.reference_logprobs(
        found.policy.network, experience, config.temperature, config.token_budget
    ).tolist()
    at = 0
    for one in experience.trajectories:
        for segment in one.segments:
            for turn in segment.turns:
                size = turn.end - turn.start
                segment.logprobs[turn.start : turn.end] = scores[at : at + size]
                at += size


def speed_config(**changes: Any) -> TrainConfig:
    """Return what is measured: GRPO on Sokoban, thinking aloud, RAGEN's rules."""
    plain = {
        "envs": ("ragen/Sokoban-v0:1",),
        "env_args": {"preset": "ragen-v2"},
        "model": "tiny",
        "agent": "think_act",
        "prompt": "compact",
        "max_tokens": 64,
        "groups": 8,
        "rollouts": 8,
        "minibatch": 0,
        "filter": "all",
        "entropy": 0.0,
        "clip_dual": None,
        "lr": 1e-6,
        "probe_every": 0,
        "gradient_every": 0,
        "device": "cpu",
    }
    return configuration.make("grpo", plain, changes)
