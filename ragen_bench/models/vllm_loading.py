"""What ``vllm:`` reads before its engine starts: the model's card, and the machine."""

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ragen_bench.errors import InvalidSpec, MissingExtra, UnknownName
from ragen_bench.models import hf_loading
from ragen_bench.models.vllm_surroundings import prepare


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a model's folder says, weights apart."""

    config: Any
    generation_config: Any
    tokenizer: Any


def require_extra(name: str) -> None:
    """Import vLLM, quietly.

    Raises:
        MissingExtra: It is not installed.
        InvalidSpec: It is, but cannot be loaded here.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        prepare()
    except ModuleNotFoundError as error:
        raise MissingExtra("vllm", f"model {name!r}") from error
    except (ImportError, OSError) as error:
        raise InvalidSpec(f"vLLM is installed but cannot be loaded: {error}") from error


def read_card(place: str) -> Card:
    """Return a model's configuration and tokenizer.

    Raises:
        UnknownName: Nothing is found there.
        InvalidSpec: What is there is no language model with a tokenizer.
    """
    import transformers

    try:
        with hf_loading.quiet():
            config = transformers.AutoConfig.from_pretrained(
                place, trust_remote_code=False
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                place, trust_remote_code=False
            )
            try:
                generation = transformers.GenerationConfig.from_pretrained(place)
            except OSError:  # the file may be missing
                generation = SimpleNamespace(eos_token_id=None)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        if Path(place).is_dir():
            raise InvalidSpec(
                f"folder {place!r} holds no language model with a tokenizer that "
                f"transformers can read: {first}"
            ) from error
        raise UnknownName(
            f"no model {place!r}: there is no such folder here, and the hub did not "
            f"give it ({first}); download it first and give its folder"
        ) from error
    return Card(config=config, generation_config=generation, tokenizer=tokenizer)


def device() -> str:
    """Return what vLLM computes on, such as ``"cpu"`` or ``"cuda"``."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def free_memory() -> int:
    """Return the bytes of memory that are free, 0 where the system does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
