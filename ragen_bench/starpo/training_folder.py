"""A training's folder: whether it holds this very training, and what lies in it."""

import json
from collections.abc import Sequence
from pathlib import Path

from ragen_bench.errors import RecordError, RunIncomplete, RunMismatch
from ragen_bench.provenance import commit, versions
from ragen_bench.records import Episode
from ragen_bench.run_folder import replacing
from ragen_bench.starpo import checkpoint
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo.train_config import TrainConfig
from ragen_bench.starpo.training_log import ROLLOUTS

CONFIG = "train.json"
CHECKPOINTS = "checkpoints"
MODEL = "model"
_FREE = frozenset(
    {"keep_rollouts", "preset", "save_every", "sinks", "stop_on_collapse"}
)
"""Settings that may differ when a training goes on: they move no number of it."""
_ENDS = frozenset({"budget_seconds", "iterations"})
"""These too, unless the learning rate falls over them."""


def refuse_another(out: Path, config: TrainConfig) -> None:
    """Refuse a folder in which another training has begun.

    Raises:
        RunMismatch: A setting is another one.
        RecordError: What the folder was trained with cannot be read.
    """
    path = out / CONFIG
    if checkpoint.newest(out / CHECKPOINTS) is None or not path.exists():
        return
    held, asked = _held(path), _plain(config)
    free = _FREE | _ENDS if config.decay == "none" else _FREE
    for name in sorted(asked):
        if name not in free and held[name] != asked[name]:
            over = f", over which the rate falls (decay {config.decay!r})"
            raise RunMismatch(
                f"{str(out)!r} was trained with {name} {held[name]!r}, but "
                f"{asked[name]!r} is asked for{over if name in _ENDS else ''}; give "
                "another --out, or the same setting"
            )


def adopt(out: Path, config: TrainConfig) -> None:
    """Write what the folder is trained with.

    Raises:
        RunIncomplete: The disk is full.
    """
    text = json.dumps(
        {"config": _plain(config), "versions": versions(), "commit": commit()},
        indent=2,
        sort_keys=True,
    )
    with replacing(out / CONFIG) as file:
        file.write(f"{text}\n".encode())


def keep(out: Path, iteration: int, episodes: Sequence[Episode]) -> None:
    """Write the episodes of an iteration as records.

    Raises:
        RunIncomplete: The disk is full.
    """
    folder = out / ROLLOUTS
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RunIncomplete(
            f"cannot make {folder}: {error.strerror}; make room and run the same "
            "command again"
        ) from error
    with replacing(folder / f"{iteration:06d}.jsonl") as file:
        for episode in episodes:
            file.write(f"{episode.model_dump_json()}\n".encode())


def _plain(config: TrainConfig) -> dict[str, object]:
    """Return a configuration as JSON gives it back."""
    found: dict[str, object] = json.loads(json.dumps(configuration.to_dict(config)))
    return found


def _held(path: Path) -> dict[str, object]:
    try:
        known = json.loads(path.read_text("utf-8"))["config"]
        # What an older version did not know of was as it is by default.
        return {**_plain(TrainConfig()), **known}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path} cannot be read: {type(error).__name__}: {error}; give another "
            "--out, or move its folder away"
        ) from error
