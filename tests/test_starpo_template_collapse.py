"""Template collapse: entropies, information and retrieval, worked by hand."""

import math

import numpy as np
import pytest

from ragen_bench.errors import InvalidSpec
from ragen_bench.starpo import template_collapse as tc

LN2, LN3 = math.log(2), math.log(3)
FAR = -1000.0
"""So unlikely that exp of it is 0."""


def informative(count: int, own: float) -> np.ndarray:
    """Return scores where no reasoning is possible after another's prompt."""
    scores = np.full((count, count), FAR)
    np.fill_diagonal(scores, own)
    return scores


def test_two_by_two_by_hand() -> None:
    # z_0 has probability 1/2 and 1/4 after the prompts, z_1 has 1/8 and 1/2.
    scores = np.log([[1 / 2, 1 / 4], [1 / 8, 1 / 2]])
    mixed = [math.log(3 / 8), math.log(5 / 16)]
    found = tc.information(scores)
    assert np.allclose(tc.matched(scores), [-LN2, -LN2])
    assert np.allclose(tc.marginal(scores), mixed)
    assert found.conditional_entropy == pytest.approx(LN2)
    assert found.reasoning_entropy == pytest.approx(-sum(mixed) / 2)
    information = (math.log(4 / 3) + math.log(8 / 5)) / 2
    assert found.mutual_information == pytest.approx(information)
    # The deviation of two numbers with n - 1 is their distance over the root of two.
    deviation = math.log(6 / 5) / math.sqrt(2)
    assert found.z_score == pytest.approx(information / (deviation + 1e-3))


def test_three_by_three_by_hand() -> None:
    scores = np.log([[1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 1 / 2], [1 / 8] * 3])
    found = tc.probe(scores, tokens=[1, 2, 3], prompts="abc")
    assert found is not None
    mixed = [math.log(1 / 3), math.log(1 / 3), math.log(1 / 8)]
    assert np.allclose(tc.marginal(scores), mixed)
    assert found.by_sequence.conditional_entropy == pytest.approx(2 * LN2)
    want = (math.log(3 / 2) + math.log(3 / 4)) / 3
    assert found.by_sequence.mutual_information == pytest.approx(want)
    by_token = (LN2 + LN2 + LN2) / 3  # ln 2 / 1, ln 4 / 2 and ln 8 / 3
    assert found.by_token.conditional_entropy == pytest.approx(by_token)
    # Likelihoods by the token: 1/2 1/4 1/4, then their roots, then their third roots.
    shares = (1 / 3, (1 / 2 + 1 / 2 + math.sqrt(1 / 2)) / 3, 1 / 2)
    want = -sum(map(math.log, shares)) / 3
    assert found.by_token.reasoning_entropy == pytest.approx(want)
    # z_0 is first; z_1 shares the second and third rank; z_2 shares all three.
    assert found.retrieval.accuracy[1] == pytest.approx((1 + 0 + 1 / 3) / 3)
    assert found.retrieval.accuracy[2] == pytest.approx((1 + 1 / 2 + 2 / 3) / 3)
    assert found.retrieval.accuracy[4] == 1
    assert found.retrieval.chance == pytest.approx({1: 1 / 3, 2: 2 / 3, 4: 1, 8: 1})


def test_per_token_divides_before_prompts_are_mixed() -> None:
    scores = np.log([[1 / 4, 1 / 16], [1 / 16, 1 / 4]])
    found = tc.probe(scores, tokens=[2, 2], prompts="ab")
    assert found is not None
    # Roots of the probabilities: 1/2 and 1/4, whose mean is 3/8.
    assert found.by_token.mutual_information == pytest.approx(math.log(4 / 3))
    assert found.by_sequence.mutual_information == pytest.approx(math.log(8 / 5))


@pytest.mark.parametrize("count", [2, 3, 9])
def test_reasoning_that_tells_the_prompt_reaches_the_bound(count: int) -> None:
    found = tc.probe(informative(count, -7.0), [5] * count, range(count))
    assert found is not None
    assert found.by_sequence.mutual_information == pytest.approx(math.log(count))
    assert found.bound == math.log(count)
    assert found.prompt_entropy == pytest.approx(found.bound)
    assert found.by_sequence.conditional_entropy == pytest.approx(7)
    assert found.retrieval.accuracy[1] == 1
    assert found.retrieval.above_chance[1] == pytest.approx(1 - 1 / count)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_a_template_has_no_information_and_finds_by_chance(count: int) -> None:
    scores = np.repeat(-np.arange(1.0, count + 1)[:, None], count, axis=1)
    found = tc.probe(scores, [5] * count, range(count))
    assert found is not None
    assert found.by_sequence.mutual_information == pytest.approx(0, abs=1e-12)
    assert found.by_token.mutual_information == pytest.approx(0, abs=1e-12)
    assert found.by_sequence.z_score == pytest.approx(0, abs=1e-9)
    assert found.retrieval.accuracy == pytest.approx(found.retrieval.chance)


def test_identical_prompts_are_one_in_retrieval_and_lower_the_bound() -> None:
    # Prompts a, a, b: z_0 and z_1 fit a alone, z_2 fits b alone.
    scores = np.array([[-1.0, -1.0, FAR], [-2.0, -2.0, FAR], [FAR, FAR, -3.0]])
    found = tc.probe(scores, [1, 1, 1], ["a", "a", "b"])
    assert found is not None
    assert (found.samples, found.prompts) == (3, 2)
    assert found.retrieval.accuracy == {1: 1, 2: 1, 4: 1, 8: 1}
    assert found.retrieval.chance[1] == 1 / 2
    entropy = LN3 - 2 / 3 * LN2
    assert found.prompt_entropy == pytest.approx(entropy)
    assert found.by_sequence.mutual_information == pytest.approx(entropy)
    assert found.bound == pytest.approx(LN3)


def test_one_sample_tells_nothing() -> None:
    found = tc.probe([[-4.0]], [2], ["a"], asked=4)
    assert found is not None
    assert found.by_sequence.mutual_information == 0
    assert found.by_sequence.z_score == 0
    assert found.by_token.conditional_entropy == 2
    assert found.bound == found.prompt_entropy == 0
    assert found.retrieval.accuracy == found.retrieval.chance
    assert found.valid_share == 1 / 4


def test_no_sample_gives_no_findings() -> None:
    assert tc.probe([], [], []) is None


def test_information_may_be_below_zero() -> None:
    scores = np.log([[1 / 4, 1 / 2], [1 / 2, 1 / 4]])
    assert tc.information(scores).mutual_information == pytest.approx(
        math.log(1 / 4) - math.log(3 / 8)
    )


def test_scores_of_long_reasoning_do_not_underflow() -> None:
    scores = np.array([[-2000.0, -2001.0], [-2001.0, -2000.0]])
    want = LN2 - math.log1p(math.exp(-1))
    assert tc.information(scores).mutual_information == pytest.approx(want)


def test_the_estimate_has_no_bias_for_its_prompts() -> None:
    # Two prompts, three possible reasonings; the exact information is by hand.
    given = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
    mean = given.mean(axis=0)
    exact = float((given * np.log(given / mean)).sum() / 2)
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(4000):
        drawn = [rng.choice(3, p=given[x]) for x in (0, 1)]
        scores = np.log(given[:, drawn].T)
        estimates.append(tc.information(scores).mutual_information)
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - exact) < 4 * error


def test_the_moving_average_begins_with_the_first_probe() -> None:
    first = tc.smoothed(None, 2.0)
    assert first == 2
    assert tc.smoothed(first, 1.0) == pytest.approx(1.9)


@pytest.mark.parametrize(
    ("scores", "tokens", "prompts", "named"),
    [
        ([[0.0, 0.0]], [1], ["a"], "shape"),
        ([[0.0]], [1], [], "shape"),
        ([[0.0]], [0], ["a"], "0 tokens"),
        ([[float("nan")]], [1], ["a"], "not a number"),
        ([[-math.inf]], [1], ["a"], "not a number"),
    ],
)
def test_scores_that_make_no_sense_are_refused(scores, tokens, prompts, named) -> None:
    with pytest.raises(InvalidSpec, match=named):
        tc.probe(scores, tokens, prompts)


def test_cross_scores_has_a_row_a_thought_and_asks_for_a_prompt_once() -> None:
    asked = []

    def score(prompt, thought):
        asked.append((tuple(prompt), tuple(thought)))
        return -10.0 * prompt[0] - thought[0]

    scores = tc.cross_scores(
        tc.one_by_one(score), prompts=[[1], [2], [1]], thoughts=[[7], [8], [9]]
    )
    assert scores.tolist() == [[-17, -27, -17], [-18, -28, -18], [-19, -29, -19]]
    assert len(asked) == 6


def test_an_empty_thought_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="empty"):
        tc.cross_scores(lambda prompt, thoughts: [0.0], [[1]], [[]])
