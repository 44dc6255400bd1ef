"""Shipped instances and values are those that are drawn and solved."""

import json

import pytest

from ragen_bench import instance_bank
from ragen_bench.board import Board, BoardCell, Instance, load
from ragen_bench.episode import reference
from ragen_bench.freezing import freeze
from ragen_bench.records import sha256_of
from ragen_bench.registry import make

BOARD = load("standard")
BANK = instance_bank.bank(BOARD)
STEP = 61
"""Every so manieth row of a cell is solved anew."""


def env_of(cell: BoardCell):
    return make(cell.env_id, level=cell.level, split=BOARD.split, **BOARD.env_args)


def test_the_bank_holds_the_board_and_no_more() -> None:
    wanted = {(plan.cell, seed) for plan in BOARD.plans() for seed in plan.seeds}
    assert BANK.keys() == wanted


def test_its_instances_are_those_that_the_board_was_frozen_on() -> None:
    listed = []
    for cell in BOARD.cells:
        env = env_of(cell)
        plan = cell.plan()
        for seed in plan.seeds:
            known = BANK[plan.cell, seed]
            env.core.instance = known.instance
            digest = env.core.instance_digest()
            assert digest == known.reference.instance
            listed.append(Instance(plan.cell, BOARD.split, seed, digest))
    assert sha256_of(listed) == BOARD.digest


@pytest.mark.parametrize("cell", BOARD.cells, ids=lambda cell: cell.plan().cell)
def test_rows_are_what_is_drawn_and_solved_anew(cell: BoardCell) -> None:
    env, plan = env_of(cell), cell.plan()
    for seed in plan.seeds[::STEP]:
        known = BANK[plan.cell, seed]
        drawn, _ = env.reset(seed=seed, options={"rep": 1})
        assert env.core.instance == known.instance
        assert reference(env) == known.reference
        given, _ = env.reset(seed=seed, options={"rep": 1, "instance": known.instance})
        assert given == drawn


def test_the_noise_is_that_of_a_drawn_instance() -> None:
    name = "ragen/FrozenLake-v0:1"
    env = make("ragen/FrozenLake-v0", level=1, split="test", slip=1 / 3)
    for seed in (0, 1, 2):
        seen = []
        for more in ({}, {"instance": BANK[name, seed].instance}):
            env.reset(seed=seed, options={"rep": 3, **more})
            seen.append([env.step("<answer>Right</answer>")[0]])
        assert seen[0] == seen[1]


def test_another_digest_has_no_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    other = BOARD.model_copy(update={"digest": "0" * 64})
    assert instance_bank.bank(other) == {}
    assert instance_bank.bank(BOARD.model_copy(update={"digest": ""})) == {}
    assert instance_bank.bank(load("smoke")) == {}


def test_a_bank_reads_back_and_is_the_same_at_any_time(tmp_path, monkeypatch) -> None:
    cells = (
        BoardCell(env_id="ragen/Bandit-v0", level=3, seeds=3),
        BoardCell(env_id="ragen/Sokoban-v0", level=1, seeds=3),
    )
    board = freeze(Board(schema=1, name="mine", title="Mine", cells=cells))
    packed = instance_bank.to_bytes(board)
    assert packed == instance_bank.to_bytes(board)
    (tmp_path / instance_bank.file_name(board)).write_bytes(packed)
    monkeypatch.setattr(
        instance_bank.importlib.resources, "files", lambda package: tmp_path
    )
    held = instance_bank.bank(board)
    assert len(held) == 6
    for (cell, seed), known in held.items():
        env_id, _, level = cell.rpartition(":")
        env = make(env_id, level=int(level), split="test")
        env.reset(seed=seed)
        assert known == (env.core.instance, reference(env))
        assert json.loads(json.dumps(known.instance)) == known.instance
