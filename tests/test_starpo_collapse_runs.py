"""Trainings that really collapsed or did not, replayed through the detector.

Made by ``scripts/fit_echo_trap.py --train``; thresholds were chosen on seeds 0 to 4.
The cliffs, which had no say either, had no bonus for entropy but a rate that rises to
0.02 within 60 steps; success is lost within three iterations there.
"""

import statistics
from pathlib import Path

import pytest

from ragen_bench.starpo.diagnosis import diagnose
from ragen_bench.starpo.echo_trap import EchoTrap
from ragen_bench.starpo.training_log import read_metrics

DATA = Path(__file__).parent / "data" / "collapse"
CHOSEN = range(5)


def seeds(kind: str) -> list[int]:
    return sorted(int(p.stem.split("-")[1]) for p in DATA.glob(f"{kind}-*.csv"))


def table(kind: str, seed: int) -> Path:
    return DATA / f"{kind}-{seed}.csv"


def test_there_are_seeds_that_thresholds_were_not_chosen_on() -> None:
    for kind in ("collapsing", "healthy"):
        assert set(seeds(kind)) > set(CHOSEN)


@pytest.mark.parametrize("seed", seeds("collapsing"))
def test_a_collapse_is_told_before_success_has_fallen_by_half(seed) -> None:
    found = diagnose(table("collapsing", seed))
    assert found.verdict == "collapsed"
    assert found.best_success is not None and found.best_success > 0.5
    assert found.lead_time is not None and found.lead_time > 0


@pytest.mark.parametrize("seed", seeds("healthy"))
def test_a_training_that_learns_is_left_alone(seed) -> None:
    found = diagnose(table("healthy", seed))
    assert found.half_fall is None
    assert found.trapped_at is None
    assert found.last_success is not None and found.last_success > 0.5


def test_a_collapse_leaves_time_to_act() -> None:
    leads = [diagnose(table("collapsing", s)).lead_time for s in seeds("collapsing")]
    assert statistics.median(lead for lead in leads if lead is not None) >= 2


@pytest.mark.parametrize("seed", seeds("cliff"))
def test_a_cliff_is_told_no_later_than_the_iteration_after(seed) -> None:
    found = diagnose(table("cliff", seed))
    assert found.verdict == "collapsed"
    assert found.lead_time is not None and found.lead_time >= -1


@pytest.mark.parametrize(
    ("kind", "seed"),
    [(kind, seed) for kind in ("collapsing", "healthy") for seed in seeds(kind)],
)
def test_the_stop_comes_in_a_collapse_alone(kind, seed) -> None:
    trap = EchoTrap()
    stops = []
    for row in read_metrics(table(kind, seed)):
        trap.watch(row)
        stops.append(trap.should_stop)
    assert any(stops) == (kind == "collapsing")


def test_tables_are_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 300_000
