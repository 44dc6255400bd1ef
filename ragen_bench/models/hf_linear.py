"""Linear layers whose weights lie ready for the CPU's matrix kernels.

PyTorch rearranges a weight each time it multiplies a few rows with it.  Done once,
decoding is up to twice as fast, for a second copy of the weights.
"""

from typing import Any

import torch

_LARGEST = 4 * 2**30
_ROWS = 32


def prepare(network: Any) -> int:
    """Give the linear layers of a network on a CPU rearranged weights.

    A later change of the weights has no effect on these layers.  Networks above 4 GiB
    and machines without the kernels keep what they have.

    Args:
        network: Ready to predict.

    Returns:
        How many layers were changed.
    """
    size = sum(p.numel() * p.element_size() for p in network.parameters())
    usable = torch.backends.mkldnn.is_available() and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )
    kinds = {torch.float32}
    if usable and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        kinds.add(torch.bfloat16)
    if network.device.type != "cpu" or size > _LARGEST or not usable:
        return 0
    layers = [
        layer
        for layer in network.modules()
        if type(layer) is torch.nn.Linear and layer.weight.dtype in kinds
    ]
    for layer in layers:
        layer.forward = _forward_of(layer)
    return len(layers)


def _forward_of(layer: Any) -> Any:
    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)
    bias = None if layer.bias is None else layer.bias.detach()
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def forward(input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = multiply(input, weight, bias, "none", [], "")
        return result

    return forward
