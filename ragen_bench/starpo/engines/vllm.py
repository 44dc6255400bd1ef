"""`VLLMEngine`: vLLM in this process, renewed by weights that never touch a disk."""

import dataclasses
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.errors import InvalidSpec
from ragen_bench.models import hf_loading, vllm_weights
from ragen_bench.models.hf_options import Origin
from ragen_bench.models.vllm_engine import VLLMModel
from ragen_bench.models.vllm_loading import device, read_card, require_extra
from ragen_bench.models.vllm_options import Options
from ragen_bench.starpo.engines.engine import PolicyEngine

_NARROWEST = 32
"""Head that vLLM's kernels on a CPU can compute."""


class VLLMEngine(PolicyEngine, VLLMModel):
    """A policy in vLLM's engine; log-probabilities are those at its temperature.

    Args:
        network: The plain model; its form is read, its weights come by `sync`.
        tokenizer: Defines the form of prompts.
        options: How it is served.

    Raises:
        MissingExtra: vLLM is not installed.
        InvalidSpec: The engine refuses the model, or could not compute it here.
    """

    def __init__(self, network: Any, tokenizer: Any, options: Options) -> None:
        require_extra("policy")
        _check_heads(network.config.get_text_config())
        self._folder = tempfile.TemporaryDirectory(prefix="ragen-policy-")
        with hf_loading.quiet():
            network.config.save_pretrained(self._folder.name)
            network.generation_config.save_pretrained(self._folder.name)
            tokenizer.save_pretrained(self._folder.name)
        place = str(Path(self._folder.name))
        options = dataclasses.replace(
            options,
            processed_logprobs=True,
            engine_args={
                "load_format": "dummy",
                "worker_extension_cls": vllm_weights.READER,
                **options.engine_args,
            },
        )
        super().__init__("policy", read_card(place), Origin(place=place), options)
        self.precision = self._arguments["dtype"]

    def sync(self, weights: Mapping[str, Any], version: int) -> None:
        """Send the weights to the engine's processes and empty its prefix cache.

        Raises:
            ProviderError: The engine did not take them.
        """
        import torch

        kind = getattr(torch, self.precision)
        ready = {name: tensor.detach().to(kind) for name, tensor in weights.items()}
        with vllm_weights.handed_over(ready) as path:
            self._host.use(functools.partial(vllm_weights.load, path=path))
        self.version = version

    def score(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token but the first, in nats, [n - 1]."""
        return self._host.use(functools.partial(vllm_weights.score, ids=list(ids)))

    def close(self) -> None:
        """End the engine and its processes."""
        self._host.stop()
        self._folder.cleanup()


def _check_heads(config: Any) -> None:
    """Refuse a model whose first request would end the engine."""
    width = getattr(config, "head_dim", None)
    width = width or config.hidden_size // config.num_attention_heads
    if device() == "cpu" and width < _NARROWEST:
        raise InvalidSpec(
            f"the model's heads are {width} wide, but vLLM computes none below "
            f"{_NARROWEST} on a CPU: take engine='hf' or another model"
        )
