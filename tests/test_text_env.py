"""The text layer: replies, what they cost, what is told, and when it ends."""

import copy
import json
import pickle

import numpy as np
import pytest
import toy
from gymnasium.error import ResetNeeded

import ragen_bench as rb
from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.text_env import InvalidPolicy, load_core

# An instance that stands at the left end, where Left is not allowed.
START = {"instance": [0, 77]}


def made(**settings) -> rb.TextEnv:
    env = rb.make(toy.CELL, **settings)
    env.reset(seed=1, options=START)
    return env


def says(*actions: str) -> str:
    return f"<answer>{' || '.join(actions)}</answer>"


def play(env: rb.TextEnv, *replies: str, **facts) -> list[tuple]:
    return [env.step(reply, **facts) for reply in replies]


INVALID = {
    "empty": "",
    "no_answer": "I go right.",
    "unparsable": says("Up"),
    "illegal": says("Left"),
}
"""Replies of which nothing is played."""


# Beginning --------------------------------------------------------------------


def test_reset_tells_the_rules_and_the_limits_once() -> None:
    env = rb.make(toy.CELL)
    observation, info = env.reset(seed=1, options=START)
    assert observation == "Turn 1 of 5. Actions left: 10.\nCorridor 77\nP...G"
    assert info["rules"] == env.rules()
    assert info["action_names"] == ("Left", "Right", "Wait")
    assert (info["turns_left"], info["actions_left"]) == (5, 10)
    assert info["action_mask"].tolist() == [0, 1, 1]
    assert (info["success"], info["progress"]) == (False, 0.0)
    _, _, _, _, info = env.step(says("Right"))
    assert "rules" not in info


def test_full_rules_say_everything() -> None:
    assert made().rules() == (
        "Walk right through 5 cells to G.\n"
        "\n"
        "Symbols:\n"
        "P you\n"
        "G goal\n"
        ". floor\n"
        "\n"
        "Actions: Left, Right, Wait.\n"
        "Limits: 10 actions and 5 turns in all. Each of your replies is one turn and "
        'may hold up to 3 actions, separated by " || " and played in order.\n'
        "Give your answer in this form: <answer>Left || Right</answer>"
    )


def test_compact_rules_say_symbols_actions_and_limits() -> None:
    assert made(prompt="compact").rules() == (
        "P you, G goal, . floor\n"
        "Actions: Left, Right, Wait. 10 actions, 5 turns, 3 a turn.\n"
        "<answer>Left || Right</answer>"
    )


def test_the_rules_state_the_limits_that_hold() -> None:
    env = made(max_turns=1, max_actions=1, max_actions_per_turn=1)
    rules = env.rules()
    assert "Limits: 1 action and 1 turn in all." in rules
    assert "is one turn and holds one action." in rules
    assert "<answer>Left</answer>" in rules
    *_, terminated, truncated, info = env.step(says("Right", "Right"))
    assert (info["parse"], info["actions"]) == ("too_many", ("Right",))
    assert (terminated, truncated) == (True, False)


@pytest.mark.parametrize("reply", ["", "Left", says("Left"), says("Sideways")])
def test_the_one_reply_of_a_task_terminates_it(reply: str) -> None:
    env = made(max_turns=1)
    env.reset(seed=0)
    *_, terminated, truncated, _ = env.step(reply)
    assert (terminated, truncated) == (True, False)
    assert (env.terminated, env.truncated) == (True, False)


def test_all_that_is_told_is_ascii() -> None:
    for prompt in ("full", "compact"):
        env = made(prompt=prompt, show_legal=True)
        told = [env.rules()]
        for reply in ("\u00e9\ud800", says("\u2191"), says("Right")):
            told.append(env.step(reply)[0])
        assert all(text.isascii() for text in told)
        assert all("None" not in text for text in told)


# Replies ----------------------------------------------------------------------


def test_a_reply_plays_its_actions_in_order() -> None:
    env = made()
    observation, reward, terminated, truncated, info = env.step(
        "<think>Two.</think>" + says("Right", "Wait", "right")
    )
    assert observation == (
        "Played: Right, Wait (no effect), Right. Reward: 0.\n"
        "Turn 2 of 5. Actions left: 7.\n"
        "Corridor 77\n"
        "..P.G"
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["parse"] == "ok"
    assert info["valid"] is True
    assert info["thinking"] == "Two."
    assert info["actions"] == ("Right", "Wait", "Right")
    assert info["effective"] == (True, False, True)
    assert info["reward_parts"] == {"task": 0.0, "format": 0.0}
    assert info["scored_reward"] == 0.0
    assert (info["success"], info["progress"]) == (False, 0.5)
    assert info["action_mask"].tolist() == [1, 1, 1]
    assert (info["turns_left"], info["actions_left"]) == (4, 7)


def test_success_ends_the_episode_within_a_reply() -> None:
    env = made()
    play(env, says("Right", "Right"))
    observation, reward, terminated, truncated, info = env.step(
        says("Right", "Right", "Left")
    )
    assert observation == "Played: Right, Right. Reward: 1.\nCorridor 77\n....P"
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["actions"] == ("Right", "Right")
    assert info["success"] is True
    assert info["progress"] == 1
    assert info["parse"] == "ok"


def test_an_illegal_action_runs_what_stands_before_it() -> None:
    env = made()
    observation, _, _, _, info = env.step(says("Right", "Left", "Left"))
    assert info["parse"] == "illegal"
    assert info["valid"] is False
    assert info["actions"] == ("Right", "Left")
    assert env.core.place == 0
    assert observation.startswith(
        "Your answer held an action that is not allowed now. Played: Right, Left."
    )


def test_too_many_actions_play_the_first() -> None:
    env = made()
    observation, _, _, _, info = env.step(says(*["Right"] * 4))
    assert info["parse"] == "too_many"
    assert info["valid"] is False
    assert info["actions"] == ("Right",) * 3
    assert observation.startswith(
        "Your answer held too many actions; only the first were done. Played: Right,"
    )


def test_nothing_of_a_cut_off_reply_is_played() -> None:
    env = made()
    observation, _, _, _, info = env.step(says("Right"), finish_reason="length")
    assert (info["parse"], info["valid"], info["actions"]) == ("cut_off", False, ())
    assert observation.startswith("Your reply was cut off before its end.")
    assert env.core.place == 0
    assert env.turns == 1


def test_thinking_that_came_apart_is_told_apart() -> None:
    *_, info = made().step(says("Right"), thinking="Hm.")
    assert info["thinking"] == "Hm."
    *_, info = made().step("<think>a</think>" + says("Right"), thinking="b")
    assert info["thinking"] == "b\na"


def test_only_strict_mode_minds_two_answers() -> None:
    reply = says("Wait") + " or rather " + says("Right")
    *_, info = made().step(reply)
    assert (info["parse"], info["actions"]) == ("ok", ("Right",))
    *_, info = made(strict=True).step(reply)
    assert (info["parse"], info["actions"]) == ("unparsable", ())
    *_, info = made(strict=True).step(says("Right") * 2)
    assert (info["parse"], info["actions"]) == ("ok", ("Right",))


@pytest.mark.parametrize("outcome", INVALID)
@pytest.mark.parametrize("prompt", ["full", "compact"])
def test_an_invalid_reply_is_told_why(outcome, prompt) -> None:
    env = made(prompt=prompt)
    observation, reward, _, _, info = env.step(INVALID[outcome])
    assert info["parse"] == outcome
    assert (info["valid"], info["actions"], info["effective"]) == (False, (), ())
    assert reward == 0
    why = {
        ("full", "empty"): "Your reply was empty.",
        ("full", "no_answer"): "Your reply had no <answer>...</answer>",
        ("full", "unparsable"): "Your answer holds something that is not an action.",
        ("full", "illegal"): "Your answer held an action that is not allowed now.",
        ("compact", "empty"): "Invalid: empty.",
        ("compact", "no_answer"): "Invalid: no answer.",
        ("compact", "unparsable"): "Invalid: not an action.",
        ("compact", "illegal"): "Not allowed.",
    }
    assert observation.startswith(why[prompt, outcome])
    assert env.core.actions_taken == 0


def test_compact_feedback_is_short() -> None:
    env = made(prompt="compact")
    observation, *_ = env.step(says("Right", "Wait"))
    assert observation == (
        "Right, Wait (no effect).\nTurn 2/5, 8 actions\nCorridor 77\n.P..G"
    )
    observation, *_ = env.step("")
    assert observation == "Invalid: empty.\nTurn 3/5, 8 actions\nCorridor 77\n.P..G"


def test_legal_actions_are_listed_on_demand() -> None:
    env = rb.make(toy.CELL, show_legal=True)
    observation, _ = env.reset(seed=1, options=START)
    assert observation.endswith("P...G\nLegal actions: Right, Wait.")
    observation, *_ = env.step(says("Right"))
    assert observation.endswith(".P..G\nLegal actions: Left, Right, Wait.")
    play(env, says("Right", "Right"))
    observation, *_ = env.step(says("Right"))
    assert "Legal" not in observation


# What an invalid reply costs ----------------------------------------------------


@pytest.mark.parametrize("outcome", INVALID)
def test_noop_costs_the_turn_and_nothing_else(outcome) -> None:
    env = made(invalid="noop")
    *_, terminated, truncated, info = env.step(INVALID[outcome])
    assert (terminated, truncated) == (False, False)
    assert (info["turns_left"], info["actions_left"]) == (4, 10)
    played = play(env, *[INVALID[outcome]] * 4)
    assert [step[3] for step in played] == [False, False, False, True]
    assert env.core.place == 0


@pytest.mark.parametrize("outcome", INVALID)
def test_retry_gives_a_number_of_turns_back(outcome) -> None:
    env = made(invalid="retry:2", max_turns=2)
    played = play(env, *[INVALID[outcome]] * 4)
    assert [step[4]["turns_left"] for step in played] == [2, 2, 1, 0]
    assert [step[3] for step in played] == [False, False, False, True]


def test_a_reply_that_played_something_is_not_retried() -> None:
    env = made(invalid="retry:2")
    *_, info = env.step(says(*["Right"] * 4))
    assert (info["parse"], info["turns_left"]) == ("too_many", 4)
    *_, info = env.step("")
    assert info["turns_left"] == 4


def test_retries_are_given_anew_in_each_episode() -> None:
    env = made(invalid="retry:1")
    play(env, "", "")
    env.reset(seed=1)
    *_, info = env.step("")
    assert info["turns_left"] == 5


@pytest.mark.parametrize("outcome", INVALID)
def test_terminate_ends_the_episode_unsolved(outcome) -> None:
    env = made(invalid="terminate")
    play(env, says("Right"))
    env.core.place = 0
    observation, reward, terminated, truncated, info = env.step(INVALID[outcome])
    assert (terminated, truncated) == (True, False)
    assert (env.terminated, env.truncated) == (True, False)
    assert (reward, info["success"]) == (0.0, False)
    assert "Turn" not in observation
    with pytest.raises(ResetNeeded):
        env.step(says("Right"))


def test_terminate_is_no_truncation_even_with_the_last_action() -> None:
    env = made(invalid="terminate", max_actions=3)
    *_, terminated, truncated, info = env.step(says(*["Wait"] * 4))
    assert (info["parse"], len(info["actions"])) == ("too_many", 3)
    assert (terminated, truncated) == (True, False)


def test_terminate_is_no_truncation_even_in_the_last_turn() -> None:
    env = made(invalid="terminate", max_turns=1)
    *_, terminated, truncated, _ = env.step("")
    assert (terminated, truncated) == (True, False)


@pytest.mark.parametrize("outcome", INVALID)
def test_default_plays_its_action_in_place_of_the_reply(outcome) -> None:
    env = made(invalid="default:right")
    observation, _, _, _, info = env.step(INVALID[outcome])
    assert info["parse"] == outcome
    assert (info["valid"], info["actions"]) == (False, ("Right",))
    assert (info["turns_left"], info["actions_left"]) == (4, 9)
    assert "Played: Right." in observation
    assert "Nothing was done" not in observation
    assert env.core.place == 1


def test_a_default_that_is_not_allowed_does_nothing() -> None:
    env = made(invalid="default:Left")
    *_, info = env.step("")
    assert (info["parse"], info["actions"], info["turns_left"]) == ("empty", (), 4)


def test_a_default_can_solve_and_ends_the_episode() -> None:
    env = made(invalid="default:Right", length=2)
    _, reward, terminated, _, info = env.step("")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert info["valid"] is False


@pytest.mark.parametrize(
    "text",
    ["", "never", "noop:1", "retry", "retry:0", "retry:-1", "retry:x", "terminate:1"]
    + ["default", "default:"],
)
def test_an_unknown_policy_is_refused(text) -> None:
    with pytest.raises(InvalidSpec, match=rf"invalid is '{text}', but must be 'noop'"):
        InvalidPolicy(text)


def test_an_unknown_default_is_refused_before_the_first_reply() -> None:
    env = rb.make(toy.CELL, invalid="default:Rihgt")
    with pytest.raises(UnknownName, match="no action 'Rihgt'; did you mean 'Right'"):
        env.reset(seed=1)


# Rewards ------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [*INVALID.values(), says(*["Right"] * 4)])
def test_a_penalty_is_told_apart_and_never_scored(reply) -> None:
    env = made(format_penalty=-0.25)
    _, reward, _, _, info = env.step(reply)
    assert reward == -0.25
    assert info["reward_parts"] == {"task": 0.0, "format": -0.25}
    assert info["scored_reward"] == 0.0


def test_a_penalty_lowers_the_reward_of_a_success_but_not_its_score() -> None:
    env = made(format_penalty=-0.25, length=3)
    _, reward, terminated, _, info = env.step(says(*["Right"] * 4))
    assert (reward, terminated) == (0.75, True)
    assert info["reward_parts"] == {"task": 1.0, "format": -0.25}
    assert info["scored_reward"] == 1.0


def test_a_valid_reply_has_no_penalty() -> None:
    env = made(format_penalty=-0.25)
    _, reward, _, _, info = env.step(says("Right"))
    assert reward == 0.0
    assert info["reward_parts"] == {"task": 0.0, "format": 0.0}


def test_pay_adds_up_over_a_reply() -> None:
    env = made(level=3)
    observation, reward, _, _, info = env.step(says("Right", "Wait", "Right"))
    assert reward == pytest.approx(0.2)
    assert info["scored_reward"] == info["reward_parts"]["task"] == reward
    assert "Reward: 0.2." in observation
    assert info["success"] is None


def test_a_preset_brings_settings_of_the_text_layer() -> None:
    env = made(preset="strict")
    assert (env.limits.max_turns, env.core.limits.max_actions) == (2, 4)
    _, reward, terminated, _, _ = env.step("")
    assert (reward, terminated) == (-0.25, True)
    env = made(preset="strict", invalid="noop", format_penalty=0.0)
    _, reward, terminated, _, _ = env.step("")
    assert (reward, terminated) == (0.0, False)


# Ends ---------------------------------------------------------------------------


def test_the_last_turn_truncates() -> None:
    env = made(max_turns=2)
    played = play(env, says("Right"), says("Right"))
    assert [step[2:4] for step in played] == [(False, False), (False, True)]
    assert (env.terminated, env.truncated) == (False, True)
    assert played[-1][0] == "Played: Right. Reward: 0.\nCorridor 77\n..P.G"


def test_the_last_action_truncates() -> None:
    env = made(max_actions=4)
    play(env, says("Wait", "Wait", "Wait"))
    *_, terminated, truncated, info = env.step(says("Wait", "Wait", "Wait"))
    assert (terminated, truncated) == (False, True)
    assert info["actions"] == ("Wait",)
    assert (info["turns_left"], info["actions_left"]) == (3, 0)


def test_success_in_the_last_turn_is_no_truncation() -> None:
    env = made(max_turns=1, max_actions=2, length=3)
    *_, terminated, truncated, info = env.step(says("Right", "Right"))
    assert (terminated, truncated, info["success"]) == (True, False, True)


def test_a_step_after_the_end_or_before_the_start_is_refused() -> None:
    env = rb.make(toy.CELL)
    with pytest.raises(ResetNeeded):
        env.step(says("Right"))
    env.reset(seed=1)
    play(env, *[""] * 5)
    with pytest.raises(ResetNeeded):
        env.step(says("Right"))
    env.reset(seed=1)
    env.step(says("Right"))


# Seeds --------------------------------------------------------------------------


def test_a_seed_fixes_the_instance_and_a_rep_the_noise() -> None:
    env = rb.make(toy.CELL, level=2)

    def slips(seed: int, rep: int) -> tuple:
        first, _ = env.reset(seed=seed, options={"rep": rep})
        return first, tuple(env.step(says("Right", "Right"))[4]["effective"])

    assert slips(3, 0) == slips(3, 0)
    found = [slips(3, rep) for rep in range(20)]
    assert len({first for first, _ in found}) == 1
    assert len({noise for _, noise in found}) > 1
    assert len({slips(seed, 0)[0] for seed in range(20)}) > 10


def test_without_a_seed_the_generator_goes_on() -> None:
    env, other = rb.make(toy.CELL), rb.make(toy.CELL)
    env.reset(seed=5)
    other.reset(seed=5)
    firsts = [env.reset()[0] for _ in range(5)]
    assert firsts == [other.reset()[0] for _ in range(5)]
    assert len(set(firsts)) > 1


@pytest.mark.parametrize("rep", [-1, 1.0, True, "1", None])
def test_a_wrong_rep_is_refused(rep) -> None:
    with pytest.raises(InvalidSpec, match="rep is"):
        made().reset(seed=1, options={"rep": rep})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UnknownName, match="'reps'; did you mean 'rep'"):
        made().reset(seed=1, options={"reps": 1})


def test_a_space_says_what_the_instance_allows() -> None:
    env = made()
    env.action_space.seed(0)
    replies = {env.action_space.sample() for _ in range(50)}
    assert replies == {says("Left"), says("Right"), says("Wait")}
    assert env.observation_space.contains(env.step(says("Right"))[0])


# Snapshots ----------------------------------------------------------------------

REPLIES = (says("Right"), "", says("Right", "Wait"), "", says("Right"))


def told(env: rb.TextEnv, replies=REPLIES) -> list[str]:
    """Return all that the steps give, as text."""
    found = []
    for reply in replies:
        observation, reward, terminated, truncated, info = env.step(reply)
        mask = info.pop("action_mask").tolist()
        found.append(repr((observation, reward, terminated, truncated, info, mask)))
        if terminated or truncated:
            break
    return found


@pytest.mark.parametrize("after", range(5))
def test_a_state_goes_on_in_another_environment(after) -> None:
    settings = {"level": 2, "invalid": "retry:1", "max_turns": 4}
    env = rb.make(toy.CELL, **settings)
    env.reset(seed=8, options={"rep": 3})
    told(env, REPLIES[:after])
    state = json.loads(json.dumps(env.get_state()))
    other = rb.make(toy.CELL, **settings)
    other.set_state(state)
    assert other.get_state() == state
    assert other.np_random is other.core.np_random
    if not (env.terminated or env.truncated):
        assert told(other, REPLIES[after:]) == told(env, REPLIES[after:])
    assert other.reset()[0] == env.reset()[0]


@pytest.mark.parametrize(
    "copied",
    [
        rb.TextEnv.clone,
        copy.deepcopy,
        lambda env: pickle.loads(pickle.dumps(env)),
    ],
    ids=["clone", "deepcopy", "pickle"],
)
def test_a_copy_goes_on_alike_and_apart(copied) -> None:
    env = rb.make(toy.CELL, level=2, format_penalty=-0.5)
    env.reset(seed=8)
    told(env, REPLIES[:1])
    other = copied(env)
    expected = told(other, REPLIES[1:])
    assert env.turns == 1
    assert told(env, REPLIES[1:]) == expected
    assert other.core is not env.core


def test_a_state_of_an_ended_episode_is_ended() -> None:
    env = made()
    play(env, *[""] * 5)
    other = rb.make(toy.CELL)
    other.set_state(env.get_state())
    assert (other.terminated, other.truncated) == (False, True)
    with pytest.raises(ResetNeeded):
        other.step(says("Right"))


# Settings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"prompt": "short"}, UnknownName, "no prompt length 'short'"),
        ({"invalid": "x"}, InvalidSpec, "invalid is 'x'"),
        ({"format_penalty": 0.1}, InvalidSpec, "format_penalty is 0.1"),
        ({"format_penalty": float("nan")}, InvalidSpec, "format_penalty is nan"),
        ({"format_penalty": -float("inf")}, InvalidSpec, "format_penalty is -inf"),
        ({"max_turns": 0}, InvalidSpec, "max_turns is 0"),
        ({"max_turns": 1.5}, InvalidSpec, "max_turns is 1.5"),
        ({"max_actions": -1}, InvalidSpec, "max_actions is -1"),
        ({"max_actions_per_turn": True}, InvalidSpec, "max_actions_per_turn is True"),
        ({"strict": "yes"}, InvalidSpec, "strict is 'yes'"),
        ({"level": 9}, InvalidSpec, "level is 9, but must be one of 1, 2, 3"),
        ({"level": True}, InvalidSpec, "level is True"),
        ({"split": "all"}, InvalidSpec, "split is 'all'"),
        ({"preset": "x"}, UnknownName, "no preset 'x'"),
        ({"style": "x"}, UnknownName, "no style 'x'"),
        ({"lenght": 3}, UnknownName, "'lenght'; did you mean 'length'"),
        ({"render_mode": "human"}, InvalidSpec, "render_mode is 'human'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings, error, message) -> None:
    with pytest.raises(error, match=message):
        rb.TextEnv("toy:Corridor", **settings)


def test_a_core_may_be_given_itself() -> None:
    env = rb.TextEnv(toy.Corridor(level=2), max_turns=3)
    env.reset(seed=1)
    assert (env.core.level, env.limits.max_turns) == (2, 3)


def test_a_core_must_be_one() -> None:
    assert load_core("toy:Corridor") is toy.Corridor
    for name in ("toy:Walker", "toy:Nothing", "toy"):
        with pytest.raises(UnknownName, match="is not a SymbolicEnv"):
            load_core(name)


def test_rendering_gives_the_text_if_asked_for() -> None:
    assert made(render_mode="ansi").render() == "Corridor 77\nP...G"
    assert made().render() is None
    env = made()
    env.close()
    env.close()


def test_masks_are_fresh() -> None:
    env = made()
    *_, info = env.step(says("Wait"))
    info["action_mask"][:] = 0
    *_, info = env.step(says("Wait"))
    assert info["action_mask"].tolist() == [0, 1, 1]
    assert info["action_mask"].dtype == np.int8


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, ""),
        ({"invalid": "retry:1"}, " Up to 1 reply that cannot be read cost no turn."),
        ({"invalid": "retry:3"}, " Up to 3 replies that cannot be read cost no turn."),
        ({"invalid": "terminate"}, " A reply that cannot be read ends the episode."),
        (
            {"invalid": "default:Left"},
            " In place of a reply that cannot be read, Left is played.",
        ),
        ({"format_penalty": -0.1}, " A reply that breaks these rules costs 0.1."),
    ],
)
def test_the_rules_tell_what_an_invalid_reply_costs(
    settings: dict[str, object], told: str
) -> None:
    rules = made(**settings).rules()
    assert f"played in order.{told}\nGive your answer" in rules
