"""Cells of a Sokoban board, rooms as text, and levels from files."""

from collections.abc import Iterator
from pathlib import Path
from typing import NotRequired, TypedDict

from ragen_bench.envs._grid import NEWLINE, Kind
from ragen_bench.errors import InvalidSpec, RecordError

WALL, FLOOR, GOAL, BOX, STORED, PLAYER, PLAYER_ON_GOAL = range(7)

KINDS = (
    Kind("wall", "#", "wall"),
    Kind("floor", "_", "floor"),
    Kind("goal", "O", "goal"),
    Kind("box", "X", "box"),
    Kind("box on goal", "*", "box on a goal"),
    Kind("player", "P", "you"),
    Kind("player on goal", "S", "you on a goal"),
)

MAX_SIDE = 32
"""The most rows and columns of a board."""

_UNKNOWN = 255


def _codes(glyphs: dict[str, int]) -> bytes:
    table = bytearray([_UNKNOWN] * 256)
    table[NEWLINE] = NEWLINE
    for glyph, code in glyphs.items():
        table[ord(glyph)] = code
    return bytes(table)


_OF_GLYPH = _codes({kind.glyph: code for code, kind in enumerate(KINDS)})
_OF_CODE = bytes([*(ord(kind.glyph) for kind in KINDS), *range(len(KINDS), 256)])
_OF_XSB = _codes(
    {"#": WALL, " ": FLOOR, "-": FLOOR, "_": FLOOR, ".": GOAL, "$": BOX}
    | {"*": STORED, "@": PLAYER, "+": PLAYER_ON_GOAL}
)


class Instance(TypedDict):
    """A start state, JSON-able."""

    room: str
    """Rows of glyphs of `KINDS`, joined by line breaks."""
    moves: NotRequired[int]
    """The fewest moves to success, where it is known."""


def room_text(board: bytearray) -> str:
    """Return a board as the text of an `Instance`."""
    return board.translate(_OF_CODE).decode("ascii")


def read_room(text: str) -> bytearray:
    """Return the board (see `Board`) of the text of an `Instance`.

    Raises:
        InvalidSpec: The text is no room that can be played.
    """
    board = bytearray(text.encode("ascii", "replace")).translate(_OF_GLYPH)
    cols = board.find(NEWLINE)
    rows = board.count(NEWLINE) + 1
    if not 3 <= cols <= MAX_SIDE or not 3 <= rows <= MAX_SIDE:
        raise InvalidSpec(f"room {text!r} must have 3 to {MAX_SIDE} rows and columns")
    even = board[cols :: cols + 1].count(NEWLINE) == rows - 1
    if not even or len(board) != rows * (cols + 1) - 1:
        raise InvalidSpec(f"room {text!r} must have rows of one length")
    if _UNKNOWN in board:
        glyphs = "".join(kind.glyph for kind in KINDS)
        raise InvalidSpec(f"room {text!r} may hold nothing but {glyphs!r}")
    fault = fault_of(board, cols)
    if fault:
        raise InvalidSpec(f"room {text!r} {fault}")
    return board


def fault_of(board: bytearray, cols: int) -> str:
    """Return why a board of known cells cannot be played, "" if it can."""
    players = board.count(PLAYER) + board.count(PLAYER_ON_GOAL)
    if players != 1:
        return f"has {players} players, but needs exactly one"
    boxes = board.count(BOX) + board.count(STORED)
    goals = boxes - board.count(BOX) + board.count(GOAL) + board.count(PLAYER_ON_GOAL)
    if boxes != goals or not boxes:
        return f"has {boxes} boxes and {goals} goals, but needs as many, at least one"
    stride = cols + 1
    for side in (
        board[:cols],
        board[-cols:],
        board[::stride],
        board[cols - 1 :: stride],
    ):
        if side.count(WALL) != len(side):
            return "must be closed by walls on all four sides"
    return ""


def settings_for(instance: Instance) -> dict[str, int]:
    """Return the settings of an environment that the instance fits into.

    Raises:
        InvalidSpec: The instance is no room that can be played.
    """
    board = read_room(instance["room"])
    return {
        "rows": board.count(NEWLINE) + 1,
        "cols": board.find(NEWLINE),
        "boxes": board.count(BOX) + board.count(STORED),
    }


def load_levels(path: str | Path) -> tuple[Instance, ...]:
    """Return the levels of a file in the XSB or the Boxoban format, in order.

    Both draw ``#`` wall, ``$`` box, ``.`` goal, ``*`` box on goal, ``@`` player,
    ``+`` player on goal, and floor as a space, ``-`` or ``_``.  Levels are set apart
    by blank lines, comments, which begin with ``;``, or lines such as ``Title: Cave``.
    That a level can be solved is not checked.

    Raises:
        RecordError: A level is not one; the message names its number from 1.
    """
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    levels = []
    for number, lines in enumerate(_split(text), 1):
        try:
            levels.append(_level(lines))
        except InvalidSpec as error:
            raise RecordError(f"{path}: level {number}: {error}") from error
    if not levels:
        raise RecordError(f"{path}: no level, that is, no line that begins with '#'")
    return tuple(levels)


def _split(text: str) -> Iterator[list[str]]:
    """Yield the lines of each level; text that draws nothing stands between them."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.lstrip(" -_").startswith("#") or (lines and _draws(line)):
            lines.append(line.rstrip())
        elif lines:
            yield lines
            lines = []


def _draws(line: str) -> bool:
    return bool(line.strip()) and ";" not in line and ":" not in line


def _level(lines: list[str]) -> Instance:
    cols = max(map(len, lines))
    if not 3 <= cols <= MAX_SIDE or not 3 <= len(lines) <= MAX_SIDE:
        raise InvalidSpec(
            f"is {len(lines)}x{cols}, but must have 3 to {MAX_SIDE} rows and columns"
        )
    drawn = "\n".join(line.ljust(cols) for line in lines)
    board = bytearray(drawn.encode("ascii", "replace")).translate(_OF_XSB)
    unknown = board.find(_UNKNOWN)
    if unknown >= 0:
        raise InvalidSpec(f"has {drawn[unknown]!r}, which is no cell of this format")
    _fill_outside(board, cols + 1)
    fault = fault_of(board, cols)
    if not fault and not board.count(BOX):
        fault = "is solved at the start"
    if fault:
        raise InvalidSpec(fault)
    return {"room": room_text(board)}


def _fill_outside(board: bytearray, stride: int) -> None:
    """Make walls of the floor that the player cannot get to, whatever moves."""
    inside = set()
    todo = [i for i, cell in enumerate(board) if cell in (PLAYER, PLAYER_ON_GOAL)]
    while todo:
        i = todo.pop()
        if i in inside or not 0 <= i < len(board) or board[i] in (WALL, NEWLINE):
            continue
        inside.add(i)
        todo += (i - stride, i + stride, i - 1, i + 1)
    for i, cell in enumerate(board):
        if cell == FLOOR and i not in inside:
            board[i] = WALL
