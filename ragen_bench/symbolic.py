"""`SymbolicEnv`: exact dynamics behind a text task, with splits, levels and solver.

The text that an agent reads and writes is `ragen_bench.text_env`'s business.
"""

import copy
import dataclasses
import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from ragen_bench.errors import (
    GenerationError,
    InvalidAction,
    InvalidSpec,
    UnknownName,
)
from ragen_bench.seeding import Stream

Split: TypeAlias = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")

P = TypeVar("P")
Observation: TypeAlias = NDArray[Any]
Step: TypeAlias = tuple[float, float, bool, bool]
"""What `SymbolicEnv.apply` returns: reward, scored reward, terminated, effective."""

_MAX_DRAWS = 100_000
_NOTHING_HAPPENED: Step = (0.0, 0.0, False, False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long an episode may be: constants of a cell, never of an instance."""

    max_actions: int
    """Actions over the whole episode."""
    max_turns: int
    """Replies over the whole episode."""
    max_actions_per_turn: int = 5
    """Actions that one reply may hold."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise InvalidSpec(
                    f"{field.name} is {value!r}, but must be an integer of at least 1"
                )

    def override(self, **given: int | None) -> "Limits":
        """Return these limits with those that are given and not None."""
        return dataclasses.replace(
            self, **{name: n for name, n in given.items() if n is not None}
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Level(Generic[P]):
    """One difficulty of an environment: parameters, limits and what it asks."""

    params: P
    limits: Limits
    summary: str
    """One line for people, such as ``"6x6, one box, at most 4 moves"``."""
    split_exempt: bool = False
    """The same few instances serve in every split."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Defaults of the text layer that belong to a preset, such as a penalty."""


def split_of(canonical: bytes) -> Split:
    """Return the split of an instance: 80 % train, 10 % dev, 10 % test.

    Args:
        canonical: The instance's canonical form, equal for instances that a
            symmetry of the task maps onto each other.
    """
    digest = hashlib.blake2b(canonical, digest_size=8, person=b"split").digest()
    bucket = int.from_bytes(digest, "little") % 10
    return "train" if bucket < 8 else "dev" if bucket == 8 else "test"


class SymbolicEnv(gymnasium.Env[Observation, int], Generic[P]):
    """A task with `Discrete` actions, exact values and no text protocol.

    ``reset(seed=s, options={"rep": r})`` picks the instance by ``s`` and the
    noise (slips, payouts) by ``(s, r)``.  ``step`` returns, in its info:

    - ``action_mask``: int8 [n], fresh, 1 where the action is legal now.
    - ``success``: bool, or None where the task has no such notion.
    - ``progress``: float in [0, 1].
    - ``effective``: whether the action changed the state.
    - ``illegal``: whether the mask forbade the action, which then did nothing.
    - ``scored_reward``: the part of the reward that scores count; where pay is
      random it is the expected pay of what was chosen.

    An illegal action costs its place in ``max_actions`` and changes nothing.  A
    step after the end raises `gymnasium.error.ResetNeeded`.

    A subclass sets ``levels`` and ``actions``, and writes the abstract methods.

    Args:
        level: Difficulty, 1 to 5.
        split: ``"train"``, ``"dev"`` or ``"test"``; decided by the hash of the
            instance's canonical form.
        preset: Named settings of the literature that replace the level's.
        max_actions: Overrides the level's limit.
        style: How `to_text` draws a state; one of ``styles``.
        symbols: Other glyphs, keyed by the names of `legend`.
        render_mode: None or ``"ansi"``.
        **params: Overrides of single fields of the level's parameters.

    Raises:
        InvalidSpec: A value breaks a rule.
        UnknownName: No such level, preset or parameter.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}

    levels: ClassVar[Mapping[int, Level[Any]]]
    presets: ClassVar[Mapping[str, Level[Any]]] = {}
    styles: ClassVar[tuple[str, ...]] = ("grid",)
    deterministic: bool = True
    """Whether an action's effect is certain for an agent that sees the state."""
    actions: tuple[str, ...]
    """Action names by index; an instance may have its own (see `begin`)."""
    min_turns: int = 1
    """Turns that an episode must allow; `configure` may set it."""

    def __init__(
        self,
        *,
        level: int = 1,
        split: Split = "train",
        preset: str | None = None,
        max_actions: int | None = None,
        style: str | None = None,
        symbols: Mapping[str, str] | None = None,
        render_mode: str | None = None,
        **params: Any,
    ) -> None:
        if split not in SPLITS:
            raise InvalidSpec(f"split is {split!r}, but must be one of {SPLITS}")
        if render_mode not in (None, "ansi"):
            raise InvalidSpec(f"render_mode is {render_mode!r}; only 'ansi' is drawn")
        self.level_spec: Level[P] = self._choose(level, preset)
        self.level = level
        self.preset = preset
        self.split: Split = split
        self.limits = self.level_spec.limits.override(max_actions=max_actions)
        self.params: P = self._override(self.level_spec.params, params)
        self.style = self.styles[0] if style is None else style
        if self.style not in self.styles:
            raise UnknownName.of("style", style, self.styles)
        self.symbols = dict(symbols or {})
        self.render_mode = render_mode
        self.seed = 0
        self.rep = 0
        self.instance: Any = None
        self.actions_taken = 0
        self.success: bool | None = None
        self.terminated = False
        self.truncated = False
        self._playing = False
        self.noise = Stream(0)
        self.configure()
        self.action_space = cast(gymnasium.Space[int], Discrete(len(self.actions)))
        self._max_actions = self.limits.max_actions
        self._all_are_legal = type(self).is_legal is SymbolicEnv.is_legal
        self._all_legal = np.ones(len(self.actions), dtype=np.int8)

    @classmethod
    def _choose(cls, level: int, preset: str | None) -> Level[Any]:
        if preset is not None:
            if preset not in cls.presets:
                raise UnknownName.of("preset", preset, cls.presets)
            return cls.presets[preset]
        if level not in cls.levels or type(level) is not int:
            known = ", ".join(map(str, cls.levels))
            raise InvalidSpec(f"level is {level!r}, but must be one of {known}")
        return cls.levels[level]

    @staticmethod
    def _override(params: P, given: Mapping[str, Any]) -> P:
        known = {field.name for field in dataclasses.fields(params)}  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                raise UnknownName.of("environment setting", name, known)
        return dataclasses.replace(params, **given) if given else params  # type: ignore[type-var]

    # What a subclass writes -------------------------------------------------

    def configure(self) -> None:
        """Prepare whatever depends on the parameters and not on an instance.

        It sets ``observation_space``, and ``actions`` where the class has none.
        """

    @abstractmethod
    def generate(self, stream: Stream) -> Any:
        """Return a new instance of this level as JSON-able values.

        It must be solvable and not solved; drawing only from the stream makes it
        the same everywhere.
        """

    @abstractmethod
    def canonical(self, instance: Any) -> bytes:
        """Return bytes that symmetric copies of the instance share."""

    def split_of_instance(self, instance: Any) -> Split:
        """Return the split of an instance: that of its canonical form by default."""
        return split_of(self.canonical(instance))

    @abstractmethod
    def begin(self, instance: Any) -> None:
        """Put the environment into the instance's first state."""

    @abstractmethod
    def apply(self, action: int) -> Step:
        """Play a legal action; noise is drawn from ``self.noise``.

        Returns:
            The reward, the scored reward, whether the episode terminated, and
            whether the state changed.  Sets ``self.success`` where it is decided.
        """

    @abstractmethod
    def observe(self) -> Observation:
        """Return the state, or the agent's information set, as a fresh array."""

    @abstractmethod
    def to_text(self) -> str:
        """Return the state as ASCII text, complete without any history."""

    def event(self) -> str:
        """Return what the last action brought about, if the text cannot show it."""
        return ""

    @abstractmethod
    def from_text(self, text: str) -> None:
        """Set the state from a text of `to_text`; the inverse of it."""

    @abstractmethod
    def rules(self) -> str:
        """Return goal and dynamics in sentences, with every number that matters."""

    def legend(self) -> Mapping[str, str]:
        """Return glyph to meaning, from the table that draws the text."""
        return {}

    @abstractmethod
    def dump(self) -> Any:
        """Return the part of the state that `begin` does not fix, JSON-able."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Set what `dump` returned, after `begin` on the same instance."""

    @abstractmethod
    def optimal_value(self) -> float:
        """Return the expected scored return from here under the best policy.

        The policy knows what the prompt reveals and sees every state; the actions
        left count.  Where the instance has hidden parts (a bandit's means), it is
        the value on this instance of the policy that is best on average.
        """

    @abstractmethod
    def optimal_action(self) -> int:
        """Return an action of that policy in the present state."""

    @abstractmethod
    def random_value(self) -> float:
        """Return the expected scored return from here of uniform random actions."""

    def optimal_cost(self) -> int | None:
        """Return the fewest actions to success from here, None if undefined."""
        return None

    def is_dead(self) -> bool:
        """Return whether success cannot be reached any more, limits apart."""
        return False

    def progress(self) -> float:
        """Return how far the episode has come, in [0, 1]; 1 on success."""
        return float(self.success is True)

    def action_mask(self) -> NDArray[np.int8]:
        """Return a fresh int8 array [n], 1 where the action is legal."""
        return self._all_legal.copy()

    def plan(self, max_actions: int, turns_left: int) -> list[int]:
        """Return the actions that an optimal player puts into its next reply.

        Args:
            max_actions: The most actions the reply may hold, at least 1.
            turns_left: Replies left, this one included.

        A deterministic task is played through by default, a stochastic one an
        action at a time.
        """
        if not self.deterministic:
            return [self.optimal_action()]
        scout = self.clone()
        actions: list[int] = []
        while len(actions) < max_actions:
            action = scout.optimal_action()
            actions.append(action)
            *_, terminated, truncated, _ = scout.step(action)
            if terminated or truncated:
                break
        return actions

    def turn_limited_value(self, turns_left: int, max_actions_per_turn: int) -> float:
        """Return the expected scored return from here of the best replies.

        It differs from `optimal_value` where the replies left are too few to answer
        every action's outcome, so that a reply must commit to several actions.
        """
        return self.optimal_value()

    def explain(self, plan: Sequence[int]) -> str:
        """Return a sentence or two of reasoning that leads to a plan from here.

        Solved examples and cloned players say it in their think block.
        """
        return ""

    def instance_digest(self) -> str:
        """Return 16 hex digits that symmetric copies of the instance share."""
        canonical = self.canonical(self.instance)
        return hashlib.blake2b(canonical, digest_size=8).hexdigest()

    # Gymnasium's interface --------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Picks the instance; without one the generator goes on.
            options: ``rep``, an integer of at least 0 that picks the noise, and
                ``instance``, which is played instead of a generated one.
        """
        super().reset(seed=seed)
        rep, instance = self._options(options)
        self.seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self.rep = rep
        self.instance = self.draw(self.seed) if instance is None else instance
        self._start()
        return self.observe(), {
            "action_mask": self.action_mask(),
            "success": self.success,
            "progress": self.progress(),
            "effective": False,
            "illegal": False,
            "scored_reward": 0.0,
        }

    def draw(self, seed: int) -> Any:
        """Return the instance that a seed picks in this cell and split.

        Raises:
            GenerationError: No instance of the split was found.
        """
        where = self.preset or str(self.level)
        stream = Stream(seed, type(self).__name__, where, self.split)
        if self.level_spec.split_exempt:
            return self.generate(stream)
        for _ in range(_MAX_DRAWS):
            instance = self.generate(stream)
            if self.split_of_instance(instance) == self.split:
                return instance
        raise GenerationError(
            f"{type(self).__name__} found no instance of split {self.split!r} in "
            f"{_MAX_DRAWS} draws for seed {seed}; use wider parameters"
        )

    def step(
        self, action: int
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play one action.

        Raises:
            ResetNeeded: The episode is over or has not begun.
            InvalidAction: The action is not an integer of the action space.
        """
        if not self._playing:
            raise ResetNeeded("the episode has ended or not begun: call reset first")
        if type(action) is not int or not 0 <= action < len(self.actions):
            action = self._as_action(action)
        self.actions_taken += 1
        legal = self._all_are_legal or self.is_legal(action)
        reward, scored, terminated, effective = (
            self.apply(action) if legal else _NOTHING_HAPPENED
        )
        truncated = not terminated and self.actions_taken >= self._max_actions
        if terminated or truncated:
            self._playing = False
            self.terminated = terminated
            self.truncated = truncated
        info = {
            "action_mask": self.action_mask(),
            "success": self.success,
            "progress": self.progress(),
            "effective": effective,
            "illegal": not legal,
            "scored_reward": scored,
        }
        return self.observe(), reward, terminated, truncated, info

    def is_legal(self, action: int) -> bool:
        """Return whether the present state allows an action of the action space."""
        return True

    def render(self) -> str | None:
        """Return the text of the state in mode ``"ansi"``, else None."""
        return self.to_text() if self.render_mode == "ansi" else None

    # Snapshots ----------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return all of the state as JSON-able values, random streams included."""
        return {
            "seed": self.seed,
            "rep": self.rep,
            "instance": copy.deepcopy(self.instance),
            "actions_taken": self.actions_taken,
            "success": self.success,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "playing": self._playing,
            "noise": self.noise.get_state(),
            "np_random": self.np_random.bit_generator.state,
            "core": self.dump(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `get_state` returned, in this or another env."""
        self.seed = state["seed"]
        self.rep = state["rep"]
        self.instance = copy.deepcopy(state["instance"])
        self._start()
        self.noise.set_state(state["noise"])
        self.restore(state["core"])
        self.np_random.bit_generator.state = dict(state["np_random"])
        self.actions_taken = state["actions_taken"]
        self.success = state["success"]
        self.terminated = state["terminated"]
        self.truncated = state["truncated"]
        self._playing = state["playing"]

    def clone(self) -> "SymbolicEnv[P]":
        """Return an independent copy in the same state."""
        return copy.deepcopy(self)

    @property
    def actions_left(self) -> int:
        """Actions that the episode still allows."""
        return self.limits.max_actions - self.actions_taken

    # Details ------------------------------------------------------------------

    def _start(self) -> None:
        self.noise = Stream(self.seed, "noise", self.rep)
        self.actions_taken = 0
        self.success = False
        self.terminated = False
        self.truncated = False
        self._playing = True
        self.begin(self.instance)

    @staticmethod
    def _options(options: Mapping[str, Any] | None) -> tuple[int, Any]:
        given = dict(options or {})
        rep = given.pop("rep", 0)
        instance = given.pop("instance", None)
        if type(rep) is not int or rep < 0:
            raise InvalidSpec(f"rep is {rep!r}, but must be an integer of at least 0")
        if given:
            raise UnknownName.of("reset option", next(iter(given)), ["rep", "instance"])
        return rep, instance

    def _as_action(self, action: Any) -> int:
        integral = isinstance(action, (int, np.integer)) and not isinstance(
            action, (bool, np.bool_)
        )
        if integral and 0 <= action < len(self.actions):
            return int(action)
        raise InvalidAction(
            f"action is {action!r}, but must be an integer from 0 to "
            f"{len(self.actions) - 1} ({', '.join(self.actions)})"
        )


def action_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple after checking that a reply can hold them.

    Raises:
        InvalidSpec: A name is empty, not ASCII, repeated, or has a separator.
    """
    for name in names:
        if not name.isascii() or not name.strip() or "|" in name or "<" in name:
            raise InvalidSpec(f"action name {name!r} must be ASCII without '|' or '<'")
    if len({name.casefold() for name in names}) != len(names):
        raise InvalidSpec(f"action names {tuple(names)!r} must differ, case apart")
    return tuple(names)
