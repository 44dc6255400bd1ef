"""What each process of vLLM's engine runs before anything else (see `vllm_host`)."""

import contextlib
import ctypes
import logging
import signal
import sys

_PR_SET_PDEATHSIG = 1


def begin() -> None:
    """Be quiet, and end with whoever started this process, however that ends."""
    # Until vLLM has set up its loggers, Python itself would print their warnings.
    logging.getLogger("vllm").addHandler(logging.NullHandler())
    if sys.platform == "linux":
        # A killed parent cannot tell; the engine would hold its memory for ever.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# The name that multiprocessing gives the main module of a process it starts.
if __name__ == "__mp_main__":
    begin()
