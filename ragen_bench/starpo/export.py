"""A trained policy to a folder that ``--model hf:FOLDER`` plays."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from ragen_bench.errors import RunIncomplete
from ragen_bench.models import hf_loading
from ragen_bench.provenance import commit, versions
from ragen_bench.starpo import card
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo.policy import merged

if TYPE_CHECKING:
    from ragen_bench.starpo.loop import Training

ADAPTER = "adapter"
"""Folder within, of the LoRA adapter alone, if one was trained."""


def write(
    training: "Training",
    folder: Path,
    *,
    command: str | None = None,
    rows: Sequence[Mapping[str, str]] = (),
) -> Path:
    """Write weights, tokenizer, ``ragen.json`` and a card; whole or not at all.

    Args:
        training: Whose policy is written; an adapter is merged into it, and
            also written by itself.
        folder: Replaced if it exists.
        command: The command line that trained, for the card.
        rows: Of ``metrics.csv``, for the card.

    Raises:
        RunIncomplete: The disk is full; what was in the folder still is.
    """
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        _fill(training, beside, command, rows)
        _take_place(beside, folder)
    # safetensors tells of a full disk by an error of its own.
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise RunIncomplete(
            f"cannot write {folder}: {getattr(error, 'strerror', None) or error}; all "
            "is in the checkpoint: make room and run the same command again"
        ) from error
    return folder


def _take_place(beside: Path, folder: Path) -> None:
    """Put a folder in the place of another, which is gone only then."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(beside, folder)
    shutil.rmtree(old, ignore_errors=True)


def _fill(
    training: "Training",
    beside: Path,
    command: str | None,
    rows: Sequence[Mapping[str, str]],
) -> None:
    policy, config = training.policy, training.config
    with hf_loading.quiet():
        merged(policy.network).save_pretrained(beside)
        policy.tokenizer.save_pretrained(beside)
        if hasattr(policy.network, "peft_config"):
            policy.network.save_pretrained(beside / ADAPTER)
    settings = {
        "agent": config.agent,
        "prompt": config.prompt,
        "context": config.context,
        "sampling": {"temperature": 0.0, "max_tokens": config.max_tokens},
        "trained": True,
        "training": {
            "config": configuration.to_dict(config),
            "iterations": training.iteration,
            "command": command,
            "commit": commit(),
            "versions": versions(),
        },
    }
    text = json.dumps(settings, indent=2, sort_keys=True)
    (beside / "ragen.json").write_text(f"{text}\n", "utf-8")
    (beside / "README.md").write_text(card.write(training, command, rows), "utf-8")
