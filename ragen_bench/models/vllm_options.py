"""What a model of vLLM is served with: arguments of ours to those of its engine."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.model import Sampling
from ragen_bench.models.hf_options import whole_number

_GIB = 2**30
_BATCHED = 4096
"""Tokens of a pass on a CPU, at least."""
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_CONFIG = "adapter_config.json"
_NAMED = {
    "model": "vllm:FOLDER",
    "tokenizer": "vllm:FOLDER",
    "dtype": "dtype",
    "max_model_len": "max_context",
    "max_num_seqs": "batch_size",
    "tensor_parallel_size": "tensor_parallel_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_gib",
    "enforce_eager": "enforce_eager",
    "enable_lora": "lora",
    "max_lora_rank": "lora",
}
"""Arguments of the engine that have a name of ours."""
_FIXED = {
    "trust_remote_code": False,
    "logprobs_mode": "raw_logprobs",
    "skip_tokenizer_init": False,
}
"""What the rest of the code counts on."""
_PROCESSED = "processed_logprobs"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a model is served."""

    dtype: str = "auto"
    """``"auto"`` is float32 on a CPU and bfloat16 elsewhere."""
    batch_size: int | None = None
    """Replies that are decoded at once; None leaves the engine's own number."""
    max_context: int | None = None
    """Tokens of prompt and reply together; None takes the model's own limit."""
    tensor_parallel_size: int = 1
    """Devices that share each layer."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that the engine takes."""
    kv_cache_gib: float | None = None
    """GiB for keys and values; None is a quarter of the free memory on a CPU, but 1 to
    4, and what the share above leaves on a GPU."""
    enforce_eager: bool | None = None
    """Whether to do without compiled graphs; None is yes on a CPU alone."""
    threads: int | None = None
    """Cores of a CPU; None lets the engine bind itself to those it may use."""
    lora: str | None = None
    """Folder of an adapter."""
    processed_logprobs: bool = False
    """Whether log-probabilities are those at the temperature of sampling, not at 1."""
    engine_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Anything else that the engine takes, by its own names."""

    def __post_init__(self) -> None:
        """Check what can be checked without vLLM."""
        if self.dtype not in _DTYPES:
            raise UnknownName.of("dtype", self.dtype, _DTYPES)
        for name in self.engine_args:
            if name in _NAMED:
                raise InvalidSpec(
                    f"engine_args names {name!r}, which is given as {_NAMED[name]}"
                )
            if name in _FIXED:
                raise InvalidSpec(
                    f"engine_args names {name!r}, which must stay {_FIXED[name]!r}; "
                    "leave it out"
                )


def positive(name: str, value: float | str | None) -> float | None:
    """Return an argument as a number above 0, or None as it is.

    Raises:
        InvalidSpec: It is no such number.
    """
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number < float("inf"):
        raise InvalidSpec(f"{name} is {value!r}, but must be a number above 0")
    return number


def share(name: str, value: float | str | None) -> float | None:
    """Return an argument as a number in (0, 1], or None as it is.

    Raises:
        InvalidSpec: It is no such number.
    """
    number = positive(name, value)
    if number is not None and number > 1:
        raise InvalidSpec(f"{name} is {value!r}, but must be at most 1")
    return number


def adapter_rank(place: str) -> int:
    """Return the smallest rank vLLM can make room for that an adapter fits into.

    Args:
        place: The adapter's folder.

    Raises:
        InvalidSpec: The folder holds no LoRA adapter, or one of a rank above 512.
    """
    path = Path(place) / _CONFIG
    if not path.is_file():
        raise InvalidSpec(
            f"lora {place!r} is no adapter: it holds no {_CONFIG}; give a folder "
            "that peft's save_pretrained wrote"
        )
    try:
        config = json.loads(path.read_text("utf-8"))
        kind, ranks = config["peft_type"], config.get("rank_pattern") or {}
        rank = max(whole_number("r", r) or 0 for r in (config["r"], *ranks.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidSpec(f"{str(path)!r} describes no LoRA adapter") from error
    if kind != "LORA":
        raise InvalidSpec(f"lora {place!r} is an adapter of type {kind}, not LORA")
    if rank > _RANKS[-1]:
        raise InvalidSpec(f"lora {place!r} has rank {rank}, but 512 is the highest")
    return next(fitting for fitting in _RANKS if fitting >= rank)


def engine_arguments(
    place: str, options: Options, max_context: int, *, free_memory: int | None
) -> dict[str, Any]:
    """Return the arguments of vLLM's engine.

    Args:
        place: Folder or hub id.
        options: What was asked for.
        max_context: Tokens of prompt and reply together.
        free_memory: Bytes of memory that are free on a CPU, None on a GPU.

    Raises:
        UnknownName: ``engine_args`` names something that the engine does not take.
        InvalidSpec: The adapter is none.
    """
    on_cpu = free_memory is not None
    eager, dtype = options.enforce_eager, options.dtype
    if dtype == "auto":
        dtype = "float32" if on_cpu else "bfloat16"
    found: dict[str, Any] = {
        "model": place,
        "dtype": dtype,
        "max_model_len": max_context,
        "tensor_parallel_size": options.tensor_parallel_size,
        "enforce_eager": on_cpu if eager is None else eager,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        **_FIXED,
    }
    cache = options.kv_cache_gib
    if cache is None and free_memory is not None:
        cache = min(max(1, free_memory // 4 // _GIB), 4)
    if cache is not None:
        found["kv_cache_memory_bytes"] = int(cache * _GIB)
    if on_cpu:
        # A seeded request whose prompt is read in parts ends vLLM 0.32 on a CPU: its
        # generator cannot go back.  Whole prompts need room for the longest.
        found["enable_chunked_prefill"] = False
        found["max_num_batched_tokens"] = max(max_context, _BATCHED)
    if options.batch_size is not None:
        found["max_num_seqs"] = options.batch_size
    if options.gpu_memory_utilization is not None:
        found["gpu_memory_utilization"] = options.gpu_memory_utilization
    if options.lora is not None:
        found["enable_lora"] = True
        found["max_lora_rank"] = adapter_rank(options.lora)
    if options.processed_logprobs:
        found["logprobs_mode"] = _PROCESSED
    if options.engine_args:
        _check_known(options.engine_args)
    return found | dict(options.engine_args)


def check_logprobs(sampling: Sampling, mode: str) -> None:
    """Refuse a request for log-probabilities that the engine does not give.

    Args:
        sampling: What is asked.
        mode: The engine's ``logprobs_mode``.

    Raises:
        InvalidSpec: They would be those of another temperature or of a nucleus.
    """
    processed = mode == _PROCESSED
    if sampling.temperature in (0, 1):
        fits = True
    else:
        fits = sampling.processed_logprobs == processed
    # vLLM's are then of the nucleus alone, others' of all tokens.
    if not fits or (processed and sampling.top_p < 1):
        raise InvalidSpec(
            f"processed_logprobs is {sampling.processed_logprobs!r} at temperature "
            f"{sampling.temperature!r} and top_p {sampling.top_p!r}, but this engine "
            f"of vLLM gives {mode}; sample at temperature 1 and top_p 1"
        )


def environment_of(options: Options, cores: int) -> dict[str, str]:
    """Return what the processes of an engine on a CPU find in their environment.

    Args:
        options: What was asked for.
        cores: That this process may use.
    """
    found, threads = {}, options.threads
    if options.enforce_eager is not False:
        # Else parts of the sampler are compiled at the first request, for seconds.
        found["TORCHDYNAMO_DISABLE"] = "1"
    if options.tensor_parallel_size > 1:
        # Bound to cores, several workers want as many memory nodes.
        threads = threads or max(1, cores // options.tensor_parallel_size)
    if threads is not None:
        found["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        found["OMP_NUM_THREADS"] = str(threads)
    return found


def _check_known(engine_args: Mapping[str, Any]) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in engine_args:
        if name not in known:
            free = known - _NAMED.keys() - _FIXED.keys()
            raise UnknownName.of("argument of vLLM's engine", name, free)
