"""Checks that copies of an episode in progress go on like it: pickle, JSON, clone."""

import copy
import json
import pickle
from collections.abc import Mapping
from typing import Any

from ragen_bench.checks.case import (
    Case,
    Layer,
    Player,
    expect_same,
    layer_name,
)


def copies_go_on_alike(case: Case) -> None:
    """Copies made in mid-episode play on as the original does, and apart from it.

    Tried are pickle, deepcopy, `clone`, and `set_state` of the state after JSON in
    a new and in a used environment.
    """
    for layer in (0, 1):
        for seed in case.seeds:
            env, new, used = (case.layers()[layer] for _ in range(3))
            whole = Player(env, seed).finish()
            middle = len(whole) // 2
            player = Player(env, seed)
            while len(player.returns) < middle:
                player.step()
            Player(used, seed + 1).finish()
            state = env.get_state()
            kept = copy.deepcopy(state)
            wire = json.dumps(state, allow_nan=False)
            copies: dict[str, Layer] = {
                "pickle": pickle.loads(pickle.dumps(env)),
                "deepcopy": copy.deepcopy(env),
                "the original": env,
                "clone()": env.clone(),
                "set_state of a new environment": _set(new, json.loads(wire)),
                "set_state of a used environment": _set(used, json.loads(wire)),
            }
            where = f"seed {seed}, {layer_name(env)}, after {middle - 1} steps"
            for name, twin in copies.items():
                expect_same(
                    json.loads(wire),
                    json.loads(json.dumps(twin.get_state())),
                    f"{where}: the state of {name}",
                )
            for name, twin in copies.items():
                expect_same(
                    whole[middle:], player.fork(twin).finish(), f"{where}: {name}"
                )
            expect_same(kept, state, f"{where}: play changed what get_state returned")
            first, *others = (twin.reset() for twin in copies.values())
            for name, start in zip(list(copies)[1:], others, strict=True):
                expect_same(first, start, f"{where}: reset() of pickle and of {name}")


def _set(env: Layer, state: Mapping[str, Any]) -> Layer:
    env.set_state(state)
    return env
