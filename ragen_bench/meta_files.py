"""What people say about an entry of theirs: read from a file, or asked for."""

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from ragen_bench.entries import Meta
from ragen_bench.errors import InvalidSpec, UnknownName

QUESTIONS: Mapping[str, str] = MappingProxyType(
    {
        "name": "Name of the entry, and of its files (letters, digits, . _ -)",
        "model": "The language model as its makers call it, or none",
        "organisation": "Who enters it",
        "link": "A page about the agent (https://...), or nothing",
        "licence": "Licence of the model's weights, such as Apache-2.0 or proprietary",
        "training_data": "Was the agent trained on tasks of this kind, and on what?",
        "attempt": "Which complete run of this agent on this board is it? (1, 2, ...)",
    }
)
"""Field of `Meta` to what is asked, in this order."""
_MAY_BE_EMPTY = frozenset({"link"})


def read_meta(path: Path, name: str) -> Meta:
    """Return what a TOML or JSON file says.

    Args:
        path: The file; its ending says what it is.
        name: The entry's name where the file gives none.

    Raises:
        InvalidSpec: The file cannot be read, or a value breaks a rule.
        UnknownName: A key is unknown.
    """
    where = f"meta file {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            table = tomllib.loads(text)
        elif path.suffix == ".json":
            table = json.loads(text)
        else:
            raise InvalidSpec(f"{where} must end in .toml or .json")
    except OSError as error:
        raise InvalidSpec(f"{where} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidSpec):
            raise
        raise InvalidSpec(f"{where} cannot be understood: {error}") from error
    if not isinstance(table, dict):
        raise InvalidSpec(f"{where} must hold a table of {', '.join(QUESTIONS)}")
    return meta_of({"name": name, **table}, where)


def meta_of(table: Mapping[str, Any], where: str) -> Meta:
    """Return the record that a table holds.

    Raises:
        InvalidSpec: Values break rules, or are still those of `template`; all of them
            are named.
        UnknownName: A key is unknown.
    """
    for key in table:
        if key not in QUESTIONS and key != "schema":
            raise UnknownName.of(f"key of {where}", key, QUESTIONS)
    told = [
        f"{field} is not filled in ({QUESTIONS[field]})"
        for field, value in table.items()
        if _is_left_open(field, value)
    ]
    try:
        meta = Meta.model_validate(dict(table))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        told += [
            _told(fault)
            for fault in faults
            if not _is_left_open(str(fault["loc"][0]), fault["input"])
        ]
    if told:
        raise InvalidSpec(f"{where}: {'; '.join(told)}")
    return meta


def _is_left_open(field: str, value: Any) -> bool:
    """Return whether a value is as empty as that of `template`."""
    if field in _MAY_BE_EMPTY or not isinstance(value, str):
        return False
    return not value.strip()


def _told(fault: Any) -> str:
    """Return what is wrong with one field, with what belongs there."""
    field = str(fault["loc"][0])
    asked = QUESTIONS.get(field, "the version of the record, 1")
    if fault["type"] == "missing":
        return f"{field} is missing ({asked})"
    return f"{field} is {fault['input']!r:.80} ({asked}): {fault['msg']}"


def ask(name: str, question: Callable[[str, str | None], str]) -> Meta:
    """Return what somebody answers; an answer that breaks a rule is asked for again.

    Args:
        name: Suggested as the entry's name.
        question: Puts a question, with the answer that an empty line stands for (None:
            there must be one).
    """
    suggested = {"name": name, "link": "", "attempt": "1"}
    answers: dict[str, Any] = {}
    for field, text in QUESTIONS.items():
        while True:
            answers[field] = question(text, suggested.get(field)).strip()
            fault = _fault(answers, field)
            if fault is None:
                break
            text = f"{fault}\n{QUESTIONS[field]}"
    return meta_of(answers, "what you said")


def _fault(answers: Mapping[str, Any], field: str) -> str | None:
    if _is_left_open(field, answers[field]):
        return "needs an answer"
    try:
        Meta.model_validate(dict(answers))
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            if fault["loc"][0] == field:
                return str(fault["msg"])
    return None


def template(name: str) -> str:
    """Return the text of a TOML file to fill in."""
    given: dict[str, Any] = {"name": name, "attempt": 1}
    lines = ["# What ragen-bench submit --meta takes."]
    for field, question in QUESTIONS.items():
        lines += [f"# {question}", f"{field} = {json.dumps(given.get(field, ''))}"]
    return "\n".join(lines) + "\n"
