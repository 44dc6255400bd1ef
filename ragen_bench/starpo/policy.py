"""`Policy`: the network that is trained, its critic, and the engine that plays it.

The network holds float32 masters.  The engine is a model of the harness over a copy
of the weights, which `sync` renews after every update phase.
"""

import copy
import dataclasses
import importlib.resources
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ragen_bench.errors import InvalidSpec, MissingExtra
from ragen_bench.starpo import trainable
from ragen_bench.starpo.engines.engine import PolicyEngine
from ragen_bench.starpo.shared_prefix import states


@dataclasses.dataclass(slots=True)
class Policy:
    """A causal language model in training."""

    network: Any
    """Float32, with gradients."""
    tokenizer: Any
    engine: PolicyEngine
    """Plays with a copy of the weights."""
    critic: "Critic | None" = None
    version: int = 0
    """How often the engine's weights were renewed."""

    @property
    def precision(self) -> str:
        """In what engine or trainer computes, whichever is less precise."""
        if plain_network(self.network).device.type == "cuda":
            return "bfloat16"
        return self.engine.precision

    def trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the parameters that the optimizer may change, by name."""
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                yield name, parameter

    def sync(self) -> None:
        """Give the engine the present weights; whatever it cached is forgotten."""
        self.version += 1
        self.engine.sync(plain_state(self.network), self.version)


class Critic(torch.nn.Module):  # type: ignore[misc]
    """A value of every token's state: a backbone of its own and a zero head.

    Args:
        network: The policy whose backbone is copied, an adapter merged into it.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(merged(network).base_model)
        self.trunk.requires_grad_(True)
        width = network.config.get_text_config().hidden_size
        self.head = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def begin_at(self, network: Any) -> None:
        """Take over a policy's weights; the head stays as it is.

        Args:
            network: The policy, of the form that this critic was made of.
        """
        self.trunk.load_state_dict(merged(network).base_model.state_dict())

    def forward(
        self, ids: torch.Tensor, at: torch.Tensor, shared: int = 0
    ) -> torch.Tensor:
        """Return the values of states, [actions].

        Args:
            ids: [B, T] int64.
            at: [B, T] bool, True at the last token of each state that is asked for.
            shared: Leading columns in which all rows are equal, and ``at`` False.
        """
        hidden = states(self.trunk, ids, shared)
        values: torch.Tensor = self.head(hidden[at[:, shared:]])[..., 0]
        return values


def plain_network(network: Any) -> Any:
    """Return the causal language model beneath an adapter, if there is one."""
    return network.get_base_model() if hasattr(network, "peft_config") else network


def merged(network: Any) -> Any:
    """Return the plain model with an adapter's share in its weights.

    Without an adapter it is the very network, else a copy.
    """
    if not hasattr(network, "peft_config"):
        return network
    from ragen_bench.models import hf_loading

    with hf_loading.quiet():
        return copy.deepcopy(network).merge_and_unload()


def plain_state(network: Any) -> Mapping[str, torch.Tensor]:
    """Return weights by the names of the plain model, adapters merged.

    A head that is tied to the embeddings stands under both names.  Only weights that
    an adapter changes are copies.
    """
    state: dict[str, torch.Tensor] = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in plain_network(network).state_dict().items()
        if ".lora_" not in name
    }
    if not hasattr(network, "peft_config"):
        return state
    with torch.no_grad():
        for name, layer in plain_network(network).named_modules():
            if hasattr(layer, "get_delta_weight"):
                (adapter,) = layer.active_adapters
                change = layer.get_delta_weight(adapter)
                state[f"{name}.weight"] = layer.get_base_layer().weight + change
    return state


def load(
    place: str,
    *,
    shape: tuple[int, int],
    seed: int,
    device: str,
    engine: Callable[[Any, Any], PolicyEngine],
    lora_rank: int = 0,
) -> Policy:
    """Return a policy, its engine in step with it.

    Args:
        place: ``"fresh"``, ``"tiny"``, or a folder or hub id.
        shape: Width and layers of a fresh model.
        seed: Of a fresh model's weights, and of an adapter's.
        device: As PyTorch calls it, or ``"auto"``.
        engine: Plain network and tokenizer to what plays with a copy of the weights.
        lora_rank: Rank of an adapter that is trained in place of the weights.

    Raises:
        InvalidSpec: The model cannot be loaded, or not be trained here.
        MissingExtra: A package is not installed.
    """
    from ragen_bench.models import hf_loading

    hf_loading.require_extra("training")
    place = place_of(place)
    if place == "fresh":
        network, tokenizer = fresh(shape, seed, device)
    else:
        network, tokenizer = hf_loading.load_network(place, "float32", device)
        trainable.check(network, tokenizer)
    player = engine(network, tokenizer)
    network.requires_grad_(True)
    if lora_rank:
        network = with_adapter(network, lora_rank, seed)
    player.sync(plain_state(network), 0)
    return Policy(network=network, tokenizer=tokenizer, engine=player)


def place_of(name: str) -> str:
    """Return where a model lies; ``"tiny"`` is inside the package."""
    if name == "tiny":
        return str(importlib.resources.files("ragen_bench.models") / "tiny")
    return name


_MARKS = ("<think>", "</think>", "<answer>", "</answer>", " || ")


def fresh(shape: tuple[int, int], seed: int, device: str) -> tuple[Any, Any]:
    """Return a small Llama with random weights and a tokenizer of its own.

    The tokenizer is that of `tiny`, but the marks of a reply are one token each, so
    that a reply of two moves has 6 tokens in place of 13.
    """
    import transformers

    from ragen_bench.models import hf_loading

    width, layers = shape
    if width % 16:
        raise InvalidSpec(f"hidden_size is {width!r}, but must be a multiple of 16")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place_of("tiny"))
    tokenizer.add_tokens(list(_MARKS))
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    network = transformers.LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.05, generator=generator)
    return network.to(hf_loading.device_named(device)).eval(), tokenizer


def with_adapter(network: Any, rank: int, seed: int) -> Any:
    """Return a network whose LoRA adapter is trained in place of its weights.

    Raises:
        MissingExtra: The package peft is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("train", "a LoRA adapter") from error
    from ragen_bench.models import hf_loading

    with torch.random.fork_rng(), hf_loading.quiet():
        torch.manual_seed(seed)
        config = peft.LoraConfig(
            r=rank,
            lora_alpha=2 * rank,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        return peft.get_peft_model(network, config)
