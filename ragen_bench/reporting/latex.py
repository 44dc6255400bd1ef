"""Tables as LaTeX, in the style of the package ``booktabs``, with all text escaped."""

from collections.abc import Sequence

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "-": "{-}",
    "\n": " ",
}
"""A hyphen stands in braces, so that two of them stay two."""
_LEFT = 2


def escaped(text: str) -> str:
    """Return text that LaTeX sets as it stands."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def number(text: str) -> str:
    r"""Return a cell of numbers with true minus signs, ``"-"`` as a dash."""
    if text == "-":
        return "--"
    return escaped(text).replace("{-}", r"$-$")


def to_latex(
    table: Sequence[Sequence[str]], columns: Sequence[str], *, left: int = _LEFT
) -> str:
    """Return a tabular that needs the package booktabs.

    Args:
        table: Rows of text.
        columns: The header.
        left: How many columns hold names; all others hold numbers.
    """
    spec = "l" * left + "r" * (len(columns) - left)
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{spec}}}",
        "\\toprule",
        _line([escaped(name) for name in columns]),
        "\\midrule",
    ]
    for row in table:
        cells = [
            escaped(cell) if i < left else number(cell) for i, cell in enumerate(row)
        ]
        lines.append(_line(cells))
    lines += ["\\bottomrule", "\\end{tabular}", ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
