"""How a model of ``transformers`` is served: numbers and switches, checked."""

import dataclasses
from typing import Literal

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
    kv_tokens: int | None = None
    """Tokens that all caches hold at most; None is a quarter of the free memory on a
    CPU, at least 2 GiB, and half of what the weights leave free on a GPU."""


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
