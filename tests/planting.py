"""Plants faults in the source and sees whether the tests find them.

``python planting.py`` tries all of `mutants`, or those that are named, and prints one
line of JSON for each.  A fault changes the code of functions in this process, wherever
they were imported to; no file changes.
"""

import ast
import contextlib
import dataclasses
import gc
import importlib
import inspect
import json
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One planted fault."""

    name: str
    module: str
    """Below ``ragen_bench``."""
    old: str
    """Occurs exactly once in the source of the module."""
    new: str
    tests: tuple[str, ...]
    """``file::function``; each of them must fail, in any of its parameters."""


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run the changed code in the place of the sound one for a while.

    Raises:
        LookupError: There is no such place, or not one alone, or what changes is
            neither a function nor a constant of the module.
    """
    sound = importlib.import_module(f"ragen_bench.{mutant.module}")
    source = inspect.getsource(sound)
    if source.count(mutant.old) != 1:
        raise LookupError(f"{mutant.old!r} occurs {source.count(mutant.old)} times")
    changed = source.replace(mutant.old, mutant.new)
    codes = _codes(changed)
    swaps = [
        (function, function.__code__, codes[place])
        for place, function in _functions(sound.__file__)
        if place in codes and _told(function.__code__) != _told(codes[place])
    ]
    before, after = _constants(source), _constants(changed)
    moved = {
        name: eval(after[name], sound.__dict__)
        for name in before.keys() & after.keys()
        if before[name] != after[name]
    }
    if not swaps and not moved:
        raise LookupError(f"{mutant.new!r} changes no function and no constant")
    held = {name: getattr(sound, name) for name in moved}
    try:
        for function, _, code in swaps:
            function.__code__ = code
        for name, value in moved.items():
            setattr(sound, name, value)
        yield
    finally:
        for function, code, _ in swaps:
            function.__code__ = code
        for name, value in held.items():
            setattr(sound, name, value)


Place = tuple[str, int]
"""Qualified name of a function, and which of that name it is."""


def _codes(source: str) -> dict[Place, types.CodeType]:
    """Return the code of every function in a source."""
    found: list[types.CodeType] = []
    rest = [compile(source, "<mutant>", "exec", dont_inherit=True)]
    while rest:
        inside = [c for c in rest.pop().co_consts if isinstance(c, types.CodeType)]
        found += inside
        rest += inside
    return {place: code for code, place in _places(found).items()}


def _functions(file: str | None) -> list[tuple[Place, types.FunctionType]]:
    """Return all living functions that a source file defines."""
    every = [
        one
        for one in gc.get_objects()
        if type(one) is types.FunctionType and one.__code__.co_filename == file
    ]
    # An inner function lives once for each call of the outer one.
    places = _places({one.__code__ for one in every})
    return [(places[one.__code__], one) for one in every]


def _places(codes: Iterable[types.CodeType]) -> dict[types.CodeType, Place]:
    counts: dict[str, int] = {}
    found = {}
    for code in sorted(codes, key=lambda code: code.co_firstlineno):
        name = code.co_qualname
        counts[name] = counts.get(name, -1) + 1
        found[code] = (name, counts[name])
    return found


def _told(code: types.CodeType) -> tuple[Any, ...]:
    """Return what a code does, the lines it stands on left out."""
    constants = tuple(
        _told(one) if isinstance(one, types.CodeType) else repr(one)
        for one in code.co_consts
    )
    return code.co_code, constants, code.co_names, code.co_varnames


def _constants(source: str) -> dict[str, str]:
    """Return the expressions that names of a module are set to."""
    found = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target = statement.target
        else:
            continue
        if isinstance(target, ast.Name):
            found[target.id] = ast.unparse(statement.value)
    return found


class Trials:
    """Runs the collected tests for each mutant, then those that failed without any.

    Args:
        mutants: Tried in this order.
    """

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self.mutants = mutants
        self.verdicts: dict[str, str] = {}
        """What is wrong with each, nothing if it is found; ``""`` is no mutant."""
        self._items: dict[str, list[pytest.Item]] = {}
        self._finders: dict[pytest.Item, str] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of pytest's own loop."""
        for item in session.items:
            file, _, function = item.nodeid.partition("[")[0].partition(".py::")
            test = f"{file.rpartition('/')[-1]}::{function}"
            self._items.setdefault(test, []).append(item)
        for mutant in self.mutants:
            self.verdicts[mutant.name] = self._verdict(mutant)
        broken = [name for item, name in self._finders.items() if _fails(item)]
        self.verdicts[""] = (
            f"fail without a fault: {', '.join(broken)}" if broken else ""
        )
        return True

    def _verdict(self, mutant: Mutant) -> str:
        try:
            with planted(mutant):
                missed = [test for test in mutant.tests if not self._finds(test)]
        except (LookupError, SyntaxError, ValueError) as error:
            return str(error) or repr(error)
        return f"not found by {', '.join(missed)}" if missed else ""

    def _finds(self, test: str) -> bool:
        """Return whether a test fails, in the first of its parameters that does.

        Raises:
            LookupError: There is no such test, or it breaks before it begins.
        """
        if test not in self._items:
            raise LookupError(f"no test {test}")
        for item in self._items[test]:
            if _fails(item):
                self._finders[item] = test
                return True
        return False


def _fails(item: pytest.Item) -> bool:
    """Return whether a test fails, its fixtures made anew.

    Raises:
        LookupError: It breaks before it begins.
    """
    # Without a next item all fixtures end with this one.
    for report in runtestprotocol(item, log=False, nextitem=None):
        if report.failed and report.when != "call":
            raise LookupError(f"{item.nodeid} breaks: {report.longreprtext[-300:]}")
        if report.failed:
            return True
    return False


def verdicts(mutants: Sequence[Mutant]) -> dict[str, str]:
    """Return what is wrong with each mutant; nothing if its tests find it."""
    trials = Trials(mutants)
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    nodes = [f"{HERE / test.replace('::', '.py::', 1)}" for test in tests]
    options = ["-q", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    options += ["--rootdir", str(HERE.parent), "-p", "no:xdist", "-p", "no:randomly"]
    options += ["--hypothesis-profile", "first failure"]
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main([*options, *nodes], plugins=[trials])
    return trials.verdicts


def main(names: Sequence[str]) -> None:
    """Print a verdict on each mutant, and one on the tests without any."""
    from mutants import MUTANTS

    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    for name, wrong in verdicts(chosen).items():
        print(json.dumps({"name": name, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    # Mutants are made by this module's own class, not by a second copy of it.
    sys.modules["planting"] = sys.modules["__main__"]
    main(sys.argv[1:])
