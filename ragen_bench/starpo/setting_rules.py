"""Which values the settings of a training may have, and what they are called."""

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ragen_bench.errors import InvalidSpec

_INF = math.inf
RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "hidden_size": (32, _INF),
        "layers": (1, _INF),
        "max_tokens": (1, _INF),
        "seed": (-(2**63), 2**63 - 1),
        "iterations": (0, _INF),
        "groups": (1, _INF),
        "rollouts": (1, _INF),
        "temperature": (1e-3, _INF),
        "max_actions_per_turn": (1, _INF),
        "format_penalty": (-_INF, 0),
        "online": (1, _INF),
        "filter_value": (0, _INF),
        "minibatch": (0, _INF),
        "passes": (0, _INF),
        "clip_low": (0, 1),
        "clip_high": (0, _INF),
        "kl": (0, _INF),
        "entropy": (0, _INF),
        "gamma": (0, 1),
        "lam": (0, 1),
        "gamma_turn": (0, 1),
        "value_clip": (0, _INF),
        "critic_lr": (0, _INF),
        "critic_warmup": (0, _INF),
        "lr": (0, _INF),
        "warmup": (0, _INF),
        "weight_decay": (0, _INF),
        "grad_clip": (0, _INF),
        "token_budget": (1, _INF),
        "clone_seconds": (0, _INF),
        "clone_steps": (0, _INF),
        "clone_episodes": (0, _INF),
        "clone_noise": (0, 1),
        "clone_lr": (0, _INF),
        "clone_batch": (1, _INF),
        "imitate_steps": (0, _INF),
        "imitate_batch": (1, _INF),
        "imitate_memory": (1, _INF),
        "imitate_lr": (0, _INF),
        "threads": (1, _INF),
        "lora_rank": (0, _INF),
        "eval_every": (0, _INF),
        "eval_seeds": (1, _INF),
        "save_every": (0, _INF),
        "budget_seconds": (0, _INF),
        "probe_every": (0, _INF),
        "probe_samples": (2, _INF),
        "gradient_every": (0, _INF),
    }
)
"""Least and largest value of a number; a setting that may be None may be that too."""

_ABOVE: Mapping[str, float] = MappingProxyType(
    {"clip_dual": 1, "engine_kv_gib": 0, "importance_cap": 0}
)
"""What a number must exceed."""

_BY_SHARE = ("top_k", "top_p_linear", "top_p_softmax", "min_p")
"""Filters whose value is a share."""


def check(settings: Mapping[str, Any]) -> None:
    """Refuse what no training can be made with.

    Args:
        settings: All of `ragen_bench.starpo.train_config.TrainConfig`, by name.

    Raises:
        InvalidSpec: A setting breaks its rule.
    """
    for name, (least, most) in RANGES.items():
        value = settings[name]
        if value is not None and not least <= value <= most:
            wanted = f"at least {least}" if most == _INF else f"at most {most}"
            if -_INF < least and most < _INF:
                wanted = f"from {least} to {most}"
            raise InvalidSpec(f"{name} is {value!r}, but must be {wanted}")
    for name, bound in _ABOVE.items():
        value = settings[name]
        if value is not None and not value > bound:
            raise InvalidSpec(f"{name} is {value!r}, but must be above {bound}")
    if not settings["envs"]:
        raise InvalidSpec("envs is empty: name a cell, such as ragen/Bandit-v0:1")
    rule, value = settings["filter"], settings["filter_value"]
    if rule in _BY_SHARE and not 0 < value <= 1:
        raise InvalidSpec(
            f"filter_value is {value!r}, but filter {rule!r} takes a share, above "
            "0 and at most 1"
        )
    if not settings["passes"]:
        _check_without_passes(settings)
    betas = settings["betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise InvalidSpec(
            f"betas is {betas!r}, but must be two numbers from 0 to below 1"
        )
    kept = settings["keep_rollouts"]
    if any(number < 1 for number in kept):
        raise InvalidSpec(f"keep_rollouts is {kept!r}, but iterations count from 1")
    given = settings["env_args"]
    try:
        json.dumps(given, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidSpec(
            f"env_args is {given!r}, but must hold numbers, texts, lists and tables "
            f"alone: {error}"
        ) from error


def method_of(algorithm: Any, passes: Any, imitate_steps: Any) -> str:
    """Return what learns from play, in words, by the settings of these names."""
    parts = [str(algorithm)] if algorithm and passes else []
    return " and ".join(parts + ["self-imitation"] * bool(imitate_steps))


def _check_without_passes(settings: Mapping[str, Any]) -> None:
    """Refuse to learn nothing, and what a policy gradient alone would use."""
    if settings["iterations"] and not settings["imitate_steps"]:
        raise InvalidSpec(
            "passes is 0 and so is imitate_steps, so that nothing would be learned; "
            "let one be at least 1"
        )
    for name in ("kl", "importance_cap"):
        if settings[name]:
            raise InvalidSpec(
                f"{name} is {settings[name]!r}, but with passes at 0 there is no loss "
                "that it could enter; leave one of them out"
            )
