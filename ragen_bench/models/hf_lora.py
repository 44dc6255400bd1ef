"""A LoRA adapter on disk, merged into the weights of the model it was made for.

Merged, it costs nothing when decoding, and the network is of the plain kind again.
"""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen_bench.errors import InvalidSpec, MissingExtra

_CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def check_place(place: str) -> None:
    """Check that a folder may hold a LoRA adapter, without loading it.

    Raises:
        MissingExtra: peft is not installed.
        InvalidSpec: The folder holds no adapter, or one of another kind.
    """
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise MissingExtra("lora", f"adapter {place!r}") from error
    path = Path(place)
    if not (path / _CONFIG).is_file() or not any(
        (path / n).is_file() for n in _WEIGHTS
    ):
        raise InvalidSpec(
            f"lora {place!r} is no adapter: it needs {_CONFIG} and {_WEIGHTS[0]}; give "
            "a folder that peft's save_pretrained wrote"
        )
    try:
        kind = json.loads((path / _CONFIG).read_text("utf-8"))["peft_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidSpec(f"{str(path / _CONFIG)!r} names no peft_type") from error
    if kind != "LORA":
        raise InvalidSpec(
            f"lora {place!r} is an adapter of type {kind}, which cannot be merged; "
            "give one of type LORA"
        )


def merge(network: Any, place: str) -> Any:
    """Return a network with an adapter merged into its weights.

    Args:
        network: The model that the adapter was made for, ready to predict; it is
            changed in place.
        place: A folder that `check_place` passes.

    Raises:
        InvalidSpec: The adapter does not fit this model.
    """
    import peft
    import safetensors

    damaged = (OSError, pickle.UnpicklingError, safetensors.SafetensorError)
    try:
        adapted = peft.PeftModel.from_pretrained(network, place)
        _check_fit(adapted, peft.utils.load_peft_weights(place, device="cpu"))
        merged = adapted.merge_and_unload(safe_merge=True)
    except (*damaged, RuntimeError, ValueError, KeyError, TypeError) as error:
        first = " ".join(str(error).split())[:200]
        raise InvalidSpec(
            f"lora {place!r} does not fit {type(network).__name__} of this size "
            f"({first}); give the model that it was trained on"
        ) from error
    return merged.eval().requires_grad_(False)


def _check_fit(adapted: Any, weights: Mapping[str, Any]) -> None:
    """Raise if weights were left unused, or some of the adapter has none: ValueError.

    peft itself only warns, and would play the bare model.
    """
    import peft

    # Embeddings, which may be saved beside an adapter, would send peft to the hub.
    wanted = set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=False))
    lora = {name for name in weights if "lora_" in name}
    for names, what in (
        (lora - wanted, "has no place for"),
        (wanted - set(weights), "needs"),
    ):
        if names:
            raise ValueError(f"the model {what} {min(names)!r}")
