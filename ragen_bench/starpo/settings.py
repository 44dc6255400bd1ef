"""A configuration to the arguments of the parts, which never see it themselves."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragen_bench.starpo import filters, update
from ragen_bench.starpo.config import TrainConfig


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
