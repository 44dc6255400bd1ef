"""Runs, entries and a training for the tests of the viewer; some are hostile."""

import csv
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ragen_bench as rb
from ragen_bench.board import load
from ragen_bench.entries import Meta
from ragen_bench.submission import submit

BOARD = "smoke"
LONG = "far too long. " * 15_000
"""More than 200 kB."""
HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'><svg onload='window.hacked = 1'>",
    "</textarea></pre><!--<script>\u2028window.hacked = 1\u2029//",
    '"); window.hacked = 1; ragen("',
    "<a href='javascript:window.hacked = 1'>javascript:window.hacked = 1</a>",
    "<base href='https://example.invalid/'><link rel=stylesheet href='//a.invalid'>",
    "<style>* { display: none }</style><meta http-equiv=refresh content='0;url=/x'>",
    "\x00\x08\x1b[31m\x7f \u202eright to left \ufeff\U0001f600 __proto__ ${0} `",
)
REPLIES: list[Any] = [
    *(f"{text}<answer>Right || {text}</answer>" for text in HOSTILE),
    {"text": f"{LONG}<answer>Right</answer>", "thinking": HOSTILE[1]},
    {"text": "<answer>Ri", "finish_reason": "length"},
    "<answer>Up || Up || Up || Up || Up || Up || Up</answer>",
    "",
]
HOSTILE_NAME = "<img src=x onerror=window.hacked=1>"


def fair_runs(folder: Path) -> dict[str, Path]:
    """Play the board of the tests twice, and return the folders by name."""
    for agent in ("oracle", "random"):
        rb.run(BOARD, agent=agent, out=folder / agent)
    return {name: folder / name for name in ("oracle", "random")}


def hostile_run(folder: Path) -> Path:
    """Play the board with a model that attacks the page, under a name that does."""
    script = folder / "script.json"
    script.write_text(json.dumps({"*": REPLIES}))
    out = folder / HOSTILE_NAME
    rb.run(BOARD, agent="direct", model=f"scripted:{script}", out=out)
    return out


def entries(folder: Path, runs: Mapping[str, Path]) -> Path:
    """Submit the fair runs, and return the folder of their entries.

    The random one is then made one of an older version of the board.
    """
    board = load(BOARD)
    for name, run in runs.items():
        meta = Meta(
            name=f"by-{name}",
            model="none",
            organisation="</script><b>Some & people</b>",
            link="https://example.org/?a=1&b=<2>",
            licence="MIT",
            training_data="none",
        )
        out = folder / BOARD / f"by-{name}.zip"
        assert submit(run, board, out, meta).entry is not None
    path = folder / BOARD / "by-random.json"
    entry = json.loads(path.read_text())
    entry.update(board_version=board.version + 1, board_digest="0" * 64)
    path.write_text(json.dumps(entry))
    return folder


def training(folder: Path, rollouts: Path) -> Path:
    """Write a training of ten iterations, three of which kept a run's episodes."""
    (folder / "rollouts").mkdir(parents=True)
    rows = []
    for i in range(1, 11):
        fallen = i > 6
        rows.append(
            {
                "iteration": i,
                "return_mean": 0.1 if fallen else 0.08 * i,
                "success": 0.1 if fallen else 0.08 * i,
                "spread_mean": 0.0 if fallen else 0.4,
                "kept_share": 0.0 if fallen else 0.5,
                "entropy": 0.05 if fallen else 1.2,
                "grad_norm": 40.0 if fallen else 0.5 + 0.01 * i,
                "reply_tokens": 4 if fallen else 40,
                "valid_rate": 1.0,
                "dev_return": 0.3 if i % 5 == 0 else "",
            }
        )
    with open(folder / "metrics.csv", "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    config = {"algorithm": "starpo-s", "envs": ["ragen/Sokoban-v0:1"], "__proto__": "x"}
    (folder / "train.json").write_text(json.dumps({"config": config}))
    for i in (1, 5, 10):
        shutil.copy(rollouts / "episodes.jsonl", folder / f"rollouts/{i:06}.jsonl")
    return folder
