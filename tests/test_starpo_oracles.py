"""Ours beside the functions of TRL and verl, which are run as they are.

Where they cannot be imported, these tests fail: that is what their lane is for.  At the
end they tell how far apart the numbers were.
"""

import collections
import os
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.starpo import advantages, gae, logprobs, losses  # noqa: E402
from ragen_bench.starpo.aggregation import aggregate, denominator  # noqa: E402

# hf as well, lest a lane without PyTorch that chooses by "not hf" takes them in.
pytestmark = [
    pytest.mark.hf,
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),
]

TINY = Path(logprobs.__file__).parent.parent / "models" / "tiny"


APART: dict[str, float] = {}
"""Test to the largest absolute difference of its numbers."""


@pytest.fixture(scope="module", autouse=True)
def table(request):
    """Print the differences when all is compared."""
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n\nlargest absolute difference")
        for test, apart in APART.items():
            print(f"{apart:8.1e}  {test}")


def near(found, expected, abs: float = 1e-5) -> None:
    found, expected = found.detach().double(), expected.detach().double()
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2]
    test = test.partition("[")[0].partition(" ")[0]
    apart = (found - expected).abs().max().item()
    APART[test] = max(APART.get(test, 0.0), apart)
    torch.testing.assert_close(found, expected, atol=abs, rtol=1e-5)


def core():
    """Return verl's algorithms."""
    from verl.trainer.ppo import core_algos

    return core_algos


class Batch:
    """Six trajectories of up to nine tokens, observations among them."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw() -> torch.Tensor:
            return torch.randn(6, 9, generator=generator)

        self.mask = torch.rand(6, 9, generator=generator) < 0.6
        self.mask[:, 0] = True
        order = self.mask.long().cumsum(1)
        last = self.mask & (order == order[:, -1:])
        self.rewards = torch.where(last, draw(), 0.0)
        self.groups = ["a", "b", "a", "a", "b", "b"]
        self.values, self.old_values, self.returns = draw(), draw(), draw()
        self.logprobs = draw() / 2 - 2
        self.old = self.logprobs + draw() / 2
        self.reference = self.logprobs + draw() / 2
        self.advantages = draw()
        self.ids = torch.arange(6)[:, None].expand(6, 9)[self.mask]
        self.rollout = gae.Rollout(
            rewards=self.rewards, values=self.values, mask=self.mask, turn_ends=last
        )

    def flat(self, *names: str) -> list[torch.Tensor]:
        """Return arrays over action tokens."""
        return [getattr(self, name)[self.mask] for name in names]


every_seed = pytest.mark.parametrize("seed", range(3))


@every_seed
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (0.5, 0.0)])
def test_gae_is_verls(seed: int, gamma: float, lam: float) -> None:
    batch = Batch(seed)
    theirs, returns = core().compute_gae_advantage_return(
        batch.rewards, batch.values, batch.mask.float(), gamma, lam
    )
    ours = gae.gae(batch.rollout, gamma, lam)
    near(advantages.whiten(ours.advantages, batch.mask)[batch.mask], theirs[batch.mask])
    near(ours.returns[batch.mask], returns[batch.mask])


@every_seed
@pytest.mark.parametrize("divided", [True, False])
def test_grpo_and_dr_grpo_are_verls(seed: int, divided: bool) -> None:
    import numpy

    batch = Batch(seed)
    theirs, _ = core().compute_grpo_outcome_advantage(
        batch.rewards,
        batch.mask.float(),
        numpy.array(batch.groups),
        norm_adv_by_std_in_grpo=divided,
    )
    ours = advantages.group_normalized if divided else advantages.group_centred
    near(
        ours(batch.rewards.sum(-1), batch.groups)[batch.ids],
        theirs[batch.mask],
    )


@every_seed
def test_leave_one_out_is_verls(seed: int) -> None:
    import numpy

    batch = Batch(seed)
    theirs, _ = core().compute_rloo_outcome_advantage(
        batch.rewards, batch.mask.float(), numpy.array(batch.groups)
    )
    near(
        advantages.leave_one_out(batch.rewards.sum(-1), batch.groups)[batch.ids],
        theirs[batch.mask],
    )


@every_seed
def test_reinforce_pp_is_verls(seed: int) -> None:
    batch = Batch(seed)
    theirs, returns = core().compute_reinforce_plus_plus_outcome_advantage(
        batch.rewards, batch.mask.float(), config=types.SimpleNamespace(gamma=0.9)
    )
    near(advantages.reinforce_pp(batch.rewards, batch.mask, 0.9), theirs)
    near(gae.discounted_returns(batch.rewards, batch.mask, 0.9), returns)


def test_whiten_is_verls() -> None:
    from verl.utils.torch_functional import masked_whiten

    batch = Batch()
    theirs = masked_whiten(batch.values, batch.mask.float())
    near(advantages.whiten(batch.values, batch.mask)[batch.mask], theirs[batch.mask])


AGGREGATIONS = [
    ("token-mean", "token-mean", None),
    ("seq-mean-token-mean", "seq-mean-token-mean", None),
    ("seq-mean-token-sum", "seq-mean-token-sum", None),
    ("constant", "seq-mean-token-sum-norm", 9.0),
]


@every_seed
@pytest.mark.parametrize(("ours", "theirs", "constant"), AGGREGATIONS)
def test_clipped_surrogate_and_aggregation_are_verls(
    seed: int, ours, theirs: str, constant
) -> None:
    from verl.workers.config import ActorConfig

    batch = Batch(seed)
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=3.0,
    )
    if constant is not None:
        config.global_batch_info["loss_scale_factor"] = constant
    new = batch.logprobs.clone().requires_grad_(True)
    loss, metrics = core().compute_policy_loss_vanilla(
        batch.old, new, batch.advantages, batch.mask.float(), theirs, config
    )
    loss.backward()
    old, wanted = batch.flat("old", "advantages")
    mine = batch.logprobs[batch.mask].requires_grad_(True)
    terms = losses.clipped_surrogate(mine, old, wanted, low=0.2, high=0.28, dual=3.0)
    found = aggregate(terms, batch.ids, denominator(batch.ids, ours, constant))
    found.backward()
    near(found, loss)
    near(mine.grad, new.grad[batch.mask])
    which = losses.clipped(mine, old, wanted, low=0.2, high=0.28)
    share = (which.low | which.high).float().mean().item()
    assert share == pytest.approx(metrics["actor/pg_clipfrac"])


@every_seed
def test_value_loss_is_verls(seed: int) -> None:
    batch = Batch(seed)
    new = batch.values.clone().requires_grad_(True)
    loss, _ = core().compute_value_loss(
        new, batch.returns, batch.old_values, batch.mask.float(), 0.5
    )
    loss.backward()
    mine = batch.values[batch.mask].requires_grad_(True)
    old, returns = batch.flat("old_values", "returns")
    found = losses.value_loss(mine, old, returns, 0.5).mean()
    found.backward()
    near(found, loss)
    near(mine.grad, new.grad[batch.mask])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("right_gradient", [True, False])
def test_divergences_are_verls(kind: str, right_gradient: bool) -> None:
    batch = Batch()
    new = batch.logprobs.clone().requires_grad_(True)
    theirs = core().kl_penalty(new, batch.reference, kind + "+" * right_gradient)
    theirs[batch.mask].sum().backward()
    mine = batch.logprobs[batch.mask].requires_grad_(True)
    found = losses.kl(
        mine, batch.reference[batch.mask], kind, right_gradient=right_gradient
    )
    found.sum().backward()
    near(found, theirs[batch.mask])
    near(mine.grad, new.grad[batch.mask])


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("threshold", "options"),
    [(2.0, {"high": 2.0}), ("0.5_2.0", {"low": 0.5, "high": 2.0, "outside": "mask"})],
)
def test_importance_weights_are_verls(level: str, threshold, options) -> None:
    from verl.trainer.ppo import rollout_corr_helper

    batch = Batch()
    theirs, _ = rollout_corr_helper.compute_rollout_correction_weights(
        batch.logprobs - batch.old, batch.mask.float(), level, threshold
    )
    ids = batch.ids if level == "sequence" else None
    found = losses.importance_weights(*batch.flat("logprobs", "old"), ids, **options)
    near(found, theirs[batch.mask])


def test_entropies_and_logprobs_are_those_of_both() -> None:
    import trl.trainer.utils
    import verl.utils.torch_functional

    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 7, 8), torch.randn(50, 8)
    ids = torch.randint(50, (4, 7))
    logits = (hidden @ weight.T) / 0.7
    one = logprobs.Selected(hidden=hidden.flatten(0, 1), targets=ids.flatten())
    found = logprobs.token_logprobs(one, weight, temperature=0.7, chunk=5)
    near(losses.entropy(hidden @ weight.T, 0.7).flatten(), found.entropies)
    for theirs in (
        verl.utils.torch_functional.entropy_from_logits(logits),
        trl.trainer.utils.entropy_from_logits(logits),
    ):
        near(found.entropies, theirs.flatten())
    for theirs in (
        verl.utils.torch_functional.logprobs_from_logits_v2(logits, ids),
        trl.trainer.utils.selective_log_softmax(logits, ids),
    ):
        near(found.logprobs, theirs.flatten())


def trl_loss(batch: Batch, new: torch.Tensor, kind: str, **arguments) -> torch.Tensor:
    """Return the loss that TRL's GRPO trainer makes of a batch."""
    from trl import GRPOTrainer

    settings = {"delta": None, "use_bias_correction_kl": False}
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (
            new,
            torch.zeros(6, 9),
            None,
        ),
        accelerator=types.SimpleNamespace(
            num_processes=1,
            gather=lambda x: x,
            gather_for_metrics=lambda x: x,
            reduce=lambda x, reduction: x,
        ),
        args=types.SimpleNamespace(**settings, steps_per_generation=1),
        aux_loss_enabled=False,
        beta=arguments.get("beta", 0.0),
        current_gradient_accumulation_steps=1,
        epsilon_low=0.2,
        epsilon_high=0.28,
        importance_sampling_level="token",
        loss_type=kind,
        max_completion_length=9,
        model=types.SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": collections.defaultdict(list)},
    )
    ids = torch.zeros(6, 9, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(6, 1),
        "completion_ids": ids,
        "completion_mask": torch.ones(6, 9),
        "tool_mask": batch.mask.float(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.reference,
        "num_items_in_batch": batch.mask.sum(),
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs)


@every_seed
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize(
    ("theirs", "ours", "constant"),
    [
        ("dapo", "token-mean", None),
        ("bnpo", "token-mean", None),
        ("grpo", "seq-mean-token-mean", None),
        ("luspo", "seq-mean-token-sum", None),
        ("dr_grpo", "constant", 9.0),
    ],
)
def test_losses_are_trls(seed: int, beta, theirs: str, ours, constant) -> None:
    batch = Batch(seed)
    new = batch.logprobs.clone().requires_grad_(True)
    loss = trl_loss(batch, new, theirs, beta=beta)
    loss.backward()
    old, wanted, reference = batch.flat("old", "advantages", "reference")
    mine = batch.logprobs[batch.mask].requires_grad_(True)
    terms = losses.clipped_surrogate(mine, old, wanted, low=0.2, high=0.28)
    terms = terms + beta * losses.kl(mine, reference, "k3", right_gradient=False)
    found = aggregate(terms, batch.ids, denominator(batch.ids, ours, constant))
    found.backward()
    near(found, loss)
    near(mine.grad, new.grad[batch.mask])


@pytest.mark.parametrize(
    ("trainer", "settings"),
    [
        ("GRPO", {"scale_rewards": "group"}),
        ("GRPO", {"scale_rewards": "none"}),
        ("RLOO", {"beta": 0.0}),
    ],
)
def test_advantages_are_those_of_trls_trainers(trainer, settings, tmp_path) -> None:
    import datasets
    import transformers
    import trl

    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), num_attention_heads=1, **shape
    )
    rewards = [1.0, 0.0, 0.0, 0.5, 2.0, 3.0, 3.0, -1.0]
    made = getattr(trl, f"{trainer}Trainer")(
        model=transformers.LlamaForCausalLM(config),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **kwargs: rewards,
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}, {"prompt": "b"}]),
        args=getattr(trl, f"{trainer}Config")(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=3,
            use_cpu=True,
            report_to=[],
            **settings,
        ),
    )
    made.model.train()
    rows = [{"prompt": prompt} for prompt in "aaaabbbb"]
    theirs = made._generate_and_score_completions(rows)["advantages"]
    returns, groups = torch.tensor(rewards), list("aaaabbbb")
    if trainer == "RLOO":
        found = advantages.leave_one_out(returns, groups)
    elif settings["scale_rewards"] == "none":
        found = advantages.group_centred(returns, groups)
    else:
        # TRL adds 1e-4 to the deviation, verl 1e-6.
        found = advantages.group_normalized(returns, groups, eps=1e-4)
    near(found, theirs.flatten())
