"""`Listed`: which episodes of a list came, and what came of each."""

import math
from array import array
from typing import Any

from ragen_bench.cell_scores import scored_values
from ragen_bench.records import Episode, EpisodeKey, RunConfig
from ragen_bench.verifying.faults import Faults, shown


class Listed:
    """The episodes of a list, and what came of each.

    Args:
        config: Its cells, seeds, split and repeats are the list.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._starts: dict[tuple[str, int], tuple[int, dict[int, int]]] = {}
        start = 0
        for cell in config.cells:
            places = {seed: place for place, seed in enumerate(cell.seeds)}
            self._starts[cell.env_id, cell.level] = start, places
            start += len(cell.seeds) * config.repeats
        self.total = start
        self._came = bytearray(start)
        self._returns = array("d", [math.nan]) * start
        self._successes = bytearray(start)

    def place_of(self, key: EpisodeKey, where: str, faults: Faults) -> int | None:
        """Return an episode's place in the list; a fault if it has none or is taken."""
        repeats = self._config.repeats
        known = self._starts.get((key.env_id, key.level))
        if known is None or key.split != self._config.split:
            faults.add("extra_episode", where, f"{shown(str(key))} is not in the list")
            return None
        start, places = known
        if key.seed not in places:
            message = f"{shown(str(key))}: its seed is not in the list"
            faults.add("seed_not_in_board", where, message)
            return None
        if not 0 <= key.rep < repeats:
            message = f"{shown(str(key))}: there are {repeats} repeats"
            faults.add("extra_episode", where, message)
            return None
        place = start + places[key.seed] * repeats + key.rep
        if self._came[place]:
            faults.add("duplicate_episode", where, f"{key} comes twice")
            return None
        self._came[place] = 1
        return place

    def note(self, place: int, episode: Episode) -> None:
        """Keep what came of an episode."""
        if episode.scored:
            success, returned = scored_values(episode)
            self._returns[place] = returned
            self._successes[place] = 0 if success is None else 1 + success

    def report_missing(self, faults: Faults) -> None:
        """Add a fault for each episode that never came."""
        if len(self._came) == sum(self._came):
            return
        keys = (key for key in self._config.keys())
        for came, key in zip(self._came, keys, strict=True):
            if not came:
                faults.add("missing_episode", key, "it is in the list, but not played")

    def returns(self) -> dict[str, tuple[float | None, ...]]:
        """Return the scored returns by cell."""
        known = [None if math.isnan(value) else value for value in self._returns]
        return self._by_cell(known)

    def successes(self) -> dict[str, tuple[bool | None, ...]]:
        """Return the successes by cell."""
        meaning = (None, False, True)
        return self._by_cell([meaning[value] for value in self._successes])

    def _by_cell(self, values: list[Any]) -> dict[str, tuple[Any, ...]]:
        found = {}
        at = 0
        for cell in self._config.cells:
            n = len(cell.seeds) * self._config.repeats
            found[cell.cell] = tuple(values[at : at + n])
            at += n
        return found
