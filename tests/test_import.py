"""``import ragen_bench`` is light, quiet and complete."""

import subprocess
import sys

import pytest

import ragen_bench as rb

NOT_LOADED = (
    "torch transformers tokenizers vllm pandas scipy.stats statsmodels pydantic rich "
    "click"
).split()


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_importing_loads_nothing_heavy_and_warns_of_nothing() -> None:
    code = "import sys, ragen_bench; print(*sorted(sys.modules))"
    modules = set(run(code).split())
    assert "ragen_bench.envs.sokoban" in modules
    assert not modules & set(NOT_LOADED)


def test_gymnasium_finds_our_environments_by_the_module_prefix() -> None:
    code = """
import gymnasium
env = gymnasium.make("ragen_bench:ragen/Sokoban-v0", level=1, split="train")
observation, info = env.reset(seed=0)
print(type(observation).__name__, type(env.unwrapped).__name__)
"""
    assert run(code).split() == ["str", "TextEnv"]


@pytest.mark.parametrize("name", rb.__all__)
def test_a_public_name_exists(name: str) -> None:
    assert getattr(rb, name) is not None
    assert name in dir(rb)


def test_public_names_are_sorted_and_none_is_missing() -> None:
    assert list(rb.__all__) == sorted(set(rb.__all__))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        rb.Agnet  # noqa: B018 - the access is what is tested
