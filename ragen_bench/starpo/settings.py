"""A configuration to the arguments of the parts, which never see it themselves."""

import functools
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ragen_bench.errors import MissingExtra
from ragen_bench.models.chat_template import Chat
from ragen_bench.registry import AGENTS
from ragen_bench.starpo import cloning, filters, imitation, probes, update
from ragen_bench.starpo.engines.engine import PolicyEngine
from ragen_bench.starpo.policy import Policy
from ragen_bench.starpo.rollout import Cell
from ragen_bench.starpo.train_config import TrainConfig


def agent_args(config: TrainConfig) -> dict[str, Any]:
    """Return the arguments of the training's agent."""
    return {
        "context": config.context,
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
    }


def env_args(config: TrainConfig) -> dict[str, Any]:
    """Return the settings of the training's environments, split left out."""
    found = {
        "prompt": config.prompt,
        "format_penalty": config.format_penalty,
        **config.env_args,
    }
    if config.max_actions_per_turn is not None:
        found["max_actions_per_turn"] = config.max_actions_per_turn
    return found


def lessons_of(
    config: TrainConfig, cells: Sequence[Cell], tokenizer: Any, noise: float
) -> cloning.Lessons:
    """Return where a solver's play comes from, in the tokens of a policy."""
    return cloning.Lessons(
        cells=cells,
        agent=config.agent,
        agent_args=agent_args(config),
        env_args=env_args(config),
        chat=Chat(tokenizer, [tokenizer.eos_token_id]),
        end_id=tokenizer.eos_token_id,
        noise=noise,
        mistakes=config.clone_mistakes,
        seed=config.seed,
    )


def filter_of(config: TrainConfig) -> Callable[[Mapping[Any, float]], Sequence[Any]]:
    """Return the rule that chooses groups by their spread."""
    value = config.filter_value
    rules: Mapping[str, Callable[[Mapping[Any, float]], Sequence[Any]]] = {
        "all": filters.keep_all,
        "nonzero": filters.keep_nonzero,
        "top_k": functools.partial(filters.keep_top_k, share=value),
        "top_p_linear": functools.partial(filters.keep_top_p_linear, p=value),
        "top_p_softmax": functools.partial(filters.keep_top_p_softmax, p=value),
        "min_p": functools.partial(filters.keep_min_p, share=value),
    }
    rule = rules.get(config.filter) or filters.PRESETS[config.filter]
    if not config.filter_scale_free:
        return rule
    return lambda scores: rule(filters.scale_free(scores))


def optimizer_of(
    config: TrainConfig, parameters: Iterable[torch.nn.Parameter], lr: float
) -> torch.optim.Optimizer:
    """Return what trains parameters, at a rate of policy or critic."""
    return torch.optim.AdamW(
        parameters, lr=lr, betas=config.betas, weight_decay=config.weight_decay
    )


def imitation_of(
    config: TrainConfig, parameters: Iterable[torch.nn.Parameter]
) -> imitation.SelfImitation:
    """Return what remembers a policy's best trajectories and clones them."""
    schedule = imitation.Schedule(
        steps=config.imitate_steps,
        batch=config.imitate_batch,
        memory=config.imitate_memory,
        lr=config.imitate_lr,
        budget=config.token_budget,
        seed=config.seed,
    )
    return imitation.SelfImitation(parameters, schedule)


def probing_of(config: TrainConfig) -> probes.Schedule:
    """Return when a training is looked at, and how.

    Only replies of an agent that is asked to reason have reasoning to be scored; of
    others the whole reply is.
    """
    agent = AGENTS.get(config.agent)
    return probes.Schedule(
        probe_every=config.probe_every,
        gradient_every=config.gradient_every,
        samples=config.probe_samples,
        whole=getattr(agent, "protocol", "direct") == "direct",
        seed=config.seed,
        budget=config.token_budget,
    )


def probes_of(config: TrainConfig, policy: Policy, longest: int) -> probes.Probes:
    """Return what looks at a policy in training; `longest` as in `objective_of`."""
    return probes.Probes(
        policy, probing_of(config), objective_of(config, longest, kept_share=1.0)
    )


def objective_of(
    config: TrainConfig, longest: int, kept_share: float
) -> update.Objective:
    """Return the numbers of the loss.

    Args:
        config: The settings.
        longest: Tokens that a trajectory may sample at most.
        kept_share: Of the groups.
    """
    constant = float(longest) if config.aggregation == "constant" else None
    return update.Objective(
        aggregation=config.aggregation,
        constant=constant,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        clip_dual=config.clip_dual,
        kl=config.kl,
        kl_kind=config.kl_kind,
        entropy=config.entropy,
        value_clip=config.value_clip,
        temperature=config.temperature,
        scale=filters.loss_scale(kept_share, config.filter_scaling),
    )


def engine_of(config: TrainConfig) -> Callable[[Any, Any], PolicyEngine]:
    """Return what makes an engine of a plain network and its tokenizer."""
    played = config.groups * config.rollouts
    if config.engine == "vllm":
        from ragen_bench.models import vllm_options
        from ragen_bench.starpo.engines.vllm import VLLMEngine

        served = vllm_options.Options(
            dtype=config.engine_dtype,
            batch_size=played,
            kv_cache_gib=config.engine_kv_gib,
            threads=config.threads,
        )
        return functools.partial(VLLMEngine, options=served)
    from ragen_bench.models import hf_options
    from ragen_bench.starpo.engines.hf import HFEngine

    options = hf_options.Options(
        batch_size=played, threads=config.threads, decoder="slots", inline=True
    )
    return functools.partial(HFEngine, dtype=config.engine_dtype, options=options)


def check_engine(config: TrainConfig) -> None:
    """Refuse an engine whose package is missing, without loading any.

    Raises:
        MissingExtra: It is not installed.
    """
    if config.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise MissingExtra("vllm", "engine 'vllm'")
