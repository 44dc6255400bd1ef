"""What a configuration would train: resolved settings, sizes, a memory estimate."""

from typing import Any

from ragen_bench.starpo import config as configuration
from ragen_bench.starpo.config import TrainConfig

_MASTER, _ADAM, _GRADIENT = 4, 8, 4


def describe(config: TrainConfig) -> dict[str, Any]:
    """Return the resolved configuration and what it amounts to.

    Raises:
        RagenError: A setting is refused.
    """
    from ragen_bench.starpo.training import check

    algorithm, _ = check(config)
    parameters = _parameters(config)
    trajectories = config.groups * config.rollouts
    tokens = trajectories * config.max_tokens
    memory = None
    if parameters is not None:
        trained = parameters if not config.lora_rank else 0
        networks = 2 if algorithm.critic else 1
        memory = parameters * _MASTER * (1 + networks)
        memory += trained * (_ADAM + _GRADIENT) * networks
    return {
        "config": configuration.to_dict(config),
        "sizes": {
            "parameters": parameters,
            "trajectories an iteration": trajectories,
            "sampled tokens a turn, at most": tokens,
            "bytes of weights, optimizer and gradients, at least": memory,
        },
    }


def _parameters(config: TrainConfig) -> int | None:
    """Return the number of parameters, None where the model is not here."""
    import importlib.resources

    from ragen_bench.models import hf_loading

    hf_loading.require_extra("ragen-bench train")
    import torch
    import transformers

    from ragen_bench.starpo import policy

    if config.model == "fresh":
        shape = (config.hidden_size, config.layers)
        network, _ = policy.fresh(shape, config.seed, "cpu")
        return int(network.num_parameters())
    place = config.model
    if place == "tiny":
        place = str(importlib.resources.files("ragen_bench.models") / "tiny")
    try:
        found = transformers.AutoConfig.from_pretrained(place)
        with torch.device("meta"):
            network = transformers.AutoModelForCausalLM.from_config(found)
    except (OSError, ValueError):
        return None
    return int(network.num_parameters())
