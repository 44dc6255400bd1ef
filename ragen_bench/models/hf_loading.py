"""A folder or hub id to a network and its tokenizer, quietly, with clear refusals."""

import contextlib
import hashlib
import importlib
import json
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.errors import InvalidSpec, MissingExtra, UnknownName
from ragen_bench.models.hf_options import Origin

_LOADING = threading.Lock()
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_DTYPES = ("float32", "bfloat16", "float16")
_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
_HASHED = ("*.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
_HASHED_LORA = ("adapter_config.json", "adapter_model.*")


def require_extra(feature: str) -> None:
    """Import the packages of the extra ``hf``.

    Raises:
        MissingExtra: One of them is not installed.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtra("hf", feature) from error


def load_network(place: str, dtype: str, device: str) -> tuple[Any, Any]:
    """Return a causal language model, ready to predict, and its tokenizer.

    Args:
        place: A folder, or an id on the hub of models.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"auto"``, which is
            float32 on a CPU, and bfloat16 or else float16 on a GPU.
        device: As PyTorch calls it, or ``"auto"``: a GPU if there is one.

    Raises:
        UnknownName: Nothing is found there.
        InvalidSpec: What is there is no causal language model with a tokenizer, or
            dtype or device do not exist.
    """
    import transformers

    check_place(place)
    on = device_named(device)
    kind = _dtype(dtype, on)
    try:
        # transformers builds networks by way of state that all threads share.
        with _LOADING, quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                place, trust_remote_code=False
            )
            network = transformers.AutoModelForCausalLM.from_pretrained(
                place,
                dtype=kind,
                trust_remote_code=False,
            )
            network.to(on).eval().requires_grad_(False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        if Path(place).is_dir():
            raise InvalidSpec(
                f"folder {place!r} holds no causal language model with a tokenizer "
                f"that transformers can load: {first}"
            ) from error
        raise UnknownName(
            f"no model {place!r}: there is no such folder here, and the hub did not "
            f"give it ({first}); download it first and give its folder"
        ) from error
    return network, tokenizer


def check_place(place: str) -> None:
    """Check that a place may hold a model, without loading it.

    Raises:
        UnknownName: There is no such folder, and it is no hub id either.
        InvalidSpec: The folder holds no ``config.json``, or the place is empty.
    """
    if not place:
        raise InvalidSpec("model 'hf' needs a folder or a hub id: hf:FOLDER")
    path = Path(place)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InvalidSpec(
                f"folder {place!r} is no model: it holds no config.json; give a "
                "folder that save_pretrained wrote"
            )
    elif path.exists() or not _HUB_ID.fullmatch(place) or place.startswith("."):
        raise UnknownName(f"no model {place!r}: there is no such folder")


def read_defaults(place: str) -> Mapping[str, Any]:
    """Return the settings that a model folder was made for, from its ``ragen.json``.

    Raises:
        InvalidSpec: The file is not a JSON object.
    """
    path = Path(place) / "ragen.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InvalidSpec(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidSpec(f"{str(path)!r} must hold a JSON object of settings")
    return found


def end_ids(network: Any, tokenizer: Any) -> frozenset[int]:
    """Return the token ids that end a reply: all that the folder's files name."""
    found: set[int] = set()
    for source in (network.generation_config, network.config.get_text_config()):
        ids = getattr(source, "eos_token_id", None)
        found.update(ids if isinstance(ids, list) else [ids] if ids is not None else [])
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    special = set(tokenizer.all_special_tokens) | set(tokenizer.get_added_vocab())
    for token in _END_TOKENS:
        if token in special:
            found.add(tokenizer.convert_tokens_to_ids(token))
    return frozenset(found)


def context_length(network: Any, asked: int | None) -> int:
    """Return the tokens that prompt and reply may have together.

    Raises:
        InvalidSpec: More than the model has positions for is asked, or neither the
            configuration nor the caller names a number.
    """
    config = network.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None and asked is None:
        raise InvalidSpec("the model's configuration names no context: max_context=N")
    if limit is not None and asked is not None and asked > limit:
        raise InvalidSpec(
            f"max_context is {asked}, but the model has {limit} positions; lower it"
        )
    return asked if asked is not None else int(limit or 0)


def origin_hashes(origin: Origin) -> dict[str, str]:
    """Return the SHA-256 of all files that a model was made of."""
    hashes = file_hashes(origin.place) if origin.place else {}
    if origin.lora:
        found = file_hashes(origin.lora, _HASHED_LORA)
        hashes |= {f"lora/{name}": digest for name, digest in found.items()}
    return hashes


def file_hashes(place: str, patterns: Sequence[str] = _HASHED) -> dict[str, str]:
    """Return the SHA-256 of files in a folder, by default all of a whole model."""
    hashes = {}
    for pattern in patterns:
        for path in sorted(Path(place).glob(pattern)):
            with path.open("rb") as file:
                hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep ``transformers`` from writing warnings and progress bars."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep PyTorch on one core in this thread, and let others use what they may.

    A thread that computes on several cores keeps helpers for ever.  Beside the
    helpers of the thread that decodes they are more than there are cores, and OpenMP
    then lets all of them sleep between two operations: decoding takes twice as long.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_named(device: str) -> Any:
    """Return the device of a name; ``"auto"`` is a GPU if there is one.

    Raises:
        InvalidSpec: There is no such device here.
    """
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        mps = torch.backends.mps.is_available()
        return torch.device("mps" if mps else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise InvalidSpec(
            f"device {device!r} is not available here; 'auto' and 'cpu' always are"
        ) from error
    return found


def _dtype(dtype: str, device: Any) -> Any:
    import torch

    if dtype == "auto":
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if _computes_bfloat16(device) else torch.float16
    if dtype not in _DTYPES:
        raise UnknownName.of("dtype", dtype, {"auto", *_DTYPES})
    return getattr(torch, dtype)


def _computes_bfloat16(device: Any) -> bool:
    """Return whether a GPU computes in bfloat16 itself, not by emulation."""
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        torch.zeros(1, dtype=torch.bfloat16, device=device)
    except (RuntimeError, TypeError):
        return False
    return True
