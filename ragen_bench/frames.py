"""`load_runs`: runs as pandas data frames, whose columns are fixed.

`ragen_bench.frame_columns` lists the columns, in order; ``docs/reports.md``
says what each holds.  An unknown value is missing (NA), never 0.

Episodes are read one at a time, and only numbers and categories are kept of each.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ragen_bench.cell_scores import known_sum, scored_values
from ragen_bench.errors import InvalidSpec, MissingExtra
from ragen_bench.frame_columns import CELLS, EPISODES, RUNS, TURNS, Columns
from ragen_bench.prices import cost, tokens_of_turns
from ragen_bench.records import (
    OUTCOMES,
    CellScore,
    Episode,
    Interval,
    Price,
    RunRecord,
    Summary,
    Turn,
)
from ragen_bench.run_sources import KINDS, open_run
from ragen_bench.scoring import summarise


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Some runs as data frames."""

    runs: Any
    """One row a run, columns `RUNS`."""
    episodes: Any
    """One row an episode, columns `EPISODES`."""
    cells: Any
    """One row a cell of a run, columns `CELLS`."""
    turns: Any
    """One row a turn, columns `TURNS`; None unless asked for."""
    summaries: Mapping[str, Summary]
    """Run to its summary."""

    def tables(self) -> Mapping[str, Any]:
        """Return the data frames that there are, by name."""
        found = {"runs": self.runs, "episodes": self.episodes, "cells": self.cells}
        return found if self.turns is None else {**found, "turns": self.turns}


def load_runs(
    paths: str | Path | Iterable[str | Path] | Mapping[str, str | Path],
    *,
    turns: bool = False,
) -> Frames:
    """Return runs as data frames.

    Args:
        paths: One run folder, bundle, or entry beside its bundle, or several; a
            mapping gives each run its name, which otherwise is the path.
        turns: Whether to make the frame of turns, too.

    Raises:
        InvalidSpec: There is no path.
        MissingExtra: The extra ``report`` is not installed.
        RecordError: A path holds no run, or a file of it cannot be read.
    """
    try:
        import pandas  # noqa: F401 - said before anything is read
    except ImportError as error:
        raise MissingExtra("report", "a data frame") from error
    if isinstance(paths, str | Path):
        paths = [paths]
    if isinstance(paths, Mapping):
        named = {name: Path(path) for name, path in paths.items()}
    else:
        named = {str(path): Path(path) for path in paths}
    if not named:
        raise InvalidSpec(f"no run to load: give one {KINDS} or more")
    tables = [Columns(kinds) for kinds in (RUNS, EPISODES, CELLS)]
    table_of_turns = Columns(TURNS) if turns else None
    summaries = {}
    for name, path in named.items():
        run = open_run(path)
        record = run.record
        noted = _noted(name, run.episodes(), record.price, tables[1], table_of_turns)
        summary = summarise(record.config, noted, record.price)
        summaries[name] = summary
        tables[0].add(_run_row(name, record, summary))
        for cell, score in summary.cells.items():
            tables[2].add(_cell_row(name, cell, score))
    runs, episodes, cells = (table.frame() for table in tables)
    return Frames(
        runs=runs,
        episodes=episodes,
        cells=cells,
        turns=None if table_of_turns is None else table_of_turns.frame(),
        summaries=summaries,
    )


def _noted(
    run: str,
    episodes: Iterable[Episode],
    price: Price | None,
    table: Columns,
    turns: Columns | None,
) -> Iterator[Episode]:
    """Yield episodes, noting a row of each, and of its turns if asked for."""
    for episode in episodes:
        table.add(_episode_row(run, episode, price))
        if turns is not None:
            for number, turn in enumerate(episode.turns):
                turns.add(_turn_row(run, episode, number, turn))
        yield episode


def _episode_row(run: str, episode: Episode, price: Price | None) -> tuple[Any, ...]:
    turns = episode.turns
    tokens = tokens_of_turns(turns)
    success, returned = scored_values(episode)
    times = [turn.latency_s for turn in turns]
    known_times = [time for time in times if time is not None]
    return (
        run,
        episode.env_id,
        episode.level,
        episode.split,
        episode.seed,
        episode.rep,
        episode.instance,
        episode.outcome,
        episode.scored,
        success if episode.scored else None,
        returned if episode.scored else None,
        episode.floor,
        episode.ceiling,
        episode.optimal_cost,
        len(turns),
        episode.action_count,
        sum(not turn.valid for turn in turns),
        sum(turn.context_cut > 0 for turn in turns),
        sum(len(turn.response) for turn in turns),
        sum(len(turn.thinking) for turn in turns),
        tokens.input,
        tokens.output,
        known_sum(turn.usage.reasoning_tokens for turn in turns),
        sum(known_times) if len(known_times) == len(times) else None,
        cost(tokens, price),
    )


def _turn_row(run: str, episode: Episode, number: int, turn: Turn) -> tuple[Any, ...]:
    usage = turn.usage
    return (
        run,
        episode.env_id,
        episode.level,
        episode.split,
        episode.seed,
        episode.rep,
        number,
        turn.parse,
        turn.valid,
        len(turn.actions),
        sum(turn.effective),
        turn.reward,
        turn.scored_reward,
        turn.context_cut,
        len(turn.response),
        len(turn.thinking),
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        turn.finish_reason,
        turn.latency_s,
    )


def _limits(interval: Interval) -> tuple[Any, ...]:
    return (interval.mean, interval.low, interval.high, interval.n)


def _cell_row(run: str, cell: str, score: CellScore) -> tuple[Any, ...]:
    env_id, _, level = cell.rpartition(":")
    return (
        run,
        env_id,
        int(level),
        score.episodes,
        *_limits(score.success),
        *_limits(score.episode_return),
        *_limits(score.normalized),
        score.floor,
        score.ceiling,
        score.efficiency,
        score.invalid_rate,
        score.turns,
        score.actions,
        score.tokens,
        score.cost,
        *(score.outcomes.get(outcome, 0) for outcome in OUTCOMES),
    )


def _run_row(run: str, record: RunRecord, summary: Summary) -> tuple[Any, ...]:
    config = record.config
    return (
        run,
        config.agent,
        config.model,
        config.agent_class,
        config.board,
        config.board_version,
        config.split,
        config.repeats,
        config.prompt,
        config.shots,
        config.context,
        config.temperature,
        config.top_p,
        config.max_tokens,
        summary.complete,
        summary.rankable,
        "; ".join(summary.unrankable_because),
        summary.planned,
        summary.owed,
        *(summary.outcomes.get(outcome, 0) for outcome in OUTCOMES),
        *_limits(summary.score),
        summary.input_tokens,
        summary.output_tokens,
        summary.cost,
        summary.currency,
        record.versions.get("ragen-bench"),
        record.commit,
        record.started,
    )


def write_parquet(frames: Frames, folder: Path) -> list[Path]:
    """Write each data frame as ``NAME.parquet`` and return the paths.

    Raises:
        InvalidSpec: A file cannot be written.
        MissingExtra: The extra ``report`` is not installed.
    """
    try:
        import pyarrow  # noqa: F401 - pandas says it less plainly
    except ImportError as error:
        raise MissingExtra("report", "a parquet file") from error
    written = []
    for name, frame in frames.tables().items():
        path = folder / f"{name}.parquet"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            frame.to_parquet(path, index=False)
        except OSError as error:
            raise InvalidSpec(
                f"{str(path)!r} cannot be written: {error.strerror}"
            ) from error
        written.append(path)
    return written
