"""What surrounds vLLM's engine while it starts: quiet, and nobody else's business."""

import contextlib
import logging
import multiprocessing.spawn
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Set for good, unless they are set: vLLM reads them whenever it likes."""
_AT_START = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Set for the processes of the engine alone."""
_CHILD = "vllm_child.py"


def prepare() -> None:
    """Make vLLM quiet, then import it.

    Raises:
        ImportError: vLLM is not installed, or cannot be loaded.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    # Before vLLM has set up its loggers, Python itself would print their warnings.
    silence = logging.NullHandler()
    logging.getLogger("vllm").addHandler(silence)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vllm.v1.engine.async_llm  # noqa: F401
    finally:
        logging.getLogger("vllm").removeHandler(silence)


@contextlib.contextmanager
def surroundings(environment: Mapping[str, str], sockets: str) -> Iterator[None]:
    """Let the engine's processes start quietly, and keep what they need to them.

    Args:
        environment: Set for them.
        sockets: The folder for those that they talk through.
    """
    before = dict(os.environ)
    os.environ.update({**_AT_START, **environment})
    # vLLM never removes the sockets that its processes talk through.
    os.environ.setdefault("VLLM_RPC_BASE_PATH", sockets)
    try:
        with warnings.catch_warnings(), own_main():
            warnings.simplefilter("ignore")
            yield
    finally:
        # vLLM itself sets more, such as LD_PRELOAD, that is meant for them alone.
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def own_main() -> Iterator[None]:
    """Let processes that this thread starts run `vllm_child`, not the main script.

    They need nothing of it, and a script that says what to do at its top level would
    do it once more in each of them.
    """
    thread = threading.current_thread()
    original = multiprocessing.spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = original(name)
        if threading.current_thread() is thread:
            data.pop("init_main_from_name", None)
            data["init_main_from_path"] = str(Path(__file__).with_name(_CHILD))
        return data

    multiprocessing.spawn.get_preparation_data = get_preparation_data
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = original
