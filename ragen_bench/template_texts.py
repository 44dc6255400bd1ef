"""The texts of new files; a name and a class stand in for ``$name`` and ``$cls``."""

ENV = '''\
"""`$cls`: reach a number by adding, subtracting and doubling."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from gymnasium.spaces import Box

from ragen_bench.errors import RecordError
from ragen_bench.registry import register
from ragen_bench.seeding import Stream
from ragen_bench.symbolic import Level, Limits, Observation, Step, SymbolicEnv

HIGHEST = 99
ADD, SUBTRACT, DOUBLE = range(3)

_TEXT = re.compile(r"Number: (\\d+)\\. Target: (\\d+)\\.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What instances a level has."""

    min_cost: int = 1
    """Fewest actions to the target, at least."""
    max_cost: int = 4
    """Fewest actions to the target, at most."""


class $cls(SymbolicEnv[Params]):
    """Change a number, 0 to `HIGHEST`, until it equals the target.

    Rewards: 1 on success, else 0.  Ends: the target is reached, or the limit of
    actions.  See `SymbolicEnv` for the arguments.
    """

    levels: ClassVar[Mapping[int, Level[Params]]] = {
        1: Level(
            params=Params(min_cost=1, max_cost=4),
            limits=Limits(max_actions=10, max_turns=5),
            summary="at most 4 actions",
        ),
        2: Level(
            params=Params(min_cost=5, max_cost=10),
            limits=Limits(max_actions=22, max_turns=11),
            summary="5 to 10 actions",
        ),
    }
    actions = ("Add", "Subtract", "Double")

    def configure(self) -> None:
        """Set the observation space: number and target."""
        self.observation_space = Box(0, HIGHEST, (2,), np.int16)
        self._number = self._target = 0

    # Instances and dynamics ---------------------------------------------------

    def generate(self, stream: Stream) -> dict[str, int]:
        """Return a start and a target that are so many actions apart."""
        while True:
            target = stream.below(HIGHEST + 1)
            start = stream.below(HIGHEST + 1)
            cost = fewest_actions(target)[start]
            if self.params.min_cost <= cost <= self.params.max_cost:
                return {"start": start, "target": target}

    def canonical(self, instance: dict[str, int]) -> bytes:
        """Return start and target; no symmetry maps instances onto each other."""
        return f"{instance['start']} {instance['target']}".encode()

    def begin(self, instance: dict[str, int]) -> None:
        """Put the number to its start."""
        self._number = instance["start"]
        self._target = instance["target"]

    def apply(self, action: int) -> Step:
        """Change the number."""
        before = self._number
        self._number = after(before, action)
        self.success = self._number == self._target
        reward = float(self.success)
        return reward, reward, self.success, self._number != before

    # What the agent sees ------------------------------------------------------

    def observe(self) -> Observation:
        """Return int16 [2]: number and target."""
        return np.array([self._number, self._target], dtype=np.int16)

    def to_text(self) -> str:
        """Return number and target."""
        return f"Number: {self._number}. Target: {self._target}."

    def from_text(self, text: str) -> None:
        """Set number and target from a text of `to_text`."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise RecordError(f"{text!r} does not read as {self.to_text()!r} does")
        self._number, self._target = map(int, found.groups())

    def rules(self) -> str:
        """Return goal and dynamics."""
        return (
            "Change the number until it equals the target. Add adds 1, Subtract "
            f"takes 1 away, Double doubles it. A result below 0 or above {HIGHEST} "
            "is not allowed; the number then stays as it is."
        )

    def explain(self, plan: Sequence[int]) -> str:
        """Return where a plan leads."""
        numbers = [self._number]
        for action in plan:
            numbers.append(after(numbers[-1], action))
        return f"{' -> '.join(map(str, numbers))}, and the target is {self._target}."

    # Snapshots ----------------------------------------------------------------

    def dump(self) -> int:
        """Return the number."""
        return self._number

    def restore(self, state: int) -> None:
        """Set the number."""
        self._number = state

    # Exact values -------------------------------------------------------------

    def optimal_cost(self) -> int | None:
        """Return the fewest actions to the target."""
        return fewest_actions(self._target)[self._number]

    def optimal_value(self) -> float:
        """Return 1 if the actions left suffice, else 0."""
        cost = fewest_actions(self._target)[self._number]
        return float(0 < cost <= self.actions_left)

    def optimal_action(self) -> int:
        """Return an action that leads nearest to the target."""
        cost = fewest_actions(self._target)
        return min(range(3), key=lambda action: cost[after(self._number, action)])

    def random_value(self) -> float:
        """Return the chance that random actions reach the target."""
        if self._number == self._target:
            return 0.0
        return chances(self._target, self.actions_left)[self._number]


def after(number: int, action: int) -> int:
    """Return the number after an action."""
    changed = (number + 1, number - 1, number * 2)[action]
    return changed if 0 <= changed <= HIGHEST else number


@functools.cache
def fewest_actions(target: int) -> tuple[int, ...]:
    """Return the fewest actions to a target, for every number."""
    cost = {target: 0}
    queue = [target]
    for reached in queue:
        for number in range(HIGHEST + 1):
            near = any(after(number, action) == reached for action in range(3))
            if near and number not in cost:
                cost[number] = cost[reached] + 1
                queue.append(number)
    return tuple(cost[number] for number in range(HIGHEST + 1))


@functools.cache
def chances(target: int, actions: int) -> tuple[float, ...]:
    """Return the chance that so many random actions reach a target, by number."""
    if actions == 0:
        return tuple(float(number == target) for number in range(HIGHEST + 1))
    later = chances(target, actions - 1)
    return tuple(
        1.0 if number == target else sum(later[after(number, a)] for a in range(3)) / 3
        for number in range(HIGHEST + 1)
    )


register("my/$cls", $cls)
'''

AGENT = '''\
"""`$cls`: names the actions of a task one after the other."""

from collections.abc import Mapping
from typing import Any

from ragen_bench.agent import Agent, Reply, Task
from ragen_bench.registry import register_agent


@register_agent("$name")
class $cls(Agent):
    """Each reply holds the next action of the task's list.

    For an agent that asks a language model take an argument ``model``, or derive from
    `ragen_bench.chat.ChatAgent`, which keeps the conversation.

    Args:
        first: Index of the action that an episode begins with.
    """

    def __init__(self, *, first: int = 0) -> None:
        self.first = first

    def reset(self, task: Task) -> None:
        """Begin an episode; ``task`` has the rules, the actions and a seed."""
        super().reset(task)
        self._next = self.first

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        """Answer an observation."""
        names = self.task.action_names
        name = names[self._next % len(names)]
        self._next += 1
        return Reply(text=f"<answer>{name}</answer>")
'''

ALGORITHM = '''\
"""$cls: each return less the median of its group."""

import torch

from ragen_bench.starpo.algorithm import Algorithm, by_trajectory, register_algorithm
from ragen_bench.starpo.experience import Experience


def centred(returns: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Return the advantage of each of N trajectories, [N] float.

    An estimator that gives tokens of a trajectory different advantages takes the place
    of `by_trajectory`, see `ragen_bench.starpo.algorithms.ppo`.

    Args:
        returns: [N] float, sum of the rewards of a trajectory.
        groups: [N] int64, which trajectories played the same instance.

    Example:
        >>> groups = torch.tensor([0, 0, 0, 7, 7])
        >>> centred(torch.tensor([0.0, 1.0, 5.0, 2.0, 2.0]), groups).tolist()
        [-1.0, 0.0, 4.0, 0.0, 0.0]
    """
    advantages = torch.empty_like(returns)
    for group in groups.unique():
        mine = groups == group
        advantages[mine] = returns[mine] - returns[mine].median()
    return advantages


def advantages(experience: Experience) -> torch.Tensor:
    """Return the advantages of what was played, [N] float."""
    return centred(experience.returns, experience.groups)


plain = Algorithm(estimate=by_trajectory(advantages), critic=False)

register_algorithm("$name", plain)
'''

BOARD = """\
# A board: a frozen list of episodes, and what an entry is free to choose.
# Raise the version whenever either changes.
schema = 1
name = "$name"
version = 1
title = "The first level of three tasks"
split = "test"
# Episodes on each seed.
repeats = 1

[rules]
prompts = ["full", "compact"]
max_shots = 4

# Each cell plays its first seeds; "skip = [3, 8]" leaves out seeds whose instance an
# earlier seed has shown already.
[[cells]]
env_id = "ragen/Bandit-v0"
level = 1
seeds = 10

[[cells]]
env_id = "ragen/FrozenLake-v0"
level = 1
seeds = 10

[[cells]]
env_id = "ragen/Sokoban-v0"
level = 1
seeds = 10
"""
