"""Messages to the text of a prompt, the way a model's chat template defines it.

A template that refuses or drops a system message gets that text at the head of the
first user message.  A tokenizer without a template gets this form, whose last line is
where the reply begins::

    System:
    TEXT

    User:
    TEXT

    Assistant:
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_bench.errors import InvalidSpec
from ragen_bench.model import Message

# A prompt must not depend on the day: templates that ask for the date get the one
# that Llama's templates write when they have no clock.
_DATE = "26 Jul 2024"
_CLOCK = "strftime_now"
_PROBE = "text that must appear"
_OURS = frozenset(
    {"add_generation_prompt", "chat_template", "conversation", "messages", "tokenize"}
)


class Template:
    """The chat template of one tokenizer, or the plain form where there is none.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        arguments: Handed to the template, such as ``{"enable_thinking": False}``.

    Raises:
        InvalidSpec: The template reads no such argument.
    """

    def __init__(
        self, tokenizer: Any, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self.notes: list[str] = []
        """What differs from the plain use of a template, in words."""
        self.text = self._used_text = self._find_template()
        self.arguments = dict(arguments or {})
        self._check_arguments()
        if self.text is not None and _CLOCK in self.text:
            macro = f"{{%- macro {_CLOCK}(format) -%}}{_DATE}{{%- endmacro -%}}"
            self._used_text = macro + self.text
            self.notes.append(f"the chat template's date is always {_DATE}")
        self._merges_system = self.text is not None and self._drops_system()
        if self._merges_system:
            self.notes.append("system message merged into the first user message")
        if self.text is None:
            self.notes.append("no chat template: 'System: / User: / Assistant:' lines")

    @property
    def sha256(self) -> str | None:
        """SHA-256 of the template's text, None without a template."""
        if self.text is None:
            return None
        return hashlib.sha256(self.text.encode()).hexdigest()

    def render(self, messages: Sequence[Message]) -> str:
        """Return the text of a prompt that asks for the assistant's next message.

        Raises:
            InvalidSpec: There is no message, or the template refuses these roles.
        """
        if not messages:
            raise InvalidSpec("a conversation without messages has no prompt: add one")
        pairs: list[tuple[str, str]]
        pairs = [(message.role, message.content) for message in messages]
        if self.text is None:
            shown = [f"{role.capitalize()}:\n{content}\n\n" for role, content in pairs]
            return "".join([*shown, "Assistant:\n"])
        if self._merges_system:
            pairs = _merge_system(pairs)
        try:
            return self._apply(pairs)
        except Exception as error:
            roles = ", ".join(role for role, _ in pairs)
            raise InvalidSpec(
                f"the model's chat template refuses the roles {roles}: {error}"
            ) from error

    def closing(self) -> str:
        """Return what the template writes behind an assistant's message, if known."""
        if self.text is None:
            return ""
        try:
            text = self._apply([("user", "hello"), ("assistant", _PROBE)], asks=False)
        except Exception:  # a template that cannot do it tells nothing
            return ""
        _, found, rest = text.rpartition(_PROBE)
        return rest if found else ""

    def _apply(self, pairs: Sequence[tuple[str, str]], asks: bool = True) -> str:
        messages = [{"role": role, "content": content} for role, content in pairs]
        text: str = self._tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=asks,
            chat_template=self._used_text,
            **self.arguments,
        )
        return text

    def _find_template(self) -> str | None:
        try:
            template: str = self._tokenizer.get_chat_template()
        except ValueError:
            return None
        return template

    def _check_arguments(self) -> None:
        """Refuse arguments that would do nothing, or break the prompt."""
        for name in self.arguments:
            if name in _OURS or name not in (self.text or ""):
                reason = (
                    "is set by ragen-bench"
                    if name in _OURS
                    else (
                        "is read nowhere in the model's chat template"
                        if self.text
                        else "needs a chat template, which the model lacks"
                    )
                )
                raise InvalidSpec(f"template_args has {name!r}, which {reason}")

    def _drops_system(self) -> bool:
        try:
            return _PROBE not in self._apply([("system", _PROBE), ("user", "hello")])
        except Exception:  # templates refuse by any exception Jinja can raise
            return True


def _merge_system(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs with leading system texts at the head of the first user's."""
    system = [content for role, content in pairs if role == "system"]
    rest = [(role, content) for role, content in pairs if role != "system"]
    if not system:
        return rest
    if not rest or rest[0][0] != "user":
        rest.insert(0, ("user", ""))
    merged = "\n\n".join(part for part in [*system, rest[0][1]] if part)
    return [("user", merged), *rest[1:]]
