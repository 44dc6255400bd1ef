"""Random streams: the same numbers everywhere, for ever, and uniform."""

import hashlib
import itertools
import json
import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from ragen_bench.seeding import Stream, child, child_seed

SEEDS = st.integers(-(2**70), 2**70)
NAMES = st.lists(st.text(max_size=8) | st.integers(0, 9), max_size=3)


def test_the_numbers_never_change() -> None:
    """Whoever changes one of these changes every instance of every environment."""
    stream = Stream(7, "noise", 3)
    assert [stream.word() for _ in range(9)] == [
        0xCB549AD45FFCF845,
        0x3AA3D01F962B4B50,
        0xAEA2FB21B41044EF,
        0xC791474E10B21D88,
        0x1E08227F50785523,
        0x13E04C2D69C39440,
        0x0AEE2D17E5056BC8,
        0xF35B4B3DC506AB8A,
        0x9D20A1030B183AA7,
    ]
    assert Stream(0).word() == 0x7669596A3A860D0F
    assert child_seed(0) == 7065084791159385223
    assert child_seed(7, "agent", "x") == 869657469381340329


def test_the_numbers_are_keyed_blake2b_in_counter_mode() -> None:
    key = hashlib.blake2b(b"7/snoise/i3", digest_size=32).digest()
    words = []
    for counter in range(2):
        block = hashlib.blake2b(counter.to_bytes(8, "little"), key=key).digest()
        words += reversed(struct.unpack("<8Q", block))
    stream = Stream(7, "noise", 3)
    assert [stream.word() for _ in range(16)] == words
    assert child_seed(7, "noise", 3) == struct.unpack("<Q", key[:8])[0] >> 1


def test_every_draw_is_made_of_one_word() -> None:
    """By hand: 0xcb54... is 0.79426 of 2**64, the next two 0.22906 and 0.68217."""
    stream = Stream(7, "noise", 3)
    assert stream.random() == 0xCB549AD45FFCF845 // 2**11 / 2**53
    assert stream.below(10) == 2
    assert stream.choice("abcdef") == "e"
    stream = Stream(-1, "a")
    items = list(range(8))
    stream.shuffle(items)
    assert items == [7, 0, 4, 5, 6, 1, 2, 3]
    assert stream.sample(range(10), 4) == [0, 5, 7, 3]


def test_a_numpy_generator_is_fixed_too() -> None:
    assert child(7, "x").integers(1000, size=3).tolist() == [353, 537, 849]
    assert child(7, "x").random() != child(7, "y").random()


@given(SEEDS, NAMES)
def test_equal_names_give_equal_streams(seed, names) -> None:
    first, second = Stream(seed, *names), Stream(seed, *names)
    assert [first.word() for _ in range(20)] == [second.word() for _ in range(20)]
    assert child_seed(seed, *names) == child_seed(seed, *names)
    assert 0 <= child_seed(seed, *names) < 2**63


def test_every_seed_and_name_counts() -> None:
    paths = [
        (0,),
        (1,),
        (-1,),
        (0, "a"),
        (0, "b"),
        (0, "a", "b"),
        (0, "b", "a"),
        (0, "ab"),
        (0, 1),
        (0, "1"),
        (0, 11),
        (0, 1, 1),
        (0, ""),
        (0, "", ""),
        (1, "a"),
        (0, "\u00e9"),
    ]
    words = {Stream(*path).word() for path in paths}
    assert len(words) == len(paths)
    assert len({child_seed(*path) for path in paths}) == len(paths)


@given(SEEDS, st.integers(0, 40), st.integers(0, 20))
def test_a_state_goes_on_where_it_was_taken(seed, before, after) -> None:
    stream = Stream(seed, "x")
    for _ in range(before):
        stream.word()
    state = json.loads(json.dumps(stream.get_state()))
    expected = [stream.word() for _ in range(after)]
    other = Stream(99)
    other.word()
    other.set_state(state)
    assert other.get_state() == state
    assert [other.word() for _ in range(after)] == expected


@given(SEEDS, st.integers(1, 2**32 - 1))
def test_draws_stay_in_their_range(seed, n) -> None:
    stream = Stream(seed)
    for _ in range(20):
        assert 0 <= stream.word() < 2**64
        assert 0 <= stream.random() < 1
        assert 0 <= stream.below(n) < n
    assert stream.below(1) == 0


@given(SEEDS, st.lists(st.integers(), max_size=12), st.data())
def test_shuffle_and_sample_only_reorder(seed, items, data) -> None:
    stream = Stream(seed)
    shuffled = list(items)
    stream.shuffle(shuffled)
    assert sorted(shuffled) == sorted(items)
    k = data.draw(st.integers(0, len(items)))
    places = stream.sample(range(len(items)), k)
    assert len(places) == len(set(places)) == k
    assert set(places) <= set(range(len(items)))
    held = tuple(items)
    assert len(stream.sample(held, k)) == k
    assert held == tuple(items)
    if items:
        assert stream.choice(items) in items


def looks_uniform(counts: Counter, cells: int) -> bool:
    """Return whether counts pass Pearson's test at 0.1 %, on both sides."""
    expected = counts.total() / cells
    missing = (cells - len(counts)) * expected
    statistic = missing + sum((c - expected) ** 2 / expected for c in counts.values())
    low, high = chi2.ppf([0.001, 0.999], cells - 1)
    return bool(low < statistic < high)


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_below_is_uniform(n) -> None:
    stream = Stream(1, "below")
    assert looks_uniform(Counter(stream.below(n) for _ in range(20_000)), n)


def test_random_is_uniform_and_uncorrelated() -> None:
    stream = Stream(2, "random")
    draws = [stream.random() for _ in range(20_000)]
    assert looks_uniform(Counter(int(x * 50) for x in draws), 50)
    pairs = Counter(
        (int(a * 8), int(b * 8)) for a, b in zip(draws[::2], draws[1::2], strict=True)
    )
    assert looks_uniform(pairs, 64)


def test_neighbouring_seeds_are_independent() -> None:
    """As many bits differ as between coins: 32 of 64, with deviation 4."""
    firsts = [Stream(seed, "instance").word() for seed in range(2001)]
    flips = [(a ^ b).bit_count() for a, b in itertools.pairwise(firsts)]
    assert abs(sum(flips) / len(flips) - 32) < 4 * 4 / 2000**0.5
    names = [Stream(0, "noise", rep).word() % 16 for rep in range(4000)]
    assert looks_uniform(Counter(names), 16)


def test_shuffle_and_sample_are_uniform() -> None:
    stream = Stream(3, "orders")
    orders: Counter = Counter()
    samples: Counter = Counter()
    for _ in range(6000):
        items = list("abcd")
        stream.shuffle(items)
        orders["".join(items)] += 1
        samples["".join(stream.sample("vwxyz", 2))] += 1
    assert looks_uniform(orders, 24)
    assert looks_uniform(samples, 20)


def test_a_uniform_looking_test_can_fail() -> None:
    stream = Stream(4)
    loaded = Counter(min(stream.below(10), 8) for _ in range(20_000))
    assert not looks_uniform(loaded, 10)
    assert not looks_uniform(Counter(i % 10 for i in range(20_000)), 10)
