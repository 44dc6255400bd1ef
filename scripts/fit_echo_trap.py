"""Choose the thresholds of the echo-trap detector on trainings, check on fresh ones.

    python scripts/fit_echo_trap.py --train runs/echo-trap --store tests/data/collapse
    python scripts/fit_echo_trap.py --keep \
        --collapsing tests/data/collapse/collapsing-[0-4].csv \
        --healthy tests/data/collapse/healthy-[0-4].csv \
        --fresh-collapsing tests/data/collapse/collapsing-[5-9].csv \
        --fresh-healthy tests/data/collapse/healthy-[5-9].csv

The first command trains by ``scripts/echo_trap/*.toml``, the first half of the seeds to
choose on and the rest to check; one training after the other, and again only what is
missing.  The second takes tables or folders that are there.

A collapsing run counts as caught if the combined alarm comes before success has fallen
by half from its best, a healthy one as quiet if there is no combined alarm.  One
threshold after the other takes the value with which most runs are right, until none
changes any more; among equally good values the middle one, which has most room on
either side.  The fresh runs have no say.

``--keep`` checks the present thresholds and changes nothing.
"""

import argparse
import csv
import dataclasses
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ragen_bench.errors import RagenError
from ragen_bench.starpo.collapse_signs import Row
from ragen_bench.starpo.diagnosis import Diagnosis, diagnose_rows
from ragen_bench.starpo.thresholds import Thresholds
from ragen_bench.starpo.training_log import METRICS, read_metrics

SETTINGS = Path(__file__).parent / "echo_trap"
KINDS: Mapping[str, bool] = {"collapsing": True, "healthy": False}
"""Names of the settings' files to whether their trainings collapse."""
KEPT = (
    "iteration",
    "return_mean",
    "success",
    "spread_mean",
    "entropy",
    "reply_tokens",
    "thought_tokens",
    "distinct_4",
    "repeated_4",
    "cut_share",
    "valid_rate",
    "valid_success",
    "grad_norm",
    "retrieval",
    "retrieval_chance",
    "conditional_entropy",
    "mutual_information",
    "mi_z_score",
)
"""Columns that are stored, those that the detector and the diagnosis look at."""

GRID: Mapping[str, Sequence[float]] = {
    "decay": (0.5, 0.6, 0.7, 0.8, 0.9),
    "baseline": (3, 5, 10),
    "patience": (1, 2, 3, 5),
    "memory": (5, 10, 20),
    "noise": (1.0, 1.5, 2.0),
    "top": (0.7, 0.8, 0.9),
    "slack": (0.03, 0.05, 0.1),
    "spread_share": (0.1, 0.25, 0.4, 0.55, 0.7),
    "gradient_factor": (3.0, 5.0, 10.0, 20.0),
    "entropy_share": (0.1, 0.25, 0.4, 0.55),
    "entropy_growth": (1.5, 2.0, 3.0, 5.0),
    "length_share": (0.3, 0.5, 0.7),
    "length_growth": (1.5, 2.0, 3.0),
    "cut_rise": (0.1, 0.25, 0.4),
    "distinct_share": (0.3, 0.5, 0.7),
    "repeated_rise": (0.1, 0.2, 0.3),
    "template_share": (0.1, 0.25, 0.4),
    "valid_drop": (0.05, 0.1, 0.15, 0.25),
    "success_drop": (0.15, 0.2, 0.3, 0.4),
    "votes": (1, 2, 3),
}
"""Values that are tried, in this order of thresholds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A training that is known to have collapsed or not."""

    name: str
    rows: Sequence[Row]
    collapses: bool


def is_right(run: Run, found: Diagnosis) -> bool:
    """Return whether a collapsing run was caught in time, or a healthy one left alone.

    A run that collapses before it had a success to lose has no fall to be early for.
    """
    if not run.collapses:
        return found.trapped_at is None
    if found.half_fall is None:
        return found.trapped_at is not None
    return found.lead_time is not None and found.lead_time > 0


def right(runs: Iterable[Run], thresholds: Thresholds) -> int:
    """Return on how many runs the detector is right."""
    return sum(is_right(run, diagnose_rows(run.rows, thresholds)) for run in runs)


def fit(runs: Sequence[Run], start: Thresholds, rounds: int = 3) -> Thresholds:
    """Return thresholds with which the detector is right on most runs.

    Args:
        runs: To choose on.
        start: Thresholds that a value is left at if it is as good as any.
        rounds: Times that each threshold is gone through at most.
    """
    best = start
    for _ in range(rounds):
        before = best
        for name, values in GRID.items():
            held = getattr(best, name)
            scores = {}
            for value in sorted({*values, held}):
                scores[value] = right(runs, dataclasses.replace(best, **{name: value}))
            top = max(scores.values())
            if scores[held] < top:
                equal = [value for value, score in scores.items() if score == top]
                best = dataclasses.replace(best, **{name: equal[len(equal) // 2]})
        if best == before:
            break
    return best


def table(runs: Sequence[Run], thresholds: Thresholds) -> list[str]:
    """Return a line for each run, and what they sum up to."""
    lines = [f"{'run':30} {'kind':10}  best  half alarm  lead  signs"]
    caught, false, leads = 0, 0, []
    for run in runs:
        found = diagnose_rows(run.rows, thresholds)
        signs = sorted({a.sign for a in found.alarms} - {"echo_trap"})
        kind = "collapsing" if run.collapses else "healthy"
        best = "" if found.best_success is None else f"{found.best_success:.0%}"
        cells = [_cell(x) for x in (found.half_fall, found.trapped_at, found.lead_time)]
        lines.append(
            f"{run.name:30.30} {kind:10} {best:>5} {' '.join(cells)}  {' '.join(signs)}"
            + ("" if is_right(run, found) else "  WRONG")
        )
        if not run.collapses:
            false += found.trapped_at is not None
        else:
            caught += is_right(run, found)
            leads += [] if found.lead_time is None else [found.lead_time]
    collapsing = sum(run.collapses for run in runs)
    lead = f"median {statistics.median(leads):g}, least {min(leads)}" if leads else "-"
    lines.append(
        f"caught in time {caught} of {collapsing}, false alarms {false} of "
        f"{len(runs) - collapsing}, lead time {lead}"
    )
    return lines


def _cell(value: int | None) -> str:
    return f"{'' if value is None else value:>5}"


def load(places: Iterable[str | Path], collapses: bool) -> list[Run]:
    """Return the runs of some folders or tables."""
    return [
        Run(name=Path(p).stem, rows=read_metrics(Path(p)), collapses=collapses)
        for p in places
    ]


def train(folder: Path, kind: str, seed: int) -> Path:
    """Train by the settings of a kind, unless that is done; return the folder.

    Raises:
        RagenError: A setting is refused, or the folder holds another training.
    """
    from ragen_bench.starpo import config, training

    preset, settings = config.read(SETTINGS / f"{kind}.toml")
    out = folder / f"{kind}-{seed}"
    wanted = settings["iterations"]
    if not ((out / METRICS).exists() and len(read_metrics(out)) >= wanted):
        print(f"training {out}", file=sys.stderr, flush=True)
        training.train(config.make(preset, settings, {"seed": seed}), out)
    return out


def store(run: Run, folder: Path) -> None:
    """Write the columns of a run that matter, in four digits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{run.name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(KEPT)
        for row in run.rows:
            writer.writerow([_short(row.get(name)) for name in KEPT])


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def trained(folder: Path, seeds: int) -> tuple[list[Run], list[Run]]:
    """Train all runs and return those to choose on, and those to check."""
    parts: tuple[list[Run], list[Run]] = ([], [])
    for seed in range(seeds):
        for kind, collapses in KINDS.items():
            out = train(folder, kind, seed)
            parts[seed >= seeds // 2].extend(load([out], collapses))
    return parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the detector is right on all fresh runs, else 1; 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("collapsing", "healthy", "fresh-collapsing", "fresh-healthy"):
        parser.add_argument(f"--{name}", nargs="+", default=[], metavar="DIR")
    parser.add_argument("--train", type=Path, metavar="DIR", help="train runs into it")
    parser.add_argument("--seeds", type=int, default=10, help="of each kind")
    parser.add_argument("--store", type=Path, metavar="DIR", help="keep short tables")
    parser.add_argument("--keep", action="store_true", help="fit nothing, only check")
    parser.add_argument("--out", type=Path, help="write the thresholds as JSON")
    options = parser.parse_args(arguments)
    try:
        if options.train:
            runs, fresh = trained(options.train, options.seeds)
        else:
            runs = load(options.collapsing, True) + load(options.healthy, False)
            fresh = load(options.fresh_collapsing, True) + load(
                options.fresh_healthy, False
            )
    except RagenError as error:
        print(error, file=sys.stderr)
        return 2
    if options.store:
        for run in (*runs, *fresh):
            store(run, options.store)
    start = Thresholds()
    thresholds = start if options.keep else fit(runs, start)
    for title, some in (("chosen on", runs), ("fresh", fresh)):
        if some:
            print(title, *table(some, thresholds), "", sep="\n")
    changed = {
        name: value
        for name, value in dataclasses.asdict(thresholds).items()
        if value != getattr(start, name)
    }
    print("thresholds that differ from the defaults:", json.dumps(changed))
    if options.out:
        text = json.dumps(dataclasses.asdict(thresholds), indent=2) + "\n"
        options.out.write_text(text, encoding="utf-8")
    return int(right(fresh, thresholds) < len(fresh))


if __name__ == "__main__":
    sys.exit(main())
