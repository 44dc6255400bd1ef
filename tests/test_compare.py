"""`compare` tells who is better, on what is shared, and says what it left out."""

import json
import shutil
from pathlib import Path

import pytest
import toy  # noqa: F401 - registers the task
from click.testing import CliRunner
from contest import ARMS, GRID, cell, played

import ragen_bench as rb
from ragen_bench.cli import cli
from ragen_bench.errors import InvalidSpec
from ragen_bench.ranking.side_by_side import side_by_side, to_json, to_text

ONE, TWO = f"{GRID}:1", f"{GRID}:2"


def compared(*arguments: object, code: int = 0):
    result = CliRunner().invoke(cli, ["compare", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Return a folder with runs: two good, one bad, one of fewer seeds."""
    root = tmp_path_factory.mktemp("runs")
    cells = ["ragen/Bandit-v0:1", "ragen/Sokoban-v0:1"]
    rb.run(envs=cells, seeds=8, agent="oracle", out=root / "good")
    shutil.copytree(root / "good", root / "twin")
    rb.run(envs=cells, seeds=8, agent="null", out=root / "bad")
    rb.run(envs=cells, seeds=5, agent="null", out=root / "few")
    rb.run(envs=["ragen/Bandit-v0:2"], seeds=2, agent="null", out=root / "other")
    return root


def test_the_better_one_wins_and_twins_are_tied(runs):
    text = compared(runs / "good", runs / "twin", runs / "bad").stdout
    assert "no number of seeds" in text and "tied" in text
    assert text.count("apart already") == 2
    assert f"{runs / 'good'} beats {runs / 'bad'}" in text
    found = json.loads(
        compared(runs / "good", runs / "twin", runs / "bad", "--json").stdout
    )
    ranks = {Path(run["run"]).name: run["rank"] for run in found["runs"]}
    assert ranks == {"good": [1, 2], "twin": [1, 2], "bad": [3, 3]}
    twins = found["pairs"][0]
    assert (twins["gap"], twins["differences"], twins["winner"]) == (0, [], None)


def test_scores_are_those_of_the_summary_where_all_is_shared(runs):
    found = json.loads(compared(runs / "good", runs / "bad", "--json").stdout)
    for run in found["runs"]:
        summary = rb.score(run["run"])
        assert run["score"] == summary.score.model_dump()
        assert run["left_out"] == 0
    assert [one["cell"] for one in found["pairs"][0]["cells"]] == [
        "ragen/Bandit-v0:1",
        "ragen/Sokoban-v0:1",
    ]


def test_only_shared_seeds_are_compared_and_the_rest_is_counted(runs):
    text = compared(runs / "good", runs / "few").stdout
    assert "on the 10 episodes that all have; left out: 6 of" in text
    found = json.loads(compared(runs / "good", runs / "few", "--json").stdout)
    assert [run["left_out"] for run in found["runs"]] == [6, 0]
    assert found["pairs"][0]["shared"] == 10


def test_nothing_shared_is_refused_with_the_reason(runs):
    result = compared(runs / "good", runs / "other", code=2)
    assert "have no episode in common: cells ragen/Bandit-v0:1" in result.stderr


def test_one_run_alone_is_refused(runs):
    assert "stands alone" in compared(runs / "good", code=2).stderr
    assert "stands alone" in compared(runs / "good", runs / "good", code=2).stderr


def test_what_is_neither_run_nor_entry_is_refused(runs):
    result = compared(runs / "good", runs / "nowhere", code=2)
    assert "neither a run folder nor an entry" in result.stderr


def test_differences_are_named_all_or_a_few(runs):
    few = compared(runs / "good", runs / "bad").stdout
    every = compared(runs / "good", runs / "bad", "--differences").stdout
    assert few.count(" got more (") == 3 and "--differences names all" in few
    assert every.count(" got more (") > 8 and "names all" not in every


def test_markdown_is_tables(runs):
    text = compared(runs / "good", runs / "bad", "--markdown").stdout
    assert text.startswith("| run | class | rank | score |")
    excluded = compared(runs / "good", runs / "bad", "--markdown", "--json", code=2)
    assert "exclude each other" in excluded.stderr


def test_an_incomplete_run_is_compared_on_what_it_has(runs, tmp_path):
    short = tmp_path / "short"
    shutil.copytree(runs / "bad", short)
    lines = (short / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (short / "episodes.jsonl").write_bytes(b"".join(lines[:-3]))
    text = compared(runs / "good", short, code=3).stdout
    assert "on the 13 episodes that all have" in text


def test_agents_of_one_name_are_refused():
    one = played("a", {ONE: cell([1, 0])})
    with pytest.raises(InvalidSpec, match="'a' comes twice"):
        side_by_side([one, one])


def test_an_environment_that_one_lacks_is_left_out_of_the_scores():
    agents = [
        played("a", {ONE: cell([1, 1, 0, 1]), f"{ARMS}:1": cell([0, 0])}),
        played("b", {ONE: cell([0, 0, 0, 1])}),
    ]
    found = side_by_side(agents)
    assert found.left_out == {"a": 2, "b": 0}
    assert found.scores["a"].score.mean == pytest.approx(0.75)
    assert list(found.scores["a"].envs) == [GRID]
    assert json.dumps(to_json(found), allow_nan=False)
    assert "left out: 2 of a" in to_text(found)


def test_one_episode_is_no_episodes():
    agents = [
        played("a", {ONE: cell([1, None, 1])}),
        played("b", {ONE: cell([None, 0, 0])}),
    ]
    text = to_text(side_by_side(agents))
    assert "a and b differ on 1 of 1 episode: " in text
    assert "Compared on the 1 episode that all have; left out: 1 of a, 1 of b." in text
    assert "cannot be said" in text


def test_how_many_seeds_would_separate_two_is_said():
    wins = [1] * 13 + [0] * 17
    other = [1] * 9 + [0] * 4 + [1] * 2 + [0] * 15
    agents = [played("a", {ONE: cell(wins)}), played("b", {ONE: cell(other)})]
    found = side_by_side(agents)
    (one,) = found.comparisons
    assert one.verdict == "tied" and one.seeds_needed > 30
    assert f"{one.seeds_needed:,} seeds a cell ({one.seeds_needed - 30:,} more)" in (
        to_text(found)
    )
