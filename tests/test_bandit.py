"""Bandit: names and splits, pay, exact values, text and snapshots."""

import copy
import itertools
import json
import math
import os
import pathlib
import pickle

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import ragen_bench
from ragen_bench.envs._bandit_levels import BanditParams
from ragen_bench.envs._bandit_names import (
    LETTERS,
    PAIRS,
    RISKY,
    RISKY_OF,
    SAFE,
    SAFE_OF,
    SPLIT_OF,
)
from ragen_bench.envs.bandit import Bandit, bayes_value
from ragen_bench.errors import InvalidSpec, RecordError, UnknownName
from ragen_bench.symbolic import SPLITS, Split

GOLDEN = pathlib.Path(__file__).parent / "golden" / "bandit.json"
SHARE = 1 if os.environ.get("RAGEN_SWEEP") == "full" else 10
SWEEP = {level: (10_000 if level <= 3 else 1_000) // SHARE for level in range(1, 6)}
PHOENIX_SAFE = {"names": ["Phoenix", "Dragon"], "sure": 0}


def single(instance=PHOENIX_SAFE, *, seed: int = 0, rep: int = 0, **settings) -> Bandit:
    """Return an episode of one pull on given arms."""
    env = Bandit(level=1, **settings)
    env.reset(seed=seed, options={"instance": instance, "rep": rep})
    return env


def several(means: list[float], pulls: int, *, seed: int = 0, rep: int = 0) -> Bandit:
    """Return an episode of several pulls of arms with given means."""
    env = Bandit(level=4, arms=len(means), pulls=pulls, max_actions=pulls)
    instance = {"names": ["Oak", "Dice", "Hen"][: len(means)], "means": means}
    env.reset(seed=seed, options={"instance": instance, "rep": rep})
    return env


# Names and instances ----------------------------------------------------------


def test_names_are_single_words_that_are_used_once() -> None:
    names = [*SAFE, *RISKY]
    assert len(SAFE) == len(RISKY) == 80
    assert len({name.casefold() for name in names}) == 160
    assert all(name.isascii() and name.isalpha() for name in names)
    of_ragen = {name for table in PAIRS.values() for p in table.values() for name in p}
    assert not of_ragen & set(names)


def test_every_name_belongs_to_one_split() -> None:
    for table in (SAFE_OF, RISKY_OF):
        sizes = {split: len(names) for split, names in table.items()}
        assert sizes == {"train": 44, "dev": 18, "test": 18}
    assert len(SPLIT_OF) == 160
    assert len(SAFE_OF["test"]) * len(RISKY_OF["test"]) >= 256


@pytest.mark.parametrize("level", sorted(Bandit.levels))
def test_every_bandit_is_of_its_split_and_not_over(level: int) -> None:
    homes: dict[bytes, str] = {}
    for split in SPLITS:
        env = Bandit(level=level, split=split)
        for seed in range(math.ceil(SWEEP[level] / len(SPLITS))):
            env.reset(seed=seed)
            assert env.success is (False if env.params.pulls == 1 else None)
            assert not env.terminated and not env.is_dead()
            assert len(set(env.actions)) == env.params.arms == env.action_space.n
            assert max(env._means) > env.random_value() / env.params.pulls
            if level > 1:
                canonical = env.canonical(env.instance)
                assert env.split_of_instance(env.instance) == split
                assert homes.setdefault(canonical, split) == split
    if level == 2:
        counts = {split: list(homes.values()).count(split) for split in SPLITS}
        assert counts["test"] <= 324 and counts["dev"] <= 324


def test_informative_names_of_two_splits_never_meet() -> None:
    seen: dict[Split, set[str]] = {}
    for split in SPLITS:
        env = Bandit(level=2, split=split)
        for seed in range(300):
            env.reset(seed=seed)
            sure = env.instance["sure"]
            safe, risky = env.actions[sure], env.actions[1 - sure]
            assert safe in SAFE and risky in RISKY
            seen.setdefault(split, set()).update(env.actions)
    for one, other in itertools.combinations(SPLITS, 2):
        assert not seen[one] & seen[other]


def test_the_arms_stand_in_random_order() -> None:
    env = Bandit(level=1)
    first = 0
    for seed in range(1_000):
        env.reset(seed=seed)
        first += env.instance["sure"] == 0
    assert abs(first - 500) < 4 * math.sqrt(250)


def test_names_of_several_arms_tell_nothing() -> None:
    env = Bandit(level=4)
    safe, risky = [], []
    for seed in range(1_500):
        env.reset(seed=seed)
        for name, mean in zip(env.actions, env.instance["means"], strict=True):
            assert SPLIT_OF[name] == "train"
            (safe if name in SAFE else risky).append(mean)
    for means in (safe, risky):
        assert len(means) > 1_000
        error = math.sqrt(1 / 12 / len(means))
        assert abs(sum(means) / len(means) - 0.5) < 4 * error


def test_neutral_names_are_letters() -> None:
    env = Bandit(level=3)
    for seed in range(50):
        env.reset(seed=seed)
        assert set(env.actions) < set(LETTERS)


def test_first_observations_and_arms_never_change() -> None:
    found = {}
    for level, split in itertools.product(Bandit.levels, ("train", "test")):
        env = Bandit(level=level, split=split)
        for seed in range(5):
            env.reset(seed=seed)
            found[f"{level}/{split}/{seed}"] = {
                "text": env.to_text(),
                "instance": env.instance,
            }
    assert found == json.loads(GOLDEN.read_text())


def test_the_order_of_the_arms_does_not_matter_to_the_split() -> None:
    env = Bandit(level=2)
    one = {"names": ["Oak", "Dice"], "sure": 0}
    other = {"names": ["Dice", "Oak"], "sure": 1}
    assert env.canonical(one) == env.canonical(other)
    assert env.canonical(one) != env.canonical({**one, "sure": 1})
    env = Bandit(level=4)
    one = {"names": ["Oak", "Dice"], "means": [0.25, 0.75]}
    other = {"names": ["Cow", "Hen"], "means": [0.75, 0.25]}
    assert env.canonical(one) == env.canonical(other)


@pytest.mark.parametrize(
    "params",
    [
        {"kind": "gaussian"},
        {"names": "neutral"},
        {"kind": "bernoulli", "names": "base", "pulls": 5},
        {"arms": 3},
        {"pulls": 2},
        {"low": 1.0},
        {"p_high": 1.5},
        {"low": 0.25},
        {"kind": "bernoulli", "names": "neutral", "arms": 1},
        {"kind": "bernoulli", "names": "neutral", "arms": 2.0},
        {"kind": "bernoulli", "names": "neutral", "arms": 5, "pulls": 50},
        {"kind": "bernoulli", "names": "neutral", "rev": True},
    ],
)
def test_bad_parameters_are_refused(params: dict) -> None:
    with pytest.raises((InvalidSpec, UnknownName)):
        BanditParams(**params)


def test_more_pulls_need_more_actions() -> None:
    with pytest.raises(InvalidSpec, match="give max_actions"):
        Bandit(level=3, pulls=30)
    assert Bandit(level=3, pulls=30, max_actions=30).params.pulls == 30
    with pytest.raises(InvalidSpec, match="max_turns is 10, but .* at least 30"):
        ragen_bench.make("ragen/Bandit-v0", level=3, pulls=30, max_actions=30)
    with pytest.raises(UnknownName):
        Bandit(level=1, symbols={"arm": "A"})


@pytest.mark.parametrize(
    "instance",
    [
        7,
        {"names": ["Oak"], "sure": 0},
        {"names": ["Oak", "Dice"]},
        {"names": ["Oak", "Dice"], "sure": 2},
        {"names": ["Oak", "oak"], "sure": 0},
        {"names": ["Oak", "a, b"], "sure": 0},
    ],
)
def test_given_arms_must_fit_a_single_pull(instance: object) -> None:
    with pytest.raises(InvalidSpec):
        single(instance)


@pytest.mark.parametrize("means", [[0.5], [0.5, 1.5], None])
def test_given_means_must_be_chances(means: object) -> None:
    env = Bandit(level=3)
    with pytest.raises(InvalidSpec, match="means"):
        env.reset(options={"instance": {"names": ["A", "B"], "means": means}})


# Pay --------------------------------------------------------------------------


def test_the_sure_arm_pays_its_price_every_time() -> None:
    for rep in range(50):
        env = single(rep=rep)
        _, reward, terminated, truncated, info = env.step(0)
        assert (reward, terminated, truncated) == (0.15, True, False)
        assert info["scored_reward"] == 0.15 and info["success"] is False
        assert env.event() == "Phoenix paid 0.15" and env.is_dead()
        with pytest.raises(ResetNeeded):
            env.step(0)


def test_the_risky_arm_pays_one_in_a_quarter_of_the_episodes() -> None:
    n = 4_000
    paid = 0.0
    env = single()
    for rep in range(n):
        env.reset(seed=0, options={"instance": PHOENIX_SAFE, "rep": rep})
        _, reward, terminated, _, info = env.step(1)
        assert reward in (0.0, 1.0) and terminated
        assert info["scored_reward"] == 0.25 and info["success"] is True
        assert info["progress"] == 1.0
        assert env.event() == f"Dragon paid {reward:g}"
        paid += reward
    assert abs(paid / n - 0.25) <= 3 * math.sqrt(0.25 * 0.75 / n)


def test_pay_hangs_on_seed_rep_and_the_number_of_the_pull_alone() -> None:
    def play(arms, rep):
        env = several([0.5, 0.5], 12, seed=5, rep=rep)
        return [env.step(arm)[1] for arm in arms]

    mixed = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1]
    assert play([0] * 12, 0) == play([1] * 12, 0) == play(mixed, 0)
    assert len({tuple(play(mixed, rep)) for rep in range(20)}) > 15


def test_several_pulls_pay_as_often_as_the_means_say() -> None:
    means = [0.2, 0.9]
    n = 500
    totals = [0.0, 0.0]
    for rep in range(n):
        env = several(means, 10, rep=rep)
        for pull in range(10):
            _, reward, terminated, truncated, info = env.step(pull % 2)
            totals[pull % 2] += reward
            assert info["scored_reward"] == means[pull % 2]
            assert info["success"] is None
            assert info["progress"] == pytest.approx((pull + 1) / 10)
            assert (terminated, truncated) == (pull == 9, False)
    for total, mean in zip(totals, means, strict=True):
        error = math.sqrt(mean * (1 - mean) / (5 * n))
        assert abs(total / (5 * n) - mean) <= 3 * error


def test_an_observation_counts_pulls_and_wins() -> None:
    env = several([1.0, 0.0], 5)
    assert env.observe().tolist() == [0, 0, 0, 0]
    for arm in (0, 1, 0):
        board, *_ = env.step(arm)
    assert board.tolist() == [2, 2, 1, 0]
    assert board.dtype == np.uint8 and env.observation_space.contains(board)
    board[:] = 9
    assert env.observe().tolist() == [2, 2, 1, 0]


def test_a_reversed_preset_swaps_what_pays() -> None:
    for name in ("ragen-v1", "ragen-v1-generalization", "ragen-v2"):
        for split in SPLITS:
            env = Bandit(preset=name, split=split)
            rev = Bandit(preset=f"{name}-rev", split=split)
            pairs = PAIRS[name][split]
            for seed in range(20):
                env.reset(seed=seed)
                sure = env.instance["sure"]
                assert (env.actions[sure], env.actions[1 - sure]) in pairs
                rev.reset(seed=seed)
                sure = rev.instance["sure"]
                assert (rev.actions[1 - sure], rev.actions[sure]) in pairs
                assert rev.rules() == env.rules()


def test_presets_are_the_settings_of_ragen() -> None:
    assert len(PAIRS["ragen-v2"]["train"]) == 12
    assert len(PAIRS["ragen-v2"]["test"]) == 8
    assert PAIRS["ragen-v1-generalization"]["test"] == (("Librarian", "Trader"),)
    for name, level in Bandit.presets.items():
        assert level.params.low == (0.1 if "v2" in name else 0.15)
        assert level.params.p_high == 0.25
        assert level.limits.max_turns == level.limits.max_actions == 1
        assert level.settings == {"format_penalty": -0.1}
        assert level.split_exempt
        assert level.params.rev == name.endswith("-rev")


# Exact values -----------------------------------------------------------------


def test_a_single_pull_is_worth_the_better_mean() -> None:
    env = single()
    assert env.optimal_value() == 0.25 and env.optimal_action() == 1
    assert env.random_value() == pytest.approx(0.2)
    env.step(1)
    assert env.optimal_value() == env.random_value() == 0.0
    env = single(p_high=0.1)
    assert env.optimal_value() == 0.15 and env.optimal_action() == 0
    env.step(0)
    assert env.success is True
    assert Bandit(preset="ragen-v2").params.low == 0.1


@pytest.mark.parametrize(
    ("arms", "pulls", "value"),
    [
        (2, 1, 0.5),
        (2, 5, 2.888889),
        (2, 10, 6.021786),
        (2, 20, 12.431265),
        (2, 30, 18.919868),
        (3, 20, 13.465831),
    ],
)
def test_bayes_values_are_the_known_ones(arms: int, pulls: int, value: float) -> None:
    assert bayes_value(arms, pulls) == pytest.approx(value, abs=5e-7)


def test_bayes_value_of_two_pulls_worked_by_hand() -> None:
    # First 1/2; after a win stay at 2/3, after a loss go to the other arm's 1/2.
    assert bayes_value(2, 2) == pytest.approx(0.5 + 0.5 * 2 / 3 + 0.5 * 0.5)


def slow_value(means, counts, left: int) -> float:
    """Return the value of the best policy where the arms have these means."""
    if not left:
        return 0.0
    arm = slow_best(counts, left)[1]
    pulls, wins = counts[arm]
    after = [dict(enumerate(counts)) for _ in range(2)]
    after[0][arm], after[1][arm] = (pulls + 1, wins), (pulls + 1, wins + 1)
    loss, win = (tuple(a.values()) for a in after)
    return means[arm] * (1 + slow_value(means, win, left - 1)) + (
        1 - means[arm]
    ) * slow_value(means, loss, left - 1)


def slow_best(counts, left: int) -> tuple[float, int]:
    """Return the prior value and the first best arm, without any table."""
    best = (0.0, 0)
    for arm, (pulls, wins) in enumerate(counts):
        if not left:
            break
        chance = (wins + 1) / (pulls + 2)
        win = (*counts[:arm], (pulls + 1, wins + 1), *counts[arm + 1 :])
        loss = (*counts[:arm], (pulls + 1, wins), *counts[arm + 1 :])
        value = chance * (1 + slow_best(win, left - 1)[0])
        value += (1 - chance) * slow_best(loss, left - 1)[0]
        if value > best[0] + 1e-12:
            best = (value, arm)
    return best


@pytest.mark.parametrize("means", [[0.3, 0.8], [0.9, 0.1], [0.2, 0.5, 0.7]])
def test_optimum_on_given_means_is_that_of_the_plain_recursion(means) -> None:
    env = several(means, 4)
    counts = ((0, 0),) * len(means)
    assert env.optimal_value() == pytest.approx(slow_value(means, counts, 4))
    env.step(1)
    counts = tuple(zip(*[iter(env.observe().tolist())] * 2, strict=True))
    assert env.optimal_value() == pytest.approx(slow_value(means, counts, 3))
    assert env.optimal_action() == slow_best(counts, 3)[1]


def test_optima_on_drawn_means_average_to_the_bayes_value() -> None:
    env = Bandit(level=3)
    values = []
    for seed in range(3_000):
        env.reset(seed=seed)
        values.append(env.optimal_value())
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - 6.021786) <= 3 * error


@pytest.mark.parametrize(("level", "n"), [(2, 4_000), (3, 4_000), (5, 1_000)])
def test_oracle_play_earns_what_the_optimum_says(level: int, n: int) -> None:
    env = Bandit(level=level, split="test")
    env.reset(seed=7)
    value = env.optimal_value()
    scored, paid = [], []
    for rep in range(n):
        env.reset(seed=7, options={"rep": rep, "instance": env.instance})
        total = gains = 0.0
        while env._playing:
            _, gain, _, _, info = env.step(env.optimal_action())
            total += info["scored_reward"]
            gains += gain
        scored.append(total)
        paid.append(gains)
    for returns in (scored, paid):
        error = np.std(returns) / math.sqrt(n) + 1e-12
        assert abs(np.mean(returns) - value) <= 3 * error


def test_random_value_is_the_mean_of_random_play() -> None:
    env = Bandit(level=5)
    env.reset(seed=3)
    env.step(0)
    expected = env.random_value()
    assert expected == pytest.approx(19 * sum(env.instance["means"]) / 3)
    state = env.get_state()
    rng = np.random.default_rng(0)
    returns = []
    for _ in range(1_000):
        env.set_state(state)
        total = 0.0
        while env._playing:
            total += env.step(int(rng.integers(3)))[4]["scored_reward"]
        returns.append(total)
    assert abs(np.mean(returns) - expected) <= 3 * np.std(returns) / math.sqrt(1_000)


# Text -------------------------------------------------------------------------


def test_a_single_pull_shows_the_arms_and_what_was_paid() -> None:
    env = single()
    assert env.to_text() == "Arms: Phoenix, Dragon."
    env.step(0)
    assert env.to_text() == "Arms: Phoenix, Dragon. Phoenix paid 0.15."


def test_several_pulls_show_counts_and_what_is_left() -> None:
    env = several([1.0, 0.0], 6)
    for arm in (0, 1, 0):
        env.step(arm)
    assert env.to_text() == (
        "Oak: pulls 2, total 2\nDice: pulls 1, total 0\nPulls left: 3"
    )
    assert env.event() == "Oak paid 1"
    assert env.explain([0]) == "Oak won 2 of 2, Dice 0 of 1. Pull Oak."


@pytest.mark.parametrize("level", sorted(Bandit.levels))
def test_text_gives_back_every_information_set(level: int) -> None:
    env, other = Bandit(level=level), Bandit(level=level, split="dev")
    for seed in range(30):
        env.reset(seed=seed)
        other.reset(seed=seed)
        while True:
            text = env.to_text()
            assert text.isascii()
            before = env.get_state()
            env.from_text(text)
            assert env.get_state() == before
            other.from_text(text)
            assert other.to_text() == text and other.actions == env.actions
            np.testing.assert_array_equal(other.observe(), env.observe())
            assert other.actions_left == env.actions_left
            assert other.terminated == env.terminated
            if not env._playing:
                break
            env.step((env.actions_taken + seed) % env.params.arms)
        if level <= 2:
            assert other.success == env.success


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Arms: Oak.",
        "Arms: Oak, Oak.",
        "Arms: Oak, Dice. Hen paid 1.",
        "Arms: Oak, Dice. Oak paid 0.3.",
    ],
)
def test_a_text_of_other_arms_is_refused_for_a_single_pull(text: str) -> None:
    env = single()
    with pytest.raises(RecordError):
        env.from_text(text)
    assert env.to_text() == "Arms: Phoenix, Dragon."


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A: pulls 1, total 1\nPulls left: 9",
        "A: pulls 1, total 2\nB: pulls 0, total 0\nPulls left: 9",
        "A: pulls 1, total 1\nA: pulls 0, total 0\nPulls left: 9",
        "A: pulls 1, total 1\nB: pulls 0, total 0\nPulls left: 10",
        "A: pulls 900, total 1\nB: pulls 0, total 0\nPulls left: 0",
    ],
)
def test_a_text_of_other_arms_is_refused_for_several_pulls(text: str) -> None:
    env = Bandit(level=3)
    env.reset(seed=0)
    with pytest.raises(RecordError):
        env.from_text(text)


def test_rules_tell_the_pay_and_whether_names_hint() -> None:
    rules = single().rules()
    assert "0.15 for sure" in rules and "probability 0.25" in rules
    assert "names hint" in rules and "names hint" not in single(rev=True).rules()
    for level, arms, pulls in ((3, 2, 10), (4, 2, 20), (5, 3, 20)):
        rules = Bandit(level=level).rules()
        assert f"{arms} arms" in rules and f"{pulls} pulls" in rules
        assert "uniformly between 0 and 1" in rules and "names mean nothing" in rules


def test_explanations_name_the_better_arm() -> None:
    assert single().explain([1]) == (
        "Phoenix sounds safe, Dragon sounds risky. "
        "Risky pays 0.25 on average, safe 0.15. Pull Dragon."
    )
    assert "deceive: Phoenix is safe" in single(rev=True).explain([1])


# Snapshots and interfaces -------------------------------------------------------


def _play_on(env: Bandit) -> list[object]:
    seen = []
    while env._playing:
        counts, *rest, _ = env.step(env.optimal_action())
        seen.append((counts.tolist(), *rest, env.to_text(), env.event()))
    return seen


@pytest.mark.parametrize("level", sorted(Bandit.levels))
def test_copies_go_on_as_the_original_does(level: int) -> None:
    env = Bandit(level=level)
    env.reset(seed=2, options={"rep": 1})
    for arm in (0, 1, 0)[: env.params.pulls - 1]:
        env.step(arm)
    restored = Bandit(level=level)
    restored.set_state(json.loads(json.dumps(env.get_state())))
    pickled = pickle.loads(pickle.dumps(env))
    copies = [copy.deepcopy(env), env.clone(), restored, pickled]
    expected = _play_on(env)
    assert expected
    for other in copies:
        assert _play_on(other) == expected


def test_gymnasium_accepts_both_layers() -> None:
    for level in (1, 3):
        check_env(Bandit(level=level, render_mode="ansi"), skip_render_check=True)
        text = ragen_bench.make("ragen/Bandit-v0", level=level)
        check_env(text, skip_render_check=True)


def test_the_names_of_the_episode_are_the_actions_of_a_reply() -> None:
    env = ragen_bench.make("ragen/Bandit-v0", level=2, split="test")
    for seed in range(5):
        observation, info = env.reset(seed=seed)
        assert info["action_names"] == env.core.actions
        assert all(name in observation for name in info["action_names"])
        best = env.core.actions[env.core.optimal_action()]
        _, _, terminated, _, info = env.step(f"<answer>{best.lower()}</answer>")
        assert terminated and info["success"] is True
        assert info["scored_reward"] == 0.25
