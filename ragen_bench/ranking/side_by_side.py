"""Runs side by side: ranks, pairs, cells and differences, as records and as text."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragen_bench.errors import InvalidSpec
from ragen_bench.intervals import interval
from ragen_bench.ranking.cell_tests import (
    CellTest,
    Difference,
    cell_tests,
    differences,
    won,
)
from ragen_bench.ranking.comparisons import Comparison, compare, pairs
from ragen_bench.ranking.pairing import Pair
from ragen_bench.ranking.played import Played, distinct
from ragen_bench.ranking.ranks import RankRange, rank_ranges
from ragen_bench.ranking.scores import Scores, common, scores
from ragen_bench.records import Interval
from ragen_bench.tables import NOTHING, Table, interval_text, to_markdown
from ragen_bench.tables import to_text as aligned
from ragen_bench.wording import counted

_FIRST = 3
"""Differences of a pair that are named unless all are asked for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Two or more agents on the episodes that all of them have."""

    played: tuple[Played, ...]
    """All results of each."""
    left_out: Mapping[str, int]
    """Episodes of each that are not compared."""
    scores: Mapping[str, Scores]
    ranks: Mapping[str, RankRange]
    pairs: tuple[Pair, ...]
    comparisons: tuple[Comparison, ...]

    def order(self) -> list[Played]:
        """Return the agents, best score first."""

        def place(one: Played) -> tuple[float, str]:
            mean = self.scores[one.label].score.mean
            return (float("inf") if mean is None else -mean, one.label)

        return sorted(self.played, key=place)


def side_by_side(played: Sequence[Played]) -> SideBySide:
    """Return how agents compare on the episodes that all of them have.

    Raises:
        InvalidSpec: There is no such episode, or two have one label.
    """
    distinct(played)
    shared = common(played)
    if not shared[0].cells:
        raise InvalidSpec(
            f"{', '.join(one.label for one in played)} have no episode in common: "
            f"{_why_nothing(played)}; compare runs of the same cells, split, seeds and "
            "rules"
        )
    left_out = {
        one.label: one.size() - rest.size()
        for one, rest in zip(played, shared, strict=True)
    }
    whole = not any(left_out.values()) and all(
        one.summary.score.mean is not None for one in played
    )
    found = pairs(shared)
    comparisons = compare(found, seeds=True)
    return SideBySide(
        played=tuple(played),
        left_out=left_out,
        scores={one.label: scores(one, whole=whole) for one in shared},
        ranks=rank_ranges([one.label for one in shared], comparisons),
        pairs=tuple(found),
        comparisons=tuple(comparisons),
    )


def _why_nothing(played: Sequence[Played]) -> str:
    """Return what differs between the first two that share nothing."""
    for one, other in itertools.combinations(played, 2):
        for what, first, second in (
            ("cells", sorted(one.cells), sorted(other.cells)),
            ("the list of seeds", one.seeds_from, other.seeds_from),
            *(
                (name, one.rules[name], other.rules[name])
                for name in ("split", "env_args")
            ),
        ):
            if first != second:
                return (
                    f"{what} {_short(first)} in {one.label}, {_short(second)} in "
                    f"{other.label}"
                )
    return "no seed is in all of them, or nobody's play counts"


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def to_json(found: SideBySide) -> dict[str, Any]:
    """Return all that is known, as JSON-able values."""
    return {
        "runs": [_run_json(found, one) for one in found.order()],
        "pairs": [
            _pair_json(one, pair)
            for one, pair in zip(found.comparisons, found.pairs, strict=True)
        ],
    }


def _run_json(found: SideBySide, one: Played) -> dict[str, Any]:
    parts = found.scores[one.label]
    return {
        "run": one.label,
        "agent": one.summary.agent,
        "model": one.summary.model,
        "class": one.summary.agent_class,
        "board": one.summary.board,
        "rank": list(found.ranks[one.label]),
        "score": parts.score.model_dump(),
        "envs": {name: each.model_dump() for name, each in parts.envs.items()},
        "levels": {str(n): each.model_dump() for n, each in parts.levels.items()},
        "cells": {name: each.model_dump() for name, each in parts.cells.items()},
        "episodes": parts.episodes,
        "left_out": found.left_out[one.label],
    }


def _pair_json(one: Comparison, pair: Pair) -> dict[str, Any]:
    return {
        **dataclasses.asdict(
            dataclasses.replace(one, difference=None),
        ),
        "difference": None if one.difference is None else one.difference.model_dump(),
        "winner": one.winner,
        "verdict": one.verdict,
        "cells": [dataclasses.asdict(test) for test in cell_tests(pair)],
        "differences": [dataclasses.asdict(each) for each in differences(pair)],
    }


def to_text(found: SideBySide, *, markdown: bool = False, every: bool = False) -> str:
    """Return tables of ranks, pairs and cells, and where agents differ.

    Args:
        found: What is shown.
        markdown: Whether tables are Markdown.
        every: Whether every episode is named on which two agents differ.
    """
    write = to_markdown if markdown else aligned
    tables = [rank_table(found), pair_table(found)]
    if len(found.pairs) == 1:
        tables.append(_cell_table(cell_tests(found.pairs[0])))
    blocks = [write(table.rows, table.columns) for table in tables]
    for pair in found.pairs:
        lines = _difference_lines(pair, every)
        blocks.append(
            "".join(f"- {line}\n" if markdown else f"{line}\n" for line in lines)
        )
    left = [f"{n} of {label}" for label, n in found.left_out.items() if n]
    if left:
        shared = counted(found.scores[found.played[0].label].episodes, "episode")
        blocks.append(
            f"Compared on the {shared} that all have; left out: {', '.join(left)}.\n"
        )
    return "\n".join(blocks)


def rank_table(found: SideBySide) -> Table:
    """Return the agents, best score first, with rank ranges and environments."""
    envs = list(dict.fromkeys(env for one in found.scores.values() for env in one.envs))
    unknown = interval(None, None, None, 0)
    lines = []
    for one in found.order():
        parts = found.scores[one.label]
        values: list[Interval] = [parts.envs.get(env, unknown) for env in envs]
        lines.append(
            (
                one.label,
                one.summary.agent_class,
                str(found.ranks[one.label]),
                interval_text(parts.score),
                *map(interval_text, values),
            )
        )
    columns = ("run", "class", "rank", "score", *envs)
    return Table(columns=columns, rows=tuple(lines))


def pair_table(found: SideBySide) -> Table:
    """Return every two agents with their difference and the verdict."""
    lines = []
    for one in found.comparisons:
        shown = NOTHING if one.difference is None else interval_text(one.difference)
        numbers = (shown, p_text(one.p), p_text(one.holm_p))
        lines.append((one.first, one.second, *numbers, one.verdict, seeds_text(one)))
    head = ("first", "second", "difference", "p", "Holm p", "verdict", "to separate")
    return Table(columns=head, rows=tuple(lines))


def p_text(value: float) -> str:
    """Return a p value with two digits that count."""
    return f"{value:.3f}" if value >= 0.1 else f"{value:.2g}"


def seeds_text(one: Comparison) -> str:
    """Return how many seeds in each cell would tell two agents apart."""
    if one.gap is None:
        return NOTHING
    if one.winner is not None:
        return "apart already"
    if one.seeds_needed is None:
        return "no number of seeds" if abs(one.gap) < 1e-9 else "cannot be said"
    more = one.seeds_needed - one.seeds
    return f"{one.seeds_needed:,} seeds a cell ({more:,} more)"


def _cell_table(tests: Sequence[CellTest]) -> Table:
    lines = [
        (
            test.cell,
            str(test.n),
            f"{test.gap:+z.2f}",
            *(
                NOTHING if count is None else str(count)
                for count in (test.only_first, test.only_second)
            ),
            NOTHING if test.success_p is None else p_text(test.success_p),
            p_text(test.return_p),
            p_text(test.holm_p),
        )
        for test in tests
    ]
    head = ("cell", "n", "difference", "only first solved", "only second solved")
    columns = (*head, "p of success", "p of return", "Holm p")
    return Table(columns=columns, rows=tuple(lines))


def _difference_lines(pair: Pair, every: bool) -> Iterator[str]:
    listed = list(differences(pair))
    names = (pair.first.label, pair.second.label)
    first, second = won(listed)
    yield (
        f"{names[0]} and {names[1]} differ on {len(listed)} of "
        f"{counted(pair.shared, 'episode')}: "
        f"{names[0]} got more on {first}, {names[1]} on {second}"
    )
    for one in listed if every else listed[:_FIRST]:
        yield f"  {_difference_text(one, names)}"
    if not every and len(listed) > _FIRST:
        yield f"  ... and {len(listed) - _FIRST} more (--differences names all)"


def _difference_text(one: Difference, names: tuple[str, str]) -> str:
    winner = names[0] if one.first > one.second else names[1]
    return (
        f"{one.cell} seed {one.seed} rep {one.rep}: {winner} got more "
        f"({one.first:.4g} against {one.second:.4g})"
    )
