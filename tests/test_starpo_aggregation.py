"""Means whose gradients do not depend on how a batch is split."""

import dataclasses
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.errors import InvalidSpec  # noqa: E402
from ragen_bench.starpo import advantages, filters, losses  # noqa: E402
from ragen_bench.starpo.aggregation import aggregate, denominator  # noqa: E402

pytestmark = pytest.mark.hf

MODES = {
    "token-mean": {},
    "seq-mean-token-mean": {},
    "seq-mean-token-sum": {},
    "constant": {"constant": 16.0},
}
every_mode = pytest.mark.parametrize("mode", MODES)


def near(found, expected, abs: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=found.dtype), atol=abs, rtol=0
    )


@pytest.mark.parametrize(
    ("mode", "mean"),
    [
        # Two tokens of 1 and eight of 3: 26 over 10; (1 + 3) / 2; (2 + 24) / 2; 26
        # over 2 sequences of 16.
        ("token-mean", 2.6),
        ("seq-mean-token-mean", 2.0),
        ("seq-mean-token-sum", 13.0),
        ("constant", 0.8125),
    ],
)
def test_two_sequences_of_length_2_and_8(mode, mean: float) -> None:
    values, ids = torch.tensor([1.0] * 2 + [3.0] * 8), torch.tensor([0] * 2 + [1] * 8)
    near(aggregate(values, ids, denominator(ids, mode, **MODES[mode])), mean)


@every_mode
def test_a_sequence_without_action_tokens_does_not_count(mode: str) -> None:
    values, ids = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2])
    with_gap = aggregate(values, ids, denominator(ids, mode, **MODES[mode]))
    without = torch.tensor([0, 0, 1])
    near(
        aggregate(values, without, denominator(without, mode, **MODES[mode])), with_gap
    )


@every_mode
def test_order_of_tokens_does_not_matter(mode: str) -> None:
    values, ids = torch.tensor([1.0, 3.0, 5.0, 7.0]), torch.tensor([0, 0, 1, 0])
    order = torch.tensor([2, 0, 3, 1])
    over = denominator(ids, mode, **MODES[mode])
    near(aggregate(values[order], ids[order], over), aggregate(values, ids, over))


@pytest.mark.parametrize(
    ("mode", "constant", "message"),
    [
        ("constant", None, "needs one"),
        ("token-mean", 3.0, "no other takes one"),
        ("constant", 0.0, "above 0"),
        ("mean", None, "no aggregation 'mean'"),
    ],
)
def test_what_makes_no_sense_is_refused(mode, constant, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        denominator(torch.tensor([0]), mode, constant)


@every_mode
def test_an_empty_batch_is_refused_and_an_empty_part_of_one_is_0(mode: str) -> None:
    none, ids = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    with pytest.raises(InvalidSpec, match="skip the step"):
        aggregate(none, ids, denominator(ids, mode, **MODES[mode]))
    over = denominator(torch.tensor([0, 1]), mode, **MODES[mode])
    assert aggregate(none, ids, over) == 0


class Batch:
    """Seven trajectories of a small policy, and all terms of a loss."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.tensor([3, 1, 5, 2, 4, 1, 6])
        self.ids = torch.repeat_interleave(torch.arange(7), lengths)
        count = len(self.ids)
        self.features = torch.randn(count, 4, generator=generator).double()
        self.tokens = torch.randint(5, (count,), generator=generator)
        self.old = torch.randn(count, generator=generator).double() / 3 - 1.5
        self.advantages = torch.randn(count, generator=generator).double()
        self.weight = torch.randn(5, 4, generator=generator).double()

    def loss(self, weight, rows, over) -> torch.Tensor:
        """Return the loss of some tokens."""
        logits = self.features[rows] @ weight.T
        logprobs = logits.log_softmax(-1).gather(1, self.tokens[rows, None])[:, 0]
        value = losses.clipped_surrogate(
            logprobs, self.old[rows], self.advantages[rows], low=0.2, high=0.28, dual=3
        )
        value = value + 0.1 * losses.kl(logprobs, self.old[rows])
        value = value - 0.01 * losses.entropy(logits)
        return aggregate(value, self.ids[rows], over)

    def gradient(self, parts, over) -> torch.Tensor:
        """Return the gradient, gathered over micro-batches."""
        weight = self.weight.clone().requires_grad_(True)
        for rows in parts:
            self.loss(weight, rows, over).backward()
        return weight.grad


def parts_of(batch: Batch, size: int) -> list[torch.Tensor]:
    """Return the tokens of so many trajectories at a time."""
    return [
        torch.nonzero(torch.isin(batch.ids, chunk))[:, 0]
        for chunk in torch.arange(7).split(size)
    ]


@every_mode
@pytest.mark.parametrize("size", [1, 3])
def test_gradients_do_not_depend_on_the_micro_batch(mode: str, size: int) -> None:
    batch = Batch()
    over = denominator(batch.ids, mode, **MODES[mode])
    whole = batch.gradient(parts_of(batch, 7), over)
    assert whole.abs().max() > 1e-3
    near(batch.gradient(parts_of(batch, size), over), whole, 1e-12)


@every_mode
def test_a_sequence_may_be_split_over_micro_batches(mode: str) -> None:
    # As when a trajectory has several segments.
    batch = Batch()
    over = denominator(batch.ids, mode, **MODES[mode])
    whole = batch.gradient(parts_of(batch, 7), over)
    scattered = list(torch.arange(len(batch.ids)).split(4))
    near(batch.gradient(scattered, over), whole, 1e-12)


@every_mode
def test_a_dropped_trajectory_is_in_no_term(mode: str) -> None:
    # Filtered before any pass, it is not in the arrays: loss and gradient are those of
    # a batch that never had it, entropy and divergence included.
    batch = Batch()
    kept = torch.nonzero(batch.ids != 2)[:, 0]
    over = denominator(batch.ids[kept], mode, **MODES[mode])
    found = batch.gradient([kept], over)
    never = Batch()
    for name in ("features", "tokens", "old", "advantages", "ids"):
        setattr(never, name, getattr(batch, name)[kept])
    never.ids = never.ids - (never.ids > 2).long()
    over = denominator(never.ids, mode, **MODES[mode])
    near(never.gradient([torch.arange(len(kept))], over), found, 1e-12)


def test_groups_without_spread_add_nothing_to_any_term() -> None:
    # Group "flat" has no advantage, yet its divergence and entropy would still push
    # the policy; the filter takes its tokens out of every term.
    batch = Batch()
    groups = ["a", "flat", "flat", "a", "b", "b", "flat"]
    returns = torch.tensor([1.0, 0.5, 0.5, 0.0, 2.0, 0.0, 0.5])
    spread = filters.group_spread(returns.tolist(), groups)
    kept = set(filters.keep_nonzero(spread))
    assert kept == {"a", "b"}
    flat = [i for i, group in enumerate(groups) if group not in kept]
    by_group = advantages.group_normalized(returns, groups)
    assert (by_group[flat] == 0).all()
    batch.advantages = by_group[batch.ids].double()
    stays = torch.tensor([group in kept for group in groups])
    rows = torch.nonzero(stays[batch.ids])[:, 0]
    over = denominator(batch.ids[rows], "token-mean")
    assert over.total == len(rows)
    found = batch.gradient([rows], over)
    # Whatever the flat group's tokens are, nothing changes.
    out = torch.nonzero(~stays[batch.ids])[:, 0]
    batch.features[out] = 100.0
    batch.old[out] = -50.0
    near(batch.gradient([rows], over), found, 1e-12)
    # Left in, it would have pushed.
    everything = torch.arange(len(batch.ids))
    pushed = batch.gradient([everything], denominator(batch.ids, "token-mean"))
    assert (pushed - found).abs().max() > 1e-3


def rank(index: int, folder: str) -> None:
    """Write down the gradients that one of two ranks finds, summed over both."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=(Path(folder) / "meeting").as_uri(),
        rank=index,
        world_size=2,
    )
    batch = Batch()
    # Unequal shares, each with ids of its own from 0.
    rows = torch.nonzero((batch.ids < 2) if index == 0 else (batch.ids >= 2))[:, 0]
    for name in ("features", "tokens", "old", "advantages", "ids"):
        setattr(batch, name, getattr(batch, name)[rows])
    batch.ids = batch.ids - batch.ids.min()
    found = {}
    for mode, options in MODES.items():
        own = denominator(batch.ids, mode, **options)
        total = torch.tensor(own.total)
        torch.distributed.all_reduce(total)
        over = dataclasses.replace(own, total=total.item())
        found[mode] = batch.gradient(torch.arange(len(batch.ids)).split(2), over)
        torch.distributed.all_reduce(found[mode])
    torch.save(found, Path(folder) / f"{index}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="PyTorch was built without gloo",
)
def test_two_ranks_have_the_gradient_of_one_process(tmp_path, monkeypatch) -> None:
    # The two processes import this module by its name; last, so that they still take
    # the installed package.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent.parent)])
    torch.multiprocessing.spawn(rank, args=(str(tmp_path),), nprocs=2)
    batch = Batch()
    for mode, options in MODES.items():
        over = denominator(batch.ids, mode, **options)
        whole = batch.gradient([torch.arange(len(batch.ids))], over)
        for index in range(2):
            near(torch.load(tmp_path / f"{index}.pt")[mode], whole, 1e-12)
