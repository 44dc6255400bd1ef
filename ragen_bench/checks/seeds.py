"""Checks of randomness: seeds, repetitions, processes, splits, global state."""

import json
import random
from typing import Any

import numpy as np

from ragen_bench.checks.case import (
    Case,
    Layer,
    Player,
    core_of,
    difference,
    expect,
    expect_same,
    layer_name,
)
from ragen_bench.errors import RagenError
from ragen_bench.symbolic import SPLITS

_REPS = 20


def same_seed_same_episode(case: Case) -> None:
    """The same seed and actions give equal returns, bit for bit."""
    for env, other in case.pairs():
        for seed in case.seeds:
            first = Player(env, seed).finish()
            where = f"seed {seed}: {layer_name(env)} played twice"
            expect_same(first, Player(env, seed).finish(), f"{where}, in one object")
            expect_same(first, Player(other, seed).finish(), f"{where}, in two objects")


def seeds_pick_instances(case: Case) -> None:
    """A seed fixes the start, 0 included; other seeds and None give other starts."""
    for env, other in case.pairs():
        name = layer_name(env)
        for seed in (0, *case.seeds):
            first = _start(env, seed)
            for again in (env, other) * 3:
                again.reset()
                where = f"seed {seed}: the state after two resets of {name}"
                expect_same(first, _start(again, seed), where)
        starts = {json.dumps(_start(env, seed)["instance"]) for seed in range(10)}
        expect(
            len(starts) > 1 or case.core().level_spec.split_exempt,
            f"ten seeds of {name} give one instance {starts}: is the seed ignored?",
        )
        env.reset(seed=0)
        drawn = [_start(env, None)["seed"] for _ in range(2)]
        expect(
            drawn[0] != drawn[1],
            f"two resets of {name} without a seed both use seed {drawn[0]}",
        )


def options_are_honoured(case: Case) -> None:
    """``rep`` moves the noise alone, ``instance`` is played, others are refused."""
    for env in case.layers():
        name = layer_name(env)
        seed = case.seeds[0]
        first = _start(env, seed)
        given = {"rep": 3}
        env.reset(seed=seed, options=given)
        moved = _state(env)
        expect_same(given, {"rep": 3}, f"{name} changed the options of reset")
        expect_same(moved["rep"], 3, f"seed {seed}: rep does not reach the core")
        expect_same(
            first["instance"], moved["instance"], f"seed {seed}: rep moves the instance"
        )
        instance = json.loads(json.dumps(first["instance"]))
        env.reset(seed=seed + 1, options={"instance": instance})
        expect_same(
            json.dumps(first["instance"]),
            json.dumps(_state(env)["instance"]),
            f"{name} was given an instance and plays another",
        )
        for wrong in ({"rep": -1}, {"rep": "1"}, {"rep": True}, {"no such option": 1}):
            _refused(env, wrong)


def rep_picks_the_noise(case: Case) -> None:
    """Repetitions differ in a stochastic task and are alike in a deterministic one."""
    for env in case.layers():
        name = layer_name(env)
        certain = case.core().deterministic
        # Some actions have a sure outcome, so a stochastic task may need many tries.
        seeds = case.seeds if certain else sorted({*case.seeds, *range(40)})
        reps = 3 if certain else _REPS
        moved = next(
            (
                f"seed {seed}, rep 0 and rep {rep}: {found}"
                for seed in seeds
                for rep in range(1, reps)
                if (found := _moved(env, seed, rep)) is not None
            ),
            None,
        )
        if certain:
            expect(moved is None, f"{name} says it is deterministic, but {moved}")
        else:
            expect(
                moved is not None,
                f"{name} says it is stochastic, but {reps} reps of the same actions "
                f"played alike for each of {len(seeds)} seeds",
            )


def _moved(env: Layer, seed: int, rep: int) -> str | None:
    """Return what another repetition changes under the same actions, if anything."""
    return difference(Player(env, seed).finish(), Player(env, seed, rep).finish())


def environments_are_independent(case: Case) -> None:
    """Two environments played by turns do not feel each other."""
    for one, two in case.pairs():
        for seed in case.seeds:
            alone = [Player(one, seed).finish(), Player(two, seed + 1).finish()]
            players = [Player(one, seed), Player(two, seed + 1)]
            while not all(player.over for player in players):
                for player in players:
                    if not player.over:
                        player.step()
            for player, expected in zip(players, alone, strict=True):
                expect_same(
                    expected,
                    player.returns,
                    f"seed {player.seed}: {layer_name(one)} played alone and beside "
                    "another environment",
                )


def global_randomness_is_untouched(case: Case) -> None:
    """Neither `random` nor NumPy's global generator is drawn from or seeded."""
    before = global_state()
    for env in case.layers():
        for seed in case.seeds:
            Player(env, seed).finish()
        env.reset()
    for name, state in global_state().items():
        expect(
            state == before[name],
            f"an episode moved the global generator of {name}; draw from "
            "self.noise or the stream that generate is given",
        )


def instances_are_in_their_split(case: Case) -> None:
    """Every split holds its own instances, none of them solved or lost at the start."""
    owner: dict[str, str] = {}
    for split in SPLITS:
        env = case.core(split=split)
        exempt = env.level_spec.split_exempt
        for seed in sorted({*case.seeds, *range(10)}):
            env.reset(seed=seed)
            where = f"seed {seed} of split {split!r}"
            again = json.loads(json.dumps(env.instance, allow_nan=False))
            expect_same(
                env.canonical(env.instance),
                env.canonical(again),
                f"{where}: canonical form before and after JSON",
            )
            held = owner.setdefault(env.instance_digest(), split)
            expect(
                exempt or held == split, f"{where}: split {held!r} has the instance too"
            )
            hashed = env.split_of_instance(env.instance)
            expect(
                exempt or hashed == split,
                f"{where}: split_of_instance says {hashed!r}",
            )
            expect(env.success is not True, f"{where} is solved at the start")
            expect(env.optimal_cost() != 0, f"{where} is solved at the start")
            expect(not env.is_dead(), f"{where} cannot be solved")


def _state(env: Layer) -> dict[str, Any]:
    return core_of(env).get_state()


def _start(env: Layer, seed: int | None) -> dict[str, Any]:
    env.reset(seed=seed)
    return _state(env)


def _refused(env: Layer, options: dict[str, Any]) -> None:
    try:
        env.reset(seed=0, options=options)
    except RagenError:
        return
    expect(False, f"{layer_name(env)} accepts the reset options {options!r}")


def global_state() -> dict[str, str]:
    """Return the states of the generators that nobody of ours may touch."""
    # The legacy generator is the one that a careless environment would use.
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002
    with np.printoptions(threshold=10_000):
        return {"random": repr(random.getstate()), "numpy.random": repr(legacy)}
