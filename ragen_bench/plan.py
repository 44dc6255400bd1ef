"""What a run will play: settings, board and model defaults to one configuration.

Everything that can be refused is refused here, before any model is asked.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from ragen_bench.agent import Agent, AgentClass, Shot
from ragen_bench.board import Board, load
from ragen_bench.chat import ChatAgent
from ragen_bench.episode import task_of
from ragen_bench.errors import InvalidSpec, RagenError, UnknownName
from ragen_bench.model import Message, Model
from ragen_bench.prompts import sha256_of_messages
from ragen_bench.records import (
    CellPlan,
    EpisodeKey,
    RunConfig,
    first_fault,
    holds_half_character,
    plain_json,
    sha256_of,
)
from ragen_bench.registry import (
    AGENTS,
    core_class,
    make,
    make_agent,
    make_model,
    parameters_of,
    serving_arguments,
    setting_names,
    uses_model,
)
from ragen_bench.sealing import sealed_plans
from ragen_bench.shots import solved_examples
from ragen_bench.symbolic import SPLITS, Split
from ragen_bench.text_env import PromptLength, TextEnv

SAMPLING = ("context", "temperature", "top_p", "max_tokens")
"""Settings of a run that are handed to an agent that takes them."""

_OWN_SETTINGS = frozenset({"level", "split", "prompt", "render_mode", "core"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What somebody asks for; None leaves a choice to the board, model or default."""

    board: str | None = None
    """A board's name, or the path of a TOML file."""
    envs: Sequence[str] = ()
    """Cells as ``ID`` or ``ID:level``, in place of a board; one may stand alone."""
    split: Split | None = None
    seeds: int | None = None
    """Episodes a cell: seeds 0 to ``seeds - 1``; 8 by default."""
    agent: str | None = None
    model: str | None = None
    agent_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    env_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prompt: str | None = None
    context: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    shots: int | None = None
    repeats: int | None = None
    salt: str = ""
    """Moves noise and sampling; of a sealed board it is the secret that gives the
    sealed seeds, and no record holds it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A run that is ready to be played."""

    config: RunConfig
    board: Board | None
    model: Model | None
    serving: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Model arguments that change no result; `RunConfig.model_args` lacks them."""

    def agent(self) -> Agent:
        """Return a new agent."""
        return _build_agent(self.config, self.model)

    def env(self, env_id: str, level: int) -> TextEnv:
        """Return a new environment of a cell."""
        config = self.config
        return make(
            env_id,
            level=level,
            split=config.split,
            prompt=config.prompt,
            **config.env_args,
        )

    def shots(self, env_id: str, level: int) -> tuple[Shot, ...]:
        """Return the solved examples of a cell."""
        config = self.config
        if not config.shots:
            return ()
        settings = {"prompt": config.prompt, **config.env_args}
        return solved_examples(env_id, level, config.shots, settings)

    def opening(self, cell: CellPlan) -> list[Message]:
        """Return the first prompt of a cell's first episode.

        An agent without a prompt is taken to be asked with the bare rules.
        """
        env = self.env(cell.env_id, cell.level)
        key = EpisodeKey(
            cell.env_id, cell.level, self.config.split, cell.seeds[0], rep=0
        )
        observation, info = env.reset(seed=key.seed)
        agent = self.agent()
        if isinstance(agent, ChatAgent):
            shots = self.shots(cell.env_id, cell.level)
            rules, salt = info["rules"], self.config.salt
            agent.reset(task_of(key, env, rules, shots, agent, salt))
            return agent.messages(observation)[0]
        return [
            Message(role="system", content=info["rules"]),
            Message(role="user", content=observation),
        ]

    def prompt_hashes(self) -> dict[str, str]:
        """Return the hash of each cell's first prompt."""
        return {
            cell.cell: sha256_of_messages(self.opening(cell))
            for cell in self.config.cells
        }

    def model_facts(self) -> dict[str, Any]:
        """Return what the model says of itself."""
        return dict(self.model.describe()) if self.model else {}


def resolve(settings: Settings, *, load_model: bool = True) -> Plan:
    """Return the plan that settings stand for.

    Args:
        settings: What is asked for.
        load_model: Whether to load the model; without it, `Plan.model` is None and
            the model's own defaults are not known.

    Raises:
        RagenError: A setting is refused; the message says which and why.
    """
    _refuse_half_characters(settings)
    board = load(settings.board) if settings.board else None
    if board is not None and board.seal is None and settings.salt:
        raise InvalidSpec(
            f"board {board.name!r} has no seal, so that a salt would only move its "
            "noise and make the run unrankable; leave --salt out, or give --board the "
            "file that has the seal"
        )
    cells = _cells(settings, board)
    commitment = board.seal.commitment if board and board.seal else None
    sealed = commitment if settings.salt else None
    if sealed is not None:
        settings = dataclasses.replace(settings, salt="")
    env_args = dict(board.env_args) if board else dict(settings.env_args)
    _check_env_args(cells, env_args)
    agent = settings.agent
    if agent is not None:
        AGENTS.get(agent)
    model: Model | None = None
    spec = settings.model
    if agent is None or uses_model(agent):
        spec = spec or "tiny"
        if load_model:
            model = make_model(spec, **settings.model_args)
    elif spec is not None:
        raise InvalidSpec(f"agent {agent!r} uses no model; leave --model {spec!r} out")
    elif settings.model_args:
        raise InvalidSpec(f"agent {agent!r} uses no model; leave --model-arg out")
    defaults = model.defaults if model else {}
    settings, serving = _apart(settings, spec)
    config = _configure(settings, board, cells, env_args, spec, defaults)
    config = config.model_copy(update={"sealed": sealed})
    if board is not None:
        breaches = board.breaches(config, cells if sealed else None)
        config = config.model_copy(update={"breaches": breaches})
    plan = Plan(config=config, board=board, model=model, serving=serving)
    with _refusing("env_args", env_args):
        for cell in cells:
            _check_default_action(plan.env(cell.env_id, cell.level), cell.seeds)
    if model is not None or spec is None:
        with _refusing("agent_args", settings.agent_args):
            plan.agent()
    return plan


def _refuse_half_characters(settings: Settings) -> None:
    """Refuse what no record can hold; a board stands in it by its own name alone."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name != "board" and holds_half_character(value):
            raise InvalidSpec(
                f"{field.name} is {value!r:.120}, but must be text that UTF-8 can "
                "hold; it has half a character"
            )


def _apart(settings: Settings, spec: str | None) -> tuple[Settings, Mapping[str, Any]]:
    """Return settings without the model arguments that change no result, and these."""
    if spec is None or not settings.model_args:
        return settings, {}
    names = serving_arguments(spec)
    given = settings.model_args
    kept = {name: value for name, value in given.items() if name not in names}
    serving = {name: value for name, value in given.items() if name in names}
    return (
        dataclasses.replace(settings, model_args=kept),
        _plain("model_args", serving),
    )


@contextlib.contextmanager
def _refusing(name: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Turn what a constructor raises over somebody's arguments into a refusal."""
    try:
        yield
    except RagenError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        if not given:
            raise
        # Gymnasium wraps what a constructor raised into a longer message.
        fault = error.__cause__ or error
        raise InvalidSpec(f"{name} {dict(given)!r} cannot be used: {fault}") from error


def _configure(
    settings: Settings,
    board: Board | None,
    cells: tuple[CellPlan, ...],
    env_args: Mapping[str, Any],
    spec: str | None,
    defaults: Mapping[str, Any],
) -> RunConfig:
    agent = settings.agent or defaults.get("agent", "think_act")
    sampling = _sampling(settings, agent, defaults)
    split = board.split if board else settings.split or "test"
    if split not in SPLITS:
        raise InvalidSpec(f"split is {split!r}, but must be one of {SPLITS}")
    prompt = _prompt_length(settings.prompt or defaults.get("prompt", "full"))
    shots = defaults.get("shots", 0) if settings.shots is None else settings.shots
    repeats = settings.repeats
    if repeats is None:
        repeats = board.repeats if board else 1
    for name, value, least in (("shots", shots, 0), ("repeats", repeats, 1)):
        if type(value) is not int or value < least:
            raise InvalidSpec(f"{name} is {value!r}, but must be at least {least}")
    try:
        return RunConfig(
            board=board.name if board else None,
            board_version=board.version if board else None,
            split=split,
            cells=cells,
            repeats=repeats,
            agent=agent,
            agent_args=_plain("agent_args", settings.agent_args),
            agent_class=_class_of(agent, defaults),
            model=spec,
            model_args=_plain("model_args", settings.model_args),
            env_args=_plain("env_args", env_args),
            prompt=prompt,
            shots=shots,
            salt=settings.salt,
            **sampling,
        )
    except ValidationError as error:
        raise InvalidSpec(first_fault(error)) from error


def _plain(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as ``run.json`` will give them back."""
    try:
        plain: dict[str, Any] = plain_json(dict(arguments))
    except (TypeError, ValueError) as error:
        raise InvalidSpec(f"{name} must be JSON, for run.json: {error}") from error
    return plain


def _prompt_length(text: str) -> PromptLength:
    for known in get_args(PromptLength):
        if text == known:
            length: PromptLength = known
            return length
    raise UnknownName.of("prompt length", text, get_args(PromptLength))


def _sampling(
    settings: Settings, agent: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the sampling settings that the agent takes, resolved."""
    cls = AGENTS.get(agent)
    taken = parameters_of(cls)
    suggested = {**defaults.get("sampling", {}), **defaults}
    resolved: dict[str, Any] = {}
    for name in SAMPLING:
        asked = getattr(settings, name)
        if name not in taken:
            if asked is not None:
                raise InvalidSpec(f"agent {agent!r} takes no {name}; leave it out")
            continue
        value = suggested.get(name) if asked is None else asked
        if value is None and name == "max_tokens":
            value = getattr(cls, "default_max_tokens", None)
        if value is not None:
            resolved[name] = value
    return resolved


def _build_agent(config: RunConfig, model: Model | None) -> Agent:
    taken = parameters_of(AGENTS.get(config.agent))
    sampling = {name: getattr(config, name) for name in SAMPLING if name in taken}
    clash = sorted(sampling.keys() & config.agent_args.keys())
    if clash:
        raise InvalidSpec(f"{clash[0]} is a setting of the run, not an agent argument")
    return make_agent(config.agent, model, **sampling, **config.agent_args)


def _class_of(agent: str, defaults: Mapping[str, Any]) -> AgentClass:
    cls = AGENTS.get(agent)
    if getattr(cls, "privileged", False):
        return "solver"
    declared: AgentClass = getattr(cls, "agent_class", "solver")
    return "trained" if declared == "llm" and defaults.get("trained") else declared


def _cells(settings: Settings, board: Board | None) -> tuple[CellPlan, ...]:
    if board is not None:
        for name in ("envs", "seeds", "split", "env_args"):
            if getattr(settings, name) not in (None, (), [], {}):
                raise InvalidSpec(
                    f"board {board.name!r} fixes {name}; leave it out, or give --env "
                    "in place of --board"
                )
        if board.seal is not None and settings.salt:
            return sealed_plans(board, settings.salt)
        return board.plans()
    envs = [settings.envs] if isinstance(settings.envs, str) else settings.envs
    if not envs:
        raise InvalidSpec("nothing to play: give --board NAME or --env ID[:level]")
    seeds = 8 if settings.seeds is None else settings.seeds
    if type(seeds) is not int or seeds < 1:
        raise InvalidSpec(f"seeds is {seeds!r}, but must be at least 1")
    return tuple(
        CellPlan(env_id=env_id, level=level, seeds=tuple(range(seeds)))
        for env_id, level in dict.fromkeys(map(split_cell, envs))
    )


def split_cell(text: str) -> tuple[str, int]:
    """Return environment and level of ``ID`` or ``ID:level``; level 1 by default.

    The id may be ``package.module:ns/Name-v0``, which imports the module.

    Raises:
        UnknownName: No such environment.
        InvalidSpec: The environment has no such level.
    """
    env_id, _, last = text.rpartition(":")
    level = 1
    if env_id and (last.isdecimal() or "/" not in last):
        if not last.isdecimal():
            raise InvalidSpec(f"level {last!r} of {text!r} must be a whole number")
        level = int(last)
    else:
        env_id = text
    core = core_class(env_id)
    if level not in core.levels:
        known = ", ".join(map(str, core.levels))
        raise InvalidSpec(f"{env_id} has no level {level}; it has {known}")
    return env_id, level


def _check_env_args(cells: Sequence[CellPlan], env_args: Mapping[str, Any]) -> None:
    for cell in cells:
        known = setting_names(cell.env_id)
        for name in env_args:
            if name in _OWN_SETTINGS:
                raise InvalidSpec(
                    f"{name} is a setting of the run, not an env argument"
                )
            if name not in known and name != "preset":
                raise UnknownName.of(f"setting of {cell.env_id}", name, known)
        if env_args.get("preset") is not None and cell.level != 1:
            raise InvalidSpec(
                f"preset takes the place of the level, but {cell.cell} asks for level "
                f"{cell.level}; give {cell.env_id} alone"
            )


def _check_default_action(env: TextEnv, seeds: Sequence[int]) -> None:
    """Refuse a default action that an instance lacks, before anybody plays.

    Raises:
        UnknownName: An instance has no such action.
    """
    if env.invalid.kind == "default":
        # Instances can have actions of their own only where the class names none.
        named = hasattr(type(env.core), "actions")
        for seed in seeds[:1] if named else seeds:
            env.reset(seed=seed)


def default_folder(config: RunConfig) -> Path:
    """Return ``runs/BOARD-AGENT-MODEL``, safe on any file system."""
    name = "-".join(
        [
            config.board or "custom",
            config.agent,
            *([config.model] if config.model else []),
        ]
    )
    if config.board is None or config.shots or config.prompt != "full":
        # Other settings than a board's plain ones get a folder of their own.
        name = f"{name}-{sha256_of(config.model_dump(mode='json'))[:8]}"
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    if len(safe) > 120:
        safe = f"{safe[:111]}-{sha256_of(name)[:8]}"
    return Path("runs") / safe.strip("._")
