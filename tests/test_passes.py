"""pass@k and pass^k of runs with repeats: unbiased, with intervals, within bounds."""

import itertools

import numpy as np
import paid  # noqa: F401 - registers its model
import pytest
import toy
from test_scoring import GRID, config, episode, lost

import ragen_bench as rb
from ragen_bench.errors import InvalidSpec
from ragen_bench.passes import Tries, pass_at_k, pass_hat_k, passes
from ragen_bench.records import Summary
from ragen_bench.run_folder import read_episodes
from ragen_bench.scoring import score, summarise
from ragen_bench.tables import rows, table, to_text


def repeated(*solved: str, repeats: int = 3, **facts) -> Summary:
    """Return the summary of seeds whose repeats ended so, ``"+"`` for a success."""
    played = [
        episode(seed, end == "+", rep=rep, **facts)
        for seed, ends in enumerate(solved)
        for rep, end in enumerate(ends)
        if end != "."
    ]
    return summarise(config((GRID, 1), seeds=len(solved), repeats=repeats), played)


def near(value: float):
    return pytest.approx(value, abs=1e-9)


def test_the_chances_are_those_of_every_choice_of_k_repeats() -> None:
    summary = repeated("++-", "---", "+++", "--+")
    cell = summary.cells[f"{GRID}:1"]
    assert set(cell.pass_at_k) == set(cell.pass_hat_k) == {1, 2, 3}
    for k in (1, 2, 3):
        chosen = [list(itertools.combinations(s, k)) for s in ("++-", "---", "+++")]
        chosen.append(list(itertools.combinations("--+", k)))
        some = np.mean([np.mean(["+" in c for c in cs]) for cs in chosen])
        every = np.mean([np.mean(["-" not in c for c in cs]) for cs in chosen])
        assert cell.pass_at_k[k].mean == near(some)
        assert cell.pass_hat_k[k].mean == near(every)
    assert cell.pass_at_k[1].mean == cell.pass_hat_k[1].mean == cell.success.mean
    assert cell.pass_at_k[2].n == 4
    # An environment with one cell is that cell.
    assert summary.envs[GRID].pass_at_k == cell.pass_at_k


def test_intervals_hold_the_mean_and_stay_a_chance() -> None:
    cell = repeated(*["++-", "---", "+++", "--+"] * 4).cells[f"{GRID}:1"]
    for chances in (cell.pass_at_k, cell.pass_hat_k):
        for chance in chances.values():
            assert chance.low is not None and chance.high is not None
            assert chance.mean is not None
            assert 0 <= chance.low < chance.mean < chance.high <= 1


def test_perfect_repeats_do_not_claim_certainty() -> None:
    chance = repeated(*["+++"] * 8).cells[f"{GRID}:1"].pass_hat_k[3]
    assert chance.mean == 1.0
    assert chance.low is not None and 0.6 < chance.low < 0.8


def test_without_repeats_there_is_nothing_to_tell() -> None:
    cell = repeated("+", "-", repeats=1).cells[f"{GRID}:1"]
    assert cell.pass_at_k == cell.pass_hat_k == {}


def test_k_counts_only_seeds_that_have_k_tries() -> None:
    cell = repeated("++-", "-+.", "...").cells[f"{GRID}:1"]
    assert {k: chance.n for k, chance in cell.pass_at_k.items()} == {1: 2, 2: 2, 3: 1}
    assert cell.pass_at_k[3].mean == 1.0
    assert cell.pass_hat_k[2].mean == near((1 / 3 + 0) / 2)


def test_what_nobody_played_is_no_try() -> None:
    played = [episode(0, True), lost(0, "provider_error", rep=1)]
    summary = summarise(config((GRID, 1), seeds=1, repeats=2), played)
    assert set(summary.cells[f"{GRID}:1"].pass_at_k) == {1}


def test_a_task_without_success_has_none() -> None:
    played = [episode(0, None, rep=rep, **{"return": 0.5}) for rep in range(2)]
    summary = summarise(config((GRID, 1), seeds=1, repeats=2), played)
    assert summary.cells[f"{GRID}:1"].pass_at_k == {}
    assert summary.envs[GRID].pass_at_k == {}


def test_seeds_on_one_instance_are_one_cluster() -> None:
    apart = passes([Tries(cluster=str(i), n=2, c=i % 3) for i in range(6)], "x")
    same = passes([Tries(cluster="a", n=2, c=i % 3) for i in range(6)], "x")
    assert apart.at[2].interval.mean == same.at[2].interval.mean
    assert apart.at[2].interval.low is not None
    assert same.at[2].interval.low is None


@pytest.mark.parametrize("chance", [pass_at_k, pass_hat_k])
def test_more_tries_than_there_are_have_no_chance(chance) -> None:
    with pytest.raises(InvalidSpec, match="k is 4, but must lie from 1 to the 3 tries"):
        chance(3, 1, 4)


# Runs ---------------------------------------------------------------------------


def test_repeats_of_a_model_are_drawn_anew(tmp_path) -> None:
    rb.run(
        envs=toy.CELL,
        model="paid",
        agent="direct",
        temperature=1.0,
        seeds=2,
        repeats=8,
        out=tmp_path,
    )
    for seed in range(2):
        said = [e.turns[0].response for e in read_episodes(tmp_path) if e.seed == seed]
        assert len(set(said)) == 8
    assert set(score(tmp_path).cells[f"{toy.CELL}:1"].pass_at_k) == set(range(1, 9))


def test_a_table_shows_the_chances_that_are_asked_for() -> None:
    runs = {"mine": repeated("++-", "---", "+++", "--+")}
    shown = table(runs, pass_at=[1, 3])
    assert shown.columns[-4:] == ("pass@1", "pass^1", "pass@3", "pass^3")
    whole, env, cell = shown.rows
    assert whole[-4:] == ("-",) * 4
    assert env[-4:] == cell[-4:]
    assert cell[-2].startswith("0.75 [") and cell[-1].startswith("0.25 [")
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    assert "pass^3" in to_text(shown.rows, shown.columns)


def test_a_table_without_further_columns_is_the_plain_one() -> None:
    runs = {"mine": repeated("++-", "---")}
    assert table(runs).rows == rows(runs)


def test_a_table_refuses_more_tries_than_there_are() -> None:
    with pytest.raises(InvalidSpec, match="pass@4 needs 4 tries .* 'mine' has 3"):
        table({"mine": repeated("++-", "---")}, pass_at=[1, 4])
    with pytest.raises(InvalidSpec, match="pass@2 needs 2 tries .* has 1"):
        table({"mine": repeated("+", "-", repeats=1)}, pass_at=[2])
