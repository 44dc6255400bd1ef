"""How much texts repeat themselves, and how long they are."""

import re
from collections.abc import Iterable

_PIECE = re.compile(r"\w+|[^\w\s]")


def distinct_share(texts: Iterable[str], n: int = 4) -> float | None:
    """Return the share of distinct n-grams among all n-grams of some texts.

    Li et al. 2016, arXiv 1510.03055 (distinct-n), over all texts at once: a policy that
    writes the same reply everywhere has a small share.  It falls as texts grow in
    number, so compare batches of one size.

    Args:
        texts: Split into words and marks, in upper and lower case as they are; a text
            of fewer pieces than `n` is one gram.
        n: At least 1.

    Returns:
        In (0, 1], or None without any word.
    """
    seen: set[tuple[str, ...]] = set()
    total = 0
    for text in texts:
        pieces = tuple(_PIECE.findall(text))
        if not pieces:
            continue
        for start in range(max(1, len(pieces) - n + 1)):
            seen.add(pieces[start : start + n])
            total += 1
    return len(seen) / total if total else None


def repeated_share(texts: Iterable[str], n: int = 4) -> float | None:
    """Return the mean share of n-grams of a text that stood in it before.

    A text of R grams, D of them different, has ``1 - D / R`` (Welleck et al. 2020,
    arXiv 1908.04319, rep-n).  Unlike `distinct_share` it does not depend on how many
    texts there are: it is what loops within a reply look like.

    Args:
        texts: Split as by `distinct_share`.
        n: At least 1.

    Returns:
        In [0, 1); 0 for a text too short to repeat itself; None without any text.
    """
    shares = [1 - (distinct_share([text], n) or 1.0) for text in texts]
    return sum(shares) / len(shares) if shares else None


def mean_words(texts: Iterable[str]) -> float | None:
    """Return the mean number of words of texts, None without any text."""
    counts = [len(text.split()) for text in texts]
    return sum(counts) / len(counts) if counts else None
