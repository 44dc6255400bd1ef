"""The figures of a report: scores, levels, outcomes, reply lengths, cost and score."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.frames import Frames
from ragen_bench.records import OUTCOMES, Interval, Outcome
from ragen_bench.reporting.drawing import (
    INK,
    QUIET,
    label,
    label_runs,
    log_axis,
    new_figure,
    row_height,
    save,
    short,
    style,
)

_COLOURS: Mapping[Outcome, int] = {
    "solved": 2,
    "failed": 3,
    "finished": 0,
    "turn_limit": 8,
    "context_overflow": 4,
    "agent_error": 5,
    "provider_error": 7,
    "timeout": 9,
}
"""Each outcome's place in seaborn's colour-blind palette."""
_OWED = "#ffffff"
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
    envs = _envs(frames)
    panels: list[tuple[str, list[Interval | None]]] = [
        ("all", [frames.summaries[run].score for run in runs])
    ]
    for env in envs:
        known = [frames.summaries[run].envs.get(env) for run in runs]
        panels.append((short(env), [one.normalized if one else None for one in known]))
    figure, axes = _panels(runs, len(panels))
    for ax, (title, intervals) in zip(axes, panels, strict=True):
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
    envs = _envs(frames)
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


def outcomes(frames: Frames) -> Any:
    """Return how episodes ended, in shares, of all and of each environment."""
    import seaborn
    from matplotlib.patches import Patch
    from matplotlib.ticker import PercentFormatter

    runs, envs = list(frames.summaries), _envs(frames)
    palette = seaborn.color_palette("colorblind", 10)
    figure, axes = _panels(runs, 1 + len(envs))
    seen: set[str] = set()
    for ax, env in zip(axes, [None, *envs], strict=True):
        for row, run in enumerate(runs):
            counts = _counts(frames, run, env)
            total, left = sum(counts.values()), 0.0
            for name, count in counts.items():
                if count:
                    seen.add(name)
                    share = count / total
                    ax.barh(row, share, 0.72, left, **_bar(name, palette))
                    left += share
        ax.set_title("all" if env is None else short(env))
        ax.set_xlim(0, 1)
        ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        ax.set_xticks([0, 0.5, 1])
        ax.set_xlabel("share of planned episodes" if env is None else "share")
    handles = [
        Patch(label=name.replace("_", " "), **_bar(name, palette))
        for name in (*OUTCOMES, "owed")
        if name in seen
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8
    )
    return figure


def _bar(name: str, palette: Sequence[Any]) -> dict[str, Any]:
    if name == "owed":
        return {
            "facecolor": _OWED,
            "edgecolor": QUIET,
            "hatch": "////",
            "linewidth": 0.5,
        }
    colour = palette[_COLOURS[name]]  # type: ignore[index]
    return {"facecolor": colour, "edgecolor": "white", "linewidth": 0.5}


def _counts(frames: Frames, run: str, env: str | None) -> dict[str, int]:
    """Return how many episodes of a run ended in which way."""
    summary = frames.summaries[run]
    if env is None:
        return {**summary.outcomes, "owed": summary.owed}
    known = summary.envs.get(env)
    return dict(known.outcomes) if known else {}


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
    figure, (ax,) = _panels(runs, 1, width=5.5)
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


def _envs(frames: Frames) -> list[str]:
    """Return the environments of all runs, in order of appearance."""
    found = (env for one in frames.summaries.values() for env in one.envs)
    return list(dict.fromkeys(found))


def _panels(runs: Sequence[str], count: int, width: float = 2.3) -> tuple[Any, Any]:
    """Return a figure whose panels share the runs along the left side."""
    figure = new_figure(2.4 + width * count, 1.4 + row_height(runs) * len(runs))
    figure.get_layout_engine().set(wspace=0.04)
    axes = figure.subplots(1, count, squeeze=False)[0]
    for i, ax in enumerate(axes):
        label_runs(ax, runs)
        if i:
            ax.set_yticklabels([])
    return figure, axes


FIGURES: Mapping[str, Callable[[Frames], Any]] = {
    "scores": scores,
    "levels": levels,
    "outcomes": outcomes,
    "reply_length": reply_length,
    "cost_and_score": cost_and_score,
}
"""Name, also that of the file, to what draws it."""
