"""Plays the episodes of a plan, many at once, and leaves them in a folder.

An episode asks for its next reply as soon as its own last one is in; there are no
lockstep turns.  Models batch whatever is waiting.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ragen_bench.agent import Shot
from ragen_bench.episode import Reference, play
from ragen_bench.errors import InvalidSpec, OverBudget, ProviderRefusal
from ragen_bench.ledger import Ledger, MeteredModel
from ragen_bench.plan import (
    Plan,
    Settings,
    default_folder,
    resolve,
)
from ragen_bench.prices import price_for
from ragen_bench.provenance import commit, own_source_sha256, versions
from ragen_bench.records import (
    UNSCORED,
    Episode,
    EpisodeKey,
    Price,
    RunRecord,
    Summary,
)
from ragen_bench.registry import AGENTS
from ragen_bench.replay_cache import CachedModel, ReplayCache, check_folder
from ragen_bench.run_folder import RunFolder
from ragen_bench.scoring import summarise
from ragen_bench.text_env import TextEnv

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Observer:
    """Hears of a run's progress; every method may be left as it is."""

    def begin(self, plan: Plan, folder: RunFolder) -> None:
        """Hear that a run begins, or goes on."""

    def episode(self, episode: Episode) -> None:
        """Hear that an episode is finished and on disk."""

    def stopping(self) -> None:
        """Hear that the run was asked to stop."""

    def spending(self, ledger: Ledger) -> None:
        """Hear, before the beginning, where it stands what the replies cost."""

    def over_budget(self, why: str) -> None:
        """Hear that no further reply is asked for, as the money is spent."""

    def end(self, summary: Summary) -> None:
        """Hear that the run is over, complete or not."""


def run(
    board: str | None = None,
    *,
    out: str | Path | None = None,
    concurrency: int = 32,
    retry_errors: bool = False,
    episode_timeout: float | None = None,
    observer: Observer | None = None,
    command: str | None = None,
    prices: str | Path | None = None,
    budget: float | None = None,
    cache: str | Path | None = None,
    **settings: Any,
) -> Summary:
    """Play a board, or any cells, and return the summary.

    The same call again goes on where the last one stopped.  It may be called where
    an event loop runs already, as in a notebook.

    Args:
        board: A board's name, or the path of a TOML file.
        out: The run's folder; ``runs/BOARD-AGENT-MODEL`` by default.
        concurrency: Episodes in flight.
        retry_errors: Play episodes again that nobody played.
        episode_timeout: Wall-clock seconds that an episode may take.
        observer: Hears of progress.
        command: Kept in ``run.json``.
        prices: A price table, as `ragen_bench.prices` says; costs are then known.
        budget: What all replies of the folder may cost, in the table's currency;
            then no further reply is asked for, and what is in flight stays owed.
        cache: The folder of a replay cache, see `ragen_bench.replay_cache`.
        **settings: The fields of `Settings`, such as ``agent``, ``model``, ``envs``.

    Raises:
        RagenError: A setting is refused, before any model is asked.
        RunIncomplete: The disk is full, or the provider takes no further request;
            what was played is safe and summarised in the folder.
    """
    try:
        asked = Settings(board=board, **settings)
    except TypeError as error:
        raise InvalidSpec(f"{error}; see ragen_bench.plan.Settings") from error
    plan = resolve(asked)
    return execute(
        plan,
        Path(out) if out else default_folder(plan.config),
        concurrency=concurrency,
        retry_errors=retry_errors,
        episode_timeout=episode_timeout,
        observer=observer,
        command=command,
        price=price_for(prices, budget, plan.config.model),
        budget=budget,
        cache=cache,
    )


def execute(
    plan: Plan,
    out: Path,
    *,
    concurrency: int = 32,
    retry_errors: bool = False,
    episode_timeout: float | None = None,
    observer: Observer | None = None,
    command: str | None = None,
    price: Price | None = None,
    budget: float | None = None,
    cache: str | Path | None = None,
) -> Summary:
    """Play a plan into a folder and return the summary; see `run`."""
    check(plan, concurrency, episode_timeout, cache)
    if plan.config.agent_class == "human":
        concurrency = 1
    observer = observer or Observer()
    record = RunRecord(
        config=plan.config,
        versions=versions(),
        commit=commit(),
        model_facts=plan.model_facts(),
        prompt_sha256=plan.prompt_hashes(),
        command=command,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        price=price,
        agent_sha256=own_source_sha256(AGENTS.get(plan.config.agent)),
        serving=plan.serving,
    )
    with contextlib.ExitStack() as held:
        if cache is not None:
            plan = held.enter_context(_replaying(plan, cache))
        folder = held.enter_context(RunFolder(out, record, retry_errors=retry_errors))
        if folder.record.price is not None:
            ledger = Ledger(folder, folder.record.price, budget)
            plan = held.enter_context(_metered(plan, ledger))
            observer.spending(ledger)
        observer.begin(plan, folder)
        playing = _Run(plan, folder, observer, concurrency, episode_timeout)
        try:
            _in_own_loop(playing)
        except ProviderRefusal as error:
            summary = _summary_of(plan, folder)
            observer.end(summary)
            raise ProviderRefusal(f"{error}; {_safe(summary)}") from error
        summary = _summary_of(plan, folder)
    observer.end(summary)
    return summary


def check(
    plan: Plan,
    concurrency: int,
    episode_timeout: float | None,
    cache: str | Path | None,
) -> None:
    """Refuse ways to play that no run can be played in; see `run`.

    Raises:
        InvalidSpec: A value is out of its range, or no folder, or there is no model
            whose replies a cache could keep.
    """
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidSpec(f"concurrency is {concurrency!r}, but must be at least 1")
    if episode_timeout is not None and not episode_timeout > 0:
        raise InvalidSpec(f"episode_timeout is {episode_timeout!r} s, but must be > 0")
    if cache is not None:
        if plan.model is None:
            raise InvalidSpec("the agent uses no model; leave --cache out")
        check_folder(cache)


@contextlib.contextmanager
def _replaying(plan: Plan, cache: str | Path) -> Iterator[Plan]:
    """Put a replay cache before a plan's model."""
    assert plan.model is not None, "check refuses it"
    config = plan.config
    with ReplayCache(cache) as replies:
        model = CachedModel(plan.model, replies, config.model or "", config.model_args)
        yield dataclasses.replace(plan, model=model)


@contextlib.contextmanager
def _metered(plan: Plan, ledger: Ledger) -> Iterator[Plan]:
    """Enter what a plan's model says in a ledger."""
    with contextlib.closing(ledger):
        if plan.model is None:  # the price is that of an older run's model
            yield plan
        else:
            yield dataclasses.replace(plan, model=MeteredModel(plan.model, ledger))


def _safe(summary: Summary) -> str:
    """Return what a run that had to stop leaves behind."""
    lost = sum(summary.outcomes.get(outcome, 0) for outcome in UNSCORED)
    finished = summary.planned - summary.owed - lost
    told = f"{finished} of {summary.planned} episodes are finished and safe"
    if lost:
        told += f"; {lost} that nobody played are played again with --retry-errors"
    return told


def _summary_of(plan: Plan, folder: RunFolder) -> Summary:
    """Summarise what was played so far, into the folder too."""
    summary = summarise(plan.config, folder.episodes(), folder.record.price)
    folder.write_summary(summary)
    return summary


def _in_own_loop(playing: "_Run") -> None:
    """Run to the end, in a thread of its own if this one has a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(playing.main())
        return
    failures: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            asyncio.run(playing.main())
        except BaseException as error:  # handed to the caller's thread below
            failures.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=work, name="ragen-bench run")
    while not over.is_set():
        try:
            if thread.ident is None:
                thread.start()
            # A signal just before an endless wait would not be heard.
            over.wait(0.5)
        except KeyboardInterrupt:  # Ctrl-C in a notebook stops the run, as elsewhere
            playing.stop()
    if failures:
        raise failures[0]


class _Run:
    """The episodes of a run in flight."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        observer: Observer,
        concurrency: int,
        timeout: float | None,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.observer = observer
        self.timeout = timeout
        owed = [key for key in plan.config.keys() if key not in folder.finished]
        # All cells grow together, so that a run that is stopped has seen each of them
        # and the time that is left can be told early.
        owed.sort(key=lambda key: (key.rep, key.seed))
        self.owed: Iterator[EpisodeKey] = iter(owed)
        self.players = min(concurrency, len(owed))
        self.shots: dict[str, tuple[Shot, ...]] = {}
        self.known: dict[tuple[str, int], Reference] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._everybody: asyncio.Future[Any] | None = None
        self._asked_to_stop = False
        self._over_budget = False

    async def main(self) -> None:
        """Play until nothing is owed or somebody says stop."""
        self._loop = asyncio.get_running_loop()
        players = [asyncio.create_task(self._work()) for _ in range(self.players)]
        self._everybody = asyncio.gather(*players)
        if self._asked_to_stop:
            self._stop()
        with self._stop_on_signal():
            try:
                await self._everybody
            except asyncio.CancelledError:
                log.info("stopped; %d episodes finished", len(self.folder.finished))
            finally:
                for player in players:
                    player.cancel()
                await asyncio.gather(*players, return_exceptions=True)
                if self.plan.model is not None:
                    await self.plan.model.aclose()

    def stop(self) -> None:
        """Stop soon, from any thread; what is in flight stays owed."""
        self._asked_to_stop = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self.observer.stopping()
        if self._everybody is not None:
            self._everybody.cancel()

    async def _work(self) -> None:
        """Play one owed episode after another."""
        envs: dict[str, TextEnv] = {}
        config = self.plan.config
        for key in self.owed:
            if self._over_budget:
                return
            if key.cell not in envs:
                envs[key.cell] = self.plan.env(key.env_id, key.level)
            if key.cell not in self.shots:
                self.shots[key.cell] = self.plan.shots(key.env_id, key.level)
            try:
                episode, reference = await play(
                    envs[key.cell],
                    self.plan.agent(),
                    key,
                    known=self.known.get((key.cell, key.seed)),
                    shots=self.shots[key.cell],
                    salt=config.salt,
                    timeout=self.timeout,
                )
            except OverBudget as error:
                # Requests under way are still answered: they are paid for anyhow,
                # and some of them end their episodes.
                self._spent(str(error))
                return
            if config.repeats > 1:
                self.known[key.cell, key.seed] = reference
            self.folder.append(episode)
            self.observer.episode(episode)
            # A player that never waits must still let others, and signals, have a turn.
            await asyncio.sleep(0)

    def _spent(self, why: str) -> None:
        """Begin no further episode, and say so once."""
        if not self._over_budget:
            self._over_budget = True
            self.observer.over_budget(why)

    @contextlib.contextmanager
    def _stop_on_signal(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM stop cleanly, where this thread may handle them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            for number in _SIGNALS:
                loop.add_signal_handler(number, self._stop)
        except NotImplementedError:  # Windows: Ctrl-C then cancels the main task
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                # None: a handler that Python did not set and cannot restore.
                if handler is not None:
                    signal.signal(number, handler)
