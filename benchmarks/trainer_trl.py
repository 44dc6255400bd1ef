"""The same work by TRL's `GRPOTrainer`, with a `rollout_func` of our environments.

TRL has no agent loop for free-form answers, so a user writes it: all episodes that are
still going answer together by ``transformers``' own ``generate``, with its cache and a
prompt padded on the left, then their environments step.  Environments, prompts, parser
and tokens are those of the harness, without its records.
"""

import dataclasses
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from trainer_workloads import Lengths

from ragen_bench.agent import Task
from ragen_bench.chat import ChatAgent
from ragen_bench.episode import noise_rep, task_of
from ragen_bench.model import Message
from ragen_bench.models.chat_template import Chat, Transcript
from ragen_bench.prompts import system_text
from ragen_bench.records import EpisodeKey
from ragen_bench.starpo.loop import Training
from ragen_bench.starpo.rollout import Group
from ragen_bench.starpo.train_config import TrainConfig
from ragen_bench.starpo.trajectories import Segment, Trajectory, continued


@dataclasses.dataclass(slots=True)
class Game:
    """One episode of the loop."""

    key: str
    env: Any
    task: Task
    messages: list[Message]
    transcript: Transcript | None = None
    segments: list[Segment] = dataclasses.field(default_factory=list)
    turn: int = 0
    total: float = 0.0
    over: bool = False


class Lockstep:
    """Plays groups of episodes in rounds of one reply each.

    Args:
        training: Whose environments and settings are used.
        network: Samples the replies.
        lengths: Of the replies; None lets the model end them.
    """

    def __init__(
        self, training: Training, network: Any, lengths: Lengths | None
    ) -> None:
        self.training = training
        self.network = network
        self.lengths = lengths
        tokenizer = training.policy.tokenizer
        self.chat = Chat(tokenizer, [tokenizer.eos_token_id])
        self.pad_id = tokenizer.pad_token_id
        self.spare: list[Any] = []

    def play(self, groups: Sequence[Group], salt: str) -> list[Game]:
        """Return the episodes, in order of group and member."""
        games = [
            self._begin(index, group, rep, salt)
            for index, group in enumerate(groups)
            for rep in range(group.size)
        ]
        while live := [game for game in games if not game.over]:
            self._round(live)
        self.spare = [game.env for game in games]
        return games

    def _begin(self, index: int, group: Group, rep: int, salt: str) -> Game:
        cell, rollouts = group.cell, self.training.rollouts
        env = self.spare.pop() if self.spare else rollouts.env(cell)
        key = EpisodeKey(cell.env_id, cell.level, "train", group.seed, rep)
        noise = {"rep": noise_rep(rep, f"{salt}/{index}")}
        observation, info = env.reset(seed=group.seed, options=noise)
        agent = rollouts.agent(self.training.policy.engine)
        assert isinstance(agent, ChatAgent)
        task = task_of(key, env, info["rules"], (), agent, salt)
        system = system_text(task, agent.protocol, task.prompt)
        messages = [
            Message(role="system", content=system),
            Message(role="user", content=observation),
        ]
        return Game(f"{index}/{key}", env, task, messages)

    def _round(self, live: Sequence[Game]) -> None:
        prompts = [self.chat.prompt(game.messages, game.transcript) for game in live]
        replies = self._generate(live, [ids for _, ids in prompts])
        for game, (text, ids), reply in zip(live, prompts, replies, strict=True):
            said = self.chat.decode(reply)
            continued(game.segments, ids).write(reply, [0.0] * len(reply))
            game.transcript = Transcript(text, ids, said, tuple(reply))
            ended = reply[-1] in self.chat.end_ids
            observation, reward, terminated, truncated, _ = game.env.step(
                said, finish_reason="stop" if ended else "length"
            )
            game.total += reward
            game.turn += 1
            game.over = terminated or truncated
            game.messages += [
                Message(role="assistant", content=said, token_ids=tuple(reply)),
                Message(role="user", content=observation),
            ]

    def _generate(
        self, live: Sequence[Game], prompts: Sequence[list[int]]
    ) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self.pad_id)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        limits = [self._limit(game) for game in live]
        device = self.network.device
        with torch.inference_mode():
            found = self.network.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                generation_config=self._sampling(max(limits)),
                stopping_criteria=[_Ends(width, torch.tensor(limits, device=device))],
            )
        rows = found[:, width:].tolist()
        return [self._cut(row, limit) for row, limit in zip(rows, limits, strict=True)]

    def _limit(self, game: Game) -> int:
        if self.lengths is None:
            return self.training.config.max_tokens
        return self.lengths.of(game.key, game.turn)

    def _cut(self, row: list[int], limit: int) -> list[int]:
        """Return a reply without the padding behind its end."""
        for at, token in enumerate(row[:limit]):
            if token in self.chat.end_ids:
                return row[: at + 1]
        return row[:limit]

    def _sampling(self, longest: int) -> transformers.GenerationConfig:
        return transformers.GenerationConfig(
            do_sample=True,
            temperature=self.training.config.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=longest,
            eos_token_id=sorted(self.chat.end_ids),
            pad_token_id=self.pad_id,
        )


class _Ends(transformers.StoppingCriteria):  # type: ignore[misc]
    """Ends each row at a length of its own."""

    def __init__(self, width: int, limits: torch.Tensor) -> None:
        self.width, self.limits = width, limits

    def __call__(
        self, input_ids: torch.Tensor, scores: Any, **options: Any
    ) -> torch.Tensor:
        """Return whether each row is at its end."""
        return input_ids.shape[1] - self.width >= self.limits


def columns(
    segments: Sequence[Segment], returns: Sequence[float]
) -> dict[str, list[Any] | None]:
    """Return what a `rollout_func` gives: ids, the mask of sampled ones, rewards."""
    starts = [one.turns[0].start for one in segments]
    pairs = list(zip(segments, starts, strict=True))
    return {
        "prompt_ids": [one.ids[:start] for one, start in pairs],
        "completion_ids": [one.ids[start:] for one, start in pairs],
        "env_mask": [list(map(int, one.sampled[start:])) for one, start in pairs],
        "returns": list(returns),
        "logprobs": None,
    }


def replayed(trajectories: Sequence[Trajectory]) -> dict[str, list[Any] | None]:
    """Return the columns of recorded trajectories, which have one segment each."""
    segments = [one.segments[0] for one in trajectories]
    return columns(segments, [one.total for one in trajectories])


class Steps(transformers.TrainerCallback):  # type: ignore[misc]
    """Times the optimizer steps of TRL, and calls something between two of them."""

    def __init__(self, between: Callable[[], None]) -> None:
        self.between = between
        self.seconds: list[float] = []
        self.gradients: dict[str, torch.Tensor] = {}

    def on_step_begin(self, *facts: Any, **more: Any) -> None:
        """Begin."""
        self.began = time.process_time()

    def on_pre_optimizer_step(self, *facts: Any, model: Any, **more: Any) -> None:
        """Keep the first step's gradients."""
        if not self.gradients:
            self.gradients = {
                name: parameter.grad.clone()
                for name, parameter in model.named_parameters()
            }

    def on_step_end(self, *facts: Any, **more: Any) -> None:
        """End, and let the other one do its step."""
        self.seconds.append(time.process_time() - self.began)
        self.between()


def train(
    network: Any,
    tokenizer: Any,
    config: TrainConfig,
    rollout_func: Callable[..., dict[str, Any]],
    callback: Steps,
    *,
    steps: int,
    micro: int,
) -> None:
    """Train a network by TRL, in float32, without checkpoints of any kind.

    Args:
        network: Is changed.
        tokenizer: Its tokenizer.
        config: Groups, rollouts, clip ranges and the optimizer's numbers.
        rollout_func: Plays.
        callback: Sees the steps.
        steps: How many.
        micro: Trajectories of a forward pass.
    """
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        import datasets
        import trl

        arguments = _arguments(trl.GRPOConfig, folder, config, steps, micro)
        trainer = trl.GRPOTrainer(
            model=network,
            args=arguments,
            processing_class=tokenizer,
            reward_funcs=_rewards,
            rollout_func=rollout_func,
            train_dataset=datasets.Dataset.from_list(
                [{"prompt": str(group)} for group in range(config.groups)]
            ),
            callbacks=[callback],
        )
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        trainer.train()
    logging.disable(logging.NOTSET)


def _rewards(returns: Sequence[float], **columns: Any) -> list[float]:
    return list(returns)


def _arguments(
    kind: Any, folder: str, config: TrainConfig, steps: int, micro: int
) -> Any:
    whole = config.groups * config.rollouts
    return kind(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=whole // micro,
        num_generations=config.rollouts,
        max_completion_length=4096,
        loss_type="grpo",
        epsilon=config.clip_low,
        epsilon_high=config.clip_high,
        beta=0.0,
        temperature=config.temperature,
        learning_rate=config.lr,
        lr_scheduler_type="constant",
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        weight_decay=config.weight_decay,
        max_grad_norm=config.grad_clip,
        optim="adamw_torch",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
    )
