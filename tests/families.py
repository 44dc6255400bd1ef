"""Tiny models with random weights, in the architectures and templates people use.

The templates come out of the installed package ``trl``; a small tokenizer is trained
for each family, with the special tokens that its template writes.  Weights are drawn
wide, so that greedy choices are clear, and the end of a message is likely, so that
some replies end by themselves.
"""

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from ragen_bench.models import hf_loading

TRL = importlib.util.find_spec("trl")  # not imported: it is slow
if TRL is None or TRL.origin is None:
    raise ModuleNotFoundError("the templates come out of trl", name="trl")

# Qwen1.5's template in our words; trl has all others.
CHATML = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n"
    "{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LINES = [
    "You are on a frozen lake. Reach the goal G and do not fall into a hole O.",
    "Turn 1 of 5. Choose from Up, Down, Left, Right.",
    "Answer like this: <answer>Up || Right</answer>",
    "<think>The goal is above me.</think><answer>Up</answer>",
    "System:\nUser:\nAssistant:\n",
]
SIZES: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """What makes a family of models."""

    kind: str
    """Model type of transformers."""
    template: str | None
    """Name of a file of trl, a template itself, or None."""
    special: tuple[str, ...]
    """Special tokens."""
    heads: tuple[str, str]
    """What a message of the user and one of the assistant begin with."""
    end: str
    """What ends a reply of the assistant."""
    eos: str
    """End of text, for tokenizer and configuration."""
    bos: str | None = None
    adds_bos: bool = False
    """Whether the tokenizer itself puts the BOS before a text."""
    merges_system: bool = False
    """Whether the template refuses a system message."""
    thinks: bool = False
    """Whether the tokenizer knows thinking tags, and the template drops old ones."""
    opens_thought: bool = False
    """Whether the template opens a thought for the reply."""
    packed: bool = True
    """Whether ``hf:`` serves it in packed passes."""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    generation_eos: tuple[str, ...] = ()
    """What ``generation_config.json`` names beside the end of text."""

    def build(self, place: Path) -> Path:
        """Write the model and its tokenizer into a folder, and return that."""
        tokenizer = self.tokenizer()
        with hf_loading.quiet():
            self.network(tokenizer).save_pretrained(place)
            tokenizer.save_pretrained(place)
        return place

    def tokenizer(self) -> Any:
        """Return the tokenizer, trained anew."""
        level = tokenizers.pre_tokenizers.ByteLevel
        core = tokenizers.Tokenizer(tokenizers.models.BPE())
        # A model without a template has a tokenizer of the older kind, too.
        core.pre_tokenizer = level(add_prefix_space=self.template is None)
        core.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=list(self.special),
            initial_alphabet=sorted(level.alphabet()),
            show_progress=False,
        )
        core.train_from_iterator(LINES, trainer)
        if self.thinks:
            tags = ("<think>", "</think>")
            core.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in tags])
        if self.adds_bos:
            core.post_processor = tokenizers.processors.TemplateProcessing(
                single=f"{self.bos} $A",
                special_tokens=[(self.bos, core.token_to_id(self.bos))],
            )
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=core,
            bos_token=self.bos,
            eos_token=self.eos,
            pad_token=self.special[0],
            chat_template=template_text(self.template),
        )

    def network(self, tokenizer: Any) -> Any:
        """Return the network, the same each time."""
        ids = {text: tokenizer.convert_tokens_to_ids(text) for text in self.special}
        config = transformers.AutoConfig.for_model(
            self.kind,
            vocab_size=len(tokenizer),
            bos_token_id=ids.get(self.bos),
            eos_token_id=ids[self.eos],
            pad_token_id=ids[self.special[0]],
            **{**SIZES, **self.config},
        )
        torch.manual_seed(1)
        network = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for weight in network.parameters():
                if weight.ndim == 1:  # biases and norms begin as all the same
                    weight.add_(torch.randn_like(weight) * 0.2)
            rows = network.get_output_embeddings().weight
            if self.kind.startswith("gemma"):
                rows *= 0.25  # it scales embeddings: a token would mostly repeat
            for text, number in ids.items():
                rows[number] *= 4.0 if text == self.end else 0.0
        ends = [ids[text] for text in (self.eos, *self.generation_eos)]
        network.generation_config.eos_token_id = ends
        return network


def template_text(name: str | None) -> str | None:
    """Return a template of the installed trl, or the text itself."""
    if name is None or "{" in name:
        return name
    assert TRL is not None and TRL.origin is not None
    return (Path(TRL.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML_HEADS = ("<|im_start|>user\n", "<|im_start|>assistant\n")
LLAMA_3_TOKENS = (
    "<|finetune_right_pad_id|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
LLAMA_3_HEADS = (
    "<|start_header_id|>user<|end_header_id|>\n\n",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
)
GEMMA_TOKENS = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
GEMMA_HEADS = ("<start_of_turn>user\n", "<start_of_turn>model\n")
R1_TOKENS = (
    "<\N{FULLWIDTH VERTICAL LINE}end\N{LOWER ONE EIGHTH BLOCK}of"
    "\N{LOWER ONE EIGHTH BLOCK}sentence\N{FULLWIDTH VERTICAL LINE}>",
    "<\N{FULLWIDTH VERTICAL LINE}begin\N{LOWER ONE EIGHTH BLOCK}of"
    "\N{LOWER ONE EIGHTH BLOCK}sentence\N{FULLWIDTH VERTICAL LINE}>",
    "<\N{FULLWIDTH VERTICAL LINE}User\N{FULLWIDTH VERTICAL LINE}>",
    "<\N{FULLWIDTH VERTICAL LINE}Assistant\N{FULLWIDTH VERTICAL LINE}>",
)

FAMILIES: Mapping[str, Family] = {
    # Its chat models name the end of a message in no configuration.
    "qwen1.5": Family(
        kind="qwen2",
        template=CHATML,
        special=CHATML_TOKENS,
        heads=CHATML_HEADS,
        end="<|im_end|>",
        eos="<|endoftext|>",
    ),
    "qwen2.5": Family(
        kind="qwen2",
        template="qwen2_5",
        special=CHATML_TOKENS,
        heads=CHATML_HEADS,
        end="<|im_end|>",
        eos="<|endoftext|>",
        generation_eos=("<|im_end|>",),
        config={"tie_word_embeddings": True},
    ),
    "qwen3": Family(
        kind="qwen3",
        template="qwen3",
        special=CHATML_TOKENS,
        heads=CHATML_HEADS,
        end="<|im_end|>",
        eos="<|im_end|>",
        thinks=True,
    ),
    # Reasoning models whose prompt opens the thought.
    "r1": Family(
        kind="qwen2",
        template="deepseek_r1_distill",
        special=R1_TOKENS,
        heads=R1_TOKENS[2:],
        end=R1_TOKENS[0],
        eos=R1_TOKENS[0],
        bos=R1_TOKENS[1],
        adds_bos=True,
        thinks=True,
        opens_thought=True,
    ),
    "llama3": Family(
        kind="llama",
        template="llama3",
        special=LLAMA_3_TOKENS,
        heads=LLAMA_3_HEADS,
        end="<|eot_id|>",
        eos="<|end_of_text|>",
        bos="<|begin_of_text|>",
        adds_bos=True,
    ),
    "gemma": Family(
        kind="gemma",
        template="gemma",
        special=GEMMA_TOKENS,
        heads=GEMMA_HEADS,
        end="<end_of_turn>",
        eos="<eos>",
        bos="<bos>",
        adds_bos=True,
        merges_system=True,
        config={"tie_word_embeddings": True},
    ),
    "gemma3": Family(
        kind="gemma3_text",
        template="gemma3",
        special=GEMMA_TOKENS,
        heads=GEMMA_HEADS,
        end="<end_of_turn>",
        eos="<eos>",
        bos="<bos>",
        adds_bos=True,
        packed=False,
        generation_eos=("<end_of_turn>",),
        config={
            "tie_word_embeddings": True,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 32,
        },
    ),
    "base": Family(
        kind="llama",
        template=None,
        special=("<unk>", "<s>", "</s>"),
        heads=("User:\n", "Assistant:\n"),
        end="</s>",
        eos="</s>",
        bos="<s>",
        adds_bos=True,
    ),
}
