"""`PRESETS`: settings that belong together, by name; RAGEN's own among them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_STARPO = {
    "algorithm": "ppo",
    "minibatch": 32,
    "clip_dual": 3.0,
    "entropy": 0.001,
    "agent": "think_act",
    "prompt": "full",
    "max_tokens": 400,
    "iterations": 200,
    "probe_every": 10,
    "gradient_every": 25,
    "envs": ("ragen/Sokoban-v0:1",),
}
_GROUPED = {**_STARPO, "aggregation": "seq-mean-token-mean"}
_TINY = {
    "algorithm": "grpo",
    "groups": 32,
    "rollouts": 8,
    "filter": "nonzero",
    "lr": 5e-4,
    "betas": (0.9, 0.98),
    "entropy": 0.01,
    "clone_seconds": 5.0,
    "clone_batch": 16,
    "iterations": 25,
}

_TINY_LONG = {
    **_TINY,
    "context": "single",
    "lr": 2e-4,
    "entropy": 0.003,
    "clone_seconds": 60.0,
    "clone_episodes": 300,
    "clone_batch": 32,
    "token_budget": 8192,
    "iterations": 1000,
    "budget_seconds": 240.0,
}

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "starpo": {**_STARPO, "kl": 0.001, "kl_kind": "k1", "clip_high": 0.2},
        "starpo-s": {**_STARPO, "filter": "top_k", "filter_value": 0.25},
        "starpo-s-v2": {**_STARPO, "filter": "ragen-v2"},
        "grpo": {**_GROUPED, "algorithm": "grpo"},
        "dr-grpo": {
            **_GROUPED,
            "algorithm": "dr_grpo",
            "aggregation": "constant",
        },
        "rloo": {**_GROUPED, "algorithm": "rloo"},
        "ragen-v1": {
            **_STARPO,
            "env_args": {"preset": "ragen-v1"},
            "filter": "ragen-v1",
            "filter_value": 0.25,
        },
        "ragen-v2": {
            **_STARPO,
            "env_args": {"preset": "ragen-v2"},
            "filter": "top_p_linear",
            "filter_value": 1.0,
            "max_actions_per_turn": 2,
        },
        "tiny-cpu": _TINY,
        "tiny-cpu-long": _TINY_LONG,
        "tiny-cpu-imitate": {
            **_TINY_LONG,
            "clone_episodes": 150,
            "groups": 64,
            "rollouts": 4,
            "passes": 0,
            "imitate_steps": 16,
            "imitate_lr": 3e-3,
            "decay": "cosine",
            "budget_seconds": 360.0,
        },
    }
)
"""Name to the settings that differ from the defaults."""
