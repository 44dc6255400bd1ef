"""How a causal language model scores reasoning after other prompts, by the prefix.

Each prompt is read once; its keys and values then serve all continuations, in batches.
What the scores say is told in `ragen_bench.starpo.template_collapse`.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ragen_bench.errors import InvalidSpec
from ragen_bench.starpo.logprobs import Selected, token_logprobs
from ragen_bench.starpo.policy import plain_network
from ragen_bench.starpo.template_collapse import Score, Tokens


def shared_prefix(network: Any, *, temperature: float = 1.0, batch: int = 32) -> Score:
    """Return a scorer that reads each prompt once for all of its continuations.

    Equal to `plain` but for rounding.  The head runs on the continuations' tokens
    alone, some at a time.

    Args:
        network: A causal language model of transformers; it is put into evaluation
            mode while it scores, and keeps no gradient.
        temperature: That of sampling, above 0.
        batch: Continuations of a pass.

    Raises:
        InvalidSpec: The temperature or the batch is out of range.
    """
    _check(temperature, batch)

    model = plain_network(network)

    def score(prompt: Tokens, thoughts: Sequence[Tokens]) -> list[float]:
        device = model.device
        read = model.base_model(
            input_ids=torch.tensor([list(prompt)], device=device), use_cache=True
        )
        # Newer releases of transformers have another name for it.
        name = "cache" if "cache" in read else "past_key_values"
        # The last state of the prompt predicts the first token of every thought.
        last = read.last_hidden_state[:, -1:]
        scores = [0.0] * len(thoughts)
        # Alike lengths share a pass, which is padded to its longest.
        order = sorted(range(len(thoughts)), key=lambda i: len(thoughts[i]))
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            ids, mask = _padded([thoughts[i] for i in rows], device)
            cache = copy.deepcopy(read[name])
            cache.batch_repeat_interleave(len(rows))
            hidden = last.expand(len(rows), -1, -1)
            if ids.shape[1] > 1:
                places = len(prompt) + torch.arange(ids.shape[1] - 1, device=device)
                seen = mask.new_ones((len(rows), len(prompt)))
                more = model.base_model(
                    input_ids=ids[:, :-1],
                    attention_mask=torch.cat([seen, mask[:, :-1]], dim=1),
                    position_ids=places.expand(len(rows), -1),
                    use_cache=True,
                    **{name: cache},
                )
                hidden = torch.cat([hidden, more.last_hidden_state], dim=1)
            found = _scored(model, hidden, ids, mask, temperature)
            for row, value in zip(rows, found, strict=True):
                scores[row] = value
        return scores

    return _evaluating(network, score)


def plain(network: Any, *, temperature: float = 1.0, batch: int = 32) -> Score:
    """Return a scorer that reads prompt and continuation anew each time.

    It is what `shared_prefix` must equal, and serves models whose caches cannot be
    copied.

    Args:
        network: A causal language model of transformers.
        temperature: That of sampling, above 0.
        batch: Continuations of a pass.

    Raises:
        InvalidSpec: The temperature or the batch is out of range.
    """
    _check(temperature, batch)

    def score(prompt: Tokens, thoughts: Sequence[Tokens]) -> list[float]:
        device = next(network.parameters()).device
        scores: list[float] = []
        for start in range(0, len(thoughts), batch):
            some = thoughts[start : start + batch]
            ids, mask = _padded([[*prompt, *thought] for thought in some], device)
            logits = network(
                input_ids=ids, attention_mask=mask, use_cache=False
            ).logits[:, len(prompt) - 1 : -1]
            wanted = ids[:, len(prompt) :], mask[:, len(prompt) :]
            scores += _summed(logits, *wanted, temperature)
        return scores

    return _evaluating(network, score)


def _evaluating(network: Any, score: Score) -> Score:
    """Return a scorer that leaves the network as it found it, and keeps no gradient."""

    def scored(prompt: Tokens, thoughts: Sequence[Tokens]) -> Sequence[float]:
        training = network.training
        network.eval()
        try:
            with torch.inference_mode():
                return score(prompt, thoughts)
        finally:
            network.train(training)

    return scored


def _padded(
    rows: Sequence[Tokens], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [B, T] and a mask of their tokens [B, T], padded on the right."""
    width = max(map(len, rows))
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(list(row))
        mask[index, : len(row)] = 1
    return ids.to(device), mask.to(device)


def _scored(
    model: Any,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    mask: torch.Tensor,
    temperature: float,
) -> list[float]:
    """Return the log-likelihood of each row of ids [B, T], states [B, T, D]."""
    wanted = mask.bool()
    scored = token_logprobs(
        Selected(hidden=hidden[wanted], targets=ids[wanted]),
        model.get_output_embeddings().weight,
        temperature=temperature,
    )
    # A sum over hundreds of tokens loses digits in 32 bits.
    sums = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)
    sums[wanted] = scored.logprobs.double()
    found: list[float] = sums.sum(dim=1).tolist()
    return found


def _summed(
    logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor, temperature: float
) -> list[float]:
    """Return the log-likelihood of each row of ids [B, T], logits [B, T, V]."""
    log_p = torch.log_softmax(logits.float() / temperature, dim=-1)
    picked = log_p.gather(2, ids[..., None])[..., 0]
    # A sum over hundreds of tokens loses digits in 32 bits.
    summed: list[float] = (picked.double() * mask).sum(dim=1).tolist()
    return summed


def _check(temperature: float, batch: int) -> None:
    if temperature <= 0:
        raise InvalidSpec(f"temperature is {temperature!r}; it must be above 0")
    if batch < 1:
        raise InvalidSpec(f"batch is {batch!r}; it must be at least 1")
