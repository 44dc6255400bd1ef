"""Models of transformers: prompts, caches, batches, sampling, all on random weights."""

import asyncio
import collections
import concurrent.futures
import json
import math
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from ragen_bench.errors import (  # noqa: E402
    ContextOverflow,
    InvalidSpec,
    MissingExtra,
    ProviderError,
    UnknownName,
)
from ragen_bench.model import Conversation, Message, Sampling  # noqa: E402
from ragen_bench.models import hf_engine, hf_loading  # noqa: E402
from ragen_bench.models.chat_template import Chat, Transcript  # noqa: E402
from ragen_bench.models.hf_engine import HFModel  # noqa: E402
from ragen_bench.models.hf_options import Options  # noqa: E402
from ragen_bench.registry import make_model  # noqa: E402
from ragen_bench.seeding import Stream  # noqa: E402

pytestmark = pytest.mark.hf

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + "
    "'<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_BOS = "{{ bos_token }}" + CHATML
NO_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('no system role') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
PLAIN = Sampling(max_tokens=12, stop=())
TOKEN = {name: number for number, name in enumerate(SPECIAL)}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_tokenizer(template=CHATML, adds_bos=False):
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {name: number for number, name in enumerate([*SPECIAL, *alphabet])}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens(SPECIAL)
    if adds_bos:
        core.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", TOKEN["<s>"])]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
        chat_template=template,
    )


SIZES = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": TOKEN["<s>"],
    "eos_token_id": TOKEN["</s>"],
    "pad_token_id": TOKEN["<pad>"],
    # Random weights must tell tokens apart clearly, or rounding decides.
    "initializer_range": 0.4,
}


def make_network(kind="llama", seed=0, **changes):
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def make(network=None, tokenizer=None, **options):
    return HFModel(
        "hf:test",
        network or make_network(),
        tokenizer or make_tokenizer(),
        Options(**{"threads": 1, **options}),
    )


def talk(system, *users, key="a", seed=5):
    messages = [Message(role="system", content=system)]
    messages += [Message(role="user", content=user) for user in users]
    return Conversation(key=key, seed=seed, messages=messages)


async def play(model, system, observations, sampling=PLAIN, seed=5):
    """Play one conversation; return its completions and the prompt of each."""
    conversation = Conversation(key="a", seed=seed)
    conversation.messages.append(Message(role="system", content=system))
    completions = []
    for turn, text in enumerate(observations):
        conversation.messages.append(Message(role="user", content=text))
        conversation.turn = turn
        completion = await model.generate(conversation, sampling)
        completions.append(completion)
        conversation.messages.append(
            Message(
                role="assistant",
                content=completion.text,
                token_ids=completion.token_ids,
            )
        )
    return completions


def run(*coroutines):
    async def gather():
        return await asyncio.gather(*coroutines)

    return asyncio.run(gather())


def reference(network, ids, count, end_ids):
    """Return what transformers' own greedy generate adds to a prompt."""
    found = network.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=list(end_ids),
        pad_token_id=0,
    )
    return found[0, len(ids) :].tolist()


STORIES = [
    ("rules of the first game " * 4, ["a small board", "and now", "go on please"]),
    ("rules of the first game " * 4, ["another board, rather longer" * 3, "x"]),
    ("rules of the first game " * 4, ["b", "c", "d", "e"]),
    ("other rules", ["one", "two" * 20, "three"]),
    ("other rules", ["one", "four"]),
    ("rules of the first game " * 4, ["z" * 70, "y", "x" * 40]),
    ("q", ["1", "2", "3"]),
    ("rules of the first game " * 4, ["a small board", "and then", "stop"]),
]

PACKED = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": None},
    "gemma": {"head_dim": 16},
    "olmo2": {},
    "phi3": {"num_key_value_heads": 4},
    "gpt_neox": {"num_key_value_heads": None},
}


@pytest.mark.parametrize("kind", PACKED)
def test_greedy_replies_equal_those_of_transformers_generate(kind):
    network, twin = (make_network(kind, **PACKED[kind]) for _ in range(2))
    model = make(network)
    assert model.describe()["notes"] == []
    system, observations = STORIES[0]
    (completions,) = run(play(model, system, observations))
    ids = model._chat.encode(model._chat.render(talk(system, observations[0]).messages))
    for completion, text in zip(completions, [*observations[1:], ""], strict=True):
        expected = reference(twin, ids, 12, model._end_ids)
        assert list(completion.token_ids) == expected
        assert completion.usage.input_tokens == len(ids)
        ends = expected[-1] == TOKEN["<|im_end|>"]
        if expected[-1] == TOKEN["</s>"]:
            expected = expected[:-1]
        rest = f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        rest = rest if ends else "<|im_end|>" + rest
        ids = ids + expected + model._chat._encode(rest)
    assert len({c.token_ids for c in completions}) > 1


@pytest.fixture(scope="module")
def alone():
    model = make(kv_reuse=False)
    return [run(play(model, *story))[0] for story in STORIES]


@pytest.mark.parametrize("concurrency", [1, 3, 8])
@pytest.mark.parametrize(("batch_size", "kv_reuse"), [(2, True), (8, True), (8, False)])
def test_replies_do_not_depend_on_what_else_is_in_the_batch(
    concurrency, batch_size, kv_reuse, alone
):
    model = make(batch_size=batch_size, kv_reuse=kv_reuse)

    async def play_all():
        slots = asyncio.Semaphore(concurrency)

        async def one(story):
            async with slots:
                return await play(model, *story)

        return await asyncio.gather(*map(one, STORIES))

    found = asyncio.run(play_all())
    for completions, expected in zip(found, alone, strict=True):
        assert [c.token_ids for c in completions] == [c.token_ids for c in expected]
        for completion, other in zip(completions, expected, strict=True):
            assert completion.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    cached = [c.usage.cached_tokens for reply in found for c in reply]
    assert any(cached) == kv_reuse


def test_sampled_replies_do_not_depend_on_the_batch_either():
    sampling = Sampling(temperature=0.8, top_p=0.9, max_tokens=12, stop=())
    model = make()
    together = run(*(play(model, *story, sampling) for story in STORIES))
    single = [run(play(model, *story, sampling))[0] for story in STORIES]
    assert [[c.token_ids for c in t] for t in together] == [
        [c.token_ids for c in s] for s in single
    ]
    greedy = run(*(play(model, *story) for story in STORIES))
    assert [c.token_ids for c in greedy[0]] != [c.token_ids for c in together[0]]


def test_the_next_turn_feeds_only_what_is_new():
    (first, second, third) = run(play(make(), *STORIES[0]))[0]
    assert first.usage.cached_tokens == 0
    for last, now in ((first, second), (second, third)):
        # The newest token was sampled and never fed.
        fed = last.usage.input_tokens + last.usage.output_tokens - 1
        assert now.usage.cached_tokens == fed


def test_episodes_of_one_cell_share_the_rules():
    model = make()
    system = "rules of the first game " * 4
    run(play(model, system, ["a board"]), play(model, system, ["other board"]))
    (later,) = run(play(model, system, ["quite another"]))
    shared = len(model._chat.encode(f"<|im_start|>system\n{system}"))
    assert later[0].usage.cached_tokens >= shared - 16


def test_a_shared_head_is_held_once():
    model = make()
    run(*(play(model, *story) for story in STORIES[:3]))
    store = model._worker._decoder._store
    assert [len(head) >= 96 for head in store._heads] == [True]


def test_caches_stay_within_their_budget_and_replies_the_same(alone):
    model = make(kv_tokens=600)
    found = run(*(play(model, *story) for story in STORIES))
    assert [[c.token_ids for c in reply] for reply in found] == [
        [c.token_ids for c in reply] for reply in alone
    ]
    assert model._worker._decoder._store.size() <= 600


def test_a_budget_below_one_prompt_still_answers(alone):
    model = make(kv_tokens=1)
    found = run(*(play(model, *story) for story in STORIES[:3]))
    assert [c.token_ids for c in found[1]] == [c.token_ids for c in alone[1]]


def test_a_prompt_is_read_in_chunks(monkeypatch, alone):
    monkeypatch.setattr("ragen_bench.models.hf_decoder.PREFILL_TOKENS", 7)
    found = run(*(play(make(), *story) for story in STORIES[:3]))
    for reply, expected in zip(found, alone, strict=False):
        assert [c.token_ids for c in reply] == [c.token_ids for c in expected]


def test_a_window_of_turns_is_read_afresh_and_right():
    model = make()
    conversation = talk("rules of the game", "one")
    first = asyncio.run(model.generate(conversation, PLAIN))
    conversation.messages += [
        Message(role="assistant", content=first.text, token_ids=first.token_ids),
        Message(role="user", content="two"),
    ]
    del conversation.messages[1:3]
    found = asyncio.run(model.generate(conversation, PLAIN))
    fresh = asyncio.run(make().generate(talk("rules of the game", "two"), PLAIN))
    assert found.token_ids == fresh.token_ids
    assert found.usage.input_tokens == fresh.usage.input_tokens
    assert 0 < found.usage.cached_tokens < found.usage.input_tokens


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gemma3_text", {"sliding_window": 8}, "window of 8"),
        ("gemma2", {"sliding_window": 8}, "window of 8"),
        ("mistral", {"sliding_window": 8}, "window of 8"),
        ("gemma2", {"layer_types": ["full_attention"] * 2}, "softcap"),
        ("bloom", {"n_head": 4}, ""),
    ],
)
def test_a_model_with_other_attention_is_decoded_plainly_and_right(
    kind, changes, reason
):
    network, twin = (make_network(kind, **changes) for _ in range(2))
    model = make(network)
    (note,) = model.describe()["notes"]
    assert "one by one" in note
    assert reason in note
    found = run(play(model, *STORIES[0]), play(model, *STORIES[3]))
    ids = model._chat.encode(
        model._chat.render(talk(STORIES[3][0], STORIES[3][1][0]).messages)
    )
    expected = reference(twin, ids, 12, model._end_ids)
    assert list(found[1][0].token_ids) == expected
    assert len(found[0]) == 3


def test_a_network_serves_others_beside_the_model():
    network, twin = make_network(), make_network()
    ids = torch.tensor([[0, 0, 9, 30, 7], [9, 8, 7, 6, 5]])
    mask = (ids > 0).long()
    expected = twin(input_ids=ids, attention_mask=mask).logits
    (replies,) = run(play(make(network), *STORIES[3]))
    found = network(input_ids=ids, attention_mask=mask).logits
    assert torch.allclose(found[:, 2:], expected[:, 2:], atol=1e-4)
    assert len(replies) == 3


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_a_window_no_shorter_than_the_context_is_no_window(kind):
    network, twin = (make_network(kind, sliding_window=256) for _ in range(2))
    model = make(network, max_context=256)
    assert model.describe()["notes"] == []
    (found,) = run(play(model, *STORIES[3]))
    messages = talk(STORIES[3][0], STORIES[3][1][0]).messages
    ids = model._chat.encode(model._chat.render(messages))
    assert list(found[0].token_ids) == reference(twin, ids, 12, model._end_ids)


def test_a_model_whose_packed_logits_differ_is_decoded_plainly(monkeypatch):
    from ragen_bench.models import hf_attention

    right = hf_attention.attend
    monkeypatch.setattr(
        hf_attention,
        "attend",
        lambda q, k, v, mask, scale: right(q, k, v, mask, scale * 1.5),
    )
    assert "off by" in make().describe()["notes"][0]


def test_attention_elsewhere_than_on_a_cpu_computes_the_same():
    from ragen_bench.models.hf_attention import attend_by_matmul, attend_on_cpu

    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, n, 8, generator=generator) for n in (6, 9, 9))
    mask = torch.full((6, 9), float("-inf")).triu(4)[None, None]
    for ours, theirs in zip(
        attend_by_matmul(q, k, v, mask, 0.3),
        attend_on_cpu(q, k, v, mask, 0.3),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, atol=1e-6)


class TestPrompts:
    def test_exactly_one_bos_whoever_writes_it(self):
        for template, adds, expected in (
            (CHATML, False, 0),
            (CHATML, True, 1),
            (WITH_BOS, False, 1),
            (WITH_BOS, True, 1),
        ):
            chat = Chat(make_tokenizer(template, adds))
            ids = chat.encode(chat.render(talk("s", "u").messages))
            assert ids.count(TOKEN["<s>"]) == expected
            assert ids[:expected] == [TOKEN["<s>"]] * expected

    def test_the_template_is_used_as_the_model_defines_it(self):
        chat = Chat(make_tokenizer())
        assert chat.render(talk("s", "u").messages) == (
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert chat.notes == []

    def test_a_refused_system_message_goes_into_the_first_user_message(self):
        chat = Chat(make_tokenizer(NO_SYSTEM))
        assert chat.render(talk("s", "u", "w").messages) == (
            "<|im_start|>user\ns\n\nu<|im_end|>\n<|im_start|>user\nw<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert chat.notes == ["system message merged into the first user message"]

    def test_a_dropped_system_message_goes_there_too(self):
        chat = Chat(make_tokenizer("{{ messages[-1]['content'] }}:"))
        assert chat.render(talk("s", "u").messages) == "s\n\nu:"

    def test_without_a_template_roles_are_written_out(self):
        chat = Chat(make_tokenizer(template=None))
        assert chat.render(talk("s", "u").messages) == (
            "System:\ns\n\nUser:\nu\n\nAssistant:\n"
        )
        assert chat.template_sha256 is None
        assert chat.notes == ["no chat template: 'System: / User: / Assistant:' lines"]

    def test_a_template_that_refuses_the_roles_says_so(self):
        chat = Chat(make_tokenizer("{{ raise_exception('only odd turns') }}"))
        with pytest.raises(InvalidSpec, match="system.*only odd turns|user.*only odd"):
            chat.render(talk("s", "u").messages)

    def test_the_date_is_always_the_same(self):
        chat = Chat(make_tokenizer("{{ strftime_now('%d %b %Y') }} " + CHATML))
        text = chat.render(talk("s", "u").messages)
        assert text.startswith("26 Jul 2024 <|im_start|>system\n")
        assert chat.notes == ["the chat template's date is always 26 Jul 2024"]

    def test_a_prompt_needs_a_message(self):
        with pytest.raises(InvalidSpec, match="without messages"):
            Chat(make_tokenizer()).render([])

    def test_sampled_ids_go_back_untouched(self):
        tokenizer = make_tokenizer()
        tokenizer.add_tokens(["abc"])
        chat = Chat(tokenizer, {TOKEN["<|im_end|>"]})
        messages = talk("s", "u").messages
        text, ids = chat.prompt(messages, None)
        apart = tuple(chat._encode("ab") + chat._encode("c"))
        assert len(apart) == 3
        assert len(chat._encode("abc")) == 1
        messages += [
            Message(role="assistant", content="abc", token_ids=apart),
            Message(role="user", content="w"),
        ]
        tail = chat._encode(
            "<|im_end|>\n<|im_start|>user\nw<|im_end|>\n<|im_start|>assistant\n"
        )
        _, found = chat.prompt(messages, Transcript(text, ids, "abc", apart))
        assert found == [*ids, *apart, *tail]
        ended = (*apart, TOKEN["<|im_end|>"])
        messages[2].token_ids = ended
        _, found = chat.prompt(messages, Transcript(text, ids, "abc", ended))
        assert found == [*ids, *apart, *tail]

    def test_an_end_token_that_the_template_does_not_write_is_left_out(self):
        chat = Chat(make_tokenizer(), {TOKEN["</s>"]})
        messages = talk("s", "u").messages
        text, ids = chat.prompt(messages, None)
        reply = (*chat._encode("hm"), TOKEN["</s>"])
        messages += [
            Message(role="assistant", content="hm", token_ids=reply),
            Message(role="user", content="w"),
        ]
        _, found = chat.prompt(messages, Transcript(text, ids, "hm", reply))
        assert found == chat.encode(chat.render(messages))

    def test_another_reply_than_the_sampled_one_is_tokenised_afresh(self):
        chat = Chat(make_tokenizer())
        messages = talk("s", "u").messages
        text, ids = chat.prompt(messages, None)
        messages += [
            Message(role="assistant", content="changed"),
            Message(role="user", content="w"),
        ]
        last = Transcript(text, ids, "said", tuple(chat._encode("said")))
        assert chat.prompt(messages, last)[1] == chat.encode(chat.render(messages))

    def test_tokens_are_counted_with_the_template(self):
        model = make()
        messages = talk("rules", "go").messages
        completion = asyncio.run(
            model.generate(talk("rules", "go"), Sampling(max_tokens=1, stop=()))
        )
        assert model.count_tokens(messages) == completion.usage.input_tokens


def rigged(script, tokenizer=None, **options):
    """Return a model whose greedy reply is a given list of token ids."""
    model = make(tokenizer=tokenizer, **options)
    start = {}

    def forward(*, logits_to_keep, pack, **_):
        logits = []
        ends = [sum(pack.sizes[: i + 1]) - 1 for i in range(len(pack.sizes))]
        for segment, end in zip(pack.segments, ends, strict=True):
            if end in logits_to_keep.tolist():
                after = len(segment.cache) + len(segment.tokens)
                first = start.setdefault(id(segment.cache), after)
                row = torch.zeros(262)
                row[script[after - first]] = 5.0
                logits.append(row)
        return type("Out", (), {"logits": torch.stack(logits)[None]})

    model._worker._decoder._network = forward
    return model


def ask(model, **sampling):
    sampling = {"stop": (), **sampling}
    return asyncio.run(model.generate(talk("s", "u"), Sampling(**sampling)))


def ids_of(text):
    return Chat(make_tokenizer())._encode(text)


class TestEndOfReply:
    def test_an_end_token_ends_it_and_is_not_in_the_text(self):
        script = [*ids_of("yes"), TOKEN["<|im_end|>"], *ids_of("more")]
        completion = ask(rigged(script))
        assert completion.text == "yes"
        assert completion.finish_reason == "stop"
        assert completion.token_ids == tuple(script[:4])
        assert len(completion.logprobs) == 4

    def test_the_configurations_end_token_ends_it_too(self):
        script = [*ids_of("no"), TOKEN["</s>"], *ids_of("more")]
        assert ask(rigged(script)).text == "no"

    def test_a_stop_string_ends_it_and_stays_in_the_text(self):
        script = ids_of("a > b </answer> more and more")
        completion = ask(rigged(script), stop=("</answer>",))
        assert completion.text == "a > b </answer>"
        assert completion.finish_reason == "stop"

    def test_text_behind_a_stop_string_within_a_token_is_cut(self):
        tokenizer = make_tokenizer()
        tokenizer.add_tokens([">\n!"])
        script = [*ids_of("up</answer"), len(tokenizer) - 1, *ids_of("zz")]
        completion = ask(rigged(script, tokenizer), stop=("</answer>",))
        assert completion.text == "up</answer>"
        assert completion.token_ids == tuple(script[:11])

    @pytest.mark.parametrize("stop", ["\n\n", "b ", "é", "\N{SNOWMAN}", "a"])
    def test_stop_strings_of_any_kind_are_found(self, stop):
        script = ids_of(f"xx{stop}yy")
        completion = ask(rigged(script), stop=("never", stop))
        assert completion.text == f"xx{stop}"

    def test_the_first_of_several_stop_strings_wins(self):
        completion = ask(rigged(ids_of("xabc")), stop=("abc", "ab"))
        assert completion.text == "xab"

    def test_the_token_limit_cuts_it(self):
        completion = ask(rigged(ids_of("abcdefgh")), max_tokens=5)
        assert completion.text == "abcde"
        assert completion.finish_reason == "length"
        assert completion.usage.output_tokens == 5

    def test_the_context_cuts_it_too(self):
        size = make().count_tokens(talk("s", "u").messages)
        completion = ask(rigged(ids_of("abcdefgh"), max_context=size + 3))
        assert completion.text == "abc"
        assert completion.finish_reason == "length"

    def test_a_prompt_that_fills_the_context_overflows(self):
        size = make().count_tokens(talk("s", "u").messages)
        with pytest.raises(ContextOverflow, match=f"{size} tokens.*at most {size} fit"):
            ask(make(max_context=size))
        assert len(ask(make(max_context=size + 1)).token_ids) == 1


class TestSampling:
    def draw(self, logits, **sampling):
        from ragen_bench.models.hf_sampler import ReplyInProgress, sample

        sampling = Sampling(max_tokens=10_000, stop=(), **sampling)
        reply = ReplyInProgress(
            sampling, Stream(3, "turn", 0), Chat(make_tokenizer()), frozenset()
        )
        row = torch.tensor(logits).log()
        tokens, logprobs = [], []
        for _ in range(1500):
            token, logprob = sample(row[None], [reply])
            tokens += token
            logprobs += logprob
        return collections.Counter(tokens), dict(zip(tokens, logprobs, strict=True))

    def test_tokens_come_as_often_as_the_model_says(self):
        counts, logprobs = self.draw([0.1, 0.6, 0.3], temperature=1.0)
        # Three standard deviations of a share of 1500 draws are below 0.04.
        assert counts[1] / 1500 == pytest.approx(0.6, abs=0.04)
        assert counts[0] / 1500 == pytest.approx(0.1, abs=0.04)
        assert logprobs[1] == pytest.approx(math.log(0.6), abs=1e-5)

    def test_temperature_sharpens_draws_and_leaves_logprobs_alone(self):
        counts, logprobs = self.draw([0.2, 0.8], temperature=0.5)
        # 0.8**2 / (0.8**2 + 0.2**2) = 16 / 17
        assert counts[1] / 1500 == pytest.approx(16 / 17, abs=0.02)
        assert logprobs[0] == pytest.approx(math.log(0.2), abs=1e-5)

    def test_a_nucleus_holds_the_likeliest_tokens_that_reach_it(self):
        counts, _ = self.draw([0.15, 0.5, 0.05, 0.3], temperature=1.0, top_p=0.7)
        assert set(counts) == {1, 3}
        assert counts[1] / 1500 == pytest.approx(0.5 / 0.8, abs=0.04)

    def test_a_nucleus_wider_than_the_likely_tokens_is_right(self, monkeypatch):
        monkeypatch.setattr("ragen_bench.models.hf_sampler._LIKELY", 1)
        counts, _ = self.draw([0.15, 0.5, 0.05, 0.3], temperature=1.0, top_p=0.9)
        assert set(counts) == {0, 1, 3}

    def test_temperature_0_takes_the_likeliest(self):
        counts, logprobs = self.draw([0.2, 0.5, 0.3])
        assert set(counts) == {1}
        assert logprobs[1] == pytest.approx(math.log(0.5), abs=1e-5)

    def test_another_turn_or_seed_draws_otherwise_and_the_same_the_same(self):
        model = make()
        sampling = Sampling(temperature=1.5, max_tokens=12, stop=())

        def reply(seed, turn):
            conversation = talk("s", "u", seed=seed)
            conversation.turn = turn
            return asyncio.run(model.generate(conversation, sampling)).token_ids

        assert reply(1, 0) == reply(1, 0)
        assert len({reply(1, 0), reply(2, 0), reply(1, 1)}) == 3

    @pytest.mark.parametrize(
        ("sampling", "message"),
        [
            ({"temperature": -1.0}, "temperature is -1.0"),
            ({"temperature": float("nan")}, "temperature is nan"),
            ({"top_p": 0.0}, "top_p is 0.0"),
            ({"max_tokens": 0}, "max_tokens is 0"),
            ({"stop": ("",)}, "empty string"),
        ],
    )
    def test_settings_out_of_range_are_refused(self, sampling, message):
        with pytest.raises(InvalidSpec, match=message):
            ask(make(), **sampling)


class TestThreads:
    def test_a_model_serves_one_event_loop_after_another(self):
        model = make()
        first = run(play(model, *STORIES[3]))
        asyncio.run(model.aclose())
        second = run(play(model, *STORIES[3]))
        assert [c.token_ids for c in first[0]] == [c.token_ids for c in second[0]]
        thread = model._worker._thread
        asyncio.run(model.aclose())
        asyncio.run(model.aclose())
        assert not thread.is_alive()

    def test_it_serves_event_loops_in_several_threads(self, alone):
        model, found = make(), {}

        def serve(number):
            found[number] = asyncio.run(play(model, *STORIES[number]))

        threads = [threading.Thread(target=serve, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(4):
            assert [c.token_ids for c in found[number]] == [
                c.token_ids for c in alone[number]
            ]

    def test_a_failure_reaches_everyone_and_the_model_goes_on(self, monkeypatch):
        model = make()
        decoder = model._worker._decoder
        network, decoder._network = decoder._network, lambda **_: 1 / 0

        async def both():
            return await asyncio.gather(
                play(model, *STORIES[0]),
                play(model, *STORIES[3]),
                return_exceptions=True,
            )

        for error in asyncio.run(both()):
            assert isinstance(error, ProviderError)
            assert "ZeroDivisionError" in str(error)
        decoder._network = network
        assert len(run(play(model, *STORIES[3]))[0]) == 3

    def test_a_process_may_end_without_closing_its_model(self, folder):
        script = f"""
import asyncio, threading
from ragen_bench.model import Conversation, Message, Sampling
from ragen_bench.registry import make_model

model = make_model({f"hf:{folder}"!r}, threads=1)
conversation = Conversation(key="a", seed=0)
conversation.messages.append(Message(role="user", content="u"))
ask = lambda: model.generate(conversation, Sampling(max_tokens=400, stop=()))
threading.Thread(target=lambda: asyncio.run(ask()), daemon=True).start()
while not model._worker._decoder.busy:
    pass
"""
        ended = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stderr

    def test_closing_fails_who_waits(self):
        model = make()
        decoder = model._worker._decoder
        entered, leave = threading.Event(), threading.Event()
        network = decoder._network

        def slow(**inputs):
            entered.set()
            leave.wait(10)
            return network(**inputs)

        decoder._network = slow

        async def close_early():
            task = asyncio.create_task(play(model, *STORIES[3]))
            await asyncio.to_thread(entered.wait, 10)
            closing = asyncio.create_task(model.aclose())
            while not model._worker._stopping:
                await asyncio.sleep(0)
            leave.set()
            await closing
            return await asyncio.gather(task, return_exceptions=True)

        (error,) = asyncio.run(close_early())
        assert isinstance(error, ProviderError)
        assert "closed" in str(error)

    def test_whoever_leaves_is_dropped_and_others_are_served(self, alone):
        model = make()
        decoder = model._worker._decoder
        entered, leave = threading.Event(), threading.Event()
        network = decoder._network

        def slow(**inputs):
            entered.set()
            leave.wait(10)
            return network(**inputs)

        decoder._network = slow

        async def leave_early():
            task = asyncio.create_task(play(model, *STORIES[0]))
            await asyncio.to_thread(entered.wait, 10)
            task.cancel()
            other = asyncio.create_task(play(model, *STORIES[3]))
            await asyncio.sleep(0)
            leave.set()
            return await other

        found = asyncio.run(leave_early())
        assert [c.token_ids for c in found] == [c.token_ids for c in alone[3]]
        assert not decoder.busy

    def test_two_questions_of_one_conversation_at_once_are_both_right(self):
        model = make()
        conversation = talk("s", "u")

        async def twice():
            await model.generate(conversation, PLAIN)
            return await asyncio.gather(
                model.generate(conversation, PLAIN), model.generate(conversation, PLAIN)
            )

        first, second = asyncio.run(twice())
        assert first.token_ids == second.token_ids

    def test_a_conversation_may_change_its_model(self):
        conversation = talk("s", "u")
        asyncio.run(make().generate(conversation, PLAIN))
        other = make(make_network(seed=9))
        found = asyncio.run(other.generate(conversation, PLAIN))
        fresh = asyncio.run(other.generate(talk("s", "u"), PLAIN))
        assert found.token_ids == fresh.token_ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "small"
    with hf_loading.quiet():
        make_network().save_pretrained(place)
        make_tokenizer().save_pretrained(place)
    return place


class TestLoading:
    def test_a_folder_plays_like_the_network_that_it_holds(self, folder, alone):
        model = make_model(f"hf:{folder}", threads=1, kv_reuse="false", batch_size="4")
        found = run(*(play(model, *story) for story in STORIES[:4]))
        assert [c.token_ids for c in found[0]] == [c.token_ids for c in alone[0]]
        assert model.name == f"hf:{folder}"
        assert model.defaults == {}

    def test_facts_about_a_model_are_json_and_tell_weights_apart(
        self, folder, tmp_path
    ):
        facts = make_model(f"hf:{folder}").describe()
        assert json.loads(json.dumps(facts)) == facts
        assert facts["dtype"] == "float32"
        assert facts["class"] == "LlamaForCausalLM"
        assert facts["end_ids"] == [TOKEN["</s>"], TOKEN["<|im_end|>"]]
        with hf_loading.quiet():
            make_network(seed=1).save_pretrained(tmp_path)
            make_tokenizer().save_pretrained(tmp_path)
        other = make_model(f"hf:{tmp_path}").describe()
        assert facts["files"]["config.json"] == other["files"]["config.json"]
        weights = "model.safetensors"
        assert facts["files"][weights] != other["files"][weights]

    def test_a_folder_may_say_what_it_was_made_for(self, tmp_path):
        (tmp_path / "ragen.json").write_text('{"agent": "direct", "prompt": "compact"}')
        assert hf_loading.read_defaults(str(tmp_path))["agent"] == "direct"
        (tmp_path / "ragen.json").write_text("[1]")
        with pytest.raises(InvalidSpec, match="JSON object"):
            hf_loading.read_defaults(str(tmp_path))
        (tmp_path / "ragen.json").write_text("{")
        with pytest.raises(InvalidSpec, match="not JSON"):
            hf_loading.read_defaults(str(tmp_path))

    def test_two_threads_may_load_at_once(self, folder):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            models = list(pool.map(lambda _: make_model(f"hf:{folder}"), range(4)))
        assert len({repr(model.describe()) for model in models}) == 1

    def test_loading_leaves_the_number_of_cores_as_it_was(self, folder):
        torch.set_num_threads(2)
        make_model(f"hf:{folder}", threads=1)
        assert torch.get_num_threads() == 2

    @pytest.mark.parametrize(
        ("cuda", "mps", "bfloat16", "device", "dtype"),
        [
            (False, False, False, "cpu", torch.float32),
            (True, False, True, "cuda", torch.bfloat16),
            (True, True, False, "cuda", torch.float16),
            (False, True, True, "mps", torch.bfloat16),
            (False, True, False, "mps", torch.float16),
        ],
    )
    def test_device_and_dtype_are_what_the_machine_is_good_at(
        self, monkeypatch, cuda, mps, bfloat16, device, dtype
    ):
        def zeros(*_, **__):
            if not bfloat16:
                raise TypeError("this device has no bfloat16")

        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: bfloat16)
        monkeypatch.setattr(torch, "zeros", zeros)
        assert hf_loading.device_named("auto") == torch.device(device)
        assert hf_loading._dtype("auto", torch.device(device)) == dtype
        assert hf_loading._dtype("float32", torch.device(device)) == torch.float32

    def test_half_precision_says_what_it_may_do(self, folder):
        facts = make_model(f"hf:{folder}", dtype="bfloat16").describe()
        assert facts["dtype"] == "bfloat16"
        assert facts["notes"] == ["replies may depend on the batch by rounding"]

    def test_what_is_not_there_is_said_clearly(self, folder, tmp_path, monkeypatch):
        def offline(*_, **__):
            raise OSError("cannot reach the hub")

        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", offline)
        with pytest.raises(UnknownName, match="no such folder here, and the hub did"):
            make_model("hf:somebody/model")
        with pytest.raises(UnknownName, match="there is no such folder"):
            make_model("hf:./nowhere")
        with pytest.raises(InvalidSpec, match="holds no config.json"):
            make_model(f"hf:{tmp_path}")
        with pytest.raises(InvalidSpec, match="needs a folder"):
            make_model("hf:")
        with pytest.raises(InvalidSpec, match="holds no causal language model"):
            make_model(f"hf:{folder}")

    @pytest.mark.parametrize(
        ("argument", "error", "message"),
        [
            ({"dtype": "int3"}, UnknownName, "no dtype 'int3'"),
            ({"device": "moon"}, InvalidSpec, "device 'moon'"),
            ({"batch_size": 0}, InvalidSpec, "batch_size is 0"),
            ({"threads": "two"}, InvalidSpec, "threads is 'two'"),
            ({"kv_reuse": "maybe"}, InvalidSpec, "kv_reuse is 'maybe'"),
            ({"template_args": "[1]"}, InvalidSpec, "template_args is .* JSON object"),
            ({"template_args": {"x_y": 1}}, InvalidSpec, "'x_y', which is read nowhe"),
            ({"max_context": 513}, InvalidSpec, "513, but the model has 512"),
            ({"colour": 1}, UnknownName, "argument of model 'hf' 'colour'"),
        ],
    )
    def test_wrong_arguments_are_refused(self, folder, argument, error, message):
        with pytest.raises(error, match=message):
            make_model(f"hf:{folder}", **argument)

    def test_tiny_is_a_folder_of_the_package(self, folder, monkeypatch, alone):
        monkeypatch.setattr(
            hf_engine.importlib.resources, "files", lambda _: folder.parent
        )
        (folder.parent / "tiny").symlink_to(folder)
        model = make_model("tiny")
        assert model.name == "tiny"
        (found,) = run(play(model, *STORIES[0]))
        assert [c.token_ids for c in found] == [c.token_ids for c in alone[0]]
        with pytest.raises(UnknownName, match="'tiny', bare"):
            make_model("tiny:2")

    def test_a_missing_package_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtra, match=r"ragen-bench\[hf\]"):
            make_model("hf:folder")
