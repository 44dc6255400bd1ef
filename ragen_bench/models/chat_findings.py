"""What a tokenizer and its chat template do to a prompt, for `Model.examine`."""

import re
from collections.abc import Iterator, Sequence

from ragen_bench.model import Finding, Message
from ragen_bench.models.chat_template import Chat

_OPEN = re.compile(r"<(think|thinking|reasoning|thought)>\s*\Z")
_CLOSED = re.compile(r"<(think|thinking|reasoning|thought)>\s*</\1>\s*\Z")
_SWITCH = "enable_thinking"


def chat_findings(chat: Chat, messages: Sequence[Message]) -> tuple[Finding, ...]:
    """Return what is worth knowing of a model's prompts; nothing is asked.

    Args:
        chat: The tokenizer and its template.
        messages: The first prompt of an ordinary episode.
    """
    text, ids = chat.prompt(messages)
    return (
        *_about_template(chat, messages, text),
        *_about_ids(chat, ids),
        *_about_thinking(chat, text),
    )


def _about_template(
    chat: Chat, messages: Sequence[Message], text: str
) -> Iterator[Finding]:
    if chat.template_sha256 is not None:
        yield Finding(
            level="ok",
            topic="template",
            text=f"present (SHA-256 {chat.template_sha256[:12]})",
        )
    missing = [m.role for m in messages if m.content.strip() not in text]
    if missing:
        yield Finding(
            level="fix",
            topic="template",
            text=f"the prompt lacks the text of these messages: {', '.join(missing)}",
        )
    else:
        yield Finding(
            level="ok", topic="template", text="the whole of the rules is in the prompt"
        )


def _about_ids(chat: Chat, ids: Sequence[int]) -> Iterator[Finding]:
    bos = chat.tokenizer.bos_token_id
    if bos is not None:
        head = 0
        while head < len(ids) and ids[head] == bos:
            head += 1
        yield Finding(
            level="ok" if head < 2 else "fix",
            topic="BOS",
            text=("no", "exactly one", f"{head} times the")[min(head, 2)]
            + " token of beginning, as the tokenizer has it",
        )
    ends = sorted(chat.end_ids)
    if ends:
        names = ", ".join(map(str, chat.tokenizer.convert_ids_to_tokens(ends)))
        yield Finding(level="ok", topic="end", text=f"a reply ends with {names}")
    else:
        yield Finding(
            level="fix",
            topic="end",
            text="no token ends a reply: name one as eos_token_id in the model's "
            "generation_config.json",
        )


def _about_thinking(chat: Chat, text: str) -> Iterator[Finding]:
    switch = ("--model-arg", f'template_args={{"{_SWITCH}": false}}')
    if _CLOSED.search(text):
        yield Finding(
            level="ok", topic="thinking", text="the template leaves thinking out"
        )
    elif _OPEN.search(text):
        yield Finding(
            level="note",
            topic="thinking",
            text="the template opens a block of reasoning, which the reply closes",
        )
    elif chat.template_text is not None and _SWITCH in chat.template_text:
        yield Finding(
            level="note",
            topic="thinking",
            text="the template lets the model think; it can be told not to with "
            + " ".join(switch),
        )
