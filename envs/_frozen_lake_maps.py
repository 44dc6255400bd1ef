"""Frozen lakes by chance, and what makes two of them the same."""

from ragen_bench.envs import _frozen_lake_solver as solver
from ragen_bench.envs._frozen_lake_solver import Lake
from ragen_bench.seeding import Stream

_DIGITS = 10
_FROM_BITS = str.maketrans("01", "_O")


def draw_lake(
    rows: int, cols: int, hole_share: float, stream: Stream
) -> tuple[Lake, int, int]:
    """Return a lake, the cell of its start, and the moves to the goal.

    Goal and start are any two cells, and every other cell is a hole with chance
    ``hole_share``; the number of moves is -1 if holes cut off the way.
    """
    cells = rows * cols
    goal = stream.below(cells)
    start = stream.below(cells - 1)
    start += start >= goal
    bit = 1 << cells - 1 - start
    holes = _draw_bits(cells, hole_share, stream) & ~(bit | 1 << cells - 1 - goal)
    lake = Lake(rows, cols, holes, goal)
    return lake, start, solver.distance(solver.distance_layers(lake), bit)


def _draw_bits(count: int, chance: float, stream: Stream) -> int:
    """Return bits of which each is 1 with a chance, exact to 2**-11.

    Each random word serves one binary digit of the chance, for 64 bits at once.
    """
    digits = round(chance * 2**_DIGITS)
    bits = 0
    for place in range(_DIGITS):
        one = digits >> place & 1
        if not bits and not one:
            continue
        word = stream.word()
        for _ in range(64, count, 64):
            word = word << 64 | stream.word()
        bits = bits | word if one else bits & word
    return bits & (1 << count) - 1


def written(lake: Lake, start: int) -> str:
    """Return the text of an instance."""
    cols = lake.cols
    cells = list(f"{lake.holes:0{lake.rows * cols}b}".translate(_FROM_BITS))
    cells[start] = "P"
    cells[lake.goal] = "G"
    line = "".join(cells)
    return "\n".join([line[i : i + cols] for i in range(0, len(line), cols)])


def smallest_image(instance: str) -> bytes:
    """Return the least of an instance's 8 images, 4 if it is not square."""
    rows = instance.split("\n")
    images = ["".join(rows), "".join(rows[::-1])]
    if len(rows) == len(rows[0]):
        columns = [images[0][i :: len(rows)] for i in range(len(rows))]
        images += ["".join(columns), "".join(columns[::-1])]
    return min(images + [image[::-1] for image in images]).encode()
