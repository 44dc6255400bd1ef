"""Names to things: one registry class for agents and models; Gymnasium's for envs."""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Generic, TypeVar

import gymnasium

from ragen_bench.agent import Agent
from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.model import Model
from ragen_bench.symbolic import SymbolicEnv
from ragen_bench.text_env import SETTINGS, TextEnv

T = TypeVar("T")
L = TypeVar("L", bound=Callable[..., Any])
_ENTRY = "ragen_bench.text_env:TextEnv"


class Registry(Generic[T]):
    """Names of one kind of thing, each ``"module:attribute"`` or the thing itself."""

    def __init__(self, kind: str, listing: str) -> None:
        self.kind = kind
        self.listing = listing
        self._items: dict[str, str | T] = {}

    def add(self, name: str, item: str | T) -> None:
        """Register a name.

        Raises:
            InvalidSpec: The name is taken by something else.
        """
        taken = self._items.get(name)
        if taken is not None and _owner(taken) != _owner(item):
            raise InvalidSpec(
                f"{self.kind} {name!r} is {_owner(taken)} already; "
                f"{_owner(item)} needs another name"
            )
        self._items[name] = item

    def get(self, name: str) -> T:
        """Return what a registered name or a ``"module:attribute"`` stands for.

        Raises:
            UnknownName: Nothing is found under that name.
        """
        item: str | T
        if name in self._items:
            item = self._items[name]
        elif ":" in name:
            item = name
        else:
            raise UnknownName.of(self.kind, name, self._items, f"see {self.listing}")
        return self._load(item) if isinstance(item, str) else item

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))

    def _load(self, entry_point: str) -> T:
        module, _, attribute = entry_point.partition(":")
        what = f"{self.kind} {entry_point!r}"
        found: T | None = getattr(load_module(module, what), attribute, None)
        if not callable(found):
            raise UnknownName(
                f"no {what}: module {module!r} has no {attribute!r} that can be called"
            )
        return found


def load_module(name: str, what: str) -> ModuleType:
    """Return a module that somebody named.

    Args:
        name: The module's full name.
        what: What is looked up in it, such as ``"agent 'mine:Mine'"``.

    Raises:
        UnknownName: There is no such module; one that lacks another module says so
            itself.
    """
    try:
        if all(part.isidentifier() for part in name.split(".")):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
    raise UnknownName(
        f"no {what}: there is no module {name!r}; is its folder on PYTHONPATH?"
    )


def _owner(item: object) -> str:
    if isinstance(item, str):
        return item
    return f"{getattr(item, '__module__', '?')}:{getattr(item, '__qualname__', item)}"


AGENTS: Registry[Callable[..., Agent]] = Registry("agent", "ragen-bench ls agents")
MODELS: Registry[Callable[..., Model]] = Registry("model", "ragen-bench ls models")


@functools.lru_cache(maxsize=256)
def parameters_of(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return what a class or function takes; each episode asks for its agent's."""
    return inspect.signature(maker).parameters


def register_agent(name: str) -> Callable[[type[Agent]], type[Agent]]:
    """Return a class decorator that registers an agent under a name."""

    def register_class(cls: type[Agent]) -> type[Agent]:
        AGENTS.add(name, cls)
        return cls

    return register_class


def make_agent(name: str, model: Model | None = None, /, **arguments: Any) -> Agent:
    """Return a new agent, for one episode at a time.

    Args:
        name: A registered name, or ``"package.module:Class"``.
        model: Handed to an agent that takes a ``model``.
        **arguments: The agent's own.

    Raises:
        UnknownName: No such agent, or no such argument.
        InvalidSpec: The agent needs a model and has none.
    """
    cls = AGENTS.get(name)
    parameters = parameters_of(cls)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in arguments:
        if not open_ended and (key not in parameters or key == "model"):
            raise UnknownName.of(
                f"argument of agent {name!r}", key, set(parameters) - {"model"}
            )
    if "model" in parameters:
        if model is None and parameters["model"].default is inspect.Parameter.empty:
            raise InvalidSpec(f"agent {name!r} needs a model: give --model")
        arguments["model"] = model
    agent = cls(**arguments)
    if not isinstance(agent, Agent):
        raise InvalidSpec(f"agent {name!r} is {type(agent).__name__}, not an Agent")
    return agent


def own_agent(name: str) -> Any:
    """Return the class of an agent that comes with ragen-bench, else None."""
    if ":" in name or name not in set(AGENTS):
        return None
    found = AGENTS.get(name)
    return found if found.__module__.startswith("ragen_bench.agents.") else None


def uses_model(name: str) -> bool:
    """Return whether an agent takes a model."""
    return "model" in parameters_of(AGENTS.get(name))


def make_model(spec: str, /, **arguments: Any) -> Model:
    """Return the model that ``"PREFIX:REST"`` or a bare name stands for.

    Args:
        spec: Such as ``"tiny"``, ``"hf:folder"`` or ``"scripted:replies.jsonl"``.
        **arguments: What ``--model-arg`` gives.

    Raises:
        UnknownName: No such prefix or argument.
        MissingExtra: The model's package is not installed.
    """
    prefix, _, rest = spec.partition(":")
    load = MODELS.get(prefix)
    parameters = parameters_of(load)
    known = {key for key, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in arguments:
        if key not in known and (key in parameters or not open_ended):
            raise UnknownName.of(f"argument of model {prefix!r}", key, known)
    return load(rest, **arguments)


def serving(*names: str) -> Callable[[L], L]:
    """Return a decorator of a model's loader: these arguments change no result.

    They say how a model is reached and how long it is waited for.  A run goes on with
    others, and a replay cache knows nothing of them.
    """

    def mark(load: L) -> L:
        vars(load)["serving_arguments"] = frozenset(names)
        return load

    return mark


def serving_arguments(spec: str) -> frozenset[str]:
    """Return the arguments of a model that change no result; see `serving`.

    Raises:
        UnknownName: No such prefix.
    """
    load = MODELS.get(spec.partition(":")[0])
    names: frozenset[str] = getattr(load, "serving_arguments", frozenset())
    return names


def register(
    name: str, core: str | type[SymbolicEnv[Any]], *, version: int = 0
) -> None:
    """Register a task in Gymnasium, with its text layer and bare.

    ``register("ragen/Maze", Maze)`` makes ``ragen/Maze-v0`` and
    ``ragen/Maze-core-v0``.  Registering the same task again does nothing.

    Args:
        name: Namespace and name.
        core: The class, or ``"module:Class"``; it must be importable by that.
        version: Raise it when dynamics, reward or text change.

    Raises:
        InvalidSpec: The id is taken by another class.
    """
    entry = core if isinstance(core, str) else f"{core.__module__}:{core.__qualname__}"
    text_id, core_id = f"{name}-v{version}", f"{name}-core-v{version}"
    taken = gymnasium.registry.get(text_id)
    if taken is not None:
        if taken.kwargs.get("core") == entry:
            return
        raise InvalidSpec(
            f"environment {text_id!r} is {taken.kwargs.get('core')} already; "
            f"{entry} needs another name or version"
        )
    gymnasium.register(id=text_id, entry_point=_ENTRY, kwargs={"core": entry})
    gymnasium.register(id=core_id, entry_point=entry)


def env_ids() -> list[str]:
    """Return the ids of all registered text environments of ours, sorted."""
    return sorted(
        id for id, spec in gymnasium.registry.items() if spec.entry_point == _ENTRY
    )


def core_class(env_id: str) -> type[SymbolicEnv[Any]]:
    """Return the core class of a text environment.

    Raises:
        UnknownName: No such environment.
    """
    from ragen_bench.text_env import load_core

    return load_core(find(env_id).kwargs["core"])


def find(env_id: str) -> gymnasium.envs.registration.EnvSpec:
    """Return Gymnasium's spec of one of our text environments.

    Args:
        env_id: Such as ``"ragen/Bandit-v0"`` or ``"package.module:ns/Name-v0"``,
            which imports the module first.

    Raises:
        UnknownName: No such environment, or one that has no text layer of ours.
    """
    module, colon, bare = env_id.rpartition(":")
    if colon:
        load_module(module, f"environment {env_id!r}")
    spec = gymnasium.registry.get(bare)
    if spec is None or spec.entry_point != _ENTRY:
        raise UnknownName.of("environment", bare, env_ids(), "see ragen-bench ls envs")
    return spec


def make(env_id: str, **settings: Any) -> TextEnv:
    """Return a text environment, without Gymnasium's wrappers.

    Args:
        env_id: A registered id; ``"package.module:ns/Name-v0"`` imports first.
        **settings: Those of `TextEnv` and of the task.

    Raises:
        UnknownName: No such environment or setting.
        InvalidSpec: A setting breaks a rule.
    """
    spec = find(env_id)
    env = gymnasium.make(spec, disable_env_checker=True, **settings).unwrapped
    assert isinstance(env, TextEnv)
    return env


def setting_names(env_id: str) -> Mapping[str, str]:
    """Return the settings of an environment: name to ``"text"`` or ``"core"``."""
    import dataclasses

    core = core_class(env_id)
    level = next(iter(core.levels.values()))
    names = dict.fromkeys(sorted(SETTINGS), "text")
    fields = (field.name for field in dataclasses.fields(level.params))
    names.update(dict.fromkeys([*fields, "max_actions", "style", "symbols"], "core"))
    return names
