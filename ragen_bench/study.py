"""What it takes to compare two models: seeds, tokens, cost and time of one of them.

What an episode takes is the mean of a run that was played, cell by cell; without one,
tokens are the upper bound of `ragen_bench.forecast` and time is unknown.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from ragen_bench import forecast
from ragen_bench.errors import InvalidSpec
from ragen_bench.plan import Plan, Settings, resolve
from ragen_bench.power import Comparison, episodes, half_width, visible_gap
from ragen_bench.prices import Tokens, cost, money, price_for, tokens_of_turns
from ragen_bench.records import CellPlan, Price, RunConfig
from ragen_bench.run_folder import read_episodes, read_run


@dataclasses.dataclass(slots=True, kw_only=True)
class Load:
    """What some episodes of one cell took, or will take."""

    episodes: int = 0
    tokens: Tokens = Tokens()
    seconds: float | None = 0.0
    """Of waiting for replies, one episode after the other; None if unknown."""

    def scaled(self, count: int) -> "Load":
        """Return what ``count`` such episodes take."""
        share = count / self.episodes
        tokens = Tokens(
            requests=round(self.tokens.requests * share),
            input=_share(self.tokens.input, share),
            cached=round(self.tokens.cached * share),
            output=_share(self.tokens.output, share),
            reasoning=_share(self.tokens.reasoning, share),
        )
        seconds = None if self.seconds is None else self.seconds * share
        return Load(episodes=count, tokens=tokens, seconds=seconds)


def _share(total: int | None, share: float) -> int | None:
    return None if total is None else round(total * share)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A run to learn from."""

    config: RunConfig
    price: Price | None
    success: float | None
    """Share of solved episodes, None if no task has success."""
    cells: Mapping[str, Load]


def learn(folder: Path) -> Played:
    """Return what the episodes of a run took.

    Raises:
        RecordError: The folder holds no run, or a file of it cannot be read.
    """
    record = read_run(folder)
    cells: dict[str, Load] = {}
    tried = solved = 0
    for episode in read_episodes(folder):
        if not episode.scored:
            continue
        if episode.success is not None:
            tried += 1
            solved += episode.success
        load = cells.setdefault(episode.key.cell, Load())
        load.episodes += 1
        load.tokens += tokens_of_turns(episode.turns)
        for turn in episode.turns:
            if load.seconds is None or turn.latency_s is None:
                load.seconds = None
            else:
                load.seconds += turn.latency_s
    return Played(
        config=record.config,
        price=record.price,
        success=solved / tried if tried else None,
        cells=cells,
    )


def bound(plan: Plan) -> dict[str, Load]:
    """Return the upper bound of what each cell of a plan takes."""
    return {
        cell.cell: Load(
            episodes=cell.episodes,
            tokens=Tokens(
                requests=cell.replies,
                input=cell.input_tokens,
                output=cell.output_tokens,
                reasoning=None,
            ),
            seconds=None,
        )
        for cell in forecast.forecast(plan)
    }


def prepare(
    comparison: Comparison,
    settings: Settings,
    *,
    learnt: "Played | None" = None,
    prices: Path | None = None,
    concurrency: int = 32,
) -> "Study":
    """Return the study that settings stand for; nothing is asked of a model.

    Args:
        comparison: What is to be shown.
        settings: Where it is played, and by whom; without a place, that of
            ``learnt``.
        learnt: A run to take tokens, time and perhaps the place from.
        prices: A price table.
        concurrency: Episodes in flight.

    Raises:
        RagenError: A setting is refused.
    """
    spec = settings.model or (learnt.config.model if learnt else None)
    if prices is not None and spec is None:
        raise InvalidSpec("prices need a model: give --model, or a run to learn from")
    price = price_for(prices, None, spec) or (learnt.price if learnt else None)
    config = learnt.config if learnt else None
    loads: Mapping[str, Load] = {}
    basis = ""
    if settings.board or settings.envs:
        bounds = learnt is None and settings.model is not None
        plan = resolve(settings, load_model=bounds)
        config = plan.config
        if bounds:
            loads, basis = bound(plan), forecast.ASSUMPTION
    if learnt is not None:
        loads = learnt.cells
        count = sum(load.episodes for load in loads.values())
        basis = f"means of {count:,} episodes of {learnt.config.model or 'no model'}"
    return Study(
        comparison=comparison,
        cells=config.cells if config else (),
        board=config.board if config else None,
        loads=loads,
        basis=basis,
        price=price,
        concurrency=concurrency,
        repeats=config.repeats if config else 1,
    )


def weights_of(cells: Sequence[CellPlan]) -> list[float]:
    """Return the weight of each cell in a score: alike within its environment."""
    envs = [cell.env_id for cell in cells]
    return [1 / (len(set(envs)) * envs.count(env_id)) for env_id in envs]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A comparison and what it takes."""

    comparison: Comparison
    cells: tuple[CellPlan, ...] = ()
    """Where it is played; none if nobody said."""
    board: str | None = None
    """The board that fixes the seeds of the cells, if one does."""
    loads: Mapping[str, Load] = dataclasses.field(default_factory=dict)
    """What episodes of each cell take, as far as it is known."""
    basis: str = ""
    """Where ``loads`` come from."""
    price: Price | None = None
    concurrency: int = 32
    """Episodes in flight."""
    repeats: int = 1
    """Episodes on each seed."""

    @property
    def weights(self) -> list[float]:
        """The weight of each cell in the score."""
        return weights_of(self.cells) or [1.0]

    def seeds(self, *, paired: bool) -> int:
        """Return the seeds a cell that show the gap in the score."""
        return episodes(self.comparison, paired=paired, weights=self.weights)

    def played(self) -> dict[str, int]:
        """Return the seeds that each cell will be played with."""
        if self.board is not None:
            return {cell.cell: len(cell.seeds) for cell in self.cells}
        seeds = self.seeds(paired=True)
        return {cell.cell: seeds for cell in self.cells}

    def total(self) -> Load:
        """Return what all of it takes for one model; unknown parts stay unknown."""
        found = Load()
        for cell, seeds in self.played().items():
            count = seeds * self.repeats
            load = self.loads.get(cell)
            if load is None or not load.episodes:
                unknown = Tokens(input=None, output=None, reasoning=None)
                part = Load(episodes=count, tokens=unknown, seconds=None)
            else:
                part = load.scaled(count)
            found.episodes += part.episodes
            found.tokens += part.tokens
            both = (found.seconds, part.seconds)
            found.seconds = None if None in both else sum(x or 0.0 for x in both)
        return found


def to_json(study: Study) -> dict[str, object]:
    """Return a study as JSON-able values."""
    comparison = study.comparison
    facts: dict[str, object] = {
        **dataclasses.asdict(comparison),
        "cells": study.played(),
        "board": study.board,
    }
    for paired in (True, False):
        facts["paired" if paired else "unpaired"] = {
            "episodes": episodes(comparison, paired=paired),
            "seeds": study.seeds(paired=paired),
            "visible_gap": _visible(study, paired=paired),
        }
    total = study.total()
    facts["forecast"] = {
        "basis": study.basis,
        "episodes": total.episodes,
        "input_tokens": total.tokens.input if study.basis else None,
        "output_tokens": total.tokens.output if study.basis else None,
        "cost": cost(total.tokens, study.price) if study.basis else None,
        "currency": study.price.currency if study.price else None,
        "seconds": _seconds(study, total),
    }
    return facts


def to_text(study: Study) -> str:
    """Return a study for people."""
    c = study.comparison
    one, other = (episodes(c, paired=paired) for paired in (True, False))
    lines = [
        f"a gap of {_points(c.gap)} around {c.success:.0%} success, found with a "
        f"chance of {c.power:.0%}; two-sided test at {c.alpha:g}",
        f"paired, on the same instances with correlation {c.correlation:g}: {one:,} "
        "episodes of each model",
        f"unpaired, on instances of their own: {other:,} episodes of each model",
        f"the success rate of {one:,} episodes is good to {_points(half_width(one))} "
        "(95 %)",
    ]
    if study.board is not None:
        lines += _about_board(study)
    elif study.cells:
        lines.append(
            f"in the score over {len(study.cells)} cells: --seeds "
            f"{study.seeds(paired=True)} (paired), {study.seeds(paired=False)} "
            f"(unpaired); in each cell by itself: {one} and {other}"
        )
    if study.basis:
        lines += _about_forecast(study)
    return "\n".join(lines)


def _visible(study: Study, *, paired: bool) -> float | None:
    seeds = list(study.played().values())
    if not seeds:
        return None
    return visible_gap(study.comparison, seeds, paired=paired, weights=study.weights)


def _about_board(study: Study) -> list[str]:
    seeds = study.played().values()
    shown = _visible(study, paired=True) or 0.0
    enough = "enough" if shown <= study.comparison.gap else "not enough"
    fewest, most = min(seeds), max(seeds)
    span = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return [
        f"board {study.board}: {span} seeds in each of "
        f"{len(seeds)} cells show a gap of {_points(shown)} in its score (paired): "
        f"{enough}, as {study.seeds(paired=True)} a cell are needed"
    ]


def _about_forecast(study: Study) -> list[str]:
    total = study.total()
    read, written = total.tokens.input, total.tokens.output
    if read is None or written is None:
        told = "tokens unknown"
    else:
        told = f"tokens read {read:,}, written {written:,}"
    parts = [f"{total.episodes:,} episodes of one model", told]
    if study.price is not None:
        amount = money(cost(total.tokens, study.price), study.price.currency)
        parts.append(f"cost {amount} by prices of {study.price.date}")
    seconds = _seconds(study, total)
    if seconds is not None:
        parts.append(
            f"about {_duration(seconds)} with {study.concurrency} episodes in flight, "
            "if replies take no longer then"
        )
    return [f"{'; '.join(parts)}", f"({study.basis})"]


def _seconds(study: Study, total: Load) -> float | None:
    if not study.basis or total.seconds is None:
        return None
    return total.seconds / min(study.concurrency, max(1, total.episodes))


def _points(share: float) -> str:
    return f"{100 * share:.3g} points"


def _duration(seconds: float) -> str:
    """Return such as ``"2 h 5 min"``."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.2g} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
