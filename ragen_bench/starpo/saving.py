"""All that moves in a training, to a checkpoint and back."""

import copy
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ragen_bench.errors import RecordError
from ragen_bench.provenance import versions
from ragen_bench.starpo import checkpoint
from ragen_bench.starpo.loop import Training
from ragen_bench.starpo.settings import lessons_of


def save(training: Training, folder: Path) -> None:
    """Write a checkpoint.

    Args:
        training: As it stands between two iterations.
        folder: Of its checkpoints.

    Raises:
        RunIncomplete: The disk is full; the last checkpoint is as it was.
    """
    policy = training.policy
    tensors: dict[str, Any] = {
        "network": dict(policy.trained()),
        "optimizer": training.optimizer.state_dict(),
        "torch_rng": torch.get_rng_state(),
    }
    tensors["network"] = {k: v.detach() for k, v in tensors["network"].items()}
    if policy.critic is not None and training.critic_optimizer is not None:
        tensors["critic"] = policy.critic.state_dict()
        tensors["critic_optimizer"] = training.critic_optimizer.state_dict()
    if training.reference is not None:
        tensors["reference"] = training.reference.state_dict()
    if training.config.imitate_steps:
        tensors["imitation"] = training.imitation.get_state()
    state = {
        "demonstrated": len(training.imitation.demonstrations),
        "iteration": training.iteration,
        "steps": training.steps,
        "drawn": training.instances.drawn,
        "watch": training.watch.get_state(),
        "cloned": training.cloned,
        "spent": training.spent,
        "versions": versions(),
    }
    checkpoint.save(folder, training.iteration, tensors, state)


def restore(
    training: Training, tensors: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """Go on from what `checkpoint.load` read.

    Args:
        training: Of the same settings, before its first iteration.
        tensors: What PyTorch saved.
        state: JSON-able facts.

    Raises:
        RecordError: They are not those of such a training.
    """
    try:
        _restore_tensors(training, tensors)
        _restore_state(training, state)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RecordError(
            "the checkpoint is not one of this training, or of another version: "
            f"{type(error).__name__}: {error}; move the folder of checkpoints away, "
            "and the same command begins anew"
        ) from error
    training.policy.sync()


def _restore_tensors(training: Training, tensors: Mapping[str, Any]) -> None:
    policy = training.policy
    with torch.no_grad():
        for name, parameter in policy.trained():
            parameter.copy_(tensors["network"][name])
    training.optimizer.load_state_dict(tensors["optimizer"])
    if policy.critic is not None and training.critic_optimizer is not None:
        policy.critic.load_state_dict(tensors["critic"])
        training.critic_optimizer.load_state_dict(tensors["critic_optimizer"])
    if "reference" in tensors:
        training.reference = copy.deepcopy(policy.network).requires_grad_(False)
        training.reference.load_state_dict(tensors["reference"])
    if training.config.imitate_steps:
        training.imitation.set_state(tensors["imitation"])
    torch.set_rng_state(tensors["torch_rng"])


def _restore_state(training: Training, state: Mapping[str, Any]) -> None:
    if training.config.imitate_steps:
        config, policy = training.config, training.policy
        lessons = lessons_of(
            config, training.cells, policy.tokenizer, config.clone_noise
        )
        shown = itertools.islice(lessons.demonstrations(), state["demonstrated"])
        training.imitation.demonstrations = list(shown)
    training.iteration = state["iteration"]
    training.steps = state["steps"]
    training.instances.drawn = state["drawn"]
    training.watch.set_state(state["watch"])
    training.cloned = state.get("cloned")
    training.spent = state.get("spent", 0.0)
