"""Episodes that all wait at the same time, so that lm-eval can answer them in batches.

lm-eval calls a task from outside and knows no event loop.  The episodes live in a
thread with a loop of their own; the caller gets their questions when every one of
them waits, and they go on when it hands over the answers.
"""

import asyncio
import dataclasses
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from ragen_bench.episode import play
from ragen_bench.errors import RagenError
from ragen_bench.model import Completion, Conversation, ModelWrapper, Sampling
from ragen_bench.plan import Plan
from ragen_bench.records import Episode, EpisodeKey

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pending:
    """A question that an episode waits to have answered."""

    episode: str
    """The key of the episode."""
    question: Any
    """What the adapter of lm-eval's models makes of the conversation."""
    future: "asyncio.Future[Completion | RagenError]"


class Lockstep:
    """The episodes of a task, in flight.

    Args:
        plan: How they are played; its model is the adapter of lm-eval's models.
        keys: Which ones.
    """

    def __init__(self, plan: Plan, keys: Sequence[EpisodeKey]) -> None:
        assert plan.model is not None
        self._plan = dataclasses.replace(plan, model=_Asking(plan.model, self))
        self._keys = tuple(keys)
        self._waiting: list[Pending] = []
        self._episodes: list[Episode] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="ragen-bench lm-eval task", daemon=True
        )
        self._thread.start()

    def begin(self) -> list[Pending]:
        """Begin all episodes and return their first questions."""
        return self._in_loop(self._begin())

    def go_on(
        self, answered: Sequence[tuple[Pending, Completion | RagenError]]
    ) -> list[Pending]:
        """Hand over answers and return the next questions, none when all is over."""
        return self._in_loop(self._go_on(answered))

    def take_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def close(self) -> None:
        """End the thread; episodes in flight are given up."""
        if self._loop.is_closed():
            return
        self._in_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def wait_for_answer(
        self, conversation: Conversation, question: Any
    ) -> Completion:
        """Wait until the caller answers a question, and return the answer.

        Raises:
            RagenError: That is the answer.
        """
        future: asyncio.Future[Completion | RagenError] = self._loop.create_future()
        pending = Pending(episode=conversation.key, question=question, future=future)
        self._waiting.append(pending)
        self._look()
        answer = await future
        if isinstance(answer, RagenError):
            raise answer
        return answer

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _begin(self) -> list[Pending]:
        self._all_wait = asyncio.Event()
        self._players = {
            str(key): asyncio.create_task(self._play(key)) for key in self._keys
        }
        for player in self._players.values():
            player.add_done_callback(lambda _: self._look())
        return await self._settle()

    async def _go_on(
        self, answered: Sequence[tuple[Pending, Completion | RagenError]]
    ) -> list[Pending]:
        for pending, answer in answered:
            if not pending.future.done():
                pending.future.set_result(answer)
        return await self._settle()

    async def _settle(self) -> list[Pending]:
        """Wait until each episode waits or has ended; return what is asked."""
        self._all_wait.clear()
        self._look()
        await self._all_wait.wait()
        for player in self._players.values():
            if player.done():
                player.result()
        waiting, self._waiting = self._waiting, []
        return waiting

    def _look(self) -> None:
        asked = {pending.episode for pending in self._waiting}
        if all(p.done() or name in asked for name, p in self._players.items()):
            self._all_wait.set()

    async def _play(self, key: EpisodeKey) -> None:
        plan = self._plan
        episode, _ = await play(
            plan.env(key.env_id, key.level),
            plan.agent(),
            key,
            shots=plan.shots(key.env_id, key.level),
            salt=plan.config.salt,
        )
        self._episodes.append(episode)

    async def _stop(self) -> None:
        players = list(self._players.values())
        for player in players:
            player.cancel()
        await asyncio.gather(*players, return_exceptions=True)


class _Asking(ModelWrapper):
    """Puts what an agent asks to the caller of a `Lockstep`."""

    def __init__(self, model: Any, table: Lockstep) -> None:
        super().__init__(model)
        self._adapter = model
        self._table = table

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message of a conversation, when the caller does."""
        question = self._adapter.caller.prepare(
            conversation.messages, sampling, conversation.turn_seed()
        )
        return await self._table.wait_for_answer(conversation, question)
