"""Faults that the tests must find: a change of the source, and the tests that fail.

``python mutants.py`` tries them all, or those that are named, and prints one line of
JSON for each.  A mutant is applied to a copy of the module in memory; no file changes.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import json
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One planted fault."""

    name: str
    module: str
    """Below ``ragen_bench``."""
    old: str
    """Occurs exactly once in the source of the module."""
    new: str
    tests: tuple[str, ...]
    """``file::function``; each of them must fail, in any of its parameters."""


FILTERS, ADVANTAGES, GAE = (
    "test_starpo_filters",
    "test_starpo_advantages",
    "test_starpo_gae",
)
LOSSES, AGGREGATION = "test_starpo_losses", "test_starpo_aggregation"
LOGPROBS = "test_starpo_logprobs"


def mutant(name: str, module: str, old: str, new: str, *tests: str) -> Mutant:
    """Return a mutant of the trainer whose tests lie in the file beside it."""
    file = f"test_starpo_{module}"
    found = tuple(t if "::" in t else f"{file}::{t}" for t in tests)
    return Mutant(name, f"starpo.{module}", old, new, found)


MUTANTS = (
    # Filters
    mutant(
        "spread of one trajectory divides by zero or is guessed",
        "filters",
        "    if high - low <= NOISE * max(1.0, abs(low), abs(high)):\n"
        "        return 0.0\n",
        "    if len(values) == 1:\n        return 1.0\n",
        "test_a_group_of_one_has_no_spread",
        "test_returns_that_differ_by_noise_are_equal",
    ),
    mutant(
        "noise counts as spread",
        "filters",
        "NOISE = 1e-6",
        "NOISE = 0.0",
        "test_returns_that_differ_by_noise_are_equal",
    ),
    mutant(
        "deviation of the population where the sample's is asked",
        "filters",
        "(len(values) - ddof)",
        "len(values)",
        "test_spread_is_the_sample_deviation_or_that_of_the_population",
    ),
    mutant(
        "variance in place of the deviation",
        "filters",
        "return math.sqrt(squares / (len(values) - ddof))",
        "return squares / (len(values) - ddof)",
        "test_spread_is_the_sample_deviation_or_that_of_the_population",
        "test_how_strongly_ragens_rules_filter_binary_rewards",
    ),
    mutant(
        "groups by stride",
        "filters",
        "    for value, group in zip(returns, groups, strict=True):\n",
        "    ids = list(dict.fromkeys(groups))\n"
        "    size = max(1, len(returns) // len(ids))\n"
        "    for i, value in enumerate(returns):\n"
        "        group = ids[min(i // size, len(ids) - 1)]\n",
        "test_groups_are_known_by_id_after_shuffling_and_dropping",
    ),
    mutant(
        "returns that are no number pass",
        "filters",
        "if not math.isfinite(value):",
        "if False:",
        "test_a_return_that_is_no_number_is_refused",
    ),
    mutant(
        "share is of the candidates, not of all groups",
        "filters",
        "max(int(share * len(scores)), at_least)",
        "max(int(share * len(ranked)), at_least)",
        "test_top_k_keeps_a_share_of_the_groups",
    ),
    mutant(
        "share is rounded up",
        "filters",
        "max(int(share * len(scores)), at_least)",
        "max(math.ceil(share * len(scores)), at_least)",
        "test_top_k_keeps_a_share_of_the_groups",
    ),
    mutant(
        "the prefix has no slack",
        "filters",
        " for group in ranked) - slack",
        " for group in ranked)",
        "test_linear_top_p_keeps_the_shortest_prefix_that_holds_the_mass",
    ),
    mutant(
        "the prefix takes in flat groups",
        "filters",
        "if mass >= target or scores[group] <= 0:",
        "if mass >= target:",
        "test_linear_top_p_keeps_the_shortest_prefix_that_holds_the_mass",
    ),
    mutant(
        "flat groups are kept where all are flat",
        "filters",
        "    target = p * math.fsum(scores[group] for group in ranked) - slack\n",
        "    target = p * math.fsum(scores[group] for group in ranked) - slack\n"
        "    if target <= 0:\n        return tuple(ranked)\n",
        "test_linear_top_p_keeps_nothing_where_all_groups_are_flat",
    ),
    mutant(
        "the softmax prefix stops one early",
        "filters",
        "return tuple(ranked[:count])",
        "return tuple(ranked[: count - 1])",
        "test_softmax_top_p_keeps_the_probable_prefix",
        "test_how_strongly_ragens_rules_filter_binary_rewards",
    ),
    mutant(
        "the softmax overflows",
        "filters",
        "math.exp(sign * scores[group] - best)",
        "math.exp(sign * scores[group])",
        "test_softmax_takes_scores_of_any_size",
    ),
    mutant(
        "scores are scaled by their sum",
        "filters",
        "    top = max(scores.values(), default=0.0)\n",
        "    top = sum(scores.values())\n",
        "test_scale_free_scores_make_every_rule_blind_to_the_unit_of_reward",
    ),
    mutant(
        "loss scaling is the wrong way round",
        "filters",
        "return math.sqrt(kept_share)",
        "return kept_share**2",
        "test_loss_scale",
    ),
    # Advantages without a critic
    mutant(
        "GRPO with the deviation of the population",
        "advantages",
        "(counts - ddof).clamp(min=1)",
        "counts",
        "test_group_normalized_divides_by_the_sample_deviation",
    ),
    mutant(
        "a flat group keeps its noise",
        "advantages",
        "torch.where(_flat(low, high)[index], 0.0, wide - mean[index])",
        "wide - mean[index]",
        "test_a_flat_group_has_no_advantage_at_all",
        "test_rounding_of_single_precision_is_no_spread",
    ),
    mutant(
        "a group of one has its return as advantage",
        "advantages",
        "torch.where(_flat(low, high)[index], 0.0, wide - mean[index])",
        "torch.where((counts == 1)[index], wide, wide - mean[index])",
        "test_a_group_of_one_has_no_advantage",
    ),
    mutant(
        "advantages by stride",
        "advantages",
        "[numbers.setdefault(group, len(numbers)) for group in ids]",
        "[i * len(set(ids)) // len(ids) for i, g in enumerate(ids)\n"
        "         if numbers.setdefault(g, len(numbers)) >= 0]",
        "test_groups_are_known_by_id_after_shuffling_and_dropping",
    ),
    mutant(
        "the baseline holds the trajectory itself",
        "advantages",
        "factor = counts / (counts - 1).clamp(min=1)",
        "factor = torch.ones_like(counts)",
        "test_leave_one_out_compares_with_the_others",
    ),
    mutant(
        "normalised over the batch, not over the group",
        "advantages",
        "mean = torch.zeros_like(counts).index_add_(0, index, wide) / counts",
        "mean = wide.mean().expand_as(counts)",
        "test_advantages_of_a_group_sum_to_nothing",
        "test_groups_are_known_by_id_after_shuffling_and_dropping",
    ),
    mutant(
        "whitening counts the padding",
        "advantages",
        "inside = x[mask].double()",
        "inside = (x * mask).flatten().double()",
        "test_whiten_counts_the_mask_alone",
        "test_whiten_does_not_see_padding",
    ),
    mutant(
        "whitening with the biased variance",
        "advantages",
        "inside.var()",
        "inside.var(correction=0)",
        "test_whiten_counts_the_mask_alone",
        "test_whitened_numbers_have_mean_0_and_variance_1",
    ),
    mutant(
        "REINFORCE++ whitens over padding and observations",
        "advantages",
        "return whiten(discounted_returns(rewards, mask, gamma), mask)",
        "return whiten(discounted_returns(rewards, mask, gamma))",
        "test_reinforce_pp_whitens_returns_over_action_tokens",
    ),
    # Advantages by a critic
    mutant(
        "observation tokens are steps",
        "gae",
        "        a_tp1 = torch.where(acts_t, a_t, a_tp1)\n",
        "        a_tp1 = torch.where(acts_t, a_t, gamma * lam * a_tp1)\n",
        "test_gae_of_tokens",
        "test_inserted_observation_tokens_change_nothing",
    ),
    mutant(
        "the value of an observation token is the next value",
        "gae",
        "        v_tp1 = torch.where(acts_t, v_t, v_tp1)\n",
        "        v_tp1 = v_t\n",
        "test_gae_of_tokens",
        "test_inserted_observation_tokens_change_nothing",
    ),
    mutant(
        "lambda is left out",
        "gae",
        "a_t = delta_t + gamma * lam * a_tp1",
        "a_t = delta_t + gamma * a_tp1",
        "test_gae_of_tokens",
        "test_gae_with_lambda_1_is_return_less_value_and_with_0_the_error",
    ),
    mutant(
        "the next value is not discounted",
        "gae",
        "        delta_t = r_t + gamma * v_tp1 - v_t\n",
        "        delta_t = r_t + v_tp1 - v_t\n",
        "test_gae_of_tokens",
    ),
    mutant(
        "a reward on a masked token is lost in silence",
        "gae",
        "    if stray.any():\n",
        "    if False:\n",
        "test_a_rollout_that_cannot_be_is_refused",
        "test_discounted_returns_refuse_a_reward_outside_the_mask",
    ),
    mutant(
        "turns end where a reward is not zero",
        "gae",
        "values, ends = rollout.values, rollout.turn_ends.bool()",
        "values, ends = rollout.values, rollout.rewards != 0",
        "test_bilevel_gae_discounts_across_a_turn_that_earned_nothing",
        "test_bilevel_gae_ends_with_a_turn_that_earned_nothing",
    ),
    mutant(
        "the advantage of a turn runs into the turn before it",
        "gae",
        "            a_tp1 = torch.where(ends[..., t], 0.0, a_tp1)\n",
        "",
        "test_bilevel_gae_discounts_across_a_turn_that_earned_nothing",
    ),
    mutant(
        "tokens are discounted as turns are",
        "gae",
        "_scan(seeded, values, mask, gamma_token, lam, ends)",
        "_scan(seeded, values, mask, gamma_turn, lam, ends)",
        "test_bilevel_gae_discounts_across_a_turn_that_earned_nothing",
    ),
    mutant(
        "turns are valued at their end",
        "gae",
        '"amin", include_self=False\n    )\n    return _Turns(',
        '"amax", include_self=False\n    )\n    return _Turns(',
        "test_gae_of_turns_has_one_step_a_reply",
    ),
    # Losses
    mutant(
        "clip ranges are swapped",
        "losses",
        "clipped = -advantages * ratio.clamp(1 - low, 1 + high)",
        "clipped = -advantages * ratio.clamp(1 - high, 1 + low)",
        "test_each_quadrant_of_the_clipped_surrogate",
    ),
    mutant(
        "the better of the two surrogates",
        "losses",
        "loss = torch.maximum(free, clipped)",
        "loss = torch.minimum(free, clipped)",
        "test_each_quadrant_of_the_clipped_surrogate",
    ),
    mutant(
        "the sign of the advantage",
        "losses",
        "free = -advantages * ratio\n",
        "free = advantages * ratio\n",
        "test_each_quadrant_of_the_clipped_surrogate",
        "test_the_ratio_is_1_and_the_gradient_that_of_the_policy_at_the_start",
    ),
    mutant(
        "dual clip on positive advantages",
        "losses",
        "torch.where(advantages < 0, torch.minimum(loss, -advantages * dual), loss)",
        "torch.minimum(loss, -advantages * dual)",
        "test_dual_clip_bounds_negative_advantages_alone",
    ),
    mutant(
        "the ratio may overflow",
        "losses",
        "return difference.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()",
        "return difference.exp()",
        "test_an_extreme_ratio_overflows_nothing",
    ),
    mutant(
        "the old policy has a gradient",
        "losses",
        "difference = logprobs - old_logprobs.detach()",
        "difference = logprobs - old_logprobs",
        "test_no_gradient_flows_into_the_old_policy",
    ),
    mutant(
        "clipped tokens are counted on both sides of the advantage",
        "losses",
        "high=(ratio > 1 + high) & (advantages > 0),",
        "high=ratio > 1 + high,",
        "test_clipped_tokens_are_those_without_gradient",
    ),
    mutant(
        "the smaller of the two value errors",
        "losses",
        "0.5 * torch.maximum(error, (near - returns) ** 2)",
        "0.5 * torch.minimum(error, (near - returns) ** 2)",
        "test_value_loss_holds_the_critic_near_the_old_value",
    ),
    mutant(
        "values are clipped around the returns",
        "losses",
        "torch.clamp(values, old_values - clip, old_values + clip)",
        "torch.clamp(values, returns - clip, returns + clip)",
        "test_value_loss_holds_the_critic_near_the_old_value",
    ),
    mutant(
        "k3 with the gradient of the other direction",
        "losses",
        "return value.detach() + half_square - half_square.detach()",
        "return value",
        "test_every_estimate_has_the_gradient_of_the_divergence",
    ),
    mutant(
        "k3 of the other direction",
        "losses",
        "torch.expm1(-bounded) + bounded",
        "torch.expm1(bounded) - bounded",
        "test_estimates_of_the_divergence",
        "test_k1_and_k3_have_the_mean_of_the_divergence",
    ),
    mutant(
        "entropy at temperature 1",
        "losses",
        "torch.log_softmax(wide / temperature, dim=-1)",
        "torch.log_softmax(wide, dim=-1)",
        "test_the_entropy_is_that_of_the_sampling_temperature",
    ),
    mutant(
        "entropy without a gradient through the probabilities",
        "losses",
        "return -(log_p.exp() * log_p.clamp(",
        "return -(log_p.exp().detach() * log_p.clamp(",
        "test_the_entropy_has_its_gradient",
    ),
    mutant(
        "importance weights upside down",
        "losses",
        "(train_logprobs - behaviour_logprobs).detach()",
        "(behaviour_logprobs - train_logprobs).detach()",
        "test_importance_weights",
    ),
    mutant(
        "importance weights of a sequence are those of its tokens",
        "losses",
        "log_weights = _sums(log_weights, sequence_ids)[sequence_ids]",
        "log_weights = log_weights + 0 * sequence_ids",
        "test_importance_weights",
    ),
    mutant(
        "importance weights carry a gradient",
        "losses",
        "(train_logprobs - behaviour_logprobs).detach()",
        "train_logprobs - behaviour_logprobs.detach()",
        "test_importance_weights_carry_no_gradient_and_are_1_for_the_same_policy",
    ),
    # Aggregation
    mutant(
        "denominator of the micro-batch",
        "aggregation",
        "return values.sum() / over.total",
        "return values.mean() if len(values) else values.sum()",
        "test_gradients_do_not_depend_on_the_micro_batch",
        "test_a_sequence_may_be_split_over_micro_batches",
        "test_two_sequences_of_length_2_and_8",
    ),
    mutant(
        "length of the part of a sequence that is at hand",
        "aggregation",
        "values = values / over.lengths.to(values)[sequence_ids]",
        "values = values / torch.bincount(sequence_ids)[sequence_ids]",
        "test_a_sequence_may_be_split_over_micro_batches",
    ),
    mutant(
        "means of sequences and of tokens mixed up",
        "aggregation",
        "total = float(len(sequence_ids))",
        "total = float(sequences)",
        "test_two_sequences_of_length_2_and_8",
    ),
    mutant(
        "sequences without an action token are counted",
        "aggregation",
        "sequences = int((lengths > 0).sum())",
        "sequences = len(lengths)",
        "test_a_sequence_without_action_tokens_does_not_count",
    ),
    mutant(
        "the constant is left out",
        "aggregation",
        "total = sequences * constant",
        "total = float(sequences)",
        "test_two_sequences_of_length_2_and_8",
    ),
    mutant(
        "Dr. GRPO forgets how many sequences there are",
        "aggregation",
        "total = sequences * constant",
        "total = constant",
        "test_two_sequences_of_length_2_and_8",
    ),
    # Log-probabilities
    mutant(
        "the state of the token itself predicts it",
        "logprobs",
        "hidden=hidden[:, :-1][mask[:, 1:]]",
        "hidden=hidden[:, 1:][mask[:, 1:]]",
        "test_each_token_is_predicted_by_the_state_before_it",
    ),
    mutant(
        "the mask is shifted",
        "logprobs",
        "targets=ids[:, 1:][mask[:, 1:]]",
        "targets=ids[:, 1:][mask[:, :-1]]",
        "test_each_token_is_predicted_by_the_state_before_it",
    ),
    mutant(
        "log-probabilities at temperature 1",
        "logprobs",
        "return torch.log_softmax(wide / temperature, dim=-1)",
        "return torch.log_softmax(wide, dim=-1)",
        "test_temperature_is_that_of_sampling",
        "test_the_chunked_head_is_the_plain_one",
    ),
    mutant(
        "gradients at temperature 1",
        "logprobs",
        "d_logits = d_logits.div_(ctx.temperature).to(hidden.dtype)",
        "d_logits = d_logits.to(hidden.dtype)",
        "test_the_chunked_head_is_the_plain_one",
        "test_gradients_are_those_of_finite_differences",
    ),
    mutant(
        "softmax in half precision",
        "logprobs",
        "return torch.log_softmax(wide / temperature, dim=-1)",
        "return torch.log_softmax(logits / temperature, dim=-1)",
        "test_the_softmax_of_half_precision_states_is_that_of_single_precision",
    ),
    mutant(
        "the last chunk alone has gradients",
        "logprobs",
        "d_weight.addmm_(d_logits.T, hidden[rows])",
        "d_weight = d_logits.T @ hidden[rows]",
        "test_the_chunked_head_is_the_plain_one",
    ),
    mutant(
        "entropy has no gradient",
        "logprobs",
        "            if d_entropies is not None:",
        "            if False:",
        "test_the_chunked_head_is_the_plain_one",
        "test_either_result_may_be_used_alone",
    ),
    mutant(
        "all logits exist on the way back",
        "logprobs",
        "for start in range(0, len(hidden), ctx.chunk):\n"
        "            rows = slice(start, start + ctx.chunk)",
        "for start in range(0, 1):\n            rows = slice(0, len(hidden))",
        "test_never_more_than_a_chunk_of_logits_exists",
    ),
    mutant(
        "log-probabilities are kept",
        "logprobs",
        "            entropies[rows] = _entropy(log_p)\n        return",
        "            entropies[rows] = _entropy(log_p)\n"
        "            ctx.save_for_backward(hidden, weight, log_p)\n        return",
        "test_the_chunked_head_is_the_plain_one",
    ),
)


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Put the changed module in the place of the sound one for a while."""
    name = f"ragen_bench.{mutant.module}"
    sound = importlib.import_module(name)
    source = inspect.getsource(sound)
    if source.count(mutant.old) != 1:
        raise LookupError(f"{mutant.old!r} occurs {source.count(mutant.old)} times")
    changed = types.ModuleType(name)
    changed.__file__, changed.__spec__ = sound.__file__, sound.__spec__
    package, _, last = name.rpartition(".")
    sys.modules[name] = changed
    setattr(sys.modules[package], last, changed)
    try:
        code = compile(source.replace(mutant.old, mutant.new), name, "exec")
        exec(code, changed.__dict__)
        yield
    finally:
        sys.modules[name] = sound
        setattr(sys.modules[package], last, sound)


class Notes:
    """Notes which test functions failed, and how."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.broken: list[str] = []

    def pytest_runtest_logreport(self, report) -> None:
        """Take down what pytest reports of a phase of a test."""
        if not report.failed:
            return
        function = report.nodeid.partition("[")[0].rpartition("/")[-1]
        self.failed.add(function.replace(".py::", "::"))
        crash = getattr(report.longrepr, "reprcrash", None)
        how = crash.message.splitlines()[0] if crash else str(report.longrepr)
        if report.when != "call":
            self.broken.append(f"{function}: {how}")


def run(tests: Sequence[str]) -> tuple[Notes, str]:
    """Run test functions in this process, with their modules imported anew."""
    for name in list(sys.modules):
        if name.rpartition(".")[-1] in {test.partition("::")[0] for test in tests}:
            del sys.modules[name]
    notes = Notes()
    nodes = [f"{HERE / test.replace('::', '.py::')}" for test in tests]
    options = ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    options += ["--rootdir", str(HERE.parent), "-p", "no:xdist", "-p", "no:randomly"]
    with contextlib.redirect_stdout(sys.stderr):
        code = pytest.main([*options, *nodes], plugins=[notes])
    said = "" if code in (0, 1) else f"pytest ended with {code!r}"
    return notes, said


def verdict(mutant: Mutant) -> str:
    """Return an empty string if the tests find the mutant, else what is wrong."""
    try:
        with planted(mutant):
            notes, said = run(mutant.tests)
    except (LookupError, SyntaxError) as error:
        return str(error)
    if said or notes.broken:
        return said or "; ".join(notes.broken)
    missed = set(mutant.tests) - notes.failed
    return f"not found by {', '.join(sorted(missed))}" if missed else ""


def main(names: Sequence[str]) -> None:
    """Print a verdict on each mutant, and one on the tests without any."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    notes, said = run(tests)
    sound = said or ", ".join(sorted(notes.failed))
    print(json.dumps({"name": "", "wrong": sound and f"fail by themselves: {sound}"}))
    for mutant in chosen:
        print(json.dumps({"name": mutant.name, "wrong": verdict(mutant)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
