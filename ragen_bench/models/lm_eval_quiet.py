"""Keeps lm-eval's own prints and progress bars out of a run, and only there.

lm-eval prints to stdout and draws bars on stderr whatever it is told.  The modules of
the class that is used get quiet stand-ins, which are quiet in the threads that ask for
it and do what they always did in all others.
"""

import builtins
import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

_HERE = threading.local()


def is_quiet() -> bool:
    """Return whether this thread wants no output."""
    return bool(getattr(_HERE, "depth", 0))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence the prepared modules in this thread."""
    _HERE.depth = getattr(_HERE, "depth", 0) + 1
    try:
        yield
    finally:
        _HERE.depth -= 1


def prepare(cls: type) -> None:
    """Prepare the modules of lm-eval that define a class and its ancestors.

    A logger without any handler would write warnings to stderr; whoever set one up
    still hears lm-eval.
    """
    logger = logging.getLogger("lm_eval")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    for name in {ancestor.__module__ for ancestor in cls.__mro__}:
        if name.startswith("lm_eval."):
            _prepare(sys.modules[name])


def _prepare(module: Any) -> None:
    if vars(module).get("print") is not _print:
        module.print = _print
    for name in ("tqdm", "tqdm_asyncio"):
        bar = vars(module).get(name)
        if isinstance(bar, type) and not hasattr(bar, "ragen_bench_quiet"):
            setattr(module, name, _quiet_bar(bar))


def _print(*values: Any, **options: Any) -> None:
    if not is_quiet():
        builtins.print(*values, **options)


def _quiet_bar(bar: type) -> type:
    def begin(self: Any, *values: Any, **options: Any) -> None:
        if is_quiet():
            options["disable"] = True
        bar.__init__(self, *values, **options)  # type: ignore[misc]

    return type(bar.__name__, (bar,), {"__init__": begin, "ragen_bench_quiet": True})
