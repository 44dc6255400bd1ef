"""Replies that were given before, on disk: the same question is not asked twice.

A folder holds ``replies.sqlite``, which several processes may use at once.  A reply
is found only by the SHA-256 of all that it may depend on: the model's name, arguments
and facts (template, revision, weights), every message, every sampling setting, and the
episode, its seed and the turn.  Episode and seed differ between repeats and salts, so
repeats never share a reply, and a run with a cache scores what one without it does.

Only replies are kept, never errors.  One that comes from the cache says so in its
details (``"cached": true``), and costs nothing in a run's ledger; its tokens are
recorded as they were, so that a summary does not depend on what was in the cache.
"""

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

from ragen_bench.errors import InvalidSpec, RunIncomplete
from ragen_bench.model import (
    Completion,
    Conversation,
    FinishReason,
    Message,
    Model,
    ModelWrapper,
    Sampling,
    Usage,
)
from ragen_bench.records import sha256_of

REPLIES = "replies.sqlite"

_APPLICATION = 0x52414745
"""What tells our databases from others; SQLite keeps such a number in the header."""
_SCHEMA = 1
"""Of the table and of the keys: raise it when either changes."""
_FIELDS = frozenset(field.name for field in dataclasses.fields(Completion))
_WAIT_SECONDS = 60.0
"""For another process to finish its write."""


def check_folder(folder: str | Path) -> None:
    """Refuse what can be no folder of replies; nothing is made or opened.

    Raises:
        InvalidSpec: It is empty, or something other than a folder.
    """
    if not str(folder):
        raise InvalidSpec("cache is '', but must be a folder; give another --cache")
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise InvalidSpec(
            f"cache {str(folder)!r} cannot be a folder: there is a file of that name; "
            "give another --cache"
        )


class ReplayCache:
    """A folder of replies.

    Args:
        folder: Made if it does not exist.

    Raises:
        InvalidSpec: The folder cannot be made or written, or its file is no replay
            cache, or one of another version.
    """

    def __init__(self, folder: str | Path) -> None:
        check_folder(folder)
        self.path = Path(folder) / REPLIES
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidSpec(
                f"cache {str(folder)!r} cannot be a folder: {error.strerror}; give "
                "another --cache"
            ) from error
        try:
            self._open()
        except sqlite3.Error as error:
            raise InvalidSpec(
                f"cache file {str(self.path)!r} cannot be used: {error}; remove it or "
                "give another --cache"
            ) from error

    def get(self, key: str) -> Completion | None:
        """Return the reply that is kept under a key, None if there is none.

        Raises:
            RunIncomplete: The file cannot be read.
        """
        with self._safely("read"):
            row = self._database.execute(
                "SELECT reply FROM replies WHERE key = ?", (key,)
            ).fetchone()
            return None if row is None else _completion(row[0])

    def put(self, key: str, completion: Completion) -> None:
        """Keep a reply, unless one is kept under that key already.

        Raises:
            RunIncomplete: The file cannot be written.
        """
        try:
            text = json.dumps(dataclasses.asdict(completion))
        except (TypeError, ValueError):  # details that no record can hold either
            return
        with self._safely("written"):
            self._database.execute(
                "INSERT OR IGNORE INTO replies VALUES (?, ?)", (key, text)
            )

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> "ReplayCache":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> None:
        # A run may play in another thread than the one that prepared it.
        database = sqlite3.connect(
            self.path,
            timeout=_WAIT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        self._database = database
        try:
            # Two processes may begin with the same empty file.
            database.execute("BEGIN IMMEDIATE")
            self._adopt()
            database.execute("COMMIT")
            # Readers then never wait, and a commit needs no sync of the disk.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            database.close()
            raise

    def _adopt(self) -> None:
        """Make the table in an empty file; refuse a file that is not ours."""
        database = self._database
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (schema,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, schema, tables) == (0, 0, 0):
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {_SCHEMA}")
            database.execute(
                "CREATE TABLE replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL) "
                "WITHOUT ROWID"
            )
        elif application != _APPLICATION:
            raise sqlite3.DatabaseError("it is the database of another program")
        elif schema != _SCHEMA:
            raise sqlite3.DatabaseError(
                f"it has version {schema}, but this version of ragen-bench uses "
                f"{_SCHEMA}"
            )

    @contextlib.contextmanager
    def _safely(self, what: str) -> Iterator[None]:
        """End the run, and not only an episode, if the file fails."""
        try:
            yield
        except (
            sqlite3.Error,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
        ) as error:
            raise RunIncomplete(
                f"cache file {str(self.path)!r} cannot be {what}: {error}; make room, "
                "remove it or leave --cache out, and run the same command again"
            ) from error


def _completion(text: str) -> Completion:
    held = json.loads(text)
    _check(held)
    return Completion(
        **{
            **held,
            "prompt_token_ids": tuple(held["prompt_token_ids"]),
            "token_ids": tuple(held["token_ids"]),
            "logprobs": tuple(held["logprobs"]),
            "usage": Usage(**held["usage"]),
            "details": {**held["details"], "cached": True},
        }
    )


def _check(held: Any) -> None:
    """Refuse a row that a model cannot have said: an agent would be blamed for it."""
    if not isinstance(held, dict) or held.keys() != _FIELDS:
        raise ValueError("a row is no reply")
    counts = held["usage"].values() if isinstance(held["usage"], dict) else ["no dict"]
    sound = {
        "text": isinstance(held["text"], str),
        "thinking": isinstance(held["thinking"], str | None),
        "prompt_token_ids": _all_of(held["prompt_token_ids"], int),
        "token_ids": _all_of(held["token_ids"], int),
        "logprobs": _all_of(held["logprobs"], int, float),
        "usage": all(n is None or (type(n) is int and n >= 0) for n in counts),
        "finish_reason": held["finish_reason"] in get_args(FinishReason),
        "details": isinstance(held["details"], dict),
    }
    for name, right in sound.items():
        if not right:
            raise ValueError(f"a row has {name} {held[name]!r:.80}")


def _all_of(values: Any, *types: type) -> bool:
    return isinstance(values, list) and all(type(value) in types for value in values)


class CachedModel(ModelWrapper):
    """A model that is asked only what a replay cache does not know.

    Args:
        model: The model.
        cache: Where its replies are kept.
        spec: What was asked for, such as ``"hf:folder"``.
        arguments: The model's arguments.
    """

    def __init__(
        self, model: Model, cache: ReplayCache, spec: str, arguments: Mapping[str, Any]
    ) -> None:
        super().__init__(model)
        self._cache = cache
        # Facts may cost a pass over the weights, so that they are asked for once.
        self._model_key = sha256_of(
            {
                "schema": _SCHEMA,
                "spec": spec,
                "name": model.name,
                "arguments": dict(arguments),
                "facts": dict(model.describe()),
            }
        )

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Return the reply that was given before, or ask the model and keep its reply.

        Raises:
            RunIncomplete: The cache fails; further what the model raises.
        """
        key = self.key(conversation, sampling)
        found = self._cache.get(key)
        if found is None:
            found = await self.model.generate(conversation, sampling)
            self._cache.put(key, found)
        return found

    def key(self, conversation: Conversation, sampling: Sampling) -> str:
        """Return the hash of all that a reply may depend on."""
        return sha256_of(
            {
                "model": self._model_key,
                "messages": [_facts(message) for message in conversation.messages],
                "sampling": dataclasses.asdict(sampling),
                "key": conversation.key,
                "seed": conversation.seed,
                "turn": conversation.turn,
            }
        )


def _facts(message: Message) -> dict[str, Any]:
    """Return a message's fields; `dataclasses.asdict` would copy each token id."""
    return {
        field.name: getattr(message, field.name)
        for field in dataclasses.fields(message)
    }
