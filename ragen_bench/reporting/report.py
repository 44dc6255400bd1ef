"""`write_report`: a folder with figures, tables and a page that shows them all."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.errors import InvalidSpec
from ragen_bench.frames import Frames, load_runs, write_parquet
from ragen_bench.ranking.played import CellResults, Played
from ragen_bench.ranking.side_by_side import (
    SideBySide,
    pair_table,
    rank_table,
    side_by_side,
)
from ragen_bench.records import Summary
from ragen_bench.reporting.drawing import require
from ragen_bench.reporting.latex import to_latex
from ragen_bench.run_folder import read_run
from ragen_bench.tables import table, to_markdown
from ragen_bench.wording import counted

PAGE = "report.md"
_TITLES = {
    "scores": "Scores with 95 % intervals",
    "levels": "Scores by level",
    "outcomes": "How episodes ended",
    "reply_length": "Length of replies",
    "cost_and_score": "What a score costs",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a report consists of."""

    page: Path
    files: tuple[Path, ...]
    """All others."""
    summaries: Mapping[str, Summary]


def write_report(
    folders: Sequence[Path], out: Path, *, parquet: bool = False, turns: bool = False
) -> Written:
    """Write a report on run folders.

    Args:
        folders: Of runs.
        out: The folder of the report; made if it does not exist.
        parquet: Whether to write the data frames, too.
        turns: Whether these include the frame of turns.

    Raises:
        InvalidSpec: A file cannot be written.
        MissingExtra: The extra ``report`` is not installed.
        RecordError: A folder holds no run, or a file of it cannot be read.
    """
    require("a report")
    from ragen_bench.reporting.figures import draw_all

    named = run_names(folders)
    frames = load_runs(named, turns=turns)
    figures = draw_all(frames, out / "figures")
    tables = _tables(frames, named)
    files = [path for path in figures.values() if isinstance(path, Path)]
    for name, found in tables.items():
        latex = to_latex(found.rows, found.columns)
        files.append(_write(out / "tables" / f"{name}.tex", latex))
        markdown = to_markdown(found.rows, found.columns)
        files.append(_write(out / "tables" / f"{name}.md", markdown))
    if parquet or turns:
        files += write_parquet(frames, out / "data")
    page = _write(out / PAGE, _page(frames, named, figures, tables, files, out))
    return Written(page=page, files=tuple(files), summaries=frames.summaries)


def run_names(folders: Iterable[Path]) -> dict[str, Path]:
    """Return a name for each run: that of its folder, or its path if two share it."""
    unique = list(dict.fromkeys(folders))
    short = [folder.resolve().name for folder in unique]
    if len(set(short)) == len(short):
        return dict(zip(short, unique, strict=True))
    return {str(folder): folder for folder in unique}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Titled:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def _tables(frames: Frames, named: Mapping[str, Path]) -> dict[str, _Titled]:
    """Return the tables of a report; ranks and pairs if there is something to rank."""
    all_cells = table(frames.summaries)
    found = {
        "cells": _Titled(
            title="Scores of every cell", columns=all_cells.columns, rows=all_cells.rows
        )
    }
    ranked = _ranked(frames, named)
    if ranked is None:
        return found
    ranks, pairs = rank_table(ranked), pair_table(ranked)
    left = sum(ranked.left_out.values())
    note = f", on what all share ({counted(left, 'episode')} left out)" if left else ""
    first = {
        "ranks": _Titled(title=f"Ranks{note}", columns=ranks.columns, rows=ranks.rows),
        "pairs": _Titled(
            title=f"Pairs, corrected by Holm{note}",
            columns=pairs.columns,
            rows=pairs.rows,
        ),
    }
    return {**first, **found}


def _ranked(frames: Frames, named: Mapping[str, Path]) -> SideBySide | None:
    """Return the runs side by side, None for one run or runs that share nothing."""
    if len(named) < 2:
        return None
    try:
        return side_by_side([_played(frames, run, named[run]) for run in named])
    except InvalidSpec:  # nothing in common, which the page says
        return None


def _played(frames: Frames, run: str, folder: Path) -> Played:
    """Return the results of a run from its data frame."""
    config = read_run(folder).config
    rows = frames.episodes
    rows = rows[(rows.run == run) & rows.scored]
    rows = rows.sort_values(["seed", "rep"])
    cells = {}
    for plan in config.cells:
        own = rows[(rows.env_id == plan.env_id) & (rows.level == plan.level)]
        cells[plan.cell] = _cell(own)
    return Played(
        label=run,
        summary=frames.summaries[run],
        cells=cells,
        rules={"split": config.split, "env_args": dict(config.env_args)},
    )


def _cell(rows: Any) -> CellResults:
    numbers = {
        name: rows[name].to_numpy(dtype=float, na_value=float("nan"))
        for name in ("success", "return", "floor", "ceiling")
    }
    return CellResults(
        keys=tuple(zip(rows.seed.tolist(), rows.rep.tolist(), strict=True)),
        success=numbers["success"],
        returned=numbers["return"],
        floor=numbers["floor"],
        ceiling=numbers["ceiling"],
        instances=tuple(rows.instance.tolist()),
    )


def _page(
    frames: Frames,
    named: Mapping[str, Path],
    figures: Mapping[str, Path | str],
    tables: Mapping[str, _Titled],
    files: Sequence[Path],
    out: Path,
) -> str:
    """Return the text of the page."""
    lines = ["# Report", "", f"{counted(len(named), 'run')}:", ""]
    for run, folder in named.items():
        lines.append(f"- `{run}`: {_standing(frames.summaries[run])} (`{folder}`)")
    if len(named) > 1 and "ranks" not in tables:
        lines += ["", "The runs share no episode, so none is ranked."]
    for name in ("ranks", "pairs"):
        if name in tables:
            lines += _section(tables[name])
    for name, drawn in figures.items():
        lines += ["", f"## {_TITLES[name]}", ""]
        if isinstance(drawn, Path):
            place = drawn.relative_to(out).as_posix()
            lines.append(f"![{_TITLES[name]}]({place})")
        else:
            lines.append(f"Not drawn: {drawn}.")
    lines += _section(tables["cells"])
    lines += ["", "## Files", ""]
    lines += [f"- [{path.name}]({path.relative_to(out).as_posix()})" for path in files]
    return "\n".join(lines) + "\n"


def _section(found: _Titled) -> list[str]:
    text = to_markdown(found.rows, found.columns).rstrip("\n")
    return ["", f"## {found.title}", "", text]


def _standing(summary: Summary) -> str:
    """Return who played, and how much of what was planned."""
    who = " ".join(filter(None, (summary.agent, summary.model)))
    played = summary.planned - summary.owed
    text = f"{who}, {played} of {counted(summary.planned, 'episode')}"
    if summary.board is not None:
        text += f" of board {summary.board}"
        if not summary.rankable:
            text += f", not rankable ({'; '.join(summary.unrankable_because)})"
    return text


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidSpec(
            f"{str(path)!r} cannot be written: {error.strerror}; give another --out"
        ) from error
    return path
