"""Advantages by a critic, against numbers worked by hand."""

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.starpo import gae  # noqa: E402

pytestmark = pytest.mark.hf

ESTIMATORS = {
    "gae": lambda rollout: gae.gae(rollout, 0.5, 0.5),
    "gae_turns": lambda rollout: gae.gae_turns(rollout, 0.5, 0.5),
    "gae_bilevel": lambda rollout: gae.gae_bilevel(rollout, 0.9, 0.5, 0.5),
}
every_estimator = pytest.mark.parametrize(
    "estimator", ESTIMATORS.values(), ids=ESTIMATORS
)


def near(found, expected, abs: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=found.dtype), atol=abs, rtol=0
    )


def rollout(rewards, values, mask, ends) -> gae.Rollout:
    return gae.Rollout(
        rewards=torch.as_tensor(rewards).float(),
        values=torch.as_tensor(values).float(),
        mask=torch.as_tensor(mask).bool(),
        turn_ends=torch.as_tensor(ends).bool(),
    )


def columns(one: gae.Rollout, keep) -> gae.Rollout:
    return rollout(
        one.rewards[..., keep],
        one.values[..., keep],
        one.mask[..., keep],
        one.turn_ends[..., keep],
    )


# Two turns of two tokens with an observation of two between them.  The first turn
# earns nothing, the second 1.  What the critic says of observations is never used.
TWO_TURNS = rollout(
    rewards=[0, 0, 0, 0, 0, 1],
    values=[0.4, 0.2, 77, 88, 0.6, 0.8],
    mask=[1, 1, 0, 0, 1, 1],
    ends=[0, 1, 0, 0, 0, 1],
)


def test_gae_of_tokens() -> None:
    # gamma = lam = 1/2, from the right:
    #   delta = 1 - 0.8 = 0.2                         A = 0.2
    #   delta = 0.5 * 0.8 - 0.6 = -0.2                A = -0.2 + 0.25 * 0.2 = -0.15
    #   delta = 0.5 * 0.6 - 0.2 = 0.1                 A = 0.1 + 0.25 * -0.15 = 0.0625
    #   delta = 0.5 * 0.2 - 0.4 = -0.3                A = -0.3 + 0.25 * 0.0625
    found = gae.gae(TWO_TURNS, 0.5, 0.5)
    near(found.advantages, [-0.284375, 0.0625, 0, 0, -0.15, 0.2])
    # Plus the values.
    near(found.returns, [0.115625, 0.2625, 0, 0, 0.45, 1.0])
    assert found.value_mask.tolist() == TWO_TURNS.mask.tolist()


def test_gae_with_lambda_1_is_return_less_value_and_with_0_the_error() -> None:
    # Discounted returns with gamma 1/2: 1/8, 1/4, 1/2, 1.
    found = gae.gae(TWO_TURNS, 0.5, 1.0)
    near(found.returns, [0.125, 0.25, 0, 0, 0.5, 1.0])
    found = gae.gae(TWO_TURNS, 0.5, 0.0)
    near(found.advantages, [-0.3, 0.1, 0, 0, -0.2, 0.2])


def test_gae_of_turns_has_one_step_a_reply() -> None:
    # Values before the turns: 0.4 and 0.6.  gamma = lam = 1/2:
    #   delta_1 = 1 - 0.6 = 0.4                       A_1 = 0.4
    #   delta_0 = 0 + 0.5 * 0.6 - 0.4 = -0.1          A_0 = -0.1 + 0.25 * 0.4 = 0
    found = gae.gae_turns(TWO_TURNS, 0.5, 0.5)
    near(found.advantages, [0, 0, 0, 0, 0.4, 0.4])
    # The critic is asked before each reply: 0.4 + 0 and 0.6 + 0.4.
    near(found.returns, [0.4, 0, 0, 0, 1.0, 0])
    assert found.value_mask.int().tolist() == [1, 0, 0, 0, 1, 0]


def test_gae_of_turns_counts_every_reward_within_the_turn() -> None:
    # As above, but the first turn has 0.2 on its first token: delta_0 = 0.1,
    # A_0 = 0.1 + 0.1.
    one = rollout(
        [0.2, 0, 0, 0, 0, 1], TWO_TURNS.values, TWO_TURNS.mask, TWO_TURNS.turn_ends
    )
    near(gae.gae_turns(one, 0.5, 0.5).advantages, [0.2, 0.2, 0, 0, 0.4, 0.4])


def test_bilevel_gae_discounts_across_a_turn_that_earned_nothing() -> None:
    # Turn ends have the values 0.2 and 0.8.  gamma_turn = lam = 1/2:
    #   delta_1 = 1 - 0.8 = 0.2                       A_1 = 0.2
    #   delta_0 = 0 + 0.5 * 0.8 - 0.2 = 0.2           A_0 = 0.2 + 0.25 * 0.2 = 0.25
    # Tokens, gamma_token = 0.9; each turn ends with the reward A + v, so its last
    # advantage is A again:
    #   turn 1: delta = 0.9 * 0.8 - 0.6 = 0.12        0.12 + 0.45 * 0.2 = 0.21
    #   turn 0: delta = 0.9 * 0.2 - 0.4 = -0.22       -0.22 + 0.45 * 0.25 = -0.1075
    found = gae.gae_bilevel(TWO_TURNS, 0.9, 0.5, 0.5)
    near(found.advantages, [-0.1075, 0.25, 0, 0, 0.21, 0.2])
    near(found.returns, [0.2925, 0.45, 0, 0, 0.81, 1.0])


def test_bilevel_gae_ends_with_a_turn_that_earned_nothing() -> None:
    # The first turn earns 1, the last 0.
    #   delta_1 = 0 - 0.8 = -0.8                      A_1 = -0.8
    #   delta_0 = 1 + 0.5 * 0.8 - 0.2 = 1.2           A_0 = 1.2 + 0.25 * -0.8 = 1.0
    #   turn 1: delta = 0.9 * 0.8 - 0.6 = 0.12        0.12 + 0.45 * -0.8 = -0.24
    #   turn 0: delta = 0.9 * 0.2 - 0.4 = -0.22       -0.22 + 0.45 * 1.0 = 0.23
    one = rollout(
        [0, 1, 0, 0, 0, 0], TWO_TURNS.values, TWO_TURNS.mask, TWO_TURNS.turn_ends
    )
    found = gae.gae_bilevel(one, 0.9, 0.5, 0.5)
    near(found.advantages, [0.23, 1.0, 0, 0, -0.24, -0.8])


def test_bilevel_gae_of_one_turn_is_gae_of_its_tokens() -> None:
    one = rollout([0, 0, 1], [0.1, 0.2, 0.3], [1, 1, 1], [0, 0, 1])
    near(
        gae.gae_bilevel(one, 0.5, 0.1, 0.5).advantages,
        gae.gae(one, 0.5, 0.5).advantages,
    )


@every_estimator
def test_inserted_observation_tokens_change_nothing(estimator) -> None:
    plain = columns(TWO_TURNS, [0, 1, 4, 5])
    expected = estimator(plain).advantages
    for places in [(0, 1, 2, 3, 4, 5), (2, 0, 1, 2, 3, 2, 4, 3, 5, 2, 3)]:
        one = columns(TWO_TURNS, list(places))
        found = estimator(one)
        near(found.advantages[one.mask], expected)
        assert (found.advantages[~one.mask] == 0).all()
        assert (found.returns[~one.mask] == 0).all()


@every_estimator
def test_rows_do_not_see_each_other_or_their_padding(estimator) -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]])
    ends = torch.tensor([[0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]])
    rewards = torch.randn(3, 6) * ends
    many = rollout(rewards, torch.randn(3, 6), mask, ends)
    found = estimator(many)
    for row, width in enumerate([6, 4, 1]):
        alone = estimator(
            rollout(
                *(
                    part[row, :width]
                    for part in (many.rewards, many.values, many.mask, many.turn_ends)
                )
            )
        )
        near(found.advantages[row, :width], alone.advantages)
        near(found.returns[row, :width], alone.returns)
        assert (found.advantages[row, width:] == 0).all()


@every_estimator
def test_a_trajectory_without_action_tokens_has_no_advantage(estimator) -> None:
    found = estimator(rollout([[0.0, 0]], [[1.0, 2]], [[0, 0]], [[0, 0]]))
    assert (found.advantages == 0).all()
    assert not found.value_mask.any()


@every_estimator
def test_no_gradient_flows_into_the_critic(estimator) -> None:
    values = torch.ones(2, requires_grad=True)
    one = gae.Rollout(
        rewards=torch.tensor([0.0, 1.0]),
        values=values,
        mask=torch.tensor([True, True]),
        turn_ends=torch.tensor([False, True]),
    )
    found = estimator(one)
    assert not found.advantages.requires_grad
    assert not found.returns.requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [0, 0, 1, 0, 0, 0]}, "1 rewards lie on tokens that are no step"),
        ({"rewards": [0, 0, 0, 0, 0, float("nan")]}, "not finite"),
        ({"ends": [0, 1, 0, 1, 0, 1]}, "not sampled"),
        ({"ends": [0, 1, 0, 0, 0, 0]}, "follow the last turn end"),
        ({"values": [0.0, 0.0]}, "shapes"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused(change, message: str) -> None:
    parts = {
        "rewards": TWO_TURNS.rewards,
        "values": TWO_TURNS.values,
        "mask": TWO_TURNS.mask,
        "ends": TWO_TURNS.turn_ends,
    }
    with pytest.raises(InvalidSpec, match=message):
        rollout(**{**parts, **change})


def test_discounted_returns_refuse_a_reward_outside_the_mask() -> None:
    with pytest.raises(InvalidSpec, match="no step"):
        gae.discounted_returns(
            torch.tensor([0.0, 1.0]), torch.tensor([True, False]), 1.0
        )


def test_flat_tokens_become_rows_and_back() -> None:
    flat, ids = torch.arange(1.0, 7.0), torch.tensor([0, 0, 0, 2, 2, 3])
    rows = gae.in_rows(flat, ids)
    near(rows, [[1, 2, 3], [0, 0, 0], [4, 5, 0], [6, 0, 0]])
    mask = gae.in_rows(torch.ones_like(ids), ids).bool()
    near(rows[mask], flat)
    assert gae.in_rows(flat[:0], ids[:0]).shape == (0, 0)
    with pytest.raises(InvalidSpec, match="ascending"):
        gae.in_rows(flat, ids.flip(0))
