"""Advantages without a critic, against numbers worked by hand."""

import math

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.starpo import advantages, gae  # noqa: E402

pytestmark = pytest.mark.hf

OF_GROUPS = {
    "group_normalized": advantages.group_normalized,
    "group_centred": advantages.group_centred,
    "leave_one_out": advantages.leave_one_out,
}
every_group_estimator = pytest.mark.parametrize(
    "estimator", OF_GROUPS.values(), ids=OF_GROUPS
)


def near(found, expected, abs: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=found.dtype), atol=abs, rtol=0
    )


def test_group_normalized_divides_by_the_sample_deviation() -> None:
    # Group 0: 1, 0, 0, 0 has mean 1/4 and squares 3/4; over n - 1 = 3 the deviation
    # is 1/2, so (3/4) / (1/2) = 1.5 and -0.5.  Group 1: 2, 4: mean 3, squares 2,
    # deviation sqrt(2), so -+1 / 1.41421 = -+0.707107.
    returns = torch.tensor([1.0, 2.0, 0.0, 0.0, 4.0, 0.0])
    groups = [0, 1, 0, 0, 1, 0]
    found = advantages.group_normalized(returns, groups, eps=0.0)
    near(found, [1.5, -0.707107, -0.5, -0.5, 0.707107, -0.5])


def test_group_normalized_may_divide_by_the_deviation_of_the_population() -> None:
    # Over n = 4: sqrt(3/16) = 0.433013, so 0.75 / 0.433013 = 1.732051, -0.577350.
    found = advantages.group_normalized(
        torch.tensor([1.0, 0.0, 0.0, 0.0]), ["g"] * 4, ddof=0, eps=0.0
    )
    near(found, [1.732051, -0.577350, -0.577350, -0.577350])


def test_group_normalized_adds_eps_to_the_deviation() -> None:
    # 0.75 / (0.5 + 0.25) = 1.
    found = advantages.group_normalized(
        torch.tensor([1.0, 0.0, 0.0, 0.0]), ["g"] * 4, eps=0.25
    )
    near(found, [1.0, -1 / 3, -1 / 3, -1 / 3])


def test_group_centred_leaves_out_the_deviation() -> None:
    found = advantages.group_centred(torch.tensor([1.0, 0.0, 0.0, 0.0]), ["g"] * 4)
    near(found, [0.75, -0.25, -0.25, -0.25])


def test_leave_one_out_compares_with_the_others() -> None:
    # 1 - (0 + 0 + 0) / 3 = 1;  0 - (1 + 0 + 0) / 3 = -1/3.
    found = advantages.leave_one_out(torch.tensor([1.0, 0.0, 0.0, 0.0]), ["g"] * 4)
    near(found, [1.0, -1 / 3, -1 / 3, -1 / 3])


@every_group_estimator
def test_a_flat_group_has_no_advantage_at_all(estimator) -> None:
    returns = torch.tensor([0.7, 0.7 + 1e-9, 0.7, 1.0, 0.0], dtype=torch.float64)
    found = estimator(returns, ["flat"] * 3 + ["wide"] * 2)
    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    assert (found[3:] != 0).all()


@every_group_estimator
def test_rounding_of_single_precision_is_no_spread(estimator) -> None:
    returns = torch.tensor([1.0, 1.0000001])
    assert returns[0] != returns[1]
    assert estimator(returns, [0, 0]).tolist() == [0.0, 0.0]


@every_group_estimator
def test_a_group_of_one_has_no_advantage(estimator) -> None:
    found = estimator(torch.tensor([5.0, 1.0, 0.0]), ["alone", "two", "two"])
    assert found[0] == 0
    assert found.isfinite().all()


@every_group_estimator
def test_groups_are_known_by_id_after_shuffling_and_dropping(estimator) -> None:
    # Sizes differ, so that no stride fits.
    returns = torch.tensor([1.0, 0.0, 3.0, 3.5, 5.0, 1.0, 2.0, 9.0])
    groups = ["a", "a", "b", "b", "c", "c", "c", "d"]
    whole = estimator(returns, groups)
    order = [4, 2, 7, 0, 6, 1, 5, 3]
    shuffled = estimator(returns[order], [groups[i] for i in order])
    near(shuffled, whole[order])
    # Groups "b" and "d" dropped: the others do not notice.
    kept = [0, 1, 4, 5, 6]
    near(estimator(returns[kept], [groups[i] for i in kept]), whole[kept])


@every_group_estimator
def test_ids_may_be_a_tensor(estimator) -> None:
    returns = torch.tensor([1.0, 0.0, 3.0, 5.0])
    near(
        estimator(returns, torch.tensor([9, 9, 2, 2])),
        estimator(returns, ["x", "x", "y", "y"]),
    )


@every_group_estimator
def test_advantages_of_a_group_sum_to_nothing(estimator) -> None:
    torch.manual_seed(0)
    returns = torch.randn(12, dtype=torch.float64)
    groups = [i % 3 for i in range(12)]
    found = estimator(returns, groups)
    for g in range(3):
        assert found[g::3].sum().abs() < 1e-9


@every_group_estimator
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_return_that_is_no_number_is_refused(estimator, bad: float) -> None:
    with pytest.raises(InvalidSpec, match="must be finite"):
        estimator(torch.tensor([1.0, bad]), [0, 0])


@every_group_estimator
def test_ids_and_returns_go_together(estimator) -> None:
    with pytest.raises(InvalidSpec, match="3 group ids"):
        estimator(torch.tensor([1.0, 2.0]), [0, 0, 0])


def test_ddof_is_checked() -> None:
    with pytest.raises(InvalidSpec, match="ddof is 2"):
        advantages.group_normalized(torch.tensor([1.0]), [0], ddof=2)


@every_group_estimator
def test_no_gradient_flows_into_returns(estimator) -> None:
    returns = torch.tensor([1.0, 0.0], requires_grad=True)
    assert not estimator(returns, [0, 0]).requires_grad


def test_whiten_counts_the_mask_alone() -> None:
    # 1, 2, 3: mean 2, unbiased variance (1 + 0 + 1) / 2 = 1.
    x = torch.tensor([[1.0, 99.0, 2.0], [3.0, -7.0, 5.0]])
    mask = torch.tensor([[1, 0, 1], [1, 0, 0]])
    near(advantages.whiten(x, mask), [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])


def test_whitened_numbers_have_mean_0_and_variance_1() -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(5, 40).double() * 3 + 7, torch.rand(5, 40) < 0.4
    inside = advantages.whiten(x, mask)[mask]
    assert inside.mean().abs() < 1e-9
    assert (inside.var() - 1).abs() < 1e-6
    assert (advantages.whiten(x, mask)[~mask] == 0).all()


def test_whiten_does_not_see_padding() -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(3, 6), torch.rand(3, 6) < 0.6
    wide = torch.cat([x, torch.full((3, 4), 1e6)], dim=1)
    wide_mask = torch.cat([mask, torch.zeros(3, 4, dtype=torch.bool)], dim=1)
    near(advantages.whiten(wide, wide_mask)[:, :6], advantages.whiten(x, mask))


def test_whitening_parts_is_not_whitening_the_whole() -> None:
    # Why it belongs before the split into micro-batches.
    x = torch.tensor([0.0, 1.0, 10.0, 11.0])
    parts = torch.cat([advantages.whiten(x[:2]), advantages.whiten(x[2:])])
    assert (parts - advantages.whiten(x)).abs().max() > 0.1


@pytest.mark.parametrize("x", [[0.3, 0.3, 0.3], [5.0], []])
def test_whiten_of_equal_numbers_is_nothing(x: list[float]) -> None:
    assert (advantages.whiten(torch.tensor(x)) == 0).all()


def test_reinforce_pp_whitens_returns_over_action_tokens() -> None:
    # gamma 1/2.  Row 0 samples columns 0, 1 and 3, and column 3 earns 4: the returns
    # are 1, 2, 4.  Row 1 samples column 0 and earns 1.
    # 1, 2, 4, 1: mean 2, squares 1 + 0 + 4 + 1 = 6, variance 6 / 3 = 2.
    rewards = torch.tensor([[0.0, 0.0, 0.0, 4.0], [1.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0]]).bool()
    near(gae.discounted_returns(rewards, mask, 0.5), [[1, 2, 0, 4], [1, 0, 0, 0]])
    root = math.sqrt(2)
    near(
        advantages.reinforce_pp(rewards, mask, 0.5),
        [[-1 / root, 0, 0, 2 / root], [-1 / root, 0, 0, 0]],
    )


def test_rebn_normalises_over_the_batch_of_turns() -> None:
    # Two trajectories of turn rewards (0, 1) and (2), gamma 1/2: returns 0.5, 1, 2;
    # mean 3.5 / 3 = 1.166667, squares 0.444444 + 0.027778 + 0.694444 = 1.166667,
    # variance 0.583333, deviation 0.763763.
    rewards = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    turns = torch.tensor([[1, 1], [1, 0]]).bool()
    returns = gae.discounted_returns(rewards, turns, 0.5)[turns]
    near(returns, [0.5, 1.0, 2.0])
    near(advantages.rebn(returns), [-0.872872, -0.218218, 1.091089])
