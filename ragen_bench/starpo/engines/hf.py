"""`HFEngine`: a copy of the policy's weights, decoded in this process."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ragen_bench.models.hf_engine import HFModel
from ragen_bench.models.hf_options import Options
from ragen_bench.starpo.engines.engine import PolicyEngine


class HFEngine(PolicyEngine, HFModel):
    """A model of ``transformers`` whose weights are overwritten in place.

    Args:
        network: The plain model, which is copied.
        tokenizer: Defines the form of prompts.
        dtype: Of the copy; ``"auto"`` is float32 on a CPU and bfloat16 elsewhere.
        options: How it is served.
    """

    def __init__(
        self, network: Any, tokenizer: Any, *, dtype: str, options: Options
    ) -> None:
        if dtype == "auto":
            dtype = "float32" if network.device.type == "cpu" else "bfloat16"
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        """The copy; nobody else changes it."""
        self.network.to(getattr(torch, dtype))
        self.precision = dtype
        super().__init__("policy", self.network, tokenizer, options)

    def sync(self, weights: Mapping[str, Any], version: int) -> None:
        """Copy the weights, and forget caches and rearranged layers."""
        with torch.no_grad():
            for name, parameter in self.network.state_dict().items():
                parameter.copy_(weights[name])
        self.refresh()
        self.version = version

    def score(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token but the first, in nats, [n - 1]."""
        asked = torch.tensor([ids], device=self.network.device)
        with torch.no_grad():
            logits = self.network(input_ids=asked, use_cache=False).logits[0, :-1]
        chosen = asked[0, 1:, None]
        found = logits.float().log_softmax(-1).gather(1, chosen)[:, 0]
        return list(found.tolist())

    def close(self) -> None:
        """End the decoder."""
        self._worker.stop()
