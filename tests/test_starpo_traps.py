"""The page of traps names tests and planted faults that exist and belong together."""

import ast
import re
from pathlib import Path

import mutants
import pytest

HERE = Path(__file__).parent
PAGE = (HERE.parent / "docs" / "traps.md").read_text("utf-8")
TRAPS = {
    int(found[1]): found[0]
    for found in re.finditer(r"^\*\*(\d+) .*?(?=\n\n|\Z)", PAGE, re.M | re.S)
}
NUMBERS = (
    set(range(1, 9))
    | set(range(11, 18))
    | set(range(19, 25))
    | {26, 27, 29, 30}
    | set(range(32, 43))
    | {44, 46, 47, 48, 49}
)


def functions() -> set[str]:
    """Return the names of all test functions of the trainer."""
    return {
        node.name
        for path in HERE.glob("test_starpo_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def named(text: str) -> tuple[set[str], set[str]]:
    """Return the tests and the faults that a paragraph names."""
    tests = set(re.findall(r"`(test_\w+)`", text))
    faults = re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", text)
    return tests, {" ".join(one.split()) for one in faults}


def test_no_trap_is_left_out() -> None:
    assert set(TRAPS) == NUMBERS


@pytest.mark.parametrize("number", sorted(NUMBERS))
def test_a_trap_has_tests_that_find_its_planted_faults(number: int) -> None:
    tests, faults = named(TRAPS[number])
    assert tests and tests <= functions()
    known = {mutant.name: mutant for mutant in mutants.MUTANTS}
    assert faults and faults <= set(known)
    for fault in faults:
        assert tests & {test.rpartition("::")[-1] for test in known[fault].tests}, fault
