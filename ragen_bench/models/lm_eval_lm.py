"""`RagenBenchLM`: any model of ragen-bench as a model of lm-eval, for all its tasks.

``--model ragen-bench --model_args model=tiny`` asks `Model.generate`.  Newer releases
of lm-eval find it by the entry point ``lm_eval.models``; for 0.4.13 there is
`ragen_bench.lm_eval_plugin`.
"""

import asyncio
import collections
import json
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs

from ragen_bench.errors import InvalidSpec
from ragen_bench.model import Conversation, Message, Sampling
from ragen_bench.models.hf_options import whole_number
from ragen_bench.registry import MODELS, make_model, parameters_of
from ragen_bench.seeding import child_seed

_OURS = frozenset({"do_sample", "max_gen_toks", "temperature", "top_p", "until"})


class ChatText(str):
    """Messages as JSON, on their way from the template to the model."""


class RagenBenchLM(LM):  # type: ignore[misc]
    """A model of ragen-bench.

    It generates; tasks that compare log-likelihoods are refused.

    Args:
        model: As ``ragen-bench run --model`` takes it.
        concurrency: Requests in flight.
        max_gen_toks: New tokens of a reply, where a task does not say.
        device: Handed to a model that takes a device.
        batch_size: Nothing: models of ragen-bench batch what waits by themselves.
        max_batch_size: Nothing.
        **arguments: The model's own, as ``--model-arg`` gives them.
    """

    def __init__(
        self,
        model: str = "tiny",
        *,
        concurrency: int | str = 32,
        max_gen_toks: int | str = 256,
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        takes = parameters_of(MODELS.get(model.partition(":")[0]))
        if device is not None and "device" in takes:
            arguments["device"] = device
        self.model = make_model(model, **arguments)
        self._concurrency = whole_number("concurrency", concurrency) or 32
        self._max_gen_toks = whole_number("max_gen_toks", max_gen_toks) or 256

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval keeps cached prompts by."""
        return f"ragen-bench:{self.model.name}"

    @property
    def max_length(self) -> int | None:
        """Tokens of prompt and reply together, None if unknown."""
        return self.model.max_context

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return nothing: the model itself makes a prompt of the messages."""
        return ""

    def apply_chat_template(
        self,
        chat_history: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,
    ) -> str:
        """Return messages as text that `generate_until` reads.

        Raises:
            InvalidSpec: The task wants the reply to go on from a given beginning.
        """
        if not add_generation_prompt:
            raise InvalidSpec(
                "the task begins the reply itself, which models of ragen-bench cannot "
                "go on from; take another task"
            )
        return ChatText(json.dumps(list(chat_history), ensure_ascii=False))

    def generate_until(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[str]:
        """Return the replies to lm-eval's requests, cut at the stop strings.

        Raises:
            RagenError: A prompt is too long, or the model could not be asked.
        """
        return _run(self._answer_all(requests))

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        """Refuse.

        Raises:
            InvalidSpec: Always.
        """
        raise InvalidSpec(
            "models of ragen-bench generate, but the task compares log-likelihoods; "
            "take a task of output_type generate_until, or lm-eval's own model class"
        )

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> Any:
        """Refuse, as `loglikelihood` does."""
        return self.loglikelihood(requests)

    async def _answer_all(self, requests: Sequence[Any]) -> list[str]:
        free = asyncio.Semaphore(self._concurrency)
        seen: collections.Counter[str] = collections.Counter()
        keys = []
        for request in requests:
            name = f"{request.task_name}/{request.doc_id}/{request.idx}"
            # The repeats of a request are that same request, several times over.
            keys.append(f"lm-eval:{name}/{seen[name]}")
            seen[name] += 1

        async def answer(request: Any, key: str) -> str:
            async with free:
                return await self._answer(request, key)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(answer(request, key))
                    for request, key in zip(requests, keys, strict=True)
                ]
        except* Exception as faults:
            raise faults.exceptions[0] from None
        finally:
            await self.model.aclose()
        return [task.result() for task in tasks]

    async def _answer(self, request: Any, key: str) -> str:
        context, arguments = request.args
        sampling = self._sampling(arguments)
        conversation = Conversation(
            key=key, seed=child_seed(0, "lm-eval", key), messages=_messages(context)
        )
        completion = await self.model.generate(conversation, sampling)
        text = completion.text
        for stop in sampling.stop:
            text = text.split(stop)[0]
        self.cache_hook.add_partial("generate_until", request.args, text)
        return text

    def _sampling(self, arguments: Mapping[str, Any]) -> Sampling:
        """Return how a task wants a reply to be drawn.

        Raises:
            InvalidSpec: It wants something that our models do not know.
        """
        asked = dict(normalize_gen_kwargs(dict(arguments), self._max_gen_toks))
        unknown = sorted(asked.keys() - _OURS)
        if unknown:
            raise InvalidSpec(
                f"generation argument {unknown[0]}={asked[unknown[0]]!r} is none of "
                f"{', '.join(sorted(_OURS))}; leave it out"
            )
        return Sampling(
            temperature=float(asked["temperature"]) if asked["do_sample"] else 0.0,
            top_p=float(asked.get("top_p") or 1.0),
            max_tokens=int(asked["max_gen_toks"]),
            stop=tuple(stop for stop in asked["until"] if stop),
        )


def _messages(context: str) -> list[Message]:
    """Return what a request says; text that no template made is the user's."""
    if not isinstance(context, ChatText):
        return [Message(role="user", content=context)]
    return [
        Message(role=said["role"], content=said["content"])
        for said in json.loads(context)
    ]


def _run(work: Coroutine[Any, Any, list[str]]) -> list[str]:
    """Run to the end, in a thread of its own if this one has a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    found: list[list[str]] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:  # handed to the caller's thread below
            failures.append(error)

    thread = threading.Thread(target=run, name="ragen-bench lm-eval")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return found[0]
