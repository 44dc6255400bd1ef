"""How messages put things: numbers with their nouns."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return such as ``"1 fault"``, ``"0 faults"`` or ``"2 entries"``.

    Args:
        number: At least 0.
        noun: In the singular.
        plural: The noun with an s, where nothing is given.
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
