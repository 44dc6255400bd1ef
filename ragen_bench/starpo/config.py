"""Presets, TOML and ``key=value`` to a `TrainConfig`, and back to plain values."""

import dataclasses
import math
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.starpo.presets import PRESETS
from ragen_bench.starpo.train_config import TrainConfig


def fields() -> Mapping[str, dataclasses.Field[Any]]:
    """Return the settings by name."""
    return {field.name: field for field in dataclasses.fields(TrainConfig)}


def make(preset: str | None, *layers: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a preset and of what changes it.

    Args:
        preset: A name of `PRESETS`, or None for the defaults.
        *layers: Settings, the later ones stronger.

    Raises:
        UnknownName: No such preset or setting.
        InvalidSpec: A value breaks a rule.
    """
    if preset is not None and preset not in PRESETS:
        raise UnknownName.of("preset", preset, PRESETS)
    settings = {"preset": preset, **PRESETS[preset]} if preset else {}
    for layer in layers:
        settings.update(layer)
    kinds = typing.get_type_hints(TrainConfig)
    checked = {}
    for name, value in settings.items():
        if name not in kinds:
            raise UnknownName.of("training setting", name, kinds)
        checked[name] = _as(name, kinds[name], value)
    return TrainConfig(**checked)


def read(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Return the preset and the settings of a TOML file.

    Raises:
        InvalidSpec: The file cannot be read, or is no TOML.
    """
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"configuration {str(path)!r}: {error}") from error
    preset = found.pop("preset", None)
    if not (preset is None or isinstance(preset, str)):
        raise InvalidSpec(
            f"preset is {preset!r}, but must be the name of one; "
            f"{', '.join(PRESETS)} are known"
        )
    return preset, found


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return a configuration as JSON-able values."""
    found = dataclasses.asdict(config)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}


def _as(name: str, kind: Any, value: Any) -> Any:
    """Return a value as a setting's type.

    Raises:
        InvalidSpec: It is of another type.
    """
    options = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is Literal:
        if value not in options:
            raise UnknownName.of(name, value, map(str, options))
        return value
    if origin is tuple:
        if not isinstance(value, (str, int, float, list, tuple)):
            raise InvalidSpec(f"{name} is {value!r}, but must be a list")
        items = [value] if isinstance(value, (str, int, float)) else list(value)
        inner = options[0]
        return tuple(_as(name, inner, item) for item in items)
    if type(None) in options:
        inner = next(option for option in options if option is not type(None))
        return None if value is None else _as(name, inner, value)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise InvalidSpec(f"{name} is {value!r}, but must be a table")
        return dict(value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise InvalidSpec(f"{name} is {value!r}, but must be a {kind.__name__}")
    return value
