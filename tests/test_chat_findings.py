"""The doctor tells of each family's prompts what is worth knowing."""

import importlib.util
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ragen_bench.model import Finding, Message  # noqa: E402
from ragen_bench.models.chat_findings import chat_findings  # noqa: E402
from ragen_bench.models.chat_template import Chat  # noqa: E402

families = pytest.importorskip("families")

pytestmark = pytest.mark.hf

PROMPT = [
    Message(role="system", content="You are on a frozen lake."),
    Message(role="user", content="Turn 1 of 5."),
]


def findings(name: str, **arguments: Any) -> tuple[Finding, ...]:
    template = families.FAMILIES[name].template
    if template and "{" not in template and importlib.util.find_spec("trl") is None:
        pytest.skip("the templates are those of the package trl")
    return found(families.FAMILIES[name].tokenizer(), **arguments)


def found(tokenizer: Any, **arguments: Any) -> tuple[Finding, ...]:
    return chat_findings(Chat(tokenizer, [tokenizer.eos_token_id], arguments), PROMPT)


def told(found: tuple[Finding, ...], topic: str) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in found if one.topic == topic]


@pytest.mark.parametrize("name", families.FAMILIES)
def test_no_family_needs_anything_to_be_set(name: str) -> None:
    assert not [one for one in findings(name) if one.level == "fix"]


@pytest.mark.parametrize(
    ("name", "bos"),
    [
        ("llama3", ["exactly one token of beginning, as the tokenizer has it"]),
        ("gemma", ["exactly one token of beginning, as the tokenizer has it"]),
        ("qwen3", []),
    ],
)
def test_a_prompt_has_as_many_bos_as_it_must(name: str, bos: list[str]) -> None:
    assert told(findings(name), "BOS") == [("ok", text) for text in bos]


def test_two_bos_are_seen() -> None:
    tokenizer = families.FAMILIES["gemma"].tokenizer()
    # A template may write what its author has written already.
    tokenizer.chat_template = "{{ bos_token }}{{ bos_token }}" + (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    ((level, text),) = told(found(tokenizer), "BOS")
    assert (level, text[:7]) == ("fix", "2 times")


def test_a_template_that_drops_a_message_is_seen() -> None:
    tokenizer = families.FAMILIES["qwen1.5"].tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    )
    assert ("fix", "the prompt lacks the text of these messages: user") in told(
        found(tokenizer), "template"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "level", "text"),
    [
        ("qwen3", {}, "note", "it can be told not to with --model-arg template_args="),
        ("qwen3", {"enable_thinking": False}, "ok", "the template leaves thinking out"),
        ("r1", {}, "note", "the template opens a block of reasoning"),
    ],
)
def test_the_thinking_of_a_template_is_told(
    name: str, arguments: dict[str, Any], level: str, text: str
) -> None:
    ((found_level, found_text),) = told(findings(name, **arguments), "thinking")
    assert found_level == level
    assert text in found_text


def test_a_template_without_thinking_says_nothing_of_it() -> None:
    assert told(findings("llama3"), "thinking") == []


@pytest.mark.parametrize(
    ("name", "end"), [("qwen1.5", "<|im_end|>"), ("gemma", "<end_of_turn>")]
)
def test_the_ends_of_a_reply_are_named(name: str, end: str) -> None:
    ((level, text),) = told(findings(name), "end")
    assert level == "ok"
    assert end in text
