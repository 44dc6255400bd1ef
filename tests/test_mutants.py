"""Every planted fault is found by the tests that are named for it."""

import functools
import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import mutants  # noqa: E402
import planting  # noqa: E402

pytestmark = [pytest.mark.hf, pytest.mark.xdist_group("mutants")]


@functools.cache
def verdicts() -> dict[str, str]:
    """Return what is wrong with each mutant; nothing if it is found."""
    done = subprocess.run(
        [sys.executable, planting.__file__],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {line["name"]: line["wrong"] for line in lines}
    every = ["", *(mutant.name for mutant in mutants.MUTANTS)]
    return {name: found.get(name, done.stderr[-2000:]) for name in every}


def test_the_tests_pass_on_the_sound_source() -> None:
    assert verdicts()[""] == ""


@pytest.mark.parametrize("name", [mutant.name for mutant in mutants.MUTANTS])
def test_a_planted_fault_is_found(name: str) -> None:
    assert verdicts()[name] == ""


def test_names_of_mutants_are_unique() -> None:
    names = [mutant.name for mutant in mutants.MUTANTS]
    assert len(set(names)) == len(names)
