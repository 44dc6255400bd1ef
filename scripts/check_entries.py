"""Check every entry of every board; verify again those whose bundles are here.

    python scripts/check_entries.py
    python scripts/check_entries.py lite --entries my/entries
    python scripts/check_entries.py standard --bundles runs --keep

One line is printed for each fault, and the exit code is 1 if there is one.  An entry
whose bundle is too large for the repository is confirmed by a keeper, who has the
bundle: ``--keep`` writes the hashes of confirmed entries into ``kept.json``, and a row
that was changed since then is a fault again.  ``--salt`` is for the keepers of a seal.
"""

import argparse
import json
import sys
from pathlib import Path

from ragen_bench.board import load, names
from ragen_bench.entry_checks import check_board
from ragen_bench.sealing import read_salt
from ragen_bench.submission import sha256_of_file
from ragen_bench.wording import counted

KEPT = "kept.json"
FOLDER = Path(__file__).resolve().parent.parent / "leaderboards" / "entries"


def main() -> int:
    """Return 0, or 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("boards", nargs="*", help="names; all boards by default")
    parser.add_argument("--entries", type=Path, default=FOLDER, help="their folder")
    parser.add_argument("--bundles", type=Path, help="a folder of larger bundles")
    parser.add_argument("--keep", action="store_true", help="record what is confirmed")
    parser.add_argument("--salt", type=Path, help="the file of a seal's salt")
    options = parser.parse_args()
    known = names()
    failed = False
    ledger = options.entries / KEPT
    kept = json.loads(ledger.read_text("utf-8")) if ledger.is_file() else {}
    if not options.boards and options.entries.is_dir():
        for path in sorted(options.entries.iterdir()):
            if path.name not in (*known, KEPT):
                print(f"{path.name}: is no board; known are {', '.join(known)}")
                failed = True
    for name in options.boards or known:
        if name not in known:
            parser.error(f"no board {name!r}; known are {', '.join(known)}")
        report = check_board(
            load(name),
            options.entries / name,
            kept=kept,
            bundles=options.bundles,
            salt=read_salt(options.salt) if options.salt else None,
        )
        if options.keep:
            for path in report.confirmed:
                kept[f"{name}/{path.name}"] = sha256_of_file(path)
        for fault in report.faults:
            print(f"{name}/{fault}")
        failed |= bool(report.faults)
        faults = counted(len(report.faults), "fault")
        print(
            f"{name}: {report.verified} verified, {report.unverified} without a "
            f"bundle, {report.outdated} outdated, {faults}",
            file=sys.stderr,
        )
    if options.keep:
        ledger.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", "utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
