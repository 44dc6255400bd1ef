"""Whether a model is of a form whose log-probabilities the trainer computes rightly.

The trainer never asks a model for its logits: it multiplies last hidden states by the
head's matrix, on sampled tokens alone.  A model that adds a bias, scales or caps its
logits would be trained on other numbers than it plays by.
"""

from typing import Any

import torch

from ragen_bench.errors import InvalidSpec
from ragen_bench.starpo.shared_prefix import states

_APART = 1e-3
"""Difference of logits, relative to the largest, that is rounding in float32."""


def check(network: Any, tokenizer: Any) -> None:
    """Refuse a model that cannot be trained, before anything is.

    Args:
        network: A causal language model in float32.
        tokenizer: Its own.

    Raises:
        InvalidSpec: The tokenizer ends no reply, or has ids that the model does not
            know, or logits are not last hidden states times the head's matrix.
    """
    if tokenizer.eos_token_id is None:
        raise InvalidSpec(
            "the model's tokenizer has no eos_token, with which a reply could end; "
            "name one in its tokenizer_config.json"
        )
    known = network.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > known:
        raise InvalidSpec(
            f"the model knows {known} tokens, but its tokenizer has {len(tokenizer)}; "
            "give a folder in which they belong together"
        )
    ids = torch.arange(min(8, known), device=network.device)[None]
    with torch.no_grad():
        theirs = network(input_ids=ids, use_cache=False).logits.float()
        head = network.get_output_embeddings().weight
        ours = (states(network.base_model, ids, 0) @ head.T).float()
    apart = float((theirs - ours).abs().max())
    if not apart <= _APART * max(1.0, float(theirs.abs().max())):
        raise InvalidSpec(
            f"logits of a {type(network).__name__} are not its last hidden states "
            f"times the matrix of its head (they differ by {apart:.3g}): with a bias, "
            "a scale or a cap on logits it cannot be trained; take another model"
        )
