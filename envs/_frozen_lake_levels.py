"""Levels and presets of the frozen lake, and the parameters that make them up."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragen_bench.errors import InvalidSpec
from ragen_bench.symbolic import Level, Limits


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LakeParams:
    """What lakes a level has."""

    rows: int = 4
    """Height, 2 to 16."""
    cols: int = 4
    """Width, 2 to 16."""
    slip: float = 0.0
    """Chance that a move goes sideways instead, half to each side, in [0, 1]."""
    hole_share: float = 0.2
    """Chance that a cell other than start and goal is a hole, in [0, 0.9]."""
    min_path: int = 1
    """Fewest moves from start to goal, at least."""
    max_path: int = 256
    """Fewest moves from start to goal, at most."""
    min_optimum: float = 0.0
    """Best chance of success within the level's actions, at least."""
    max_optimum: float = 1.0
    """Best chance of success within the level's actions, at most."""

    def __post_init__(self) -> None:
        for name in ("rows", "cols"):
            size = getattr(self, name)
            if type(size) is not int or not 2 <= size <= 16:
                raise InvalidSpec(f"{name} is {size!r}, but must be from 2 to 16")
        for name in ("slip", "min_optimum", "max_optimum"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise InvalidSpec(f"{name} is {share!r}, but must be from 0 to 1")
        if not 0 <= self.hole_share <= 0.9:
            raise InvalidSpec(
                f"hole_share is {self.hole_share!r}, but must be from 0 to 0.9"
            )
        paths = (self.min_path, self.max_path)
        if not all(type(n) is int for n in paths) or not (
            1 <= self.min_path <= self.max_path
        ):
            raise InvalidSpec(
                f"paths of {self.min_path!r} to {self.max_path!r} moves are none: "
                "give integers with 1 <= min_path <= max_path"
            )
        if self.min_optimum > self.max_optimum:
            raise InvalidSpec(
                f"min_optimum is {self.min_optimum!r}, but max_optimum only "
                f"{self.max_optimum!r}"
            )
        if self.max_optimum < 1 and not self.slip:
            raise InvalidSpec(
                f"max_optimum is {self.max_optimum!r}, but without slips success is "
                "certain: give max_optimum=1, min_optimum=0 or a slip"
            )

    @property
    def banded(self) -> bool:
        """Whether the optimum decides which lakes are taken."""
        return self.min_optimum > 0 or self.max_optimum < 1


def _level(actions: int, summary: str, **params: Any) -> Level[LakeParams]:
    """Return a level of slippery ice, where every action deserves its own reply."""
    return Level(
        params=LakeParams(**params),
        limits=Limits(max_actions=actions, max_turns=actions),
        summary=summary,
    )


def _preset(actions: int, summary: str, **params: Any) -> Level[LakeParams]:
    """Return a 4x4 lake of RAGEN, with some actions a turn, 10 in 5 turns."""
    return Level(
        params=LakeParams(**params),
        limits=Limits(max_actions=10, max_turns=5, max_actions_per_turn=actions),
        summary=summary,
        split_exempt=True,
        settings={"format_penalty": -0.1},
    )


LEVELS: Mapping[int, Level[LakeParams]] = {
    1: Level(
        params=LakeParams(min_path=2, max_path=4),
        limits=Limits(max_actions=10, max_turns=5),
        summary="4x4, no slips, 2 to 4 moves",
    ),
    2: _level(
        11,
        "4x4, 1 in 10 slips, optimum 0.9 to 0.99",
        slip=0.1,
        hole_share=0.25,
        min_path=3,
        max_path=6,
        min_optimum=0.9,
        max_optimum=0.99,
    ),
    3: _level(
        21,
        "6x6, 2 in 10 slips, optimum 0.75 to 0.9",
        rows=6,
        cols=6,
        slip=0.2,
        min_path=5,
        max_path=10,
        min_optimum=0.75,
        max_optimum=0.9,
    ),
    4: _level(
        41,
        "8x8, 3 in 10 slips, optimum 0.6 to 0.75",
        rows=8,
        cols=8,
        slip=0.3,
        min_path=7,
        max_path=14,
        min_optimum=0.6,
        max_optimum=0.75,
    ),
    5: _level(
        60,
        "8x8, 4 in 10 slips, optimum 0.4 to 0.6",
        rows=8,
        cols=8,
        slip=0.4,
        min_path=8,
        max_path=16,
        min_optimum=0.4,
        max_optimum=0.6,
    ),
}

PRESETS: Mapping[str, Level[LakeParams]] = {
    "ragen-v1": _preset(
        5, "RAGEN's first paper: 4x4, 1 in 3 as meant", slip=2 / 3, hole_share=0.2
    ),
    "ragen-v2": _preset(2, "RAGEN 2: 4x4, 4 in 5 as meant", slip=0.2, hole_share=0.1),
    "ragen-v2-deterministic": _preset(
        2, "RAGEN 2's training: 4x4, no slips", slip=0.0, hole_share=0.1
    ),
}
