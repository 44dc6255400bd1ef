"""Public conformance tests: `check_env` for environments, `check_agent` for agents.

They go beyond Gymnasium's own, which see one or two steps of one environment in one
process.  Every check is a function with one docstring line that says what must hold;
it returns nothing or raises `CheckFailed`.
"""

import functools
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ragen_bench.checks.agents import check_agent
from ragen_bench.checks.case import Case
from ragen_bench.checks.conventions import (
    gymnasium_accepts_the_core,
    gymnasium_accepts_the_text_layer,
    specs_survive_json,
)
from ragen_bench.checks.copies import copies_go_on_alike
from ragen_bench.checks.processes import other_processes_play_the_same
from ragen_bench.checks.returns import (
    limits_truncate,
    masks_are_true,
    returns_are_not_shared,
    steps_outside_an_episode_are_refused,
    types_are_exact,
)
from ragen_bench.checks.seeds import (
    environments_are_independent,
    global_randomness_is_untouched,
    instances_are_in_their_split,
    options_are_honoured,
    rep_picks_the_noise,
    same_seed_same_episode,
    seeds_pick_instances,
)
from ragen_bench.checks.texts import (
    rules_are_complete,
    text_can_be_read_back,
    texts_are_ascii,
)
from ragen_bench.checks.values import (
    optimal_play_keeps_its_promise,
    success_is_scored,
    values_are_in_order,
)
from ragen_bench.errors import CheckFailed, InvalidSpec, UnknownName
from ragen_bench.registry import make
from ragen_bench.text_env import TextEnv

__all__ = ["ENV_CHECKS", "check_agent", "check_env"]

_CHECKS: tuple[Callable[[Case], None], ...] = (
    gymnasium_accepts_the_text_layer,
    gymnasium_accepts_the_core,
    specs_survive_json,
    types_are_exact,
    steps_outside_an_episode_are_refused,
    limits_truncate,
    returns_are_not_shared,
    masks_are_true,
    same_seed_same_episode,
    seeds_pick_instances,
    options_are_honoured,
    rep_picks_the_noise,
    instances_are_in_their_split,
    environments_are_independent,
    global_randomness_is_untouched,
    copies_go_on_alike,
    texts_are_ascii,
    rules_are_complete,
    text_can_be_read_back,
    values_are_in_order,
    optimal_play_keeps_its_promise,
    success_is_scored,
    other_processes_play_the_same,
)

ENV_CHECKS = tuple(check.__name__ for check in _CHECKS)
"""The names of the checks of an environment, in the order they run."""


def check_env(
    env: str | Callable[..., TextEnv],
    *,
    level: int | None = None,
    preset: str | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    only: Collection[str] | None = None,
    **settings: Any,
) -> tuple[str, ...]:
    """Check that an environment keeps every promise that ragen-bench relies on.

    ``rb.check_env("ragen/Sokoban-v0", level=2)`` takes a few seconds.  Warnings count
    as failures.

    Args:
        env: A registered id, or a callable that takes the settings of `TextEnv` and
            returns a new environment, such as
            ``functools.partial(TextEnv, "package.module:Class")``.
        level: Difficulty, 1 by default.
        preset: Named settings instead of a level's.
        seeds: The episodes to play, at least one.
        only: Names of `ENV_CHECKS` to run; None runs all.
        **settings: Further settings of the environment.

    Returns:
        The names of the checks, all of which passed.

    Raises:
        CheckFailed: A promise is broken; the message says which, where and how.
        UnknownName: No such environment, setting or check.
    """
    if not seeds:
        raise InvalidSpec("seeds is empty, but a check plays at least one")
    for name in only or ():
        if name not in ENV_CHECKS:
            raise UnknownName.of("check", name, ENV_CHECKS)
    given = {"level": level, "preset": preset}
    settings |= {name: value for name, value in given.items() if value is not None}
    build = functools.partial(make, env) if isinstance(env, str) else env
    build = functools.partial(build, **settings)
    text = build()
    name = env if isinstance(env, str) else type(text.core).__name__
    case = Case(
        label=f"{name}:{text.core.preset or text.core.level}",
        build=build,
        seeds=tuple(seeds),
    )
    text.close()
    chosen = [c for c in _CHECKS if only is None or c.__name__ in only]
    for check in chosen:
        _run(check, case)
    return tuple(check.__name__ for check in chosen)


def _run(check: Callable[[Case], None], case: Case) -> None:
    name = check.__name__
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(case)
    except CheckFailed as fault:
        raise CheckFailed(f"{case.label} fails {name}: {fault}", name) from fault
    except Exception as fault:  # whatever an environment raises is a finding
        what = f"{type(fault).__name__}: {fault}"
        raise CheckFailed(f"{case.label} fails {name}: {what}", name) from fault
