"""The key of a provider, and how it stays out of everything that is written."""

import os
import re

from ragen_bench.errors import InvalidSpec

USUAL = "OPENAI_API_KEY"
_NO_KEY = "none"
_MASK = "[key]"
_SHORTEST_SECRET = 8
"""Characters; a placeholder such as ``EMPTY`` is no secret and may be an answer."""


class Key:
    """A key that shows itself to nobody but the server.

    Args:
        value: The key, None to send a placeholder.
        source: The environment variable that it comes from.
    """

    def __init__(self, value: str | None, source: str = USUAL) -> None:
        self.source = source
        self._value = value

    def __repr__(self) -> str:
        return f"Key(source={self.source!r})"

    @property
    def is_known(self) -> bool:
        """Whether there is a key at all."""
        return self._value is not None

    def reveal(self) -> str:
        """Return what is sent to the server."""
        return self._value or _NO_KEY

    def hide(self, text: str) -> str:
        """Return a reply's text without the key."""
        if self._value is None or len(self._value) < _SHORTEST_SECRET:
            return text
        return text.replace(self._value, _MASK)

    def hide_parts(self, text: str) -> str:
        """Return an error text without the key or any 8 characters in a row of it.

        Servers echo a key cut short, or with its middle starred out.
        """
        key = self._value
        if not key:
            return text
        size = min(_SHORTEST_SECRET, len(key))
        parts = {key[i : i + size] for i in range(len(key) - size + 1)}
        shown: list[str] = []
        at = 0
        while at < len(text):
            end = at
            while text[end : end + size] in parts:
                end += 1
            if end > at:
                shown.append(_MASK)
                at = end + size - 1
            else:
                shown.append(text[at])
                at += 1
        return "".join(shown)


def find_key(variable: object, *, hosted: bool) -> Key:
    """Return the key of the environment.

    Args:
        variable: The name of an environment variable, None for the usual one.
        hosted: Whether the address is the provider's own, which wants a key.

    Raises:
        InvalidSpec: The variable is not set although it must be, or holds what no
            header can.
    """
    # A key given in place of a name must not be repeated, so no value is named here.
    name = USUAL if variable is None else variable
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise InvalidSpec(
            "api_key_env must be the name of an environment variable that holds the "
            f"key, such as {USUAL}, not the key itself"
        )
    value = os.environ.get(name, "").strip()
    if not value:
        if variable is not None:
            raise InvalidSpec(
                "the environment variable that api_key_env names is not set"
            )
        if hosted:
            raise InvalidSpec(
                f"{USUAL} is not set, but the provider wants a key: set it, or give "
                "--base-url for another server"
            )
        return Key(None)
    if not re.fullmatch("[!-~]+", value):
        place = USUAL if variable is None else "the variable that api_key_env names"
        raise InvalidSpec(
            f"the key in {place} holds a space or a character beyond ASCII; copy it "
            "again"
        )
    return Key(value, name)
