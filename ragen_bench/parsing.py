"""Reply text to thinking and actions.  Legality is the environment's business."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

ParseOutcome: TypeAlias = Literal[
    "ok", "empty", "no_answer", "unparsable", "too_many", "cut_off"
]

# The quantifiers of all patterns are possessive or cannot overlap, so that the time
# is linear in the length of the reply, whatever a model writes.
_THINK = "(?:think(?:ing)?|reasoning|thought)"
_TAG = re.compile(
    rf"<\s*+(?:(?P<answer>answer)|(?P<answered>/\s*+answer)"
    rf"|(?P<think>{_THINK})|(?P<thought>/\s*+{_THINK}))\s*+>",
    re.IGNORECASE,
)
_NEXT_MESSAGE = re.compile(
    r"<\|(?:im_start|im_end|eot_id|start_header_id|endoftext|user|assistant)\|>"
    r"|<(?:start|end)_of_turn>|</s>"
    r"|^[ \t]*+(?:(?:user|human|assistant):|turn \d++(?: of \d++\.|/\d++,))",
    re.IGNORECASE | re.MULTILINE,
)
# What nearly all replies look like.  It agrees with the long way and is much quicker.
_PLAIN = re.compile(
    r"\s*+(?:(?:<think>)?([^<]*+)</think>\s*+)?(<answer>([^<]*+)</answer>)\s*+"
)
_FENCE = re.compile(r"```([\w+-]*+)[ \t]*+\n")
_NUMBERING = re.compile(r"\d{1,3}[.):](?: (?=.)|(?=\D))")

_SEPARATORS = ("||", "\n", "|", ";", ",")
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\ufeff"
_STRAY = frozenset(" \"'`*_~#.,;:!?-…–—•·→„“”‘’«»()[]{}<>" + _INVISIBLE)
_STRAY_ROOM = 24
"""Characters around a name that are looked through before it counts as unknown."""

_MEMORY = 1024
_MEMORY_LENGTH = 128
_NOTHING = -1

_Tag: TypeAlias = re.Match[str]


@dataclasses.dataclass(frozen=True, slots=True)
class ParsedReply:
    """What a reply says."""

    outcome: ParseOutcome
    thinking: str
    answer: str
    """The text of the answer that counts, "" if there is none."""
    actions: tuple[int, ...]
    """Indices of the actions to play, at most ``max_actions``."""


class ReplyParser:
    """Reads ``<think>...</think><answer>Up || Right</answer>``; never raises.

    Outcomes:

    - ``cut_off``: the reply hit its limit of tokens (``finish_reason="length"``).
      Nothing in it is played, whatever it holds, even a complete answer.
    - ``empty``: nothing but white space, even where thinking came apart from it.
    - ``no_answer``: no answer block outside the thinking.
    - ``unparsable``: the answer names an unknown action or none at all, or ``strict``
      found two different answers.  Nothing is played.
    - ``too_many``: more than ``max_actions`` actions, of which the first are kept.
    - ``ok``: anything else; ``actions`` is not empty.

    Rules, in the order in which they apply:

    1. Where, after an answer, the reply goes on to write the next message itself (a
       role marker of a chat template, a line that begins with ``User:``, ``Human:``
       or ``Assistant:``, or the head line of our own observations,
       ``Turn 2 of 5.`` or ``Turn 2/5,``), the rest is dropped.  What stands within
       thinking is no such place.
    2. Thinking is taken out, so that drafts in it never count.  It stands in tags
       ``think``, ``thinking``, ``reasoning`` or ``thought``, which may be nested or
       doubled.  A closing tag without an opening one, which then was part of the
       prompt, ends a thought that began with the reply.  A thought that never ends
       runs to the answer that counts, or to the end of the reply.
    3. The last ``<answer>...</answer>`` counts, of nested ones the innermost.  If
       ``finish_reason`` is ``"stop"``, a last one that lacks its closing tag counts
       if nothing but known actions follows, because some servers strip the stop
       string.
    4. Its actions are separated by ``||``, ``|``, ``;``, ``,`` or line breaks.  Each
       must be the whole name of an action, but for case, white space, quotes,
       brackets, list numbers and other stray punctuation around it.  Nothing is read
       out of prose.

    The time is linear in the length of the reply.

    Args:
        names: The names of the actions, by index.  If two differ by case alone, only
            their exact spelling counts.
        max_actions: The most actions in one reply, at least 1.
        strict: Whether two different answers in one reply are ``unparsable``.
    """

    def __init__(
        self, names: tuple[str, ...], max_actions: int, strict: bool = False
    ) -> None:
        self.names = names
        self.max_actions = max_actions
        self.strict = strict
        self._exact: dict[str, int] = {}
        self._folded: dict[str, int | None] = {}
        bare: dict[str, int | None] = {}
        for index, name in enumerate(names):
            whole = " ".join(name.split())
            starts, ends = _edges(whole)
            self._exact.setdefault(whole, index)
            for known, form in (
                (self._folded, whole),
                (bare, whole[starts[-1] : ends[-1]]),
            ):
                key = form.casefold()
                known[key] = None if known.get(key, index) != index else index
        self._folded = bare | self._folded
        self._room = max(map(len, self._exact), default=0) + _STRAY_ROOM
        self._plain: dict[str, ParsedReply] = {}

    @staticmethod
    def of(names: Sequence[str], max_actions: int, strict: bool) -> "ReplyParser":
        """Return a shared parser for these names."""
        return _shared(tuple(names), max_actions, strict)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplyParser.of, (self.names, self.max_actions, self.strict)

    def parse(
        self,
        reply: str,
        *,
        thinking: str | None = None,
        finish_reason: str | None = None,
    ) -> ParsedReply:
        """Return what a reply says; never raises.

        Args:
            reply: The text, of any length and any characters.
            thinking: Reasoning that came apart from the reply, if any; it is put
                before the thinking in the text.
            finish_reason: ``"length"`` marks a reply that was cut off, ``"stop"`` one
                that came to its end.
        """
        if finish_reason is not None and not isinstance(finish_reason, str):
            finish_reason = None
        if finish_reason != "length":
            known = self._plain.get(reply)
            thought = None
            if known is None and (plain := _PLAIN.fullmatch(reply)):
                thought, block, answer = plain.groups()
                known = self._plain.get(block) or self._remember(block, answer)
            if known is not None:
                if thinking is not None:
                    told = _join(thinking, thought)
                elif thought:
                    told = thought.strip()
                else:
                    return known
                return ParsedReply(known.outcome, told, known.answer, known.actions)
        return self._parse_at_length(reply, thinking, finish_reason)

    def _remember(self, block: str, answer: str) -> ParsedReply:
        parsed = self._judge("", answer.strip(), self._read(answer))
        if len(block) <= _MEMORY_LENGTH:
            if len(self._plain) >= _MEMORY:
                self._plain.clear()
            self._plain[block] = parsed
        return parsed

    def _judge(
        self, thinking: str, answer: str, actions: tuple[int, ...] | None
    ) -> ParsedReply:
        if actions is None:
            return ParsedReply("unparsable", thinking, answer, ())
        if len(actions) <= self.max_actions:
            return ParsedReply("ok", thinking, answer, actions)
        return ParsedReply("too_many", thinking, answer, actions[: self.max_actions])

    def _parse_at_length(
        self, reply: str, thinking: str | None, finish_reason: str | None
    ) -> ParsedReply:
        thoughts, text, endless = _split(reply)
        answers, torn = _answers(text)
        if finish_reason == "length":
            told = _join(thinking, *thoughts, text[endless:])
            return ParsedReply("cut_off", told, "", ())
        if torn and finish_reason == "stop" and self._read(torn[1]) is not None:
            answers.append(torn)
        if not answers:
            told = _join(thinking, *thoughts, text[endless:])
            empty = not reply or reply.isspace()
            return ParsedReply("empty" if empty else "no_answer", told, "", ())
        start, answer = answers[-1]
        actions = self._read(answer)
        if self.strict and any(self._read(text) != actions for _, text in answers):
            actions = None
        end = start if start >= endless else len(text)
        told = _join(thinking, *thoughts, text[endless:end])
        return self._judge(told, answer.strip(), actions)

    def _read(self, answer: str) -> tuple[int, ...] | None:
        """Return all actions of an answer, None if it holds anything else or none."""
        if "```" in answer:
            answer = _FENCE.sub(self._unfence, answer)
        actions: list[int] = []
        # All line breaks count, those of other systems too.
        known = self._collect("\n".join(answer.splitlines()), _SEPARATORS, actions)
        return tuple(actions) if known and actions else None

    def _unfence(self, fence: _Tag) -> str:
        # "```text" names a language, but "```Up" is an answer.
        return "\n" if self._find(fence[1]) is None else fence[0]

    def _collect(
        self, text: str, separators: tuple[str, ...], actions: list[int]
    ) -> bool:
        # A name may hold a separator, so the whole is tried before its parts.
        index = self._find(text)
        if index is not None:
            if index != _NOTHING:
                actions.append(index)
            return True
        for rank, separator in enumerate(separators, 1):
            if separator in text:
                return all(
                    self._collect(part, separators[rank:], actions)
                    for part in text.split(separator)
                )
        return False

    def _find(self, text: str) -> int | None:
        """Return the action that a text names, None if unknown.

        A text of nothing but stray punctuation is ``_NOTHING``.
        """
        text = " ".join(text.split())
        if not text:
            return _NOTHING
        index = self._look_up(text)
        if index is None and len(text) <= self._room:
            starts, ends = _edges(text)
            forms = [text[start:end] for start in starts for end in ends if start < end]
            # A name may begin or end with punctuation itself: the longest one counts.
            for form in sorted(forms, key=len, reverse=True):
                index = self._look_up(form)
                if index is not None:
                    break
        if index is None and _STRAY.issuperset(text):
            return _NOTHING
        return index

    def _look_up(self, name: str) -> int | None:
        index = self._exact.get(name)
        return self._folded.get(name.casefold()) if index is None else index


@functools.lru_cache(maxsize=512)
def _shared(names: tuple[str, ...], max_actions: int, strict: bool) -> ReplyParser:
    return ReplyParser(names, max_actions, strict)


def _edges(text: str) -> tuple[list[int], list[int]]:
    """Return where a name may start and end in a text, from the outside inwards."""
    starts = [0]
    numbered = False
    while (start := starts[-1]) < len(text):
        # The sign and the point of "-1" and ".5" belong to the number.
        signs = text[start] in "-–." and text[start + 1 : start + 2].isdigit()
        if text[start] in _STRAY and not signs:
            starts.append(start + 1)
        elif not numbered and (numbering := _NUMBERING.match(text, start)):
            numbered = True
            starts.append(numbering.end())
        else:
            break
    ends = [len(text)]
    while ends[-1] > 0 and text[ends[-1] - 1] in _STRAY:
        ends.append(ends[-1] - 1)
    return starts, ends


def whole(text: str) -> str:
    """Return text that UTF-8 can hold; a lone surrogate becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _join(*thoughts: str | None) -> str:
    stripped = [text.strip() for text in thoughts if isinstance(text, str)]
    return "\n".join(text for text in stripped if text)


def _pair(tags: list[_Tag]) -> tuple[dict[int, int], list[int]]:
    """Match thinking tags like brackets: closing by opening, and stray closings."""
    partner: dict[int, int] = {}
    strays: list[int] = []
    waiting: list[int] = []
    for index, tag in enumerate(tags):
        if tag.lastgroup == "think":
            waiting.append(index)
        elif tag.lastgroup == "thought":
            if waiting:
                partner[waiting.pop()] = index
            else:
                strays.append(index)
    return partner, strays


def _own_message(reply: str, tags: list[_Tag]) -> str:
    """Return a reply up to where it writes the next message itself (rule 1)."""
    first = next((tag.end() for tag in tags if tag.lastgroup == "answered"), None)
    marks = [] if first is None else list(_NEXT_MESSAGE.finditer(reply, first))
    if not marks:
        return reply
    tokens = sorted([*tags, *marks], key=lambda token: token.start())
    partner, strays = _pair(tokens)
    opened = answered = False
    index = strays[0] + 1 if strays else 0
    while index < len(tokens):
        kind = tokens[index].lastgroup
        if kind == "answer":
            opened = True
        elif kind == "answered":
            answered = answered or opened
        elif kind is None and answered:
            return reply[: tokens[index].start()]
        index = partner.get(index, index) + 1
    return reply


def _split(reply: str) -> tuple[list[str], str, int]:
    """Return the thoughts, the text around them (rules 1 and 2), and a place in it.

    From this place on the text is a thought that never ends; it is the text's length
    if there is none.
    """
    tags = list(_TAG.finditer(reply))
    own = _own_message(reply, tags)
    if len(own) < len(reply):
        tags = [tag for tag in tags if tag.end() <= len(own)]
    partner, strays = _pair(tags)
    thoughts: list[str] = []
    spoken: list[str] = []
    at = index = 0
    if strays:
        index = strays[-1]
        thoughts.append(own[: tags[index].start()])
        at = tags[index].end()
    endless = False
    while index < len(tags) and not endless:
        if tags[index].lastgroup == "think":
            spoken.append(own[at : tags[index].start()])
            at = tags[index].end()
            # Of doubled openings, the one that has a partner ends the thought.
            later = range(index, len(tags))
            closing = next((partner[i] for i in later if i in partner), None)
            if closing is None:
                endless = True
            else:
                thoughts.append(own[at : tags[closing].start()])
                at = tags[closing].end()
                index = closing
        index += 1
    rest = own[at:]
    text = " ".join([*spoken, rest])
    return thoughts, text, len(text) - len(rest) if endless else len(text)


def _answers(text: str) -> tuple[list[tuple[int, str]], tuple[int, str] | None]:
    """Return start and content of all answers, and of a last one that is not closed."""
    answers: list[tuple[int, str]] = []
    opening: _Tag | None = None
    for tag in _TAG.finditer(text):
        if tag.lastgroup == "answer":
            opening = tag
        elif tag.lastgroup == "answered" and opening:
            answers.append((opening.start(), text[opening.end() : tag.start()]))
            opening = None
    return answers, opening and (opening.start(), text[opening.end() :])
