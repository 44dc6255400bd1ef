"""What a page says of a run: its scores, and everything that they depend on."""

from typing import Any

from ragen_bench.entries import Entry
from ragen_bench.records import CellScore, Interval, RunRecord, Summary
from ragen_bench.registry import own_agent
from ragen_bench.viewing.pieces import number, pairs

_SETTINGS = (
    "split",
    "repeats",
    "prompt",
    "shots",
    "context",
    "temperature",
    "top_p",
    "max_tokens",
    "salt",
    "agent_args",
    "model_args",
    "env_args",
)


def interval(value: Interval) -> list[Any]:
    """Return mean, low, high and n of an interval."""
    return [number(value.mean), number(value.low), number(value.high), value.n]


def standing(summary: Summary) -> dict[str, Any]:
    """Return what a row of a board shows.

    A class is ``declared`` if nothing but the agent itself says it.
    """
    return {
        "agent": summary.agent,
        "model": summary.model,
        "class": summary.agent_class,
        "declared": own_agent(summary.agent) is None,
        "complete": summary.complete,
        "rankable": summary.rankable,
        "because": list(summary.unrankable_because),
        "planned": summary.planned,
        "owed": summary.owed,
        "score": interval(summary.score),
        "tokens": [summary.input_tokens, summary.output_tokens],
        "cost": summary.cost,
        "currency": summary.currency,
        "envs": [_brief(name, part) for name, part in sorted(summary.envs.items())],
        "cells": [_brief(name, part) for name, part in sorted(summary.cells.items())],
    }


def _brief(name: str, part: CellScore) -> dict[str, Any]:
    return {
        "name": name,
        "normalized": interval(part.normalized),
        "success": interval(part.success),
        "return": interval(part.episode_return),
        "floor": number(part.floor),
        "ceiling": number(part.ceiling),
        "invalid": number(part.invalid_rate),
    }


def breakdown(summary: Summary) -> list[dict[str, Any]]:
    """Return a row for each environment, each followed by those of its cells."""
    rows = []
    for env_id, part in sorted(summary.envs.items()):
        rows.append({**_row(env_id, part), "cell": False})
        for name, cell in sorted(summary.cells.items()):
            if name.rpartition(":")[0] == env_id:
                rows.append({**_row(name, cell), "cell": True})
    return rows


def _row(name: str, part: CellScore) -> dict[str, Any]:
    return {
        **_brief(name, part),
        "episodes": part.episodes,
        "efficiency": number(part.efficiency),
        "turns": number(part.turns),
        "actions": number(part.actions),
        "tokens": number(part.tokens),
        "cost": part.cost,
        "parses": pairs(part.parses),
        "outcomes": pairs(part.outcomes),
        "pass_at": [[k, *interval(v)] for k, v in sorted(part.pass_at_k.items())],
        "pass_hat": [[k, *interval(v)] for k, v in sorted(part.pass_hat_k.items())],
    }


def of_run(record: RunRecord, summary: Summary) -> dict[str, Any]:
    """Return the page of a run that was played here."""
    config = record.config.model_dump(mode="json")
    source = record.agent_sha256
    return {
        **_scores(summary),
        "settings": pairs({k: config[k] for k in _SETTINGS if k in config}),
        "versions": pairs(record.versions),
        "facts": pairs(record.model_facts),
        "prompts": pairs(record.prompt_sha256),
        "command": record.command,
        "commit": record.commit,
        "started": record.started,
        "price": pairs(record.price.model_dump(mode="json")) if record.price else [],
        "hashes": [["source of the agent", source]] if source else [],
    }


def of_entry(entry: Entry) -> dict[str, Any]:
    """Return the page of an entry of a board."""
    return {
        **_scores(entry.summary),
        "settings": pairs(entry.settings),
        "versions": pairs(entry.versions),
        "facts": pairs(entry.model_facts),
        "prompts": pairs(entry.prompt_sha256),
        "command": entry.command,
        "commit": entry.commit,
        "started": entry.started,
        "price": [],
        "status": entry.status,
        "sealed": entry.sealed,
        "warnings": list(entry.warnings),
        "meta": pairs(entry.meta.model_dump(mode="json", exclude={"schema_version"})),
        "hashes": [
            ["bundle", entry.bundle],
            ["bundle_sha256", entry.bundle_sha256],
            ["episodes_sha256", entry.episodes_sha256],
            ["board_digest", entry.board_digest],
        ],
    }


def _scores(summary: Summary) -> dict[str, Any]:
    return {
        "breakdown": breakdown(summary),
        "outcomes": [[name, count] for name, count in summary.outcomes.items()],
    }
