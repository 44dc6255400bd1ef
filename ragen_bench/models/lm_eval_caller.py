"""Asks a model object of lm-eval, with the guards that it lacks itself.

lm-eval cuts a prompt that is too long from the left, drops a system message that a
template refuses, ends a reply at an unwanted place unless told where, and loses a
whole batch with one request.
"""

import contextlib
import copy
import dataclasses
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

from ragen_bench.errors import (
    ContextOverflow,
    ProviderError,
    ProviderRefusal,
    RagenError,
)
from ragen_bench.model import Completion, Message, Sampling, Usage
from ragen_bench.models import lm_eval_quiet
from ragen_bench.models.lm_eval_prompts import Prompts
from ragen_bench.models.lm_eval_replies import (
    TracedText,
    close_answer,
    trace_responses,
    trace_tokens,
    trim,
)

_REFUSALS = frozenset({401, 402})
_NO_CREDIT = "insufficient_quota"
_TOO_LONG = re.compile(
    r"context.{0,10}(?:length|window)|prompt is too long|too many tokens", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request, ready for lm-eval."""

    context: Any
    """What the class's own template makes of the messages."""
    arguments: dict[str, Any]
    """lm-eval's generation arguments, all of them explicit."""
    seed: int | None
    """Of the draws; None for a greedy reply."""
    prompt_tokens: int | None


class Caller:
    """A model object of lm-eval.

    Args:
        lm: The object.
        max_context: Tokens of prompt and reply together, where the object does not
            know better; None leaves it to the server.
    """

    def __init__(self, lm: Any, max_context: int | None = None) -> None:
        self.lm = lm
        self.served = _descends(lm, "TemplateAPI")
        """Whether a server answers, so that requests do not share a batch."""
        self._tokens_known = _descends(lm, "HFLM")
        self._seeded = self.served and not _descends(lm, "AnthropicChat")
        self._lock = threading.Lock()
        lm_eval_quiet.prepare(type(lm))
        if self._tokens_known:
            trace_tokens(lm)
            self._end_ids = _end_ids(lm)
        elif self.served:
            trace_responses(lm)
        # Told apart from here by threads: its own way loses what a failed one says.
        self._asked = copy.copy(lm) if self.served else lm
        if self.served:
            self._asked._concurrent = 1
        self.prompts = Prompts(lm)
        self.max_context = max_context
        if self.prompts.counts or not self.served:
            # A served class's own limit means nothing where it cannot count.
            limit = getattr(lm, "max_length", None)
            self.max_context = limit if type(limit) is int else max_context

    def prepare(
        self, messages: Sequence[Message], sampling: Sampling, seed: int
    ) -> Question:
        """Return the request for a conversation's next reply.

        Raises:
            ContextOverflow: The prompt leaves no room for a reply.
            InvalidSpec: The template refuses the roles.
        """
        context, size = self.prompts.make(messages)
        tokens = sampling.max_tokens
        if self.max_context is not None:
            room = self.max_context - (size or 0)
            if room < 1 or (size is None and room <= tokens):
                raise ContextOverflow(
                    f"the prompt has {size or 'some'} tokens, but with "
                    f"{tokens if size is None else 'one'} of the reply at most "
                    f"{self.max_context} fit; shorten the context or the prompt"
                )
            tokens = min(tokens, room)
        sampled = sampling.temperature > 0
        arguments: dict[str, Any] = {
            "until": list(sampling.stop),
            "max_gen_toks": tokens,
            "do_sample": sampled,
            "temperature": sampling.temperature,
        }
        if sampled and (sampling.top_p < 1 or not self.served):
            arguments["top_p"] = sampling.top_p
        if sampled and self._seeded:
            arguments["seed"] = seed
        return Question(
            context=context,
            arguments=arguments,
            seed=seed if sampled else None,
            prompt_tokens=size,
        )

    def ask(
        self, questions: Sequence[Question], executor: Executor | None = None
    ) -> list[Completion | RagenError]:
        """Return the reply to each question, or why there is none.

        Greedy replies of a model in this process are decoded as one batch; a batch
        that fails is asked again one by one.  Sampled ones are decoded alone, each
        from its own seed, so that they do not depend on what else is in the batch.

        Args:
            questions: At least one.
            executor: Threads that ask a server; without it, one after the other.
        """
        if self.served:
            ask = executor.map if executor else map
            return list(ask(self.ask_one, questions))
        greedy = [question for question in questions if question.seed is None]
        found: dict[int, Completion | RagenError] = {}
        with self._lock:
            if len(greedy) > 1:
                try:
                    found = dict(zip(map(id, greedy), self._ask(greedy), strict=True))
                except Exception:  # whatever it is, one of them alone may be at fault
                    found = {}
            return [
                found[id(question)] if id(question) in found else self._alone(question)
                for question in questions
            ]

    def ask_one(self, question: Question) -> Completion | RagenError:
        """Return the reply to one question, or why there is none.

        A server's empty reply that claims to be complete is asked for once more.
        """
        if not self.served:
            return self.ask([question])[0]
        for _ in range(2):
            reply = self._alone(question)
            if isinstance(reply, RagenError):
                return reply
            if reply.finish_reason == "content_filter":
                return ProviderError("the provider refused by its content filter")
            if reply.text.strip() or reply.finish_reason == "length":
                return reply
        return ProviderError("the provider sent an empty reply twice")

    def complete(self, question: Question, reply: str | None) -> Completion:
        """Return what lm-eval answered as a completion.

        The stop string that ended it is part of the text, as everywhere in
        ragen-bench.
        """
        stops = question.arguments["until"]
        if not isinstance(reply, TracedText):
            return self._guess(question, reply or "", stops)
        facts = reply.facts
        if facts.token_ids is not None:
            return self._trim(question, facts.token_ids, stops)
        text = facts.text
        if facts.finish_reason == "stop":
            text = close_answer(text, stops)
        usage = facts.usage
        if usage.input_tokens is None:
            usage = dataclasses.replace(usage, input_tokens=question.prompt_tokens)
        return Completion(
            text=text,
            thinking=facts.thinking,
            usage=usage,
            finish_reason=facts.finish_reason,
            details=facts.details,
        )

    def _alone(self, question: Question) -> Completion | RagenError:
        try:
            if question.seed is None or self.served:
                return self._ask([question])[0]
            with _seeded(question.seed):
                return self._ask([question])[0]
        except Exception as error:  # classes of lm-eval raise whatever they like
            return as_failure(error)

    def _ask(self, questions: Sequence[Question]) -> list[Completion]:
        from lm_eval.api.instance import Instance

        requests = [
            Instance(
                request_type="generate_until",
                doc={},
                arguments=(question.context, copy.deepcopy(question.arguments)),
                idx=index,
                metadata=("ragen-bench", index, 1),
            )
            for index, question in enumerate(questions)
        ]
        with lm_eval_quiet.quietly():
            replies = self._asked.generate_until(requests, disable_tqdm=True)
        if len(replies) != len(questions):
            raise ProviderError(
                f"lm-eval gave {len(replies)} replies to {len(questions)} requests"
            )
        return [
            self.complete(question, reply)
            for question, reply in zip(questions, replies, strict=True)
        ]

    def _trim(
        self, question: Question, token_ids: Sequence[int], stops: Sequence[str]
    ) -> Completion:
        """Return a reply whose tokens are known."""
        trimmed = trim(
            token_ids, self._end_ids, stops, lambda ids: str(self.lm.tok_decode(ids))
        )
        # lm-eval itself takes the reasoning off where its end is a token id.
        whole = not isinstance(getattr(self.lm, "think_end_token", None), int)
        return Completion(
            text=trimmed.text,
            usage=Usage(
                input_tokens=question.prompt_tokens,
                output_tokens=trimmed.tokens if whole else None,
            ),
            finish_reason="stop" if trimmed.ended else "length",
        )

    def _guess(self, question: Question, text: str, stops: Sequence[str]) -> Completion:
        """Return a reply of a class that tells its text alone."""
        size = self.prompts.size(text)
        full = size is not None and size >= question.arguments["max_gen_toks"]
        return Completion(
            text=text if full else close_answer(text, stops),
            usage=Usage(input_tokens=question.prompt_tokens, output_tokens=size),
            finish_reason="length" if full else "stop",
        )


def as_failure(error: Exception) -> RagenError:
    """Return what lm-eval raised as callers of a model expect it."""
    if isinstance(error, RagenError):
        return error
    response = getattr(error, "response", None)
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    told = f"{error} {getattr(response, 'text', '')}"
    failure: RagenError
    if status in _REFUSALS or (status == 429 and _NO_CREDIT in told):
        failure = ProviderRefusal(f"the provider answers no request: {error}")
    elif status in (400, 413, 422) and _TOO_LONG.search(told):
        failure = ContextOverflow(f"the provider refuses the prompt's length: {error}")
    else:
        failure = ProviderError(f"lm-eval failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _descends(lm: Any, name: str) -> bool:
    """Return whether an object's class descends from one of lm-eval's, by its name.

    Importing it to ask would need packages that other classes do without.
    """
    return any(ancestor.__name__ == name for ancestor in type(lm).__mro__)


def _end_ids(lm: Any) -> frozenset[int]:
    """Return the ids at which a model of transformers ends a reply."""
    found = getattr(lm.model.generation_config, "eos_token_id", None)
    ids = found if isinstance(found, list) else [found]
    return frozenset(token for token in (*ids, lm.eot_token_id) if token is not None)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let PyTorch draw from a seed, and go on as before after it."""
    import torch

    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
