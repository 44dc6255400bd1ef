"""One row of numbers an iteration: what it holds, and where it goes.

``metrics.csv`` holds what a rerun repeats to the last bit; times and rates are in
``timing.csv``.
"""

import csv
import dataclasses
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.errors import RecordError
from ragen_bench.run_folder import replacing
from ragen_bench.starpo.repetition import distinct_share, mean_words, repeated_share
from ragen_bench.starpo.trajectories import Trajectory
from ragen_bench.starpo.update import Step

COLUMNS = (
    "iteration",
    "return_mean",
    "success",
    "spread_mean",
    "zero_spread_share",
    "kept_share",
    "entropy",
    "reply_tokens",
    "thought_tokens",
    "distinct_4",
    "repeated_4",
    "cut_share",
    "valid_rate",
    "valid_success",
    "turns",
    "loss",
    "value_loss",
    "grad_norm",
    "critic_grad_norm",
    "clip_low",
    "clip_high",
    "approx_kl",
    "kl_reference",
    "ratio_max",
    "logprob_diff_mean",
    "logprob_diff_max",
    "start_diff_max",
    "canary_diff_mean",
    "canary_diff_max",
    "explained_variance",
    "steps",
    "imitation_loss",
    "remembered",
    "probe_samples",
    "conditional_entropy",
    "mutual_information",
    "information_bound",
    "mi_z_score",
    "retrieval",
    "retrieval_chance",
    "dev_success",
    "dev_return",
)
"""``docs/training.md`` gives the formula of each."""

TIMES = (
    "iteration",
    "rollout_s",
    "probe_s",
    "update_s",
    "sync_s",
    "eval_s",
    "cpu_s",
    "sampled_tokens",
    "trained_tokens",
    "tokens_per_s",
)


def of_rollouts(
    trajectories: Sequence[Trajectory], spread: Mapping[Any, float]
) -> dict[str, float | None]:
    """Return what the rollout phase tells.

    Args:
        trajectories: All of them, before any filter.
        spread: Group to the standard deviation of its returns.
    """
    turns = [turn for one in trajectories for turn in one.episode.turns]
    tokens = [turn.end - turn.start for one in trajectories for turn in one.turns]
    successes = [one.episode.success for one in trajectories]
    known = [success for success in successes if success is not None]
    sound = [
        one.episode.success
        for one in trajectories
        if one.episode.success is not None and all(t.valid for t in one.episode.turns)
    ]
    zero = sum(1 for value in spread.values() if value == 0)
    return {
        "return_mean": statistics.fmean(one.total for one in trajectories),
        "success": _share(known),
        "spread_mean": statistics.fmean(spread.values()),
        "zero_spread_share": zero / len(spread),
        "reply_tokens": statistics.fmean(tokens) if tokens else None,
        "thought_tokens": mean_words(turn.thinking for turn in turns),
        "distinct_4": distinct_share(turn.response for turn in turns),
        "repeated_4": repeated_share(turn.response for turn in turns),
        "cut_share": _share(turn.finish_reason == "length" for turn in turns),
        "valid_rate": _share(turn.valid for turn in turns),
        "valid_success": _share(sound),
        "turns": len(turns) / len(trajectories),
    }


def _share(claims: Iterable[bool]) -> float | None:
    """Return the share of claims that hold, None without any."""
    found = list(claims)
    return statistics.fmean(found) if found else None


def of_steps(steps: Sequence[Step]) -> dict[str, float | None]:
    """Return what the update phase tells: means over its steps, largest of maxima."""
    if not steps:
        return {"steps": 0}
    found: dict[str, float | None] = {"steps": len(steps)}
    # A step of the critic alone looked at no token with the policy.
    moved = [step for step in steps if step.tokens]
    for field in dataclasses.fields(Step):
        of_critic = field.name in ("value_loss", "critic_grad_norm")
        values = [getattr(step, field.name) for step in (steps if of_critic else moved)]
        if field.name in COLUMNS and values:
            largest = field.name.endswith("_max")
            found[field.name] = max(values) if largest else statistics.fmean(values)
    if moved:
        found["start_diff_max"] = moved[0].logprob_diff_max
    return found


class Table:
    """A CSV file that grows by whole rows.

    Args:
        path: The file.
        columns: Its header.
        rows: How many rows of what is there are kept; what they know nothing of, as
            another version wrote them, stays empty.

    Raises:
        RecordError: What is there cannot be read.
        RunIncomplete: The disk is full.
    """

    def __init__(self, path: Path, columns: Sequence[str], rows: int = 0) -> None:
        self.columns = tuple(columns)
        kept = read(path)[:rows] if path.exists() else []
        text = _line(self.columns) + "".join(
            _line([row.get(name) or "" for name in self.columns]) for row in kept
        )
        with replacing(path) as file:
            file.write(text.encode())
        self._path = path

    def add(self, row: Mapping[str, float | str | None]) -> None:
        """Append a row; a number that is not known stays empty."""
        cells = [_number(row.get(name)) for name in self.columns]
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(_line(cells))


def count(path: Path, iteration: int) -> int:
    """Return how many rows of a table belong to the iterations up to some.

    Raises:
        RecordError: A row has no iteration.
    """
    if not path.exists():
        return 0
    try:
        return sum(int(row["iteration"]) <= iteration for row in read(path))
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, "a row has no iteration") from error


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table; a torn last one is left out.

    Raises:
        RecordError: It is no text.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(io.StringIO(whole)))


def _unreadable(path: Path, why: str) -> RecordError:
    return RecordError(
        f"{path} cannot be read: {why}; move the file away and run the same command "
        "again"
    )


def _number(value: float | str | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, (int, str)) else repr(float(value))


def _line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
