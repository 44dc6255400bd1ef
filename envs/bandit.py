"""`Bandit`: pull named arms, once a safe or a risky one, or often to find the best."""

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box

from ragen_bench.envs import _bandit_solver as solver
from ragen_bench.envs._bandit_levels import HINTED, LEVELS, PRESETS, BanditParams
from ragen_bench.envs._bandit_names import (
    LETTERS,
    PAIRS,
    RISKY_OF,
    SAFE_OF,
    SPLIT_OF,
)
from ragen_bench.envs._bandit_solver import bayes_value
from ragen_bench.errors import InvalidSpec, RecordError, UnknownName
from ragen_bench.registry import register
from ragen_bench.seeding import Stream
from ragen_bench.symbolic import (
    Level,
    Observation,
    Split,
    Step,
    SymbolicEnv,
    action_names,
)

__all__ = ["Bandit", "BanditParams", "bayes_value"]

_WORDS = 2.0**64
_SINGLE = re.compile(r"Arms: (\w+), (\w+)\.(?: (\w+) paid (\S+)\.)?", re.ASCII)
_ARM = re.compile(r"(\w+): pulls (\d+), total (\d+)", re.ASCII)


def _checked(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names if text and replies can hold them."""
    for name in names:
        if not name.isalnum():
            raise InvalidSpec(f"name {name!r} of an arm must be letters and digits")
    return action_names(names)


class Bandit(SymbolicEnv[BanditParams]):
    """Pull the arm that pays most, as far as names and earlier pay reveal it.

    The actions are the names of the instance's arms.  An instance has ``names``, and
    either ``sure``, the index of the arm that always pays ``low``, or ``means``.
    The observation is uint8 [2 * arms]: pulls and wins (pays of 1) of each arm.
    """

    levels: ClassVar[Mapping[int, Level[Any]]] = LEVELS
    presets: ClassVar[Mapping[str, Level[Any]]] = PRESETS
    styles: ClassVar[tuple[str, ...]] = ("text",)
    deterministic = False

    def configure(self) -> None:
        """Prepare the spaces; the arms have letters until the first episode."""
        p = self.params
        if p.pulls > self.limits.max_actions:
            raise InvalidSpec(
                f"pulls is {p.pulls!r}, but only {self.limits.max_actions} actions "
                f"are allowed: give max_actions and max_turns of {p.pulls!r} too"
            )
        for symbol in self.symbols:
            raise UnknownName.of("symbol", symbol, ())
        # Best play sees what each pull paid before the next.
        self.min_turns = self._pulls = p.pulls
        self._low = float(p.low)
        self._single = p.kind == "risky-safe"
        self.observation_space = Box(0, p.pulls, (2 * p.arms,), np.uint8)
        self._sure = 0 if self._single else -1
        self._means: list[float] = [0.0] * p.arms
        self._show(LETTERS[: p.arms], bytes(2 * p.arms))

    # Instances ----------------------------------------------------------------

    def generate(self, stream: Stream) -> dict[str, Any]:
        """Return the arms in random order."""
        p = self.params
        if self._single:
            safe, risky = self._pair(stream)
            sure, other = (risky, safe) if p.rev else (safe, risky)
            first = stream.below(2)
            names = [other, sure] if first else [sure, other]
            return {"names": names, "sure": first}
        if p.names == "neutral":
            names = stream.sample(LETTERS, p.arms)
        else:
            pool = SAFE_OF[self.split] + RISKY_OF[self.split]
            names = stream.sample(pool, p.arms)
        return {"names": names, "means": [stream.random() for _ in range(p.arms)]}

    def _pair(self, stream: Stream) -> tuple[str, str]:
        """Return a name that sounds safe and one that sounds risky."""
        if self.params.names == "informative":
            safe = stream.choice(SAFE_OF[self.split])
            return safe, stream.choice(RISKY_OF[self.split])
        return stream.choice(PAIRS[self.params.names][self.split])

    def canonical(self, instance: Any) -> bytes:
        """Return the sure name before the other, or the means in order.

        With several pulls names tell nothing, so they do not count.
        """
        if self._single:
            sure = instance["sure"]
            names = instance["names"]
            return f"{names[sure]} {names[1 - sure]}".encode()
        return b"".join(struct.pack("<d", mean) for mean in sorted(instance["means"]))

    def split_of_instance(self, instance: Any) -> Split:
        """Return the split that owns the names, where names are what is to know."""
        if self.params.names == "informative":
            names = instance["names"]
            splits = [SPLIT_OF[name] for name in names if name in SPLIT_OF]
            if splits:
                return splits[0]
        return super().split_of_instance(instance)

    def begin(self, instance: Any) -> None:
        """Show the arms, none of them pulled.

        Raises:
            InvalidSpec: The instance does not have these arms.
        """
        arms = self.params.arms
        given = instance if isinstance(instance, Mapping) else {}
        names, sure, means = (given.get(key) for key in ("names", "sure", "means"))
        if not isinstance(names, Sequence) or len(names) != arms:
            raise InvalidSpec(f"instance {instance!r} must have {arms} names")
        if self._single:
            if sure not in (0, 1):
                raise InvalidSpec(f"instance {instance!r} must have sure, 0 or 1")
            self._set_sure(sure)
        else:
            if not isinstance(means, Sequence) or len(means) != arms:
                raise InvalidSpec(f"instance {instance!r} must have {arms} means")
            if not all(0 <= mean <= 1 for mean in means):
                raise InvalidSpec(f"means are {means!r}, but must be from 0 to 1")
            self._means = list(means)
        self._show(_checked(names), bytes(2 * arms))

    def _set_sure(self, arm: int) -> None:
        self._sure = arm
        self._means = [self.params.p_high] * 2
        self._means[arm] = self._low

    def _show(self, names: Sequence[str], counts: bytes) -> None:
        """Set names of arms, and pulls and wins of each."""
        self.actions = tuple(names)
        self._counts = bytearray(counts)
        # Copying a view is a quick observation.
        self._view: Observation = np.frombuffer(self._counts, np.uint8)
        self._pulled = sum(counts[::2])
        self._top = max(self._means)
        self._last = -1
        self._pay = 0.0
        self.success = None
        if self._single:
            arm = counts.find(1) // 2
            self.success = arm >= 0 and self._means[arm] == self._top
        lines = [f"{name}: pulls %d, total %d\n" for name in names]
        self._template = f"{''.join(lines)}Pulls left: %d"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy or a pickle has cut the view off from the counts.
        self._view = np.frombuffer(self._counts, np.uint8)

    # Dynamics -----------------------------------------------------------------

    def apply(self, action: int) -> Step:
        """Pull an arm."""
        self._last = action
        self._pulled += 1
        counts = self._counts
        counts[2 * action] += 1
        mean = self._means[action]
        if action == self._sure:
            pay = mean
        # One number a pull, so that pay does not hang on what was pulled before.
        elif self.noise.word() < mean * _WORDS:
            pay = 1.0
            counts[2 * action + 1] += 1
        else:
            pay = 0.0
        if self._single:
            self.success = mean == self._top
        self._pay = pay
        return pay, mean, self._pulled >= self._pulls, True

    def observe(self) -> Observation:
        """Return uint8 [2 * arms], pulls and wins of each arm."""
        return self._view.copy()

    def progress(self) -> float:
        """Return whether the better arm was pulled, or the share of pulls made."""
        if self._single:
            return float(self.success is True)
        return self._pulled / self._pulls

    # Text ---------------------------------------------------------------------

    def to_text(self) -> str:
        """Return names, and the pay of each arm so far."""
        if not self._single:
            left = self._pulls - self._pulled
            return self._template % (*self._counts, left)
        text = f"Arms: {', '.join(self.actions)}."
        if self._pulled:
            arm = self._counts.index(1) // 2
            pay = self._means[arm] if arm == self._sure else self._counts[2 * arm + 1]
            text = f"{text} {self.actions[arm]} paid {pay!r}."
        return text

    def event(self) -> str:
        """Return what the last pull paid."""
        if self._last < 0:
            return ""
        pay = self._pay if self._last == self._sure else int(self._pay)
        return f"{self.actions[self._last]} paid {pay!r}"

    def from_text(self, text: str) -> None:
        """Set names, pulls and pay from a text; what it does not tell stays.

        Raises:
            RecordError: The text does not show a bandit of this level.
        """
        names, counts = self._read_single(text) if self._single else self._read(text)
        self._show(names, counts)
        self.actions_taken = self._pulled
        if self._pulled == self._pulls:
            self.terminated = True
            self._playing = False

    def _read_single(self, text: str) -> tuple[list[str], bytes]:
        match = _SINGLE.fullmatch(text)
        if (
            match is None
            or match[1] == match[2]
            or match[3]
            not in (
                None,
                match[1],
                match[2],
            )
        ):
            raise RecordError(f"text {text!r} does not show two arms of a single pull")
        counts = bytearray(4)
        if match[3] is not None:
            arm = int(match[3] == match[2])
            if match[4] not in ("0", "1", repr(self._low)):
                raise RecordError(f"text {text!r} has a pay that no arm of this has")
            counts[2 * arm] = 1
            counts[2 * arm + 1] = match[4] == "1"
            # The pay gives away which arm is which.
            self._set_sure(arm if match[4] == repr(self._low) else 1 - arm)
        return [match[1], match[2]], bytes(counts)

    def _read(self, text: str) -> tuple[list[str], bytes]:
        *lines, last = text.split("\n")
        names: list[str] = []
        counts: list[int] = []
        for line in lines:
            match = _ARM.fullmatch(line)
            if match is None or match[1] in names or int(match[3]) > int(match[2]):
                raise RecordError(f"line {line!r} does not give an arm's pulls and pay")
            names.append(match[1])
            counts += int(match[2]), int(match[3])
        left = self._pulls - sum(counts[::2])
        if len(names) != self.params.arms or left < 0 or last != f"Pulls left: {left}":
            raise RecordError(
                f"text {text!r} does not show {self.params.arms} arms and how many of "
                f"{self._pulls} pulls are left"
            )
        return names, bytes(counts)

    def rules(self) -> str:
        """Return how the arms pay, and what is known of them."""
        p = self.params
        if self._single:
            hint = (
                "The names hint at which arm is which."
                if p.names in HINTED and not p.rev
                else "Think about what the names may stand for."
            )
            return (
                "There are two arms, and you pull one of them once. One arm pays "
                f"{self._low!r} for sure. The other pays 1 with probability "
                f"{p.p_high!r} and 0 otherwise. {hint} "
                "Choose the arm with the higher expected pay."
            )
        return (
            f"There are {p.arms} arms, and you make {p.pulls} pulls in all, each of an "
            "arm of your choice. A pull pays 1 or 0. Each arm has its own fixed "
            "probability of paying 1, drawn uniformly between 0 and 1 before the first "
            "pull and hidden from you. The names mean nothing. "
            "Make the total pay as high as you can."
        )

    def explain(self, plan: Sequence[int]) -> str:
        """Return what names or earlier pulls say, and what follows."""
        p = self.params
        names = self.actions
        if self._single:
            sure, other = names[self._sure], names[1 - self._sure]
            sounds = (
                f"The names deceive: {sure} is safe, {other} is risky."
                if p.rev
                else f"{sure} sounds safe, {other} sounds risky."
            )
            return (
                f"{sounds} Risky pays {p.p_high!r} on average, safe {self._low!r}. "
                f"Pull {names[plan[0]]}."
            )
        won = ", ".join(
            f"{name} {'won ' if arm == 0 else ''}"
            f"{self._counts[2 * arm + 1]} of {self._counts[2 * arm]}"
            for arm, name in enumerate(names)
        )
        return f"{won}. Pull {names[plan[0]]}."

    # Snapshots ----------------------------------------------------------------

    def dump(self) -> Any:
        """Return names, means and counts."""
        return {
            "names": list(self.actions),
            "means": list(self._means),
            "sure": self._sure,
            "counts": list(self._counts),
        }

    def restore(self, state: Any) -> None:
        """Set what `dump` returned."""
        self._means = list(state["means"])
        self._sure = state["sure"]
        self._show(state["names"], bytes(state["counts"]))

    # Exact values -------------------------------------------------------------

    def _records(self) -> solver.Records:
        counts = self._counts
        return tuple(zip(counts[::2], counts[1::2], strict=True))

    def optimal_value(self) -> float:
        """Return the better mean, or what Bayes-optimal play is worth on these arms.

        For a single pull it counts as known which arm the names stand for.
        """
        if self._pulled >= self._pulls:
            return 0.0
        if self._single:
            return self._top
        best = solver.policy(self._pulls)
        return best.value_on(self._means, self._records())

    def optimal_action(self) -> int:
        """Return the better arm, or the first that Bayes-optimal play pulls."""
        if self._single:
            return self._means.index(self._top)
        return solver.policy(self._pulls).action(self._records())

    def random_value(self) -> float:
        """Return the mean over the arms, for every pull that is left."""
        return (self._pulls - self._pulled) * sum(self._means) / len(self._means)

    def is_dead(self) -> bool:
        """Return whether the single pull was spent on the worse arm."""
        return self._single and self._pulled > 0 and not self.success


register("ragen/Bandit", Bandit)
