"""What a model of ``transformers`` is made of and how it is served, checked."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from ragen_bench.errors import InvalidSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a model is served; none of it changes greedy replies in float32."""

    batch_size: int = 32
    """Replies that are decoded at once."""
    threads: int | None = None
    """Cores that PyTorch uses; None leaves its own default."""
    max_context: int | None = None
    """Tokens of prompt and reply together; None takes the model's own limit."""
    inline: bool = False
    """Whether decoding happens in the event loop, without a thread of its own."""
    decoder: Literal["packed", "slots"] = "packed"
    """How passes are made; see `ragen_bench.models.hf_slots`."""
    kv_reuse: bool = True
    """Whether keys and values outlive a reply."""
    share_heads: bool = True
    """Whether slots copy a beginning that another one holds; packs always share."""
    refill: bool = True
    """Whether slots take a request while others are being answered; packs always do."""
    kv_tokens: int | None = None
    """Tokens that all caches hold at most; None is a quarter of the free memory on a
    CPU, at least 2 GiB, and half of what the weights leave free on a GPU."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a model came from, and what it was made for."""

    place: str | None = None
    """Folder or hub id of the weights and the tokenizer."""
    lora: str | None = None
    """Folder of an adapter that was merged into the weights."""
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Agent, prompt, context and sampling it was made for."""
    template_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Handed to the chat template."""


def whole_number(name: str, value: int | str | None) -> int | None:
    """Return an argument as a whole number of at least 1, or None as it is.

    Raises:
        InvalidSpec: It is no such number.
    """
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = 0
    if type(number) is not int or number < 1:
        raise InvalidSpec(f"{name} is {value!r}, but must be a whole number above 0")
    return number


def switch(name: str, value: bool | str) -> bool:
    """Return an argument as true or false.

    Raises:
        InvalidSpec: It is neither.
    """
    known = {"true": True, "1": True, "false": False, "0": False}
    found = value if isinstance(value, bool) else known.get(str(value).lower())
    if found is None:
        raise InvalidSpec(f"{name} is {value!r}, but must be true or false")
    return found


def json_object(name: str, value: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return an argument as a mapping, empty for None.

    Raises:
        InvalidSpec: It is no JSON object.
    """
    found: Any = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except ValueError:
            found = value
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(type(key) is str for key in found):
        raise InvalidSpec(f"{name} is {value!r}, but must be a JSON object")
    return dict(found)
