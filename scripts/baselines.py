"""Rebuild the entries of reference agents: play, verify, write, all by one command.

    python scripts/baselines.py
    python scripts/baselines.py --only null random --runs runs/baselines
    python scripts/baselines.py --only trained --trained runs/models
    python scripts/baselines.py --only smollm2 --smollm2 FOLDER

Without names it plays ``null``, ``random``, ``fixed``, ``oracle`` and ``tiny`` on the
boards ``smoke`` and ``standard``.  ``trained`` adds every folder in FOLDER that holds a
``ragen.json`` (what ``ragen-bench train`` exports), under the folder's name;
``smollm2`` plays a folder of ``scripts/smollm2_folder.py`` on ``lite``, both
protocols, without and with two solved examples.  A run that was stopped goes on.  A
bundle of 1 MB or more is verified and left beside the runs; it is not shipped.
"""

import argparse
import dataclasses
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ragen_bench as rb
from ragen_bench.board import load
from ragen_bench.entries import Meta
from ragen_bench.submission import obstacles, submit

ROOT = Path(__file__).resolve().parent.parent
ENTRIES = ROOT / "leaderboards" / "entries"
SHIPPED = 1_000_000
"""Bytes of the largest bundle that is shipped."""
PLAIN = ("null", "random", "fixed", "oracle", "tiny")
NOT_TRAINED = "not trained: a program"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """One entry to be."""

    name: str
    board: str
    settings: Mapping[str, Any]
    """What `ragen_bench.run` is given."""
    model: str = "none"
    licence: str = "MIT"
    training_data: str = NOT_TRAINED

    @property
    def meta(self) -> Meta:
        """What stands beside its scores."""
        return Meta(
            name=self.name,
            model=self.model,
            organisation="ragen-bench",
            licence=self.licence,
            training_data=self.training_data,
        )

    @property
    def command(self) -> str:
        """The command line that plays the same."""
        words = ["ragen-bench", "run", "--board", self.board]
        for key, value in self.settings.items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        return shlex.join(words)


def baselines(options: argparse.Namespace) -> Iterator[Baseline]:
    """Yield what is asked for."""
    for name in options.only:
        if name in PLAIN:
            yield from (plain(name, board) for board in ("smoke", "standard"))
        elif name == "trained":
            yield from trained(options.trained)
        else:
            yield from smollm2(options.smollm2)


def plain(name: str, board: str) -> Baseline:
    """Return a player that is inside the package."""
    if name != "tiny":
        return Baseline(name=name, board=board, settings={"agent": name})
    return Baseline(
        name=name,
        board=board,
        settings={"model": name},
        model=name,
        training_data="cloned from the oracle, train split, levels 1 to 3",
    )


def trained(folder: Path) -> Iterator[Baseline]:
    """Yield the trained models of a folder, each with what it was made for."""
    for path in sorted(folder.rglob("ragen.json")):
        yield Baseline(
            # ragen-bench train exports to RUN/model.
            name=path.parts[-3] if path.parent.name == "model" else path.parts[-2],
            board="standard",
            settings={"model": f"hf:{path.parent}"},
            model="see the entry's model_facts",
            training_data="trained by ragen-bench train on the train split",
        )


def smollm2(folder: Path) -> Iterator[Baseline]:
    """Yield the rows of SmolLM2: protocols, and numbers of solved examples."""
    for agent in ("direct", "think_act"):
        for shots in (0, 2):
            yield Baseline(
                name=f"smollm2-135m-{agent.replace('_', '-')}-{shots}-shots",
                board="lite",
                settings={
                    "agent": agent,
                    "model": f"hf:{folder}",
                    "shots": shots,
                    "max_tokens": 64,
                },
                model="SmolLM2-135M-Instruct",
                licence="Apache-2.0",
                training_data="not on these tasks; see its makers' report",
            )


def build(baseline: Baseline, runs: Path, entries: Path) -> bool:
    """Play, verify and write one entry; return whether all went well."""
    began = time.process_time()
    folder = runs / f"{baseline.board}-{baseline.name}"
    board = load(baseline.board)
    rb.run(baseline.board, out=folder, command=baseline.command, **baseline.settings)
    played = time.process_time()
    found = obstacles(folder, board)
    for obstacle in found:
        print(f"{baseline.name}: {obstacle.message}")
    if found:
        return False
    bundle = runs / baseline.board / f"{baseline.name}.zip"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    made = submit(folder, board, bundle, baseline.meta, replace=True)
    for fault in (*made.faults, *made.warnings):
        print(f"{baseline.name}: {fault}")
    if made.entry is None:
        return False
    home = entries / baseline.board
    home.mkdir(parents=True, exist_ok=True)
    size = bundle.stat().st_size
    shown = [bundle.with_suffix(".json")] + [bundle] * (size < SHIPPED)
    for path in shown:
        (home / path.name).write_bytes(path.read_bytes())
    print(
        f"{baseline.name}: score {made.entry.summary.score.mean}, bundle {size} bytes, "
        f"play {played - began:.0f} s, submit {time.process_time() - played:.0f} s of "
        "CPU",
        flush=True,
    )
    return True


def main() -> int:
    """Return 0, or 1 if an entry could not be made."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = (*PLAIN, "trained", "smollm2")
    parser.add_argument("--only", nargs="+", choices=known, default=list(PLAIN))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="their folder")
    parser.add_argument("--entries", type=Path, default=ENTRIES)
    parser.add_argument("--trained", type=Path, help="a folder of trained models")
    parser.add_argument("--smollm2", type=Path, help="a folder of SmolLM2")
    options = parser.parse_args()
    for name in ("trained", "smollm2"):
        if name in options.only and getattr(options, name) is None:
            parser.error(f"{name} needs --{name} FOLDER")
    done = [build(one, options.runs, options.entries) for one in baselines(options)]
    return int(not all(done))


if __name__ == "__main__":
    sys.exit(main())
