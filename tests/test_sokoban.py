"""Sokoban: rules, generator, exact answers, texts, and levels from files."""

import copy
import itertools
import json
import os
import pickle
import random
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import ragen_bench
from ragen_bench.envs import _sokoban_solver as solver
from ragen_bench.envs.sokoban import (
    Instance,
    Sokoban,
    SokobanParams,
    load_levels,
    settings_for,
)
from ragen_bench.errors import GenerationError, InvalidSpec, RecordError
from ragen_bench.seeding import Stream
from ragen_bench.symbolic import SPLITS, split_of

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sokoban.json").read_text())
LEVELS = (1, 2, 3, 4, 5)
UP, DOWN, LEFT, RIGHT = range(4)
FULL = os.environ.get("RAGEN_SWEEP") == "full"

CORRIDOR = "#####\n#PXO#\n#####"
STEPS = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}

Position = tuple[tuple[int, int], frozenset[tuple[int, int]]]


class Search:
    """Sokoban written again, as sets of coordinates, with a plain forward search."""

    def __init__(self, text: str) -> None:
        cells = {
            (r, c): glyph
            for r, line in enumerate(text.split("\n"))
            for c, glyph in enumerate(line)
        }
        self.floor = {cell for cell, glyph in cells.items() if glyph != "#"}
        self.goals = frozenset(c for c, glyph in cells.items() if glyph in "O*S")
        boxes = frozenset(c for c, glyph in cells.items() if glyph in "X*")
        (player,) = (c for c, glyph in cells.items() if glyph in "PS")
        self.start: Position = (player, boxes)

    def move(self, position: Position, action: int) -> Position:
        (r, c), boxes = position
        dr, dc = STEPS[action]
        there, beyond = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
        if there not in self.floor:
            return position
        if there not in boxes:
            return there, boxes
        if beyond not in self.floor or beyond in boxes:
            return position
        return there, boxes - {there} | {beyond}

    def optimum(self) -> int | None:
        moves = {self.start: 0}
        queue = deque([self.start])
        while queue:
            position = queue.popleft()
            if position[1] == self.goals:
                return moves[position]
            for action in STEPS:
                following = self.move(position, action)
                if following not in moves:
                    moves[following] = moves[position] + 1
                    queue.append(following)
        return None

    def solves(self, actions: tuple[int, ...]) -> bool:
        position = self.start
        for action in actions:
            position = self.move(position, action)
            if position[1] == self.goals:
                return True
        return False


def play(text: str, **settings: Any) -> Sokoban:
    """Return an environment at the start of a room."""
    instance: Instance = {"room": text}
    env = Sokoban(**{**settings_for(instance), **settings})
    env.reset(seed=0, options={"instance": instance})
    return env


def wander(env: Sokoban, seed: int, episodes: int, steps: int) -> Iterator[None]:
    """Play at random and stop at every state, starts included."""
    rng = random.Random(seed)
    for episode in range(episodes):
        env.reset(seed=seed + episode)
        yield
        for _ in range(steps):
            *_, terminated, truncated, _ = env.step(rng.randrange(4))
            yield
            if terminated or truncated:
                break


def turned(text: str) -> str:
    return "\n".join(
        "".join(line) for line in zip(*text.split("\n")[::-1], strict=True)
    )


def mirrored(text: str) -> str:
    return "\n".join(line[::-1] for line in text.split("\n"))


# Rules ----------------------------------------------------------------------------


def test_pushing_the_last_box_onto_its_goal_succeeds_and_terminates() -> None:
    env = play(CORRIDOR)
    _, reward, terminated, truncated, info = env.step(RIGHT)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["success"], info["progress"], info["scored_reward"]) == (
        True,
        1.0,
        1.0,
    )
    assert env.to_text() == "#####\n#_P*#\n#####"
    with pytest.raises(ResetNeeded):
        env.step(RIGHT)


@pytest.mark.parametrize(
    ("room", "action"),
    [
        (CORRIDOR, UP),
        ("#####\n#PX##\n#O__#\n#####", RIGHT),
        ("######\n#PXXO#\n#___O#\n######", RIGHT),
        ("######\n#PX*_#\n#__O_#\n######", RIGHT),
    ],
)
def test_a_bump_changes_nothing_but_costs_its_action(room: str, action: int) -> None:
    env = play(room, max_actions=7)
    observation, reward, terminated, truncated, info = env.step(action)
    assert env.to_text() == room
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["effective"] is False and info["illegal"] is False
    assert env.actions_left == 6
    assert info["action_mask"].tolist() == [1, 1, 1, 1]


def test_a_box_is_never_pulled() -> None:
    env = play("######\n#_PXO#\n######")
    assert env.step(LEFT)[4]["effective"] is True
    assert env.to_text() == "######\n#P_XO#\n######"


def test_player_and_boxes_leave_the_goals_they_pass_over() -> None:
    env = play("#######\n#PX_OO#\n#__X__#\n#######")
    seen = []
    for action in (RIGHT, RIGHT, RIGHT):
        env.step(action)
        seen.append(env.to_text().split("\n")[1])
    assert seen == ["#_PXOO#", "#__P*O#", "#___S*#"]
    env.step(LEFT)
    assert env.to_text().split("\n")[1] == "#__PO*#"


def test_shaped_rewards_pay_for_goals_entered_and_left_and_scores_do_not_see_it() -> (
    None
):
    env = play("########\n#PXO_XO#\n########", reward="shaped")
    rewards = [env.step(RIGHT)[1] for _ in range(3)]
    assert rewards == pytest.approx([-0.1 + 1, -0.1 - 1, -0.1])
    env = play("######\n#PXO_#\n#XO__#\n######", reward="shaped")
    *_, info = env.step(RIGHT)
    assert info["scored_reward"] == 0.0 and info["progress"] == 0.5
    env = play(CORRIDOR, reward="shaped")
    _, reward, terminated, _, info = env.step(RIGHT)
    assert reward == pytest.approx(-0.1 + 1 + 10)
    assert terminated and info["scored_reward"] == 1.0


def test_a_box_that_moves_from_goal_to_goal_pays_nothing() -> None:
    env = play("#######\n#P*O_X#\n#_____#\n#######", reward="shaped")
    assert env.step(RIGHT)[1] == pytest.approx(-0.1)
    assert env.progress() == 0.5


# Generator ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "seeds"), [(1, 60), (2, 40), (3, 15), (4, 4), (5, 1)]
)
def test_reported_optimum_is_that_of_a_plain_forward_search(
    level: int, seeds: int
) -> None:
    for split in SPLITS:
        env = Sokoban(level=level, split=split)
        for seed in range(seeds):
            env.reset(seed=seed)
            assert Search(env.to_text()).optimum() == env.instance["moves"]
            assert env.optimal_cost() == env.instance["moves"]


@pytest.mark.parametrize(
    ("level", "seeds"),
    [(1, 10_000), (2, 10_000), (3, 10_000), (4, 1_000), (5, 1_000)],
)
def test_sweep_of_seeds_gives_levels_as_promised(level: int, seeds: int) -> None:
    env = Sokoban(level=level, split="test")
    params, limits = env.params, env.limits
    for seed in range(seeds if FULL else seeds // 10):
        env.reset(seed=seed)
        text, moves = env.to_text(), env.instance["moves"]
        assert params.min_moves <= moves <= params.max_moves <= limits.max_actions
        assert text.count("X") == params.boxes and "*" not in text
        assert split_of(env.canonical(env.instance)) == "test"
        room = solver.Room(solver.plan_of(env._board), params.cols + 1)
        assert room.search(room.state(env._board)) == moves
        if FULL:
            assert Search(text).optimum() == moves


@pytest.mark.parametrize("level", [1, 2, 3])
def test_no_instance_is_in_two_splits_however_it_is_turned(level: int) -> None:
    found = {}
    for split in SPLITS:
        env = Sokoban(level=level, split=split)
        found[split] = {env.canonical(env.draw(seed)) for seed in range(200)}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not found[one] & found[other]
    assert len(found["train"]) > 150 and len(found["test"]) > 100


@pytest.mark.parametrize("level", LEVELS)
def test_canonical_form_is_the_same_under_all_eight_symmetries(level: int) -> None:
    env = Sokoban(level=level)
    instance = env.draw(3)
    images = set()
    text = instance["room"]
    for _ in range(4):
        text = turned(text)
        images |= {text, mirrored(text)}
    assert len(images) > 1
    forms = {env.canonical({"room": image}) for image in images}
    assert len(forms) == 1
    assert env.canonical(env.draw(4)) not in forms


def test_canonical_form_of_an_oblong_room_knows_four_symmetries() -> None:
    env = Sokoban(level=1, rows=5, cols=7)
    text = env.draw(0)["room"]
    half_turn = turned(turned(text))
    forms = {
        env.canonical({"room": image})
        for image in (text, mirrored(text), half_turn, mirrored(half_turn))
    }
    assert len(forms) == 1


def test_canonical_form_of_a_board_of_more_than_256_bytes() -> None:
    walls = "#" * 17
    rows = [walls, "#PXO" + "_" * 12 + "#", *[walls] * 15]
    text = "\n".join(rows)
    env = play(text)
    assert env.canonical({"room": text}) == env.canonical({"room": turned(text)})


@pytest.mark.parametrize("level", [1, 3])
def test_a_seed_gives_the_same_room_whatever_was_solved_before(level: int) -> None:
    env = Sokoban(level=level, split="dev")
    first = [env.draw(seed) for seed in range(20)]
    for seed in reversed(range(20)):
        env.reset(seed=seed)
        assert env.instance == first[seed]
        room, _ = env._solve()
        room.grow()
        env.is_dead()
        assert env.draw(seed) == first[seed]
    solver.room_of.cache_clear()
    assert [Sokoban(level=level, split="dev").draw(seed) for seed in range(20)] == first


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_first_texts_are_those_of_the_golden_file(level: int, split: Any) -> None:
    env = Sokoban(level=level, split=split)
    texts = []
    for seed in range(5):
        env.reset(seed=seed)
        texts.append(env.to_text())
    assert texts == GOLDEN[str(level)][split]


def test_parameters_that_no_room_meets_are_a_generation_error() -> None:
    with pytest.raises(GenerationError, match="3x5 room with 1 boxes and 2 to 4 moves"):
        Sokoban(level=1, rows=3, cols=5).draw(0)
    with pytest.raises(GenerationError, match="more floor"):
        Sokoban(level=1, boxes=7).draw(0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 2}, "rows is 2, but must be an integer of 3 to 32"),
        ({"cols": 6.0}, "cols is 6.0"),
        ({"boxes": 0}, "boxes is 0"),
        ({"min_moves": 0}, "min_moves is 0"),
        ({"min_moves": 5}, "max_moves is 4, but must be an integer of 5 to"),
        ({"min_floor": 0.9}, "min_floor is 0.9 and max_floor 0.85"),
        ({"max_floor": "1"}, "max_floor '1'"),
        ({"weights": (1, 2)}, "must hold 3 integers"),
        ({"weights": (0, 0, 0)}, "must hold 3 integers"),
        ({"weights": (1.5, 0, 0)}, "must hold 3 integers"),
        ({"reward": "dense"}, "reward is 'dense', but must be one of"),
    ],
)
def test_parameters_that_break_a_rule_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        Sokoban(level=1, **settings)


def test_weights_choose_the_optimum() -> None:
    env = Sokoban(level=1, weights=(0, 1, 3))
    counts = Counter(env.draw(seed)["moves"] for seed in range(400))
    assert set(counts) == {3, 4}
    assert 250 < counts[4] < 350


# Exact answers --------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_star_and_the_table_agree_on_cost_and_path(level: int) -> None:
    env = Sokoban(level=level)
    dead = 0
    for _ in wander(env, seed=10 * level, episodes=4, steps=30):
        plan = solver.plan_of(env._board)
        table = solver.Room(plan, env.params.cols + 1)
        table.grow()
        state = table.state(env._board)
        star = solver.Room(plan, env.params.cols + 1)
        cost = star.search(state)
        assert cost == table.cost(state)
        assert star.cost(state) == cost
        assert star.path(state) == table.path(state)
        dead += cost is None
    assert dead


def test_rooms_too_large_for_a_table_are_solved_by_a_star(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = Sokoban(level=3)
    env.reset(seed=5)
    expected = (env.optimal_cost(), env.plan(99, 1))
    monkeypatch.setattr(solver, "_TABLE_STATES", 0)
    monkeypatch.setattr(solver.Room, "grow", None)
    solver.room_of.cache_clear()
    assert (env.optimal_cost(), env.plan(99, 1)) == expected
    solver.room_of.cache_clear()


def test_search_notes_that_a_box_in_a_corner_is_dead() -> None:
    env = play("#####\n#X__#\n#_P_#\n#__O#\n#####")
    room, state = env._solve()
    assert room.search(state) is None
    assert room.cost(state) is None
    assert env.is_dead() and env.optimal_value() == 0.0
    assert env.plan(3, 1) == [UP]
    assert env.random_value() == 0.0


@pytest.mark.parametrize(("level", "episodes"), [(1, 12), (2, 5), (3, 5)])
def test_dead_states_and_costs_are_those_of_an_exhaustive_search(
    level: int, episodes: int
) -> None:
    env = Sokoban(level=level)
    dead = alive = 0
    for _ in wander(env, seed=8, episodes=episodes, steps=40):
        optimum = Search(env.to_text()).optimum()
        assert env.optimal_cost() == optimum
        assert env.is_dead() == (optimum is None)
        dead += optimum is None
        alive += optimum is not None
    assert dead and alive


@pytest.mark.parametrize("level", LEVELS)
def test_oracle_succeeds_in_exactly_the_optimal_number_of_moves(level: int) -> None:
    env = Sokoban(level=level, split="test")
    for seed in range(5):
        env.reset(seed=seed)
        assert env.optimal_value() == 1.0
        while not env.success:
            left = env.optimal_cost()
            actions = env.plan(5, 1)
            assert len(actions) == min(5, left or 0)
            assert actions[0] == env.optimal_action()
            for action in actions:
                env.step(action)
            assert env.optimal_cost() == (left or 0) - len(actions)
        assert env.actions_taken == env.instance["moves"]


def test_optimal_value_counts_the_actions_left() -> None:
    env = play("######\n#PX_O#\n######", max_actions=3)
    assert (env.optimal_cost(), env.optimal_value()) == (2, 1.0)
    env.step(UP)
    assert env.optimal_value() == 1.0
    env.step(UP)
    assert (env.optimal_cost(), env.optimal_value()) == (2, 0.0)
    assert not env.is_dead()


def test_turn_limited_value_counts_the_actions_that_the_replies_can_hold() -> None:
    env = play("#######\n#PX__O#\n#######", max_actions=9)
    assert env.optimal_cost() == 3
    assert env.turn_limited_value(1, 2) == 0.0
    assert env.turn_limited_value(2, 2) == env.turn_limited_value(1, 3) == 1.0


def test_nothing_more_is_to_be_had_after_success() -> None:
    env = play(CORRIDOR)
    env.step(RIGHT)
    assert env.optimal_cost() == 0
    assert env.optimal_value() == env.random_value() == 0.0


def test_random_value_of_a_corridor_is_one_minus_three_quarters_to_the_n() -> None:
    for actions in (1, 2, 5):
        env = play(CORRIDOR, max_actions=actions)
        assert env.random_value() == pytest.approx(1 - 0.75**actions, abs=1e-15)


@pytest.mark.parametrize("level", [1, 2])
def test_random_value_is_the_share_of_all_action_sequences(level: int) -> None:
    env = Sokoban(level=level, max_actions=7)
    for seed in range(3):
        env.reset(seed=seed)
        search = Search(env.to_text())
        sequences = itertools.product(range(4), repeat=7)
        solved = sum(map(search.solves, sequences))
        assert env.random_value() == pytest.approx(solved / 4**7, abs=1e-12)


def test_random_value_agrees_with_random_play() -> None:
    env = Sokoban(level=1, max_actions=20)
    env.reset(seed=1)
    expected = env.random_value()
    search = Search(env.to_text())
    rng = random.Random(1)
    plays = 3_000
    solved = sum(
        search.solves(tuple(rng.choices(range(4), k=20))) for _ in range(plays)
    )
    error = (expected * (1 - expected) / plays) ** 0.5
    assert 0.05 < expected < 0.95
    assert abs(solved / plays - expected) < 4 * error


def test_explain_says_where_things_are_and_which_push_comes_first() -> None:
    env = play("#####\n#___#\n#_X_#\n#P__#\n##O##\n#####")
    assert env.explain(env.plan(5, 1)) == (
        "Player (3, 1), box (2, 2), goal (4, 2). "
        "Push the box Down 2 times: go to (1, 2), then push."
    )
    assert env.explain([UP]) == env.explain(env.plan(5, 1))
    assert play(CORRIDOR).explain([RIGHT]).endswith("goal (1, 3). Push the box Right.")


def test_explain_names_the_box_where_there_are_several() -> None:
    env = play("######\n#O___#\n#_XX_#\n#P__O#\n######")
    text = env.explain(env.plan(5, 1))
    assert text.startswith("Player (3, 1), boxes (2, 2) (2, 3), goals (1, 1) (3, 4). ")
    assert "Push the box at (2, " in text
    assert text.isascii()


def test_explain_of_a_plan_without_a_way_tells_the_places_alone() -> None:
    env = play("#####\n#X__#\n#_P_#\n#__O#\n#####")
    assert env.explain([]) == "Player (2, 2), box (1, 1), goal (3, 3)."


# Texts and snapshots --------------------------------------------------------------

NEW_GLYPHS = {"wall": "W", "floor": ".", "goal": "G", "box": "C", "player": "@"}


@pytest.mark.parametrize("style", ["grid", "coord", "grid_coord"])
@pytest.mark.parametrize("symbols", [None, NEW_GLYPHS])
def test_text_and_state_round_trip(style: str, symbols: dict[str, str] | None) -> None:
    env = Sokoban(level=2, style=style, symbols=symbols)
    other = Sokoban(level=2, style=style, symbols=symbols)
    other.reset(seed=99)
    seen = set()
    for _ in wander(env, seed=0, episodes=20, steps=22):
        text = env.to_text()
        assert text.isascii()
        other.from_text(text)
        assert other.to_text() == text
        assert other.dump() == env.dump()
        assert other.optimal_cost() == env.optimal_cost()
        assert (other.progress(), other.success) == (env.progress(), env.success)
        seen.update(env.dump())
    assert seen >= set("#_OX*PS")


def test_legend_explains_the_glyphs_that_are_drawn() -> None:
    env = Sokoban(level=1, symbols=NEW_GLYPHS)
    env.reset(seed=0)
    assert set(env.to_text()) - {"\n"} <= set(env.legend())
    assert env.legend()["C"] == "box" and env.legend()["@"] == "you"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#####\n#_XO#\n#####", "0 players"),
        ("#####\n#PPX#\n#####", "2 players"),
        ("#####\n#PX_#\n#####", "1 boxes and 0 goals"),
        ("##_##\n#PXO#\n#####", "closed by walls"),
    ],
)
def test_texts_of_no_state_are_refused(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        play(CORRIDOR).from_text(text)


def test_observations_are_fresh_and_lie_in_the_space() -> None:
    env = play("######\n#PX_O#\n######")
    first = env.observe()
    assert first.dtype == np.uint8 and first in env.observation_space
    assert first.tolist() == [[0] * 6, [0, 5, 3, 1, 2, 0], [0] * 6]
    second, *_ = env.step(RIGHT)
    assert first[1].tolist() == [0, 5, 3, 1, 2, 0]
    assert second[1].tolist() == [0, 1, 5, 3, 2, 0]
    second[:] = 0
    assert env.observe()[1].tolist() == [0, 1, 5, 3, 2, 0]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_copies_in_mid_episode_go_on_alike_and_apart(copied: Any) -> None:
    env = Sokoban(level=3)
    env.reset(seed=2)
    env.step(env.optimal_action())
    twin = copied(env)
    text = env.to_text()
    for action in twin.plan(99, 1):
        observation, *_ = twin.step(action)
        assert (observation == twin.observe()).all()
        assert observation.tolist() != env.observe().tolist()
    assert twin.success is True
    assert (env.to_text(), env.success) == (text, False)
    assert len(pickle.dumps(env)) < 10_000


def test_state_goes_through_json_into_another_environment() -> None:
    env = Sokoban(level=3)
    env.reset(seed=2)
    for action in env.plan(4, 1):
        env.step(action)
    state = json.loads(json.dumps(env.get_state()))
    other = Sokoban(level=3)
    other.set_state(state)
    assert other.to_text() == env.to_text()
    assert other.plan(99, 1) == env.plan(99, 1)
    assert other.get_state() == env.get_state()


# Levels from files ----------------------------------------------------------------

XSB = """; 1
    #####
    #   #
    #$  #
  ###  $##
  #  $ $ #
### # ## #   ######
#   # ## #####  ..#
# $  $          ..#
##### ### #@##  ..#
    #     #########
    #######
Title: the first of the classic ones

; 2
--###
###.#
#--$#
#*-@#
#####
"""


def test_xsb_levels_are_read_with_walls_around(tmp_path: Path) -> None:
    path = tmp_path / "two.xsb"
    path.write_text(XSB)
    first, second = load_levels(path)
    assert settings_for(first) == {"rows": 11, "cols": 19, "boxes": 6}
    assert first["room"].split("\n")[0] == "#" * 19
    assert first["room"].split("\n")[8] == "#####_###_#P##__OO#"
    assert second["room"] == "#####\n###O#\n#__X#\n#*_P#\n#####"
    env = play(second["room"])
    assert env.progress() == 0.5
    assert env.plan(99, 1) == [UP]
    env.step(UP)
    assert env.success is True


def test_boxoban_levels_are_read_and_played(tmp_path: Path) -> None:
    level = "##########\n#   @    #\n#  $ .   #\n#        #\n#  $ .   #\n"
    level += "#  $ .   #\n#  $ .   #\n#        #\n#        #\n##########\n"
    path = tmp_path / "000.txt"
    path.write_text(f"; 0\n{level}\n; 1\n{level}")
    levels = load_levels(path)
    assert len(levels) == 2
    settings = settings_for(levels[1])
    assert settings == {"rows": 10, "cols": 10, "boxes": 4}
    env = ragen_bench.make("ragen/Sokoban-v0", level=5, **settings)
    observation, _ = env.reset(seed=0, options={"instance": levels[1]})
    assert levels[1]["room"] in observation
    _, _, _, _, info = env.step("<answer>Left || Down</answer>")
    assert info["effective"] == (True, True)


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("#####\n# $.#\n#####", "level 2: has 0 players"),
        ("#####\n#@$.#\n# $ #\n#####", "level 2: has 2 boxes and 1 goals"),
        ("#####\n#@$.\n#####", "level 2: must be closed by walls"),
        ("#####\n#@$Q#\n#####", "level 2: has 'Q'"),
        ("#####\n#@*_#\n#####", "level 2: is solved at the start"),
        ("#####", "level 2: is 1x5"),
        ("#" * 33 + "\n#@$.#\n#####", "level 2: is 3x33"),
    ],
)
def test_levels_with_a_fault_are_named_by_number(
    tmp_path: Path, level: str, message: str
) -> None:
    path = tmp_path / "levels.xsb"
    path.write_text(f"#####\n#@$.#\n#####\n\n{level}\n")
    with pytest.raises(RecordError, match=message):
        load_levels(path)


def test_a_file_without_levels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("; nothing\n")
    with pytest.raises(RecordError, match="no level"):
        load_levels(path)


def test_a_level_of_another_size_names_the_settings_that_fit() -> None:
    env = Sokoban(level=1)
    with pytest.raises(InvalidSpec, match="make it with rows=3, cols=5, boxes=1"):
        env.reset(seed=0, options={"instance": {"room": CORRIDOR}})


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        ("room", "must be a mapping"),
        ({"moves": 3}, "must be a mapping"),
        ({"room": "######\n#P*_#\n######"}, "one length"),
        ({"room": "#P\n##"}, "3 to 32 rows"),
        ({"room": "#####\n#PX?#\n#####"}, "nothing but"),
        ({"room": "#####\n#P\u20ac.#\n#####"}, "nothing but"),
        ({"room": "#####\n#P*_#\n#####"}, "solved at the start"),
    ],
)
def test_instances_that_are_no_rooms_are_refused(instance: Any, message: str) -> None:
    env = Sokoban(level=1, rows=3, cols=5)
    with pytest.raises(InvalidSpec, match=message):
        env.reset(seed=0, options={"instance": instance})


# Presets and prompts --------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "size", "boxes", "per_turn"),
    [
        ("ragen-v1", 6, 1, 5),
        ("ragen-v2", 6, 1, 2),
        ("ragen-v1-large", 8, 2, 5),
        ("ragen-v2-large", 8, 2, 2),
    ],
)
def test_presets_have_the_rules_of_ragen(
    preset: str, size: int, boxes: int, per_turn: int
) -> None:
    env = ragen_bench.make("ragen/Sokoban-v0", preset=preset, split="test")
    limits = env.limits
    assert (limits.max_actions, limits.max_turns) == (10, 5)
    assert limits.max_actions_per_turn == per_turn
    assert env.core.observation_space.shape == (size, size)
    assert "Each action costs 0.1." in env.core.rules()
    env.reset(seed=0)
    assert env.core.to_text().count("X") == boxes
    assert env.core.optimal_value() == 1.0
    _, reward, _, _, info = env.step("no answer")
    assert reward == -0.1 and info["reward_parts"] == {"task": 0.0, "format": -0.1}


def test_optimal_lengths_of_the_preset_are_those_measured_in_ragen() -> None:
    env = Sokoban(preset="ragen-v1")
    counts = Counter(env.draw(seed)["moves"] for seed in range(2_000))
    at_most = list(
        itertools.accumulate(counts[moves] / 2_000 for moves in range(1, 11))
    )
    expected = {1: 0.094, 2: 0.342, 3: 0.449, 4: 0.617, 5: 0.764, 6: 0.865, 8: 0.971}
    for moves, share in expected.items():
        assert at_most[moves - 1] == pytest.approx(share, abs=0.03)
    assert at_most[9] == pytest.approx(1.0)


@pytest.mark.parametrize("level", LEVELS)
def test_limits_and_optima_are_those_of_the_level(level: int) -> None:
    spec = Sokoban.levels[level]
    most = {1: 10, 2: 22, 3: 42, 4: 82, 5: 120}[level]
    optima = {1: (2, 4), 2: (5, 10), 3: (11, 20), 4: (21, 40), 5: (41, 60)}[level]
    assert isinstance(spec.params, SokobanParams)
    assert (spec.limits.max_actions, spec.limits.max_turns) == (most, most // 2)
    assert spec.limits.max_actions_per_turn == 5
    assert (spec.params.min_moves, spec.params.max_moves) == optima


def test_rules_tell_what_is_scored() -> None:
    env = Sokoban(level=1)
    env.reset(seed=0)
    rules = env.rules()
    assert rules.isascii()
    for part in ("each box is on a goal", "never pull", "uses up the action"):
        assert part in rules
    assert "0.1" not in rules


def test_rooms_are_drawn_from_the_stream_alone() -> None:
    env = Sokoban(level=2)
    assert env.generate(Stream(5, "a")) == env.generate(Stream(5, "a"))
    assert env.generate(Stream(5, "a")) != env.generate(Stream(6, "a"))
