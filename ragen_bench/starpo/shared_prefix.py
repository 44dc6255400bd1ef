"""Hidden states of a padded pass whose rows begin alike: the beginning is read once.

All prompts of a task open with the same rules, often most of a prompt.  Their keys and
values are computed for one row and attended to by all, gradients included.
"""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

LEAST = 16
"""Shorter beginnings are not worth a pass of their own."""


def shared_length(rows: Sequence[list[int]], limits: Sequence[int]) -> int:
    """Return how many leading ids all rows have in common, 0 if too few to matter.

    Args:
        rows: Ids of each row.
        limits: The most that each row may share: everything before the token that
            predicts its first sampled one.
    """
    if len(rows) < 2:
        return 0
    # What the first and the last in order have in common, all between them have.
    alike = os.path.commonprefix([min(rows), max(rows)])
    count = min(len(alike), *limits)
    return count if count >= LEAST else 0


def states(backbone: Any, ids: torch.Tensor, shared: int) -> torch.Tensor:
    """Return the last hidden states behind the shared beginning, [B, T - shared, D].

    Equal, up to rounding, to the same columns of a plain pass over all rows.  Padding
    stands to the right, where no token attends to it, so none is masked: without a
    mask attention takes its fastest way.

    Args:
        backbone: A decoder of transformers, without its head.
        ids: [B, T] int64.
        shared: Leading columns in which all rows are equal, 0 to share nothing.
    """
    if not shared:
        found: torch.Tensor = backbone(input_ids=ids, use_cache=False).last_hidden_state
        return found
    from transformers import DynamicCache

    cache = DynamicCache(config=backbone.config)
    kept = {_cache_argument(type(backbone).forward): cache, "use_cache": True}
    backbone(input_ids=ids[:1, :shared], **kept)
    cache.batch_repeat_interleave(len(ids))
    positions = torch.arange(shared, ids.shape[1], device=ids.device)[None]
    rest: torch.Tensor = backbone(
        input_ids=ids[:, shared:], position_ids=positions, **kept
    ).last_hidden_state
    return rest


@functools.cache
def _cache_argument(forward: Callable[..., Any]) -> str:
    """Return what this release of transformers calls the cache."""
    names = inspect.signature(forward).parameters
    return "cache" if "cache" in names else "past_key_values"
