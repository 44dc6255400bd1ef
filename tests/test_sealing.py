"""Sealed seeds: promised by a commitment, unknown until the salt is told."""

import hashlib
import hmac
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from toy import CELL

import ragen_bench as rb
from ragen_bench import sealing
from ragen_bench.board import (
    Board,
    BoardCell,
    Seal,
    commitment_of,
    load,
)
from ragen_bench.cli import cli
from ragen_bench.errors import GenerationError, InvalidSpec
from ragen_bench.freezing import freeze, to_toml
from ragen_bench.records import RunConfig
from ragen_bench.run_folder import read_episodes, read_run
from ragen_bench.sealing import sealed_plans

SALT = "0123456789abcdef" * 4
OTHER = "f" * 64


def board(*cells: BoardCell, **facts) -> Board:
    cells = cells or (
        BoardCell(env_id=CELL, level=1, seeds=4),
        BoardCell(env_id=CELL, level=2, seeds=3),
    )
    return freeze(Board(**{"name": "mine", "title": "Mine", "cells": cells, **facts}))


def sealed(held: Board, salt: str = SALT, **facts) -> Board:
    made = Seal(commitment=commitment_of(salt, held.digest), **facts)
    return held.model_copy(update={"seal": made})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.fixture
def file(here: Path) -> Path:
    path = here / "mine.toml"
    path.write_text(to_toml(board()), encoding="utf-8")
    return path


@pytest.fixture
def salt_file(here: Path) -> Path:
    path = here / "salt"
    path.write_text(f"{SALT}\n", encoding="ascii")
    return path


def invoke(*words: object) -> Result:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refusal(*words: object) -> str:
    result = invoke(*words)
    assert result.exit_code == 2
    return result.stderr


# Seeds --------------------------------------------------------------------------


def test_the_commitment_is_a_hash_that_anyone_can_compute():
    wanted = hashlib.sha256(f"{SALT}\n{'a' * 64}".encode()).hexdigest()
    assert commitment_of(SALT, "a" * 64) == wanted


def test_seeds_are_those_of_the_written_rule():
    (first, second) = sealed_plans(sealed(board()), SALT)
    wanted = set()
    for index in range(4):
        message = f"mine:1:{CELL}:1:{index}".encode()
        digest = hmac.new(SALT.encode(), message, hashlib.sha256).digest()
        wanted.add(int.from_bytes(digest, "big") % 2**48)
    assert first.seeds == tuple(sorted(wanted))
    assert (first.cell, second.cell) == (f"{CELL}:1", f"{CELL}:2")
    assert len(second.seeds) == 3
    assert not set(first.seeds) & set(second.seeds)


def test_another_salt_version_or_cell_has_other_seeds():
    seeds = {
        plan.seeds
        for salt in (SALT, OTHER)
        for version in (1, 2)
        for plan in sealed_plans(sealed(board(version=version), salt), salt)
    }
    assert len(seeds) == 8


def test_the_seal_may_ask_for_another_number_of_seeds():
    plans = sealed_plans(sealed(board(), seeds=2), SALT)
    assert [len(plan.seeds) for plan in plans] == [2, 2]


def test_no_instance_comes_twice_on_the_sealed_list():
    # Small lakes repeat often: the open list of the standard board skips a third.
    held = board(BoardCell(env_id="ragen/FrozenLake-v0", level=1, seeds=60))
    (plan,) = sealed_plans(sealed(held), SALT)
    core = rb.make("ragen/FrozenLake-v0", level=1, split="test").core
    digests = set()
    for seed in plan.seeds:
        core.reset(seed=seed)
        digests.add(core.instance_digest())
    assert len(digests) == len(set(plan.seeds)) == 60
    unskipped = set()
    for index in range(60):
        message = f"mine:1:{plan.cell}:{index}".encode()
        digest = hmac.digest(SALT.encode(), message, hashlib.sha256)
        unskipped.add(int.from_bytes(digest, "big") % 2**48)
    assert unskipped != set(plan.seeds)


def test_instances_of_an_exempt_cell_may_repeat():
    held = board(BoardCell(env_id="ragen/Bandit-v0", level=1, seeds=40))
    (plan,) = sealed_plans(sealed(held), SALT)
    assert len(set(plan.seeds)) == 40


def test_a_cell_without_enough_instances_is_refused():
    held = board(BoardCell(env_id="ragen/Bandit-v0", level=2, seeds=8))
    with pytest.raises(GenerationError, match="different instances"):
        sealed_plans(sealed(held, seeds=100_000), SALT)


def test_a_salt_that_does_not_match_opens_nothing():
    with pytest.raises(InvalidSpec, match="the salt does not open the seal") as raised:
        sealed_plans(sealed(board()), OTHER)
    assert OTHER not in str(raised.value)


def test_a_board_without_a_seal_has_no_sealed_seeds():
    with pytest.raises(InvalidSpec, match="board 'mine' has no seal"):
        sealed_plans(board(), SALT)


def test_freezing_drops_a_seal_with_the_digest_that_it_was_made_for():
    held = sealed(board())
    assert freeze(held) == held
    cells = (BoardCell(env_id=CELL, level=1, seeds=5),)
    assert freeze(held.model_copy(update={"cells": cells})).seal is None


# Files --------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [{}, {"seeds": 7}, {"salt": SALT}])
def test_a_sealed_board_reads_back_as_it_was_written(here: Path, facts):
    held = sealed(board(), **facts)
    path = here / "sealed.toml"
    path.write_text(to_toml(held), encoding="utf-8")
    assert load(path) == held


def test_a_revealed_salt_must_belong_to_its_commitment(file: Path):
    wrong = sealed(board()).model_dump(mode="json", exclude_none=True)
    text = to_toml(sealed(board())) + ""
    assert wrong["seal"]["commitment"] in text
    file.write_text(
        text.replace("[seal]", f'[seal]\nsalt = "{OTHER}"'), encoding="utf-8"
    )
    with pytest.raises(InvalidSpec, match="does not belong to seal.commitment"):
        load(file)


@pytest.mark.parametrize(
    "line", ['commitment = "xyz"', f'commitment = "{"0" * 64}"\nseeds = 0', "seeds = 3"]
)
def test_a_seal_that_breaks_a_rule_is_refused(file: Path, line: str):
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("[[cells]]", f"[seal]\n{line}\n\n[[cells]]", 1))
    with pytest.raises(InvalidSpec, match="seal"):
        load(file)


def test_an_unknown_key_of_a_seal_is_refused_with_a_suggestion(file: Path):
    text = to_toml(sealed(board())).replace("[seal]", "[seal]\nseed = 3")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(LookupError, match="no key .* 'seed'; did you mean 'seeds'"):
        load(file)


def test_sealing_makes_a_secret_salt_and_writes_the_commitment_alone(
    here: Path, file: Path
):
    result = invoke("board", "seal", file, "--salt-file", "new.salt")
    assert result.exit_code == 0
    salt = (here / "new.salt").read_text(encoding="ascii").strip()
    assert len(bytes.fromhex(salt)) == 32
    assert stat.S_IMODE(os.stat(here / "new.salt").st_mode) == 0o600
    held = load(file)
    assert held.seal == Seal(commitment=commitment_of(salt, held.digest))
    assert salt not in file.read_text(encoding="utf-8") + result.output
    assert held.seal.commitment in result.stdout
    assert not list(here.glob(".*part*"))


def test_sealing_takes_a_salt_and_a_number_of_seeds(file: Path, salt_file: Path):
    invoke("board", "seal", file, "--salt-file", salt_file, "--seeds", "9")
    assert load(file).seal == Seal(
        commitment=commitment_of(SALT, board().digest), seeds=9
    )


def test_sealing_is_refused_twice_or_without_a_digest(file: Path, salt_file: Path):
    unfrozen = board().model_copy(update={"digest": ""})
    file.write_text(to_toml(unfrozen), encoding="utf-8")
    assert "freeze it first" in refusal("board", "seal", file, "--salt-file", salt_file)
    file.write_text(to_toml(sealed(board())), encoding="utf-8")
    assert "is sealed already" in refusal(
        "board", "seal", file, "--salt-file", salt_file
    )


@pytest.mark.parametrize("text", ["short", f"{SALT}\n{SALT}", "\u00e9" * 40, ""])
def test_a_file_without_a_salt_is_refused_and_not_shown(file: Path, here: Path, text):
    (here / "bad").write_text(text, encoding="utf-8")
    said = refusal("board", "seal", file, "--salt-file", "bad")
    assert "must hold one line of 32 to 200 visible ASCII" in said
    assert not text or text.split("\n")[0] not in said


def test_seal_refuses_a_number_of_seeds_below_one(file: Path, salt_file: Path):
    words = ("board", "seal", file, "--salt-file", salt_file, "--seeds", "0")
    assert "--seeds is 0, but must be at least 1" in refusal(*words)


def test_revealing_checks_the_salt_and_writes_it(file: Path, here: Path, salt_file):
    invoke("board", "seal", file, "--salt-file", salt_file)
    (here / "wrong").write_text(OTHER, encoding="ascii")
    before = file.read_bytes()
    said = refusal("board", "reveal", file, "--salt-file", "wrong")
    assert "does not open the seal of board 'mine'" in said and OTHER not in said
    assert file.read_bytes() == before
    assert invoke("board", "reveal", file, "--salt-file", salt_file).exit_code == 0
    assert load(file).seal.salt == SALT


def test_revealing_needs_a_seal_and_a_file(file: Path, salt_file: Path):
    said = refusal("board", "reveal", file, "--salt-file", salt_file)
    assert "board 'mine' has no seal" in said
    said = refusal("board", "reveal", file, "--salt-file", "missing")
    file.write_text(to_toml(sealed(board())), encoding="utf-8")
    said = refusal("board", "reveal", file, "--salt-file", "missing")
    assert "'missing' cannot be read" in said
    assert "board file 'nowhere.toml' cannot be read" in refusal(
        "board", "reveal", "nowhere.toml", "--salt-file", salt_file
    )


# Runs ---------------------------------------------------------------------------


def play(*more: object) -> Result:
    words = ("run", "--import", "toy", "--board", "mine.toml", "--agent", "toy:Walker")
    return invoke(*words, "--out", "walk", *more)


def everything(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("words", [("--salt", SALT), (f"--salt={SALT}",)])
def test_a_salt_plays_the_sealed_seeds_and_stands_nowhere(file: Path, here, words):
    held = sealed(board())
    file.write_text(to_toml(held), encoding="utf-8")
    result = play(*words)
    assert result.exit_code == 0, result.output
    run = read_run(here / "walk")
    assert run.config.sealed == held.seal.commitment
    assert run.config.cells == sealed_plans(held, SALT)
    assert (run.config.salt, run.config.breaches) == ("", ())
    seeds = {episode.seed for episode in read_episodes(here / "walk")}
    assert seeds == {seed for plan in run.config.cells for seed in plan.seeds}
    assert "[salt]" in run.command
    assert SALT not in everything(here / "walk") + result.output


def test_a_salt_may_come_from_a_file(file: Path, here: Path, salt_file: Path):
    file.write_text(to_toml(sealed(board())), encoding="utf-8")
    result = play("--salt", "@salt")
    assert result.exit_code == 0
    run = read_run(here / "walk")
    assert run.config.sealed is not None
    assert run.command.endswith("--salt @salt")
    again = play("--salt", SALT)
    assert again.exit_code == 0 and "nothing to play" in again.stderr


def test_a_dry_run_on_sealed_seeds_shows_no_salt(file: Path):
    file.write_text(to_toml(sealed(board())), encoding="utf-8")
    result = play("--salt", SALT, "--dry-run")
    assert result.exit_code == 0 and SALT not in result.output


def test_a_wrong_salt_is_refused_and_nothing_is_written(file: Path, here: Path):
    file.write_text(to_toml(sealed(board())), encoding="utf-8")
    result = play("--salt", OTHER)
    assert result.exit_code == 2
    assert "does not open the seal of board 'mine'" in result.stderr
    assert OTHER not in result.output
    assert not (here / "walk").exists()


def test_without_a_salt_a_sealed_board_plays_its_open_seeds(file: Path, here: Path):
    file.write_text(to_toml(sealed(board())), encoding="utf-8")
    assert play().exit_code == 0
    config = read_run(here / "walk").config
    assert (config.sealed, config.cells) == (None, board().plans())


def test_a_salt_on_a_board_without_a_seal_is_refused_and_not_shown(file: Path, here):
    for more in ((), ("--dry-run",)):
        result = play("--salt", "kinder noise", *more)
        assert result.exit_code == 2
        assert "board 'mine' has no seal" in result.stderr
        assert "kinder" not in result.output
    assert not (here / "walk").exists()


def test_sealed_cells_are_compared_where_the_salt_is_known():
    held = sealed(board())
    plans = sealed_plans(held, SALT)
    facts = {
        "board": "mine",
        "board_version": 1,
        "agent": "random",
        "sealed": held.seal.commitment,
    }
    right = RunConfig(cells=plans, **facts)
    assert held.breaches(right) == held.breaches(right, plans) == ()
    wrong = RunConfig(cells=held.plans(), **facts)
    assert held.breaches(wrong, plans) == ("cells or seeds are not those of the board",)
    foreign = right.model_copy(update={"sealed": "0" * 64})
    (breach,) = held.breaches(foreign, plans)
    assert breach.startswith(f"sealed is '{'0' * 64}', but must be")


def test_sealed_seeds_are_exact_in_any_json_reader():
    (plan, _) = sealed_plans(sealed(board()), SALT)
    assert max(plan.seeds) < sealing.SEEDS < 2**53
    assert json.loads(json.dumps(plan.seeds)) == list(plan.seeds)
