"""Faults that the tests must find: a change of the source, and the tests that fail.

`planting` plants them; ``docs/traps.md`` tells which trap each stands for.
"""

from planting import Mutant


def mutant(name: str, module: str, old: str, new: str, *tests: str) -> Mutant:
    """Return a mutant of the trainer whose tests lie in the file beside it."""
    file = f"test_starpo_{module}"
    found = tuple(t if "::" in t else f"{file}::{t}" for t in tests)
    return Mutant(name, f"starpo.{module}", old, new, found)


def fault(name: str, module: str, old: str, new: str, *tests: str) -> Mutant:
    """Return a mutant of any module; tests are named behind ``test_starpo_``."""
    return Mutant(name, module, old, new, tuple(f"test_starpo_{t}" for t in tests))


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
        "return wide if temperature == 1 else wide.div_(temperature)",
        "return wide",
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
        "return wide if temperature == 1 else wide.div_(temperature)",
        "return logits",
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
        "ctx.save_for_backward(hidden, weight, targets, masses, entropies)",
        "ctx.save_for_backward(hidden, weight, targets, masses, logits)",
        "test_the_chunked_head_is_the_plain_one",
    ),
    # Tokens
    fault(
        "a prompt is tokenised afresh",
        "models.chat_template",
        "        if last is None:\n            return text, self.encode(text)",
        "        if True:\n            return text, self.encode(text)",
        "tokens::TestRetokenisation::"
        "test_three_turns_of_an_untrained_model_are_never_tokenised_again",
        "tokens::TestRetokenisation::"
        "test_a_reply_around_an_answer_is_kept_as_it_was_emitted",
    ),
    fault(
        "a reply is tidied before it goes back",
        "chat",
        "content=whole(completion.text),",
        "content=whole(completion.text).strip(),",
        "tokens::TestRetokenisation::"
        "test_a_reply_around_an_answer_is_kept_as_it_was_emitted",
    ),
    fault(
        "a reply without ids is accepted",
        "starpo.trajectories",
        "        if not ids or len(ids) != len(logprobs):",
        "        if False:",
        "tokens::TestRetokenisation::test_a_segment_takes_one_log_probability_a_token",
    ),
    fault(
        "a reply without a prompt is accepted",
        "starpo.rollout",
        "    if prompt and ids and ids == logprobs:\n",
        "    if ids and ids == logprobs:\n",
        "tokens::TestRetokenisation::test_an_engine_that_keeps_ids_to_itself_is_refused",
    ),
    fault(
        "the mask is the wrong way round",
        "starpo.experience",
        "sampled[row, :size] = torch.tensor(segment.sampled)",
        "sampled[row, 1:size] = ~torch.tensor(segment.sampled)[1:]",
        "steps::TestTargets::test_an_observation_is_no_target_and_a_sampled_token_is",
        "steps::TestTargets::test_log_probabilities_are_the_entries_of_the_table",
    ),
    fault(
        "what was read is trained",
        "starpo.trajectories",
        "self.sampled += [False] * len(ids)",
        "self.sampled += [bool(self.ids[: -len(ids)])] * len(ids)",
        "steps::TestTargets::test_an_observation_is_no_target_and_a_sampled_token_is",
        "tokens::TestMask::test_it_marks_what_the_engine_sampled_and_nothing_else",
    ),
    fault(
        "the last token of the prompt is trained",
        "starpo.rollout",
        "segment = continued(segments, prompt)\n"
        "        segment.write(list(completion.token_ids), list(completion.logprobs))",
        "segment = continued(segments, prompt[:-1])\n"
        "        segment.write(\n"
        "            [prompt[-1], *completion.token_ids], [0.0, *completion.logprobs]\n"
        "        )",
        "tokens::TestMask::test_it_marks_what_the_engine_sampled_and_nothing_else",
    ),
    fault(
        "the newline behind the end of a reply is lost",
        "models.chat_template",
        "rest, behind = rest[len(end) :], (end,)",
        "rest, behind = rest[len(end) + 1 :], (end,)",
        "tokens::TestMask::test_segments_are_what_the_template_writes",
    ),
    fault(
        "the end token counts as padding",
        "starpo.experience",
        "sampled[row, :size] = torch.tensor(segment.sampled)",
        "sampled[row, :size] = torch.tensor(segment.sampled) & (ids[row, :size] != 0)",
        "tokens::TestMask::"
        "test_the_end_of_a_reply_is_sampled_even_where_it_is_the_padding",
    ),
    fault(
        "the sampler keeps the end token to itself",
        "models.hf_sampler",
        "token_ids=tuple(self.tokens),",
        "token_ids=tuple(t for t in self.tokens if t not in self._end_ids),",
        "tokens::TestMask::test_a_sampler_hands_over_the_end_token",
    ),
    # Rewards
    fault(
        "a reward lies on the first token of its reply",
        "starpo.experience",
        "rewards += [0.0] * (size - 1) + [turn.reward]",
        "rewards += [turn.reward] + [0.0] * (size - 1)",
        "tokens::TestRewards::"
        "test_each_lies_on_the_last_token_of_its_reply_and_none_is_lost",
    ),
    fault(
        "the last reward is lost where an episode was cut short",
        "starpo.rollout",
        "        tokens.reward = played.reward\n",
        "        last = played is episode.turns[-1] and episode.truncated\n"
        "        tokens.reward = 0.0 if last else played.reward\n",
        "tokens::TestRewards::"
        "test_each_lies_on_the_last_token_of_its_reply_and_none_is_lost",
    ),
    fault(
        "penalties are not trained on",
        "starpo.rollout",
        "tokens.reward = played.reward",
        "tokens.reward = played.scored_reward",
        "tokens::TestRewards::"
        "test_each_lies_on_the_last_token_of_its_reply_and_none_is_lost",
    ),
    fault(
        "a reply that was cut off is played",
        "parsing",
        '        if finish_reason != "length":\n',
        "        finish_reason = None\n        if True:\n",
        "tokens::TestTruncatedReplies::"
        "test_they_are_no_action_but_a_penalty_and_the_game_goes_on",
    ),
    fault(
        "the end of a reply that was cut off is taken for given",
        "models.chat_template",
        "        if last.reply_ids and last.reply_ids[-1] in self.end_ids:\n",
        "        if last.reply_ids:\n            last.reply_ids += (*self.end_ids,)\n",
        "tokens::TestTruncatedReplies::"
        "test_they_are_no_action_but_a_penalty_and_the_game_goes_on",
    ),
    # Seeds
    fault(
        "members of a group sample alike",
        "episode",
        'seed=child_seed(key.seed, "agent", str(key), salt),',
        'seed=child_seed(key.seed, "agent", salt),',
        "tokens::TestSeeds::"
        "test_members_of_a_group_and_salts_differ_and_a_rerun_repeats",
    ),
    fault(
        "every iteration samples alike",
        "episode",
        'seed=child_seed(key.seed, "agent", str(key), salt),',
        'seed=child_seed(key.seed, "agent", str(key)),',
        "tokens::TestSeeds::"
        "test_members_of_a_group_and_salts_differ_and_a_rerun_repeats",
    ),
    fault(
        "the seed does not reach the sampler",
        "models.hf_engine",
        'stream=Stream(conversation.seed, "turn", conversation.turn),',
        'stream=Stream(0, "turn", conversation.turn),',
        "tokens::TestSeeds::"
        "test_members_of_a_group_and_salts_differ_and_a_rerun_repeats",
    ),
    fault(
        "every seed of a training has the same salts",
        "starpo.loop",
        'salt = f"train/{config.seed}/{self.iteration}"',
        'salt = f"train/{self.iteration}"',
        "tokens::TestSeeds::test_every_iteration_and_every_seed_has_a_salt_of_its_own",
    ),
    fault(
        "members of a group slip alike",
        "episode",
        'return child_seed(rep, "salt", salt) if salt else rep',
        'return child_seed(0, "salt", salt) if salt else rep',
        "tokens::TestSeeds::test_a_group_begins_alike_and_slips_apart",
    ),
    fault(
        "members of a group begin apart",
        "starpo.rollout",
        "split, group.seed, rep)",
        "split, group.seed + rep, rep)",
        "tokens::TestSeeds::test_a_group_begins_alike_and_slips_apart",
    ),
    fault(
        "noise depends on how many play",
        "starpo.rollout",
        'salt=f"{salt}/{index}"',
        'salt=f"{salt}/{index}/{len(self._model._segments)}/{group.size}"',
        "tokens::TestSeeds::test_what_is_played_beside_an_episode_does_not_move_it",
    ),
    # Passes
    fault(
        "the mask of a pass is shifted",
        "starpo.experience",
        "before[:, :-1] = sampled[:, 1:]",
        "before[:] = sampled",
        "steps::TestTargets::test_log_probabilities_are_the_entries_of_the_table",
        "phases::TestAnchor::test_every_iteration_begins_with_ratios_of_1",
    ),
    fault(
        "what ratios are taken to is shifted by a token",
        "starpo.loop",
        "old, weights = experience.logprobs, None",
        "old, weights = experience.logprobs.roll(1), None",
        "phases::TestAnchor::test_every_iteration_begins_with_ratios_of_1",
    ),
    fault(
        "the engine plays the weights of one iteration before",
        "starpo.loop",
        "        self.policy.sync()\n        canary_row",
        "        canary_row",
        "phases::TestAnchor::test_every_iteration_begins_with_ratios_of_1",
        "phases::TestAnchor::test_the_engine_plays_what_was_learned",
    ),
    fault(
        "keys and values of older weights are used",
        "starpo.engines.hf",
        "        self.refresh()\n",
        "",
        "phases::TestAnchor::test_a_new_engine_says_what_the_engine_says",
    ),
    fault(
        "a step is taken at temperature 1",
        "starpo.update",
        "temperature=temperature,",
        "temperature=1.0,",
        "steps::TestTargets::test_the_temperature_divides_the_logits",
        "phases::TestAnchor::test_sampler_and_trainer_heat_alike",
    ),
    fault(
        "the sampler tells log-probabilities at temperature 1",
        "starpo.rollout",
        "processed_logprobs=True",
        "processed_logprobs=False",
        "phases::TestAnchor::test_sampler_and_trainer_heat_alike",
    ),
    fault(
        "rows stand to the right",
        "starpo.experience",
        "        ids[row, :size] = torch.tensor(segment.ids)\n"
        "        sampled[row, :size] = torch.tensor(segment.sampled)\n",
        "        ids[row, width - size :] = torch.tensor(segment.ids)\n"
        "        sampled[row, width - size :] = torch.tensor(segment.sampled)\n",
        "steps::TestPasses::test_a_row_has_the_log_probabilities_that_it_has_alone",
    ),
    fault(
        "positions begin anew behind a shared beginning",
        "starpo.shared_prefix",
        "positions = torch.arange(shared, ids.shape[1], device=ids.device)[None]",
        "positions = torch.arange(ids.shape[1] - shared, device=ids.device)[None]",
        "steps::TestPasses::test_a_row_has_the_log_probabilities_that_it_has_alone",
    ),
    fault(
        "rows are packed without bounds",
        "starpo.shared_prefix",
        "backbone(input_ids=ids, use_cache=False).last_hidden_state\n",
        "backbone(\n"
        "            input_ids=ids.view(1, -1), use_cache=False\n"
        "        ).last_hidden_state.view(*ids.shape, -1)\n",
        "steps::TestPasses::test_rows_do_not_see_each_other",
        "steps::TestPasses::test_values_do_not_see_each_other_either",
    ),
    fault(
        "a beginning that rows do not share is shared",
        "starpo.shared_prefix",
        "    count = min(len(alike), *limits)\n",
        "    count = min(limits)\n",
        "steps::TestPasses::test_a_row_has_the_log_probabilities_that_it_has_alone",
    ),
    fault(
        "dropout is on while the policy learns",
        "starpo.loop",
        "        policy.network.eval()\n",
        "        policy.network.train()\n",
        "phases::TestModes::test_dropout_is_off_in_every_pass",
        "phases::TestModes::test_dropout_changes_no_gradient",
        "phases::TestModes::test_no_phase_is_in_training_mode",
    ),
    fault(
        "dropout is on while the critic learns",
        "starpo.loop",
        "            policy.critic.eval()\n",
        "            policy.critic.train()\n",
        "phases::TestModes::test_dropout_changes_no_gradient",
        "phases::TestModes::test_no_phase_is_in_training_mode",
    ),
    fault(
        "the sampler's softmax is in half precision",
        "models.hf_sampler",
        "    logits = logits.float()\n",
        "    logits = logits.bfloat16()\n",
        "phases::TestAnchor::test_every_iteration_begins_with_ratios_of_1",
    ),
    fault(
        "nobody is told how far sampler and trainer are apart",
        "starpo.update",
        "difference = logprobs - lesson.experience.logprobs[at].to(device)",
        "difference = logprobs - logprobs.detach()",
        "phases::TestAnchor::"
        "test_every_row_tells_how_far_sampler_and_trainer_are_apart",
    ),
    # Steps
    fault(
        "a step divides by the tokens of a pass",
        "starpo.update",
        "        owner = experience.trajectory[batch.tokens].to(device)\n",
        "        owner = experience.trajectory[batch.tokens].to(device)\n"
        "        over = denominator(\n"
        "            owner, objective.aggregation, objective.constant\n"
        "        )\n",
        "steps::TestMicroBatches::test_gradients_are_the_same_for_1_3_and_all_rows",
        "steps::TestMicroBatches::test_what_is_told_of_a_step_is_the_same",
    ),
    fault(
        "a step divides by the tokens of the whole iteration",
        "starpo.update",
        "    tokens = experience.tokens_of(chosen)\n    over",
        "    tokens = torch.arange(len(experience.trajectory))\n    over",
        "steps::TestDropped::test_a_trajectory_outside_the_step_is_in_no_term",
    ),
    fault(
        "a step takes in what it was not given",
        "starpo.update",
        "    for batch in passes(experience, chosen, budget):\n        scored",
        "    everybody = range(len(experience.trajectories))\n"
        "    for batch in passes(experience, everybody, budget):\n        scored",
        "steps::TestDropped::test_a_trajectory_outside_the_step_is_in_no_term",
    ),
    fault(
        "the loss of values divides by tokens that it does not ask for",
        "starpo.update",
        "asked = int(estimate.value_mask[tokens].sum())",
        "asked = len(tokens)",
        "steps::TestMicroBatches::"
        "test_the_loss_of_values_divides_by_those_that_are_asked_for",
    ),
    fault(
        "the loss of values takes in tokens that it does not ask for",
        "starpo.update",
        "mean = (loss * wanted).sum() / max(asked, 1)",
        "mean = loss.sum() / max(asked, 1)",
        "steps::TestMicroBatches::"
        "test_the_loss_of_values_divides_by_those_that_are_asked_for",
    ),
    fault(
        "importance weights are left out",
        "starpo.update",
        "        terms = terms * lesson.weights[at].to(device)\n",
        "        pass\n",
        "steps::TestHead::test_a_step_is_that_of_all_logits_at_once",
    ),
    fault(
        "the entropy bonus has no gradient",
        "starpo.update",
        "terms = terms - objective.entropy * scored.entropies",
        "terms = terms - objective.entropy * scored.entropies.detach()",
        "steps::TestHead::test_a_step_is_that_of_all_logits_at_once",
        "steps::TestDropped::test_every_term_of_a_step_pushes",
    ),
    fault(
        "metrics are means of passes",
        "starpo.update",
        "getattr(step, name) / max(step.tokens, 1)",
        "getattr(step, name) / 4",
        "steps::TestMicroBatches::test_means_are_over_sampled_tokens",
    ),
    fault(
        "the largest ratio is that of the last pass",
        "starpo.update",
        "step.ratio_max = max(step.ratio_max, difference.max().exp().item())",
        "step.ratio_max = difference.max().exp().item()",
        "steps::TestMicroBatches::test_what_is_told_of_a_step_is_the_same",
    ),
    fault(
        "lengths are those of the whole batch",
        "starpo.aggregation",
        "values / over.lengths.to(values)[sequence_ids]",
        "values / over.lengths.mean()",
        "steps::TestLengths::test_a_short_and_a_long_trajectory",
    ),
    # Estimates
    fault(
        "advantages are normalised twice",
        "starpo.algorithm",
        "        per_token = advantages(experience)[experience.trajectory]\n",
        "        per_token = advantages(experience)[experience.trajectory]\n"
        "        per_token = (per_token - per_token.mean()) / per_token.std()\n",
        "steps::TestEstimates::"
        "test_advantages_of_a_group_sum_to_nothing_and_are_normalised_once",
        "phases::TestFilter::test_advantages_are_made_before_a_batch_is_split",
    ),
    fault(
        "PPO does not whiten",
        "starpo.algorithms.ppo",
        "return experience.flatten(found, whiten)",
        "return experience.flatten(found, lambda x: x)",
        "steps::TestEstimates::test_advantages_are_white_over_all_sampled_tokens",
    ),
    fault(
        "whitening counts the padding of short trajectories",
        "starpo.experience",
        "advantages=change(self.flat(found.advantages)),",
        "advantages=self.flat(change(found.advantages)),",
        "steps::TestEstimates::test_advantages_are_white_over_all_sampled_tokens",
    ),
    fault(
        "what was read takes time",
        "starpo.experience",
        "                    size = turn.end - turn.start\n",
        "                    size = turn.end - turn.start + (turn.start > 8)\n",
        "steps::TestEstimates::test_observations_are_no_steps",
    ),
    fault(
        "filter and advantages differ in their deviation",
        "starpo.advantages",
        "squares / (counts - ddof).clamp(min=1)",
        "squares / counts",
        "steps::TestEstimates::test_filter_and_advantages_take_the_same_deviation",
    ),
    fault(
        "groups are known by where they stand",
        "starpo.experience",
        "groups=torch.tensor([one.group for one in trajectories], dtype=torch.long),",
        "groups=torch.arange(len(trajectories)) // 2,",
        "steps::TestEstimates::test_groups_are_known_by_id_whatever_was_dropped",
    ),
    fault(
        "the filter drops groups from the advantages alone",
        "starpo.loop",
        "chosen = [one for one in trajectories if one.group in kept]",
        "chosen = list(trajectories) if kept else []",
        "phases::TestFilter::test_a_group_without_spread_adds_nothing_to_any_term",
    ),
    fault(
        "what the filter left nothing of is trained on whole",
        "starpo.loop",
        "chosen = [one for one in trajectories if one.group in kept]",
        "chosen = [one for one in trajectories if not kept or one.group in kept]",
        "phases::TestFilter::test_where_all_groups_are_flat_nothing_is_learned",
    ),
    # Critic
    fault(
        "the critic begins with a head of some size",
        "starpo.policy",
        "torch.nn.init.zeros_(self.head.weight)",
        "torch.nn.init.normal_(self.head.weight)",
        "phases::TestCritic::test_it_begins_with_values_of_0",
    ),
    fault(
        "the critic shares the policy's backbone",
        "starpo.policy",
        "copy.deepcopy(merged(network).base_model)",
        "plain_network(network).base_model",
        "phases::TestCritic::test_its_loss_leaves_the_policy_alone",
    ),
    # Evaluation
    fault(
        "an evaluation uses up training instances",
        "starpo.loop",
        'greedy = {**settings.agent_args(config), "temperature": 0.0}',
        "greedy = self.instances.take(1, 1) and settings.agent_args(config)",
        "phases::TestEvaluation::test_it_does_not_move_the_training",
    ),
    fault(
        "an evaluation leaves its keys and values behind",
        "starpo.loop",
        "        self.policy.sync()\n        return row",
        "        return row",
        "phases::TestEvaluation::test_it_does_not_move_the_training",
    ),
    # Masters
    fault(
        "masters have the precision of the folder",
        "starpo.policy",
        'hf_loading.load_network(place, "float32", device)',
        'hf_loading.load_network(place, "bfloat16", device)',
        "masters::TestPrecision::test_masters_of_a_half_precision_model_are_in_full",
        "masters::TestPrecision::test_the_smallest_rate_moves_a_weight_of_1",
    ),
    fault(
        "checkpoints hold weights in half precision",
        "starpo.saving",
        "{k: v.detach() for k, v in",
        "{k: v.detach().bfloat16() for k, v in",
        "masters::TestCheckpoints::test_all_that_moves_is_kept_to_the_last_bit",
    ),
    fault(
        "the optimizer begins anew",
        "starpo.saving",
        'training.optimizer.load_state_dict(tensors["optimizer"])',
        "pass",
        "masters::TestCheckpoints::test_all_that_moves_is_kept_to_the_last_bit",
    ),
    fault(
        "the critic begins anew",
        "starpo.saving",
        'policy.critic.load_state_dict(tensors["critic"])',
        "pass",
        "masters::TestCheckpoints::test_all_that_moves_is_kept_to_the_last_bit",
    ),
    fault(
        "the warm-up of the rate begins anew",
        "starpo.saving",
        'training.steps = state["steps"]',
        "pass",
        "masters::TestCheckpoints::test_all_that_moves_is_kept_to_the_last_bit",
        "masters::TestCheckpoints::test_one_and_one_are_two_iterations",
    ),
    fault(
        "the first instances come again",
        "starpo.saving",
        'training.instances.drawn = state["drawn"]',
        "pass",
        "masters::TestCheckpoints::test_one_and_one_are_two_iterations",
    ),
    # Export
    fault(
        "the head is left out of the folder",
        "starpo.export",
        "merged(policy.network).save_pretrained(beside)",
        "merged(policy.network).save_pretrained(\n"
        "            beside,\n"
        "            state_dict={\n"
        "                k: v\n"
        "                for k, v in policy.network.state_dict().items()\n"
        '                if "lm_head" not in k\n'
        "            },\n"
        "        )",
        "masters::TestExport::test_a_folder_holds_the_very_policy",
    ),
    fault(
        "a tied head is written by itself",
        "starpo.export",
        "merged(policy.network).save_pretrained(beside)",
        "policy.network.config.tie_word_embeddings = False\n"
        "        merged(policy.network).save_pretrained(beside)",
        "masters::TestExport::test_a_folder_holds_the_very_policy",
    ),
    # Engines and the sync canary
    fault(
        "the head is not sent to the engine",
        "starpo.policy",
        '        if ".lora_" not in name\n    }\n',
        '        if ".lora_" not in name\n    }\n'
        '    state["lm_head.weight"] = 0 * state["lm_head.weight"]\n',
        "masters::TestExport::test_a_folder_holds_the_very_policy",
        "engines::TestSync::test_a_tied_head_is_sent_under_both_names",
    ),
    fault(
        "the adapter is not sent to the engine",
        "starpo.policy",
        "layer.get_base_layer().weight + change",
        "layer.get_base_layer().weight + 0 * change",
        "engines::TestSync::test_what_is_sent_is_what_merging_gives",
        "engines::TestSync::test_the_engine_scores_as_the_trainer_after_every_sync",
        "engines::TestCanary::test_a_sound_engine_passes",
    ),
    fault(
        "the adapter is merged into the masters when it is sent",
        "starpo.policy",
        'state[f"{name}.weight"] = layer.get_base_layer().weight + change',
        'state[f"{name}.weight"] = layer.get_base_layer().weight.add_(change)',
        "engines::TestSync::test_the_engine_scores_as_the_trainer_after_every_sync",
    ),
    fault(
        "no weights are sent",
        "starpo.policy",
        "self.engine.sync(plain_state(self.network), self.version)",
        "self.engine.version = self.version",
        "engines::TestSync::test_the_engine_scores_as_the_trainer_after_every_sync",
        "engines::TestCanary::test_a_sound_engine_passes",
    ),
    fault(
        "the canary finds nothing",
        "starpo.canary",
        "    if found <= most:\n",
        "    if True:\n",
        "engines::TestCanary::test_its_limits_are_those_of_rounding",
        "engines::TestCanary::test_a_warm_start_that_did_not_arrive_ends_training",
        "engines::TestCanary::test_an_update_that_did_not_arrive_ends_training",
        "engines::TestCanary::test_an_adapter_that_was_left_out_ends_training",
        "engines::TestCanary::test_a_head_that_was_not_sent_ends_training",
    ),
    fault(
        "nan is rounding",
        "starpo.canary",
        "if not math.isfinite(reading.mean):",
        "if math.isinf(reading.mean):",
        "engines::TestCanary::test_its_limits_are_those_of_rounding",
    ),
    fault(
        "float32 has the limits of half precision",
        "starpo.canary",
        'exact = precision == "float32"',
        "exact = False",
        "engines::TestCanary::test_its_limits_are_those_of_rounding",
    ),
    fault(
        "the canary hears the sampler's temperature",
        "starpo.update",
        "one.to(plain_network(network).device), 1.0)",
        "one.to(plain_network(network).device), 0.7)",
        "engines::TestCanary::test_a_sound_engine_passes",
    ),
    fault(
        "the canary is asked after updates alone",
        "starpo.loop",
        "if self.checked != self.policy.version:",
        "if self.checked is not None:",
        "engines::TestCanary::test_a_warm_start_that_did_not_arrive_ends_training",
    ),
    fault(
        "the canary is asked before updates alone",
        "starpo.loop",
        "canary_row = self._check_engine(asked)",
        "canary_row: Row = {}",
        "engines::TestCanary::test_an_update_that_did_not_arrive_ends_training",
    ),
    fault(
        "tokens that are left out go unnoticed",
        "starpo.rollout",
        "        _check_tokens(self.name, completion)\n",
        "",
        "engines::TestTokens::test_an_engine_that_leaves_out_tokens_is_refused",
    ),
    fault(
        "importance weights are upside down",
        "starpo.loop",
        "old, experience.logprobs, high=config.importance_cap",
        "experience.logprobs, old, high=config.importance_cap",
        "engines::TestImportance::"
        "test_weights_are_those_of_the_engine_to_the_trainer_before_the_update",
    ),
    fault(
        "importance weights have no cap",
        "starpo.loop",
        "high=config.importance_cap",
        "high=1e9",
        "engines::TestImportance::"
        "test_weights_are_those_of_the_engine_to_the_trainer_before_the_update",
    ),
    # Self-imitation
    fault(
        "the worst of a group is remembered",
        "starpo.imitation",
        "best = max(group, key=_merit)",
        "best = min(group, key=_merit)",
        "imitation::TestMemory::test_the_best_of_each_group_is_remembered_if_it_solved_its_task",
    ),
    fault(
        "failures are imitated",
        "starpo.imitation",
        "    return solved\n",
        "    return True\n",
        "imitation::TestMemory::test_the_best_of_each_group_is_remembered_if_it_solved_its_task",
    ),
    fault(
        "what was read is imitated after a resume",
        "starpo.imitation",
        "segments[segment].sampled[start:end] = [True] * (end - start)",
        "segments[segment].sampled[:end] = [True] * end",
        "imitation::TestMemory::test_what_is_restored_is_what_was_remembered",
    ),
    fault(
        "demonstrations are not learned",
        "starpo.imitation",
        "pool = [*self.demonstrations, *self._memory]",
        "pool = [*self._memory] or self.demonstrations[:0]",
        "imitation::TestLearning::test_demonstrations_are_learned_too",
    ),
    fault(
        "self-imitation keeps its rate when others fall",
        "starpo.imitation",
        "factor = rate * min(1.0, self.steps / WARMUP)",
        "factor = min(1.0, self.steps / WARMUP)",
        "imitation::TestLearning::test_the_rate_is_that_of_the_training",
    ),
    fault(
        "the memory is lost with a checkpoint",
        "starpo.saving",
        '        training.imitation.set_state(tensors["imitation"])\n',
        "        pass\n",
        "imitation::TestTraining::test_four_iterations_equal_two_and_two",
    ),
)
