"""``hf:FOLDER`` and ``tiny``: a model of ``transformers``, batched as requests come.

Many episodes wait for a reply at once.  One thread decodes for all of them: requests
join and leave between two forward passes, each conversation keeps its keys and
values from turn to turn, and common prompt heads are computed once.
"""

import asyncio
import dataclasses
import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_bench.errors import ContextOverflow, UnknownName
from ragen_bench.model import (
    Completion,
    Conversation,
    Examination,
    Message,
    Model,
    Sampling,
    Usage,
)
from ragen_bench.models import hf_loading
from ragen_bench.models.batching import Decoder, Request, Worker
from ragen_bench.models.chat_template import Chat, Transcript
from ragen_bench.models.hf_options import (
    Options,
    Origin,
    json_object,
    switch,
    whole_number,
)
from ragen_bench.models.inline_worker import InlineWorker
from ragen_bench.seeding import Stream


@dataclasses.dataclass(slots=True)
class _State:
    """What a conversation keeps between two replies of one model."""

    owner: "HFModel"
    transcript: Transcript | None = None
    cache: Any = None


class HFModel(Model):
    """A causal language model in this process.

    Args:
        name: What records call it.
        network: The model, ready to predict.
        tokenizer: Its tokenizer, which defines the prompt's form.
        options: How to serve it.
        origin: Where it came from.
    """

    def __init__(
        self,
        name: str,
        network: Any,
        tokenizer: Any,
        options: Options = Options(),  # noqa: B008 - frozen
        origin: Origin = Origin(),  # noqa: B008 - frozen
    ) -> None:
        self.name = name
        self.defaults = origin.defaults
        self.max_context: int = hf_loading.context_length(network, options.max_context)
        self._network = network
        self._vocab_size = len(tokenizer)
        self._chat = Chat(
            tokenizer, hf_loading.end_ids(network, tokenizer), origin.template_args
        )
        self._end_ids = self._chat.end_ids
        self._origin = origin
        self._notes = list(self._chat.notes)
        self._hashes: dict[str, str] | None = None
        self._decoder = self._make_decoder(options)
        self._worker: Worker | InlineWorker
        if options.inline:
            self._worker = InlineWorker(self._decoder)
        else:
            self._worker = Worker(self._decoder, options.threads)

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message of a conversation.

        Log-probabilities are those of the model's own distribution (temperature 1,
        no nucleus), whatever the sampling.  The sampled ids hold the end token, if
        one was sampled; the text holds no special tokens.

        Raises:
            ContextOverflow: The prompt leaves no room for a reply.
            InvalidSpec: A sampling setting is out of its range.
            ProviderError: The model failed or was closed.
        """
        state = self._state(conversation)
        text, ids = self._chat.prompt(conversation.messages, state.transcript)
        room = self.max_context - len(ids)
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(ids)} tokens, but with one of the reply at most "
                f"{self.max_context} fit; shorten the context or the prompt"
            )
        limit = min(sampling.max_tokens, room)
        request = Request(
            ids=ids,
            sampling=dataclasses.replace(sampling, max_tokens=limit),
            stream=Stream(conversation.seed, "turn", conversation.turn),
            cache=state.cache,
        )
        # Taken by this request: another one meanwhile must not write into it.
        state.cache = None
        draft = await asyncio.wrap_future(self._worker.submit(request))
        state.cache = request.cache
        state.transcript = Transcript(text, ids, draft.text, draft.token_ids)
        return Completion(
            text=draft.text,
            prompt_token_ids=tuple(ids),
            token_ids=draft.token_ids,
            logprobs=draft.logprobs,
            usage=Usage(
                input_tokens=len(ids),
                cached_tokens=draft.cached_tokens,
                output_tokens=len(draft.token_ids),
            ),
            finish_reason=draft.finish_reason,
        )

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a prompt of these messages has, template included."""
        return len(self._chat.encode(self._chat.render(messages)))

    def describe(self) -> Mapping[str, Any]:
        """Return facts that a result depends on.

        ``files`` are SHA-256 of weights, configuration and tokenizer, whole files,
        and those of a merged adapter, as ``lora/NAME``.
        """
        import torch
        import transformers

        if self._hashes is None:
            self._hashes = hf_loading.origin_hashes(self._origin)
        return {
            "class": type(self._network).__name__,
            "parameters": sum(p.numel() for p in self._network.parameters()),
            "dtype": str(self._network.dtype).removeprefix("torch."),
            "device": self._network.device.type,
            "vocab_size": self._vocab_size,
            "end_ids": sorted(self._end_ids),
            "max_context": self.max_context,
            "chat_template_sha256": self._chat.template_sha256,
            "template_args": dict(self._origin.template_args),
            "files": self._hashes,
            "revision": getattr(self._network.config, "_commit_hash", None),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "notes": self._notes,
        }

    async def examine(
        self, conversation: Conversation, sampling: Sampling
    ) -> Examination:
        """Return what template and tokenizer do to a prompt; nothing is asked."""
        from ragen_bench.models.chat_findings import chat_findings

        return Examination(findings=chat_findings(self._chat, conversation.messages))

    def refresh(self) -> None:
        """Take up weights that were changed in place; no request may be in flight."""
        from ragen_bench.models import hf_linear

        hf_linear.prepare(self._network)
        self._decoder.clear()

    async def aclose(self) -> None:
        """End the thread; what still waits gets a `ProviderError`."""
        await asyncio.to_thread(self._worker.stop)

    def _state(self, conversation: Conversation) -> _State:
        state = conversation.engine_state
        if not isinstance(state, _State) or state.owner is not self:
            state = conversation.engine_state = _State(self)
        return state

    def _make_decoder(self, options: Options) -> Decoder:
        from ragen_bench.models.hf_cache import CacheStore, default_budget
        from ragen_bench.models.hf_decoder import PackedDecoder
        from ragen_bench.models.hf_plain import PlainDecoder
        from ragen_bench.models.hf_select import packed_layout

        layout = packed_layout(self._network, self.max_context)
        if isinstance(layout, str):
            self._notes.append(f"decoded one by one, without reuse: {layout}")
            return PlainDecoder(self._network, self._chat, self._end_ids)
        if options.decoder == "slots":
            from ragen_bench.models.hf_slots import SlotDecoder

            return SlotDecoder(
                self._network,
                self._chat,
                self._end_ids,
                layout,
                batch_size=options.batch_size,
                reuse=options.kv_reuse,
                share=options.share_heads,
                refill=options.refill,
            )
        if layout.dtype.itemsize < 4:
            self._notes.append("replies may depend on the batch by rounding")
        tokens = options.kv_tokens or default_budget(layout)
        return PackedDecoder(
            self._network,
            self._chat,
            self._end_ids,
            CacheStore(layout, tokens),
            batch_size=options.batch_size,
            reuse=options.kv_reuse,
        )


def load(
    rest: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    batch_size: int | str = 32,
    threads: int | str | None = None,
    max_context: int | str | None = None,
    kv_reuse: bool | str = True,
    kv_tokens: int | str | None = None,
    lora: str | None = None,
    template_args: Mapping[str, Any] | str | None = None,
) -> Model:
    """Load a model from a folder, or from the hub where there is a network.

    Args:
        rest: The folder or the hub id.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"auto"``: on a CPU
            float32, in which replies depend on nothing but the conversation; on a GPU
            bfloat16, or float16 where the GPU lacks that.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"`` and so on, or
            ``"auto"``: the first GPU that PyTorch can use, else the CPU.
        batch_size: Replies that are decoded at once.
        threads: Cores that PyTorch uses.
        max_context: Tokens of prompt and reply together.
        kv_reuse: Whether keys and values outlive a reply.
        kv_tokens: Tokens that all caches hold at most.
        lora: Folder of a LoRA adapter, which is merged into the weights.
        template_args: JSON object that the chat template gets, such as
            ``{"enable_thinking": false}``.

    Raises:
        MissingExtra: PyTorch or transformers is not installed, or peft for ``lora``.
        UnknownName: There is no such model.
        InvalidSpec: It cannot be loaded, or an argument is out of its range.
    """
    options = Options(
        batch_size=whole_number("batch_size", batch_size) or 32,
        threads=whole_number("threads", threads),
        max_context=whole_number("max_context", max_context),
        kv_reuse=switch("kv_reuse", kv_reuse),
        kv_tokens=whole_number("kv_tokens", kv_tokens),
    )
    arguments = json_object("template_args", template_args)
    hf_loading.require_extra(f"model 'hf:{rest}'")
    origin = Origin(place=rest, lora=lora, template_args=arguments)
    return _load(f"hf:{rest}", origin, options, dtype, device)


def load_tiny(
    rest: str,
    *,
    batch_size: int | str = 32,
    threads: int | str | None = None,
    kv_reuse: bool | str = True,
) -> Model:
    """Load the small model that ships with ragen-bench, in float32 on the CPU.

    Args:
        rest: Nothing.
        batch_size: Replies that are decoded at once.
        threads: Cores that PyTorch uses.
        kv_reuse: Whether keys and values outlive a reply.

    Raises:
        MissingExtra: PyTorch or transformers is not installed.
        UnknownName: There is only one such model, or it was not packaged.
        InvalidSpec: An argument is out of its range.
    """
    if rest:
        raise UnknownName(f"no model 'tiny:{rest}': the name is 'tiny', bare")
    options = Options(
        batch_size=whole_number("batch_size", batch_size) or 32,
        threads=whole_number("threads", threads),
        kv_reuse=switch("kv_reuse", kv_reuse),
    )
    hf_loading.require_extra("model 'tiny'")
    place = str(importlib.resources.files("ragen_bench.models") / "tiny")
    return _load("tiny", Origin(place=place), options, "float32", "cpu")


def _load(
    name: str, origin: Origin, options: Options, dtype: str, device: str
) -> HFModel:
    from ragen_bench.models import hf_linear, hf_lora

    place = origin.place or ""
    origin = dataclasses.replace(origin, defaults=hf_loading.read_defaults(place))
    if origin.lora is not None:
        hf_lora.check_place(origin.lora)
    with hf_loading.one_core(), hf_loading.quiet():
        network, tokenizer = hf_loading.load_network(place, dtype, device)
        if origin.lora is not None:
            network = hf_lora.merge(network, origin.lora)
        hf_linear.prepare(network)
        return HFModel(name, network, tokenizer, options, origin)
