"""Pictures of trainings: every panel, dev points, alarms, mean and range of seeds."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("seaborn")

import starpo_curves  # noqa: E402
from click.testing import CliRunner  # noqa: E402

from ragen_bench.cli import cli  # noqa: E402
from ragen_bench.errors import InvalidSpec, MissingExtra, RecordError  # noqa: E402
from ragen_bench.starpo import curves  # noqa: E402
from ragen_bench.starpo.echo_trap import scan  # noqa: E402

pytestmark = pytest.mark.hf


@pytest.fixture
def figure(monkeypatch: pytest.MonkeyPatch):
    """Keep the figure that is saved."""
    from matplotlib.figure import Figure

    saved = []
    real = Figure.savefig

    def savefig(self, *arguments, **options):
        saved.append(self)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


def folder(path: Path, curve=starpo_curves.echoes, seed: int = 0, **more) -> Path:
    rows = starpo_curves.rows(curve, seed)
    for row in rows:
        row |= more
    return starpo_curves.write(path, rows)


def panel(figure, title):
    (found,) = [ax for ax in figure.axes if ax.get_title(loc="left") == title]
    return found


def drawn(ax, colour):
    return [line for line in ax.lines if line.get_color() == colour]


LINE, POINTS, ALARM = "#1d3557", "#e07a1f", "#c1121f"


def test_a_panel_shows_the_numbers_of_its_column(tmp_path, figure) -> None:
    place = folder(tmp_path / "a", kept_share=0.5)
    curves.draw([place], tmp_path / "c.png")
    rows = starpo_curves.rows(starpo_curves.echoes, 0)
    for shape in curves.PANELS:
        (line,) = drawn(panel(figure[0], shape.title), LINE)
        expected = [row.get(shape.column, 0.5) for row in rows]
        assert list(line.get_ydata()) == pytest.approx(expected)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_dev_scores_are_points(tmp_path, figure) -> None:
    place = folder(tmp_path / "a", dev_success=0.5, dev_return=0.25)
    curves.draw([place], tmp_path / "c.svg")
    (points,) = drawn(panel(figure[0], "Success"), POINTS)
    assert points.get_marker() == "o" and set(points.get_ydata()) == {0.5}


def test_every_alarm_is_a_line_in_every_panel(tmp_path, figure) -> None:
    place = folder(tmp_path / "a")
    curves.draw([place], tmp_path / "c.svg")
    alarms = scan(starpo_curves.rows(starpo_curves.echoes, 0))
    assert len(alarms) > 2
    for ax in figure[0].axes:
        vertical = [line for line in ax.lines if len(set(line.get_xdata())) == 1]
        places = sorted(line.get_xdata()[0] for line in vertical)
        assert places == sorted(alarm.iteration for alarm in alarms)
    labels = {text.get_text() for text in figure[0].legends[0].get_texts()}
    assert "alarm: echo trap" in labels


def test_several_trainings_are_their_mean_and_range(tmp_path, figure) -> None:
    places = [folder(tmp_path / f"s{seed}", seed=seed) for seed in range(3)]
    curves.draw(places, tmp_path / "c.svg")
    ax = panel(figure[0], "Success")
    tables = [starpo_curves.rows(starpo_curves.echoes, seed) for seed in range(3)]
    at = [[table[i]["success"] for table in tables] for i in range(100)]
    (line,) = drawn(ax, LINE)
    assert list(line.get_ydata()) == pytest.approx([sum(one) / 3 for one in at])
    (band,) = ax.collections
    points = band.get_paths()[0].vertices
    for iteration in (1, 50, 100):
        heights = points[points[:, 0] == iteration][:, 1]
        assert heights.min() == pytest.approx(min(at[iteration - 1]))
        assert heights.max() == pytest.approx(max(at[iteration - 1]))
    assert "mean and range of 3 trainings" in figure[0].get_suptitle()
    assert not {line.get_color() for line in ax.lines} - {LINE, POINTS, ALARM}


def test_the_same_training_gives_the_same_bytes(tmp_path) -> None:
    place = folder(tmp_path / "a")
    first = curves.draw([place], tmp_path / "1.svg").read_bytes()
    assert curves.draw([place], tmp_path / "2.svg").read_bytes() == first


def test_numbers_that_are_not_finite_are_left_out(tmp_path, figure) -> None:
    rows = starpo_curves.rows(starpo_curves.learns, 0, 5)
    rows[2]["grad_norm"] = float("inf")
    rows[3]["grad_norm"] = None
    curves.draw([starpo_curves.write(tmp_path / "a", rows)], tmp_path / "c.svg")
    (line,) = drawn(panel(figure[0], "Gradient norm before clipping"), LINE)
    assert list(line.get_xdata()) == [1, 2, 5]


def test_the_command_draws_and_says_where(tmp_path) -> None:
    place, target = folder(tmp_path / "a"), tmp_path / "new" / "c.png"
    result = CliRunner().invoke(cli, ["diagnose", str(place), "--plot", str(target)])
    assert result.exit_code == 0, result.output
    assert result.stderr == f"{target}\n" and target.exists()


@pytest.mark.parametrize("name", ["c.jpeg", "c"])
def test_another_kind_of_file_is_refused(tmp_path, name) -> None:
    with pytest.raises(InvalidSpec, match=r"must end in .png, .svg, .pdf"):
        curves.draw([folder(tmp_path / "a")], tmp_path / name)


def test_a_training_without_an_iteration_is_refused(tmp_path) -> None:
    (tmp_path / "metrics.csv").write_text("iteration,success\n")
    with pytest.raises(InvalidSpec, match="no iteration to be drawn"):
        curves.draw([tmp_path], tmp_path / "c.png")
    with pytest.raises(RecordError):
        curves.draw([tmp_path / "nothing"], tmp_path / "c.png")


def test_without_seaborn_the_install_line_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "seaborn", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ragen-bench\[report\]'"):
        curves.draw([tmp_path], tmp_path / "c.png")


def test_a_picture_looks_like_those_of_reports(tmp_path, figure) -> None:
    from ragen_bench.reporting.drawing import style

    # As mathematics, this name could not be drawn.
    place = folder(tmp_path / r"cost $\frac$")
    curves.draw([place], tmp_path / "c.svg")
    assert "$" in figure[0].get_suptitle()
    with style():
        import matplotlib

        weight = matplotlib.rcParams["axes.titleweight"]
    assert panel(figure[0], "Success")._left_title.get_fontweight() == weight
