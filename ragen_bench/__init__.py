"""ragen-bench: language-model agents measured on symbolic multi-turn tasks."""

import importlib
from typing import TYPE_CHECKING, Any

import ragen_bench.agents
import ragen_bench.envs
import ragen_bench.models  # noqa: F401
from ragen_bench.agent import Agent, Reply, Task
from ragen_bench.model import Completion, Conversation, Model, Sampling
from ragen_bench.registry import (
    make,
    make_agent,
    make_model,
    register,
    register_agent,
)
from ragen_bench.symbolic import Level, Limits, SymbolicEnv
from ragen_bench.text_env import TextEnv

if TYPE_CHECKING:
    from ragen_bench.board import Board
    from ragen_bench.checks import check_agent, check_env
    from ragen_bench.frames import load_runs
    from ragen_bench.records import Episode, RunConfig, Summary, Turn
    from ragen_bench.runner import run
    from ragen_bench.scoring import score
    from ragen_bench.starpo.public import train

__version__ = "0.1.0"

_LAZY = {
    "Board": "ragen_bench.board",
    "Episode": "ragen_bench.records",
    "RunConfig": "ragen_bench.records",
    "Summary": "ragen_bench.records",
    "Turn": "ragen_bench.records",
    "check_agent": "ragen_bench.checks",
    "check_env": "ragen_bench.checks",
    "load_runs": "ragen_bench.frames",
    "run": "ragen_bench.runner",
    "score": "ragen_bench.scoring",
    "train": "ragen_bench.starpo.public",
}
"""Names whose modules need pydantic or scipy, which a light import must not pull in."""

__all__ = [
    "Agent",
    "Board",
    "Completion",
    "Conversation",
    "Episode",
    "Level",
    "Limits",
    "Model",
    "Reply",
    "RunConfig",
    "Sampling",
    "Summary",
    "SymbolicEnv",
    "Task",
    "TextEnv",
    "Turn",
    "check_agent",
    "check_env",
    "load_runs",
    "make",
    "make_agent",
    "make_model",
    "register",
    "register_agent",
    "run",
    "score",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ragen_bench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
