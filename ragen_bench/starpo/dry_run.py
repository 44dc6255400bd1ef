"""What a configuration would train: resolved settings, tokens, a memory estimate."""

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ragen_bench.errors import InvalidSpec, RagenError
from ragen_bench.models import hf_loading
from ragen_bench.prompts import ContextPolicy
from ragen_bench.registry import make
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo import memory, policy
from ragen_bench.starpo.algorithm import Algorithm
from ragen_bench.starpo.rollout import Cell
from ragen_bench.starpo.settings import env_args, lessons_of
from ragen_bench.starpo.train_config import TrainConfig
from ragen_bench.starpo.trajectories import Trajectory
from ragen_bench.text_env import TextEnv

_EPISODES = 16
"""Played by the solver to see how long they get."""
_NOISE = 0.5
"""Share of its turns that are random, so that episodes are not all of the shortest."""
_KERNELS = 1024
"""That PyTorch keeps on a CPU, at most, ..."""
_MATRICES = 6
"""... of so many shapes in a layer."""
_MARKERS = 16
"""Tokens around an observation, about."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a trajectory."""

    prompt: float
    """Before the first reply, mean."""
    expected: float
    """All together, mean: as a solver plays that errs in every other turn."""
    sampled: float
    """Of these in replies, mean."""
    longest: int
    """All together if every turn is taken and every reply is cut off; where a context
    policy makes a prompt anew in each turn, all prompts are as long as the longest."""
    longest_segment: int
    """The same of what stands in one prompt with its reply."""
    longest_sampled: int


def describe(config: TrainConfig) -> dict[str, Any]:
    """Return the resolved configuration and what it amounts to, JSON-able.

    Returns:
        ``config``; ``sizes``, None where the model is not on this machine; ``memory``
        in bytes, as `ragen_bench.starpo.memory.estimate` says, likewise.

    Raises:
        RagenError: A setting is refused.
    """
    from ragen_bench.starpo.training import check

    algorithm, cells = check(config)
    settings = configuration.to_dict(config)
    played = config.groups * config.rollouts
    loaded = _meta(config)
    if loaded is None:
        return {"config": settings, "sizes": None, "memory": None}
    network, tokenizer = loaded
    shape = _shape(network, config, algorithm)
    found = lengths(config, cells, tokenizer)
    sizes = {
        "parameters of the policy": shape.plain + shape.adapter,
        "parameters of the critic": shape.critic,
        "parameters trained": (shape.adapter or shape.plain) + shape.critic,
        "trajectories an iteration": played,
        "tokens of a first prompt, mean": round(found.prompt),
        "tokens an iteration, expected": round(played * found.expected),
        "tokens an iteration, longest": played * found.longest,
        "sampled tokens an iteration, expected": round(played * found.sampled),
        "sampled tokens an iteration, longest": played * found.longest_sampled,
    }
    work = _work(config, found, played)
    return {
        "config": settings,
        "sizes": sizes,
        "memory": memory.estimate(shape, work),
    }


def lengths(config: TrainConfig, cells: Sequence[Cell], tokenizer: Any) -> Lengths:
    """Return how long trajectories get, from a few that the solver plays."""
    optimal = list(itertools.islice(_played(config, cells, tokenizer, 0.0), _EPISODES))
    erring = list(
        itertools.islice(_played(config, cells, tokenizer, _NOISE), _EPISODES)
    )
    if not all(one.turns for one in optimal):
        raise InvalidSpec(
            f"no prompt fits into context {config.context!r} with max_tokens "
            f"{config.max_tokens!r}, so that nothing would be trained; take another "
            "context"
        )
    prompts = [one.turns[0].start for one in optimal]
    totals, replies, feedback = [], [], 0
    for one, prompt in zip(erring, prompts, strict=True):
        total = sum(len(segment.ids) for segment in one.segments)
        texts = [turn.response for turn in one.episode.turns]
        sampled = sum(len(tokenizer(text)["input_ids"]) + 1 for text in texts)
        totals.append(total)
        replies.append(sampled)
        if len(texts) > 1:
            read = (total - prompt - sampled) / (len(texts) - 1)
            feedback = max(feedback, round(read))
    envs = _envs(config, cells)
    turns = max(env.limits.max_turns for env in envs)
    # What an invalid reply is told may be longer than what a valid one is.
    scolding = max(len(tokenizer(_scolding(env))["input_ids"]) for env in envs)
    feedback = max(feedback, scolding + _MARKERS)
    longest = max(prompts) + turns * config.max_tokens + (turns - 1) * feedback
    segment = longest
    if ContextPolicy.parse(config.context).kind != "full":
        segment = _longest_segment(config, (*optimal, *erring), longest, feedback)
        longest = turns * segment
    return Lengths(
        prompt=statistics.fmean(prompts),
        expected=statistics.fmean(totals),
        sampled=statistics.fmean(replies),
        longest=longest,
        longest_segment=segment,
        longest_sampled=turns * config.max_tokens,
    )


def _longest_segment(
    config: TrainConfig, played: Sequence[Trajectory], whole: int, feedback: int
) -> int:
    """Return how long a prompt with its reply gets where each turn has one of its own.

    Args:
        config: The settings.
        played: By a solver, whose replies are shorter than the policy's may be.
        whole: Tokens of the longest trajectory, were nothing left out.
        feedback: Tokens of the longest answer to a reply.
    """
    policy = ContextPolicy.parse(config.context)
    if policy.kind == "tokens":
        return min(policy.size, whole)
    segments = [segment for one in played for segment in one.segments]
    read = max(segment.turns[0].start for segment in segments if segment.turns)
    # What is kept of the past, and what invalid replies are told, a solver never reads.
    kept = feedback + policy.size * (config.max_tokens + feedback)
    return min(read + kept + config.max_tokens, whole)


def _envs(config: TrainConfig, cells: Sequence[Cell]) -> list[TextEnv]:
    args = env_args(config)
    return [make(cell.env_id, level=cell.level, **args) for cell in cells]


def _scolding(env: TextEnv) -> str:
    """Return what follows upon an invalid reply."""
    env.reset(seed=0)
    observation: str = env.step("")[0]
    return observation


def _played(
    config: TrainConfig, cells: Sequence[Cell], tokenizer: Any, noise: float
) -> Iterator[Trajectory]:
    """Yield the solver's episodes; their instances do not depend on the noise."""
    return lessons_of(config, cells, tokenizer, noise).demonstrations()


def _work(config: TrainConfig, found: Lengths, played: int) -> memory.Work:
    on_cpu = hf_loading.device_named(config.device).type == "cpu"
    wide = config.engine_dtype == "float32" or (
        config.engine_dtype == "auto" and on_cpu
    )
    reserved = config.engine_kv_gib if config.engine == "vllm" else None
    return memory.Work(
        conversations=played,
        context=found.longest_segment,
        passed=max(
            min(config.token_budget, played * found.longest), found.longest_segment
        ),
        reference=config.kl > 0,
        engine_bytes=4 if wide else 2,
        kernels=min(_KERNELS, _MATRICES * played) if on_cpu else 0,
        compute_bytes=4 if on_cpu else 2,
        reserved=None if reserved is None else int(reserved * 2**30),
    )


def _meta(config: TrainConfig) -> tuple[Any, Any] | None:
    """Return the network without its numbers, and the tokenizer; None if not here."""
    import transformers

    if config.model == "fresh":
        shape = (config.hidden_size, config.layers)
        return policy.fresh(shape, config.seed, "cpu")
    place = policy.place_of(config.model)
    try:
        with hf_loading.quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(place)
            found = transformers.AutoConfig.from_pretrained(place)
            with torch.device("meta"):
                network = transformers.AutoModelForCausalLM.from_config(found)
    except (OSError, ValueError, RagenError):
        return None
    return network, tokenizer


def _inner_width(config: Any) -> int:
    """Return the width of the feed-forward part; four times the model's if unnamed."""
    for name in ("intermediate_size", "n_inner", "ffn_dim"):
        if getattr(config, name, None):
            return int(getattr(config, name))
    return 4 * int(config.hidden_size)


def _shape(network: Any, config: TrainConfig, algorithm: Algorithm) -> memory.Shape:
    plain = int(network.num_parameters())
    inner = network.config.get_text_config()
    heads = inner.num_attention_heads
    width = getattr(inner, "head_dim", None) or inner.hidden_size // heads
    keys = getattr(inner, "num_key_value_heads", None) or heads
    critic = 0
    if algorithm.critic:
        trunk = sum(p.numel() for p in network.base_model.parameters())
        critic = trunk + inner.hidden_size + 1
    adapter = 0
    if config.lora_rank:
        adapted = policy.with_adapter(network, config.lora_rank, config.seed)
        adapter = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    return memory.Shape(
        plain=plain,
        adapter=adapter,
        critic=critic,
        layers=inner.num_hidden_layers,
        width=inner.hidden_size,
        query=heads * width,
        keys=keys * width,
        inner=_inner_width(inner),
        vocabulary=inner.vocab_size,
    )
