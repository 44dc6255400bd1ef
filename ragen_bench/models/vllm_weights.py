"""New weights into vLLM's running engine, and what it makes of given tokens.

All that only a trainer asks of vLLM stands here.  Weights go to the engine's processes
through a file in shared memory; its workers read it by a method of `WeightReader`.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.errors import ProviderError

READER = f"{__name__}.WeightReader"
"""For vLLM's argument ``worker_extension_cls``."""
_METHOD = "read_ragen_weights"
_FILE = "weights.safetensors"
_SHARED = Path("/dev/shm")


class WeightReader:
    """What vLLM's workers learn: to read weights from a file."""

    def read_ragen_weights(self, path: str) -> None:
        """Take over weights of a safetensors file, by the names of a checkpoint."""
        from safetensors.torch import load_file

        worker: Any = self
        worker.reload_weights(weights_iterator=iter(load_file(path).items()))


async def load(engine: Any, path: str) -> None:
    """Let all workers read weights, and forget keys and values of the old ones.

    Args:
        engine: vLLM's ``AsyncLLM``, without requests in flight.
        path: A safetensors file.

    Raises:
        ProviderError: The cache could not be emptied: a request is in flight.
    """
    await engine.collective_rpc(_METHOD, args=(path,))
    if not await engine.reset_prefix_cache():
        raise ProviderError(
            "vLLM keeps keys and values of old weights: a request was in flight while "
            "weights changed; wait for all replies first"
        )


async def score(engine: Any, ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token but the first, in nats, [n - 1].

    They are those of temperature 1.  All are computed afresh but the last, which is
    asked for as a reply would be: from the cache of prompts, if that holds them.

    Args:
        engine: vLLM's ``AsyncLLM``.
        ids: At least two tokens.
    """
    from vllm import SamplingParams

    # First: else the fresh pass would have filled the cache.
    reply = SamplingParams(
        max_tokens=1, temperature=0.0, logprob_token_ids=[ids[-1]], detokenize=False
    )
    answered = await _answer(engine, ids[:-1], reply, "ragen-score-reply")
    last = answered.outputs[0].logprobs[0][ids[-1]].logprob
    fresh = SamplingParams(
        max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False
    )
    answered = await _answer(engine, ids, fresh, "ragen-score")
    rows = answered.prompt_logprobs[1:]
    found = [row[token].logprob for row, token in zip(rows, ids[1:], strict=True)]
    return [*found[:-1], last]


@contextlib.contextmanager
def handed_over(weights: Mapping[str, Any]) -> Iterator[str]:
    """Yield the path of a file that holds weights for as long as the block runs.

    Args:
        weights: Tensors on any device, by the names of a checkpoint.
    """
    from safetensors.torch import save_file

    # One tensor under two names is two in the file: a reader wants both.
    seen: set[int] = set()
    ready = {}
    for name, tensor in weights.items():
        held = tensor.detach().cpu().contiguous()
        ready[name] = held.clone() if held.data_ptr() in seen else held
        seen.add(held.data_ptr())
    size = sum(tensor.nbytes for tensor in ready.values())
    with tempfile.TemporaryDirectory(prefix="ragen-", dir=_place(size)) as folder:
        path = Path(folder) / _FILE
        save_file(ready, path)
        yield str(path)


def _place(size: int) -> str | None:
    """Return a folder in memory with room for so many bytes, None where none has."""
    try:
        room = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0
    except OSError:
        room = 0
    return str(_SHARED) if room > 2 * size else None


async def _answer(engine: Any, ids: Sequence[int], parameters: Any, name: str) -> Any:
    prompt = {"prompt_token_ids": list(ids)}
    *_, last = [reply async for reply in engine.generate(prompt, parameters, name)]
    return last
