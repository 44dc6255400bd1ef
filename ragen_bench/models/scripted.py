"""``scripted:FILE``: replies that stand in a file, for tests and for trying things out.

The file is JSON or JSON Lines:

- a list of replies, or one reply a line: every episode plays them in order;
- ``{"replies": [...]}``: the same;
- ``{EPISODE: [...], ...}``: a list for each episode, by its key, such as
  ``"ragen/Bandit-v0:1/test/7/0"``; ``"*"`` stands for all others.

A reply is a string, or an object with ``text`` and perhaps ``thinking`` and
``finish_reason``.  Which one is played depends on the turn alone, so neither order
nor resumption matters.  Sampling settings change nothing.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.model import Completion, Conversation, FinishReason, Model, Sampling

_EVERYONE = "*"
_FIELDS = frozenset({"text", "thinking", "finish_reason"})
_ENDS = ("loop", "last")


class ScriptedModel(Model):
    """Plays replies that were written beforehand.

    Args:
        name: What records call it.
        script: Replies by episode key; ``"*"`` stands for all others.
        at_end: Behind the last reply, ``"loop"`` begins again and ``"last"`` says
            the last one again.
        sha256: Of the file that holds them, if any.

    Raises:
        InvalidSpec: A list is empty.
        UnknownName: ``at_end`` is neither.
    """

    def __init__(
        self,
        name: str,
        script: Mapping[str, Sequence[Completion]],
        *,
        at_end: str = "loop",
        sha256: str | None = None,
    ) -> None:
        for key, replies in script.items():
            if not replies:
                raise InvalidSpec(f"script {name!r} has no reply for {key!r}: add one")
        if at_end not in _ENDS:
            raise UnknownName.of("end of a script", at_end, _ENDS)
        self.name = name
        self._script = script
        self._loops = at_end == "loop"
        self._sha256 = sha256

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Return the reply of the conversation's turn.

        Raises:
            UnknownName: The script has none for this episode.
        """
        replies = self._script.get(conversation.key, self._script.get(_EVERYONE))
        if replies is None:
            raise UnknownName.of(
                f"episode in script {self.name!r}",
                conversation.key,
                self._script,
                "'*' stands for all others",
            )
        turn = conversation.turn
        if self._loops:
            return replies[turn % len(replies)]
        return replies[min(turn, len(replies) - 1)]

    def describe(self) -> Mapping[str, Any]:
        """Return the file's SHA-256 and what comes behind the last reply."""
        return {
            "script_sha256": self._sha256,
            "at_end": "loop" if self._loops else "last",
        }


def load(rest: str, *, at_end: str = "loop") -> Model:
    """Load a script.

    Args:
        rest: The file.
        at_end: What comes behind the last reply: ``"loop"`` begins again, ``"last"``
            says the last one again.

    Raises:
        UnknownName: There is no such file, or ``at_end`` is neither.
        InvalidSpec: The file is no script.
    """
    if not rest:
        raise InvalidSpec("model 'scripted' needs a file: scripted:FILE")
    try:
        data = Path(rest).read_bytes()
    except FileNotFoundError as error:
        raise UnknownName(f"no script {rest!r}: there is no such file") from error
    except OSError as error:
        raise InvalidSpec(f"script {rest!r} cannot be read: {error}") from error
    try:
        found = _parse(rest, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidSpec(f"script {rest!r} is not UTF-8: {error}") from error
    return ScriptedModel(
        f"scripted:{rest}",
        _script(rest, found),
        at_end=at_end,
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _parse(name: str, text: str) -> Any:
    """Return the JSON value of a file, for JSON Lines the list of its lines."""
    try:
        found = json.loads(text)
    except ValueError:
        return [
            _line(name, number, line)
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    single = isinstance(found, str) or (isinstance(found, dict) and "text" in found)
    return [found] if single else found


def _line(name: str, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidSpec(
            f"script {name!r} is neither JSON nor JSON Lines: line {number}: {error}"
        ) from error


def _script(name: str, found: Any) -> dict[str, list[Completion]]:
    if isinstance(found, list):
        found = {_EVERYONE: found}
    elif isinstance(found, dict) and set(found) == {"replies"}:
        found = {_EVERYONE: found["replies"]}
    if not isinstance(found, dict):
        raise InvalidSpec(
            f"script {name!r} holds {found!r}, but must be a list of replies or an "
            "object of lists"
        )
    script = {}
    for key, replies in found.items():
        if not isinstance(replies, list):
            raise InvalidSpec(
                f"script {name!r} has {replies!r} for {key!r}, but must have a list of "
                "replies"
            )
        script[key] = [_completion(name, reply) for reply in replies]
    return script


def _completion(name: str, reply: Any) -> Completion:
    if isinstance(reply, str):
        return Completion(text=reply)
    if not isinstance(reply, dict) or not isinstance(reply.get("text"), str):
        raise InvalidSpec(
            f"script {name!r} has the reply {reply!r}, but a reply must be a string or "
            "an object with a string 'text'"
        )
    for key in reply:
        if key not in _FIELDS:
            raise UnknownName.of(f"field of a reply in script {name!r}", key, _FIELDS)
    thinking = reply.get("thinking")
    if thinking is not None and not isinstance(thinking, str):
        raise InvalidSpec(
            f"script {name!r} has thinking {thinking!r}, but it must be a string"
        )
    return Completion(
        text=reply["text"],
        thinking=thinking,
        finish_reason=_finish_reason(name, reply.get("finish_reason", "stop")),
    )


def _finish_reason(name: str, found: Any) -> FinishReason:
    for known in get_args(FinishReason):
        if found == known:
            reason: FinishReason = known
            return reason
    raise UnknownName.of(
        f"finish_reason in script {name!r}", found, get_args(FinishReason)
    )
