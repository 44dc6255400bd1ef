"""Which decoder a network gets: packed passes where they are exact, else plain."""

from typing import Any

import torch

from ragen_bench.models.hf_attention import NAME, Segment, packed_attention
from ragen_bench.models.hf_cache import Cache, Layout
from ragen_bench.models.hf_decoder import forward

_ROTARY_BY_LENGTH = ("dynamic", "longrope")
_FIRST, _SECOND, _HEAD = 24, 17, 16


def packed_layout(network: Any, max_context: int) -> Layout | str:
    """Set a network to packed attention, or say why it must be served plainly.

    The configuration is asked first; then two short rows go through both ways.

    Args:
        network: A causal language model with PyTorch's own attention.
        max_context: Tokens of prompt and reply together.

    Returns:
        What caches need to know, or the reason.
    """
    config = network.config.get_text_config()
    reason = _unfit(config, max_context)
    if reason:
        return reason
    try:
        layout = _read_layout(network, config, max_context)
        expected = _own_logits(network, config.vocab_size)
    except Exception as problem:  # whatever a configuration lacks
        return f"unusual model: {problem!r}"
    before = network.config._attn_implementation
    try:
        register()
        network.set_attn_implementation(NAME)
        found = _packed_logits(network, layout, config.vocab_size)
        off = ((found - expected).abs().max() / expected.std()).item()
        allowed = 1e-3 if layout.dtype == torch.float32 else 0.2
        if off <= allowed:
            return layout
        reason = f"packed attention is off by {off:.2g} standard deviations"
    except Exception as problem:  # whatever a model does not support
        reason = f"packed attention fails: {problem!r}"
    network.set_attn_implementation(before)
    return reason


def register() -> None:
    """Make packed attention known to ``transformers``."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def _unfit(config: Any, max_context: int) -> str:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not kinds <= {"full_attention", "sliding_attention"}:
        return f"layers of type {', '.join(sorted(kinds))}"
    window = getattr(config, "sliding_window", None)
    if window is not None and window < max_context:
        return f"attention with a window of {window} tokens"
    rotary = getattr(config, "rope_parameters", None) or {}
    parts = [rotary, *(part for part in rotary.values() if isinstance(part, dict))]
    for part in parts:
        if part.get("rope_type") in _ROTARY_BY_LENGTH:
            return f"rotary positions of type {part['rope_type']}"
    return ""


def _read_layout(network: Any, config: Any, max_context: int) -> Layout:
    query_heads = config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or query_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // query_heads
    return Layout(
        layers=config.num_hidden_layers,
        heads=heads,
        groups=query_heads // heads,
        width=width,
        max_context=max_context,
        dtype=network.dtype,
        device=network.device,
    )


def _rows(vocab_size: int) -> tuple[list[int], list[int]]:
    numbers = [(7919 * i * i + 31 * i + 5) % vocab_size for i in range(64)]
    return numbers[:_FIRST], numbers[32 : 32 + _SECOND]


def _own_logits(network: Any, vocab_size: int) -> torch.Tensor:
    with torch.inference_mode():
        logits = [
            network(torch.tensor([row], device=network.device)).logits[0, -1]
            for row in _rows(vocab_size)
        ]
    return torch.stack(logits).float()


def _packed_logits(network: Any, layout: Layout, vocab_size: int) -> torch.Tensor:
    """Return the same logits by a shared head, chunks and single tokens."""
    first, second = _rows(vocab_size)
    head = Cache(layout)
    rows = [Cache(layout, head, _HEAD), Cache(layout)]
    for cache in (head, *rows):
        cache.reserve(_FIRST)
    forward(network, [Segment(head, first[:_HEAD])], [False])
    logits = torch.empty(0)
    for cuts in (((_HEAD, 20), (0, 9)), ((20, 23), (9, 16)), ((23, 24), (16, 17))):
        (a, b), (c, d) = cuts
        segments = [Segment(rows[0], first[a:b]), Segment(rows[1], second[c:d])]
        logits = forward(network, segments, [True, True])
    return logits.float()
