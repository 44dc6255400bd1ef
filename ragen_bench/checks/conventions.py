"""Gymnasium's own checks, and its spec that must survive JSON."""

import re

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match

from ragen_bench.checks.case import Case, Layer
from ragen_bench.text_env import SETTINGS

_STEPS = 30


def gymnasium_accepts_the_text_layer(case: Case) -> None:
    """`gymnasium.utils.env_checker.check_env` has nothing to say about it."""
    _accept(case.text())


def gymnasium_accepts_the_core(case: Case) -> None:
    """`gymnasium.utils.env_checker.check_env` has nothing to say about it."""
    spec = case.text().spec
    if spec is None:
        _accept(case.core())
        return
    settings = {k: v for k, v in spec.kwargs.items() if k not in {"core", *SETTINGS}}
    core_id = re.sub(r"-v(\d+)$", r"-core-v\1", spec.id)
    _accept(gymnasium.make(core_id, **settings).unwrapped)


def specs_survive_json(case: Case) -> None:
    """An environment built from its spec's JSON plays like the original."""
    env = case.text()
    if env.spec is None:
        return
    spec = EnvSpec.from_json(env.spec.to_json())
    twin = gymnasium.make(spec).unwrapped
    for seed in case.seeds:
        check_environments_match(env, twin, _STEPS, seed=seed)


def _accept(env: Layer | gymnasium.Env[object, object]) -> None:
    # Without a spec Gymnasium cannot build the copies that these two parts need.
    bare = env.spec is None
    check_env(env, skip_render_check=bare, skip_close_check=bare)
