"""FrozenLake: instances, slips, exact values, text and snapshots."""

import copy
import itertools
import json
import math
import os
import pathlib
import pickle
import re

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import ragen_bench
from ragen_bench.envs._frozen_lake_levels import LakeParams
from ragen_bench.envs.frozen_lake import FrozenLake
from ragen_bench.errors import GenerationError, InvalidSpec, RecordError, UnknownName
from ragen_bench.symbolic import SPLITS, split_of

UP, DOWN, LEFT, RIGHT = range(4)
DELTAS = ((-1, 0), (1, 0), (0, -1), (0, 1))
SIDES = {UP: (LEFT, RIGHT), DOWN: (LEFT, RIGHT), LEFT: (UP, DOWN), RIGHT: (UP, DOWN)}
GOLDEN = pathlib.Path(__file__).parent / "golden" / "frozen_lake.json"
SHARE = 1 if os.environ.get("RAGEN_SWEEP") == "full" else 10
SWEEP = {level: (10_000 if level <= 3 else 1_000) // SHARE for level in range(1, 6)}

GYM_4X4 = ("SFFF", "FHFH", "FFFH", "HFFG")
GYM_8X8 = (
    "SFFFFFFF",
    "FFFFFFFF",
    "FFFHFFFF",
    "FFFFFHFF",
    "FFFHFFFF",
    "FHHFFFHF",
    "FHFFHFHF",
    "FFFHFFFG",
)
LAKES = [
    GYM_4X4,
    GYM_8X8,
    ("SFH", "FFF", "HFG"),
    ("FFS", "FHF", "GFF"),
    ("FFSFF", "HFFHF", "FFHFF", "GFFFH", "FFHFF"),
]


def of_gym(desc: tuple[str, ...]) -> str:
    return "\n".join(desc).translate(str.maketrans("SFHG", "P_OG"))


def lake(instance: str, *, seed: int = 0, rep: int = 0, **settings) -> FrozenLake:
    """Return an episode on a given map, by default without slips."""
    rows = instance.split("\n")
    given = {"rows": len(rows), "cols": len(rows[0]), "max_path": 256, **settings}
    env = FrozenLake(level=1, **given)
    env.reset(seed=seed, options={"instance": instance, "rep": rep})
    return env


def slow_values(instance: str, slip: float, horizon: int, best=max) -> float:
    """Return the start's value by value iteration over dictionaries."""
    rows = instance.split("\n")
    cells = {(r, c): g for r, row in enumerate(rows) for c, g in enumerate(row)}
    start = next(cell for cell, glyph in cells.items() if glyph == "P")
    values = {cell: float(glyph == "G") for cell, glyph in cells.items()}

    def ahead(cell, action):
        there = (cell[0] + DELTAS[action][0], cell[1] + DELTAS[action][1])
        return values[there if there in cells else cell]

    for _ in range(horizon):
        new = dict(values)
        for cell, glyph in cells.items():
            if glyph in "_P":
                new[cell] = best(
                    (1 - slip) * ahead(cell, action)
                    + sum(slip / 2 * ahead(cell, side) for side in SIDES[action])
                    for action in range(4)
                )
        values = new
    return values[start]


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


# Instances ------------------------------------------------------------------


@pytest.mark.parametrize("level", sorted(FrozenLake.levels))
def test_every_lake_is_in_its_bands_and_its_split(level: int) -> None:
    params = FrozenLake.levels[level].params
    homes: dict[bytes, str] = {}
    for split in SPLITS:
        env = FrozenLake(level=level, split=split)
        for seed in range(math.ceil(SWEEP[level] / len(SPLITS))):
            env.reset(seed=seed)
            assert env.success is False and not env.is_dead()
            assert params.min_path <= env._away <= params.max_path
            assert params.min_optimum <= env.optimal_value() <= params.max_optimum
            assert env.optimal_value() > env.random_value() > 0
            canonical = env.canonical(env.instance)
            assert split_of(canonical) == split
            assert homes.setdefault(canonical, split) == split
            assert env.to_text() == env.instance


@pytest.mark.parametrize("level", sorted(FrozenLake.levels))
def test_optimum_is_that_of_an_independent_value_iteration(level: int) -> None:
    env = FrozenLake(level=level, split="dev")
    params = env.params
    for seed in range(3):
        env.reset(seed=seed)
        actions = env.limits.max_actions
        slow = slow_values(env.instance, params.slip, actions)
        assert env.optimal_value() == pytest.approx(slow, abs=1e-12)
        assert params.min_optimum <= slow <= params.max_optimum
        uniform = slow_values(env.instance, params.slip, actions, mean)
        assert env.random_value() == pytest.approx(uniform, abs=1e-12)


def test_levels_grow_harder() -> None:
    optima = []
    for level in FrozenLake.levels:
        env = FrozenLake(level=level)
        values = []
        for seed in range(20):
            env.reset(seed=seed)
            values.append(env.optimal_value())
        optima.append(mean(values))
    assert optima == sorted(optima, reverse=True)
    assert optima[0] == 1.0
    sizes = [env.limits.max_actions for env in map(_of_level, FrozenLake.levels)]
    assert sizes == [10, 11, 21, 41, 60]


def _of_level(level: int) -> FrozenLake:
    return FrozenLake(level=level)


def test_slippery_levels_give_every_action_its_own_turn() -> None:
    for level in (2, 3, 4, 5):
        limits = FrozenLake.levels[level].limits
        assert limits.max_turns == limits.max_actions


def test_first_observations_never_change() -> None:
    found = {}
    for level, split in itertools.product(FrozenLake.levels, ("train", "test")):
        env = FrozenLake(level=level, split=split)
        for seed in range(5):
            env.reset(seed=seed)
            found[f"{level}/{split}/{seed}"] = env.to_text()
    assert found == json.loads(GOLDEN.read_text())


def test_holes_are_as_frequent_as_the_parameter_says() -> None:
    env = FrozenLake(
        preset="ragen-v2", rows=16, cols=16, hole_share=0.2, min_path=1, max_path=256
    )
    shares = []
    for seed in range(200):
        env.reset(seed=seed)
        shares.append(env.instance.count("O") / 254)
    # Lakes whose goal is cut off are left out, which takes away few holes.
    assert mean(shares) == pytest.approx(0.2, abs=0.005)


def test_images_of_a_lake_share_their_canonical_form_and_their_value() -> None:
    instance = of_gym(LAKES[4])
    env = lake(instance, slip=0.3)
    images = symmetric_images(instance)
    assert len({text for text, _, _ in images}) == 8
    values = set()
    for text, _, _ in images:
        assert env.canonical(text) == env.canonical(instance)
        values.add(lake(text, slip=0.3).optimal_value())
    assert len(values) == 1


def test_a_rectangle_has_four_images() -> None:
    env = FrozenLake(level=1, rows=2, cols=3)
    text = "P_O\n__G"
    same = {"P_O\n__G", "O_P\nG__", "__G\nP_O", "G__\nO_P"}
    assert {env.canonical(image) for image in same} == {env.canonical(text)}
    assert env.canonical("PO_\n__G") != env.canonical(text)


def test_impossible_bands_are_a_generation_error() -> None:
    env = FrozenLake(level=1, rows=2, cols=2, min_path=3, max_path=3, hole_share=0.0)
    with pytest.raises(GenerationError, match="wider bands"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    "params",
    [
        {"rows": 1},
        {"cols": 2.0},
        {"slip": 1.5},
        {"hole_share": 0.95},
        {"min_path": 0},
        {"min_path": 5, "max_path": 4},
        {"min_path": 2.5},
        {"slip": 0.1, "min_optimum": 0.9, "max_optimum": 0.5},
        {"slip": 0.0, "max_optimum": 0.9},
    ],
)
def test_bad_parameters_are_refused(params: dict) -> None:
    with pytest.raises(InvalidSpec):
        LakeParams(**params)


@pytest.mark.parametrize(
    "instance",
    ["P_\n_G", "P__\n___\n___", "PP_\n___\n__G", "P_?\n___\n__G", "P__\n____\n_G", 7],
)
def test_a_given_map_must_be_a_lake_of_this_size(instance: object) -> None:
    env = FrozenLake(level=1, rows=3, cols=3)
    with pytest.raises(InvalidSpec, match="must have 3 rows"):
        env.reset(seed=0, options={"instance": instance})


# Dynamics ---------------------------------------------------------------------


def test_actions_move_as_their_names_say() -> None:
    for action, after in enumerate(
        ("_P_\n___\n__G", "___\n___\n_PG", "___\nP__\n__G", "___\n__P\n__G")
    ):
        env = lake("___\n_P_\n__G")
        _, reward, terminated, truncated, info = env.step(action)
        assert env.to_text() == after
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info["effective"] and not info["illegal"]


def test_the_edge_of_the_board_stops_a_move_that_still_costs_an_action() -> None:
    env = lake("P_\n_G")
    for action in (UP, LEFT):
        _, _, terminated, _, info = env.step(action)
        assert not info["effective"] and not info["illegal"] and not terminated
    env = lake("G_\n_P")
    for action in (DOWN, RIGHT):
        assert not env.step(action)[4]["effective"]
    assert env.to_text() == "G_\n_P"
    assert env.actions_left == 8


def test_the_right_edge_does_not_wrap_around() -> None:
    env = lake("__P\n___\nG__")
    assert not env.step(RIGHT)[4]["effective"]
    env = lake("___\nP__\nG__")
    assert not env.step(LEFT)[4]["effective"]


def test_the_goal_pays_one_and_a_hole_nothing() -> None:
    env = lake("PG\n__")
    _, reward, terminated, truncated, info = env.step(RIGHT)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["success"] is True and info["progress"] == 1.0
    assert info["scored_reward"] == 1.0 and env.to_text() == "_*\n__"
    assert env.optimal_value() == env.random_value() == 0.0
    with pytest.raises(ResetNeeded):
        env.step(RIGHT)
    env = lake("PO\n_G")
    _, reward, terminated, truncated, info = env.step(RIGHT)
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["success"] is False and info["progress"] == 0.0
    assert env.is_dead() and env.optimal_cost() is None and env.to_text() == "_X\n_G"


def test_progress_is_the_share_of_the_way_to_the_goal() -> None:
    env = lake("P___\n____\n____\n___G")
    shares = [
        env.step(action)[4]["progress"]
        for action in (UP, RIGHT, DOWN, UP, LEFT, DOWN, DOWN)
    ]
    assert shares == pytest.approx([0, 1 / 6, 2 / 6, 1 / 6, 0, 1 / 6, 2 / 6])
    env = lake("__P\n__G")
    assert env.step(LEFT)[4]["progress"] == 0.0


def test_a_goal_behind_holes_makes_the_episode_dead() -> None:
    env = lake("P_O_\n__OG\n__O_")
    assert env.is_dead() and env.optimal_value() == 0.0
    _, _, _, _, info = env.step(DOWN)
    assert info["progress"] == 0.0 and env.is_dead()
    assert env.plan(5, 5) == [UP] and env.optimal_cost() is None


def test_ten_actions_end_the_episode_without_success() -> None:
    env = lake("P_\n_G")
    for _ in range(9):
        assert env.step(UP)[2:4] == (False, False)
    assert env.step(UP)[2:4] == (False, True)
    assert env.optimal_value() == env.random_value() == 0.0


def symmetric_images(instance: str) -> list[tuple[str, dict, dict]]:
    """Return text, cell map and action map of all images of a square lake."""
    rows = instance.split("\n")
    n = len(rows)
    images = []
    for down, right, swap in itertools.product((1, -1), (1, -1), (False, True)):

        def turn(r, c, down=down, right=right, swap=swap):
            r, c = (c, r) if swap else (r, c)
            return (r if down == 1 else n - 1 - r, c if right == 1 else n - 1 - c)

        cells = {(r, c): turn(r, c) for r in range(n) for c in range(n)}
        board = {cells[r, c]: rows[r][c] for r in range(n) for c in range(n)}
        text = "\n".join("".join(board[r, c] for c in range(n)) for r in range(n))
        actions = {}
        for action, (dr, dc) in enumerate(DELTAS):
            dr, dc = (dc, dr) if swap else (dr, dc)
            actions[action] = DELTAS.index((dr * down, dc * right))
        images.append((text, cells, actions))
    return images


def test_the_transition_table_is_the_same_in_every_image() -> None:
    instance = of_gym(LAKES[4])
    table = lake(instance, slip=0.4).transitions()
    n = 5
    for text, cells, actions in symmetric_images(instance):
        image = lake(text, slip=0.4).transitions()
        order = [cells[i // n, i % n] for i in range(n * n)]
        index = [r * n + c for r, c in order]
        for action in range(4):
            moved = image[actions[action]][np.ix_(index, index)]
            np.testing.assert_array_equal(moved, table[action])


@pytest.mark.parametrize("desc", LAKES, ids=range(len(LAKES)))
def test_the_transition_table_is_that_of_gymnasium(desc: tuple[str, ...]) -> None:
    gym_env = gymnasium.make("FrozenLake-v1", desc=list(desc), is_slippery=True)
    table = lake(of_gym(desc), slip=2 / 3).transitions()
    cells = len(desc) * len(desc[0])
    for action, theirs in enumerate((3, 1, 0, 2)):
        expected = np.zeros((cells, cells))
        for cell in range(cells):
            for chance, there, *_ in gym_env.unwrapped.P[cell][theirs]:
                expected[cell, there] += chance
        np.testing.assert_allclose(table[action], expected, atol=1e-12)
    gym_env.close()


@pytest.mark.parametrize("instance", ["___\n_PO\n_OG", "P_\nG_"])
def test_sampled_moves_follow_the_transition_table(instance: str) -> None:
    env = lake(instance, slip=0.3)
    cols = env.params.cols
    start = instance.replace("\n", "").index("P")
    table = env.transitions()
    n = 3_750
    for action in range(4):
        counts = np.zeros(table.shape[1])
        for rep in range(n):
            env.reset(seed=action, options={"instance": instance, "rep": rep})
            board = env.step(action)[0]
            row, col = np.argwhere(board >= 3)[0]
            counts[row * cols + col] += 1
        chances = table[action, start]
        error = np.sqrt(chances * (1 - chances) / n)
        assert (np.abs(counts / n - chances) <= 4 * error).all()


def test_noise_hangs_on_seed_and_rep_and_not_on_the_level_or_split() -> None:
    def walk(seed, rep, **settings):
        env = lake("_" * 8 + "\n" + "_P_____G", slip=0.6, **settings)
        instance = env.instance
        env.reset(seed=seed, options={"rep": rep, "instance": instance})
        return [
            env.step(a)[0].tobytes() for a in (RIGHT, RIGHT, LEFT, RIGHT, LEFT, LEFT)
        ]

    assert walk(3, 1) == walk(3, 1) == walk(3, 1, split="test")
    assert len({tuple(walk(3, rep)) for rep in range(20)}) > 5
    assert len({tuple(walk(seed, 0)) for seed in range(20)}) > 5


def test_rules_state_the_chances_of_the_table() -> None:
    for slip in (0.1, 0.4, 2 / 3):
        env = lake("___\n_P_\n__G", slip=slip)
        forward, side = map(float, re.findall(r"probability (\d[\d.]*)", env.rules()))
        table = env.transitions()
        assert table[UP, 4, 1] == pytest.approx(forward, abs=1e-4)
        assert table[UP, 4, 3] == table[UP, 4, 5] == pytest.approx(side, abs=1e-4)
    assert "not slippery" in lake("P_\n_G").rules()


# Exact values -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("desc", "actions", "value"), [(GYM_4X4, 100, 0.744190), (GYM_8X8, 200, 0.913220)]
)
def test_optimum_of_the_well_known_maps(desc, actions, value) -> None:
    env = lake(of_gym(desc), slip=2 / 3, max_actions=actions)
    assert env.optimal_value() == pytest.approx(value, abs=5e-7)


def test_values_of_a_lake_small_enough_to_work_out() -> None:
    # Right: 0.6 the goal, 0.2 the edge, 0.2 the hole; Up: 0.8 the edge, 0.2 the goal.
    env = lake("PG\nO_", slip=0.4, max_actions=2)
    assert env.optimal_value() == pytest.approx(0.6 + 0.2 * 0.6)
    # Uniform: goal, hole, and twice the edge, with a quarter each.
    assert env.random_value() == pytest.approx(0.25 + 0.5 * 0.25)
    assert env.optimal_action() == RIGHT
    assert env.turn_limited_value(1, 2) == pytest.approx(0.72)
    assert env.plan(2, 1) == [RIGHT, RIGHT]


def test_random_value_is_the_mean_of_random_play() -> None:
    env = FrozenLake(level=2)
    env.reset(seed=1)
    expected = env.random_value()
    rng = np.random.default_rng(0)
    n = 4_000
    wins = 0
    for rep in range(n):
        env.reset(seed=1, options={"rep": rep, "instance": env.instance})
        while env._playing:
            env.step(int(rng.integers(4)))
        wins += env.success
    assert abs(wins / n - expected) <= 3 * math.sqrt(expected * (1 - expected) / n)


def _oracle_wins(env: FrozenLake, seed: int, n: int, most: int, turns: int) -> float:
    wins = 0
    for rep in range(n):
        env.reset(seed=seed, options={"rep": rep, "instance": env.instance})
        for left in range(turns, 0, -1):
            for action in env.plan(min(most, env.actions_left), left):
                env.step(action)
                if not env._playing:
                    break
            if not env._playing:
                break
        wins += env.success
    return wins / n


@pytest.mark.parametrize(("level", "n"), [(2, 4_000), (4, 400)])
def test_oracle_play_wins_as_often_as_the_optimum_says(level: int, n: int) -> None:
    env = FrozenLake(level=level, split="test")
    env.reset(seed=4)
    value = env.optimal_value()
    assert value == env.turn_limited_value(env.limits.max_turns, 5)
    share = _oracle_wins(env, 4, n, 5, env.limits.max_turns)
    assert abs(share - value) <= 3 * math.sqrt(value * (1 - value) / n)


@pytest.mark.parametrize(("preset", "most"), [("ragen-v1", 5), ("ragen-v2", 2)])
def test_oracle_play_with_few_turns_wins_as_often_as_possible(preset, most) -> None:
    env = FrozenLake(preset=preset)
    env.reset(seed=2)
    value = env.turn_limited_value(5, most)
    share = _oracle_wins(env, 2, 4_000, most, 5)
    assert abs(share - value) <= 3 * math.sqrt(value * (1 - value) / 4_000)


def test_oracle_play_without_slips_takes_a_shortest_path() -> None:
    env = FrozenLake(level=1, split="test")
    for seed in range(50):
        env.reset(seed=seed)
        cost = env.optimal_cost()
        plan = env.plan(5, 5)
        assert len(plan) == cost
        for action in plan:
            *_, info = env.step(action)
        assert info["success"] and env.actions_taken == cost


def test_without_slips_the_optimum_is_one_while_actions_suffice() -> None:
    env = lake("P__\n___\n__G", max_actions=4)
    assert env.optimal_value() == 1.0 and env.turn_limited_value(2, 2) == 1.0
    assert env.turn_limited_value(1, 3) == 0.0
    env.step(UP)
    assert env.optimal_value() == 0.0


def brute_force(table, values, start: int, turns: int, left: int, most: int) -> float:
    """Return the best chance of success by trying all replies, with matrices."""
    best = values[start]
    if turns and left:
        for length in range(1, min(most, left) + 1):
            ahead = np.array(
                [
                    brute_force(table, values, s, turns - 1, left - length, most)
                    for s in range(len(values))
                ]
            )
            for sequence in itertools.product(range(4), repeat=length):
                chances = np.eye(len(values))[start]
                for action in sequence:
                    chances = chances @ table[action]
                best = max(best, float(chances @ ahead))
    return best


@pytest.mark.parametrize(("turns", "most"), [(1, 1), (1, 4), (2, 2), (2, 3), (3, 1)])
def test_few_turns_are_worth_what_trying_all_replies_finds(turns, most) -> None:
    env = lake("P_\nO_\n_G", slip=0.4, max_actions=4)
    values = np.array([0, 0, 0, 0, 0, 1.0])
    expected = brute_force(env.transitions(), values, 0, turns, 4, most)
    assert env.turn_limited_value(turns, most) == pytest.approx(expected, abs=1e-12)


def test_few_turns_cost_a_little_on_the_lakes_of_ragen() -> None:
    env = FrozenLake(preset="ragen-v1")
    closed, pairs, uniform = [], [], []
    for seed in range(400):
        env.reset(seed=seed)
        closed.append(env.optimal_value())
        pairs.append(env.turn_limited_value(5, 2))
        uniform.append(env.random_value())
    # A study of RAGEN's own maps found 48.4 %, 46.3 % and 21.2 %.
    assert mean(closed) == pytest.approx(0.484, abs=0.035)
    assert mean(closed) - mean(pairs) == pytest.approx(0.021, abs=0.004)
    assert mean(uniform) == pytest.approx(0.212, abs=0.02)


def test_more_freedom_is_never_worth_less() -> None:
    env = FrozenLake(preset="ragen-v1")
    for seed in range(5):
        env.reset(seed=seed)
        one_reply = env.turn_limited_value(1, 5)
        five = env.turn_limited_value(5, 5)
        assert one_reply <= env.turn_limited_value(2, 5) <= five
        assert env.turn_limited_value(5, 1) <= env.turn_limited_value(5, 2) <= five
        assert five <= env.optimal_value() == env.turn_limited_value(10, 5)


# Text -------------------------------------------------------------------------


@pytest.mark.parametrize("style", FrozenLake.styles)
def test_text_gives_back_every_state(style: str) -> None:
    env = FrozenLake(level=3, style=style)
    other = FrozenLake(level=3, style=style, split="test")
    ends = set()
    for seed in range(30):
        env.reset(seed=seed)
        while True:
            text = env.to_text()
            assert text.isascii()
            before = env.get_state()
            env.from_text(text)
            assert env.get_state() == before
            other.reset(seed=seed)
            other.from_text(text)
            assert other.to_text() == text
            np.testing.assert_array_equal(other.observe(), env.observe())
            assert (other.success, other.is_dead()) == (env.success, env.is_dead())
            assert other.terminated == env.terminated
            if not env._playing:
                break
            env.step((env.actions_taken + seed) % 4)
        ends.add((env.success, env.terminated))
    assert (False, True) in ends


def test_a_read_state_keeps_its_value_in_a_snapshot() -> None:
    env = lake("P__\n_O_\n__G", slip=0.2)
    env.from_text("___\nO__\n_PG")
    assert env.optimal_value() == pytest.approx(
        slow_values("___\nO__\n_PG", 0.2, 10), abs=1e-12
    )
    copied = FrozenLake(level=1, rows=3, cols=3, slip=0.2)
    copied.set_state(env.get_state())
    assert copied.to_text() == "___\nO__\n_PG"


@pytest.mark.parametrize("text", ["P_\n_G", "___\n___\n__G", "P__\n_P_\n__G", "P\nx"])
def test_a_text_that_shows_no_lake_is_refused(text: str) -> None:
    env = lake("P__\n_O_\n__G")
    with pytest.raises(RecordError):
        env.from_text(text)
    assert env.to_text() == "P__\n_O_\n__G"


def test_other_symbols_change_board_and_legend_together() -> None:
    symbols = {"ice": ".", "player": "@", "hole": "#"}
    env = lake("PO\n_G", symbols=symbols)
    assert env.to_text() == "@#\n.G"
    assert env.legend()["#"] == "hole" and "O" not in env.legend()
    env.from_text(".#\n@G")
    assert env.get_state()["core"]["board"] == "_O\nPG"
    with pytest.raises(UnknownName):
        FrozenLake(level=1, symbols={"lava": "~"})


def test_explanations_name_places_and_moves() -> None:
    env = lake("____\nPO__\n____\n__G_")
    assert env.explain(env.plan(5, 5)) == (
        "Player (1, 0), goal (3, 2). Path Down, Down, Right, Right avoids the holes."
    )
    env = lake("__\nP_\n_G", slip=0.2)
    assert env.explain([DOWN]) == (
        "Player (1, 0), goal (2, 1). Down has the best odds, as slips go Left or Right."
    )
    assert len(env.explain([DOWN] * 5).split()) <= 25


# Snapshots and interfaces -------------------------------------------------------


def _play_on(env: FrozenLake) -> list[object]:
    seen = []
    while env._playing:
        board, *rest, info = env.step(env.optimal_action())
        seen.append((board.tobytes(), *rest, info["progress"], env.to_text()))
    return seen


def test_copies_go_on_as_the_original_does() -> None:
    env = FrozenLake(level=4)
    for seed in range(3):
        env.reset(seed=seed, options={"rep": 1})
        for action in (UP, DOWN, LEFT, RIGHT):
            if env._playing:
                env.step(action)
        restored = FrozenLake(level=4)
        restored.set_state(json.loads(json.dumps(env.get_state())))
        pickled = pickle.loads(pickle.dumps(env))
        copies = [copy.deepcopy(env), env.clone(), restored, pickled]
        expected = _play_on(env)
        for other in copies:
            assert _play_on(other) == expected


def test_a_pickle_stays_small() -> None:
    env = FrozenLake(level=5)
    env.reset(seed=0)
    env.optimal_value()
    assert len(pickle.dumps(env)) < 20_000


def test_past_observations_and_masks_do_not_change() -> None:
    env = FrozenLake(level=3)
    board, info = env.reset(seed=0)
    kept = board.copy()
    board_after, *_ = env.step(env.optimal_action())
    info["action_mask"][0] = 0
    board_after[:] = 0
    np.testing.assert_array_equal(board, kept)
    assert env.action_mask().tolist() == [1, 1, 1, 1]
    assert (env.observe() >= 3).sum() == 1


def test_gymnasium_accepts_both_layers() -> None:
    check_env(FrozenLake(level=2, render_mode="ansi"), skip_render_check=True)
    check_env(ragen_bench.make("ragen/FrozenLake-v0", level=2), skip_render_check=True)


def test_presets_are_the_settings_of_ragen() -> None:
    first, second = FrozenLake(preset="ragen-v1"), FrozenLake(preset="ragen-v2")
    trained = FrozenLake(preset="ragen-v2-deterministic")
    assert (first.params.slip, first.params.hole_share) == (2 / 3, 0.2)
    assert (second.params.slip, second.params.hole_share) == (0.2, 0.1)
    assert trained.params.slip == 0.0 and trained.deterministic
    for env, most in ((first, 5), (second, 2), (trained, 2)):
        limits = env.limits
        assert (limits.max_actions, limits.max_turns) == (10, 5)
        assert limits.max_actions_per_turn == most
        assert env.level_spec.settings == {"format_penalty": -0.1}
        env.reset(seed=0)
        assert not env.is_dead() and env.optimal_value() > 0


def test_an_agent_that_plays_by_the_text_alone_wins_without_slips() -> None:
    env = ragen_bench.make("ragen/FrozenLake-v0", level=1, split="test")
    env.reset(seed=0)
    names = [env.action_names[action] for action in env.core.plan(5, 5)]
    _, reward, terminated, _, info = env.step(f"<answer>{' || '.join(names)}</answer>")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
