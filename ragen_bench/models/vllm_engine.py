"""``vllm:FOLDER``: a model served by vLLM in this process.

Prompts are made as for ``hf:``, so that both are asked the very same token ids.  The
engine batches whatever waits and keeps the keys and values of earlier prompts.
"""

import asyncio
import dataclasses
import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.errors import ContextOverflow, InvalidSpec
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
from ragen_bench.models.chat_template import Chat, Transcript
from ragen_bench.models.hf_options import Origin, json_object, switch, whole_number
from ragen_bench.models.vllm_host import EngineHost
from ragen_bench.models.vllm_loading import (
    Card,
    cores,
    device,
    free_memory,
    read_card,
    require_extra,
)
from ragen_bench.models.vllm_options import (
    Options,
    check_logprobs,
    engine_arguments,
    environment_of,
    positive,
    share,
)
from ragen_bench.seeding import Stream


@dataclasses.dataclass(slots=True)
class _State:
    """What a conversation keeps between two replies of one model."""

    owner: "VLLMModel"
    transcript: Transcript


class VLLMModel(Model):
    """A causal language model in vLLM's engine.

    Args:
        name: What records call it.
        card: Its configuration and its tokenizer.
        origin: Where it came from.
        options: How to serve it.

    Raises:
        InvalidSpec: The engine refuses the model or an argument.
        UnknownName: There is no such argument of the engine.
    """

    def __init__(self, name: str, card: Card, origin: Origin, options: Options) -> None:
        self.name = name
        self.defaults = origin.defaults
        self.max_context: int = hf_loading.context_length(card, options.max_context)
        self._card = card
        self._origin = origin
        named = hf_loading.end_ids(card, card.tokenizer)
        self._chat = Chat(card.tokenizer, named, origin.template_args)
        self._hashes: dict[str, str] | None = None
        self._device = device()
        on_cpu = self._device == "cpu"
        self._arguments = engine_arguments(
            origin.place or "",
            options,
            self.max_context,
            free_memory=free_memory() if on_cpu else None,
        )
        self._given = dict(options.engine_args)
        self._host = EngineHost(
            self._arguments,
            lora=options.lora,
            environment=environment_of(options, cores()) if on_cpu else {},
        )
        self._host.start()

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message of a conversation.

        Log-probabilities are those of the model's own distribution (temperature 1, no
        nucleus), or those at the temperature of sampling, as its options say.  The
        sampled ids hold the end token, if one was sampled; the text no special tokens.

        Raises:
            ContextOverflow: The prompt leaves no room for a reply.
            InvalidSpec: A sampling setting is out of its range.
            ProviderError: The model failed or was closed.
            ProviderRefusal: The engine is dead.
        """
        from ragen_bench.models.hf_sampler import ReplyInProgress

        state = conversation.engine_state
        known = isinstance(state, _State) and state.owner is self
        last = state.transcript if known else None
        text, ids = self._chat.prompt(conversation.messages, last)
        room = self.max_context - len(ids)
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(ids)} tokens, but with one of the reply at most "
                f"{self.max_context} fit; shorten the context or the prompt"
            )
        check_logprobs(sampling, self._arguments["logprobs_mode"])
        limit = min(sampling.max_tokens, room)
        sampling = dataclasses.replace(sampling, max_tokens=limit)
        # Fed with what the engine sampled, it ends and cuts a reply as ``hf:`` does.
        stream = Stream(conversation.seed, "turn", conversation.turn)
        reply = ReplyInProgress(sampling, stream, self._chat, self._chat.end_ids)
        parameters = self._parameters(sampling, conversation.turn_seed())
        answer = await self._host.ask(ids, parameters)
        for token, logprob in zip(answer.ids, answer.logprobs, strict=True):
            if reply.push(token, logprob):
                break
        else:
            reply.finish_reason = "stop" if answer.finish_reason == "stop" else "length"
        draft = reply.draft(answer.cached_tokens or 0)
        transcript = Transcript(text, ids, draft.text, draft.token_ids)
        conversation.engine_state = _State(self, transcript)
        return Completion(
            text=draft.text,
            prompt_token_ids=tuple(ids),
            token_ids=draft.token_ids,
            logprobs=draft.logprobs,
            usage=Usage(
                input_tokens=len(ids),
                cached_tokens=answer.cached_tokens,
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
        and those of an adapter, as ``lora/NAME``.
        """
        import torch
        import transformers
        import vllm

        if self._hashes is None:
            self._hashes = hf_loading.origin_hashes(self._origin)
        dtype = self._arguments["dtype"]
        notes = list(self._chat.notes)
        if dtype != "float32":
            notes.append("replies may depend on the batch by rounding")
        return {
            "class": (self._card.config.architectures or [None])[0],
            "dtype": dtype,
            "device": self._device,
            "vocab_size": len(self._card.tokenizer),
            "end_ids": sorted(self._chat.end_ids),
            "max_context": self.max_context,
            "chat_template_sha256": self._chat.template_sha256,
            "template_args": dict(self._origin.template_args),
            "tensor_parallel_size": self._arguments["tensor_parallel_size"],
            "enforce_eager": self._arguments["enforce_eager"],
            "engine_args": self._given,
            "files": self._hashes,
            "revision": getattr(self._card.config, "_commit_hash", None),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "vllm": vllm.__version__,
            "notes": notes,
        }

    async def examine(
        self, conversation: Conversation, sampling: Sampling
    ) -> Examination:
        """Return what template and tokenizer do to a prompt; nothing is asked."""
        from ragen_bench.models.chat_findings import chat_findings

        return Examination(findings=chat_findings(self._chat, conversation.messages))

    async def aclose(self) -> None:
        """End the engine; what still waits gets a `ProviderError`."""
        await asyncio.to_thread(self._host.stop)

    def _parameters(self, sampling: Sampling, seed: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=seed,
            max_tokens=sampling.max_tokens,
            stop=list(sampling.stop),
            include_stop_str_in_output=True,
            stop_token_ids=sorted(self._chat.end_ids | self._stop_ids(sampling.stop)),
            logprobs=0,
            flat_logprobs=True,
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _stop_ids(self, stop: Sequence[str]) -> set[int]:
        """Return the stop strings that are one special token, which vLLM never shows.

        Only tags of thoughts and answers are text for us although they are special.
        """
        special = dict(
            zip(
                self._card.tokenizer.all_special_tokens,
                self._card.tokenizer.all_special_ids,
                strict=True,
            )
        )
        ids = {special[text] for text in stop if text in special}
        return {id for id in ids if self._chat.piece(id) in stop}


def load(
    rest: str,
    *,
    dtype: str = "auto",
    batch_size: int | str | None = None,
    max_context: int | str | None = None,
    tensor_parallel_size: int | str = 1,
    gpu_memory_utilization: float | str | None = None,
    kv_cache_gib: float | str | None = None,
    enforce_eager: bool | str | None = None,
    threads: int | str | None = None,
    lora: str | None = None,
    template_args: Mapping[str, Any] | str | None = None,
    engine_args: Mapping[str, Any] | str | None = None,
) -> Model:
    """Start vLLM with a model from a folder, or from the hub where there is a network.

    Args:
        rest: The folder or the hub id, or ``"tiny"`` for the model that ships with
            ragen-bench.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"auto"``: on a CPU
            float32, on a GPU bfloat16.
        batch_size: Replies that are decoded at once.
        max_context: Tokens of prompt and reply together.
        tensor_parallel_size: Devices that share each layer.
        gpu_memory_utilization: Share of a GPU's memory that is taken, in (0, 1].
        kv_cache_gib: GiB for keys and values.
        enforce_eager: Whether to do without compiled graphs.
        threads: Cores of a CPU.
        lora: Folder of a LoRA adapter.
        template_args: JSON object that the chat template gets, such as
            ``{"enable_thinking": false}``.
        engine_args: JSON object of other arguments of vLLM's engine.

    Raises:
        MissingExtra: vLLM is not installed.
        UnknownName: There is no such model, or no such argument of the engine.
        InvalidSpec: It cannot be served, or an argument is out of its range.
    """
    eager = None if enforce_eager is None else switch("enforce_eager", enforce_eager)
    options = Options(
        dtype=dtype,
        batch_size=whole_number("batch_size", batch_size),
        max_context=whole_number("max_context", max_context),
        tensor_parallel_size=whole_number("tensor_parallel_size", tensor_parallel_size)
        or 1,
        gpu_memory_utilization=share("gpu_memory_utilization", gpu_memory_utilization),
        kv_cache_gib=positive("kv_cache_gib", kv_cache_gib),
        enforce_eager=eager,
        threads=whole_number("threads", threads),
        lora=lora,
        engine_args=json_object("engine_args", engine_args),
    )
    arguments = json_object("template_args", template_args)
    name = f"vllm:{rest}"
    if not rest:
        raise InvalidSpec("model 'vllm' needs a folder or a hub id: vllm:FOLDER")
    if rest == "tiny" and not Path(rest).exists():
        rest = str(importlib.resources.files("ragen_bench.models") / "tiny")
    require_extra(name)
    hf_loading.check_place(rest)
    defaults = hf_loading.read_defaults(rest)
    origin = Origin(place=rest, lora=lora, defaults=defaults, template_args=arguments)
    return VLLMModel(name, read_card(rest), origin, options)
