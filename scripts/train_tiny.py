"""Trains the embedded model `tiny` by cloning oracle play on the train split.

    python scripts/train_tiny.py --out ragen_bench/models/tiny

needs the extra ``hf`` and takes under 30 minutes on two cores.  The same command
gives the same tokenizer and data everywhere, and the same weights on one machine.

Each example is one reply: rules and the present observation, then the oracle's
reasoning and actions.  States come from play that errs now and then, so that the
model also meets the states that its own errors lead to.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import ragen_bench as rb
from ragen_bench.chat import ChatAgent
from ragen_bench.prompts import answer_text
from ragen_bench.seeding import Stream, child_seed

# Share of the examples by cell: the board `smoke` plays levels 1 and 2.
CELLS = {
    ("ragen/Bandit-v0", 1): 0.04,
    ("ragen/Bandit-v0", 2): 0.06,
    ("ragen/Bandit-v0", 3): 0.03,
    ("ragen/FrozenLake-v0", 1): 0.22,
    ("ragen/FrozenLake-v0", 2): 0.10,
    ("ragen/FrozenLake-v0", 3): 0.05,
    ("ragen/Sokoban-v0", 1): 0.30,
    ("ragen/Sokoban-v0", 2): 0.20,
}
ERRORS = 0.25
"""Share of the turns in which the player acts at random."""

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SETTINGS = {
    "agent": "think_act",
    "prompt": "compact",
    "context": "single",
    "sampling": {"temperature": 0.0, "max_tokens": 128},
    "trained": True,
}
IGNORED = -100


def examples(env_id: str, level: int, stream: Stream) -> Iterator[tuple[str, str, str]]:
    """Yield (system, user, assistant) texts of a cell without end."""
    env = rb.make(env_id, level=level, split="train", prompt="compact")
    core = env.core
    agent = rb.make_agent("think_act", _Silent())
    assert isinstance(agent, ChatAgent)
    while True:
        observation, info = env.reset(seed=stream.below(2**31), options=_rep(stream))
        agent.reset(
            rb.Task(
                key="",
                env_id=env_id,
                level=level,
                rules=info["rules"],
                action_names=env.action_names,
                max_turns=env.limits.max_turns,
                max_actions=core.limits.max_actions,
                max_actions_per_turn=env.limits.max_actions_per_turn,
                seed=0,
                prompt="compact",
            )
        )
        system = agent.messages(observation)[0][0].content
        playing = True
        while playing and not core.is_dead():
            room = min(env.limits.max_actions_per_turn, core.actions_left)
            plan = core.plan(room, env.limits.max_turns - env.turns)
            names = [core.actions[a] for a in plan]
            reply = answer_text(names, core.explain(plan), "think_act")
            yield system, observation, reply
            if stream.random() < ERRORS:
                count = 1 + stream.below(room)
                names = [stream.choice(core.actions) for _ in range(count)]
            observation, _, terminated, truncated, _ = env.step(
                answer_text(names, "", "direct")
            )
            playing = not (terminated or truncated)


def _rep(stream: Stream) -> dict[str, int]:
    return {"rep": stream.below(2**31)}


class _Silent(rb.Model):
    """Stands where an agent wants a model that nobody asks."""

    async def generate(self, conversation: Any, sampling: Any) -> rb.Completion:
        raise NotImplementedError


def mixture(seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield examples of all cells in their shares, without end."""
    stream = Stream(seed, "mixture")
    sources = [examples(*cell, Stream(seed, "examples", *cell)) for cell in CELLS]
    bounds = []
    total = 0.0
    for share in CELLS.values():
        total += share
        bounds.append(total)
    while True:
        u = stream.random() * total
        yield next(sources[next(i for i, bound in enumerate(bounds) if u < bound)])


def build_tokenizer(seed: int, vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE that never merges the cells of a board.

    Words (a capital at most in front) are merged; every other character, such as a
    glyph, a digit or a bracket, stays a token of its own.
    """
    source = mixture(child_seed(seed, "tokenizer"))
    corpus = ("\n".join(next(source)) for _ in range(20_000))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(" ?[A-Z]?[a-z]+|."), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[PAD, START, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Return a small Llama with heads of 32, which vLLM loads too."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def encode(
    tokenizer: PreTrainedTokenizerFast, example: tuple[str, str, str]
) -> tuple[list[int], int]:
    """Return the token ids of an example and how many of them are the prompt."""
    system, user, reply = example
    prompt = tokenizer.apply_chat_template(
        [{"role": "system", "content": system}, {"role": "user", "content": user}],
        add_generation_prompt=True,
        tokenize=False,
    )
    head = tokenizer.encode(prompt, add_special_tokens=False)
    tail = tokenizer.encode(reply + END, add_special_tokens=False)
    return head + tail, len(head)


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: int, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield ids [B, T], labels [B, T] and attention mask [B, T], all int64.

    Examples are sorted by length within a pool, so that little is padding.
    """
    source = mixture(child_seed(seed, "training"))
    order = Stream(seed, "batches")
    while True:
        pool = [encode(tokenizer, next(source)) for _ in range(32 * size)]
        pool.sort(key=lambda item: len(item[0]))
        groups = [pool[i : i + size] for i in range(0, len(pool), size)]
        order.shuffle(groups)
        for group in groups:
            width = max(len(ids) for ids, _ in group)
            ids = torch.full((len(group), width), tokenizer.pad_token_id)
            labels = torch.full((len(group), width), IGNORED)
            mask = torch.zeros((len(group), width), dtype=torch.long)
            for row, (tokens, head) in enumerate(group):
                ids[row, : len(tokens)] = torch.tensor(tokens)
                labels[row, head : len(tokens)] = torch.tensor(tokens[head:])
                mask[row, : len(tokens)] = 1
            yield ids, labels, mask


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    steps: int,
    size: int,
    peak: float,
) -> None:
    """Minimise the cross-entropy of the replies (AdamW, warm-up, cosine decay)."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.05
    )
    warm_up = max(1, steps // 30)
    source = batches(tokenizer, seed, size)
    began, tokens, mean = time.process_time(), 0, 0.0
    for step in range(steps):
        share = max(0.0, (step - warm_up) / max(1, steps - warm_up))
        factor = min(1.0, (step + 1) / warm_up) * 0.5 * (1 + math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = peak * max(factor, 0.01)
        ids, labels, mask = next(source)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += int(mask.sum())
        mean = loss.item() if step == 0 else 0.98 * mean + 0.02 * loss.item()
        if step % 100 == 99:
            spent = time.process_time() - began
            print(
                f"step {step + 1}/{steps}  loss {mean:.4f}  "
                f"{tokens / spent:,.0f} tokens/CPU-s  {spent:.0f} CPU-s",
                file=sys.stderr,
                flush=True,
            )


def save(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path, facts: Any
) -> None:
    """Write a Hugging Face folder with the settings that the model was made for."""
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    text = json.dumps({**SETTINGS, "training": facts}, indent=2, sort_keys=True)
    (out / "ragen.json").write_text(f"{text}\n", encoding="utf-8")


def main() -> None:
    """Train, save, and print the share of solved dev episodes at levels 1 and 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    tokenizer = build_tokenizer(asked.seed, asked.vocabulary)
    model = build_model(tokenizer, asked.seed)
    print(f"{model.num_parameters():,} parameters", file=sys.stderr)
    train(
        model,
        tokenizer,
        seed=asked.seed,
        steps=asked.steps,
        size=asked.batch,
        peak=asked.lr,
    )
    facts = {
        "method": "behaviour cloning of oracle play on the train split",
        "cells": {
            f"{env_id}:{level}": share for (env_id, level), share in CELLS.items()
        },
        "parameters": model.num_parameters(),
        "seed": asked.seed,
        "steps": asked.steps,
        "batch": asked.batch,
        "lr": asked.lr,
    }
    save(model, tokenizer, asked.out, facts)


if __name__ == "__main__":
    main()
