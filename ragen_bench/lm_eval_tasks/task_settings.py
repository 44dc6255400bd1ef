"""What a YAML file and ``--metadata`` say, as the settings of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen_bench.errors import InvalidSpec
from ragen_bench.plan import Plan, Settings, resolve

_RUN = (
    "split",
    "seeds",
    "agent",
    "agent_args",
    "env_args",
    "prompt",
    "context",
    "temperature",
    "top_p",
    "max_tokens",
    "shots",
    "repeats",
    "salt",
)
"""Settings of a run that lm-eval's metadata may hold."""
_MODEL = ("pretrained", "model", "revision", "dtype", "peft", "base_url")
"""Model arguments, which lm-eval puts into the metadata too, that name the model."""


def plan_of(metadata: Mapping[str, Any], model: str) -> Plan:
    """Return the run of a task, its model not loaded.

    Args:
        metadata: Of the task: ``board`` or ``env`` with ``level``, and settings of a
            run.  lm-eval adds the model's arguments, so other keys are left alone.
        model: What records call the model.

    Raises:
        RagenError: A setting is refused.
    """
    given = {name: metadata[name] for name in _RUN if metadata.get(name) is not None}
    arguments = {
        name: metadata[name]
        for name in _MODEL
        if isinstance(metadata.get(name), str | int)
    }
    board, level = metadata.get("board"), metadata.get("level")
    if board is None:
        env = metadata["env"]
        cell = env if level is None else f"{env}:{level}"
        settings = Settings(envs=(cell,), model=model, model_args=arguments, **given)
    elif level is not None:
        raise InvalidSpec(
            f"level is {level!r}, but board {board!r} fixes its levels; leave it out, "
            "or take the task of one environment"
        )
    else:
        settings = Settings(board=board, model=model, model_args=arguments, **given)
    return resolve(settings, load_model=False)


def folder_of(metadata: Mapping[str, Any]) -> Path | None:
    """Return the run folder that is asked for, if any."""
    out = metadata.get("out")
    return None if out is None else Path(str(out))
