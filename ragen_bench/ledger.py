"""What a run really spent, reply by reply, and the budget that ends it.

``ledger.jsonl`` in the run's folder gets one line for every reply that was paid for,
as soon as it is in: also for those of episodes that were never finished, or that
``--retry-errors`` plays again, and for answers that were billed and could not be used,
so that the episode ended in an error.  A reply from a replay cache was paid for once
and gets none.  Only runs with a price have a ledger.

What a cancelled request costs is in no ledger, for its reply never came: one that was
under way when its episode timed out, or when the run was stopped or killed.

A budget bounds what is under way, too: a request is sent once what is spent, and the
most that the requests under way may cost, leave something of the budget; until then it
waits.  So the run goes beyond its budget by no more than the last request costs.
"""

import asyncio
import collections
import contextlib
import heapq
import itertools
import json
import os
from collections.abc import AsyncIterator

from ragen_bench.errors import OverBudget, RagenError, RunIncomplete
from ragen_bench.model import (
    Completion,
    Conversation,
    Model,
    ModelWrapper,
    Sampling,
    Usage,
)
from ragen_bench.prices import (
    Tokens,
    billed_requests,
    bound_reply,
    cost,
    money,
    tokens_of,
    tokens_of_turns,
)
from ragen_bench.records import Price
from ragen_bench.run_folder import RunFolder, read_episodes

LEDGER = "ledger.jsonl"

_FIELDS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


class Ledger:
    """The ledger of an open run folder.

    Args:
        folder: The folder, which no other process has open.
        price: What replies cost; the whole ledger is counted with it.
        budget: What the run may spend, all in all.

    Raises:
        RunIncomplete: The file cannot be read or written.
    """

    def __init__(
        self, folder: RunFolder, price: Price, budget: float | None = None
    ) -> None:
        self.price = price
        self.budget = budget
        self._path = folder.path / LEDGER
        self._episodes: set[str] = set()
        try:
            self._tokens = self._read()
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._file = os.open(self._path, flags, 0o644)
        except OSError as error:
            raise self._failure(error) from error
        # Episodes that were played without a price are in no ledger.
        known = self._episodes
        if any(str(key) not in known for key in folder.finished):
            for episode in read_episodes(folder.path):
                if str(episode.key) not in known:
                    self._tokens += tokens_of_turns(episode.turns, replayed=False)

    @property
    def spent(self) -> float | None:
        """What all replies so far cost, None if one of them is unknown."""
        return cost(self._tokens, self.price)

    @property
    def refusal(self) -> str | None:
        """Why no further reply may be asked for, None as long as one may."""
        if self.budget is None:
            return None
        spent = self.spent
        limit = money(self.budget, self.price.currency)
        if spent is None:
            return (
                f"a budget of {limit} cannot be kept, for the model does not say how "
                "many tokens a reply takes; leave --budget out"
            )
        if spent < self.budget:
            return None
        return (
            f"the budget of {limit} is spent ({money(spent, self.price.currency)}); "
            "the same command with a higher --budget goes on"
        )

    def __str__(self) -> str:
        """Such as ``"0.0123 of 1.00 USD"``."""
        currency = self.price.currency
        spent = money(self.spent, currency)
        if self.budget is None:
            return spent
        return f"{spent.removesuffix(currency)}of {money(self.budget, currency)}"

    def add(self, episode: str, usage: Usage, requests: int = 1) -> None:
        """Enter a reply that was paid for.

        Args:
            episode: Its episode.
            usage: What it took.
            requests: How many answers were billed for it.

        Raises:
            RunIncomplete: The file cannot be written.
        """
        self._tokens += tokens_of(usage, requests)
        line = {"episode": episode, **{name: getattr(usage, name) for name in _FIELDS}}
        if requests != 1:
            line["requests"] = requests
        left = memoryview(f"{json.dumps(line)}\n".encode("ascii"))
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self) -> Tokens:
        """Return the tokens of the lines so far, and cut a torn last one off."""
        total = Tokens()
        if not self._path.exists():
            return total
        with open(self._path, "rb+") as file:
            whole = 0
            for raw in file:
                try:
                    if not raw.endswith(b"\n"):
                        raise ValueError("torn")
                    line = json.loads(raw)
                    usage = Usage(**{name: line[name] for name in _FIELDS})
                    tokens = tokens_of(usage, line.get("requests", 1))
                    added = total + tokens
                    cost(added, self.price)
                    episode = str(line["episode"])
                except (ValueError, KeyError, TypeError) as error:
                    if raw.endswith(b"\n"):
                        raise RunIncomplete(
                            f"{self._path} holds {raw!r:.80}, which is no line of a "
                            "ledger; remove the line"
                        ) from error
                    file.truncate(whole)
                    break
                whole += len(raw)
                total = added
                self._episodes.add(episode)
        return total

    def _failure(self, error: OSError) -> RunIncomplete:
        return RunIncomplete(
            f"cannot write {self._path}: {error.strerror}; make room and run the same "
            "command again"
        )


class Purse:
    """Lets a request go as long as the ledger's budget allows; others wait.

    Those of the episodes that are furthest go first, so that what is left of a budget
    ends some episodes rather than begins many.  It belongs to one event loop at a time.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._under_way: collections.Counter[float] = collections.Counter()
        """Most that a request may cost to how many such are under way."""
        self._waiting: list[tuple[int, int, asyncio.Future[None], float]] = []
        """A heap of how early it goes, number, its turn to go and its most."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return sum(not turn.done() for _, _, turn, _ in self._waiting)

    @contextlib.asynccontextmanager
    async def hold(self, most: float, replies: int = 0) -> AsyncIterator[None]:
        """Hold what a request may cost until it has ended and is entered.

        Args:
            most: About the most that it may cost.
            replies: How many its episode has had.

        Raises:
            OverBudget: The budget is spent.
        """
        await self._take(most, replies)
        try:
            yield
        finally:
            self._give_back(most)

    async def _take(self, most: float, replies: int) -> None:
        refusal = self._ledger.refusal
        if refusal is not None:
            raise OverBudget(refusal)
        if not self._waiting and self._enough():
            self._under_way[most] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-replies, next(self._numbers), turn, most))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._give_back(most)
            raise

    def _give_back(self, most: float) -> None:
        self._under_way[most] -= 1
        self._under_way += collections.Counter()  # drops what is 0
        self._let_go()

    def _let_go(self) -> None:
        """Send or refuse those that wait."""
        refusal = self._ledger.refusal
        while self._waiting and (refusal is not None or self._enough()):
            _, _, turn, most = heapq.heappop(self._waiting)
            if turn.done():  # its episode was given up
                continue
            if refusal is None:
                self._under_way[most] += 1
                turn.set_result(None)
            else:
                turn.set_exception(OverBudget(refusal))

    def _enough(self) -> bool:
        """Return whether something of the budget is left beyond what is under way."""
        if not self._under_way or self._ledger.budget is None:
            return True
        spent = self._ledger.spent
        held = sum(most * count for most, count in self._under_way.items())
        return spent is not None and spent + held < self._ledger.budget


class MeteredModel(ModelWrapper):
    """A model whose replies are entered in a ledger, and that stops at the budget."""

    def __init__(self, model: Model, ledger: Ledger) -> None:
        super().__init__(model)
        self._ledger = ledger
        self._purse = Purse(ledger)
        self._dearest = 0.0

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message, unless the money is spent.

        Raises:
            OverBudget: It is.
        """
        if self._ledger.budget is None:
            return await self._ask(conversation, sampling)
        most = self._most(conversation, sampling)
        async with self._purse.hold(most, conversation.turn):
            return await self._ask(conversation, sampling)

    def _most(self, conversation: Conversation, sampling: Sampling) -> float:
        """Return about the most that a reply may cost, at least that of any so far."""
        most, price = sampling.max_tokens, self._ledger.price
        bound = bound_reply(self.model, conversation.messages, most, price)
        return max(bound, self._dearest)

    async def _ask(self, conversation: Conversation, sampling: Sampling) -> Completion:
        key = conversation.key
        try:
            completion = await self.model.generate(conversation, sampling)
        except RagenError as error:
            requests = getattr(error, "billed_requests", 0)
            usage = getattr(error, "usage", None)
            if requests or usage is not None:
                self._enter(key, usage or Usage(), max(1, requests))
            raise
        if completion.details.get("cached") is not True:
            self._enter(key, completion.usage, billed_requests(completion.details))
        return completion

    def _enter(self, episode: str, usage: Usage, requests: int) -> None:
        paid = cost(tokens_of(usage, requests), self._ledger.price)
        self._dearest = max(self._dearest, paid or 0.0)
        self._ledger.add(episode, usage, requests)
