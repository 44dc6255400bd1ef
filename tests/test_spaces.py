"""The space of any text."""

import copy
import pickle

from gymnasium.spaces import Text, Tuple
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from ragen_bench.spaces import FreeText


@given(st.text(alphabet=st.characters(codec=None), max_size=20))
def test_any_text_that_is_short_enough_belongs(text) -> None:
    assert text in FreeText(20)
    assert (text in FreeText(5)) == (len(text) <= 5)


def test_no_other_thing_belongs() -> None:
    space = FreeText()
    for thing in (None, 1, b"Up", ["Up"], 1.0):
        assert thing not in space


def test_the_empty_text_and_the_longest_one_belong() -> None:
    space = FreeText()
    assert "" in space
    assert "x" * 1_000_000 in space
    assert "x" * 1_000_001 not in space
    assert "\ud800\x00\U0001f600" in space


def test_it_is_a_text_space_and_says_its_length() -> None:
    assert isinstance(FreeText(), Text)
    assert repr(FreeText(7)) == "FreeText(7)"
    assert FreeText(7) == FreeText(7)
    assert FreeText(7) != FreeText(8)


def test_samples_are_those_that_were_given() -> None:
    space = FreeText(samples=("a", "b", "c"), seed=3)
    drawn = [space.sample() for _ in range(60)]
    assert set(drawn) == {"a", "b", "c"}
    again = FreeText(samples=("a", "b", "c"), seed=3)
    assert [again.sample() for _ in range(60)] == drawn
    again.seed(3)
    assert [again.sample() for _ in range(60)] == drawn
    assert FreeText().sample() == ""


def test_copies_go_on_alike() -> None:
    space = FreeText(9, samples=("a", "b"), seed=1)
    space.sample()
    copies = (copy.deepcopy(space), pickle.loads(pickle.dumps(space)))
    expected = [space.sample() for _ in range(30)]
    for other in copies:
        assert other == space
        assert [other.sample() for _ in range(30)] == expected


def test_spaces_of_several_environments_can_be_batched() -> None:
    batched = batch_space(FreeText(samples=("a",)), 3)
    assert isinstance(batched, Tuple)
    assert batched.sample() == ("a", "a", "a")
