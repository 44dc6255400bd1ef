"""`Model`: the language model that some agents use, and what passes to and fro."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

from ragen_bench.seeding import child_seed

Role: TypeAlias = Literal["system", "user", "assistant"]
FinishReason: TypeAlias = Literal["stop", "length", "content_filter"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one or more replies; None where the provider does not say."""

    input_tokens: int | None = None
    """All of the prompt, with what was read from or written to a cache."""
    cached_tokens: int | None = None
    """Those of the input that were read from a cache."""
    output_tokens: int | None = None
    """All that was generated, with reasoning."""
    reasoning_tokens: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a reply is drawn."""

    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    max_tokens: int = 256
    """New tokens of one reply."""
    stop: tuple[str, ...] = ("</answer>",)
    """Strings that end a reply; the one that did is kept in the text."""
    processed_logprobs: bool = False
    """Whether log-probabilities are those at this temperature, not at 1."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Message:
    """One message of a conversation.

    ``token_ids`` are the very ids that were sampled, for an assistant's message;
    whoever continues the conversation must send them back untouched.
    """

    role: Role
    content: str
    token_ids: tuple[int, ...] | None = None
    thinking: str | None = None
    """Reasoning that a provider kept apart from an assistant's message."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Conversation:
    """What one episode has said so far to one model: state that lasts an episode.

    An agent puts the messages of its next question into ``messages``.  A model may
    keep whatever helps it to go on (a key-value cache, say) in ``engine_state``.
    """

    key: str
    """The episode, such as ``"ragen/Bandit-v0:1/test/7/0"``."""
    seed: int
    """Seeds the sampling of this episode; with the turn it fixes every draw."""
    messages: list[Message] = dataclasses.field(default_factory=list)
    turn: int = 0
    """Number of the reply that is asked for, from 0."""
    engine_state: Any = None

    def turn_seed(self) -> int:
        """Return what seeds the draws of this reply alone, in [0, 2**31)."""
        return child_seed(self.seed, "turn", self.turn) >> 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model answered."""

    text: str
    thinking: str | None = None
    """Reasoning that the provider keeps apart from the text."""
    prompt_token_ids: tuple[int, ...] = ()
    """What the model read, if it says so."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Log-probability of each sampled token, in nats."""
    usage: Usage = Usage()
    finish_reason: FinishReason = "stop"
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Provider's own facts: response id, fingerprint, notes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an examination of a model found out."""

    level: Literal["ok", "note", "fix"]
    """All is well; worth knowing; something must be set."""
    topic: str
    """Such as ``"stop"``."""
    text: str
    flags: tuple[str, ...] = ()
    """The words to add to ``ragen-bench run``, each flag with its value."""


class Model(abc.ABC):
    """A language model.  One object serves all episodes of a run at once."""

    name: str
    """What a record calls it, such as ``"hf:folder"``."""
    max_context: int | None = None
    """Tokens of prompt and reply together, None if unknown or unbounded."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Settings that the model was made for: agent, prompt, context, sampling."""
    deterministic: ClassVar[bool] = True
    """Whether greedy replies depend on nothing but the conversation."""

    @abc.abstractmethod
    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message of a conversation.

        Raises:
            ContextOverflow: The prompt leaves no room for a reply.
            ProviderError: The model could not be asked; it ends the episode.
            ProviderRefusal: It will answer no other request either; it ends the run.
        """

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a prompt of these messages has.

        The default is an estimate of one token for four characters.
        """
        return sum(len(message.content) // 4 + 4 for message in messages)

    def describe(self) -> Mapping[str, Any]:
        """Return JSON-able facts that a result depends on, such as hashes."""
        return {}

    async def examine(
        self, conversation: Conversation, sampling: Sampling
    ) -> "Examination":
        """Return what only this kind of model can tell of its own set-up.

        It may ask the model a handful of times.  `ragen_bench.doctor` adds what two
        ordinary replies show of any model.

        Args:
            conversation: The first question of an ordinary episode.
            sampling: How its reply would be drawn.

        Raises:
            ProviderError: The model could not be asked.
            ProviderRefusal: It will not answer this user.
        """
        return Examination()

    async def aclose(self) -> None:  # noqa: B027 - most models hold nothing
        """Free what the model holds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What `Model.examine` found."""

    findings: tuple[Finding, ...] = ()
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Model arguments with which the model works."""
    requests: int = 0
    """How often the model was asked."""


class ModelWrapper(Model):
    """Another model with something around its replies; all else is that model's."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.name
        self.max_context = model.max_context
        self.defaults = model.defaults
        # A class says it of all its objects; this one says what the inner one does.
        self.deterministic = model.deterministic  # type: ignore[misc]

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a prompt of these messages has."""
        return self.model.count_tokens(messages)

    def describe(self) -> Mapping[str, Any]:
        """Return the inner model's facts."""
        return self.model.describe()

    async def examine(
        self, conversation: Conversation, sampling: Sampling
    ) -> Examination:
        """Return what the inner model tells of itself."""
        return await self.model.examine(conversation, sampling)

    async def aclose(self) -> None:
        """Free what the inner model holds."""
        await self.model.aclose()
