"""Records are frozen, strict, and come back from JSON as they were."""

import json
import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from ragen_bench import records
from ragen_bench.errors import RecordError
from ragen_bench.parsing import ParseOutcome
from ragen_bench.records import (
    MAX_INT,
    OUTCOMES,
    UNSCORED,
    CellPlan,
    Interval,
    Outcome,
    Parse,
    RunConfig,
    Text,
    TurnUsage,
    count_values,
    parse_record,
    plain_json,
    sha256_of,
)

CONFIG = RunConfig(
    cells=(CellPlan(env_id="a/A-v0", level=1, seeds=(0, 2)),),
    agent="x.y:Z",
    agent_args={"a": [1, None, "\u00e9"]},
    temperature=0.1,
)
ANY_TEXT = st.text(alphabet=st.characters(codec=None), max_size=30)


def test_a_record_comes_back_from_json_as_it_was() -> None:
    text = CONFIG.model_dump_json()
    assert parse_record(RunConfig, text, "here") == CONFIG
    assert parse_record(RunConfig, text.encode(), "here") == CONFIG
    assert json.loads(text)["schema"] == 1
    assert json.loads(text)["class"] == "llm"


def test_a_record_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        CONFIG.salt = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "extra is 1: Extra inputs are not permitted"),
        ({"schema": 2}, "has schema 2, but this version of ragen-bench reads 1"),
        ({"schema": None}, "has schema None"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"repeats": 0}, "repeats is 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"prompt": "long"}, "prompt is 'long'"),
        ({"class": "alien"}, "class is 'alien'"),
        ({"cells": [{"env_id": "a", "level": 1}]}, "cells.0.seeds is "),
        ({"cells": 3}, "cells is 3"),
        ({"salt": 5}, "salt is 5"),
    ],
)
def test_a_fault_is_told_with_place_and_value(change, message) -> None:
    raw = {**json.loads(CONFIG.model_dump_json()), **change}
    with pytest.raises(RecordError) as caught:
        parse_record(RunConfig, json.dumps(raw), "file 7")
    assert str(caught.value).startswith("file 7")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "NaN", "[1", '{"schema": NaN}', b"\xff", "[" * 100_000, "\x00"],
)
def test_what_is_not_json_is_refused(text) -> None:
    with pytest.raises(RecordError, match="here is not JSON"):
        parse_record(RunConfig, text, "here")


@pytest.mark.parametrize("text", ["null", "[]", "3", '"x"', "{}"])
def test_what_is_no_record_is_refused(text) -> None:
    with pytest.raises(RecordError, match="here has schema None"):
        parse_record(RunConfig, text, "here")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused(number) -> None:
    with pytest.raises(ValidationError):
        Interval(mean=number, low=None, high=None, n=1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        plain_json({"x": [number]})
    text = CONFIG.model_dump_json().replace('[1,null,"\u00e9"]', str(number))
    with pytest.raises(RecordError, match="not JSON"):
        parse_record(RunConfig, text, "here")


def test_usage_is_unknown_unless_told() -> None:
    assert json.loads(TurnUsage(output_tokens=3).model_dump_json()) == {
        "input_tokens": None,
        "cached_tokens": None,
        "output_tokens": 3,
        "reasoning_tokens": None,
    }


@given(ANY_TEXT)
def test_text_changes_only_where_utf8_has_no_letter(text) -> None:
    adapter = TypeAdapter(Text)
    written = json.loads(adapter.dump_json(text))
    # A pair of surrogates is one letter, a lone one none.
    units = text.encode("utf-16-le", "surrogatepass")
    assert written == units.decode("utf-16-le", "replace")
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert written == text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INT, MAX_INT - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_plain_json_is_what_comes_back_from_a_file(value) -> None:
    plain = plain_json(value)
    text = json.dumps(plain, ensure_ascii=False).encode()
    assert json.loads(text) == plain == plain_json(plain)


def test_plain_json_refuses_what_json_lacks() -> None:
    loop: list = []
    loop.append(loop)
    for value in (object(), {1, 2}, b"x", loop, {"x": 1j}, {(1, 2): 3}):
        with pytest.raises((TypeError, ValueError)):
            plain_json(value)
    assert plain_json({"x": (1, 2), 3: None}) == {"x": [1, 2], "3": None}


def nested(depth: int) -> list:
    return [nested(depth - 1)] if depth > 1 else []


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (MAX_INT, "9223372036854775808 does not fit into 64 bits; write it as a"),
        ({"a": [{"b": -MAX_INT - 1}]}, "does not fit into 64 bits"),
        (nested(29), "is nested over 28 deep"),
        (nested(900), "is nested over 28 deep"),
    ],
    ids=["large", "small and within", "deep", "very deep"],
)
def test_plain_json_refuses_what_verification_could_not_read(value, hint) -> None:
    with pytest.raises(ValueError, match=hint):
        plain_json(value)


@pytest.mark.parametrize("value", [MAX_INT - 1, -MAX_INT, nested(28), True, 1e300])
def test_plain_json_keeps_what_verification_can_read(value) -> None:
    assert plain_json(value) == value


def test_values_are_counted_with_what_holds_them() -> None:
    assert [count_values(x) for x in (1, [], {}, [1, [2]], {"a": {"b": [0, 0]}})] == [
        1,
        1,
        1,
        4,
        5,
    ]


def test_a_hash_depends_on_values_and_not_on_their_order() -> None:
    assert sha256_of({"a": 1, "b": [2]}) == sha256_of({"b": [2], "a": 1})
    assert sha256_of({"a": 1}) != sha256_of({"a": 2})
    # By hand: printf '{"a": 1}' | sha256sum
    assert sha256_of({"a": 1}).startswith("f9d86028")


def test_the_lists_of_words_agree() -> None:
    assert get_args(Outcome) == OUTCOMES
    assert {"provider_error", "timeout"} == UNSCORED
    assert set(get_args(Parse)) == {*get_args(ParseOutcome), "illegal"}


HEAD = b'{"schema":1,'


@pytest.mark.parametrize(
    "text",
    [
        HEAD + b'"schema":2}',
        HEAD + b'"unknown":1}',
        HEAD + b'"x":NaN}',
        HEAD,
        b"",
        b'{"schema_version":1}',
        HEAD + b'"config":{"details":{"a":Infinity}}}',
        HEAD + b'"a":"\xff"}',
    ],
)
def test_the_short_way_refuses_what_the_long_way_refuses(text) -> None:
    with pytest.raises(RecordError):
        parse_record(RunConfig, text, "here")
    assert records._read_own(RunConfig, text) is None


def test_the_short_way_reads_what_the_long_way_reads() -> None:
    line = CONFIG.model_dump_json().encode()
    assert line.startswith(HEAD)
    short = records._read_own(RunConfig, line)
    assert short is not None
    assert short == parse_record(RunConfig, line.decode(), "here")
    # Words that look like numbers which JSON lacks are left to the long way.
    odd = line.replace(b'"salt":"', b'"salt":"NaN')
    assert records._read_own(RunConfig, odd) is None
    assert parse_record(RunConfig, odd, "here").salt == "NaN"
