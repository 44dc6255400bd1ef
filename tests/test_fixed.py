"""The agent that plays one sequence blindly, and how the sequence is found."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from toy import CELL

import ragen_bench as rb
from ragen_bench.agents import fixed
from ragen_bench.agents.fixed import Fixed, search, sequence
from ragen_bench.board import load, names
from ragen_bench.errors import UnknownName
from ragen_bench.run_folder import read_episodes

ROOT = Path(__file__).parent.parent
FILE = ROOT / "agents" / "fixed_sequences.json"


def solved(env_id: str, count: int) -> tuple[float, float]:
    """Return the success rates of the sequence and of random play on dev instances."""
    core = rb.make(env_id, level=1, split="dev").core
    won = chance = 0.0
    for seed in range(count):
        core.reset(seed=seed)
        chance += core.random_value()
        for action in sequence(env_id, 1):
            *_, terminated, truncated, _ = core.step(action)
            if terminated or truncated:
                break
        won += core.success is True
    return won / count, chance / count


@pytest.mark.parametrize("env_id", ["ragen/Sokoban-v0", "ragen/FrozenLake-v0"])
def test_it_beats_random_play_on_instances_that_it_was_not_chosen_on(env_id: str):
    won, chance = solved(env_id, 300)
    assert won > chance + 0.03


def test_the_search_finds_the_way_of_the_corridor():
    # Four steps to the right solve both of its starts; the walk ends there.
    assert search(CELL, 1, instances=8, beam=4) == (1, 1, 1, 1)


def test_the_search_takes_a_preset_and_its_limits():
    assert len(search(CELL, 1, "strict", instances=8, beam=4)) <= 4


def test_a_wider_beam_is_never_worse_on_its_own_instances():
    def gained(actions: tuple[int, ...]) -> float:
        core = rb.make("ragen/Sokoban-v0", level=1, split="train").core
        total = 0.0
        for seed in range(24):
            core.reset(seed=seed)
            for action in actions:
                _, _, terminated, truncated, info = core.step(action)
                total += info["scored_reward"]
                if terminated or truncated:
                    break
        return total

    narrow = search("ragen/Sokoban-v0", 1, instances=24, beam=1)
    wide = search("ragen/Sokoban-v0", 1, instances=24, beam=24)
    assert gained(wide) >= gained(narrow) > 0


def test_the_shipped_sequences_are_those_that_the_search_finds():
    held = json.loads(FILE.read_text(encoding="ascii"))
    found = search("ragen/Bandit-v0", 1)
    assert "".join(map(str, found)) == held["ragen/Bandit-v0:1"]


def test_every_cell_of_a_shipped_board_has_a_sequence():
    held = json.loads(FILE.read_text(encoding="ascii"))
    for board in map(load, names()):
        for cell in board.cells:
            preset = board.env_args.get("preset")
            actions = held[fixed.cell_name(cell.env_id, cell.level, preset)]
            env = rb.make(cell.env_id, level=cell.level, preset=preset)
            assert 1 <= len(actions) <= env.core.limits.max_actions
            assert set(map(int, actions)) <= set(range(len(env.core.actions)))


def test_replies_hold_the_sequence_a_few_actions_at_a_time(tmp_path: Path):
    env_id = "ragen/Sokoban-v0"
    rb.run(envs=[f"{env_id}:2"], agent="fixed", seeds=2, out=tmp_path / "run")
    env = rb.make(env_id, level=2)
    for episode in read_episodes(tmp_path / "run"):
        played = [action for turn in episode.turns for action in turn.actions]
        wanted = [env.core.actions[action] for action in sequence(env_id, 2)]
        assert played == wanted[: len(played)]
        assert len(played) == 22 or episode.success
        assert all(turn.valid for turn in episode.turns)


def test_it_is_a_solver_that_sees_no_environment():
    assert (Fixed.agent_class, Fixed.privileged) == ("solver", False)


def test_an_unknown_preset_is_refused():
    with pytest.raises(UnknownName, match="no preset 'nope'"):
        sequence("ragen/Sokoban-v0", 1, "nope")


def test_the_script_searches_what_lacks_and_compares(tmp_path, monkeypatch, capsys):
    script = runpy.run_path(str(ROOT / "scripts" / "fixed_sequences.py"))
    path = tmp_path / "made.json"
    held = json.loads(FILE.read_text(encoding="ascii"))
    lacking = held.pop("ragen/Bandit-v0:1")
    path.write_text(json.dumps(held))
    monkeypatch.setitem(script["main"].__globals__, "FILE", path)
    monkeypatch.setattr(sys, "argv", ["fixed_sequences.py"])
    assert script["main"]() == 0
    assert "ragen/Bandit-v0:1: " in capsys.readouterr().out
    assert json.loads(path.read_text()) == {**held, "ragen/Bandit-v0:1": lacking}
    words = ["fixed_sequences.py", "--check", "ragen/Bandit-v0:1"]
    monkeypatch.setattr(sys, "argv", words)
    assert script["main"]() == 0
    path.write_text(json.dumps({**held, "ragen/Bandit-v0:1": "0101"}))
    assert script["main"]() == 1
