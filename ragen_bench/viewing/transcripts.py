"""Episodes for the page: pieces of whole transcripts and one small index of columns."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ragen_bench.records import OUTCOMES, Episode, EpisodeKey, Turn
from ragen_bench.viewing import pieces
from ragen_bench.viewing.optimal import Solver

PIECE = 100
"""Episodes of a piece."""
PIECE_CHARS = 4_000_000
"""A piece ends when its texts are this long, so long episodes open quickly, too."""


@dataclasses.dataclass(slots=True)
class Writer:
    """Writes the episodes of one run while somebody else counts them.

    Args:
        root: Of the site.
        slug: Of the run.
        solver: Finds the optimal actions.
    """

    root: Path
    slug: str
    solver: Solver
    _waiting: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    _rules: dict[str, int] = dataclasses.field(default_factory=dict)
    _chars: int = 0
    _starts: list[int] = dataclasses.field(default_factory=list)
    _rows: list[tuple[EpisodeKey, int, tuple[Any, ...]]] = dataclasses.field(
        default_factory=list
    )

    def passing(self, episodes: Iterable[Episode]) -> Iterator[Episode]:
        """Yield episodes and write them on the way."""
        for episode in episodes:
            self._add(episode)
            yield episode

    def _add(self, episode: Episode) -> None:
        outcome = OUTCOMES.index(episode.outcome)
        returned = pieces.number(episode.episode_return)
        row = (outcome, returned, len(episode.turns), episode.action_count)
        self._rows.append((episode.key, len(self._rows), row))
        record = _record(episode, self._rules)
        best = self.solver.solve(episode)
        if best is not None:
            record["best"] = best
        self._waiting.append(record)
        self._chars += sum(
            len(t.observation) + len(t.response) + len(t.thinking)
            for t in episode.turns
        )
        if len(self._waiting) >= PIECE or self._chars >= PIECE_CHARS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            name = f"{self.slug}/{len(self._starts)}"
            self._starts.append(len(self._rows) - len(self._waiting))
            value = {"rules": list(self._rules), "episodes": self._waiting}
            pieces.write(self.root, f"episodes/{name}", value)
        self._waiting, self._rules, self._chars = [], {}, 0

    def close(self) -> int:
        """Write the index and return how many episodes there are.

        The index orders them by cell, split, seed and rep.  Its column ``at`` says
        where an episode stands among the pieces.
        """
        self._flush()
        rows = sorted(self._rows, key=lambda row: row[0])
        cells = sorted({(key.env_id, key.level, key.split) for key, _, _ in rows})
        code = {cell: i for i, cell in enumerate(cells)}
        value = {
            "outcomes": list(OUTCOMES),
            "cells": [
                {"cell": f"{env_id}:{level}", "split": split}
                for env_id, level, split in cells
            ],
            "starts": self._starts,
            "at": [at for _, at, _ in rows],
            "cell": [code[key[:3]] for key, _, _ in rows],
            "seed": [key.seed for key, _, _ in rows],
            "rep": [key.rep for key, _, _ in rows],
            "outcome": [row[0] for _, _, row in rows],
            "return": [row[1] for _, _, row in rows],
            "turns": [row[2] for _, _, row in rows],
            "actions": [row[3] for _, _, row in rows],
        }
        pieces.write(self.root, f"index/{self.slug}", value)
        return len(rows)


def _record(episode: Episode, rules: dict[str, int]) -> dict[str, Any]:
    """Return an episode as the page reads it; what is usual is left out."""
    number = rules.setdefault(episode.rules, len(rules))
    return {
        "cell": f"{episode.env_id}:{episode.level}",
        "split": episode.split,
        "seed": episode.seed,
        "rep": episode.rep,
        "instance": episode.instance,
        "outcome": episode.outcome,
        "success": episode.success,
        "return": pieces.number(episode.episode_return),
        "floor": pieces.number(episode.floor),
        "ceiling": pieces.number(episode.ceiling),
        "cost": episode.optimal_cost,
        "error": episode.error,
        "rules": number,
        "turns": [_turn(turn) for turn in episode.turns],
        "last": episode.final_observation,
    }


def _turn(turn: Turn) -> dict[str, Any]:
    usage = turn.usage
    tokens = [
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    ]
    record: dict[str, Any] = {
        "see": turn.observation,
        "say": turn.response,
        "actions": list(turn.actions),
        "effective": [int(changed) for changed in turn.effective],
        "parse": turn.parse,
        "reward": pieces.number(turn.reward),
    }
    parts = {name: pieces.number(value) for name, value in turn.reward_parts.items()}
    optional: Mapping[str, Any] = {
        "think": turn.thinking,
        "parts": pieces.pairs({k: v for k, v in parts.items() if v is not None}),
        "scored": pieces.number(turn.scored_reward),
        "cut": turn.context_cut,
        "tokens": tokens if any(n is not None for n in tokens) else None,
        "seconds": pieces.number(turn.latency_s),
        "details": pieces.pairs(turn.details),
        "prompt": turn.prompt_sha256,
    }
    record.update({name: value for name, value in optional.items() if value})
    if turn.finish_reason != "stop":
        record["finish"] = turn.finish_reason
    return record
