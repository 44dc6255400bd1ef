"""What `import ragen_bench` and the command line ask the trainer for."""

import asyncio
import concurrent.futures
import functools
import inspect
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_bench.errors import InvalidSpec, MissingExtra

if TYPE_CHECKING:
    from ragen_bench.starpo.train_config import TrainConfig
    from ragen_bench.starpo.training import Outcome, Progress


def train(
    config: str | Path | None = None,
    *,
    preset: str | None = None,
    envs: str | Sequence[str] = (),
    model: str | None = None,
    out: str | Path | None = None,
    progress: "Progress | None" = None,
    **settings: Any,
) -> "Outcome":
    """Train an agent with StarPO or StarPO-S; the same call again goes on.

    It may be called where an event loop runs already, as in a notebook.

    Args:
        config: A TOML file of settings.
        preset: What the settings begin with, such as ``"starpo-s"``.
        envs: Cells to train on, ``ID`` or ``ID:level``.
        model: ``"fresh"``, ``"tiny"`` or ``"hf:FOLDER_OR_ID"``.
        out: The training's folder; ``runs/train-PRESET-ENV`` by default.
        progress: Hears of it; nobody by default, and alarms go into the log.
        **settings: The fields of `ragen_bench.starpo.train_config.TrainConfig`, such as
            ``lr`` or ``algorithm``; stronger than the file, which is stronger than
            the preset.

    Returns:
        Folder, model, iterations, and whether it ran to its end.

    Raises:
        RagenError: A setting is refused, before anything is trained.
        MissingExtra: PyTorch or transformers is not installed.
        RunIncomplete: The disk is full.
    """
    require_extra()
    from ragen_bench.starpo import training

    file = Path(config) if config is not None else None
    found = configure(file, preset=preset, envs=envs, model=model, settings=settings)
    given = {"preset": preset, "envs": envs or None, "model": model, **settings}
    words = [repr(str(file))] if file is not None else []
    words += [f"{k}={v!r}" for k, v in given.items() if v is not None]
    work = functools.partial(
        training.train,
        found,
        Path(out) if out is not None else default_folder(found, file),
        progress=progress,
        command=f"ragen_bench.train({', '.join(words)})",
    )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    return _beside_a_loop(work)


def _beside_a_loop(work: "Callable[..., Outcome]") -> "Outcome":
    """Train in a thread of its own, as a notebook's own has an event loop already."""
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        training = pool.submit(work, stop=stop)
        while True:
            try:
                return training.result()
            except KeyboardInterrupt:  # Ctrl-C stops the training, as elsewhere
                if stop.is_set():
                    raise
                stop.set()


def algorithms() -> list[dict[str, Any]]:
    """Return the registered algorithms, JSON-able.

    Returns:
        ``name``; ``summary``, the first line of its file; whether it needs a
        ``critic``; and the ``source`` that the line names, None without one.

    Raises:
        MissingExtra: PyTorch or transformers is not installed.
    """
    require_extra()
    import ragen_bench.starpo.algorithms  # noqa: F401 - registers them
    from ragen_bench.starpo.algorithm import ALGORITHMS

    found = []
    for name in ALGORITHMS:
        algorithm = ALGORITHMS.get(name)
        module = sys.modules.get(getattr(algorithm.estimate, "__module__", ""))
        line = (inspect.getdoc(module) or "").partition("\n")[0] if module else ""
        source = re.search(r"arXiv \d{4}\.\d{5}", line)
        found.append(
            {
                "name": name,
                "summary": line,
                "critic": algorithm.critic,
                "source": source and source[0],
            }
        )
    return found


def require_extra() -> None:
    """Import what a training needs.

    Raises:
        MissingExtra: PyTorch or transformers is not installed.
    """
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtra("train", "training") from error


def configure(
    file: Path | None,
    *,
    preset: str | None,
    envs: str | Sequence[str],
    model: str | None,
    settings: Mapping[str, Any],
) -> "TrainConfig":
    """Return a configuration: preset, then file, then what is given here.

    Raises:
        UnknownName: No such preset or setting.
        InvalidSpec: A value breaks a rule, or the file cannot be read.
    """
    from ragen_bench.starpo import config

    held: dict[str, Any] = {}
    if file is not None:
        named, held = config.read(file)
        preset = preset or named
    flags: dict[str, Any] = {}
    if envs:
        flags["envs"] = envs
    if model is not None:
        flags["model"] = model
    if "preset" in settings:
        raise InvalidSpec(
            f"preset is {settings['preset']!r} among the settings, which change it; "
            "give it as --preset, or at the head of the file"
        )
    layers = (held, flags, settings)
    return config.make(preset, *map(_with_place, layers))


def _with_place(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings whose model, if they name one, is the place of its weights."""
    spec = settings.get("model")
    if not isinstance(spec, str):
        return settings
    return {**settings, "model": model_named(spec)}


def model_named(spec: str) -> str:
    """Return the place of a model's weights.

    Raises:
        InvalidSpec: It is served by something that cannot be trained.
    """
    prefix, _, rest = spec.partition(":")
    if rest and prefix != "hf":
        raise InvalidSpec(
            f"model is {spec!r}, but must be fresh, tiny or hf:FOLDER_OR_ID"
        )
    return rest or spec


def default_folder(config: "TrainConfig", file: Path | None) -> Path:
    """Return such as ``runs/train-starpo-s-ragen_Sokoban-v0_1``."""
    source = file.stem if file is not None else config.preset or "default"
    name = "-".join(["train", source, *config.envs])
    return Path("runs") / re.sub(r"[^A-Za-z0-9._-]", "_", name)[:120]
