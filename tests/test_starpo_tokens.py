"""Tokens in, tokens out: what was sampled is what is trained, and nothing else."""

import asyncio

import pytest

torch = pytest.importorskip("torch")

import trainees  # noqa: E402

from ragen_bench.errors import RunIncomplete  # noqa: E402
from ragen_bench.model import Completion, Model, Sampling  # noqa: E402
from ragen_bench.models.chat_template import Chat  # noqa: E402
from ragen_bench.models.hf_sampler import ReplyInProgress, sample  # noqa: E402
from ragen_bench.seeding import Stream  # noqa: E402
from ragen_bench.starpo.experience import Experience, passes  # noqa: E402

pytestmark = pytest.mark.hf

JUNK = "  so  <answer>Right</answer> and  "


def ids_of(trajectory) -> list[int]:
    (only,) = trajectory.segments
    return only.ids


class TestRetokenisation:
    def test_three_turns_of_an_untrained_model_are_never_tokenised_again(
        self, monkeypatch
    ) -> None:
        encoded = []
        encode = Chat._encode
        monkeypatch.setattr(
            Chat, "_encode", lambda *a: encoded.append(a[1]) or encode(*a)
        )
        made = trainees.built(groups=1, rollouts=2, max_tokens=8)
        asked = []
        generate = made.policy.engine.generate

        async def noted(conversation, sampling):
            found = await generate(conversation, sampling)
            asked.append((conversation.key, found))
            return found

        made.policy.engine.generate = noted
        encoded.clear()
        found = asyncio.run(made.rollouts.play(made.instances.take(1, 2), "salt"))
        spoilt = 0
        for key in {key for key, _ in asked}:
            turns = [completion for other, completion in asked if other == key]
            assert len(turns) == 3
            for before, after in zip(turns, turns[1:], strict=False):
                known = before.prompt_token_ids + before.token_ids
                assert after.prompt_token_ids[: len(known)] == known
            for one in turns:
                spoilt += (
                    tuple(made.policy.tokenizer(one.text)["input_ids"]) != one.token_ids
                )
                assert not any(one.text in text for text in encoded)
        # Else ids that were made anew could not be told from those that were sampled.
        assert spoilt >= 4
        assert all(len(one.segments) == 1 for one in found)

    def test_a_reply_around_an_answer_is_kept_as_it_was_emitted(self) -> None:
        script = trainees.Script(lambda turn: (JUNK, False), letters=True)
        for one in trainees.played(script):
            assert len(one.turns) > 2
            said = script.said[_key(one)]
            cut = [ids_of(one)[turn.start : turn.end] for turn in one.turns]
            assert cut == said

    @pytest.mark.parametrize(
        "given",
        [
            {"prompt_token_ids": (1, 2)},
            {"prompt_token_ids": (1, 2), "token_ids": (3, 4), "logprobs": (0.0,)},
            {"token_ids": (3, 4), "logprobs": (-0.1, -0.2)},
        ],
    )
    def test_an_engine_that_keeps_ids_to_itself_is_refused(self, given) -> None:
        class Silent(Model):
            name = "silent"

            async def generate(self, conversation, sampling):
                return Completion(text="<answer>Right</answer>", **given)

        with pytest.raises(RunIncomplete, match="engine 'silent' gave"):
            trainees.played(Silent())

    def test_a_segment_takes_one_log_probability_a_token(self) -> None:
        for ids, logprobs in (([1, 2], [0.0]), ([], [])):
            with pytest.raises(ValueError, match="one of each"):
                trainees.segment([1]).write(ids, logprobs)


class TestMask:
    def test_it_marks_what_the_engine_sampled_and_nothing_else(self) -> None:
        script = trainees.Script(lambda turn: (JUNK, False), letters=True)
        for one in trainees.played(script):
            said = [id for reply in script.said[_key(one)] for id in reply]
            (only,) = one.segments
            marked = [i for i, s in zip(only.ids, only.sampled, strict=True) if s]
            assert marked == said
            assert one.sampled_tokens == len(said)
            assert script.chat.decode(marked) == JUNK * len(one.turns)

    def test_segments_are_what_the_template_writes(self) -> None:
        script = trainees.Script(lambda turn: ("<answer>Right</answer>", False))
        for one in trainees.played(script):
            key = _key(one)
            assert len(one.turns) > 2
            messages = [
                {"role": message.role, "content": message.content}
                for message in script.messages[key]
            ]
            messages.append({"role": "assistant", "content": "<answer>Right</answer>"})
            written = script.tokenizer.apply_chat_template(messages, tokenize=False)
            expected = script.tokenizer(written)["input_ids"]
            # The newline behind the last reply's end is read with the next prompt.
            assert ids_of(one) + script.chat.encode_inside("\n") == expected

    def test_the_end_of_a_reply_is_sampled_even_where_it_is_the_padding(self) -> None:
        held = trainees.experience(
            trainees.segment([1, 2], [3, 0]), trainees.segment([1, 2, 3, 2], [2, 1, 0])
        )
        (batch,) = passes(held, [0, 1], 10**6)
        assert batch.ids[0].tolist() == [1, 2, 3, 0, 0, 0, 0]
        assert batch.targets.tolist() == [3, 0, 2, 1, 0]

    def test_a_sampler_hands_over_the_end_token(self) -> None:
        chat = Chat(trainees.tokenizer())
        reply = ReplyInProgress(Sampling(), Stream(0), chat, {7})
        assert not reply.push(5, -0.1)
        assert reply.push(7, -0.2)
        draft = reply.draft(0)
        assert draft.token_ids == (5, 7)
        assert len(draft.logprobs) == 2


class TestRewards:
    @pytest.mark.parametrize("cut", [False, True])
    @pytest.mark.parametrize("turns", [2, 5])
    def test_each_lies_on_the_last_token_of_its_reply_and_none_is_lost(
        self, cut, turns
    ) -> None:
        script = trainees.Script(lambda turn: ("<answer>Right</answer>", cut))
        found = trainees.played(script, max_turns=turns, format_penalty=-0.25)
        held = Experience.of(found)
        assert {one.episode.truncated for one in found} == {cut or turns == 2}
        for index, one in enumerate(found):
            mine = held.trajectory == index
            paid = [turn.reward for turn in one.episode.turns]
            assert held.rewards[mine & held.turn_end].tolist() == paid
            assert held.returns[index] == held.rewards[mine].sum() == sum(paid)
        assert not held.rewards[~held.turn_end].any()
        # Both the goal and the penalty are among them.
        assert held.returns.min() == (-0.25 * turns if cut else turns > 2)


class TestTruncatedReplies:
    def test_they_are_no_action_but_a_penalty_and_the_game_goes_on(self) -> None:
        def say(turn: int):
            return ("<answer>Right</answer>", turn == 0)

        script = trainees.Script(say)
        for one in trainees.played(script, format_penalty=-0.25):
            first, second = one.episode.turns[:2]
            assert (first.parse, first.actions, first.reward) == ("cut_off", (), -0.25)
            assert second.actions == ("Right",)
            # The next prompt closes the message that the model did not end.
            key = _key(one)
            known = script.prompts[key][0] + script.said[key][0]
            after = script.prompts[key][1]
            assert after[: len(known)] == known
            assert after[len(known)] == script.end
            (only,) = one.segments
            assert not only.sampled[len(known)]


class TestSeeds:
    def replies(self, made, salt: str) -> list[list[int]]:
        groups = made.instances.take(2, 3)
        made.instances.drawn = 0
        found = asyncio.run(made.rollouts.play(groups, salt))
        return [ids_of(one)[one.turns[0].start :] for one in found]

    def test_members_of_a_group_and_salts_differ_and_a_rerun_repeats(self) -> None:
        made = trainees.built()
        found = self.replies(made, "a")
        assert len({tuple(ids) for ids in found}) == 6
        assert self.replies(made, "a") == found
        assert not any(ids in found for ids in self.replies(made, "b"))

    def test_every_iteration_and_every_seed_has_a_salt_of_its_own(self) -> None:
        salts = []
        for seed in (0, 1):
            made = trainees.built(seed=seed)
            play = made.rollouts.play
            made.rollouts.play = lambda groups, salt, play=play: (
                salts.append(salt) or play(groups, salt)
            )
            made.iterate()
            made.iterate()
        assert len(set(salts)) == 4

    def test_a_group_begins_alike_and_slips_apart(self) -> None:
        script = trainees.Script(lambda turn: ("<answer>Right</answer>", False))
        found = trainees.played(script, trainees.SLIPPERY, size=6)
        for group in (0, 1):
            mine = [one.episode for one in found if one.group == group]
            assert len({episode.turns[0].observation for episode in mine}) == 1
            slips = {tuple(t.effective for t in episode.turns[:3]) for episode in mine}
            assert len(slips) > 1

    def test_what_is_played_beside_an_episode_does_not_move_it(self) -> None:
        script = trainees.Script(lambda turn: ("<answer>Right</answer>", False))
        many = trainees.played(script, trainees.SLIPPERY, size=6)
        few = trainees.played(script, trainees.SLIPPERY, size=2)
        for group in (0, 1):
            begun = [one.episode.turns for one in many if one.group == group][:2]
            alone = [one.episode.turns for one in few if one.group == group]
            told = [[t.observation for t in turns] for turns in begun]
            assert told == [[t.observation for t in turns] for turns in alone]

    def test_the_first_draw_of_two_streams_differs(self) -> None:
        chat = Chat(trainees.tokenizer())
        heat = Sampling(temperature=1.0)
        replies = [ReplyInProgress(heat, Stream(0, n), chat, {7}) for n in range(8)]
        tokens, _ = sample(torch.zeros(8, 300), replies)
        assert len(set(tokens)) > 4


def _key(trajectory) -> str:
    """Return the name of a trajectory's conversation."""
    return f"{trajectory.group}/{trajectory.episode.key}"
