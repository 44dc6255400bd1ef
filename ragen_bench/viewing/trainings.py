"""A training for the page: its curves, its alarms and the rollouts that it kept."""

import json
from pathlib import Path
from typing import Any

from ragen_bench.errors import RecordError
from ragen_bench.viewing import pieces
from ragen_bench.viewing.optimal import Solver
from ragen_bench.viewing.sources import TRAINING, read_rollouts
from ragen_bench.viewing.transcripts import Writer

_PANELS = (
    ("Return", "return_mean", "dev_return"),
    ("Success", "success", "dev_success"),
    ("Spread of returns in a group", "spread_mean", None),
    ("Share of groups kept", "kept_share", None),
    ("Entropy, nats a token", "entropy", None),
    ("Gradient norm before clipping", "grad_norm", None),
    ("Tokens a reply", "reply_tokens", None),
    ("Share of valid replies", "valid_rate", None),
)
_MAX_POINTS = 2000
"""Points of a curve; of a longer training every k-th iteration is drawn."""


def write(root: Path, folder: Path, slug: str, solved: int) -> dict[str, Any]:
    """Write a training's pieces and return its line of the site's list.

    Raises:
        RecordError: A file of the folder cannot be read.
    """
    from ragen_bench.starpo.echo_trap import scan
    from ragen_bench.starpo.setting_rules import method_of
    from ragen_bench.starpo.training_log import ROLLOUTS, read_metrics

    rows = read_metrics(folder)
    config = _config(folder)
    kept = []
    for path in sorted((folder / ROLLOUTS).glob("*.jsonl")):
        if not path.stem.isdecimal():
            raise RecordError(f"{path} is no iteration's file of rollouts")
        # The noise of rollouts is the training's own, so few of them replay; the
        # board of the record tells which.
        writer = Writer(root, f"{slug}~{int(path.stem)}", Solver(None, solved))
        counts = {"solved": 0}
        for episode in writer.passing(read_rollouts(path)):
            counts["solved"] += episode.success is True
        total = writer.close()
        kept.append([int(path.stem), total, counts["solved"], writer.solver.why_not])
    asked = (config.get("passes", 1), config.get("imitate_steps", 0))
    method = method_of(pieces.plain(config.get("algorithm")), *asked)
    shown = rows[:: len(rows) // _MAX_POINTS + 1]
    value = {
        "label": folder.name or folder.resolve().name,
        "method": method,
        "iterations": [int(row["iteration"] or 0) for row in shown],
        "panels": [
            {
                "title": title,
                "train": [pieces.number(row.get(column)) for row in shown],
                "dev": [pieces.number(row.get(dev)) for row in shown] if dev else [],
            }
            for title, column, dev in _PANELS
        ],
        "alarms": [[a.iteration, a.sign, a.text] for a in scan(rows)],
        "kept": kept,
        "settings": pieces.pairs(config),
    }
    pieces.write(root, f"training/{slug}", value)
    return {
        "slug": slug,
        "label": value["label"],
        "method": method,
        "envs": [str(name) for name in config.get("envs", ())],
        "iterations": len(rows),
        "alarms": len(value["alarms"]),
        "kept": len(kept),
    }


def _config(folder: Path) -> dict[str, Any]:
    path = folder / TRAINING
    if not path.exists():
        return {}
    try:
        config: dict[str, Any] = json.loads(path.read_text("utf-8"))["config"]
        return dict(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
