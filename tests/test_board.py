"""Boards are frozen: the same episodes for everyone, none of them twice."""

import importlib
import json
import os
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
from toy import CELL

import ragen_bench as rb
from ragen_bench.board import Board, BoardCell, load, names
from ragen_bench.errors import GenerationError, InvalidSpec, UnknownName
from ragen_bench.freezing import freeze, to_toml
from ragen_bench.records import RunConfig

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "tests" / "golden" / "standard_board.json"
FULL = os.environ.get("RAGEN_SWEEP") == "full"


def board(*cells: BoardCell, **facts) -> Board:
    cells = cells or (BoardCell(env_id=CELL, level=1, seeds=3),)
    return Board(**{"name": "mine", "title": "Mine", "cells": cells, **facts})


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


HEAD = 'name = "mine"\ntitle = "Mine"\n'
ONE = '[[cells]]\nenv_id = "toy/Corridor-v0"\nlevel = 1\nseeds = 2\n'


def digests(cell: BoardCell, where: Board, count: int) -> list[str]:
    """Return the digests of a cell's first instances."""
    env = rb.make(cell.env_id, level=cell.level, split=where.split, **where.env_args)
    found = []
    for seed in cell.plan().seeds[:count]:
        env.reset(seed=seed)
        found.append(env.core.instance_digest())
    return found


def test_the_shipped_boards_are_these():
    assert names() == ("lite", "ragen-v1", "smoke", "standard")


@pytest.mark.parametrize(
    ("name", "levels", "seeds"),
    [("smoke", 2, 8), ("lite", 3, 64), ("standard", 5, 256), ("ragen-v1", 1, 256)],
)
def test_a_shipped_board_plays_its_cells_on_the_test_split(name, levels, seeds):
    found = load(name)
    assert (found.name, found.split, found.repeats) == (name, "test", 1)
    assert [(plan.env_id, plan.level) for plan in found.plans()] == [
        (f"ragen/{task}-v0", level)
        for task in ("Bandit", "FrozenLake", "Sokoban")
        for level in range(1, levels + 1)
    ]
    assert {len(set(plan.seeds)) for plan in found.plans()} == {seeds}
    preset = {"preset": "ragen-v1"} if name == "ragen-v1" else {}
    assert found.env_args == preset


@pytest.mark.parametrize("name", names())
def test_a_shipped_board_stands_as_it_is_written(name):
    file = importlib.resources.files("ragen_bench.leaderboards") / f"{name}.toml"
    assert file.read_text(encoding="utf-8") == to_toml(load(name))


@pytest.mark.parametrize(
    "name",
    [
        "smoke",
        "lite",
        "ragen-v1",
        pytest.param(
            "standard",
            marks=pytest.mark.skipif(not FULL, reason="RAGEN_SWEEP=full is not set"),
        ),
    ],
)
def test_generators_still_give_a_boards_instances(name):
    assert freeze(load(name)) == load(name)


def test_generators_still_give_a_sample_of_the_largest_board():
    # After a change on purpose: freeze_board.py, a new version, and this file anew.
    found = load("standard")
    sample = {cell.plan().cell: digests(cell, found, 3) for cell in found.cells}
    assert sample == json.loads(SAMPLE.read_text(encoding="ascii"))


def test_no_instance_is_twice_on_the_sampled_board():
    found = load("lite")
    for task in ("Bandit", "FrozenLake", "Sokoban"):
        seen = Counter(
            digest
            for cell in found.cells
            if task in cell.env_id and (task, cell.level) != ("Bandit", 1)
            for digest in digests(cell, found, 64)
        )
        assert max(seen.values()) == 1


def test_a_cell_plays_the_first_seeds_that_are_not_skipped():
    cell = BoardCell(env_id=CELL, level=2, seeds=4, skip=(0, 2, 9))
    assert cell.plan().seeds == (1, 3, 4, 5)
    assert board(cell).plans()[0].cell == "toy/Corridor-v0:2"


def test_freezing_skips_repeats_within_an_environment():
    plain = board(
        BoardCell(env_id=CELL, level=1, seeds=60, skip=(3,)),
        BoardCell(env_id=CELL, level=2, seeds=60),
    )
    frozen = freeze(plain)
    first, second = frozen.cells
    assert first.skip and second.skip
    shown = [digests(cell, frozen, 60) for cell in frozen.cells]
    assert len({*shown[0], *shown[1]}) == 120
    env = rb.make(CELL, level=1, split="test")
    env.reset(seed=first.skip[0])
    earlier = [seed for seed in first.plan().seeds if seed < first.skip[0]]
    assert env.core.instance_digest() in shown[0][: len(earlier)]
    assert freeze(frozen) == frozen


def test_the_digest_stands_for_cell_split_seed_and_instance():
    seen = {freeze(board()).digest}
    for other in (
        board(BoardCell(env_id=CELL, level=2, seeds=3)),
        board(BoardCell(env_id=CELL, level=1, seeds=4)),
        board(split="dev"),
    ):
        assert len(freeze(other).digest) == 64
        seen.add(freeze(other).digest)
    assert len(seen) == 4
    assert freeze(board(title="Other", version=2)).digest in seen


def test_freezing_gives_up_on_a_cell_with_too_few_instances():
    with pytest.raises(GenerationError, match="has only .* different instances"):
        freeze(board(BoardCell(env_id=CELL, level=1, seeds=5000)))


def test_a_level_with_the_same_few_instances_skips_none():
    cell = BoardCell(env_id="ragen/Bandit-v0", level=1, seeds=100)
    assert freeze(board(cell)).cells[0].skip == ()


def test_a_board_may_lie_anywhere(tmp_path):
    path = written(tmp_path, HEAD + ONE)
    found = load(path)
    assert load(Path(path)) == found
    assert (found.version, found.split, found.digest) == (1, "test", "")
    assert found.plans()[0].seeds == (0, 1)


def test_to_toml_writes_what_load_reads(tmp_path):
    plain = board(
        BoardCell(env_id=CELL, level=1, seeds=300, skip=tuple(range(2, 400, 3))),
        title='Quotes " and \\ and umlaut \u00e4',
        env_args={"style": "grid", "symbols": {"a b": "#"}, "strict": True, "x": [1]},
        rules={"prompts": ["compact"], "max_shots": 0, "classes": ["llm"]},
    )
    text = to_toml(plain)
    assert load(written(tmp_path, text)) == plain
    assert max(map(len, text.splitlines())) <= 88


def test_unknown_names_are_met_with_a_suggestion(tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'smoke'"):
        load("smok")
    with pytest.raises(UnknownName, match="cannot be read"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (HEAD + "repeat = 2\n" + ONE, "repeat'; did you mean 'repeats'"),
        (HEAD + ONE + "sedes = 3\n", "sedes'; did you mean 'seeds'"),
        (HEAD + "[rules]\nmax_shot = 1\n" + ONE, "max_shot'; did you mean 'max_shots'"),
    ],
)
def test_an_unknown_key_is_met_with_a_suggestion(tmp_path, text, hint):
    with pytest.raises(UnknownName, match=hint) as caught:
        load(written(tmp_path, text))
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("name = ", "is not TOML"),
        (HEAD, "cells is missing"),
        ("cells = []\n" + HEAD, "cells"),
        (HEAD + ONE + ONE, "cell toy/Corridor-v0:1 stands there twice"),
        (HEAD + ONE + "skip = [2, 1]\n", "ascending"),
        (
            HEAD + ONE.replace("seeds = 2", "seeds = 0"),
            "cells.0.seeds is 0: input should",
        ),
        (HEAD + 'split = "tset"\n' + ONE, "split"),
        (HEAD + "schema = 9\n" + ONE, "schema is 9"),
        (HEAD.replace("mine", "Not a name") + ONE, "name"),
        (HEAD + 'digest = "abc"\n' + ONE, "digest"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_by_name(tmp_path, text, hint):
    with pytest.raises(InvalidSpec, match=hint) as caught:
        load(written(tmp_path, text))
    assert "mine.toml" in str(caught.value)


def played(where: Board, **changed) -> RunConfig:
    known = {
        "board": where.name,
        "board_version": where.version,
        "split": where.split,
        "cells": where.plans(),
        "repeats": where.repeats,
        "agent": "direct",
        "env_args": where.env_args,
    }
    return RunConfig(**{**known, **changed})


STRICT = board(rules={"prompts": ["full"], "max_shots": 2, "classes": ["llm"]})


def test_a_run_of_the_board_breaches_nothing():
    assert STRICT.breaches(played(STRICT, shots=2)) == ()


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        ({"board": "other"}, "board is 'other', but must be 'mine'"),
        ({"board_version": 2}, "board version is 2, but must be 1"),
        ({"split": "train"}, "split is 'train', but must be 'test'"),
        ({"repeats": 2}, "repeats is 2, but must be 1"),
        ({"env_args": {"strict": True}}, "env_args is {'strict': True}"),
        ({"cells": board(BoardCell(env_id=CELL, level=1, seeds=2)).plans()}, "seeds"),
        ({"prompt": "compact"}, "prompt is 'compact', but must be full"),
        ({"salt": "x"}, "a salt moves the noise, but a board's noise is fixed"),
        ({"sealed": "0" * 64}, f"sealed is '{'0' * 64}', but must be None"),
        ({"shots": 3}, "shots is 3, but may be at most 2"),
        ({"agent_class": "human"}, "class is 'human', but must be llm"),
    ],
)
def test_a_run_that_is_not_the_boards_is_told_why(changed, hint):
    (breach,) = STRICT.breaches(played(STRICT, **changed))
    assert hint in breach


def test_the_script_writes_and_checks_files(tmp_path, monkeypatch, capsys):
    script = runpy.run_path(str(ROOT / "scripts" / "freeze_board.py"))
    path = written(tmp_path, HEAD + ONE)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["freeze_board.py", *arguments])
        return script["main"](), capsys.readouterr().out

    assert call("--check", path)[0] == 1
    assert load(path).digest == ""
    code, said = call(path)
    assert (code, "written" in said) == (0, True)
    assert load(path) == freeze(load(path))
    code, said = call("--check", path)
    assert (code, "unchanged" in said) == (0, True)
    longer = Path(path).read_text(encoding="utf-8").replace("seeds = 2", "seeds = 3")
    assert "raise the version" in call(written(tmp_path, longer))[1]
