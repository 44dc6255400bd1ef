"""Scores are what a hand count says, and faults are never turned into play."""

import dataclasses
import json
import random
from pathlib import Path

import pytest
from pydantic import ValidationError
from toy import CELL, Corridor

from ragen_bench.errors import InvalidSpec, RecordError
from ragen_bench.intervals import wilson
from ragen_bench.records import (
    OUTCOMES,
    CellPlan,
    Episode,
    RunConfig,
    RunRecord,
    Summary,
    Turn,
    TurnUsage,
    parse_record,
)
from ragen_bench.run_folder import RunFolder
from ragen_bench.scoring import pass_at_k, pass_hat_k, score, summarise

GRID, ARMS = "ns/Grid-v0", "ns/Arms-v0"


def config(*cells: tuple[str, int], seeds: int = 4, **settings) -> RunConfig:
    plans = [CellPlan(env_id=e, level=n, seeds=tuple(range(seeds))) for e, n in cells]
    return RunConfig(cells=plans, agent="direct", **{"board": "toy", **settings})


def turn(actions: int = 1, parse: str = "ok", tokens: int | None = 10) -> Turn:
    return Turn(
        observation="",
        response="",
        thinking="",
        actions=("Up",) * actions,
        effective=(True,) * actions,
        parse=parse,
        valid=parse == "ok",
        reward=0.0,
        reward_parts={},
        scored_reward=0.0,
        prompt_sha256=None,
        context_cut=0,
        usage=TurnUsage(input_tokens=100, output_tokens=tokens),
        finish_reason="stop",
        latency_s=None,
    )


def episode(seed: int, solved: bool | None = True, **facts) -> Episode:
    """Return an episode; without success (None) it is a task of several pulls."""
    outcome = {True: "solved", False: "failed", None: "finished"}[solved]
    known = {
        "env_id": GRID,
        "level": 1,
        "split": "test",
        "seed": seed,
        "rep": 0,
        "instance": f"{seed:016x}",
        "outcome": outcome,
        "success": solved,
        "return": float(bool(solved)),
        "floor": 0.0,
        "ceiling": 1.0,
        "optimal_cost": 2,
        "terminated": True,
        "truncated": False,
        "error": None,
        "rules": "",
        "turns": (turn(2),),
        "final_observation": "",
    }
    return Episode(**{**known, **facts})


def lost(seed: int, outcome: str, **facts) -> Episode:
    return episode(seed, False, **{"outcome": outcome, **facts})


def near(value: float):
    return pytest.approx(value, abs=1e-9)


def test_normalized_score_is_a_ratio_of_the_cells_means():
    # (0.5 - 0.2) / (0.9 - 0.2), and not the mean of 1.25 and -0.5.
    played = [
        episode(0, None, **{"return": 1.0, "floor": 0.0, "ceiling": 0.8}),
        episode(1, None, **{"return": 0.0, "floor": 0.4, "ceiling": 1.0}),
    ]
    cell = summarise(config((GRID, 1), seeds=2), played).cells[f"{GRID}:1"]
    assert cell.normalized.mean == near(0.3 / 0.7)
    assert (cell.floor, cell.ceiling, cell.episode_return.mean) == (0.2, 0.9, 0.5)


@pytest.mark.parametrize(("returned", "normalized"), [(0.9, 2.0), (0.1, -2 / 3)])
def test_scores_beyond_ceiling_and_floor_are_not_clipped(returned, normalized):
    facts = {"return": returned, "floor": 0.3, "ceiling": 0.6}
    played = [episode(i, None, **facts) for i in range(4)]
    assert summarise(config((GRID, 1)), played).score.mean == near(normalized)


def test_board_is_the_mean_of_environments_and_these_of_their_cells():
    # Grid: (1 + 1/2 + 0) / 3 = 1/2; Arms: 1/4; board 3/8 (and not 7/16).
    played = [episode(i, True) for i in range(4)]
    played += [episode(i, i < 2, level=2) for i in range(4)]
    played += [episode(i, False, level=3) for i in range(4)]
    played += [episode(i, i < 1, env_id=ARMS) for i in range(4)]
    cells = ((GRID, 1), (GRID, 2), (GRID, 3), (ARMS, 1))
    found = summarise(config(*cells), played)
    assert found.envs[GRID].normalized.mean == near(1 / 2)
    assert found.envs[GRID].success.mean == near(1 / 2)
    assert found.envs[ARMS].normalized.mean == near(1 / 4)
    assert (found.score.mean, found.score.n) == (near(3 / 8), 16)
    assert found.envs[GRID].episodes == 12


@pytest.mark.parametrize("outcome", ["provider_error", "timeout"])
def test_what_nobody_played_is_counted_and_never_averaged(outcome):
    fault = lost(1, outcome, turns=(turn(5, "empty", 99),), floor=0.5)
    found = summarise(config((GRID, 1), seeds=2), [episode(0), fault])
    cell = found.cells[f"{GRID}:1"]
    assert (cell.success.mean, cell.success.n, cell.episodes) == (1.0, 1, 2)
    assert (cell.floor, cell.turns, cell.actions, cell.tokens) == (0.0, 1, 2, 10)
    assert (cell.invalid_rate, cell.parses) == (0.0, {"ok": 1})
    assert found.outcomes[outcome] == cell.outcomes[outcome] == 1
    assert found.output_tokens == 109  # they were paid for all the same


@pytest.mark.parametrize("outcome", ["context_overflow", "agent_error"])
def test_an_agents_own_faults_are_failures_that_return_nothing(outcome):
    # A single pull may have paid already: the episode still counts as 0.
    fault = lost(1, outcome, success=True, **{"return": 0.25})
    cell = summarise(config((GRID, 1), seeds=2), [episode(0), fault]).cells[f"{GRID}:1"]
    assert (cell.success.mean, cell.success.n) == (0.5, 2)
    assert cell.episode_return.mean == 0.5


def test_without_success_an_agents_fault_returns_what_was_collected():
    fault = episode(1, None, outcome="agent_error", **{"return": 3.0})
    played = [episode(0, None, **{"return": 5.0}), fault]
    cell = summarise(config((GRID, 1), seeds=2), played).cells[f"{GRID}:1"]
    assert cell.episode_return.mean == 4.0
    assert cell.success.model_dump() == dict(mean=None, low=None, high=None, n=0)


def test_success_and_what_follows_from_it_share_wilsons_interval():
    played = [episode(i, i < 3, floor=0.2, ceiling=0.7) for i in range(10)]
    cell = summarise(config((GRID, 1), seeds=10), played).cells[f"{GRID}:1"]
    low, high = wilson(0.3, 10)
    assert (cell.success.low, cell.success.high) == (near(low), near(high))
    assert cell.episode_return == cell.success
    assert cell.normalized.mean == near((0.3 - 0.2) / 0.5)
    assert cell.normalized.low == near((low - 0.2) / 0.5)
    assert cell.normalized.high == near((high - 0.2) / 0.5)


def test_a_perfect_record_is_no_certainty():
    cells = ((GRID, 1), (GRID, 2), (ARMS, 1))
    played = [episode(i, env_id=e, level=n) for e, n in cells for i in range(4)]
    found = summarise(config(*cells), played)
    assert found.score.mean == 1.0
    assert found.score.low < 0.9
    assert found.envs[GRID].success.low < 0.9


def test_equal_pay_is_no_certainty_either():
    played = [
        episode(i, None, **{"return": 2.0, "floor": 1.0, "ceiling": 2.0})
        for i in range(8)
    ]
    found = summarise(config((GRID, 1), seeds=8), played).cells[f"{GRID}:1"]
    share = wilson(0.0, 8)[1]
    assert found.episode_return.low == near(2 - share)
    assert (found.normalized.low, found.normalized.high) == (near(1 - share), 1.0)


def test_repeats_of_an_instance_are_one_cluster():
    played = [
        episode(seed, seed < 3, rep=rep, instance="ab" if seed < 3 else "cd")
        for seed in range(6)
        for rep in range(2)
    ]
    cell = summarise(config((GRID, 1), seeds=6, repeats=2), played).cells[f"{GRID}:1"]
    # Two clusters of six that never vary: deff is 2 * 11 / 2 = 11.
    low, high = wilson(0.5, 12 / 11)
    assert (cell.success.low, cell.success.high) == (near(low), near(high))


def test_where_a_level_has_few_instances_the_seeds_are_the_clusters(monkeypatch):
    played = [episode(i, i < 3, env_id=CELL, instance="ab") for i in range(6)]
    asked = config((CELL, 1), seeds=6)
    assert summarise(asked, played).score.low == near(wilson(0.5, 1)[0])
    few = dataclasses.replace(Corridor.levels[1], split_exempt=True)
    monkeypatch.setitem(Corridor.levels, 1, few)
    assert summarise(asked, played).score.low == near(wilson(0.5, 6)[0])
    # A preset takes the level's place.
    asked = config((CELL, 1), seeds=6, env_args={"preset": "strict"})
    assert summarise(asked, played).score.low == near(wilson(0.5, 1)[0])


def test_an_environment_takes_success_from_the_cells_that_have_it():
    played = [episode(i, i < 1) for i in range(4)]
    played += [episode(i, None, level=2, **{"return": i / 4}) for i in range(4)]
    found = summarise(config((GRID, 1), (GRID, 2)), played)
    assert found.envs[GRID].success == found.cells[f"{GRID}:1"].success
    assert found.cells[f"{GRID}:2"].success.n == 0
    assert found.envs[GRID].normalized.mean == near((0.25 + 0.375) / 2)


def test_efficiency_looks_at_solved_episodes_alone():
    played = [
        episode(0, True, turns=(turn(2), turn(2)), optimal_cost=2),
        episode(1, True, turns=(turn(4),), optimal_cost=4),
        episode(2, False, turns=(turn(1),)),
        episode(3, True, optimal_cost=None),
    ]
    found = summarise(config((GRID, 1)), played)
    assert found.cells[f"{GRID}:1"].efficiency == 0.75
    assert found.envs[GRID].efficiency == 0.75
    without = [episode(i, True, optimal_cost=None) for i in range(4)]
    assert summarise(config((GRID, 1)), without).envs[GRID].efficiency is None


def test_turns_actions_parses_and_tokens_are_counted():
    played = [
        episode(0, turns=(turn(2, tokens=3), turn(0, "empty", 4), turn(1, tokens=5))),
        episode(1, turns=(turn(3, "too_many", 8),)),
    ]
    found = summarise(config((GRID, 1), seeds=2), played)
    for cell in (found.cells[f"{GRID}:1"], found.envs[GRID]):
        assert cell.parses == {"empty": 1, "ok": 2, "too_many": 1}
        assert (cell.invalid_rate, cell.turns, cell.actions) == (0.5, 2.0, 3.0)
        assert cell.tokens == 10.0
    assert (found.input_tokens, found.output_tokens) == (400, 20)


def test_tokens_are_unknown_if_a_part_of_them_is():
    played = [episode(0), episode(1, turns=(turn(), turn(tokens=None)))]
    found = summarise(config((GRID, 1), seeds=2), played)
    assert found.cells[f"{GRID}:1"].tokens is None
    assert (found.input_tokens, found.output_tokens) == (300, None)


def test_buckets_and_owed_add_up_to_what_was_planned():
    rng = random.Random(5)
    for _ in range(30):
        asked = config((GRID, 1), (ARMS, 1), seeds=rng.randint(1, 12), repeats=2)
        played = [
            episode(
                key.seed,
                outcome == "solved",
                env_id=key.env_id,
                rep=key.rep,
                outcome=outcome,
            )
            for key in asked.keys()
            if (outcome := rng.choice([*OUTCOMES, None])) is not None
        ]
        found = summarise(asked, played)
        assert sum(found.outcomes.values()) + found.owed == found.planned
        assert found.planned == len(asked.keys())
        assert tuple(found.outcomes) == OUTCOMES
        assert found.complete == (found.owed == 0)
        for cell in found.cells.values():
            assert sum(cell.outcomes.values()) == cell.episodes


def test_a_run_that_has_not_begun_has_no_numbers():
    found = summarise(config((GRID, 1), (ARMS, 1)), [])
    assert (found.planned, found.owed, found.complete) == (8, 8, False)
    assert found.score.mean is None
    assert found.cells[f"{GRID}:1"].turns is None
    assert json.loads(found.model_dump_json())["envs"][GRID]["floor"] is None


def test_a_mean_over_cells_waits_for_every_cell():
    found = summarise(config((GRID, 1), (GRID, 2)), [episode(0)])
    assert found.cells[f"{GRID}:1"].normalized.mean == 1.0
    assert found.envs[GRID].normalized.mean is None
    assert found.envs[GRID].success.mean is None
    assert found.envs[GRID].ceiling is None
    assert found.score.mean is None


def test_a_complete_board_run_is_ranked():
    found = summarise(config((GRID, 1)), [episode(i) for i in range(4)])
    assert found.rankable
    assert found.unrankable_because == ()


def test_reasons_against_ranking_are_told():
    found = summarise(config((GRID, 1), board=None), [episode(0), episode(1)])
    assert found.unrankable_because == ("no board", "2 of 4 episodes owed")
    assert not found.rankable


@pytest.mark.parametrize(("faults", "rankable"), [(1, True), (2, False)])
def test_more_than_one_percent_of_faults_cannot_be_ranked(faults, rankable):
    played = [lost(i, "timeout") for i in range(faults)]
    played += [episode(i) for i in range(faults, 100)]
    found = summarise(config((GRID, 1), seeds=100), played)
    assert found.complete
    assert found.rankable == rankable
    if not rankable:
        assert found.unrankable_because == (
            "2 % of episodes were nobody's play (provider_error, timeout); "
            "at most 1 % may be",
        )


@pytest.mark.parametrize(("faults", "rankable"), [(1, True), (2, False)])
def test_faults_cannot_gather_in_one_cell(faults, rankable):
    """What may be lost of a run must not be chosen from its worst cell."""
    played = [lost(i, "timeout", env_id=ARMS) for i in range(faults)]
    played += [episode(i, env_id=ARMS) for i in range(faults, 100)]
    played += [episode(i) for i in range(100)]
    found = summarise(config((GRID, 1), (ARMS, 1), seeds=100), played)
    assert found.rankable == rankable
    if not rankable:
        assert found.unrankable_because == (
            "2 % of ns/Arms-v0:1 were nobody's play (provider_error, timeout); "
            "at most 1 % may be",
        )


def test_a_cell_without_room_between_floor_and_ceiling_has_no_score():
    played = [episode(i, None, floor=1.0, **{"return": 1.0}) for i in range(4)]
    found = summarise(config((GRID, 1)), played)
    assert found.score.mean is None
    assert not found.rankable
    assert "no score" in found.unrankable_because[0]


@pytest.mark.parametrize(
    "stray",
    [
        {"seed": 9},
        {"rep": 1},
        {"level": 2},
        {"split": "train"},
        {"env_id": "ns/Other-v0"},
        {},
    ],
)
def test_an_episode_that_is_not_owed_is_refused(stray):
    again = episode(**{"seed": 0, **stray})
    with pytest.raises(RecordError, match="not planned by this run or comes twice"):
        summarise(config((GRID, 1)), [episode(0), again])


def mixed_run() -> tuple[RunConfig, list[Episode]]:
    asked = config((GRID, 1), (ARMS, 1), seeds=12, repeats=2)
    rng = random.Random(2)
    played = [
        episode(
            key.seed,
            None if key.env_id == ARMS else rng.random() < 0.4,
            env_id=key.env_id,
            rep=key.rep,
            floor=rng.random() / 3,
            **({"return": rng.random()} if key.env_id == ARMS else {}),
        )
        for key in asked.keys()
    ]
    return asked, played


def test_the_order_of_episodes_changes_no_byte():
    asked, played = mixed_run()
    first = summarise(asked, played).model_dump_json()
    random.Random(3).shuffle(played)
    assert summarise(asked, played).model_dump_json() == first


def test_a_summary_holds_no_clock_and_keeps_its_place_in_json():
    asked, played = mixed_run()
    found = summarise(asked, played)
    text = found.model_dump_json()
    assert parse_record(Summary, text, "here") == found
    assert "latency" not in text and "started" not in text
    assert list(found.cells) == sorted(found.cells)


def test_a_folder_scores_as_its_episodes_do(tmp_path: Path):
    asked, played = mixed_run()
    record = RunRecord(
        config=asked,
        versions={},
        commit=None,
        model_facts={},
        prompt_sha256={},
        started="2030-01-01T00:00:00+00:00",
    )
    with RunFolder(tmp_path, record) as folder:
        for item in played[:20]:
            folder.append(item)
    with open(tmp_path / "episodes.jsonl", "ab") as file:
        file.write(played[20].model_dump_json().encode()[:99])
    found = score(str(tmp_path))
    assert found == summarise(asked, played[:20])
    assert found.owed == len(played) - 20


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(RecordError, match="no run folder"):
        score(tmp_path)


def test_pass_at_k_and_pass_hat_k_by_hand():
    # Of the 10 pairs among 5 tries of which 2 succeed, 3 hold no success and 1 two.
    assert pass_at_k(5, 2, 2) == near(7 / 10)
    assert pass_hat_k(5, 2, 2) == near(1 / 10)
    assert pass_at_k(4, 1, 1) == pass_hat_k(4, 1, 1) == 0.25
    assert pass_at_k(3, 2, 2) == 1.0
    assert pass_hat_k(3, 1, 2) == 0.0
    assert pass_at_k(3, 0, 3) == 0.0


def test_pass_at_k_is_unbiased():
    p, n, k, rng = 0.3, 6, 3, random.Random(1)
    hits = [sum(rng.random() < p for _ in range(n)) for _ in range(20_000)]
    at = sum(pass_at_k(n, c, k) for c in hits) / len(hits)
    hat = sum(pass_hat_k(n, c, k) for c in hits) / len(hits)
    assert at == pytest.approx(1 - 0.7**3, abs=0.006)
    assert hat == pytest.approx(0.3**3, abs=0.002)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be(n, c, k):
    for metric in (pass_at_k, pass_hat_k):
        with pytest.raises(InvalidSpec, match="must lie from"):
            metric(n, c, k)


def test_numbers_that_json_lacks_never_reach_a_summary():
    with pytest.raises(ValidationError):
        episode(0, None, **{"return": float("nan")})
