"""What there is: environments, agents, models and boards, as JSON-able values."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ragen_bench import board
from ragen_bench.entries import Entry, entries_of
from ragen_bench.registry import AGENTS, MODELS, core_class, env_ids

_MODELS: Mapping[str, str] = MappingProxyType(
    {
        "hf": "hf:FOLDER_OR_ID, a model of transformers in this process",
        "lm-eval": "lm-eval:TYPE, any model class of lm-evaluation-harness",
        "openai": "openai:NAME, a server that speaks OpenAI's chat protocol",
        "scripted": "scripted:FILE, replies that stand in a file",
        "tiny": "the small model inside the package",
        "vllm": "vllm:FOLDER_OR_ID, served by vLLM in this process",
    }
)
"""Their modules need packages that may be missing, so their docstrings are not read."""


def envs() -> list[dict[str, Any]]:
    """Return the environments, with the summaries of their levels and presets."""
    found = []
    for env_id in env_ids():
        core = core_class(env_id)
        found.append(
            {
                "name": env_id,
                "summary": _first_line(core),
                "levels": {str(n): level.summary for n, level in core.levels.items()},
                "presets": {n: level.summary for n, level in core.presets.items()},
            }
        )
    return found


def agents() -> list[dict[str, Any]]:
    """Return the agents, with what each is listed as."""
    found = []
    for name in AGENTS:
        agent = AGENTS.get(name)
        found.append(
            {
                "name": name,
                "summary": _first_line(agent),
                "class": getattr(agent, "agent_class", None),
                "privileged": getattr(agent, "privileged", False),
            }
        )
    return found


def models() -> list[dict[str, Any]]:
    """Return the prefixes of models, with what each serves; none is imported."""
    return [
        {"name": name, **({"summary": _MODELS[name]} if name in _MODELS else {})}
        for name in MODELS
    ]


def boards() -> list[dict[str, Any]]:
    """Return the boards that ship with the project, with entries and seals."""
    found = []
    for name in board.names():
        held = board.load(name)
        entries = entries_of(held)
        found.append(
            {
                "name": name,
                "summary": held.title,
                "version": held.version,
                "episodes": held.repeats * sum(len(p.seeds) for p in held.plans()),
                "entries": _named(entries.ranked),
                "outdated": _named(entries.outdated),
                "seal": _seal(held),
            }
        )
    return found


def _named(entries: Sequence[Entry]) -> str:
    """Return the names of entries, or "none"."""
    return ", ".join(entry.meta.name for entry in entries) or "none"


def _seal(held: board.Board) -> str:
    """Return what is known of a board's sealed seeds."""
    if held.seal is None:
        return "none"
    state = "revealed" if held.seal.salt else "not revealed"
    return f"{held.seal.commitment}, {state}"


LISTS: Mapping[str, Callable[[], list[dict[str, Any]]]] = MappingProxyType(
    {"envs": envs, "agents": agents, "models": models, "boards": boards}
)
"""What the command line lists, by its name there."""


def details(item: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that say what a listed thing is."""
    for key, value in item.items():
        if isinstance(value, Mapping):
            yield from (f"{name}  {text}" for name, text in value.items())
        elif key == "summary":
            yield value
        elif key != "name":
            yield f"{key}: {value}"


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
