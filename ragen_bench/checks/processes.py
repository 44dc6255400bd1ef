"""The check that other processes play the same episodes, and what they run."""

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from ragen_bench.checks.case import (
    Case,
    Player,
    Return,
    expect,
    expect_same,
    layer_name,
)
from ragen_bench.errors import CheckFailed

HASH_SEEDS = ("0", "1", "2")

_CHILD = """
import pickle, sys
sys.path[:], payload = pickle.load(sys.stdin.buffer)
from ragen_bench.checks import processes
processes.answer(*payload)
"""


def other_processes_play_the_same(case: Case) -> None:
    """Processes with other hash seeds return the same, bit for bit.

    The environment's module must be importable there by its name; this process's
    ``sys.path`` is passed on.
    """
    module = type(case.core()).__module__
    expect(
        module != "__main__",
        "the class is defined in __main__, where no other process finds it; move it "
        "into a module",
    )
    try:
        payload = ([module], pickle.dumps(case))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CheckFailed(
            f"another process cannot be given the factory ({error}); use an id, a "
            "function of a module, or functools.partial of one"
        ) from error
    request = pickle.dumps((sys.path, payload))
    here = episodes(case)
    children = [(hash_seed, _ask(hash_seed)) for hash_seed in HASH_SEEDS]
    answers = [
        (hash_seed, *child.communicate(request), child.returncode)
        for hash_seed, child in children
    ]
    for hash_seed, out, err, code in answers:
        where = f"a process with PYTHONHASHSEED={hash_seed}"
        expect(code == 0, f"{where} failed: {err.decode(errors='replace')[-2000:]}")
        for label, expected, found in zip(
            labels(case), here, pickle.loads(out), strict=True
        ):
            expect_same(expected, found, f"{label}: this process and {where}")


def labels(case: Case) -> list[str]:
    """Return what `episodes` plays, in its order."""
    return [
        f"seed {seed} of {layer_name(env)}"
        for env in case.layers()
        for seed in case.seeds
    ]


def episodes(case: Case) -> list[list[Return]]:
    """Return one random episode for each layer and seed."""
    return [Player(env, seed).finish() for env in case.layers() for seed in case.seeds]


def answer(modules: Sequence[str], pickled: bytes) -> None:
    """Write the pickled episodes of a pickled case to standard output.

    Args:
        modules: What to import first, because it registers environments.
        pickled: The `Case`.
    """
    out = sys.stdout.buffer
    # An environment that prints must not spoil the answer.
    sys.stdout = sys.stderr
    for module in modules:
        importlib.import_module(module)
    out.write(pickle.dumps(episodes(pickle.loads(pickled))))
    out.flush()


def _ask(hash_seed: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
