"""Replies from a file: which one is played, and what is refused."""

import asyncio
import json

import pytest

from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.model import Completion, Conversation, Sampling
from ragen_bench.registry import make_model


def replies(model, turns, key="a"):
    """Return the texts of some turns, each asked in a conversation of its own."""
    return [
        asyncio.run(
            model.generate(Conversation(key=key, seed=0, turn=turn), Sampling())
        ).text
        for turn in turns
    ]


@pytest.fixture
def script(tmp_path):
    def write(content, **arguments):
        file = tmp_path / "script"
        text = content if isinstance(content, str) else json.dumps(content)
        file.write_text(text, "utf-8")
        return make_model(f"scripted:{file}", **arguments)

    return write


@pytest.mark.parametrize(
    "content",
    [
        ["a", "b", "c"],
        {"replies": ["a", "b", "c"]},
        '"a"\n{"text": "b"}\n\n"c"\n',
        {"*": ["a", "b", "c"]},
    ],
)
def test_every_episode_plays_the_replies_in_order_and_again(script, content):
    model = script(content)
    assert replies(model, [0, 1, 2, 3, 4]) == ["a", "b", "c", "a", "b"]
    assert replies(model, [2, 0], key="other") == ["c", "a"]


def test_the_last_reply_may_be_repeated_instead(script):
    model = script(["a", "b"], at_end="last")
    assert replies(model, [0, 1, 2, 7]) == ["a", "b", "b", "b"]


def test_one_line_is_one_reply(script):
    assert replies(script('"only"'), [0, 3]) == ["only", "only"]
    assert replies(script('{"text": "only"}\n'), [0]) == ["only"]


def test_an_episode_may_have_replies_of_its_own(script):
    model = script({"x/1": ["mine"], "*": ["yours"]})
    assert replies(model, [0], key="x/1") == ["mine"]
    assert replies(model, [0], key="x/2") == ["yours"]


def test_an_episode_without_replies_is_said_to_have_none(script):
    model = script({"x/1": ["mine"]})
    with pytest.raises(UnknownName, match="'x/2'; did you mean 'x/1'"):
        replies(model, [0], key="x/2")


def test_a_reply_may_hold_reasoning_and_a_reason_to_end(script):
    model = script([{"text": "t", "thinking": "hm", "finish_reason": "length"}])
    found = asyncio.run(model.generate(Conversation(key="a", seed=0), Sampling()))
    assert found == Completion(text="t", thinking="hm", finish_reason="length")


def test_facts_tell_scripts_apart(script):
    facts = script(["a"]).describe()
    assert facts == script(["a"]).describe()
    assert facts != script(["b"]).describe()
    assert facts != script(["a"], at_end="last").describe()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("[1", InvalidSpec, "neither JSON nor JSON Lines: line 1"),
        ('"a"\n{"text"\n', InvalidSpec, "line 2"),
        ("3", InvalidSpec, "holds 3"),
        ([3], InvalidSpec, "the reply 3"),
        ([{"thinking": "x"}], InvalidSpec, "with a string 'text'"),
        ([{"text": "x", "thinking": 1}], InvalidSpec, "thinking 1"),
        ([{"text": "x", "texts": 1}], UnknownName, "'texts'; did you mean 'text'"),
        ([{"text": "x", "finish_reason": "end"}], UnknownName, "'end'"),
        ({"a": "x"}, InvalidSpec, "'x' for 'a'"),
        ([], InvalidSpec, "no reply"),
        ("", InvalidSpec, "no reply"),
        ({"a": []}, InvalidSpec, "no reply for 'a'"),
    ],
)
def test_what_is_no_script_is_refused(script, content, error, message):
    with pytest.raises(error, match=message):
        script(content)


def test_a_file_must_exist_and_be_text(tmp_path):
    with pytest.raises(UnknownName, match="no such file"):
        make_model(f"scripted:{tmp_path / 'none'}")
    with pytest.raises(InvalidSpec, match="cannot be read"):
        make_model(f"scripted:{tmp_path}")
    with pytest.raises(InvalidSpec, match="needs a file"):
        make_model("scripted:")
    file = tmp_path / "latin"
    file.write_bytes(b'["\xe9"]')
    with pytest.raises(InvalidSpec, match="not UTF-8"):
        make_model(f"scripted:{file}")


def test_the_end_of_a_script_is_one_of_two(script):
    with pytest.raises(UnknownName, match="'stop'"):
        script(["a"], at_end="stop")
