"""Two files of a training: alarms as they arose, and gradients by spread.

``alarms.jsonl`` has an alarm a line, ``gradients.csv`` the rows of `probes.GRADIENTS`;
neither is there before there is something to write.  A training that goes on drops
what they hold of iterations it does anew, so no row is there twice.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ragen_bench.errors import RecordError, RunIncomplete
from ragen_bench.run_folder import replacing
from ragen_bench.starpo import metrics
from ragen_bench.starpo.echo_trap import Alarm
from ragen_bench.starpo.probes import GRADIENTS
from ragen_bench.starpo.training_log import GRADIENT_ROWS

ALARMS = "alarms.jsonl"


class Diagnostics:
    """Writes both.

    Args:
        folder: Of the training.
        iteration: Iterations that are done; what the files hold of later ones goes.

    Raises:
        RecordError: A file cannot be read.
    """

    def __init__(self, folder: Path, iteration: int) -> None:
        self._alarms = folder / ALARMS
        self._gradients = folder / GRADIENT_ROWS
        self._table: metrics.Table | None = None
        if self._alarms.exists():
            _cut(self._alarms, iteration)
        if self._gradients.exists():
            self._open(metrics.count(self._gradients, iteration))

    def add(
        self, alarms: Iterable[Alarm], gradients: Sequence[Mapping[str, float | str]]
    ) -> None:
        """Append an iteration's alarms and rows.

        Raises:
            RunIncomplete: The disk is full.
        """
        lines = [f"{json.dumps(_record(alarm))}\n" for alarm in alarms]
        try:
            if lines:
                with self._alarms.open("a", encoding="utf-8", newline="") as file:
                    file.write("".join(lines))
            if gradients:
                table = self._table or self._open(0)
                for row in gradients:
                    table.add(row)
        except OSError as error:
            raise RunIncomplete(
                f"cannot write {error.filename or ALARMS}: {error.strerror}; make "
                "room and run the same command again"
            ) from error

    def _open(self, rows: int) -> metrics.Table:
        self._table = metrics.Table(self._gradients, GRADIENTS, rows)
        return self._table


def _record(alarm: Alarm) -> dict[str, int | str]:
    return {"iteration": alarm.iteration, "sign": alarm.sign, "text": alarm.text}


def _cut(path: Path, iteration: int) -> None:
    """Keep the whole lines of the iterations up to some."""
    try:
        text = path.read_text("utf-8")
        whole = text[: text.rfind("\n") + 1].splitlines(keepends=True)
        kept = [line for line in whole if json.loads(line)["iteration"] <= iteration]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path} has a line that is no alarm; move the file away and run the same "
            "command again"
        ) from error
    with replacing(path) as file:
        file.write("".join(kept).encode())
