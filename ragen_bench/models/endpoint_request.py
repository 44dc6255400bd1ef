"""A conversation to the body of a request."""

from collections.abc import Sequence
from typing import Any

from ragen_bench.model import Conversation, Message, Sampling
from ragen_bench.models.endpoint_options import EndpointOptions
from ragen_bench.models.endpoint_reply import whole


def request_body(
    name: str,
    conversation: Conversation,
    sampling: Sampling,
    options: EndpointOptions,
) -> dict[str, Any]:
    """Return the JSON that asks for the next reply of a conversation.

    The seed is that of the reply alone, so that order and resumption do not matter.
    """
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop": list(sampling.stop),
        "seed": conversation.turn_seed(),
    }
    if not sampling.stop:
        del fields["stop"]
    return {
        "model": name,
        "messages": chat_messages(conversation.messages, options),
        options.max_tokens_field: sampling.max_tokens,
        **{key: value for key, value in fields.items() if key not in options.omit},
        **options.extra_body,
    }


def chat_messages(
    messages: Sequence[Message], options: EndpointOptions
) -> list[dict[str, str]]:
    """Return messages as a server takes them."""
    if options.system == "merge":
        messages = _merge_system(messages)
    return [_chat_message(message, options) for message in messages]


def _chat_message(message: Message, options: EndpointOptions) -> dict[str, str]:
    role: str = message.role
    if role == "system" and options.system == "developer":
        role = "developer"
    content = whole(message.content)
    shown = {"role": role, "content": content}
    if message.role == "assistant" and message.thinking:
        thinking = whole(message.thinking)
        if options.send_reasoning == "inline":
            shown["content"] = f"<think>{thinking}</think>{content}"
        elif options.send_reasoning != "none":
            shown[options.send_reasoning] = thinking
    return shown


def _merge_system(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with system texts at the head of the first user's."""
    system = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    if not system:
        return rest
    first = ""
    if rest and rest[0].role == "user":
        first = rest.pop(0).content
    merged = "\n\n".join(part for part in [*system, first] if part)
    return [Message(role="user", content=merged), *rest]
