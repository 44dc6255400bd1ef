"""What plays a policy: hf, a script, and engines that break the rules."""

import asyncio
import copy
import importlib.util
import json
import math

import pytest

torch = pytest.importorskip("torch")

from trainees import built, played, small, tokenizer  # noqa: E402

from ragen_bench.errors import (  # noqa: E402
    InvalidSpec,
    MissingExtra,
    RunIncomplete,
    UnknownName,
)
from ragen_bench.model import (  # noqa: E402
    Completion,
    Conversation,
    Message,
    Model,
    Sampling,
)
from ragen_bench.models import hf_loading, hf_lora, hf_options  # noqa: E402
from ragen_bench.starpo import (  # noqa: E402
    canary,
    dry_run,
    export,
    losses,
    policy,
    settings,
    training,
    update,
)
from ragen_bench.starpo.engines.engine import PolicyEngine  # noqa: E402
from ragen_bench.starpo.engines.hf import HFEngine  # noqa: E402
from ragen_bench.starpo.engines.scripted import ScriptedEngine  # noqa: E402
from ragen_bench.starpo.experience import Experience  # noqa: E402

pytestmark = pytest.mark.hf


class Broken(HFEngine):
    """An engine of ``transformers`` in which a fault can be planted."""

    def __init__(self, inner):
        super().__init__(
            inner.network,
            inner._chat.tokenizer,
            dtype="auto",
            options=hf_options.Options(decoder="slots", inline=True),
        )


class NeverSynced(Broken):
    """Plays on with the weights that it began with."""

    def sync(self, weights, version):
        self.version = version


class LateSynced(Broken):
    """Misses the weights of the warm start alone."""

    def sync(self, weights, version):
        if version > 1:
            super().sync(weights, version)


class OwnHead(Broken):
    """Keeps a copy of the head apart from the embeddings, as packed kernels do."""

    def __init__(self, inner):
        super().__init__(inner)
        head = self.network.lm_head
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), False)
        self.refresh()

    def sync(self, weights, version):
        with torch.no_grad():
            for name, parameter in self.network.state_dict().items():
                if name in weights:
                    parameter.copy_(weights[name])
        self.refresh()
        self.version = version


class Remembering(Broken):
    """Keeps what it found for a prompt, by the version of the weights."""

    forgets = True

    def sync(self, weights, version):
        super().sync(weights, version)
        if self.forgets:
            self.known = {}

    def score(self, ids):
        found = self.known.get(tuple(ids))
        if found is None:
            found = self.known[tuple(ids)] = super().score(ids)
        return found


class Stale(Remembering):
    """Forgets to forget."""

    forgets = False
    known = {}


def engaged(engine, **changed):
    """Return a training whose policy is played by another engine, in step."""
    made = built(**changed)
    other = engine(made.policy.engine)
    made.policy.engine = other
    made.rollouts._model._model = other
    other.sync(policy.plain_state(made.policy.network), 0)
    return made


def move(made, by=0.3):
    """Change the trained weights, as a warm start does."""
    torch.manual_seed(1)
    with torch.no_grad():
        for _, parameter in made.policy.trained():
            parameter += by * torch.randn_like(parameter)


def replies(engine):
    """Return the sampled ids of greedy replies to two prompts with the same head."""
    greedy = Sampling(max_tokens=12, stop=())

    async def ask(question):
        message = Message(role="user", content=f"{'What now? ' * 9}{question}")
        asked = Conversation(key=question, seed=1, messages=[message])
        return (await engine.generate(asked, greedy)).token_ids

    async def both():
        return await asyncio.gather(ask("Left?"), ask("Right?"))

    return asyncio.run(both())


SETTINGS = ({}, {"lora_rank": 4})


class TestSync:
    @pytest.mark.parametrize("changed", SETTINGS)
    def test_the_engine_scores_as_the_trainer_after_every_sync(self, changed):
        made = built(**changed)
        ids = list(range(40))
        for version in (1, 2):
            move(made, 0.1)
            made.policy.sync()
            ours = update.sequence_logprobs(made.policy.network, ids)
            theirs = torch.tensor(made.policy.engine.score(ids))
            assert made.policy.engine.version == version
            assert theirs.shape == (39,)
            assert (ours - theirs).abs().max() < 1e-4

    def test_an_engine_scores_what_it_sampled_as_it_said(self):
        made = built(hidden_size=64)
        (one, *_) = asyncio.run(made.rollouts.play(made.instances.take(1, 1), "salt"))
        segment = one.segments[0]
        scored = torch.tensor([0.0, *made.policy.engine.score(segment.ids)])
        sampled = torch.tensor(segment.sampled)
        said = torch.tensor(segment.logprobs)
        assert (scored - said)[sampled].abs().max() < 1e-4

    @pytest.mark.parametrize("changed", SETTINGS)
    def test_replies_after_a_sync_are_those_of_a_fresh_engine(self, changed):
        made = built(hidden_size=64, **changed)
        before = replies(made.policy.engine)
        move(made)
        made.policy.sync()
        fresh = settings.engine_of(made.config)(
            policy.merged(made.policy.network), made.policy.tokenizer
        )
        assert replies(made.policy.engine) == replies(fresh) != before

    def test_a_tied_head_is_sent_under_both_names(self):
        network = built().policy.network
        assert network.config.tie_word_embeddings
        state = policy.plain_state(network)
        assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])

    def test_an_adapter_is_sent_as_plain_weights(self):
        made = built(lora_rank=4)
        plain = policy.plain_network(made.policy.network)
        before = {
            k: v.clone() for k, v in made.policy.engine.network.state_dict().items()
        }
        move(made)
        state = policy.plain_state(made.policy.network)
        assert state.keys() == before.keys()
        changed = {name for name in state if not torch.equal(state[name], before[name])}
        assert any("q_proj" in name for name in changed)
        assert any(".lora_" in name for name, _ in plain.named_parameters())

    def test_what_is_sent_is_what_merging_gives(self):
        made = built(lora_rank=4)
        move(made)
        sent = policy.plain_state(made.policy.network)
        expected = policy.merged(made.policy.network).state_dict()
        assert sent.keys() == expected.keys()
        assert all(torch.equal(sent[name], expected[name]) for name in sent)

    def test_masters_do_not_move_when_weights_are_sent(self):
        made = built(lora_rank=4)
        move(made)
        before = {k: v.detach().clone() for k, v in made.policy.trained()}
        made.policy.sync()
        assert all(torch.equal(before[k], v) for k, v in made.policy.trained())

    def test_half_precision_is_of_the_engine_alone(self):
        made = built(engine_dtype="bfloat16")
        assert made.policy.engine.precision == made.policy.precision == "bfloat16"
        assert made.policy.network.dtype == torch.float32
        report = made.iterate()
        assert 0 < report.row["canary_diff_mean"] < canary.MEAN
        assert report.row["canary_diff_max"] > canary.LARGEST


class TestCanary:
    @pytest.mark.parametrize("changed", SETTINGS)
    @pytest.mark.parametrize("engine", [Broken, OwnHead, Remembering])
    def test_a_sound_engine_passes(self, engine, changed):
        made = engaged(engine, **changed)
        move(made, 0.05)
        made.policy.sync()
        for _ in range(2):
            row = made.iterate().row
            assert 0 <= row["canary_diff_mean"] <= row["canary_diff_max"] < 1e-4

    @pytest.mark.parametrize("changed", SETTINGS)
    @pytest.mark.parametrize("engine", [NeverSynced, LateSynced])
    def test_a_warm_start_that_did_not_arrive_ends_training(self, engine, changed):
        made = engaged(engine, **changed)
        move(made)
        made.policy.sync()
        before = {k: v.detach().clone() for k, v in made.policy.trained()}
        with pytest.raises(RunIncomplete, match="version 1 .*other --out"):
            made.iterate()
        # It is found before anything is learned from what was played.
        assert all(torch.equal(before[k], v) for k, v in made.policy.trained())

    @pytest.mark.parametrize("engine", [NeverSynced, Stale])
    def test_an_update_that_did_not_arrive_ends_training(self, engine):
        Stale.known = {}
        made = engaged(engine, lr=0.1)
        with pytest.raises(RunIncomplete, match="version 1 "):
            made.iterate()

    def test_an_adapter_that_was_left_out_ends_training(self, monkeypatch):
        def plain(network):
            return copy.deepcopy(network).unload().state_dict()

        made = built(lora_rank=4)
        move(made)
        monkeypatch.setattr(policy, "plain_state", plain)
        made.policy.sync()
        with pytest.raises(RunIncomplete, match="other weights"):
            made.iterate()

    def test_a_head_that_was_not_sent_ends_training(self, monkeypatch):
        whole = policy.plain_state

        def headless(network):
            state = dict(whole(network))
            del state["lm_head.weight"]
            return state

        made = engaged(OwnHead)
        monkeypatch.setattr(policy, "plain_state", headless)
        move(made)
        made.policy.sync()
        with pytest.raises(RunIncomplete, match="other weights"):
            made.iterate()

    def test_an_engine_that_scores_too_few_tokens_ends_training(self):
        class Short(Broken):
            def score(self, ids):
                return super().score(ids)[1:]

        with pytest.raises(RunIncomplete, match="one for each token but the first"):
            engaged(Short).iterate()

    def test_it_is_read_from_a_prompt_and_the_reply_to_it(self):
        made = built()
        found = asyncio.run(made.rollouts.play(made.instances.take(2, 2), "salt"))
        ids = canary.sequence(found)
        ends = [one.segments[0].turns[0].end for one in found]
        assert len(ids) == min(ends)
        first = found[ends.index(min(ends))].segments[0]
        assert ids == first.ids[: first.turns[0].end]
        assert first.turns[0].start < len(ids)

    @pytest.mark.parametrize(
        ("precision", "mean", "largest", "fails"),
        [
            ("float32", 0.0, 0.0, False),
            ("float32", 1e-5, 0.9e-3, False),
            ("float32", 1e-5, 1.1e-3, True),
            ("bfloat16", 0.04, 2.0, False),
            ("bfloat16", 0.06, 0.1, True),
            ("float16", 0.06, 0.1, True),
            ("float32", math.nan, math.nan, True),
        ],
    )
    def test_its_limits_are_those_of_rounding(self, precision, mean, largest, fails):
        reading = canary.Reading(mean=mean, largest=largest, tokens=9)
        if not fails:
            canary.check(reading, precision, 3)
            return
        told = f"version 3.*{'not finite' if math.isnan(mean) else precision}"
        with pytest.raises(RunIncomplete, match=told):
            canary.check(reading, precision, 3)


class Leaving(Model):
    """Leaves something out of every completion."""

    name = "leaving"

    def __init__(self, inner, **without):
        self.inner = inner
        self.without = without

    async def generate(self, conversation, sampling):
        whole = await self.inner.generate(conversation, sampling)
        fields = {
            "prompt_token_ids": whole.prompt_token_ids,
            "token_ids": whole.token_ids,
            "logprobs": whole.logprobs,
        }
        return Completion(text=whole.text, **{**fields, **self.without})


class TestTokens:
    @pytest.mark.parametrize(
        "without",
        [
            {"prompt_token_ids": ()},
            {"token_ids": ()},
            {"token_ids": (), "logprobs": ()},
            {"logprobs": ()},
            {"logprobs": (-1.0,)},
        ],
    )
    def test_an_engine_that_leaves_out_tokens_is_refused(self, without):
        engine = ScriptedEngine(tokenizer(), ["<answer>Right</answer>"])
        with pytest.raises(RunIncomplete, match="'leaving' gave .* take an engine"):
            played(Leaving(engine, **without))


class TestScript:
    def test_written_replies_are_played_turn_by_turn(self):
        says = ["<answer>Left</answer>", "<answer>Right</answer>"]
        for one in played(ScriptedEngine(tokenizer(), says)):
            replies = [turn.response for turn in one.episode.turns]
            assert replies[:2] == says[: len(replies)]
            assert not any(one.segments[0].logprobs)

    def test_random_replies_differ_within_a_group_and_repeat_in_a_rerun(self):
        found = played(ScriptedEngine(tokenizer()))
        again = played(ScriptedEngine(tokenizer()))
        assert [one.segments for one in found] == [one.segments for one in again]
        assert found[0].segments != found[1].segments

    def test_random_replies_are_those_of_a_network_that_knows_nothing(self):
        made = engaged(lambda inner: ScriptedEngine(inner._chat.tokenizer))
        with torch.no_grad():
            made.policy.network.lm_head.weight.zero_()
        made.policy.version += 1
        row = made.iterate().row
        assert row["start_diff_max"] < 1e-5
        assert row["canary_diff_max"] < canary.LARGEST

    def test_it_keeps_what_was_synced(self):
        engine = ScriptedEngine(tokenizer(), ["a"])
        assert isinstance(engine, PolicyEngine)
        engine.sync({"a": 1}, 7)
        assert (engine.weights, engine.version) == ({"a": 1}, 7)
        assert engine.score([1, 2, 3]) == [0.0, 0.0]


class TestImportance:
    def test_weights_are_those_of_the_engine_to_the_trainer_before_the_update(self):
        """Truncated importance sampling, as for an engine in half precision."""
        made = built(
            engine_dtype="bfloat16", importance_cap=1.0005, temperature=0.7, entropy=0.0
        )
        found = asyncio.run(made.rollouts.play(made.instances.take(2, 3), "salt"))
        experience = Experience.of(found)
        lesson, _ = made._lesson(experience)
        network = made.policy.network
        exact = update.reference_logprobs(network, experience, 0.7, 10**6)
        assert torch.allclose(lesson.old, exact, atol=1e-5)
        ratio = (exact - experience.logprobs).exp()
        assert (ratio > 1.0005).any() and (ratio < 0.9995).any()
        assert torch.allclose(lesson.weights, ratio.clamp(max=1.0005), atol=1e-5)
        advantages = lesson.estimate.advantages
        surrogate = losses.clipped_surrogate(
            exact, lesson.old, advantages, low=0.2, high=0.28
        )
        assert torch.allclose(surrogate, -advantages, atol=1e-5)
        step = update.accumulate(
            network,
            lesson,
            range(len(found)),
            settings.objective_of(made.config, 9, 1.0),
            10**6,
        )
        expected = -(advantages * ratio.clamp(max=1.0005)).mean()
        assert step.loss == pytest.approx(float(expected), abs=1e-5)

    def test_without_a_cap_the_engine_is_the_anchor(self):
        made = built(engine_dtype="bfloat16", temperature=0.7)
        found = asyncio.run(made.rollouts.play(made.instances.take(1, 2), "salt"))
        experience = Experience.of(found)
        lesson, _ = made._lesson(experience)
        assert lesson.weights is None
        assert torch.equal(lesson.old, experience.logprobs)


class TestSettings:
    def test_an_unknown_engine_is_refused(self):
        with pytest.raises(UnknownName, match="engine"):
            small(engine="vlm")

    def test_no_memory_for_keys_and_values_is_refused(self):
        with pytest.raises(InvalidSpec, match="engine_kv_gib is 0"):
            small(engine_kv_gib=0.0)

    def test_a_dry_run_counts_the_memory_that_vllm_reserves(self, monkeypatch):
        monkeypatch.setattr(training, "check_engine", lambda config: None)
        config = small(engine="vllm", engine_kv_gib=0.5, engine_dtype="bfloat16")
        found = dry_run.describe(config)
        assert found["config"]["engine"] == "vllm"
        assert found["memory"]["keys and values"] == 2**29
        wide = dry_run.describe(small(engine="vllm"))["memory"]
        assert wide["weights"] > found["memory"]["weights"]

    def test_vllm_that_is_not_installed_is_an_extra_that_is_missing(self, monkeypatch):
        whole = importlib.util.find_spec

        def find_spec(name, package=None):
            return None if name == "vllm" else whole(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        config = small(engine="vllm")
        for refuse in (training.check, dry_run.describe):
            with pytest.raises(MissingExtra, match=r"pip install .*\[vllm\]"):
                refuse(config)


class TestExport:
    def test_an_adapter_is_written_merged_and_by_itself(self, tmp_path):
        made = built(lora_rank=4)
        move(made)
        with hf_loading.quiet():
            made.policy.engine.network.save_pretrained(tmp_path / "base")
            made.policy.tokenizer.save_pretrained(tmp_path / "base")
        out = export.write(made, tmp_path / "model")
        ids = list(range(30))
        expected = update.sequence_logprobs(made.policy.network, ids)
        whole, _ = hf_loading.load_network(str(out), "float32", "cpu")
        start, _ = hf_loading.load_network(str(tmp_path / "base"), "float32", "cpu")
        with hf_loading.quiet():
            adapted = hf_lora.merge(start, str(out / export.ADAPTER))
        for network in (whole, adapted):
            found = update.sequence_logprobs(network, ids)
            assert (found - expected).abs().max() < 1e-4
        held = json.loads((out / "ragen.json").read_text())
        assert held["training"]["config"]["lora_rank"] == 4

    def test_without_an_adapter_none_is_written(self, tmp_path):
        out = export.write(built(), tmp_path / "model")
        assert not (out / export.ADAPTER).exists()
