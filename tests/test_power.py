"""The planner's sample sizes are the textbook's, and keep what they promise."""

import math

import numpy as np
import pytest

from ragen_bench.errors import InvalidSpec
from ragen_bench.power import Comparison, episodes, half_width, visible_gap


@pytest.mark.parametrize(
    ("gap", "unpaired", "paired"),
    [(0.10, 393, 197), (0.05, 1570, 785), (0.02, 9812, 4906)],
)
def test_episodes_are_those_of_the_textbook(gap, unpaired, paired) -> None:
    comparison = Comparison(gap=gap)
    assert episodes(comparison, paired=False) == unpaired
    assert episodes(comparison, paired=True) == paired


@pytest.mark.parametrize(
    ("n", "points"),
    [
        (10, 31.0),
        (30, 17.9),
        (64, 12.2),
        (100, 9.8),
        (128, 8.7),
        (256, 6.1),
        (512, 4.3),
        (1000, 3.1),
    ],
)
def test_half_widths_are_those_of_the_textbook(n, points) -> None:
    assert round(100 * half_width(n), 1) == points


def test_more_is_needed_for_more() -> None:
    def needed(**changes: float) -> int:
        return episodes(Comparison(**{"gap": 0.1, **changes}), paired=True)

    base = needed()
    assert needed(power=0.9) > base
    assert needed(alpha=0.01) > base
    assert needed(correlation=0.0) == episodes(Comparison(gap=0.1), paired=False) > base
    assert needed(success=0.2) < base
    # Outcomes that resemble each other tell more.
    assert needed(correlation=0.8) < base


def test_cells_share_the_work_by_their_weights() -> None:
    comparison = Comparison(gap=0.05)
    assert episodes(comparison, paired=True, weights=[0.25] * 4) == math.ceil(785 / 4)
    # Two environments, one of which has three cells.
    weights = [1 / 2, 1 / 6, 1 / 6, 1 / 6]
    expected = math.ceil(784.9 * (1 / 4 + 3 / 36))
    assert episodes(comparison, paired=True, weights=weights) == expected


@pytest.mark.parametrize("paired", [True, False])
def test_the_visible_gap_is_the_one_that_was_planned(paired) -> None:
    comparison = Comparison(gap=0.05)
    weights = [0.5, 0.25, 0.25]
    n = episodes(comparison, paired=paired, weights=weights)
    shown = [
        visible_gap(comparison, [count] * 3, paired=paired, weights=weights)
        for count in (n, n - 1)
    ]
    assert shown[0] <= 0.05 < shown[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gap": 0.0}, "gap is 0.0, but must be between 0 and 1"),
        ({"gap": 1.0}, "gap is 1.0"),
        ({"gap": float("nan")}, "gap is nan"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"power": 1.0}, "power is 1.0, but must be between alpha"),
        ({"power": 0.04}, "power is 0.04, but must be between alpha"),
        ({"success": 1.0}, "success is 1.0"),
        ({"success": 0.02}, "no rates -0.03 and 0.07 exist"),
        ({"success": 0.99}, "no rates 0.94 and 1.04 exist"),
        ({"correlation": 1.0}, "can only have -1 to 0.818"),
        ({"correlation": 0.9}, "can only have -1 to 0.818"),
        ({"correlation": -1.1}, "can only have -1 to 0.818"),
    ],
)
def test_what_cannot_be_is_refused(changes, message) -> None:
    with pytest.raises(InvalidSpec, match=message):
        Comparison(**{"gap": 0.1, **changes})


def found(comparison: Comparison, n: int, gap: float, runs: int = 4000) -> float:
    """Return how often McNemar's test tells two models apart, by simulation."""
    better, worse = comparison.success + gap / 2, comparison.success - gap / 2
    spread = math.sqrt(better * (1 - better) * worse * (1 - worse))
    both = better * worse + comparison.correlation * spread
    shares = [both, better - both, worse - both, 1 - better - worse + both]
    counts = np.random.default_rng(0).multinomial(n, shares, size=runs)
    only_better, only_worse = counts[:, 1], counts[:, 2]
    differ = np.maximum(only_better + only_worse, 1)
    z = np.abs(only_better - only_worse) / np.sqrt(differ)
    return float(np.mean(z > 1.959963984540054))


@pytest.mark.parametrize(
    "settings",
    [
        {"gap": 0.1},
        {"gap": 0.05},
        {"gap": 0.1, "power": 0.95},
        {"gap": 0.1, "correlation": 0.0},
        {"gap": 0.1, "success": 0.3, "correlation": 0.3},
    ],
    ids=str,
)
def test_mcnemar_finds_the_gap_as_often_as_promised(settings) -> None:
    comparison = Comparison(**settings)
    n = episodes(comparison, paired=True)
    # 4,000 runs are good to 0.013.
    power = found(comparison, n, comparison.gap)
    assert power == pytest.approx(comparison.power, abs=0.025)
    assert found(comparison, n // 2, comparison.gap) < comparison.power - 0.1
    assert found(comparison, n, 0.0) == pytest.approx(0.05, abs=0.015)
