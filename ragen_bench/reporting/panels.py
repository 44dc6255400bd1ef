"""Figures whose panels share the runs along the left side."""

from collections.abc import Sequence
from typing import Any

from ragen_bench.frames import Frames
from ragen_bench.reporting.drawing import label_runs, new_figure, row_height


def envs_of(frames: Frames) -> list[str]:
    """Return the environments of all runs, in order of appearance."""
    found = (env for one in frames.summaries.values() for env in one.envs)
    return list(dict.fromkeys(found))


def panels(runs: Sequence[str], count: int, width: float = 2.3) -> tuple[Any, Any]:
    """Return a figure whose panels share the runs along the left side."""
    figure = new_figure(2.4 + width * count, 1.4 + row_height(runs) * len(runs))
    figure.get_layout_engine().set(wspace=0.04)
    axes = figure.subplots(1, count, squeeze=False)[0]
    for i, ax in enumerate(axes):
        label_runs(ax, runs)
        if i:
            ax.set_yticklabels([])
    return figure, axes
