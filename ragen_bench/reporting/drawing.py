"""How figures look and are saved; nothing of it outlasts the drawing."""

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.errors import InvalidSpec, MissingExtra

INK = "#1f2328"
"""Of text and points."""
QUIET = "#6e7781"
"""Of lines that help."""
_LABEL = 30
"""Characters of a run's name on one line."""
_DPI = 130


def require(what: str) -> None:
    """Refuse at once where nothing can be drawn.

    Args:
        what: Is drawn, such as ``"a report"``.

    Raises:
        MissingExtra: The extra ``report`` is not installed.
    """
    try:
        import matplotlib  # noqa: F401 - said before anything is read
        import pandas  # noqa: F401
        import seaborn  # noqa: F401
    except ImportError as error:
        raise MissingExtra("report", what) from error


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Set the looks of all figures, and put back what was there before."""
    import matplotlib
    import seaborn

    looks = {
        **seaborn.axes_style("whitegrid"),
        "axes.edgecolor": "#d0d7de",
        "axes.labelcolor": INK,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "font.size": 9,
        "grid.color": "#eaeef2",
        "svg.hashsalt": "ragen-bench",
        "text.color": INK,
        "text.parse_math": False,  # a dollar sign in a name is a dollar sign
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(looks):
        yield


def new_figure(width: float, height: float) -> Any:
    """Return a figure of so many inches that no window manager knows of."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, target: Path) -> Path:
    """Write a figure with all that is drawn, and return the path.

    Raises:
        InvalidSpec: The file cannot be written.
    """
    # Nothing that depends on when it was drawn.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(
            target, dpi=_DPI, bbox_inches="tight", metadata=metadata.get(target.suffix)
        )
    except OSError as error:
        raise InvalidSpec(
            f"{str(target)!r} cannot be written: {error.strerror}"
        ) from error
    return target


def label(name: str) -> str:
    """Return a run's name on as many lines as it needs."""
    return "\n".join(textwrap.wrap(name, _LABEL, break_on_hyphens=True)) or name


def label_runs(ax: Any, runs: Sequence[str]) -> None:
    """Write the runs along the left side, the first on top."""
    ax.set_yticks(range(len(runs)), [label(run) for run in runs])
    ax.set_ylim(len(runs) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)


def log_axis(ax: Any) -> None:
    """Make the lower axis logarithmic, with plain numbers along it."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    ax.set_xscale("log")
    # Not 10 to a power: that would be mathematics, which is switched off for names.
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def row_height(runs: Sequence[str]) -> float:
    """Return the inches that a run needs along the left side."""
    lines = max(label(run).count("\n") + 1 for run in runs)
    return 0.22 + 0.16 * lines


def short(env_id: str) -> str:
    """Return an environment's name without its namespace."""
    return env_id.rpartition("/")[2]
