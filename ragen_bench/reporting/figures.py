"""The figures of a report: scores, levels, outcomes, reply lengths, cost and score."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ragen_bench.frames import Frames
from ragen_bench.records import Interval
from ragen_bench.reporting.drawing import (
    INK,
    QUIET,
    label,
    log_axis,
    new_figure,
    row_height,
    save,
    short,
    style,
)
from ragen_bench.reporting.outcome_bars import outcomes
from ragen_bench.reporting.panels import envs_of, panels

_MARKERS = "osD^vPX*<>"


def draw_all(frames: Frames, folder: Path) -> dict[str, Path | str]:
    """Draw every figure.

    Args:
        frames: The runs.
        folder: Where the PNG files go.

    Returns:
        Name of each figure to its path, or to why there is nothing to draw.
    """
    found: dict[str, Path | str] = {}
    for name, draw in FIGURES.items():
        with style():
            figure = draw(frames)
            if isinstance(figure, str):
                found[name] = figure
            else:
                found[name] = save(figure, folder / f"{name}.png")
    return found


def scores(frames: Frames) -> Any:
    """Return normalized scores with intervals, of all and of each environment."""
    runs = list(frames.summaries)
    envs = envs_of(frames)
    shown: list[tuple[str, list[Interval | None]]] = [
        ("all", [frames.summaries[run].score for run in runs])
    ]
    for env in envs:
        known = [frames.summaries[run].envs.get(env) for run in runs]
        shown.append((short(env), [one.normalized if one else None for one in known]))
    figure, axes = panels(runs, len(shown))
    for ax, (title, intervals) in zip(axes, shown, strict=True):
        for place, x in (("floor", 0.0), ("ceiling", 1.0)):
            ax.axvline(x, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
            top = ax.get_xaxis_transform()
            ax.annotate(
                place,
                (x, 1.0),
                xytext=(-3 if x == 0 else 3, -2),
                textcoords="offset points",
                xycoords=top,
                color=QUIET,
                fontsize=7,
                rotation=90,
                ha="right" if x == 0 else "left",
                va="top",
            )
        for row, one in enumerate(intervals):
            _point(ax, row, one)
        ax.set_title(title)
        ax.margins(x=0.08)
        ax.set_xlabel("normalized score")
    return figure


def _point(ax: Any, row: int, one: Interval | None) -> None:
    if one is None or one.mean is None:
        ax.text(0.5, row, "unknown", ha="center", va="center", color=QUIET)
        return
    if one.low is not None and one.high is not None:
        ax.plot([one.low, one.high], [row, row], color="#0173b2", linewidth=2)
    ax.plot([one.mean], [row], "o", color=INK, markersize=5, zorder=3)


def levels(frames: Frames) -> Any:
    """Return a heat map of normalized scores by run and cell."""
    import numpy
    import seaborn

    runs, cells = list(frames.summaries), frames.cells
    envs = envs_of(frames)
    numbers = {env: sorted(set(cells.level[cells.env_id == env])) for env in envs}
    ratios = [len(numbers[env]) for env in envs]
    height = 1.5 + row_height(runs) * len(runs)
    figure = new_figure(2.8 + 0.62 * sum(ratios) + 0.3 * len(envs), height)
    axes = figure.subplots(
        1, len(envs), squeeze=False, width_ratios=ratios, gridspec_kw={"wspace": 0.04}
    )[0]
    for i, (ax, env) in enumerate(zip(axes, envs, strict=True)):
        table = numpy.full((len(runs), len(numbers[env])), numpy.nan)
        for row, run in enumerate(runs):
            for column, level in enumerate(numbers[env]):
                known = frames.summaries[run].cells.get(f"{env}:{level}")
                if known is not None and known.normalized.mean is not None:
                    table[row, column] = known.normalized.mean
        seaborn.heatmap(
            table,
            ax=ax,
            vmin=0,
            vmax=1,
            cmap="viridis",
            annot=True,
            fmt=".2f",
            annot_kws={"fontsize": 8},
            linewidths=1.5,
            linecolor="white",
            cbar=False,
            xticklabels=numbers[env],
            yticklabels=[label(run) for run in runs] if i == 0 else False,
        )
        ax.set_facecolor("#eaeef2")
        ax.tick_params(axis="y", rotation=0, length=0)
        ax.tick_params(axis="x", length=0)
        ax.set_title(short(env))
        ax.set_xlabel("level")
    bar = figure.colorbar(
        axes[-1].collections[0], ax=list(axes), fraction=0.03, pad=0.02, extend="both"
    )
    bar.set_label("normalized score")
    bar.outline.set_visible(False)
    return figure


def reply_length(frames: Frames) -> Any:
    """Return how long replies are: mean of an episode, its quartiles and 5 to 95 %."""
    runs, episodes = list(frames.summaries), frames.episodes
    played = episodes[episodes.turns > 0]
    if not len(played):
        return "no episode has a turn"
    tokens = played.output_tokens.notna().all()
    total = played.output_tokens if tokens else played.reply_chars
    means = (total.astype(float) / played.turns.astype(float)).to_numpy()
    codes = played.run.cat.codes.to_numpy()
    places = {name: i for i, name in enumerate(played.run.cat.categories)}
    groups = [means[codes == places[run]] for run in runs]
    figure, (ax,) = panels(runs, 1, width=5.5)
    ax.boxplot(
        [group if len(group) else [float("nan")] for group in groups],
        positions=range(len(runs)),
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": "#8ec1e0", "edgecolor": INK, "linewidth": 0.8},
        medianprops={"color": INK, "linewidth": 1.6},
        whiskerprops={"color": INK, "linewidth": 0.8},
        capprops={"color": INK, "linewidth": 0.8},
        manage_ticks=False,
    )
    if means.min() > 0 and means.max() > 50 * means.min():
        log_axis(ax)
    else:
        ax.set_xlim(left=0)
    ax.set_title("Length of replies")
    ax.set_xlabel("tokens a reply" if tokens else "characters a reply")
    return figure


def cost_and_score(frames: Frames) -> Any:
    """Return scores over cost, or over tokens where no run knows its cost."""
    import seaborn

    priced = any(one.cost is not None for one in frames.summaries.values())
    known = {}
    for run, summary in frames.summaries.items():
        spent = summary.cost if priced else _tokens(frames, run)
        if spent is not None and summary.score.mean is not None:
            known[run] = (spent, summary.score)
    if not known:
        return "no run knows both its score and its cost or tokens"
    palette = seaborn.color_palette("colorblind", 10)
    figure = new_figure(7.2, 0.6 + max(3.4, 0.3 * len(known)))
    ax = figure.subplots()
    for i, (run, (spent, score)) in enumerate(known.items()):
        colour, marker = palette[i % 10], _MARKERS[(i + i // 10) % len(_MARKERS)]
        if score.low is not None and score.high is not None:
            ax.plot([spent] * 2, [score.low, score.high], color=colour, linewidth=1.4)
        look = {"color": colour, "marker": marker, "markersize": 7, "linestyle": ""}
        ax.plot([spent], [score.mean], label=label(run), markeredgecolor=INK, **look)
    amounts = [spent for spent, _ in known.values()]
    if min(amounts) > 0 and max(amounts) > 10 * min(amounts):
        log_axis(ax)
    else:
        ax.margins(x=0.15)
    for place, y in (("floor", 0.0), ("ceiling", 1.0)):
        ax.axhline(y, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        ax.annotate(
            place,
            (1.0, y),
            xytext=(-3, 2),
            textcoords="offset points",
            xycoords=ax.get_yaxis_transform(),
            color=QUIET,
            fontsize=7,
            ha="right",
        )
    currency = next((s.currency for s in frames.summaries.values() if s.currency), "")
    ax.set_title("Cost and score" if priced else "Tokens and score")
    ax.set_xlabel(f"cost of the run, {currency}" if priced else "tokens an episode")
    ax.set_ylabel("normalized score")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _tokens(frames: Frames, run: str) -> float | None:
    """Return the mean tokens written in an episode of a run, None if unknown."""
    summary = frames.summaries[run]
    episodes = summary.planned - summary.owed
    if summary.output_tokens is None or not episodes:
        return None
    return summary.output_tokens / episodes


FIGURES: Mapping[str, Callable[[Frames], Any]] = {
    "scores": scores,
    "levels": levels,
    "outcomes": outcomes,
    "reply_length": reply_length,
    "cost_and_score": cost_and_score,
}
"""Name, also that of the file, to what draws it."""
