"""A LoRA adapter is merged into the model it was made for, or refused by name."""

import asyncio
import json
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
families = pytest.importorskip("families")

from ragen_bench.errors import InvalidSpec, MissingExtra  # noqa: E402
from ragen_bench.model import Conversation, Message, Sampling  # noqa: E402
from ragen_bench.models import hf_loading  # noqa: E402
from ragen_bench.registry import make_model  # noqa: E402

pytestmark = pytest.mark.hf

FAMILY = families.FAMILIES["qwen2.5"]
TARGETS = ["q_proj", "v_proj", "down_proj"]


def adapt(network, place, seed=0, **settings):
    """Write an adapter for a network and return the network with it inside."""
    settings = {"target_modules": TARGETS, "r": 4, "lora_alpha": 32, **settings}
    with hf_loading.quiet():
        adapted = peft.get_peft_model(network, peft.LoraConfig(**settings))
        torch.manual_seed(seed)
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(weight, std=0.3)
        adapted.save_pretrained(place)
    return adapted


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base model, two adapters for it, and a folder that was saved merged."""
    place = tmp_path_factory.mktemp("lora")
    FAMILY.build(place / "base")
    with hf_loading.quiet():
        for seed, name in enumerate(("first", "second")):
            network, tokenizer = hf_loading.load_network(
                str(place / "base"), "float32", "cpu"
            )
            adapted = adapt(network, place / name, seed)
        adapted.merge_and_unload().save_pretrained(place / "merged")
        tokenizer.save_pretrained(place / "merged")
    return place


def replies(model, count=6):
    async def ask(number):
        talk = Conversation(key=str(number), seed=0)
        talk.messages.append(Message(role="user", content=f"Board {number}."))
        return (await model.generate(talk, Sampling(max_tokens=12, stop=()))).token_ids

    async def everything():
        return await asyncio.gather(*map(ask, range(count)))

    return asyncio.run(everything())


def load(folders, base="base", **arguments):
    return make_model(f"hf:{folders / base}", threads=1, **arguments)


def test_a_merged_adapter_plays_like_a_folder_that_was_saved_merged(folders):
    second = load(folders, lora=str(folders / "second"))
    assert replies(second) == replies(load(folders, "merged"))
    assert replies(second) != replies(load(folders))
    assert replies(second) != replies(load(folders, lora=str(folders / "first")))
    assert second.describe()["notes"] == []


def test_facts_tell_adapters_apart(folders):
    files = [
        load(folders, lora=str(folders / name)).describe()["files"]
        for name in ("first", "second")
    ]
    weights = "lora/adapter_model.safetensors"
    assert "lora/adapter_config.json" in files[0]
    assert files[0][weights] != files[1][weights]
    bare = load(folders).describe()["files"]
    assert bare.items() < files[0].items()


def test_a_folder_that_is_no_adapter_is_refused(folders, tmp_path):
    for place in ("base", "nowhere"):
        with pytest.raises(InvalidSpec, match=f"{place}' is no adapter.*adapter_conf"):
            load(folders, lora=str(folders / place))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    for text, message in (
        ("{", "names no peft_type"),
        ("[]", "names no peft_type"),
        (json.dumps({"peft_type": "IA3"}), "of type IA3, which cannot be merged"),
        (json.dumps({"peft_type": "LORA", "r": 2}), "does not fit"),
    ):
        (tmp_path / "adapter_config.json").write_text(text)
        with pytest.raises(InvalidSpec, match=message):
            load(folders, lora=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen2.5", {"num_hidden_layers": 3}, "has no place for"),
        ("qwen2.5", {"num_hidden_layers": 1}, "needs"),
        ("qwen2.5", {"hidden_size": 32}, "size mismatch"),
        ("gpt", {}, "not found in the base model"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    folders, tmp_path, name, changes, message
):
    import transformers

    if name == "gpt":
        sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2}
        ids = {"bos_token_id": 0, "eos_token_id": 0}
        config = transformers.GPT2Config(vocab_size=300, **sizes, **ids)
        targets = ["c_attn"]
    else:
        config = transformers.AutoConfig.from_pretrained(folders / "base")
        config.update({**changes, "layer_types": None})
        config.layer_types = ["full_attention"] * config.num_hidden_layers
        targets = TARGETS
    other = transformers.AutoModelForCausalLM.from_config(config)
    adapt(other, tmp_path, target_modules=targets, fan_in_fan_out=name == "gpt")
    with pytest.raises(InvalidSpec, match=rf"does not fit Qwen2\w+ .*{message}"):
        load(folders, lora=str(tmp_path))


def test_a_missing_package_names_the_extra(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"ragen-bench\[lora\]"):
        load(folders, lora=str(folders / "first"))
