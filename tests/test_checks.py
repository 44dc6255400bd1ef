"""The conformance tests pass what is right, and catch each flaw by name."""

import asyncio
import functools
import inspect
import random
from collections.abc import Mapping
from typing import Any

import alleys
import pytest

import ragen_bench as rb
from ragen_bench.agent import Agent, Reply
from ragen_bench.checks import ENV_CHECKS
from ragen_bench.errors import CheckFailed, InvalidSpec, RagenError, UnknownName
from ragen_bench.symbolic import SymbolicEnv
from ragen_bench.text_env import TextEnv

FLAWED = {
    name: item
    for name, item in vars(alleys).items()
    if inspect.isclass(item)
    and item.__module__ == "alleys"
    and issubclass(item, (SymbolicEnv, TextEnv))
    and item.__doc__ in ENV_CHECKS
}


def factory(name: str) -> Any:
    if issubclass(FLAWED[name], TextEnv):
        return functools.partial(FLAWED[name], "alleys:Alley")
    return functools.partial(TextEnv, f"alleys:{name}")


@pytest.mark.parametrize("level", [1, 2])
def test_a_correct_environment_passes_every_check(level: int) -> None:
    assert rb.check_env("alleys/Alley-v0", level=level) == ENV_CHECKS


def test_a_factory_passes_every_check_without_registration() -> None:
    build = functools.partial(TextEnv, "alleys:Alley")
    assert rb.check_env(build, seeds=[5]) == ENV_CHECKS


@pytest.mark.parametrize("name", FLAWED)
def test_a_flaw_is_caught_by_the_check_for_it(name: str) -> None:
    env = factory(name)
    if FLAWED[name].__doc__ == "specs_survive_json":
        env = f"alleys/{name}-v0"
    with pytest.raises(CheckFailed) as caught:
        rb.check_env(env, only=[FLAWED[name].__doc__], seeds=range(12))
    assert caught.value.check == FLAWED[name].__doc__
    assert FLAWED[name].__doc__ in str(caught.value)


def test_every_check_has_a_flaw_that_it_catches() -> None:
    assert {item.__doc__ for item in FLAWED.values()} == set(ENV_CHECKS)


def test_a_failure_names_environment_check_seed_and_difference() -> None:
    with pytest.raises(AssertionError) as caught:
        rb.check_env(factory("MaskTooWide"), level=1, only=["masks_are_true"])
    assert isinstance(caught.value, RagenError)
    assert "fails masks_are_true: seed 0, step " in str(caught.value)
    assert "action 'Jump': mask and is_legal: True, then False" in str(caught.value)


def test_a_check_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'masks_are_true'"):
        rb.check_env("alleys/Alley-v0", only=["masks_are_tru"])


def test_a_check_without_seeds_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="seeds is empty"):
        rb.check_env("alleys/Alley-v0", seeds=[])


def test_a_warning_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(self: Any) -> Any:
        import warnings

        warnings.warn("beware", stacklevel=1)
        return plain(self)

    plain = alleys.Alley.observe
    monkeypatch.setattr(alleys.Alley, "observe", observe)
    with pytest.raises(CheckFailed, match="UserWarning: beware"):
        rb.check_env("alleys/Alley-v0", only=["same_seed_same_episode"])


# Agents ---------------------------------------------------------------------------

ON_ALLEYS: dict[str, Any] = {"envs": ["alleys/Alley-v0"], "seeds": [0, 1, 2]}


class First(Agent):
    """Always takes the first action."""

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        return Reply(text=f"<answer>{self.task.action_names[0]}</answer>")


class SaysText(First):
    """plays_to_the_end: a string in place of a Reply"""

    async def act(self, observation: str, info: Mapping[str, Any]) -> Any:
        return "<answer>Right</answer>"


class BadDetails(First):
    """plays_to_the_end: details that JSON cannot hold"""

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        return Reply(text="", details={"what": {1, 2}})


class Raises(First):
    """plays_to_the_end: an exception"""

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        raise KeyError("Up")


class ChangesInfo(First):
    """plays_to_the_end: writes into info"""

    async def act(self, observation: str, info: Any) -> Reply:
        info["note"] = 1
        return Reply(text="")


class Peeks(First):
    """plays_to_the_end: relies on what a player must not see"""

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        return Reply(text=str(info["action_mask"]))


class Remembers(First):
    """reset_makes_it_fresh: counts over episodes"""

    count = 0

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        self.count += 1
        return Reply(text=f"reply {self.count}")


class Shares(First):
    """agents_are_independent: counts over objects"""

    said: list[int] = []

    def reset(self, task: Any) -> None:
        super().reset(task)
        self.said.clear()

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        self.said.append(1)
        return Reply(text=f"reply {len(self.said)}")


class Gambles(First):
    """global_randomness_is_untouched: draws from the global generator"""

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        random.random()
        return Reply(text="")


class Nobody(First):
    """declares_what_it_is: an unknown class"""

    agent_class = "wizard"  # type: ignore[assignment]


def test_a_correct_agent_passes_every_check() -> None:
    passed = rb.check_agent(First, **ON_ALLEYS)
    assert passed == (
        "declares_what_it_is",
        "plays_to_the_end",
        "reset_makes_it_fresh",
        "agents_are_independent",
        "global_randomness_is_untouched",
    )


@pytest.mark.parametrize("name", ["null", "random", "oracle"])
def test_our_own_agents_pass(name: str) -> None:
    assert rb.check_agent(name, **ON_ALLEYS)


@pytest.mark.parametrize(
    "agent",
    [
        Nobody,
        SaysText,
        BadDetails,
        Raises,
        ChangesInfo,
        Peeks,
        Remembers,
        Shares,
        Gambles,
    ],
)
def test_an_agents_flaw_is_caught_by_the_check_for_it(agent: type[Agent]) -> None:
    with pytest.raises(CheckFailed) as caught:
        rb.check_agent(agent, **ON_ALLEYS)
    assert caught.value.check == str(agent.__doc__).partition(":")[0]


def test_an_agent_of_a_random_model_may_vary() -> None:
    with pytest.raises(CheckFailed, match="a new agent and a used one"):
        rb.check_agent(Remembers, **ON_ALLEYS)
    assert rb.check_agent(Remembers, deterministic=False, **ON_ALLEYS)


def test_one_episode_is_too_few_to_compare_agents() -> None:
    with pytest.raises(InvalidSpec, match="at least two episodes"):
        rb.check_agent(First, envs=["alleys/Alley-v0"], seeds=[0])


def test_an_agent_is_checked_where_an_event_loop_runs_already() -> None:
    async def notebook() -> tuple[str, ...]:
        return rb.check_agent(First, **ON_ALLEYS)

    assert "plays_to_the_end" in asyncio.run(notebook())
