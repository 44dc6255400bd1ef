"""`Fault`: one thing that is wrong with a run, under a code that never changes."""

import dataclasses
from collections import Counter
from collections.abc import Mapping

_SHOWN = 20
"""Faults of one code that are told one by one; the others are only counted."""
_MOST_TEXT = 300

CODES: Mapping[str, str] = {
    "not_a_file": "a file is a link, a device, a pipe or a folder",
    "bad_archive": "the archive is no plain zip: damaged, encrypted, with other data "
    "around it, packed in an unusual way, or with two members of one name",
    "path_escape": "a member's name leads out of the archive",
    "bad_name": "a name holds characters that it must not, or names something that "
    "does not come with ragen-bench",
    "missing_file": "a file is not there",
    "extra_file": "there is a file too many",
    "too_large": "a file, a line or what it unpacks to is larger than any honest run",
    "too_many": "more members, lines, values or episodes than any honest run",
    "too_deep": "JSON is nested too deeply",
    "bad_number": "a number is NaN, infinite or out of range",
    "not_json": "a line or file is not strict JSON in UTF-8, or has a key twice",
    "truncated": "the last line of the episodes is cut off",
    "schema": "a record has another schema, a wrong type, a key too many or too few",
    "bad_setting": "a setting that this version cannot play, or not safely",
    "board_unknown": "the board does not come with this version",
    "board_version": "the board is of another version, or has other instances here",
    "not_the_board": "cells, split, repeats or another setting break the board's rules",
    "seal_mismatch": "the salt, the seal and the run do not belong together, or the "
    "salt is needed",
    "class_mismatch": "the class is not that of the agent",
    "seed_not_in_board": "a seed is not in the list",
    "missing_episode": "an episode of the list was not played",
    "extra_episode": "an episode is not in the list",
    "duplicate_episode": "an episode comes twice",
    "duplicate_transcript": "two episodes are copies of one play",
    "rules_mismatch": "the rules differ from the task's",
    "observation_mismatch": "an observation differs from the replay's",
    "action_mismatch": "executed actions differ, or there is a turn after the end",
    "parse_mismatch": "the reply reads otherwise: parse, valid or thinking",
    "reward_mismatch": "a reward or scored reward differs",
    "parts_mismatch": "the parts of a reward differ",
    "outcome_mismatch": "the ending differs: outcome, success, terminated, truncated "
    "or error",
    "return_mismatch": "the return is not the sum of the scored rewards",
    "reference_mismatch": "instance, floor, ceiling or optimal cost differ",
    "prompt_mismatch": "a prompt's hash, or what was cut from it, differs",
    "usage_impossible": "tokens that the text cannot have",
    "time_impossible": "times that run backwards or beyond today",
    "finish_reason_impossible": "an end that the reply cannot have had",
    "score_mismatch": "a score, return or success differs from the recomputed one",
    "entry_mismatch": "the entry says something else than its bundle",
    "hash_mismatch": "a file is not the one that the entry names by its hash",
    "unrankable": "the board cannot rank the run",
}
"""Code to what it means."""

WARNINGS: Mapping[str, str] = {
    "solver_like": "among equally good actions the play chose the solver's own far "
    "more often than by chance",
    "prompt_unchecked": "the agent does not come with ragen-bench: its moves and "
    "scores were replayed, but its prompts and tokens were not checked, and its class "
    "is its own word",
}
"""What is worth a look and refuses nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One fault or warning."""

    code: str
    """A key of `CODES` or `WARNINGS`."""
    place: str
    """Such as ``"episodes.jsonl:12"`` or an episode's key and turn."""
    message: str

    def __str__(self) -> str:
        return f"{self.code}  {self.place}: {self.message}"


class Refusal(Exception):
    """A fault behind which nothing more can be read."""

    def __init__(self, code: str, place: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(code, shown(place), plain(message))


class Faults:
    """Faults as they are found; of each code only the first ones are kept."""

    def __init__(self) -> None:
        self._found: list[Fault] = []
        self._counts: Counter[str] = Counter()

    def add(self, code: str, place: object, message: str) -> None:
        """Note a fault."""
        self._counts[code] += 1
        if self._counts[code] <= _SHOWN:
            self._found.append(Fault(code, shown(str(place)), plain(message)))

    def take(self, fault: Fault) -> None:
        """Note a fault that was raised."""
        self.add(fault.code, fault.place, fault.message)

    def __len__(self) -> int:
        return self._counts.total()

    def has(self, *codes: str) -> bool:
        """Return whether a fault of one of these codes was found."""
        return any(self._counts[code] for code in codes)

    def all(self) -> tuple[Fault, ...]:
        """Return the faults; the last of a code says how many more there are."""
        more = [
            Fault(code, "all", f"and {count - _SHOWN} more")
            for code, count in self._counts.items()
            if count > _SHOWN
        ]
        return (*self._found, *more)


def shown(value: object) -> str:
    """Return a value for a message: ASCII, on one line, and short."""
    text = value if isinstance(value, str) else repr(value)
    return plain(text if len(text) <= 80 else f"{text[:77]}...")


def plain(text: str) -> str:
    """Return a text without anything that a terminal would obey."""
    safe = text[:_MOST_TEXT].encode("ascii", "backslashreplace").decode("ascii")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in safe)


def difference(what: str, said: object, found: object) -> str:
    """Return that a record says one thing and the replay another.

    Long texts are shown from where they begin to differ.
    """
    if isinstance(said, str) and isinstance(found, str):
        at = next(
            (i for i, (a, b) in enumerate(zip(said, found, strict=False)) if a != b),
            min(len(said), len(found)),
        )
        if at > 20:
            what = f"{what} from character {at}"
            said, found = said[at:], found[at:]
        said, found = said[:80], found[:80]
    return f"{what} is {_short(said)}, but the replay gives {_short(found)}"


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
