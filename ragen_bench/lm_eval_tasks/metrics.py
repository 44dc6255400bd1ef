"""What lm-eval shows of a task: numbers of our own summary, under lm-eval's rules.

lm-eval wants one value for each document and metric, and a function that makes one
number of all values.  A value here is a number that carries its whole episode, so
that the function can be that of ``ragen-bench score``.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragen_bench.records import CellScore, Episode, RunConfig, Summary
from ragen_bench.scoring import summarise


class Value(float):
    """A number of one episode, and the episode."""

    __slots__ = ("episode",)
    episode: Episode

    def __new__(cls, number: float, episode: Episode) -> "Value":
        """Return a number with an episode."""
        made = super().__new__(cls, number)
        made.episode = episode
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Value, (float(self), self.episode)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of lm-eval's table."""

    name: str
    of_episode: Callable[[Episode], float | None]
    """The number that is logged with a document; None if it has none."""
    of_summary: Callable[[Summary, Sequence[Episode]], float | None]
    higher_is_better: bool = True
    cell: str | None = None
    """The only cell that it is about."""


def metrics(config: RunConfig, without_success: Sequence[str]) -> tuple[Metric, ...]:
    """Return the metrics of a run.

    Args:
        config: The run.
        without_success: The cells whose task has no success.
    """
    found = [
        Metric(
            name="score",
            of_episode=_normalized,
            of_summary=lambda summary, _: summary.score.mean,
        ),
        Metric(
            name="score_low",
            of_episode=_normalized,
            of_summary=lambda summary, _: summary.score.low,
        ),
        Metric(
            name="score_high",
            of_episode=_normalized,
            of_summary=lambda summary, _: summary.score.high,
        ),
        Metric(
            name="invalid_rate",
            of_episode=lambda episode: _invalid_rate([episode]),
            of_summary=lambda _, episodes: _invalid_rate(episodes),
            higher_is_better=False,
        ),
        Metric(
            name="turns",
            of_episode=lambda episode: float(len(episode.turns)),
            of_summary=lambda _, episodes: _turns(episodes),
            higher_is_better=False,
        ),
    ]
    for plan in config.cells:
        found.append(_cell_metric(plan.cell, "normalized", _normalized))
        if plan.cell not in without_success:
            found.append(_cell_metric(plan.cell, "success", _success))
    if set(without_success) < {plan.cell for plan in config.cells}:
        found.append(
            Metric(
                name="success",
                of_episode=_success,
                of_summary=lambda summary, _: _mean_success(summary),
            )
        )
    return tuple(found)


def values(wanted: Sequence[Metric], episode: Episode) -> dict[str, Value | None]:
    """Return the values of one episode."""
    found: dict[str, Value | None] = {}
    for metric in wanted:
        number = metric.of_episode(episode)
        if number is None or metric.cell not in (None, episode.key.cell):
            found[metric.name] = None
        else:
            found[metric.name] = Value(number, episode)
    return found


class Aggregation:
    """Makes one number of all values of a metric, as our summary does.

    Args:
        metric: The metric.
        config: The run.
        summaries: What several aggregations of one run share.
    """

    def __init__(
        self,
        metric: Metric,
        config: RunConfig,
        summaries: dict[frozenset[str], Summary],
    ) -> None:
        self._metric = metric
        self._config = config
        self._summaries = summaries

    def __call__(self, found: Sequence[Value | None]) -> float | None:
        """Return the number, None if no episode has any."""
        episodes = [value.episode for value in found if value is not None]
        which = frozenset(str(episode.key) for episode in episodes)
        if which not in self._summaries:
            self._summaries[which] = summarise(self._config, episodes)
        return self._metric.of_summary(self._summaries[which], episodes)


def _cell_metric(
    cell: str, field: str, of_episode: Callable[[Episode], float | None]
) -> Metric:
    def of_summary(summary: Summary, _: Sequence[Episode]) -> float | None:
        held: Mapping[str, CellScore] = summary.cells
        mean: float | None = getattr(held[cell], field).mean
        return mean

    return Metric(
        name=f"{field} {cell}", of_episode=of_episode, of_summary=of_summary, cell=cell
    )


def _normalized(episode: Episode) -> float:
    """Return what the episode adds to its cell's score, as far as one can tell."""
    room = episode.ceiling - episode.floor
    return (episode.episode_return - episode.floor) / room if room > 0 else 0.0


def _success(episode: Episode) -> float | None:
    return None if episode.success is None else float(episode.success)


def _mean_success(summary: Summary) -> float | None:
    """Return the mean over the environments that have success."""
    means = [env.success.mean for env in summary.envs.values()]
    known = [mean for mean in means if mean is not None]
    return math.fsum(known) / len(known) if known else None


def _invalid_rate(episodes: Sequence[Episode]) -> float | None:
    turns = [turn for episode in episodes if episode.scored for turn in episode.turns]
    return sum(not turn.valid for turn in turns) / len(turns) if turns else None


def _turns(episodes: Sequence[Episode]) -> float | None:
    scored = [len(episode.turns) for episode in episodes if episode.scored]
    return sum(scored) / len(scored) if scored else None
