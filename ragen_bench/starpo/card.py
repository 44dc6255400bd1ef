"""The card of an exported model: on what it was trained, how, and how well it did."""

import importlib.metadata
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_bench.provenance import commit, versions
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo.train_config import TrainConfig

if TYPE_CHECKING:
    from ragen_bench.starpo.loop import Training

_PACKAGES = ("torch", "transformers", "peft")
_LICENCE = re.compile(r"^license:\s*(\S.*?)\s*$", re.M)
_SHOWN = ("return_mean", "success", "entropy", "valid_rate")


def write(
    training: "Training", command: str | None, rows: Sequence[Mapping[str, str]]
) -> str:
    """Return the card of a training as Markdown.

    Args:
        training: As it stands.
        command: The command line, or the call in Python.
        rows: Of ``metrics.csv``; empty before the first iteration.
    """
    config = training.config
    sections = (
        (f"# Trained on {', '.join(config.envs)}", _summary(training)),
        ("## Data", _data(training)),
        ("## Scores", _scores(config, rows)),
        ("## Made with", _origin(config, command)),
        ("## Settings", _settings(config)),
    )
    parts = ["\n".join([title, "", *lines]) for title, lines in sections]
    return "\n\n".join(parts) + "\n"


def _summary(training: "Training") -> Iterator[str]:
    config = training.config
    base = "new weights" if config.model == "fresh" else f"`{config.model}`"
    adapter = f", a LoRA adapter of rank {config.lora_rank} merged into it"
    yield (
        f"{training.iteration} iterations of {config.method} (filter "
        f"{config.filter}) from {base}{adapter if config.lora_rank else ''}."
    )
    licence = _licence(config.model)
    if licence is not None:
        yield ""
        yield f"The folder of `{config.model}` states the licence: {licence}."
    yield ""
    yield f"Play it: `ragen-bench run --env {config.envs[0]} --model hf:FOLDER`"


def _data(training: "Training") -> Iterator[str]:
    config, drawn = training.config, training.instances.drawn
    cells = config.envs
    counts = Counter(cells[number % len(cells)] for number in range(drawn))
    yield "Only instances of the train split were trained on:"
    yield ""
    yield "| cell | split | instances drawn | episodes |"
    yield "|---|---|---|---|"
    for cell in dict.fromkeys(cells):
        count = counts[cell]
        yield f"| `{cell}` | train | {count:,} | {count * config.rollouts:,} |"
    yield ""
    yield "An instance may be drawn more than once."
    cloned = training.cloned
    if cloned is not None:
        yield ""
        yield (
            f"Before that, {cloned['steps']:.0f} steps of behaviour cloning (batches "
            f"of {config.clone_batch} episodes, loss {cloned['loss']:.3f} nats a token "
            "in the end) of a solver that plays train instances, a share of "
            f"{config.clone_noise:g} of its turns at random"
            f"{', learned like the others' if config.clone_mistakes else ''}."
        )


def _scores(config: TrainConfig, rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    if not rows:
        yield "No iteration was run."
        return
    yield from _table(
        f"Iteration {rows[-1]['iteration']}, train split, sampled at temperature "
        f"{config.temperature:g}:",
        {name: rows[-1].get(name, "") for name in _SHOWN},
    )
    dev = next((row for row in reversed(rows) if row.get("dev_return")), None)
    yield ""
    if dev is None:
        yield "It was not played on the dev split in training."
    else:
        yield from _table(
            f"Iteration {dev['iteration']}, dev split, greedy, the first "
            f"{config.eval_seeds} seeds of a cell:",
            {name: dev.get(name, "") for name in ("dev_return", "dev_success")},
        )
    yield ""
    yield "The test split was not played in training; `ragen-bench run` plays it."


def _table(title: str, numbers: Mapping[str, str]) -> Iterator[str]:
    yield title
    yield ""
    for name, text in numbers.items():
        if text:
            yield f"- {name}: {float(text):.4g}"


def _origin(config: TrainConfig, command: str | None) -> Iterator[str]:
    yield f"- Command: `{command or 'ragen_bench.starpo.training.train, in Python'}`"
    yield f"- Commit: {commit() or 'unknown'}"
    found = dict(versions())
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    yield f"- Versions: {', '.join(f'{name} {v}' for name, v in found.items())}"
    yield f"- Seed: {config.seed}"


def _settings(config: TrainConfig) -> Iterator[str]:
    base = configuration.to_dict(configuration.make(config.preset or None))
    named = f"the preset `{config.preset}`" if config.preset else "the defaults"
    changed = {
        name: (value, base[name])
        for name, value in configuration.to_dict(config).items()
        if value != base[name]
    }
    if not changed:
        yield f"They are {named}."
        return
    yield f"They are {named}, but for these; `ragen.json` has all."
    yield ""
    yield "| setting | here | there |"
    yield "|---|---|---|"
    for name, (here, there) in changed.items():
        yield f"| `{name}` | {_code(here)} | {_code(there)} |"


def _code(value: Any) -> str:
    return f"`{value!r}`".replace("|", r"\|")


def _licence(model: str) -> str | None:
    """Return what the card or the licence file of a folder says, None without."""
    readme, licence = Path(model) / "README.md", Path(model) / "LICENSE"
    if readme.is_file():
        head = readme.read_text("utf-8", errors="replace")
        front = head.split("---")[1] if head.startswith("---") else ""
        found = _LICENCE.search(front)
        if found is not None:
            return found[1]
    if licence.is_file():
        lines = licence.read_text("utf-8", errors="replace").split("\n")
        return next((line.strip() for line in lines if line.strip()), None)
    return None
