"""One optimizer step: which tokens count, and what they are divided by."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")

import trainees  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from trainees import MODES, TABLE, Bigram, experience, learn, lesson  # noqa: E402

from ragen_bench.starpo import advantages, filters, losses, update  # noqa: E402
from ragen_bench.starpo.algorithm import ALGORITHMS, Discounts  # noqa: E402
from ragen_bench.starpo.experience import passes  # noqa: E402
from ragen_bench.starpo.policy import Critic  # noqa: E402

pytestmark = pytest.mark.hf

every_mode = pytest.mark.parametrize("mode", MODES)
every_kind = pytest.mark.parametrize("kind", trainees.KINDS)
ALL = 10**6


def near(found, expected, abs: float = 1e-6) -> None:
    torch.testing.assert_close(found, expected, atol=abs, rtol=1e-4)


class TestTargets:
    PARTS = ([0, 1, 2], [3, 1], [2, 0, 3], [1, 2])

    def gradients(self, parts) -> torch.Tensor:
        made = Bigram(TABLE)
        held = experience(trainees.segment(*parts))
        held.logprobs = update.reference_logprobs(made, held, 1.0, ALL)
        advantages = torch.tensor([1.0, -2.0, 0.5, 1.5])
        estimate = update.Estimate(
            advantages=advantages,
            returns=torch.zeros(4),
            value_mask=torch.zeros(4).bool(),
        )
        what = update.Lesson(
            experience=held,
            estimate=estimate,
            old=held.logprobs,
            reference=held.logprobs - 0.5,
        )
        return learn(made, what, entropy=0.1, kl=0.1)[0]

    def test_an_observation_is_no_target_and_a_sampled_token_is(self) -> None:
        # In a table of pairs a token matters as the target of the one before it, or
        # as what predicts the one behind it.  Behind these come observations.
        plain = self.gradients(self.PARTS)
        for part, place in ((0, 0), (0, 1), (2, 0), (2, 1)):
            other = copy.deepcopy(self.PARTS)
            other[part][place] = (other[part][place] + 1) % 4
            assert torch.equal(self.gradients(other), plain)
        for part, place in ((1, 0), (1, 1), (3, 0), (3, 1)):
            other = copy.deepcopy(self.PARTS)
            other[part][place] = (other[part][place] + 1) % 4
            assert not torch.equal(self.gradients(other), plain)

    def test_log_probabilities_are_the_entries_of_the_table(self) -> None:
        held = experience(
            trainees.segment(*self.PARTS), trainees.segment([1], [0, 0, 3])
        )
        found = update.reference_logprobs(Bigram(TABLE), held, 1.0, ALL)
        # 2 to 3, 3 to 1, 3 to 1, 1 to 2; 1 to 0, 0 to 0, 0 to 3.
        near(found.exp(), torch.tensor([0.1, 0.1, 0.1, 0.2, 0.4, 0.1, 0.4]))

    def test_the_ratio_is_exactly_1_before_the_first_step(self) -> None:
        made, held = trainees.network(), experience(*trainees.random_segments(4))
        held.logprobs = update.reference_logprobs(made, held, 0.7, ALL)
        _, step = learn(made, lesson(held), temperature=0.7)
        assert step.ratio_max == 1.0
        assert step.logprob_diff_max == step.approx_kl == 0.0

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    def test_the_temperature_divides_the_logits(self, temperature) -> None:
        made, held = Bigram(TABLE), experience(trainees.segment([0], [1, 3]))
        found = update.reference_logprobs(made, held, temperature, ALL)
        heated = (TABLE.log() / temperature).log_softmax(-1)
        near(found, torch.stack((heated[0, 1], heated[1, 3])))


@every_kind
class TestPasses:
    def alone(self, made, segments) -> torch.Tensor:
        return torch.cat(
            [
                update.reference_logprobs(made, experience(one), 1.0, ALL)
                for one in segments
            ]
        )

    @pytest.mark.parametrize("head", [0, 20])
    def test_a_row_has_the_log_probabilities_that_it_has_alone(
        self, kind, head
    ) -> None:
        made, segments = (
            trainees.network(kind),
            trainees.random_segments(6, head=head),
        )
        found = update.reference_logprobs(made, experience(*segments), 1.0, ALL)
        near(found, self.alone(made, segments), 1e-5)

    def test_rows_do_not_see_each_other(self, kind) -> None:
        made, held = trainees.network(kind), trainees.random_segments(5, head=20)
        before = update.reference_logprobs(made, experience(*held), 1.0, ALL)
        owner = experience(*held).trajectory
        other = trainees.random_segments(5, seed=9, head=20)[2]
        changed = [*held[:2], other, *held[3:]]
        after = update.reference_logprobs(made, experience(*changed), 1.0, ALL)
        now = experience(*changed).trajectory
        near(after[now != 2], before[owner != 2], 1e-5)

    @pytest.mark.parametrize("head", [0, 20])
    def test_values_do_not_see_each_other_either(self, kind, head) -> None:
        critic = Critic(trainees.network(kind)).eval()
        torch.nn.init.normal_(critic.head.weight)
        segments = trainees.random_segments(5, head=head)
        found = update.values_of(critic, experience(*segments), ALL)
        apart = [update.values_of(critic, experience(one), ALL) for one in segments]
        assert found.abs().max() > 0.1
        near(found, torch.cat(apart), 1e-5)


def budgets(held, *sizes: int) -> list[int]:
    """Return budgets of padded tokens at which passes have so many rows at most."""
    widest = max(
        len(segment.ids) for one in held.trajectories for segment in one.segments
    )
    return [widest * size for size in sizes]


class TestMicroBatches:
    @every_mode
    def test_gradients_are_the_same_for_1_3_and_all_rows(self, mode) -> None:
        made, held = trainees.network(), experience(*trainees.random_segments(7))
        what = lesson(held, made, reference=held.logprobs - 0.1)
        numbers = {"aggregation": mode, "constant": MODES[mode], "entropy": 0.1}
        numbers |= {"kl": 0.1}
        whole, _ = learn(made, what, **numbers)
        assert whole.abs().max() > 1e-3
        counts = []
        for budget in budgets(held, 1, 3):
            counts.append(len(list(passes(held, range(7), budget))))
            near(learn(made, what, budget=budget, **numbers)[0], whole, 1e-5)
        assert counts[0] > counts[1] > 1

    def test_what_is_told_of_a_step_is_the_same(self) -> None:
        made, held = trainees.network(), experience(*trainees.random_segments(7))
        what = lesson(held, made, reference=held.logprobs - 0.1)
        numbers = {"kl": 0.1, "clip_low": 0.1, "clip_high": 0.1}
        _, whole = learn(made, what, **numbers)
        assert whole.clip_low > 0 and whole.clip_high > 0 and whole.ratio_max > 1
        for budget in budgets(held, 1, 3):
            _, split = learn(made, what, budget=budget, **numbers)
            for name in whole.__slots__:
                assert getattr(split, name) == pytest.approx(
                    getattr(whole, name), rel=1e-4, abs=1e-6
                ), name

    def test_means_are_over_sampled_tokens(self) -> None:
        made, held = Bigram(TABLE), experience(*_two())
        exact = update.reference_logprobs(made, held, 1.0, ALL)
        held.logprobs = exact - 0.5
        _, step = learn(made, lesson(held))
        assert step.tokens == 10
        assert step.logprob_diff_mean == pytest.approx(0.5)
        assert step.ratio_max == pytest.approx(math.exp(0.5))
        assert step.approx_kl == pytest.approx(math.exp(0.5) - 1.5)
        entropy = losses.entropy(TABLE.log())
        rows = [one.ids[i - 1] for one in _two() for i in range(1, len(one.ids))]
        assert step.entropy == pytest.approx(entropy[rows].mean().item())

    def test_the_loss_of_values_divides_by_those_that_are_asked_for(self) -> None:
        critic = Critic(trainees.network()).eval()
        held = experience(*trainees.random_segments(7))
        values = torch.full((len(held.trajectory),), 0.25)
        what = lesson(held, values=values)
        asked = what.estimate.value_mask
        # A head of zeros values everything at 0.
        expected = 0.5 * (what.estimate.returns[asked] ** 2).mean().item()
        for budget in budgets(held, 1, 3, 7):
            loss = update.accumulate_values(critic, what, range(7), 0.0, budget)
            assert loss == pytest.approx(expected)


def _two() -> list:
    """Return trajectories of two and of eight sampled tokens."""
    return [
        trainees.segment([1], [0, 3], rewards=[1.0]),
        trainees.segment([2], [1, 2, 0, 3, 3, 1, 2, 2], rewards=[0.0]),
    ]


class TestDropped:
    @every_mode
    def test_a_trajectory_outside_the_step_is_in_no_term(self, mode) -> None:
        made, segments = trainees.network(), trainees.random_segments(5)
        numbers = {"aggregation": mode, "constant": MODES[mode], "entropy": 0.1}
        held = experience(*segments)
        exact = lesson(held, made, reference=held.logprobs - 0.1)
        found, step = learn(made, exact, [0, 1, 3, 4], kl=0.1, **numbers)
        stays = held.trajectory != 2
        without = experience(*segments[:2], *segments[3:])
        without.logprobs = held.logprobs[stays]
        estimate = update.Estimate(
            **{
                name: getattr(exact.estimate, name)[stays]
                for name in ("advantages", "returns", "value_mask")
            }
        )
        never = update.Lesson(
            experience=without,
            estimate=estimate,
            old=exact.old[stays],
            reference=exact.reference[stays],
        )
        expected, other = learn(made, never, kl=0.1, **numbers)
        near(found, expected)
        assert step.loss == pytest.approx(other.loss, rel=1e-5)

    @pytest.mark.parametrize("changed", ["entropy", "kl", "advantages"])
    def test_every_term_of_a_step_pushes(self, changed) -> None:
        # Else the tests of what does not push would prove nothing.
        made, held = trainees.network(), experience(*trainees.random_segments(5))
        what = lesson(held, made, reference=held.logprobs - 0.1)
        plain = {"entropy": 0.1, "kl": 0.1}
        found, _ = learn(made, what, **plain)
        if changed == "advantages":
            what.estimate.advantages.zero_()
        else:
            plain[changed] = 0.0
        assert (learn(made, what, **plain)[0] - found).abs().max() > 1e-4


class TestLengths:
    @pytest.mark.parametrize(
        ("mode", "loss"),
        [
            # Advantages 1 and 3, ratios 1: two tokens of -1 and eight of -3.
            ("token-mean", -2.6),
            ("seq-mean-token-mean", -2.0),
            ("seq-mean-token-sum", -13.0),
            ("constant", -0.8125),
        ],
    )
    def test_a_short_and_a_long_trajectory(self, mode, loss) -> None:
        made, held = Bigram(TABLE), experience(*_two())
        held.logprobs = update.reference_logprobs(made, held, 1.0, ALL)
        what = lesson(held)
        what.estimate.advantages[:] = torch.tensor([1.0, 3.0])[held.trajectory]
        _, step = learn(made, what, aggregation=mode, constant=MODES[mode])
        assert step.loss == pytest.approx(loss)


class TestHead:
    @settings(max_examples=15)
    @given(st.data())
    def test_a_step_is_that_of_all_logits_at_once(self, data) -> None:
        made = trainees.network()
        flags = data.draw(st.lists(st.booleans(), min_size=9, max_size=9))
        flags[-1] = True
        ids = data.draw(st.lists(st.integers(0, 39), min_size=10, max_size=10))
        one = trainees.segment([ids[0]])
        for id, flag in zip(ids[1:], flags, strict=True):
            if flag:
                one.write([id], [-3.0])
            else:
                one.read([id])
        held = experience(one)
        count = len(held.trajectory)
        weights = torch.tensor(
            data.draw(st.lists(st.floats(0, 2), min_size=count, max_size=count))
        )
        what = lesson(held, weights=weights)
        found, step = learn(made, what, entropy=0.1, temperature=0.7)
        made.zero_grad()
        logits, sampled = made(torch.tensor([ids])).logits[0], torch.tensor(flags)
        chosen = (logits[:-1][sampled] / 0.7).log_softmax(-1)
        logprobs = chosen[range(count), torch.tensor(ids)[1:][sampled]]
        terms = weights * losses.clipped_surrogate(
            logprobs, held.logprobs, what.estimate.advantages, low=0.2, high=0.2
        )
        entropies = -(chosen.exp() * chosen).sum(-1)
        loss = (terms - 0.1 * entropies).mean()
        loss.backward()
        expected = torch.cat([p.grad.flatten() for p in made.parameters()])
        assert step.loss == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
        assert step.entropy == pytest.approx(entropies.mean().item(), rel=1e-4)
        near(found, expected, 1e-5)


class TestEstimates:
    def estimated(self, name: str, held, values=None):
        import ragen_bench.starpo.algorithms  # noqa: F401

        by = Discounts(gamma=0.9, lam=0.8, gamma_turn=0.7)
        return ALGORITHMS.get(name)(held, values, by)

    def twice(self) -> tuple:
        """Return the same replies with few and with many observation tokens."""
        few = [trainees.segment([0], [1, 2], [3], [2], rewards=[0.0, 1.0])] * 2
        many = [
            trainees.segment([0] * 9, [1, 2], [3] * 7, [2], rewards=[0.0, 1.0]),
            few[1],
        ]
        return experience(*few, groups=[0, 0]), experience(*many, groups=[0, 0])

    @pytest.mark.parametrize(
        "name", ["ppo", "ppo_turn", "ppo_bilevel", "reinforce_pp", "grpo"]
    )
    def test_observations_are_no_steps(self, name) -> None:
        few, many = self.twice()
        values = torch.tensor([0.1, 0.4, -0.2, 0.3, 0.0, 0.5])
        found, expected = (
            self.estimated(name, one, values).advantages for one in (many, few)
        )
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("name", ["ppo", "ppo_turn", "ppo_bilevel", "reinforce_pp"])
    def test_advantages_are_white_over_all_sampled_tokens(self, name) -> None:
        held = experience(*trainees.random_segments(5))
        values = torch.linspace(-1, 1, len(held.trajectory))
        found = self.estimated(name, held, values).advantages
        assert found.mean().abs() < 1e-6
        assert found.std().item() == pytest.approx(1.0, abs=1e-4)

    @pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
    def test_advantages_of_a_group_sum_to_nothing_and_are_normalised_once(
        self, name
    ) -> None:
        held = experience(*trainees.random_segments(6), groups=[7, 2, 7, 2, 7, 2])
        found = self.estimated(name, held).advantages
        each = [found[held.trajectory == index] for index in range(6)]
        assert all((one == one[0]).all() for one in each)
        first = torch.stack([one[0] for one in each])
        for members in ([0, 2, 4], [1, 3, 5]):
            assert first[members].sum().abs() < 1e-5
        rule = {
            "grpo": advantages.group_normalized,
            "dr_grpo": advantages.group_centred,
            "rloo": advantages.leave_one_out,
        }[name]
        near(first, rule(held.returns, held.groups))

    def test_filter_and_advantages_take_the_same_deviation(self) -> None:
        returns, groups = torch.tensor([1.0, 0.0, 0.0, 2.0]), [0, 0, 0, 0]
        spread = filters.group_spread(returns.tolist(), groups)[0]
        found = advantages.group_normalized(returns, groups, eps=0.0)
        near((returns - returns.mean()) / found, torch.full((4,), spread))

    def test_groups_are_known_by_id_whatever_was_dropped(self) -> None:
        segments = trainees.random_segments(6)
        held = experience(*segments, groups=[7, 2, 7, 2, 7, 2])
        order = [5, 0, 4, 3, 2, 1]
        moved = experience(
            *[segments[i] for i in order], groups=[[7, 2][i % 2] for i in order]
        )
        found = self.estimated("dr_grpo", held).advantages
        after = self.estimated("dr_grpo", moved).advantages
        for place, index in enumerate(order):
            near(after[moved.trajectory == place], found[held.trajectory == index])
