"""A trained policy to a folder that ``--model hf:FOLDER`` plays."""

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ragen_bench.models import hf_loading
from ragen_bench.provenance import commit, versions
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo.policy import plain_network, plain_state

if TYPE_CHECKING:
    from ragen_bench.starpo.loop import Training


def write(training: "Training", folder: Path, *, command: str | None = None) -> Path:
    """Write weights, tokenizer, ``ragen.json`` and a card; whole or not at all.

    Args:
        training: Whose policy is written; adapters are merged into it.
        folder: Replaced if it exists.
        command: The command line that trained, for the card.
    """
    policy, config = training.policy, training.config
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    network = plain_network(policy.network)
    with hf_loading.quiet():
        if network is policy.network:
            network.save_pretrained(beside)
        else:
            weights = plain_state(policy.network)
            policy.served.save_pretrained(beside, state_dict=weights)
        policy.tokenizer.save_pretrained(beside)
    settings = {
        "agent": config.agent,
        "prompt": config.prompt,
        "context": config.context,
        "sampling": {"temperature": 0.0, "max_tokens": config.max_tokens},
        "trained": True,
        "training": {
            "config": configuration.to_dict(config),
            "iterations": training.iteration,
            "command": command,
            "commit": commit(),
            "versions": versions(),
        },
    }
    text = json.dumps(settings, indent=2, sort_keys=True)
    (beside / "ragen.json").write_text(f"{text}\n", "utf-8")
    (beside / "README.md").write_text(_card(training, command), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(beside, folder)
    return folder


def _card(training: "Training", command: str | None) -> str:
    config = training.config
    cells = ", ".join(config.envs)
    return (
        f"# Trained on {cells}\n\n"
        f"{training.iteration} iterations of {config.algorithm} (filter "
        f"{config.filter}) from `{config.model}`, on instances of the train split of "
        f"{cells} alone.\n\n"
        f"- Command: `{command or 'Python'}`\n"
        f"- Commit: {commit() or 'unknown'}\n"
        f"- ragen-bench {versions()['ragen-bench']}\n\n"
        f"Play it: `ragen-bench run --env {config.envs[0]} --model hf:FOLDER`\n"
    )
