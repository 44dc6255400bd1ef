"""Checks of exact values: floor below ceiling, plans that keep their promise."""

import math
from typing import Any

from ragen_bench.checks.case import Case, Player, answer, expect, play
from ragen_bench.symbolic import SymbolicEnv

_SLACK = 1e-9
_VALUED = 6
"""States of an episode whose values are asked for."""
_AVERAGED = 10
"""Instances over which a stochastic task's values are averaged."""


def values_are_in_order(case: Case) -> None:
    """Values are finite, the best action is legal, and the floor below the ceiling.

    A task with hidden parts may have an instance on which the policy that is best on
    average does worse than chance, so there the mean over instances must be in order.
    """
    env = case.core()
    for seed in case.seeds:
        player = Player(env, seed)
        while not player.over and len(player.returns) <= _VALUED:
            where = f"seed {seed}, step {len(player.returns) - 1}"
            floor, ceiling = _values(env, where)
            expect(
                not env.deterministic or ceiling >= floor - _SLACK,
                f"{where}: optimal_value {ceiling!r} is below random_value {floor!r}",
            )
            best = env.optimal_action()
            expect(env.is_legal(best), f"{where}: optimal_action {best!r} is illegal")
            player.step()
    floors, ceilings = [], []
    for seed in range(_AVERAGED):
        env.reset(seed=seed)
        floor, ceiling = _values(env, f"seed {seed}, start")
        floors.append(floor)
        ceilings.append(ceiling)
    floor, ceiling = (math.fsum(some) / _AVERAGED for some in (floors, ceilings))
    expect(
        ceiling >= floor - _SLACK,
        f"mean optimal_value {ceiling!r} is below mean random_value {floor!r}",
    )


def _values(env: SymbolicEnv[Any], where: str) -> tuple[float, float]:
    pair = env.random_value(), env.optimal_value()
    for name, value in zip(("random_value", "optimal_value"), pair, strict=True):
        expect(
            isinstance(value, float) and math.isfinite(value),
            f"{where}: {name} is {value!r}, but must be a finite float",
        )
    return pair


def optimal_play_keeps_its_promise(case: Case) -> None:
    """In a deterministic task the best actions earn `optimal_value`, at `optimal_cost`.

    Planned replies earn `turn_limited_value` through the text layer.
    """
    env = case.core()
    if not env.deterministic:
        return
    for seed in case.seeds:
        env.reset(seed=seed)
        promised, cost = env.optimal_value(), env.optimal_cost()
        earned, steps, over = 0.0, 0, False
        while not over:
            expect(not env.is_dead(), f"seed {seed}: optimal play is lost at {steps}")
            returned = play(env, env.optimal_action())
            earned += returned["info"]["scored_reward"]
            steps += 1
            over = returned["terminated"] or returned["truncated"]
        expect(
            math.isclose(earned, promised, abs_tol=1e-6),
            f"seed {seed}: optimal play earned {earned!r}, optimal_value is "
            f"{promised!r}",
        )
        expect(env.success is not False, f"seed {seed}: optimal play does not succeed")
        expect(
            cost is None or cost == steps,
            f"seed {seed}: optimal play took {steps} actions, optimal_cost is {cost}",
        )
        _check_plans(case, seed)


def _check_plans(case: Case, seed: int) -> None:
    text = case.text()
    _, info = text.reset(seed=seed)
    most, turns = text.limits.max_actions_per_turn, text.limits.max_turns
    promised = text.core.turn_limited_value(turns, most)
    earned, over = 0.0, False
    while not over:
        plan = text.core.plan(min(most, text.core.actions_left), info["turns_left"])
        expect(
            0 < len(plan) <= most, f"seed {seed}: plan of {len(plan)} actions: {plan}"
        )
        returned = play(text, answer(text.action_names[action] for action in plan))
        info = returned["info"]
        expect(info["valid"], f"seed {seed}: plan {plan} is answered {info['parse']!r}")
        earned += info["scored_reward"]
        over = returned["terminated"] or returned["truncated"]
    expect(
        math.isclose(earned, promised, abs_tol=1e-6),
        f"seed {seed}: planned replies earned {earned!r}, turn_limited_value is "
        f"{promised!r}",
    )


def success_is_scored(case: Case) -> None:
    """Success ends an episode, is paid, and lasts; in a puzzle nothing else is paid."""
    env = case.core()
    for seed in case.seeds:
        for best in (True, False):
            player = Player(env, seed)
            returned = player.returns[0]
            paid, over = 0.0, False
            while not over:
                action: Any = env.optimal_action() if best else None
                returned = play(env, action) if best else player.step()
                over = returned["terminated"] or returned["truncated"]
                gain = returned["info"]["scored_reward"]
                paid += gain
                where = f"seed {seed}, action {env.actions_taken}"
                if returned["info"]["success"]:
                    expect(
                        returned["terminated"] and gain > 0,
                        f"{where}: success with scored reward {gain!r} and terminated "
                        f"{returned['terminated']}",
                    )
            if env.deterministic and env.preset is None and env.success is False:
                expect(paid <= 0, f"{where}: not solved, but scored {paid!r}")
