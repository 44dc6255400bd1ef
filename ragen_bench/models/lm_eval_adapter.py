"""``lm-eval:TYPE``: any model class of lm-evaluation-harness plays as an agent's model.

A class that computes in this process is asked by one thread, which takes whatever
waits as one batch.  A class that asks a server is asked by as many threads as its
``num_concurrent`` says, one request each, so that no request waits for another.
"""

import asyncio
import collections
import concurrent.futures
import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from ragen_bench.errors import ProviderError, RagenError
from ragen_bench.model import Completion, Conversation, Message, Model, Sampling
from ragen_bench.models import hf_loading, lm_eval_loading, lm_eval_quiet
from ragen_bench.models.hf_options import switch
from ragen_bench.models.lm_eval_caller import Caller, Question

_GATHER_S = 0.002
_GATHER_ROUNDS = 64

_Future: TypeAlias = "concurrent.futures.Future[Completion | RagenError]"


class LmEvalModel(Model):
    """A model object of lm-eval.

    Greedy replies of a batch may differ in the last bits from those of single
    requests, as everywhere in lm-eval.

    Args:
        name: What records call it.
        caller: Asks the object.
        arguments: What the object was made with, for the facts.
        notes: What differs from the plain use of the class, in words.
    """

    deterministic: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        caller: Caller,
        arguments: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.caller = caller
        self.max_context = caller.max_context
        self._arguments = dict(arguments or {})
        self._notes = tuple(notes)
        self._waiting: collections.deque[tuple[Question, _Future]] = collections.deque()
        self._lock = threading.Lock()
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message of a conversation.

        Raises:
            ContextOverflow: The prompt leaves no room for a reply.
            InvalidSpec: The template refuses the roles.
            ProviderError: The class failed, or was closed.
            ProviderRefusal: The server takes no request with this key.
        """
        question = self.caller.prepare(
            conversation.messages, sampling, conversation.turn_seed()
        )
        threads = self._executor()
        if self.caller.served:
            future: _Future = threads.submit(self.caller.ask_one, question)
        else:
            future = concurrent.futures.Future()
            self._waiting.append((question, future))
            threads.submit(self._drain)
        reply = await asyncio.wrap_future(future)
        if isinstance(reply, RagenError):
            raise reply
        return reply

    def answer(self, questions: Sequence[Question]) -> list[Completion | RagenError]:
        """Return the replies to several questions at once, without an event loop."""
        executor = self._executor() if self.caller.served else None
        return self.caller.ask(questions, executor)

    def accept(self, question: Question, reply: str) -> Completion | RagenError:
        """Return what somebody else had lm-eval answer, asking anew if it is void."""
        completion = self.caller.complete(question, reply)
        refused = completion.finish_reason == "content_filter"
        silent = not completion.text.strip() and completion.finish_reason == "stop"
        if self.caller.served and (refused or silent):
            return self.caller.ask_one(question)
        return completion

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a prompt has, an estimate where nobody can tell."""
        if not self.caller.prompts.counts:
            return super().count_tokens(messages)
        _, size = self.caller.prompts.make(messages)
        return super().count_tokens(messages) if size is None else size

    def describe(self) -> Mapping[str, Any]:
        """Return facts that a result depends on."""
        lm = self.caller.lm
        place = str(self._arguments.get("pretrained", ""))
        return {
            "lm_eval": lm_eval_loading.version(),
            "class": f"{type(lm).__module__}:{type(lm).__qualname__}",
            "max_context": self.max_context,
            "chat_template_sha256": self._template_sha256(),
            "files": hf_loading.file_hashes(place) if Path(place).is_dir() else {},
            "notes": [*self.caller.prompts.notes, *self._notes],
        }

    async def aclose(self) -> None:
        """End the threads; what still waits gets a `ProviderError`."""
        with self._lock:
            threads, self._threads = self._threads, None
        while self._waiting:
            _, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(ProviderError("the model was closed before it asked"))
        if threads is not None:
            await asyncio.to_thread(
                threads.shutdown, wait=not self.caller.served, cancel_futures=True
            )

    def _executor(self) -> concurrent.futures.ThreadPoolExecutor:
        count = 1
        if self.caller.served:
            count = max(1, int(getattr(self.caller.lm, "_concurrent", 1)))
        with self._lock:
            if self._threads is None:
                self._threads = concurrent.futures.ThreadPoolExecutor(
                    max_workers=count, thread_name_prefix="ragen-bench lm-eval"
                )
            return self._threads

    def _drain(self) -> None:
        """Answer all that waits, as one batch."""
        self._gather()
        batch = []
        while self._waiting:
            question, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                batch.append((question, future))
        if not batch:
            return
        replies = self.caller.ask([question for question, _ in batch])
        for (_, future), reply in zip(batch, replies, strict=True):
            future.set_result(reply)

    def _gather(self) -> None:
        """Wait while requests keep coming, so that the first batch is not of one."""
        for _ in range(_GATHER_ROUNDS):
            before = len(self._waiting)
            time.sleep(_GATHER_S)
            if len(self._waiting) == before:
                return

    def _template_sha256(self) -> str | None:
        try:
            with lm_eval_quiet.quietly():
                template = self.caller.lm.chat_template(True)
        except Exception:  # a class without a template raises anything
            return None
        if not template:
            return None
        return hashlib.sha256(str(template).encode()).hexdigest()


def load(
    rest: str,
    *,
    insist: bool | str = False,
    lm: Any = None,
    **arguments: Any,
) -> Model:
    """Load a model class of lm-eval.

    Args:
        rest: The name of the class in lm-eval, such as ``"hf"`` or
            ``"local-chat-completions"``.
        insist: Use a class even where it is known to change the settings of a run.
        lm: A model object of lm-eval that exists already, in place of a new one.
        **arguments: What lm-eval calls model arguments, and ``batch_size``,
            ``max_batch_size`` and ``device``.

    Raises:
        MissingExtra: lm-eval is not installed.
        UnknownName: It has no such class.
        InvalidSpec: The class refuses the arguments, or changes settings.
    """
    name = f"lm-eval:{rest}"
    lm_eval_loading.require_extra(f"model {name!r}")
    if lm is not None:
        return LmEvalModel(name, Caller(lm))
    made = lm_eval_loading.create(rest, arguments, insist=switch("insist", insist))
    asked = arguments.get("max_length") if made.served else None
    caller = Caller(made.lm, int(asked) if asked is not None else None)
    return LmEvalModel(name, caller, arguments, made.notes)
