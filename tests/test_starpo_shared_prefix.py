"""Rows that begin alike: one reading of the beginning gives the same numbers."""

import functools

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_bench.starpo.experience import Experience, passes
from ragen_bench.starpo.policy import Critic, fresh
from ragen_bench.starpo.shared_prefix import LEAST, shared_length, states
from ragen_bench.starpo.trajectories import Segment, Trajectory
from ragen_bench.starpo.update import logprobs_of

pytestmark = pytest.mark.hf


def segment(head: list[int], observation: list[int], reply: list[int]) -> Segment:
    made = Segment()
    made.read([*head, *observation])
    made.write(reply, [0.0] * len(reply))
    return made


def trajectories(*segments: Segment) -> list[Trajectory]:
    return [
        Trajectory(group=i, segments=[one], episode=None)  # type: ignore[arg-type]
        for i, one in enumerate(segments)
    ]


RULES = list(range(40, 70))
ALIKE = trajectories(
    segment(RULES, [1, 2, 3], [9, 8]),
    segment(RULES, [1, 5], [7, 7, 6]),
    segment(RULES, [4], [3]),
)


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    return fresh((32, 2), 0, "cpu")[0].double()


@given(
    rows=st.lists(
        st.lists(st.integers(0, 1), min_size=1, max_size=30), min_size=1, max_size=4
    ),
    head=st.integers(0, 40),
)
@settings(deadline=None)
def test_the_shared_length_is_the_longest_common_beginning(
    rows: list[list[int]], head: int
) -> None:
    full = [[2] * head + row for row in rows]
    limits = [len(row) - 1 for row in full]
    count = shared_length(full, limits)
    longest = 0
    while longest < min(limits) and len({row[longest] for row in full}) == 1:
        longest += 1
    expected = longest if longest >= LEAST and len(rows) > 1 else 0
    assert count == expected


def test_a_pass_shares_the_rules_and_never_a_token_that_predicts() -> None:
    (batch,) = passes(Experience.of(ALIKE), range(3), 10**6)
    assert batch.shared == len(RULES)
    assert not batch.before[:, : batch.shared].any()
    same = trajectories(*[segment(RULES, [1], [9]) for _ in range(2)])
    (batch,) = passes(Experience.of(same), range(2), 10**6)
    # The observation predicts the reply, so that it is read in each row.
    assert batch.shared == len(RULES)


def gradients(network: torch.nn.Module, shared: bool) -> list[torch.Tensor]:
    network.zero_grad()
    (batch,) = passes(Experience.of(ALIKE), range(3), 10**6)
    if not shared:
        batch.shared = 0
    scored = logprobs_of(network, batch, 0.7)
    (scored.logprobs.sin().sum() + scored.entropies.cos().sum()).backward()
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


def test_logprobs_and_gradients_do_not_depend_on_sharing(
    network: torch.nn.Module,
) -> None:
    for plain, once in zip(
        gradients(network, False), gradients(network, True), strict=True
    ):
        # Norms are computed in single precision whatever the weights are.
        torch.testing.assert_close(once, plain, rtol=1e-3, atol=1e-5)


def silent(size: int) -> Segment:
    made = Segment()
    made.read(RULES[:size])
    return made


@given(
    silences=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30)), max_size=6),
    budget=st.sampled_from([1, 80, 10**6]),
)
@settings(deadline=None, max_examples=20)
def test_segments_without_a_sampled_token_change_nothing(
    network: torch.nn.Module, silences: list[tuple[int, int]], budget: int
) -> None:
    padded = [
        Trajectory(group=i, segments=[*one.segments], episode=one.episode)
        for i, one in enumerate(ALIKE)
    ]
    for place, (whose, size) in enumerate(silences):
        padded[whose].segments.insert(place % 2, silent(size))
    found = {}
    for name, rows in (("plain", ALIKE), ("padded", padded)):
        held = Experience.of(rows)
        found[name] = torch.zeros(len(held.logprobs), dtype=torch.float64)
        for batch in passes(held, range(3), budget):
            with torch.no_grad():
                scored = logprobs_of(network, batch, 1.0)
            found[name][batch.tokens] = scored.logprobs
    torch.testing.assert_close(found["padded"], found["plain"])


def test_trajectories_without_a_sampled_token_need_no_pass() -> None:
    held = Experience.of(trajectories(silent(30), silent(30), silent(4)))
    assert list(passes(held, range(3), 10**6)) == []


def test_values_do_not_depend_on_sharing(network: torch.nn.Module) -> None:
    critic = Critic(network).double()
    torch.nn.init.normal_(critic.head.weight)
    (batch,) = passes(Experience.of(ALIKE), range(3), 10**6)
    plain = critic(batch.ids, batch.before)
    once = critic(batch.ids, batch.before, batch.shared)
    torch.testing.assert_close(once, plain)


def test_sharing_reads_the_beginning_once(network: torch.nn.Module) -> None:
    read = 0

    class Counting(torch.nn.Module):
        config = network.config

        def forward(self, input_ids: torch.Tensor, **options: object) -> object:
            nonlocal read
            read += input_ids.numel()
            return network.base_model(input_ids=input_ids, **options)

        # The name of the cache's argument is read from the signature.
        functools.update_wrapper(forward, type(network.base_model).forward)

    (batch,) = passes(Experience.of(ALIKE), range(3), 10**6)
    states(Counting(), batch.ids, batch.shared)
    assert read == batch.shared + 3 * (batch.ids.shape[1] - batch.shared)


def test_a_pass_stays_within_its_budget_whatever_the_rows_begin_with() -> None:
    rows = trajectories(
        *[segment([i] * LEAST, [1] * (40 - 9 * i), [9]) for i in range(4)],
        segment([0] * LEAST, [1], [9]),
    )
    for budget in (60, 120, 200):
        for batch in passes(Experience.of(rows), range(5), budget):
            assert len(batch.ids) == 1 or batch.ids.numel() <= budget
