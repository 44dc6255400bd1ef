"""`Case`: an environment under test, and how every check plays it."""

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias

import numpy as np

from ragen_bench.errors import CheckFailed
from ragen_bench.seeding import Stream
from ragen_bench.symbolic import SymbolicEnv
from ragen_bench.text_env import TextEnv

Layer: TypeAlias = TextEnv | SymbolicEnv[Any]
Return: TypeAlias = dict[str, Any]
"""What one reset or step returned, by the name of each part."""

_ODD_REPLIES = (
    "",
    "I would rather not say.",
    "<answer>No such action</answer>",
    "<think>unfinished <answer>",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An environment at one level, and the seeds to check it with."""

    label: str
    """What a message calls it, such as ``"ragen/Sokoban-v0:2"``."""
    build: Callable[..., TextEnv]
    """Returns a new environment; takes the settings of `TextEnv`."""
    seeds: tuple[int, ...]

    def text(self, **settings: Any) -> TextEnv:
        """Return a new text environment."""
        return self.build(**settings)

    def core(self, **settings: Any) -> SymbolicEnv[Any]:
        """Return a new environment without its text layer."""
        return self.build(**settings).core

    def layers(self) -> tuple[Layer, Layer]:
        """Return a new environment of either layer, unconnected."""
        return self.text(), self.core()

    def pairs(self) -> tuple[tuple[Layer, Layer], tuple[Layer, Layer]]:
        """Return two new environments of either layer, all unconnected."""
        return (self.text(), self.text()), (self.core(), self.core())


class Player:
    """Plays one episode at random and keeps whatever is returned.

    ``raw`` has the returns themselves, ``returns`` copies that were made at once.

    Args:
        env: Either layer of an environment.
        seed: The episode, and the player's own choices.
        rep: The noise.
    """

    def __init__(self, env: Layer, seed: int, rep: int = 0) -> None:
        self.env = env
        self.seed = seed
        self.over = False
        self.raw: list[Return] = []
        self.returns: list[Return] = []
        self._stream = Stream(seed, "check")
        observation, info = env.reset(seed=seed, options={"rep": rep})
        self._keep({"observation": observation, "info": info})

    def fork(self, env: Layer) -> "Player":
        """Return a player who goes on from here in a copy of the environment."""
        other = copy.copy(self)
        other.env = env
        other.raw = []
        other.returns = []
        other._stream = copy.deepcopy(self._stream)
        return other

    def step(self) -> Return:
        """Play one random action or reply and return what came back."""
        returned = play(self.env, choose(self.env, self._stream))
        self.over = returned["terminated"] or returned["truncated"]
        self._keep(returned)
        if not self.over and len(self.returns) > longest(self.env):
            raise CheckFailed(
                f"seed {self.seed}: {layer_name(self.env)} did not end within "
                f"{longest(self.env)} steps"
            )
        return returned

    def finish(self) -> list[Return]:
        """Play to the end and return copies of all that was returned."""
        while not self.over:
            self.step()
        return self.returns

    def _keep(self, returned: Return) -> None:
        self.raw.append(returned)
        self.returns.append(copy.deepcopy(returned))


def play(env: Layer, choice: Any) -> Return:
    """Play one action or reply and return what came back."""
    names = ("observation", "reward", "terminated", "truncated", "info")
    return dict(zip(names, env.step(choice), strict=True))


def choose(env: Layer, stream: Stream) -> int | str:
    """Return a random action, or a random reply that is mostly well-formed."""
    if isinstance(env, SymbolicEnv):
        return stream.below(len(env.actions))
    kind = stream.below(10)
    if kind == 0:
        return stream.choice(_ODD_REPLIES)
    most = env.limits.max_actions_per_turn
    count = most + 1 if kind == 1 else 1 + stream.below(most)
    return answer(stream.choice(env.action_names) for _ in range(count))


def answer(names: Iterable[str]) -> str:
    """Return the reply that names these actions."""
    return f"<answer>{' || '.join(names)}</answer>"


def longest(env: Layer) -> int:
    """Return the most steps that an episode may take."""
    if isinstance(env, SymbolicEnv):
        return env.limits.max_actions
    return env.limits.max_turns + env.invalid.retries


def core_of(env: Layer) -> SymbolicEnv[Any]:
    """Return the environment without its text layer."""
    return env if isinstance(env, SymbolicEnv) else env.core


def layer_name(env: Layer) -> str:
    """Return what a message calls this layer."""
    return "the core" if isinstance(env, SymbolicEnv) else "the text layer"


def expect(condition: object, message: str) -> None:
    """Fail the running check unless the condition holds."""
    if not condition:
        raise CheckFailed(message)


def expect_same(first: Any, second: Any, message: str) -> None:
    """Fail the running check where two values differ in type or value."""
    found = difference(first, second)
    if found is not None:
        raise CheckFailed(f"{message}: {found}")


def difference(first: Any, second: Any, path: str = "") -> str | None:
    """Return where two values differ and how, None where they are equal.

    Types must be the same, arrays equal bit for bit, and NaN differs from itself.
    """
    where = f"{path} is " if path else ""
    if type(first) is not type(second):
        return (
            f"{where}{_short(first)} ({type(first).__name__}), "
            f"then {_short(second)} ({type(second).__name__})"
        )
    if isinstance(first, dict):
        shared = [key for key in first if key in second]
        pairs = [(f"{path}[{key!r}]", first[key], second[key]) for key in shared]
        return _first_difference(pairs) or _count(path, first.keys(), second.keys())
    if isinstance(first, (list, tuple)):
        pairs = [
            (f"{path}[{i}]", a, b)
            for i, (a, b) in enumerate(zip(first, second, strict=False))
        ]
        return _first_difference(pairs) or _count(
            path, range(len(first)), range(len(second))
        )
    if isinstance(first, np.ndarray):
        same = first.dtype == second.dtype and np.array_equal(first, second)
    else:
        same = bool(first == second)
    return None if same else f"{where}{_short(first)}, then {_short(second)}"


def _first_difference(pairs: Iterable[tuple[str, Any, Any]]) -> str | None:
    found = (difference(a, b, path) for path, a, b in pairs)
    return next((text for text in found if text is not None), None)


def _count(path: str, first: Collection[Any], second: Collection[Any]) -> str | None:
    """Return how the keys of two equal-valued collections differ, if they do."""
    if list(first) == list(second):
        return None
    if set(first) == set(second):
        return f"{path} is in another order"
    return f"{path} has {len(first)} entries, then {len(second)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
