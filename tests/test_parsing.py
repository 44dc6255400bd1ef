"""What a reply says, whatever a model writes."""

import copy
import pickle
import random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_bench.parsing import ParsedReply, ParseOutcome, ReplyParser

NAMES = ("Up", "Down", "Left", "Right")
UP, DOWN, LEFT, RIGHT = range(4)
OUTCOMES = get_args(ParseOutcome)


def parse(reply, *, strict=False, names=NAMES, max_actions=5, **facts) -> ParsedReply:
    return ReplyParser.of(names, max_actions, strict).parse(reply, **facts)


# (reply, outcome, actions); none of them depends on strictness or on a finish reason.
SHAPES = {
    "protocol": ("<think>a</think><answer>Up || Right</answer>", "ok", (UP, RIGHT)),
    "answer only": ("<answer>Down</answer>", "ok", (DOWN,)),
    "blank around": (" \n<answer> Down </answer>\n ", "ok", (DOWN,)),
    "prose around": ("I go. <answer>Down</answer> There.", "ok", (DOWN,)),
    "five actions": (f"<answer>{'Up||' * 4}Up</answer>", "ok", (UP,) * 5),
    # Nothing to read.
    "empty": ("", "empty", ()),
    "spaces": ("   ", "empty", ()),
    "all white space": (" \t\r\n\u00a0\u2003\u2028", "empty", ()),
    "a NUL": ("\x00", "no_answer", ()),
    "prose": ("I think that Up is best.", "no_answer", ()),
    "bare action": ("Up", "no_answer", ()),
    "other tags": ("<action>Up</action>", "no_answer", ()),
    "json": ('{"answer": "Up"}', "no_answer", ()),
    "escaped tags": ("&lt;answer&gt;Up&lt;/answer&gt;", "no_answer", ()),
    "thinking only": ("<think>Up</think>", "no_answer", ()),
    "action after thinking": ("<think>a</think>Up", "no_answer", ()),
    # Answer tags.
    "opening missing": ("Up</answer>", "no_answer", ()),
    "closed by an opening": ("<answer>Up<answer>", "no_answer", ()),
    "torn closing": ("<answer>Up</answer", "no_answer", ()),
    "wrong order": ("</answer>Up<answer>", "no_answer", ()),
    "doubled": ("<answer><answer>Up</answer></answer>", "ok", (UP,)),
    "doubled opening": ("<answer><answer>Up</answer>", "ok", (UP,)),
    "doubled closing": ("<answer>Up</answer></answer>", "ok", (UP,)),
    "nested": ("<answer>Up<answer>Left</answer>Down</answer>", "ok", (LEFT,)),
    "upper case": ("<ANSWER>Up</ANSWER>", "ok", (UP,)),
    "mixed case": ("<Think>a</THINK><Answer>Up</aNSWER>", "ok", (UP,)),
    "spaces in tags": ("< answer >Up< / answer\n>", "ok", (UP,)),
    "unclosed before a closed one": ("<answer>Down <answer>Up</answer>", "ok", (UP,)),
    # Content.
    "nothing": ("<answer></answer>", "unparsable", ()),
    "blank": ("<answer> \n </answer>", "unparsable", ()),
    "separators only": ("<answer>|| || ,;|\n</answer>", "unparsable", ()),
    "dots": ("<answer>...</answer>", "unparsable", ()),
    "unknown name": ("<answer>Jump</answer>", "unparsable", ()),
    "one unknown of three": ("<answer>Up || Jump || Up</answer>", "unparsable", ()),
    "prose in the answer": ("<answer>I think Up is best</answer>", "unparsable", ()),
    "labelled": ("<answer>Action: Up</answer>", "unparsable", ()),
    "substring": ("<answer>Upwards</answer>", "unparsable", ()),
    "part of a name": ("<answer>Le</answer>", "unparsable", ()),
    "joined by a space": ("<answer>Up Down</answer>", "unparsable", ()),
    "index": ("<answer>0</answer>", "unparsable", ()),
    "NUL in the answer": ("<answer>Up\x00</answer>", "unparsable", ()),
    "lone surrogate": ("<answer>\ud800Up</answer>", "unparsable", ()),
    "surrogate before": ("\udfff<answer>Up</answer>\ud800", "ok", (UP,)),
    "right-to-left marks": ("\u200f<answer>\u202bUp\u202c\u200e</answer>", "ok", (UP,)),
    "byte order mark": ("\ufeff<answer>\ufeffUp</answer>", "ok", (UP,)),
    "six actions": (f"<answer>{'Up||' * 5}Down</answer>", "too_many", (UP,) * 5),
    "six, one unknown": (f"<answer>{'Up||' * 5}Jump</answer>", "unparsable", ()),
    # Separators and decoration.
    "no spaces": ("<answer>Up||Down||Left</answer>", "ok", (UP, DOWN, LEFT)),
    "single bars": ("<answer>Up | Down</answer>", "ok", (UP, DOWN)),
    "commas": ("<answer>Up, Down,Left</answer>", "ok", (UP, DOWN, LEFT)),
    "semicolons": ("<answer>Up; Down;</answer>", "ok", (UP, DOWN)),
    "lines": ("<answer>\nUp\nDown\r\nLeft\rUp\n</answer>", "ok", (UP, DOWN, LEFT, UP)),
    "mixed": ("<answer>Up || Down, Left\nUp</answer>", "ok", (UP, DOWN, LEFT, UP)),
    "stray separators": ("<answer>|| Up || || Down ||</answer>", "ok", (UP, DOWN)),
    "decorated": ('<ANSWER> "up" || **Right**. </ANSWER>', "ok", (UP, RIGHT)),
    "numbered": ("<answer>1. Up\n2) Down\n3: Left</answer>", "ok", (UP, DOWN, LEFT)),
    "numbered tightly": ("<answer>1.Up</answer>", "ok", (UP,)),
    "numbered twice": ("<answer>1. 2. Up</answer>", "unparsable", ()),
    "number without a dot": ("<answer>1 Up</answer>", "unparsable", ()),
    "bullets": ("<answer>- Up\n* Down\n• Left</answer>", "ok", (UP, DOWN, LEFT)),
    "list": ("<answer>['Up', 'Down']</answer>", "ok", (UP, DOWN)),
    "tuple": ("<answer>(Up, Down)</answer>", "ok", (UP, DOWN)),
    "object": ('<answer>{"action": "Up"}</answer>', "unparsable", ()),
    # Code fences.
    "tags in a fence": ("```\n<answer>Up</answer>\n```", "ok", (UP,)),
    "tags in xml": ("```xml\n<think>a</think>\n<answer>Up</answer>```", "ok", (UP,)),
    "tags in backticks": ("`<answer>`Up`</answer>`", "ok", (UP,)),
    "fence inside": ("<answer>```\nUp\n```</answer>", "ok", (UP,)),
    "text inside": ("<answer>\n```text\nUp\nDown\n```\n</answer>", "ok", (UP, DOWN)),
    "tight fence": ("<answer>```Up```</answer>", "ok", (UP,)),
    "name as language": ("<answer>```Up\nDown```</answer>", "ok", (UP, DOWN)),
    "empty fence": ("<answer>```\n```</answer>", "unparsable", ()),
    # Drafts and the thinking's tags.
    "draft": ("<think><answer>Up</answer></think><answer>Left</answer>", "ok", (LEFT,)),
    "draft alone": ("<think>a <answer>Up</answer> b</think>", "no_answer", ()),
    "draft without opening": ("<answer>Up</answer></think>a", "no_answer", ()),
    "only a closing tag": ("Up or so</think><answer>Left</answer>", "ok", (LEFT,)),
    "draft, only a closing tag": (
        "<answer>Up</answer> no</think><answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "two stray closing tags": (
        "a</think><answer>Up</answer></think><answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "never closed": ("<think>Up, so <answer>Left</answer>", "ok", (LEFT,)),
    "never closed, no answer": ("<think>Up || Left", "no_answer", ()),
    "doubled thinking": ("<think><think>a</think><answer>Up</answer>", "ok", (UP,)),
    "doubled, never closed": ("<think><think>a<answer>Up</answer>", "ok", (UP,)),
    "draft in doubled": (
        "<think>a<answer>Up</answer><think>b</think>",
        "no_answer",
        (),
    ),
    "tripled opening": (
        "<think><think><think>a</think>b<answer>Up</answer></think>"
        "<answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "nested thinking": (
        "<think>a<think>b</think><answer>Up</answer></think><answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "two thoughts": (
        "<think>a</think><think><answer>Up</answer></think><answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "thought after the answer": (
        "<answer>Up</answer><think><answer>Left</answer></think>",
        "ok",
        (UP,),
    ),
    "never closed after the answer": ("<answer>Up</answer><think>a", "ok", (UP,)),
    "thought within the answer": (
        "<answer>Up || <think>or Left</think>Down</answer>",
        "ok",
        (UP, DOWN),
    ),
    "all inside": ("<answer><think>a</think>Up</answer>", "ok", (UP,)),
    "thinking": ("<thinking>a</thinking><answer>Up</answer>", "ok", (UP,)),
    "reasoning": (
        "<REASONING><answer>Up</answer></REASONING><answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "thought": ("<answer>Up</answer></Thought><answer>Left</answer>", "ok", (LEFT,)),
    "tags that differ": ("<think>a</thinking><answer>Up</answer>", "ok", (UP,)),
    "blank lines in thinking": (
        "<think>\n\na\n\nb\n\n</think>\n\n<answer>Up</answer>",
        "ok",
        (UP,),
    ),
    # The last answer, and what follows it.
    "same answer twice": ("<answer>Up</answer> <answer>up.</answer>", "ok", (UP,)),
    "next observation": (
        "<answer>Up</answer>\nReward: 1.\nTurn 2 of 5. Actions left: 3.\n_ P\n"
        "<think>a</think><answer>Down</answer>",
        "ok",
        (UP,),
    ),
    "next compact observation": (
        "<answer>Up</answer>\nUp.\nTurn 2/5, 8 actions\n<answer>Down</answer>",
        "ok",
        (UP,),
    ),
    "chat markers": (
        "<answer>Up</answer><|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n"
        "<|im_start|>assistant\n<answer>Down</answer>",
        "ok",
        (UP,),
    ),
    "other chat markers": (
        "<answer>Up</answer><|eot_id|><|start_header_id|>user<|end_header_id|>"
        "<answer>Down</answer>",
        "ok",
        (UP,),
    ),
    "end of turn": (
        "<answer>Up</answer><end_of_turn>\n<answer>Down</answer>",
        "ok",
        (UP,),
    ),
    "next user": ("<answer>Up</answer>\nUser: <answer>Down</answer>", "ok", (UP,)),
    "next human": ("<answer>Up</answer>\n human: <answer>Down</answer>", "ok", (UP,)),
    "marker before the answer": ("<|im_start|><answer>Up</answer>", "ok", (UP,)),
    "header before the answer": (
        "Turn 1 of 5. I go.\n<answer>Up</answer>",
        "ok",
        (UP,),
    ),
    "simulated in thinking": (
        "<think><answer>Up</answer>\nTurn 2 of 5. Bad.</think><answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "simulated, only a closing tag": (
        "<answer>Up</answer>\nTurn 2 of 5. Bad.</think><answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "header after a draft": (
        "<think><answer>Up</answer></think>\nTurn 2 of 5.\n<answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "header after a stray closing": (
        "Up</answer>\nTurn 2 of 5.\n<answer>Left</answer>",
        "ok",
        (LEFT,),
    ),
    "two turns, only closing tags": (
        "a</think><answer>Up</answer>\nTurn 2 of 5.\nb</think><answer>Left</answer>",
        "ok",
        (UP,),
    ),
    "two turns, never closed": (
        "<think>a<answer>Up</answer>\nTurn 2 of 5.\n<think>b</think>"
        "<answer>Left</answer>",
        "ok",
        (UP,),
    ),
}

# (reply, actions, in strict mode): the last of several answers wins.
SEVERAL = {
    "two": ("<answer>Up</answer><answer>Down</answer>", (DOWN,)),
    "by length": ("<answer>Up</answer><answer>Up || Up</answer>", (UP, UP)),
    "by order": (
        "<answer>Up || Left</answer> or <answer>Left || Up</answer>",
        (LEFT, UP),
    ),
    "a template first": ("<answer>...</answer> so <answer>Up</answer>", (UP,)),
    "three": (
        "<answer>Up</answer><answer>Down</answer><answer>Up</answer>",
        (UP,),
    ),
    "imitated reward": (
        "<answer>Up</answer>\nReward: 1.\n<answer>Down</answer>",
        (DOWN,),
    ),
    "never closed": ("<think><answer>Up</answer><answer>Down</answer>", (DOWN,)),
    "header within a line": (
        "<answer>Up</answer> in Turn 2 of 5. <answer>Down</answer>",
        (DOWN,),
    ),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("finish_reason", [None, "content_filter"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_reply_says_what_its_shape_says(shape, finish_reason, strict):
    reply, outcome, actions = SHAPES[shape]
    parsed = parse(reply, finish_reason=finish_reason, strict=strict)
    assert (parsed.outcome, parsed.actions) == (outcome, actions)


@pytest.mark.parametrize("shape", SEVERAL)
def test_the_last_answer_wins_and_in_strict_mode_none(shape):
    reply, actions = SEVERAL[shape]
    parsed = parse(reply)
    assert (parsed.outcome, parsed.actions) == ("ok", actions)
    parsed = parse(reply, strict=True)
    assert (parsed.outcome, parsed.actions) == ("unparsable", ())


@pytest.mark.parametrize(
    "reply",
    [
        "<answer>Up</answer><answer>I am not sure</answer>",
        "<answer>Up</answer><answer></answer>",
    ],
)
def test_an_unreadable_last_answer_is_not_replaced_by_an_earlier_one(reply):
    assert parse(reply).outcome == "unparsable"


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_of_a_reply_that_was_cut_off_is_played(shape):
    parsed = parse(SHAPES[shape][0], finish_reason="length")
    assert (parsed.outcome, parsed.answer, parsed.actions) == ("cut_off", "", ())


# Servers that strip the stop string leave the last answer open.
STRIPPED = {
    "one": ("<answer>Up", "ok", (UP,)),
    "two": ("<think>a</think>\n<answer>Up || Left\n", "ok", (UP, LEFT)),
    "too many": ("<answer>Up,Up,Up,Up,Up,Left", "too_many", (UP,) * 5),
    "never closed thinking": ("<think>I go <answer>Up", "ok", (UP,)),
    "after a closed one": ("<answer>Up</answer> no, <answer>Left", "ok", (LEFT,)),
    "prose": ("<answer>Up because it is near", "no_answer", ()),
    "half a name": ("<answer>Up || Le", "no_answer", ()),
    "nothing": ("<answer>", "no_answer", ()),
    "draft": ("<think>or <answer>Up</think>", "no_answer", ()),
    "draft after an answer": ("<answer>Up</answer> or <answer>perhaps", "ok", (UP,)),
}


@pytest.mark.parametrize("shape", STRIPPED)
def test_a_stop_string_that_the_server_stripped_is_not_missed(shape):
    reply, outcome, actions = STRIPPED[shape]
    parsed = parse(reply, finish_reason="stop")
    assert (parsed.outcome, parsed.actions) == (outcome, actions)
    parsed = parse(reply)
    assert parsed.outcome == ("ok" if "</answer>" in reply else "no_answer")


def test_a_stripped_stop_string_is_an_answer_in_strict_mode_too():
    reply = "<answer>Up</answer> no, <answer>Left"
    assert parse(reply, finish_reason="stop", strict=True).outcome == "unparsable"


@pytest.mark.parametrize(
    ("reply", "thinking", "answer"),
    [
        ("<think>a</think><answer>Up</answer>", "a", "Up"),
        ("<think> a\nb </think> <answer> Up || Up</answer>", "a\nb", "Up || Up"),
        ("So. <think>a</think> Well. <answer>Up</answer>", "a", "Up"),
        ("a </think><answer>Up</answer>", "a", "Up"),
        ("<think>a</think>b<think>c</think><answer>Up</answer>", "a\nc", "Up"),
        ("<think>a<think>b</think></think>", "a<think>b</think>", ""),
        ("<think>a <answer>Up</answer>", "a", "Up"),
        ("<think>a <answer>Up</answer><answer>Left</answer>", None, "Left"),
        ("<answer>Up</answer><think>a", "a", "Up"),
        ("<think>a <answer>Jump</answer>", "a", "Jump"),
        ("<think>a", "a", ""),
        ("<think></think><answer>Up</answer>", "", "Up"),
        ("Hello. <answer>Up</answer>", "", "Up"),
        ("<answer>Up</answer>\nTurn 2 of 5.\n<think>b</think>", "", "Up"),
    ],
)
def test_thinking_and_answer_are_told_apart(reply, thinking, answer):
    parsed = parse(reply)
    if thinking is None:
        thinking = "a <answer>Up</answer>"
    assert (parsed.thinking, parsed.answer) == (thinking, answer)


@pytest.mark.parametrize("reply", ["<answer>Up</answer>", "So <answer>Up</answer>"])
def test_thinking_that_came_apart_is_kept(reply):
    assert parse(reply, thinking="a").thinking == "a"
    assert parse(f"<think>b</think>{reply}", thinking="a").thinking == "a\nb"
    assert parse(reply, thinking="").thinking == ""
    assert parse(reply).thinking == ""


def test_thinking_that_came_apart_does_not_rescue_an_empty_reply():
    parsed = parse("", thinking="<answer>Up</answer>")
    assert parsed == ParsedReply("empty", "<answer>Up</answer>", "", ())


def test_a_reply_that_was_cut_off_keeps_its_thinking():
    assert parse("<think>so far", finish_reason="length").thinking == "so far"
    parsed = parse("<think>a</think><answer>Up</answer>", finish_reason="length")
    assert parsed.thinking == "a"
    assert parse("", thinking="a", finish_reason="length").outcome == "cut_off"


@pytest.mark.parametrize("reply", ["", "<answer>Up</answer>", "a <answer>Up</answer>"])
def test_facts_of_a_wrong_type_are_passed_over(reply):
    expected = parse(reply)
    for fact in (0, 1.5, [], {"a": 1}, object(), b"length"):
        assert parse(reply, thinking=fact, finish_reason=fact) == expected


# Names ------------------------------------------------------------------------

NAME_SETS = {
    "moves": NAMES,
    "diagonals": ("Up-Left", "Up-Right", "Up", "Left"),
    "spaces": ("Pull the red lever", "Pull the lever", "Pull"),
    "placements": ("place 5 at 2 3", "place 3 at 5 2", "place 15 at 2 3"),
    "digits": ("1", "2", "10", "12", "0"),
    "signs": ("-1", "0", "+1", "1"),
    "arithmetic": ("(3 + 4)", "7 - 2", "3 * 4", "8 / 2"),
    "separators": ("move 1,2", "move 2,1", "a|b", "x;y"),
    "punctuation": ("Go!", "Stop.", "Wait?", "-Go"),
    "numbered": ("1. Up", "2. Up", "2. Down"),
    "underscores": ("move_up", "move_down", "_move"),
    "not ASCII": ("Stra\u00dfe", "\u00c4rger", "\u0441\u0442\u043e\u043f"),
}
WRAPPINGS = (
    *("{}", "  {}\t", "\n{}\r\n", "'{}'", '"{}"', "`{}`", "**{}**", "*{}*", "__{}__"),
    *("[{}]", "({})", "<{}>", "{{{}}}", '["{}"]', "\u201c{}\u201d", "\u00ab{}\u00bb"),
    *("{}.", "{}!", "{},", "{}:", "{};", "{}?", "{}...", "**{}.**", '"{}".', "({}),"),
    *("- {}", "* {}", "> {}", "\u2022 {}", "1. {}", "2) {}", "3: {}", "- **{}**"),
    *("```\n{}\n```", "```text\n{}\n```", "```{}```", "\u200f{}\u200e", ": {}"),
)


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("name_set", NAME_SETS)
def test_every_name_is_read_in_every_case_and_wrapping(name_set, wrapping):
    names = NAME_SETS[name_set]
    for change in (str, str.upper, str.lower, str.title, str.swapcase, str.casefold):
        parts = [wrapping.format(change(name)) for name in names]
        for index, part in enumerate(parts):
            parsed = parse(f"<answer>{part}</answer>", names=names)
            assert (parsed.outcome, parsed.actions) == ("ok", (index,)), part
        reply = f"<answer>{' || '.join(parts)}</answer>"
        assert parse(reply, names=names).actions == tuple(range(len(names)))


@pytest.mark.parametrize("name_set", NAME_SETS)
def test_what_is_not_a_whole_name_is_unknown(name_set):
    names = NAME_SETS[name_set]
    for name in names:
        for part in (f"{name}x", f"x{name}", f"I play {name}", f"{name} {name}"):
            parsed = parse(f"<answer>{part}</answer>", names=names)
            assert (parsed.outcome, parsed.actions) == ("unparsable", ()), part


@pytest.mark.parametrize("part", ["-1", ".5", "1.5", "1,5", "-5.", "1/5", "5%"])
def test_a_number_is_not_read_as_another_number(part):
    parsed = parse(f"<answer>{part}</answer>", names=("5", "1.0"))
    assert parsed.outcome == "unparsable"


def test_names_that_differ_by_case_are_read_by_their_exact_spelling():
    names = ("a", "A", "Go", "gO")
    for index, name in enumerate(names):
        for part in (name, f'"{name}".'):
            reply = f"<answer>{part}</answer>"
            assert parse(reply, names=names).actions == (index,)
    assert parse("<answer>GO</answer>", names=names).outcome == "unparsable"


def test_names_that_differ_by_punctuation_alone_are_told_apart():
    names = ("Go!", "Go", "_Go")
    for index, parts in enumerate(
        (("go!", "- Go!", "'Go!'"), ("go", "- Go", "**Go**"), ("_go", "_Go.", "'_Go'"))
    ):
        for part in parts:
            reply = f"<answer>{part}</answer>"
            assert parse(reply, names=names).actions == (index,)


def test_a_ruler_or_a_name_within_much_punctuation_is_no_action():
    assert parse(f"<answer>{'-' * 80}\nUp\n</answer>").actions == (UP,)
    assert parse(f"<answer>{'-' * 80} Up</answer>").outcome == "unparsable"


def test_a_name_with_a_separator_is_tried_before_its_parts():
    names = ("a", "b", "a, b")
    assert parse("<answer>a, b</answer>", names=names).actions == (2,)
    assert parse("<answer>b, a</answer>", names=names).actions == (1, 0)
    assert parse("<answer>a, b || a</answer>", names=names).actions == (2, 0)


def test_the_punctuation_around_a_name_may_be_left_out():
    names = ("Go!", "(3 + 4)", "+")
    for index, part in enumerate(("Go", "3 + 4", "+")):
        assert parse(f"<answer>{part}</answer>", names=names).actions == (index,)


def test_a_name_of_nothing_but_punctuation_is_a_name():
    names = ("+", "-", "*", "...", "<<")
    for index, name in enumerate(names):
        assert parse(f"<answer>'{name}'</answer>", names=names).actions == (index,)
    assert parse("<answer>?</answer>", names=names).outcome == "unparsable"


def test_names_that_are_tags_without_brackets_are_names():
    names = ("think", "answer")
    assert parse("<answer>Think || Answer</answer>", names=names).actions == (0, 1)


def test_without_names_nothing_is_known():
    assert parse("<answer>Up</answer>", names=()).outcome == "unparsable"


# The parser as an object --------------------------------------------------------


def test_parsers_of_the_same_names_are_shared_and_may_come_as_a_list():
    parser = ReplyParser.of(NAMES, 5, False)
    assert ReplyParser.of(list(NAMES), 5, False) is parser
    assert ReplyParser.of(NAMES, 5, True) is not parser
    assert (parser.names, parser.max_actions, parser.strict) == (NAMES, 5, False)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda parser: pickle.loads(dumped(parser))]
)
def test_a_copy_parses_alike(copied):
    parser = ReplyParser(NAMES, 1, strict=True)
    twin = copied(parser)
    assert (twin.names, twin.max_actions, twin.strict) == (NAMES, 1, True)
    reply = "<answer>Up || Down</answer>"
    assert twin.parse(reply) == parser.parse(reply)
    assert copied(parser.parse(reply)) == parser.parse(reply)


def dumped(thing) -> bytes:
    return pickle.dumps(thing)


def test_what_a_parser_remembers_changes_nothing_and_stays_small():
    parser = ReplyParser(NAMES, 2)
    for number in range(5_000):
        unknown = parser.parse(f"<answer>Up{number}</answer>")
        assert unknown.outcome == "unparsable"
    for _ in range(2):
        assert parser.parse("<answer>Up || Left</answer>").actions == (UP, LEFT)
        assert parser.parse("<answer>Up,Up,Up</answer>").outcome == "too_many"
    assert len(parser._plain) <= 1024


# Any text at all ----------------------------------------------------------------

MEGABYTE = 1_000_000
HUGE = {
    "letters": ("a" * MEGABYTE, "no_answer"),
    "spaces": (" " * MEGABYTE, "empty"),
    "NULs": ("\x00" * MEGABYTE, "no_answer"),
    "surrogates": ("\ud800" * MEGABYTE, "no_answer"),
    "think": ("<think>" * 150_000, "no_answer"),
    "/think": ("</think>" * 130_000, "no_answer"),
    "answer": ("<answer>" * 120_000, "no_answer"),
    "/answer": ("</answer>" * 110_000, "no_answer"),
    "nested thinking": ("<think>" * 70_000 + "</think>" * 70_000, "no_answer"),
    "nested but one": ("<think>" * 70_000 + "</think>" * 69_999, "no_answer"),
    "thoughts": ("<think></think>" * 70_000, "no_answer"),
    "doubled thoughts": ("<think><think></think>" * 50_000, "no_answer"),
    "nested answers": ("<answer>" * 60_000 + "</answer>" * 60_000, "unparsable"),
    "answers": ("<answer>Up</answer>" * 55_000, "ok"),
    "turns": ("<answer>Up</answer>\nTurn 2 of 5.\n" * 30_000, "ok"),
    "markers": ("<answer>Up</answer>" + "<|im_end|>" * 100_000, "ok"),
    "simulated turns": (
        f"<think>{'<answer>Up</answer><|im_end|>' * 35_000}</think>",
        "no_answer",
    ),
    "actions": (f"<answer>{'Up||' * 250_000}</answer>", "too_many"),
    "bars": (f"<answer>{'||' * 500_000}</answer>", "unparsable"),
    "all separators": (f"<answer>{'||,;|' * 200_000}</answer>", "unparsable"),
    "lines": ("<answer>" + "\n" * MEGABYTE + "</answer>", "unparsable"),
    "digits": ("<answer>" + "1." * 500_000 + "</answer>", "unparsable"),
    "stars": ("<answer>" + "*" * MEGABYTE + "Up</answer>", "unparsable"),
    "fences": ("<answer>" + "```a" * 250_000 + "</answer>", "unparsable"),
    "long thinking": (f"<think>{'a ' * 500_000}</think><answer>Up</answer>", "ok"),
    "long thinking with <": (
        f"<think>{'< ' * 500_000}</think><answer>Up</answer>",
        "ok",
    ),
    "spaces in tags": ("<" + " " * MEGABYTE + "answer", "no_answer"),
    "spaces after a slash": ("</" + " " * MEGABYTE + "answer", "no_answer"),
    "half tags": ("<answer" * 140_000, "no_answer"),
    "indents": ("<answer>Up</answer>" + "\n \t" * 330_000, "ok"),
    "turn numbers": ("<answer>Up</answer>\nturn " + "1" * MEGABYTE, "ok"),
    "blank inside": ("<answer>Up" + " " * MEGABYTE + "</answer>", "ok"),
}


@pytest.mark.parametrize("shape", HUGE)
def test_a_megabyte_of_anything_is_read_to_its_end(shape):
    reply, outcome = HUGE[shape]
    assert parse(reply, strict=True, finish_reason="stop").outcome == outcome
    assert parse(reply).outcome == outcome


FRAGMENTS = (
    *("<think>", "</think>", "<THINKING>", "</thinking>", "<reasoning>", "</thought>"),
    *("<answer>", "</answer>", "<Answer>", "</ANSWER>", "< answer>", "</answer", "<"),
    *("Up", "down", "LEFT", "Right", "Jump", "1. Up", '"Up"', "**Left**", "- "),
    *(" || ", "|", ",", ";", "\n", " ", ".", "```", "```text\n", "\r\n"),
    *("\nTurn 2 of 5.", "\nTurn 2/5,", "<|im_end|>", "\nUser:", "</s>", "Reward: 1."),
    *("\x00", "\ud800", "\udfff", "\u202e", "\u200f", "\ufeff", "\u0130", "\u00df"),
    *("<answer>Up</answer>", "<think>a</think>", "<answer>Left || Up</answer>"),
)
POOLS = st.lists(
    st.sampled_from(FRAGMENTS) | st.text(st.characters(exclude_categories=())),
    min_size=4,
    max_size=16,
)


def test_no_text_raises_or_breaks_a_promise():
    examples, texts = 2_000, 50
    parsed_texts = 0
    parsers = [ReplyParser.of(NAMES, n, strict) for n in (1, 3) for strict in (0, 1)]

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(POOLS, st.integers(0, 2**32))
    def parse_texts(pool, seed):
        nonlocal parsed_texts
        generator = random.Random(seed)
        for _ in range(texts):
            reply = "".join(generator.choices(pool, k=generator.randint(1, 12)))
            parser = generator.choice(parsers)
            finish_reason = generator.choice((None, "stop", "stop", "length"))
            thinking = generator.choice((None, "a"))
            parsed = parser.parse(reply, thinking=thinking, finish_reason=finish_reason)
            assert_promises(reply, finish_reason, parser, parsed)
            parsed_texts += 1

    parse_texts()
    assert parsed_texts >= 100_000


def assert_promises(reply, finish_reason, parser, parsed):
    assert parsed.outcome in OUTCOMES
    assert bool(parsed.actions) == (parsed.outcome in ("ok", "too_many"))
    assert len(parsed.actions) <= parser.max_actions
    assert all(0 <= index < len(NAMES) for index in parsed.actions)
    assert (parsed.outcome == "cut_off") == (finish_reason == "length")
    if finish_reason != "length":
        assert (parsed.outcome == "empty") == (not reply.strip())
    if parsed.outcome == "too_many":
        assert len(parsed.actions) == parser.max_actions
    if parsed.actions:
        assert all(NAMES[i].casefold() in reply.casefold() for i in parsed.actions)


PLAIN = st.lists(
    st.sampled_from([part for part in FRAGMENTS if "<" not in part])
    | st.text(st.characters(exclude_categories=(), exclude_characters="<")),
    max_size=6,
).map("".join)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(PLAIN, PLAIN, st.booleans())
def test_a_plain_reply_is_read_as_within_prose(thought, answer, strict):
    block = f"<answer>{answer}</answer>"
    for reply in (block, f"<think>{thought}</think>\n{block}"):
        assert parse(reply, strict=strict) == parse(f"So. {reply}", strict=strict)
    reply = f"{thought}</think>{block}"
    assert parse(reply, strict=strict) == parse(f"{reply} So.", strict=strict)
