"""A small task, a model and agents of every temper, for the tests of everything else.

Processes that a test starts may import it too: ``toy:toy/Corridor-v0`` is the task,
``toy:Walker`` an agent.
"""

import asyncio
import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box

import ragen_bench as rb
from ragen_bench.errors import ContextOverflow, ProviderError, RecordError
from ragen_bench.model import Usage
from ragen_bench.registry import MODELS
from ragen_bench.seeding import Stream
from ragen_bench.symbolic import Observation, Step

CELL = "toy/Corridor-v0"
LEFT, RIGHT, WAIT = range(3)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a level fixes."""

    length: int = 5
    slip: float = 0.0
    """Chance that a step to the right does not come about."""
    pays: bool = False
    """No goal: each move to the right pays its tenth, and success is unknown."""
    fault_at: int | None = None
    """The position from which a move raises, as a bug would."""


class Corridor(rb.SymbolicEnv[Shape]):
    """Walk right to the end of a corridor; at its left end one must not go left."""

    levels = {
        1: rb.Level(
            params=Shape(),
            limits=rb.Limits(max_actions=10, max_turns=5, max_actions_per_turn=3),
            summary="five cells",
        ),
        2: rb.Level(
            params=Shape(slip=0.5),
            limits=rb.Limits(max_actions=10, max_turns=5, max_actions_per_turn=3),
            summary="five cells, slippery",
        ),
        3: rb.Level(
            params=Shape(pays=True),
            limits=rb.Limits(max_actions=10, max_turns=5, max_actions_per_turn=3),
            summary="five cells that pay",
        ),
    }
    presets = {
        "strict": rb.Level(
            params=Shape(),
            limits=rb.Limits(max_actions=4, max_turns=2, max_actions_per_turn=2),
            summary="four actions, a penalty",
            settings={"format_penalty": -0.25, "invalid": "terminate"},
        )
    }
    actions = ("Left", "Right", "Wait")

    def configure(self) -> None:
        self.deterministic = not self.params.slip
        self.observation_space = Box(0, self.params.length, (2,), np.int64)

    def generate(self, stream: Stream) -> Any:
        return [stream.below(2), stream.below(1000)]

    def canonical(self, instance: Any) -> bytes:
        return repr(instance).encode()

    def begin(self, instance: Any) -> None:
        self.place = instance[0]
        if self.params.pays:
            self.success = None

    def apply(self, action: int) -> Step:
        if self.place == self.params.fault_at:
            raise ZeroDivisionError("a bug of the task")
        if action == WAIT or (action == RIGHT and self._slips()):
            return 0.0, 0.0, False, False
        self.place += 1 if action == RIGHT else -1
        ended = self.place == self.params.length - 1
        if self.params.pays:
            pay = 0.1 if action == RIGHT else 0.0
            return pay, pay, ended, True
        self.success = ended
        return float(ended), float(ended), ended, True

    def _slips(self) -> bool:
        return bool(self.params.slip) and self.noise.random() < self.params.slip

    def observe(self) -> Observation:
        return np.array([self.place, self.instance[1] % self.params.length])

    def to_text(self) -> str:
        cells = ["."] * (self.params.length - 1) + ["G"]
        cells[self.place] = "P"
        return f"Corridor {self.instance[1]}\n{''.join(cells)}"

    def from_text(self, text: str) -> None:
        head, cells = text.split("\n")
        if len(cells) != self.params.length or "P" not in cells:
            raise RecordError(f"{text!r} is no corridor of {self.params.length} cells")
        self.instance = [self.instance[0], int(head.removeprefix("Corridor "))]
        self.place = cells.index("P")

    def rules(self) -> str:
        return f"Walk right through {self.params.length} cells to G."

    def legend(self) -> Mapping[str, str]:
        return {"P": "you", "G": "goal", ".": "floor"}

    def is_legal(self, action: int) -> bool:
        return action != LEFT or self.place > 0

    def action_mask(self) -> Any:
        return np.array([self.place > 0, 1, 1], dtype=np.int8)

    def progress(self) -> float:
        return self.place / (self.params.length - 1)

    def dump(self) -> Any:
        return self.place

    def restore(self, state: Any) -> None:
        self.place = state

    def optimal_value(self) -> float:
        return self._value(1.0)

    def optimal_action(self) -> int:
        return RIGHT

    def random_value(self) -> float:
        return self._value(1 / 3)

    def optimal_cost(self) -> int | None:
        return None if self.params.pays else self.params.length - 1 - self.place

    def explain(self, plan: Sequence[int]) -> str:
        return f"The goal is {self.params.length - 1 - self.place} to the right."

    def _value(self, right: float) -> float:
        """Return the value of going right with a chance, else left or nowhere."""
        last, stay, pays = self.params.length - 1, self.params.slip, self.params.pays
        aside = (1 - right) / 2

        @functools.cache
        def value(place: int, left: int) -> float:
            if place == last:
                return 0.0 if pays else 1.0
            if not left:
                return 0.0
            here = value(place, left - 1)
            back = value(place - 1, left - 1) if place else here
            on = value(place + 1, left - 1) + (0.1 if pays else 0.0)
            return right * (stay * here + (1 - stay) * on) + aside * here + aside * back

        return value(self.place, self.actions_left)


rb.register("toy/Corridor", Corridor)


class Walker(rb.Agent):
    """Goes right.

    Args:
        steps: Actions a turn.
    """

    def __init__(self, *, steps: int = 1) -> None:
        self.steps = steps

    async def act(self, observation: str, info: Mapping[str, Any]) -> rb.Reply:
        await asyncio.sleep(0)
        return rb.Reply(text=f"<answer>{' || '.join(['Right'] * self.steps)}</answer>")


class Gambler(rb.Agent):
    """Goes right or waits, as its seed says."""

    def reset(self, task: rb.Task) -> None:
        super().reset(task)
        self.stream = Stream(task.seed)

    async def act(self, observation: str, info: Mapping[str, Any]) -> rb.Reply:
        await asyncio.sleep(0)
        return rb.Reply(
            text=f"<answer>{self.stream.choice(('Right', 'Wait'))}</answer>"
        )


class Sleeper(Walker):
    """Goes right for a while, says ``waiting`` to stdout and never answers again.

    With ``TOY_AWAKE`` in the environment it goes on.

    Args:
        after: Replies that all players of the process give before.
    """

    replies = 0

    def __init__(self, *, after: int) -> None:
        super().__init__()
        self.after = after

    async def act(self, observation: str, info: Mapping[str, Any]) -> rb.Reply:
        Sleeper.replies += 1
        if Sleeper.replies > self.after and "TOY_AWAKE" not in os.environ:
            print("waiting", flush=True)
            await asyncio.Event().wait()
        return await super().act(observation, info)


class Awkward(Walker):
    """Goes right, but in some episodes fails in its own way.

    Args:
        how: What it does in these episodes.
        seeds: Which these are.
        turn: The turn in which it does so, from 0.
    """

    def __init__(self, *, how: str, seeds: Sequence[int], turn: int = 1) -> None:
        super().__init__()
        self.how = how
        self.seeds = set(seeds)
        self.turn = turn

    def reset(self, task: rb.Task) -> None:
        super().reset(task)
        self.turns = 0
        self.fails = int(task.key.split("/")[-2]) in self.seeds
        if self.fails and self.how == "reset":
            raise LookupError("lost at the start")

    async def act(self, observation: str, info: Mapping[str, Any]) -> Any:
        self.turns += 1
        if self.fails and self.turns > self.turn:
            return await MISDEEDS[self.how]()
        return await super().act(observation, info)


def _raises(error: BaseException) -> Any:
    async def misdeed() -> Any:
        raise error

    return misdeed


def _returns(reply: Any) -> Any:
    async def misdeed() -> Any:
        return reply

    return misdeed


class Unspeakable(Exception):
    """An exception whose message cannot be told."""

    def __str__(self) -> str:
        raise ValueError("no words")


_RIGHT = "<answer>Right</answer>"
MISDEEDS: dict[str, Any] = {
    "raise": _raises(LookupError("lost")),
    "exception group": _raises(ExceptionGroup("two", [ValueError(), OSError()])),
    "no words": _raises(Unspeakable()),
    "exit": _raises(SystemExit(0)),
    "own timeout": _raises(TimeoutError("a socket")),
    "own cancellation": _raises(asyncio.CancelledError()),
    "none": _returns(None),
    "string": _returns("Right"),
    "text": _returns(rb.Reply(text=None)),  # type: ignore[arg-type]
    "thinking": _returns(rb.Reply(text=_RIGHT, thinking=7)),  # type: ignore[arg-type]
    "finish reason": _returns(
        rb.Reply(text=_RIGHT, finish_reason="tired")  # type: ignore[arg-type]
    ),
    "usage": _returns(rb.Reply(text=_RIGHT, usage=None)),  # type: ignore[arg-type]
    "object in details": _returns(rb.Reply(text=_RIGHT, details={"x": object()})),
    "65 bits in details": _returns(rb.Reply(text=_RIGHT, details={"x": [2**63]})),
    "too much in details": _returns(
        rb.Reply(text=_RIGHT, details={"x": [0] * 150_000})
    ),
    "depth in details": _returns(
        rb.Reply(text=_RIGHT, details=json.loads('{"x":' * 29 + "{}" + "}" * 29))
    ),
    "65 bits in usage": _returns(
        rb.Reply(text=_RIGHT, usage=Usage(output_tokens=2**63))
    ),
    "less than no tokens": _returns(
        rb.Reply(text=_RIGHT, usage=Usage(input_tokens=-1))
    ),
    "less than nothing cut": _returns(rb.Reply(text=_RIGHT, context_cut=-1)),
    "NaN in details": _returns(rb.Reply(text=_RIGHT, details={"x": float("nan")})),
    "overflow": _raises(ContextOverflow("prompt of 99 tokens, context of 9")),
    "provider": _raises(ProviderError("503 after 5 tries")),
    "hang": lambda: asyncio.Event().wait(),
    "babel": _returns(rb.Reply(text=f"\u6f22\ud800 \u2501 {_RIGHT}\x00")),
    "wait": _returns(rb.Reply(text="<answer>Wait</answer>")),
}
ERRORS = tuple(
    how
    for how in (*MISDEEDS, "reset")
    if how not in ("overflow", "provider", "hang", "wait", "babel")
)


class Spy(Walker):
    """Goes right and keeps what it was told in ``Spy.seen``.

    Args:
        privileged: Whether it is handed the environment.
    """

    seen: list[tuple[rb.Task, str, Mapping[str, Any]]] = []

    def __init__(self, *, privileged: bool = False) -> None:
        super().__init__()
        self.privileged = privileged  # type: ignore[misc]

    async def act(self, observation: str, info: Mapping[str, Any]) -> rb.Reply:
        Spy.seen.append((self.task, observation, info))
        return await super().act(observation, info)


class Parrot(rb.Model):
    """A model that always says the same and keeps every prompt in ``Parrot.prompts``.

    Args:
        text: What it says.
        context: The most characters of a prompt.
    """

    prompts: list[tuple[str, list[tuple[str, str]]]] = []

    def __init__(self, text: str, context: int | None) -> None:
        self.name = "parrot"
        self.text = text
        self.context = context

    async def generate(
        self, conversation: rb.Conversation, sampling: rb.Sampling
    ) -> rb.Completion:
        await asyncio.sleep(0)
        messages = conversation.messages
        Parrot.prompts.append(
            (conversation.key, [(m.role, m.content) for m in messages])
        )
        if self.context is not None and self.count_tokens(messages) > self.context:
            raise ContextOverflow(f"the prompt has more than {self.context} tokens")
        return rb.Completion(text=self.text, token_ids=(1, 2))

    def count_tokens(self, messages: Sequence[Any]) -> int:
        """Return the number of characters."""
        return sum(len(message.content) for message in messages)

    def describe(self) -> Mapping[str, Any]:
        return {"says": self.text}


def load_parrot(rest: str, *, context: int | None = None) -> Parrot:
    """Return the model ``parrot:TEXT``."""
    return Parrot(rest or _RIGHT, context)


MODELS.add("parrot", load_parrot)
