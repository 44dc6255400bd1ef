"""Fill in the skipped seeds and the digest of boards, and rewrite their files.

    python scripts/freeze_board.py smoke lite standard ragen-v1
    python scripts/freeze_board.py --check standard
    python scripts/freeze_board.py --bank standard

A name stands for the file in ``leaderboards/``.  A board whose digest changes is
another board: raise its version.  ``--bank`` also writes its instances and their exact
values, so that replays need not draw and solve them; it takes a minute.
"""

import argparse
import sys
from pathlib import Path

from ragen_bench import instance_bank
from ragen_bench.board import load
from ragen_bench.freezing import freeze, to_toml
from ragen_bench.wording import counted

FOLDER = Path(__file__).resolve().parent.parent / "leaderboards"


def main() -> int:
    """Return 0, or 1 if ``--check`` finds a board that is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("boards", nargs="+", help="names, or paths of TOML files")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--bank", action="store_true", help="write its instances too")
    options = parser.parse_args()
    stale = 0
    for name in options.boards:
        path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
        held = load(path)
        board = freeze(held)
        same = path.read_text(encoding="utf-8") == to_toml(board)
        state = "unchanged" if same else "differs" if options.check else "written"
        stale += options.check and not same
        if not (same or options.check):
            path.write_text(to_toml(board), encoding="utf-8", newline="\n")
        if options.bank:
            name = instance_bank.file_name(board)
            path.with_name(name).write_bytes(instance_bank.to_bytes(board))
        skipped = sum(len(cell.skip) for cell in board.cells)
        print(
            f"{path.name}: {state}, {counted(skipped, 'seed')} skipped, {board.digest}"
        )
        if held.digest not in ("", board.digest):
            print(f"{path.name}: the digest was {held.digest}; raise the version")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
