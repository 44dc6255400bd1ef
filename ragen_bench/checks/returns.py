"""Checks of what reset and step return: types, sharing, masks, limits, ends."""

import copy
import json
import math
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
from gymnasium.error import ResetNeeded

from ragen_bench.checks.case import (
    Case,
    Layer,
    Player,
    Return,
    core_of,
    expect,
    expect_same,
    layer_name,
    longest,
    play,
)
from ragen_bench.errors import CheckFailed
from ragen_bench.parsing import ParseOutcome
from ragen_bench.symbolic import SymbolicEnv
from ragen_bench.text_env import TextEnv

_PROBED = 30
"""States of an episode whose every action is tried."""


def types_are_exact(case: Case) -> None:
    """Flags are bool, rewards finite floats, parts add up, observations fit."""
    for env in case.layers():
        for seed in case.seeds:
            player = Player(env, seed)
            where = f"seed {seed}, {layer_name(env)}, reset"
            _check_info(env, player.returns[0], where)
            while not player.over:
                returned = player.step()
                where = (
                    f"seed {seed}, {layer_name(env)}, step {len(player.returns) - 1}"
                )
                _check_info(env, returned, where)
                _check_step(returned, where)
                if isinstance(env, TextEnv):
                    _check_reply(env, returned, where)


def _check_info(env: Layer, returned: Return, where: str) -> None:
    info = returned["info"]
    expect(
        returned["observation"] in env.observation_space,
        f"{where}: observation {returned['observation']!r} is not in the space",
    )
    success, progress = info["success"], info["progress"]
    expect(
        success is None or type(success) is bool,
        f"{where}: success is {success!r}, but must be a bool or None",
    )
    expect(
        type(progress) is float and 0 <= progress <= 1,
        f"{where}: progress is {progress!r}, but must be a float in [0, 1]",
    )
    mask = info["action_mask"]
    expect(
        isinstance(mask, np.ndarray)
        and mask.dtype == np.int8
        and mask.shape == (len(core_of(env).actions),)
        and bool(np.isin(mask, (0, 1)).all()),
        f"{where}: action_mask is {mask!r}, but must be int8 [actions] of 0 and 1",
    )


def _check_step(returned: Return, where: str) -> None:
    for name in ("terminated", "truncated"):
        expect(
            type(returned[name]) is bool,
            f"{where}: {name} is {returned[name]!r}, but must be a bool",
        )
    expect(
        not (returned["terminated"] and returned["truncated"]),
        f"{where}: an episode that terminates is not truncated as well",
    )
    rewards = {
        "reward": returned["reward"],
        "scored_reward": returned["info"]["scored_reward"],
    }
    for name, value in rewards.items():
        expect(
            type(value) is float and math.isfinite(value),
            f"{where}: {name} is {value!r}, but must be a finite float",
        )


def _check_reply(env: TextEnv, returned: Return, where: str) -> None:
    info = returned["info"]
    parts = info["reward_parts"]
    expect(
        math.isclose(sum(parts.values()), returned["reward"], abs_tol=1e-9),
        f"{where}: reward_parts {parts} do not add up to {returned['reward']!r}",
    )
    known = (*get_args(ParseOutcome), "illegal")
    expect(info["parse"] in known, f"{where}: parse is {info['parse']!r}")
    expect_same(info["parse"] == "ok", info["valid"], f"{where}: valid")
    expect(
        set(info["actions"]) <= set(env.action_names)
        and len(info["actions"]) == len(info["effective"]),
        f"{where}: actions {info['actions']} with effective {info['effective']}",
    )


def returns_are_not_shared(case: Case) -> None:
    """Whatever is returned stays as it was, and no two returns share an object."""
    for env in case.layers():
        raw: list[Return] = []
        copies: list[Return] = []
        for seed in (case.seeds[0], case.seeds[0]):
            player = Player(env, seed)
            player.finish()
            raw += player.raw
            copies += player.returns
        owner: dict[int, int] = {}
        for i, (returned, copied) in enumerate(zip(raw, copies, strict=True)):
            name = f"return {i} of two episodes of {layer_name(env)}"
            expect_same(copied, returned, f"{name} changed after it was returned")
            for found in _mutable(returned["observation"], returned["info"]):
                first = owner.setdefault(id(found), i)
                expect(
                    first == i,
                    f"{name} holds the very {type(found).__name__} that return {first} "
                    f"held: {found!r}",
                )


def _mutable(*values: Any) -> Iterator[Any]:
    """Yield every mutable object in values, for an array the one that owns it."""
    for value in values:
        if isinstance(value, np.ndarray):
            while isinstance(value.base, np.ndarray):
                value = value.base
            yield value
        elif isinstance(value, dict):
            yield value
            yield from _mutable(*value.values())
        elif isinstance(value, (list, tuple, set)):
            if not isinstance(value, tuple):
                yield value
            yield from _mutable(*value)
        elif isinstance(value, bytearray):
            yield value


def masks_are_true(case: Case) -> None:
    """Mask, `is_legal` and step agree on every action; illegal ones do nothing."""
    env = case.core()
    for seed in case.seeds:
        player = Player(env, seed)
        while not player.over and len(player.returns) <= _PROBED:
            mask = env.action_mask()
            told = player.returns[-1]["info"]["action_mask"]
            where = f"seed {seed}, step {len(player.returns) - 1}"
            expect_same(told, mask, f"{where}: info and action_mask()")
            expect(mask.any(), f"{where}: no action is legal")
            before = _everything(env)
            for action in range(len(env.actions)):
                _check_legality(env, action, bool(mask[action]), where)
            expect_same(before, _everything(env), f"{where}: asking changed the state")
            player.step()


def _check_legality(
    env: SymbolicEnv[Any], action: int, legal: bool, where: str
) -> None:
    what = f"{where}, action {env.actions[action]!r}"
    expect_same(legal, bool(env.is_legal(action)), f"{what}: mask and is_legal")
    twin = env.clone()
    before = _visible(twin)
    returned = play(twin, action)
    info = returned["info"]
    expect_same(not legal, info["illegal"], f"{what}: mask and info['illegal']")
    changed = twin.dump() != env.dump()
    expect_same(changed, info["effective"], f"{what}: state changed and effective")
    taken = twin.actions_taken - env.actions_taken
    expect(taken == 1, f"{what}: counts as {taken} actions instead of 1")
    if not legal:
        expect_same(before, _visible(twin), f"{what} is illegal, but changed")
        nothing = (returned["reward"], info["scored_reward"], returned["terminated"])
        expect_same(
            (0.0, 0.0, False), nothing, f"{what} is illegal: reward, scored, end"
        )


def _visible(env: SymbolicEnv[Any]) -> Return:
    return {
        "state": copy.deepcopy(env.dump()),
        "observation": env.observe(),
        "text": env.to_text(),
        "success": env.success,
        "noise": env.noise.get_state(),
    }


def _everything(env: Layer) -> str:
    return json.dumps(env.get_state(), allow_nan=False)


def steps_outside_an_episode_are_refused(case: Case) -> None:
    """A step before the first reset or after the end raises `ResetNeeded`."""
    for env in case.layers():
        _check_refusal(env, "before the first reset")
        for seed in case.seeds:
            Player(env, seed).finish()
            before = _everything(env)
            where = f"seed {seed}, after the end"
            _check_refusal(env, where)
            expect_same(before, _everything(env), f"{where}: a refused step changed")


def _check_refusal(env: Layer, where: str) -> None:
    choice: Any = 0 if isinstance(env, SymbolicEnv) else ""
    try:
        env.step(choice)
    except ResetNeeded:
        return
    raise CheckFailed(f"{where}: step of {layer_name(env)} does not raise ResetNeeded")


def limits_truncate(case: Case) -> None:
    """An episode that is not over by its limits is truncated there, not before."""
    for seed in case.seeds:
        core = case.core()
        steps = Player(core, seed).finish()
        _check_end(core, steps, longest(core), f"seed {seed}, the core")
        expect_same(
            core.limits.max_actions - len(steps) + 1,
            core.actions_left,
            f"seed {seed}: actions_left",
        )
        silent = case.text(invalid="noop")
        silent.reset(seed=seed)
        steps = [{}]
        while not silent.truncated and not silent.terminated:
            steps.append(play(silent, ""))
            expect(
                len(steps) - 1 <= longest(silent),
                f"seed {seed}: {len(steps) - 1} empty replies did not end the episode",
            )
        where = f"seed {seed}, empty replies"
        expect(
            silent.terminated == (silent.limits.max_turns == 1),
            f"{where}: ended by {'terminated' if silent.terminated else 'truncated'}",
        )
        _check_end(silent, steps, longest(silent), where)


def _check_end(env: Layer, steps: list[Return], limit: int, where: str) -> None:
    count = len(steps) - 1
    last = steps[-1]
    if not last["terminated"]:
        expect(
            last["truncated"] and count == limit,
            f"{where}: truncated after {count} steps, but the limit is {limit}",
        )
    expect_same(
        (last["terminated"], last["truncated"]),
        (env.terminated, env.truncated),
        f"{where}: returned flags and attributes",
    )
