"""A report holds what its runs scored, in figures and tables that can be read."""

import re
from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("seaborn")

from click.testing import CliRunner  # noqa: E402
from test_frames import folder  # noqa: E402

import ragen_bench as rb  # noqa: E402
from ragen_bench.cli import cli  # noqa: E402
from ragen_bench.reporting import figures  # noqa: E402
from ragen_bench.reporting.drawing import style  # noqa: E402
from ragen_bench.reporting.latex import escaped, to_latex  # noqa: E402
from ragen_bench.reporting.report import run_names  # noqa: E402

pytestmark = pytest.mark.report

LONG = "a-model-with-a-very-long-name_70B & more $x$ 100% instruct-2026-11-30"


def drawn(name: str, frames):
    with style():
        figure = getattr(figures, name)(frames)
        figure.draw_without_rendering()
    return figure


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    names = [LONG, *(f"run-{i}" for i in range(11))]
    return {name: folder(root / f"r{i}") for i, name in enumerate(names)}


def some(runs, count: int):
    return rb.load_runs(dict(list(runs.items())[:count]))


def test_a_report_is_written_whole(runs, tmp_path):
    paths = [str(path) for path in list(runs.values())[:2]]
    out = tmp_path / "out"
    result = CliRunner().invoke(cli, ["report", *paths, "--out", str(out), "--turns"])
    assert result.exit_code == 4, result.output  # of a board that cannot rank them
    page = (out / "report.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert links and all((out / link).is_file() for link in links)
    assert {Path(link).name for link in links} >= {
        "scores.png",
        "levels.png",
        "outcomes.png",
        "reply_length.png",
        "cells.tex",
        "ranks.tex",
        "pairs.md",
        "episodes.parquet",
        "turns.parquet",
    }
    assert "tied" in page and "![Scores by level]" in page


def test_one_run_has_no_ranks_and_says_what_is_not_drawn(runs, tmp_path):
    path = str(next(iter(runs.values())))
    CliRunner().invoke(cli, ["report", path, "--out", str(tmp_path)])
    page = (tmp_path / "report.md").read_text()
    assert "## Ranks" not in page
    assert "Not drawn: no run knows both" in page
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("name", ["scores", "levels", "outcomes", "reply_length"])
def test_no_label_is_clipped_and_all_runs_are_named(runs, name, count):
    figure = drawn(name, some(runs, count))
    ax = figure.axes[0]
    labels = [text for text in ax.get_yticklabels() if text.get_text()]
    assert len(labels) == count
    assert "".join(labels[0].get_text().split()) == "".join(LONG.split())
    boxes = [text.get_window_extent() for text in labels]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    below = sorted(boxes, key=lambda box: -box.y1)
    pairs = zip(below, below[1:], strict=False)
    assert all(upper.y0 >= lower.y1 - 1 for upper, lower in pairs)


def test_points_stand_at_the_scores(runs):
    frames = some(runs, 2)
    (panel, *_) = drawn("scores", frames).axes
    points = [line.get_xdata()[0] for line in panel.lines if line.get_marker() == "o"]
    scores = [one.score.mean for one in frames.summaries.values()]
    assert points == [score for score in scores if score is not None]


def test_bars_are_the_shares_of_outcomes(runs):
    (panel, *_) = drawn("outcomes", some(runs, 1)).axes
    assert [bar.get_width() for bar in panel.patches] == [0.25] * 4


def test_drawing_leaves_no_state_behind(runs, tmp_path):
    import matplotlib
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    figures.draw_all(some(runs, 1), tmp_path)
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_latex_is_escaped():
    assert escaped("a_b & 100% $x^2$ {~#} \\") == (
        r"a\_b \& 100\% \$x\textasciicircum{}2\$ \{\textasciitilde{}\#\} "
        r"\textbackslash{}"
    )
    text = to_latex(
        [(LONG, "all", "-0.50 [-1.00, 0.00]", "-")], ("run", "cell", "a", "b")
    )
    assert r"\toprule" in text and r"\begin{tabular}{llrr}" in text
    row = next(line for line in text.splitlines() if "instruct" in line)
    assert len(re.findall(r"(?<!\\)&", row)) == 3 and row.endswith(r" & -- \\")
    assert "$-$0.50" in row and r"100\%" in row


def test_runs_are_named_by_their_folders_unless_two_share_a_name():
    one, two = Path("runs/a"), Path("runs/b")
    assert list(run_names([one, two, one])) == ["a", "b"]
    assert list(run_names([one, Path("old/a")])) == ["runs/a", "old/a"]


def test_a_place_that_cannot_be_written_is_said(runs, tmp_path):
    (tmp_path / "file").write_text("")
    path = str(next(iter(runs.values())))
    result = CliRunner().invoke(cli, ["report", path, "--out", str(tmp_path / "file")])
    assert result.exit_code == 2 and "cannot be written" in result.stderr
