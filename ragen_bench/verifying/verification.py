"""`verify`: a run folder, bundle or entry to its faults and its real scores."""

import dataclasses
import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ragen_bench.board import Board
from ragen_bench.entries import (
    EPISODES_MEMBER,
    META_MEMBER,
    RUN_MEMBER,
    Meta,
    sha256_of_stream,
)
from ragen_bench.records import Episode, RunRecord, Summary
from ragen_bench.run_folder import SUMMARY
from ragen_bench.scoring import summarise
from ragen_bench.verifying.archive import Bundle, Source, open_source
from ragen_bench.verifying.comparing import (
    compare_entry,
    compare_summary,
    read_entry,
)
from ragen_bench.verifying.faults import Fault, Faults, Refusal
from ragen_bench.verifying.listed import Listed
from ragen_bench.verifying.plain_files import open_plain
from ragen_bench.verifying.playing import Player
from ragen_bench.verifying.strict_json import read
from ragen_bench.verifying.terms import find_board, named_board, planned

_MOST_UNREADABLE = 20
"""Lines, behind which no more are read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """What `verify` found."""

    faults: tuple[Fault, ...]
    """Empty if and only if the replay confirms every number."""
    warnings: tuple[Fault, ...]
    summary: Summary | None
    """Recomputed from the replay; None if the run could not be played again."""
    returns: Mapping[str, tuple[float | None, ...]]
    """Cell to the scored return of each episode, by seed and rep; None: not played."""
    successes: Mapping[str, tuple[bool | None, ...]]
    """Cell to the success of each episode, in the same order."""
    run: RunRecord | None
    meta: Meta | None
    """None for a run folder, which needs none."""
    board: str | None
    """The board whose list the episodes were compared with; None: the run's own."""
    actions: int
    """How many were played again."""
    seconds: float
    """Of wall-clock time."""


def verify(
    path: str | Path,
    *,
    board: str | Path | Board | None = None,
    salt: str | None = None,
) -> Verification:
    """Play a run again from its replies and compare everything with its records.

    Args:
        path: A run folder, a bundle, or an entry (``.json``) beside its bundle.
        board: What the run must be of; by default what it says itself.  A name, the
            path of a TOML file, or the board.
        salt: Of the board's seal, for a run on sealed seeds.

    Raises:
        RagenError: The board that is asked for cannot be loaded; nothing that the
            run's files hold raises anything.
    """
    began = time.perf_counter()
    job = _Job(find_board(board) if board is not None else None, salt or None)
    try:
        job.work(Path(path))
    except Refusal as refusal:
        job.faults.take(refusal.fault)
    return job.result(time.perf_counter() - began)


class _Job:
    """One verification."""

    def __init__(self, board: Board | None, salt: str | None) -> None:
        self.faults = Faults()
        self.warnings = Faults()
        self._asked = board
        self._salt = salt
        self._board: Board | None = None
        self._run: RunRecord | None = None
        self._meta: Meta | None = None
        self._summary: Summary | None = None
        self._listed: Listed | None = None
        self._player: Player | None = None
        self._digest = hashlib.sha256()

    def work(self, path: Path) -> None:
        """Verify what a path leads to.

        Raises:
            Refusal: Nothing more can be read.
        """
        if path.suffix != ".json":
            with open_source(path, self.faults) as source:
                self._check(source)
            return
        entry = read_entry(path)
        with open_plain(path.with_name(entry.bundle), follow=False) as file:
            digest = sha256_of_stream(file)
            file.seek(0)
            if digest != entry.bundle_sha256:
                message = f"SHA-256 is {digest}, but the entry has another"
                self.faults.add("hash_mismatch", entry.bundle, message)
            self._check(Bundle(file, entry.bundle, self.faults))
        episodes = self._digest.hexdigest()
        compare_entry(entry, self.result(0.0), episodes, path.name, self.faults)

    def result(self, seconds: float) -> Verification:
        """Return what was found so far."""
        listed, player = self._listed, self._player
        return Verification(
            faults=self.faults.all(),
            warnings=self.warnings.all(),
            summary=self._summary,
            returns=listed.returns() if listed else {},
            successes=listed.successes() if listed else {},
            run=self._run,
            meta=self._meta,
            board=self._board.name if self._board else None,
            actions=player.actions if player else 0,
            seconds=seconds,
        )

    def _check(self, source: Source) -> None:
        """Play a run again.

        Raises:
            Refusal: It is so damaged that nothing can be played.
        """
        for name in source.needed:
            if name not in source.names:
                self.faults.add("missing_file", source.place, f"there is no {name}")
        if META_MEMBER in source.names:
            self._meta = read(Meta, source.read(META_MEMBER), META_MEMBER)
        if not {RUN_MEMBER, EPISODES_MEMBER} <= source.names:
            return
        run = read(RunRecord, source.read(RUN_MEMBER), RUN_MEMBER)
        self._run = run
        self._board = self._asked or named_board(run.config, self.faults)
        config = planned(run.config, self._board, self._salt, self.faults)
        listed = self._listed = Listed(config)
        player = self._player = Player(
            run, config, self._board, listed.total, self.faults, self.warnings
        )
        episodes = self._episodes(source, listed, player)
        summary = self._summary = summarise(config, episodes, run.price)
        listed.report_missing(self.faults)
        player.finish()
        if self._board is not None and not summary.rankable and not summary.owed:
            for reason in summary.unrankable_because:
                # In which ways it is not the board's was said under other codes.
                if reason not in config.breaches:
                    self.faults.add("unrankable", source.place, reason)
        if SUMMARY in source.names:
            said = read(Summary, source.read(SUMMARY), SUMMARY)
            compare_summary(said, summary, SUMMARY, self.faults)

    def _episodes(
        self, source: Source, listed: Listed, player: Player
    ) -> Iterator[Episode]:
        """Yield each episode of the list as it really went."""
        unreadable = 0
        for number, line in enumerate(source.lines(self._digest), 1):
            where = f"{EPISODES_MEMBER}:{number}"
            try:
                episode = read(Episode, line, where)
            except Refusal as refusal:
                fault = refusal.fault
                if fault.code == "not_json" and not line.endswith(b"\n"):
                    fault = dataclasses.replace(fault, code="truncated")
                self.faults.take(fault)
                unreadable += 1
                if unreadable >= _MOST_UNREADABLE:
                    message = f"{unreadable} lines cannot be read; the rest was left"
                    raise Refusal("too_many", where, message) from None
                continue
            place = listed.place_of(episode.key, where, self.faults)
            if place is not None:
                played = player.play(episode)
                listed.note(place, played)
                yield played
