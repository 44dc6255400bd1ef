"""Where the numbers of an iteration go: two files always, dashboards if asked.

A new kind is a function from `Start` to a `Sink`, registered here or named as
``"package.module:function"``.  A dashboard that fails is told of and left; the files
hold every row.
"""

import contextlib
import dataclasses
import importlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from ragen_bench.errors import MissingExtra, RunIncomplete
from ragen_bench.registry import Registry
from ragen_bench.starpo import metrics
from ragen_bench.starpo.training_log import METRICS

TIMING = "timing.csv"
TENSORBOARD = "tensorboard"
WANDB_ID = "wandb-id"

Row: TypeAlias = Mapping[str, float | None]


class Sink(Protocol):
    """Takes the numbers of one iteration after another."""

    def add(self, row: Row, times: Row) -> None:
        """Take an iteration: its columns of ``metrics.csv`` and ``timing.csv``."""

    def close(self) -> None:
        """Let nothing wait to be written."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a sink begins with, or goes on from."""

    folder: Path
    """Of the training."""
    iteration: int
    """Iterations that are done; what a sink holds of later ones is void."""
    settings: Mapping[str, Any]
    """Of the training, JSON-able."""


Opener: TypeAlias = Callable[[Start], Sink]

SINKS: Registry[Opener] = Registry("sink", "docs/training.md")

_NEEDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"tensorboard": ("torch.utils.tensorboard", "train"), "wandb": ("wandb", "wandb")}
)
"""Sink to the module that it imports, and to the extra that installs it."""


def check(names: Sequence[str]) -> None:
    """Check that sinks can be opened, before anything is trained.

    Raises:
        UnknownName: No such sink.
        MissingExtra: Its package is not installed.
    """
    for name in names:
        SINKS.get(name)
        if name in _NEEDS:
            module, extra = _NEEDS[name]
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise MissingExtra(extra, f"the sink {name}") from error


@contextlib.contextmanager
def opened(
    names: Sequence[str], start: Start, warn: Callable[[str], object]
) -> Iterator[Sink]:
    """Open the two files and sinks beside them, and close all in the end.

    Args:
        names: Of sinks.
        start: Where they begin.
        warn: Hears, in a sentence, of a sink that failed and was left.

    Raises:
        UnknownName: No such sink.
    """
    openers = {name: SINKS.get(name) for name in names}
    sink = _All(_Files(start), warn)
    for name, opener in openers.items():
        sink.open(name, opener, start)
    with contextlib.closing(sink):
        yield sink


class _Files:
    """``metrics.csv`` and ``timing.csv``."""

    def __init__(self, start: Start) -> None:
        rows, folder = start.iteration, start.folder
        self._metrics = metrics.Table(folder / METRICS, metrics.COLUMNS, rows)
        self._timing = metrics.Table(folder / TIMING, metrics.TIMES, rows)

    def add(self, row: Row, times: Row) -> None:
        try:
            self._metrics.add(row)
            self._timing.add(times)
        except OSError as error:
            raise RunIncomplete(
                f"cannot write {error.filename or METRICS}: {error.strerror}; make "
                "room and run the same command again"
            ) from error

    def close(self) -> None:
        """Nothing waits; each row is written whole."""


class _All:
    """The files first, then every sink that has not failed."""

    def __init__(self, files: Sink, warn: Callable[[str], object]) -> None:
        self._files = files
        self._others: dict[str, Sink] = {}
        self._warn = warn

    def open(self, name: str, opener: Opener, start: Start) -> None:
        with self._guarded(name):
            self._others[name] = opener(start)

    def add(self, row: Row, times: Row) -> None:
        self._files.add(row, times)
        for name, sink in tuple(self._others.items()):
            with self._guarded(name):
                sink.add(row, times)

    def close(self) -> None:
        self._files.close()
        for name, sink in tuple(self._others.items()):
            with self._guarded(name):
                sink.close()

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        # A dashboard may fail in any way, and none is worth a training.
        except Exception as error:
            self._others.pop(name, None)
            what = " ".join(f"{type(error).__name__}: {error}".split())
            self._warn(
                f"sink {name!r} failed and gets no more rows, {METRICS} has them all: "
                f"{what}"
            )


class _TensorBoard:
    """Event files; a reader drops what a killed training wrote too much."""

    def __init__(self, start: Start) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(
            str(start.folder / TENSORBOARD), purge_step=start.iteration + 1
        )

    def add(self, row: Row, times: Row) -> None:
        for name, value in _numbers(row, times):
            self._writer.add_scalar(name, value, int(row["iteration"] or 0))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """A run of wandb, the same one after a resume; offline with WANDB_MODE=offline."""

    def __init__(self, start: Start) -> None:
        import wandb

        path = start.folder / WANDB_ID
        if not path.exists():
            path.write_text(secrets.token_hex(4), "ascii")
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "ragen-bench"),
            name=start.folder.resolve().name,
            id=path.read_text("ascii").strip(),
            resume="allow",
            dir=str(start.folder),
            config=dict(start.settings),
            # What we write to the terminal is ours.
            settings={"console": "off"},
        )

    def add(self, row: Row, times: Row) -> None:
        # Wandb ignores steps that it has already, which a rerun repeats.
        self._run.log(dict(_numbers(row, times)), step=int(row["iteration"] or 0))

    def close(self) -> None:
        self._run.finish()


def _numbers(row: Row, times: Row) -> Iterator[tuple[str, float]]:
    """Yield names, such as ``metrics/success``, and the numbers that are known."""
    for table, numbers in (("metrics", row), ("timing", times)):
        for name, value in numbers.items():
            if value is not None and name != "iteration":
                yield f"{table}/{name}", value


SINKS.add("tensorboard", _TensorBoard)
SINKS.add("wandb", _Wandb)
