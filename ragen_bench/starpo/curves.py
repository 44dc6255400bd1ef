"""Pictures of trainings: what ``metrics.csv`` holds, panel by panel, with alarms."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.errors import InvalidSpec
from ragen_bench.reporting.drawing import QUIET, new_figure, require, save, style
from ragen_bench.starpo.echo_trap import Alarm, scan
from ragen_bench.starpo.training_log import read_metrics

SUFFIXES = (".png", ".svg", ".pdf")
_WIDTH, _HEIGHT = 4, 2
"""Panels."""
_EMPTY = {"ha": "center", "color": QUIET, "backgroundcolor": "white"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One quantity over iterations."""

    title: str
    column: str
    dev: str | None = None
    """Column of the same quantity on the dev split."""
    low: float | None = 0.0
    """Least value shown, None for what the numbers ask for."""
    high: float | None = None
    share: bool = False
    """Whether it is written in per cent."""


PANELS = (
    Panel(title="Return", column="return_mean", dev="dev_return", low=None),
    Panel(title="Success", column="success", dev="dev_success", high=1.0, share=True),
    Panel(title="Spread of returns in a group", column="spread_mean"),
    Panel(title="Groups kept", column="kept_share", high=1.0, share=True),
    Panel(title="Entropy, nats a token", column="entropy"),
    Panel(title="Gradient norm before clipping", column="grad_norm"),
    Panel(title="Tokens a reply", column="reply_tokens"),
    Panel(title="Valid replies", column="valid_rate", high=1.0, share=True),
)


def draw(
    folders: Sequence[Path], target: Path, columns: Mapping[str, str] | None = None
) -> Path:
    """Draw the metrics of trainings into a file.

    One training is a line in each panel, with all of its alarms.  Several, such as
    seeds, are their mean and their range, with the combined alarms of each.

    Args:
        folders: Of trainings, or CSV files of metrics.
        target: Ends in one of `SUFFIXES`.
        columns: Our names to those in the files, where they differ.

    Raises:
        InvalidSpec: It ends in something else, no training has an iteration, or the
            file cannot be written.
        MissingExtra: The extra ``report`` is not installed.
        RecordError: Some metrics cannot be read.
    """
    if target.suffix not in SUFFIXES:
        raise InvalidSpec(
            f"--plot is {str(target)!r}, but must end in {', '.join(SUFFIXES)}"
        )
    require("a picture of a training")
    import pandas

    rows = [read_metrics(folder, columns) for folder in folders]
    frame = pandas.concat(
        [pandas.DataFrame(one).assign(training=i) for i, one in enumerate(rows)]
    )
    if frame.empty:
        raise InvalidSpec(f"{', '.join(map(str, folders))}: no iteration to be drawn")
    alarms = [alarm for one in rows for alarm in _shown(scan(one), len(folders))]
    with style():
        figure = new_figure(15, 6.5)
        axes = figure.subplots(_HEIGHT, _WIDTH, sharex=True)
        colours = _colours(alarms)
        for panel, ax in zip(PANELS, axes.flat, strict=True):
            _panel(ax, panel, frame)
            for alarm in alarms:
                ax.axvline(alarm.iteration, **_line(alarm.sign, colours))
        for ax in axes[-1]:
            ax.set_xlabel("iteration")
        _label(figure, axes, folders, colours)
        return save(figure, target)


def _line(sign: str, colours: Mapping[str, Any]) -> dict[str, Any]:
    """Return how an alarm looks: the combined one broad, signs dashed upon it."""
    if sign == "echo_trap":
        return {"color": colours[sign], "linewidth": 2.2, "alpha": 0.5, "zorder": 1}
    dashes = (0, (4, 2))
    return {"color": colours[sign], "linewidth": 1, "linestyle": dashes, "zorder": 1.1}


def _shown(alarms: Sequence[Alarm], trainings: int) -> list[Alarm]:
    """Return the alarms that a picture of so many trainings has room for."""
    if trainings == 1:
        return list(alarms)
    return [alarm for alarm in alarms if alarm.sign == "echo_trap"]


def _colours(alarms: Sequence[Alarm]) -> dict[str, Any]:
    """Return a colour for each sign, the combined one red, in order of appearance."""
    import seaborn

    palette = seaborn.color_palette("Dark2", 8)
    signs = dict.fromkeys(alarm.sign for alarm in alarms if alarm.sign != "echo_trap")
    colours: dict[str, Any] = dict(zip(signs, palette, strict=False))
    return {**colours, "echo_trap": "#c1121f"}


def _panel(ax: Any, panel: Panel, frame: Any) -> None:
    """Draw a quantity: its line or mean and range, and its points on dev."""
    import numpy
    import seaborn
    from matplotlib.ticker import PercentFormatter

    ax.set_title(panel.title)
    looks: list[tuple[str | None, dict[str, Any]]] = [
        (panel.column, {"color": "#1d3557", "linewidth": 1.4}),
        (panel.dev, {"color": "#e07a1f", "linewidth": 0.8, "marker": "o", "ms": 4}),
    ]
    for column, look in looks:
        if column is None or column not in frame:
            continue
        known = frame[numpy.isfinite(frame[column].astype(float))]
        if len(known):
            seaborn.lineplot(
                known,
                x="iteration",
                y=column,
                ax=ax,
                # The whole range: there are few seeds, and each counts.
                errorbar=("pi", 100) if frame["training"].nunique() > 1 else None,
                err_kws={"alpha": 0.2, "linewidth": 0},
                legend=False,
                **look,
            )
    if not ax.lines:
        ax.text(0.5, 0.5, "not known", transform=ax.transAxes, **_EMPTY)
    _limits(ax, panel)
    if panel.share:
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("")
    ax.set_ylabel("")


def _limits(ax: Any, panel: Panel) -> None:
    low, high = ax.get_ylim()
    high = high if panel.high is None else 1.03 * panel.high
    if panel.low is not None and high > panel.low:
        # A line at 0 lies above the frame, not under it.
        low = panel.low - 0.03 * (high - panel.low)
    ax.set_ylim(low, high)


def _label(
    figure: Any, axes: Any, folders: Sequence[Path], colours: dict[str, Any]
) -> None:
    """Write the title, and what lines and points mean."""
    from matplotlib.lines import Line2D

    many = len(folders) > 1
    names = ", ".join(folder.resolve().name for folder in folders)
    title = f"{names}: mean and range of {len(folders)} trainings" if many else names
    figure.suptitle(title, x=0.005, ha="left", fontweight="bold")
    handles = [Line2D([], [], color="#1d3557", label="train, sampled")]
    if any(line.get_marker() == "o" for line in axes.flat[0].lines):
        handles.append(
            Line2D([], [], color="#e07a1f", marker="o", ms=4, label="dev, greedy")
        )
    drawn = {line.get_color() for line in axes.flat[0].lines}
    for sign, colour in colours.items():
        if colour in drawn:
            label = "alarm: echo trap" if sign == "echo_trap" else f"sign: {sign}"
            handles.append(Line2D([], [], label=label, **_line(sign, colours)))
    figure.legend(
        handles=handles, loc="outside lower left", ncols=len(handles), frameon=False
    )
