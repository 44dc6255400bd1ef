"""The figure of outcomes: how episodes ended, as bars of shares."""

from collections.abc import Mapping, Sequence
from typing import Any

from ragen_bench.frames import Frames
from ragen_bench.records import OUTCOMES, Outcome
from ragen_bench.reporting.drawing import QUIET, short
from ragen_bench.reporting.panels import envs_of, panels

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


def outcomes(frames: Frames) -> Any:
    """Return how episodes ended, in shares, of all and of each environment."""
    import seaborn
    from matplotlib.patches import Patch
    from matplotlib.ticker import PercentFormatter

    runs, envs = list(frames.summaries), envs_of(frames)
    palette = seaborn.color_palette("colorblind", 10)
    figure, axes = panels(runs, 1 + len(envs))
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
