"""A small board of real cells, and runs of it, for the tests of what is submitted."""

import functools
import shutil
from pathlib import Path

import ragen_bench as rb
from ragen_bench.board import Board, BoardCell, Seal, commitment_of
from ragen_bench.entries import Meta
from ragen_bench.freezing import freeze, to_toml

SALT = "0123456789abcdef" * 4
FACTS = {
    "model": "none",
    "organisation": "The test",
    "licence": "MIT",
    "training_data": "none",
}
META = Meta(name="mine", **FACTS)


@functools.cache
def small(seal: bool = False) -> Board:
    """Return a frozen board of three cells."""
    cells = (
        BoardCell(env_id="ragen/Bandit-v0", level=1, seeds=3),
        BoardCell(env_id="ragen/Sokoban-v0", level=1, seeds=4),
        BoardCell(env_id="ragen/FrozenLake-v0", level=1, seeds=4),
    )
    board = freeze(Board(name="small", title="Small", cells=cells))
    if not seal:
        return board
    made = Seal(commitment=commitment_of(SALT, board.digest))
    return board.model_copy(update={"seal": made})


def board_file(folder: Path, board: Board | None = None) -> Path:
    """Write a board's file and return it."""
    path = folder / "small.toml"
    path.write_text(to_toml(board or small()), encoding="utf-8")
    return path


def play(folder: Path, board: Board | None = None, **settings) -> Path:
    """Play the board into ``folder/run`` and return that."""
    file = board_file(folder, board)
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    rb.run(str(file), out=out, **{"agent": "random", **settings})
    return out
