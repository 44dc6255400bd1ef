"""Search the fixed sequences of the cells of shipped boards and write their file.

    python scripts/fixed_sequences.py
    python scripts/fixed_sequences.py ragen/Sokoban-v0:1
    python scripts/fixed_sequences.py --check ragen/Sokoban-v0:1

The file is ``agents/fixed_sequences.json``.  Without names, those that it lacks are
searched; all together take about two minutes of CPU.  Take a key out of the file, or
name it, to search it again.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from ragen_bench.agents.fixed import cell_name, search
from ragen_bench.board import load, names

FILE = Path(__file__).resolve().parent.parent / "agents" / "fixed_sequences.json"


def cells() -> dict[str, tuple[str, int, str | None]]:
    """Return the cells of all shipped boards: key to environment, level, preset."""
    found = {}
    for board in map(load, names()):
        preset = board.env_args.get("preset")
        for cell in board.cells:
            key = cell_name(cell.env_id, cell.level, preset)
            found[key] = (cell.env_id, cell.level, preset)
    return dict(sorted(found.items()))


def main() -> int:
    """Return 0, or 1 if ``--check`` finds another sequence than the file's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("keys", nargs="*", help="cells; those that lack by default")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    known = cells()
    held = json.loads(FILE.read_text(encoding="ascii")) if FILE.exists() else {}
    lacking = [key for key in known if options.check or key not in held]
    differing = 0
    for key in options.keys or lacking:
        began = time.process_time()
        found = "".join(map(str, search(*known[key])))
        spent = time.process_time() - began
        print(f"{key}: {spent:.1f} s, {found}", flush=True)
        differing += found != held.get(key)
        if not options.check:
            held[key] = found
            kept = {key: held[key] for key in known if key in held}
            text = json.dumps(kept, indent=2, sort_keys=True)
            FILE.write_text(f"{text}\n", encoding="ascii", newline="\n")
    return int(options.check and differing > 0)


if __name__ == "__main__":
    sys.exit(main())
