"""Prompt and reasoning are cut out of the tokens that were read and sampled."""

import pytest

from ragen_bench.records import Episode
from ragen_bench.seeding import Stream
from ragen_bench.starpo.reasoning_samples import (
    first_turns,
    probe_samples,
    random_turns,
    reasoning_span,
)
from ragen_bench.starpo.trajectories import Segment, Trajectory

PIECES = ["P", "<th", "ink>", "go", " left", "</", "think>", "A", "ink>\n", "k.</", "Q"]
PROMPT, GO, LEFT, OTHER = 0, 3, 4, 10
OPENED, CLOSED = [1, 2], [5, 6]
REPLY = [*OPENED, GO, LEFT, *CLOSED, 7]


def decode(ids) -> str:
    return "".join(PIECES[one] for one in ids)


def trajectory(group: int, *replies: list[int], prompt: int = PROMPT) -> Trajectory:
    segment = Segment()
    for reply in replies:
        segment.read([prompt])
        segment.write(reply, [0.0] * len(reply))
    return Trajectory(
        group=group, segments=[segment], episode=Episode.model_construct()
    )


@pytest.mark.parametrize(
    ("reply", "span"),
    [
        (REPLY, (2, 4)),
        ([1, 8, GO, *CLOSED], (2, 3)),
        ([1, 2, GO, 9, 6], (2, 3)),
        ([GO, LEFT, *CLOSED, 7], (0, 2)),
        ([*OPENED, *CLOSED, 7], None),
        ([*OPENED, GO, LEFT], None),
        ([*CLOSED, *OPENED, GO], None),
        ([7], None),
        ([], None),
    ],
)
def test_reasoning_stands_between_the_tags(reply, span) -> None:
    assert reasoning_span(reply, decode) == span


def test_a_token_that_is_tag_and_reasoning_spoils_the_sample() -> None:
    pieces = ["<think>go", " on", "</think>"]
    assert (
        reasoning_span([0, 1, 2], lambda ids: "".join(map(pieces.__getitem__, ids)))
        is None
    )


def test_first_turns_are_one_a_group_and_end_the_prompt_in_the_tag() -> None:
    found = first_turns(
        [trajectory(0, REPLY, REPLY), trajectory(0, REPLY), trajectory(1, [7])], decode
    )
    assert found.prompts == ((PROMPT, *OPENED),)
    assert found.thoughts == ((GO, LEFT),)
    assert found.asked == 2


def test_a_later_turn_has_the_whole_past_in_its_prompt() -> None:
    one = trajectory(0, [7], REPLY)
    seen = {
        random_turns([one], decode, Stream(0, "probe", i)).prompts for i in range(20)
    }
    assert seen == {(), ((PROMPT, 7, PROMPT, *OPENED),)}


def test_random_turns_are_at_most_64_and_leave_the_order_alone() -> None:
    many = [trajectory(i, REPLY, prompt=PROMPT if i % 2 else OTHER) for i in range(70)]
    before = list(many)
    found = random_turns(many, decode, Stream(0, "probe"))
    assert found.asked == len(found.thoughts) == 64
    assert many == before
    assert found == random_turns(many, decode, Stream(0, "probe"))


def test_samples_are_probed() -> None:
    samples = first_turns(
        [trajectory(0, REPLY), trajectory(1, REPLY, prompt=OTHER), trajectory(2, [7])],
        decode,
    )
    found = probe_samples(lambda prompt, thoughts: [-2.0] * len(thoughts), samples)
    assert found is not None
    assert (found.samples, found.prompts) == (2, 2)
    assert found.valid_share == pytest.approx(2 / 3)
    assert found.by_token.conditional_entropy == 1
    assert found.by_sequence.mutual_information == pytest.approx(0)
