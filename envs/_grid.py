"""Boards of glyphs as text, for the environments that are played on a grid."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ragen_bench.errors import InvalidSpec, RecordError, UnknownName

NEWLINE = 10
"""The byte between two rows of a board; kinds of cell are 0 to 9."""

MOVES = ("Up", "Down", "Left", "Right")
STYLES = ("grid", "coord", "grid_coord")

_PAIR = re.compile(r"\((\d+), (\d+)\)")


class Kind(NamedTuple):
    """One kind of cell."""

    name: str
    glyph: str
    meaning: str


class Board:
    """How a board of a fixed size is drawn and read.

    A board is a bytearray of ``rows * (cols + 1) - 1`` bytes: the kind of each
    cell, and `NEWLINE` after each row but the last.  Cell (r, c), counted from 0,
    stands at ``r * (cols + 1) + c``.

    Args:
        rows: Height.
        cols: Width.
        kinds: The kinds of cell; the first is what most cells are.
        style: ``"grid"`` draws glyphs, ``"coord"`` lists the cells of each kind but
            the first, ``"grid_coord"`` does both.
        symbols: Other glyphs by name of kind.
    """

    def __init__(
        self,
        rows: int,
        cols: int,
        kinds: Sequence[Kind],
        style: str = "grid",
        symbols: Mapping[str, str] | None = None,
    ) -> None:
        self.rows = rows
        self.cols = cols
        self.stride = cols + 1
        self.size = rows * self.stride - 1
        self.style = style
        self.kinds = tuple(
            kind._replace(glyph=(symbols or {}).get(kind.name, kind.glyph))
            for kind in kinds
        )
        names = [kind.name for kind in kinds]
        for name in symbols or {}:
            if name not in names:
                raise UnknownName.of("symbol", name, names)
        glyphs = [kind.glyph for kind in self.kinds]
        for glyph in glyphs:
            if len(glyph) != 1 or not glyph.isascii() or not glyph.isprintable():
                raise InvalidSpec(f"symbol {glyph!r} must be one printable ASCII glyph")
            if glyph.isspace() or glyphs.count(glyph) > 1:
                raise InvalidSpec(f"symbol {glyph!r} must not be blank or used twice")
        table = bytearray(range(256))
        for code, glyph in enumerate(glyphs):
            table[code] = ord(glyph)
        self._table = bytes(table)
        self._codes = {glyph: code for code, glyph in enumerate(glyphs)}

    def empty(self, code: int = 0) -> bytearray:
        """Return a board that holds one kind of cell everywhere."""
        return bytearray((bytes([code]) * self.cols + b"\n") * self.rows)[:-1]

    def legend(self) -> dict[str, str]:
        """Return what the style draws to its meaning, for every kind.

        That is the glyph, the name in a list, or both.
        """
        if self.style == "coord":
            return {f"{kind.name}:": kind.meaning for kind in self.kinds}
        if self.style == "grid_coord":
            return {f"{kind.glyph} {kind.name}:": kind.meaning for kind in self.kinds}
        return {kind.glyph: kind.meaning for kind in self.kinds}

    def draw(self, board: bytearray) -> str:
        """Return the text of a board in this style."""
        if self.style == "grid":
            return board.translate(self._table).decode("ascii")
        listed = "\n".join(self._listed(board))
        if self.style == "coord":
            return listed
        return f"{listed}\n{board.translate(self._table).decode('ascii')}"

    def read(self, text: str) -> bytearray:
        """Return the board of a text that `draw` returned.

        Raises:
            RecordError: The text is no board of this size and style.
        """
        lines = text.strip("\n").split("\n")
        if self.style != "grid":
            board = self._read_list(lines[: len(self.kinds)])
            lines = lines[len(self.kinds) :]
            if self.style == "coord":
                return board
        if len(lines) != self.rows or any(len(line) != self.cols for line in lines):
            raise RecordError(
                f"board {text!r} does not have {self.rows} rows of {self.cols} cells"
            )
        board = self.empty()
        for row, line in enumerate(lines):
            for col, glyph in enumerate(line):
                if glyph not in self._codes:
                    raise RecordError(f"board has {glyph!r}, which no legend explains")
                board[row * self.stride + col] = self._codes[glyph]
        return board

    def _listed(self, board: bytearray) -> Iterator[str]:
        yield (
            f"Board: {self.rows} rows, {self.cols} columns; cells are (row, column) "
            f"from (0, 0) at the top left; unlisted cells: {self.kinds[0].name}."
        )
        for code, kind in enumerate(self.kinds[1:], 1):
            places = [
                f"({i // self.stride}, {i % self.stride})"
                for i, cell in enumerate(board)
                if cell == code
            ]
            yield f"{kind.name}: {', '.join(places) or 'none'}"

    def _read_list(self, lines: Sequence[str]) -> bytearray:
        board = self.empty()
        for code, (kind, line) in enumerate(
            zip(self.kinds[1:], lines[1:], strict=True), 1
        ):
            if not line.startswith(f"{kind.name}: "):
                raise RecordError(f"line {line!r} should list the cells of {kind.name}")
            for row, col in _PAIR.findall(line):
                board[int(row) * self.stride + int(col)] = code
        return board


def symmetries(rows: int, cols: int, stride: int) -> list[list[int]]:
    """Return index maps of the symmetries of a grid: 8 if square, else 4.

    Each map lists, for every cell of the *image* in reading order without line
    breaks, the index of the cell that it comes from.
    """
    maps = []
    for flip_rows in (False, True):
        for flip_cols in (False, True):
            for transpose in (False, True) if rows == cols else (False,):
                order = []
                for r in range(rows):
                    for c in range(cols):
                        a, b = (c, r) if transpose else (r, c)
                        a = rows - 1 - a if flip_rows else a
                        b = cols - 1 - b if flip_cols else b
                        order.append(a * stride + b)
                maps.append(order)
    return maps


def smallest(board: bytearray, maps: Sequence[Sequence[int]]) -> bytes:
    """Return the least image of a board under the maps: its canonical form."""
    return min(bytes([board[i] for i in order]) for order in maps)
