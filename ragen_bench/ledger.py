"""What a run really spent, reply by reply, and the budget that ends it.

``ledger.jsonl`` in the run's folder gets one line for every reply that was paid for,
as soon as it is in: also for those of episodes that were never finished, or that
``--retry-errors`` plays again.  A reply from a replay cache was paid for once and gets
none.  Only runs with a price have a ledger.  A request that was under way when the
process was killed is in no ledger, for its reply never came.
"""

import json
import os

from ragen_bench.errors import OverBudget, RunIncomplete
from ragen_bench.model import (
    Completion,
    Conversation,
    Model,
    ModelWrapper,
    Sampling,
    Usage,
)
from ragen_bench.prices import Tokens, cost, money, tokens_of, tokens_of_turns
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

    def add(self, episode: str, usage: Usage) -> None:
        """Enter a reply that was paid for.

        Raises:
            RunIncomplete: The file cannot be written.
        """
        self._tokens += tokens_of(usage)
        line = {"episode": episode, **{name: getattr(usage, name) for name in _FIELDS}}
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
                total += tokens_of(usage)
                self._episodes.add(episode)
        return total

    def _failure(self, error: OSError) -> RunIncomplete:
        return RunIncomplete(
            f"cannot write {self._path}: {error.strerror}; make room and run the same "
            "command again"
        )


class MeteredModel(ModelWrapper):
    """A model whose replies are entered in a ledger, and that stops at the budget."""

    def __init__(self, model: Model, ledger: Ledger) -> None:
        super().__init__(model)
        self._ledger = ledger

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message, unless the money is spent.

        Raises:
            OverBudget: It is.
        """
        refusal = self._ledger.refusal
        if refusal is not None:
            raise OverBudget(refusal)
        completion = await self.model.generate(conversation, sampling)
        if completion.details.get("cached") is not True:
            self._ledger.add(conversation.key, completion.usage)
        return completion
