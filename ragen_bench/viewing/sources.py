"""What only trainings leave: their folder, and the rollouts that they kept."""

from collections.abc import Iterator
from pathlib import Path

from ragen_bench.errors import RecordError
from ragen_bench.records import Episode, parse_record

TRAINING = "train.json"
METRICS = "metrics.csv"
_MAX_LINE = 16 * 2**20


def is_training(path: Path) -> bool:
    """Return whether a path is the folder of a training."""
    return (path / TRAINING).is_file() or (path / METRICS).is_file()


def read_rollouts(path: Path) -> Iterator[Episode]:
    """Yield the episodes of one file that a training kept.

    Raises:
        RecordError: The file or a line of it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(_MAX_LINE):
                number += 1
                yield parse_record(Episode, line, f"{path} line {number}")
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
