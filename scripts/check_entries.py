"""Check every entry of every board; verify again those whose bundles are here.

    python scripts/check_entries.py
    python scripts/check_entries.py lite --entries my/entries

One line is printed for each fault, and the exit code is 1 if there is one.
"""

import argparse
import sys
from pathlib import Path

from ragen_bench.board import load, names
from ragen_bench.entry_checks import check_board

FOLDER = Path(__file__).resolve().parent.parent / "leaderboards" / "entries"


def main() -> int:
    """Return 0, or 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("boards", nargs="*", help="names; all boards by default")
    parser.add_argument("--entries", type=Path, default=FOLDER, help="their folder")
    options = parser.parse_args()
    known = names()
    failed = False
    if not options.boards and options.entries.is_dir():
        for path in sorted(options.entries.iterdir()):
            if path.name not in known:
                print(f"{path.name}: is no board; known are {', '.join(known)}")
                failed = True
    for name in options.boards or known:
        report = check_board(load(name), options.entries / name)
        for fault in report.faults:
            print(f"{name}/{fault}")
        failed |= bool(report.faults)
        print(
            f"{name}: {report.verified} verified, {report.unverified} without a "
            f"bundle, {report.outdated} outdated, {len(report.faults)} faults",
            file=sys.stderr,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
