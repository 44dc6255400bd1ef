"""Who a run says played it: names that are ours, and the class that goes with them.

The class of an agent that does not come with ragen-bench is its own word.
"""

import functools
import importlib.resources
import json
import re
from collections.abc import Mapping

from ragen_bench.records import RunConfig
from ragen_bench.registry import AGENTS, own_agent
from ragen_bench.verifying.faults import Faults, shown

_AGENT = re.compile(r"[A-Za-z0-9_.]{1,200}(:[A-Za-z0-9_.]{1,200})?", re.ASCII)
_CLASSES: Mapping[str, frozenset[str]] = {
    "llm": frozenset({"llm", "trained"}),
    "human": frozenset({"human"}),
    "solver": frozenset({"solver"}),
}
_NEVER_TRAINED = frozenset({"scripted", "openai", "lm-eval"})
"""Models that come without a ``ragen.json``, which alone can call one trained."""


def check_player(config: RunConfig, faults: Faults) -> None:
    """Note what cannot be true of agent, model and class."""
    agent = config.agent
    if not _AGENT.fullmatch(agent) or (":" not in agent and agent not in set(AGENTS)):
        message = f"{shown(agent)!r} names no agent"
        faults.add("bad_name", "run.json", message)
    model = config.model
    if model is not None and (len(model) > 500 or not model.isprintable()):
        faults.add("bad_name", "run.json", f"model is {shown(model)!r}")
    if agent.startswith("ragen_bench."):
        faults.add("bad_name", "run.json", f"agent is {shown(agent)!r}: use its name")
    own = own_agent(agent)
    if own is not None:
        kind = "solver" if own.privileged else own.agent_class
        if config.agent_class not in _CLASSES[kind]:
            message = f"class is {config.agent_class!r}, but {agent} is of {kind!r}"
            faults.add("class_mismatch", "run.json", message)
        elif kind == "llm":
            _check_trained(config, faults)
        if (config.model is not None) != (kind == "llm"):
            message = f"model is {shown(config.model)!r} for agent {agent}"
            faults.add("class_mismatch", "run.json", message)


def _check_trained(config: RunConfig, faults: Faults) -> None:
    """Compare whether a model is called trained with what the package says of it."""
    prefix = (config.model or "").partition(":")[0]
    if prefix == "tiny":
        trained = _tiny_is_trained()
    elif prefix in _NEVER_TRAINED:
        trained = False
    else:  # a folder's own ragen.json says it, which is not here
        return
    wanted = "trained" if trained else "llm"
    if config.agent_class != wanted:
        message = f"class is {config.agent_class!r}, but with model "
        message += f"{shown(config.model)!r} it must be {wanted!r}"
        faults.add("class_mismatch", "run.json", message)


@functools.cache
def _tiny_is_trained() -> bool:
    files = importlib.resources.files("ragen_bench") / "models" / "tiny"
    return bool(json.loads((files / "ragen.json").read_bytes()).get("trained"))
