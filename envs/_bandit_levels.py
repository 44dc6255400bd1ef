"""Levels and presets of the bandit, and the parameters that make them up."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from ragen_bench.envs import _bandit_solver as solver
from ragen_bench.envs._bandit_names import LETTERS, PAIRS
from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.symbolic import Level, Limits

Pay = Literal["risky-safe", "bernoulli"]

HINTED = ("base", "informative")
"""Names that a player is told to be hints."""
_SINGLE_NAMES = (*HINTED, *(name for name in PAIRS if name not in HINTED))
_SEVERAL_NAMES = ("neutral", "misleading")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BanditParams:
    """What arms a level has."""

    kind: Pay = "risky-safe"
    """A sure arm beside a risky one, pulled once; or arms that pay 1 or 0, whose
    chances are drawn uniformly from [0, 1]."""
    arms: int = 2
    """How many arms."""
    pulls: int = 1
    """How many pulls."""
    names: str = "base"
    """Where names come from: for a single pull ``base`` (RAGEN's), ``informative``
    (others, disjoint between splits) or a preset's; for several ``neutral``
    (letters) or ``misleading`` (informative ones at random)."""
    low: float = 0.15
    """Pay of the sure arm, in [0, 1)."""
    p_high: float = 0.25
    """Chance of the risky arm to pay 1, in [0, 1]; not equal to ``low``."""
    rev: bool = False
    """Whether the arm whose name sounds risky is the sure one."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Pay):
            raise UnknownName.of("kind of bandit", self.kind, get_args(Pay))
        single = self.kind == "risky-safe"
        known = _SINGLE_NAMES if single else _SEVERAL_NAMES
        if self.names not in known:
            raise UnknownName.of(f"names of a {self.kind} bandit", self.names, known)
        for name in ("arms", "pulls"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidSpec(
                    f"{name} is {value!r}, but must be an integer of at least 1"
                )
        if single and (self.arms, self.pulls) != (2, 1):
            raise InvalidSpec(
                f"a risky-safe bandit has 2 arms and 1 pull, not {self.arms} and "
                f"{self.pulls}; kind='bernoulli' has others"
            )
        if not (0 <= self.low < 1 and 0 <= self.p_high <= 1):
            raise InvalidSpec(
                f"low is {self.low!r} and p_high {self.p_high!r}, but both must be "
                "from 0 to 1, and low less than 1"
            )
        if self.low == self.p_high:
            raise InvalidSpec(f"low and p_high are both {self.low!r}: no arm is better")
        if self.rev and not single:
            raise InvalidSpec("rev is for risky-safe bandits; others have no safe arm")
        if not 2 <= self.arms <= len(LETTERS):
            raise InvalidSpec(
                f"arms is {self.arms!r}, but must be from 2 to {len(LETTERS)}"
            )
        if solver.states(self.arms, self.pulls) > solver.MAX_STATES:
            raise InvalidSpec(
                f"{self.arms} arms and {self.pulls} pulls have more than "
                f"{solver.MAX_STATES} states, too many for an exact optimum: take fewer"
            )


def _single(summary: str, exempt: bool = True, **params: Any) -> Level[BanditParams]:
    """Return a level of one pull."""
    return Level(
        params=BanditParams(**params),
        limits=Limits(max_actions=1, max_turns=1, max_actions_per_turn=1),
        summary=summary,
        split_exempt=exempt,
        settings={"format_penalty": -0.1} if "ragen" in params["names"] else {},
    )


def _several(pulls: int, summary: str, **params: Any) -> Level[BanditParams]:
    """Return a level of several pulls, each a turn."""
    return Level(
        params=BanditParams(kind="bernoulli", pulls=pulls, **params),
        limits=Limits(max_actions=pulls, max_turns=pulls, max_actions_per_turn=1),
        summary=summary,
    )


def _presets() -> dict[str, Level[BanditParams]]:
    """Return RAGEN's bandits, each with the names the right way and reversed."""
    presets = {}
    for names, low, what in (
        ("ragen-v1", 0.15, "RAGEN's paper: Phoenix and Dragon"),
        ("ragen-v1-generalization", 0.15, "RAGEN's paper: other names in test"),
        ("ragen-v2", 0.1, "RAGEN's code: 12 pairs of names, 8 in test"),
    ):
        presets[names] = _single(what, names=names, low=low)
        presets[f"{names}-rev"] = _single(
            f"{what}, reversed", names=names, low=low, rev=True
        )
    return presets


LEVELS: Mapping[int, Level[BanditParams]] = {
    1: _single("one pull, five pairs of names that hint", names="base"),
    2: _single("one pull, new names that hint", exempt=False, names="informative"),
    3: _several(10, "ten pulls of two arms", names="neutral"),
    4: _several(20, "twenty pulls of two arms", names="misleading"),
    5: _several(20, "twenty pulls of three arms", names="misleading", arms=3),
}

PRESETS: Mapping[str, Level[BanditParams]] = _presets()
