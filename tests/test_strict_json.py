"""What strings hold moves no bound of strict JSON, and hides nothing from one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_bench.records import MAX_DEPTH, MAX_VALUES
from ragen_bench.verifying.faults import Refusal
from ragen_bench.verifying.strict_json import parse

TRICKY = st.text(alphabet='\\"[]{},:19e\n\u00e9')
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TRICKY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TRICKY, inner),
    max_leaves=12,
)


@given(value=VALUES, plain=st.booleans())
def test_any_strings_are_read(value, plain) -> None:
    assert parse(json.dumps(value, ensure_ascii=plain).encode(), "here") == value


@given(before=TRICKY, inside=TRICKY)
def test_brackets_count_outside_of_strings_alone(before, inside) -> None:
    def nested(depth: int) -> bytes:
        value: object = "[" * 100 + inside + "{" * 100
        for _ in range(depth):
            value = [before, value]
        return json.dumps(value).encode()

    parse(nested(MAX_DEPTH), "here")
    with pytest.raises(Refusal, match="nested"):
        parse(nested(MAX_DEPTH + 1), "here")


@given(text=TRICKY)
def test_digits_count_outside_of_strings_alone(text) -> None:
    digits = "1" * 40
    parse(json.dumps([text + digits, digits + text]).encode(), "here")
    with pytest.raises(Refusal, match="digits"):
        parse(json.dumps([text, int(digits)]).encode(), "here")


@pytest.mark.parametrize("text", [b'["a"]', b'[""]', b'{"a":"b"}'])
def test_as_many_strings_as_values_allow_are_read(text) -> None:
    inner = text[1:-1]
    most = MAX_VALUES - 1
    parts = [inner] * most
    if b":" in inner:
        parts = [b'"%d":"b"' % number for number in range(most)]
    parse(text[:1] + b",".join(parts) + text[-1:], "here")


@pytest.mark.parametrize("text", [b'"aa"aa', b'""', b'"\\""', b'"\\\\",'])
def test_more_strings_than_values_are_refused_before_they_are_read(text) -> None:
    with pytest.raises(Refusal, match="at most"):
        parse(b"[" + text * (3 * MAX_VALUES), "here")
