"""Times a run through ``vllm:`` beside the bare engine on the same prompts.

    python benchmarks/vllm_speed.py FOLDER [--dtype bfloat16]

A run is played once to learn its prompts and how long each reply is.  Then runs and
the bare engine take turns, each time with nothing cached.  The engine is given the
same prompts and samples as many tokens for each, without log-probabilities and stop
strings: once in the order of play, where an episode's next prompt waits for its last
reply, and once all of them at once, which no player of many turns can do.  All share
one engine.  Needs the extra ``vllm``.
"""

import argparse
import asyncio
import contextvars
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ragen_bench as rb
from ragen_bench.model import Completion, Conversation, Message, Model, Sampling
from ragen_bench.registry import MODELS, make_model

CELLS = [
    "ragen/Bandit-v0:1",
    "ragen/Bandit-v0:2",
    "ragen/FrozenLake-v0:1",
    "ragen/FrozenLake-v0:2",
    "ragen/Sokoban-v0:1",
    "ragen/Sokoban-v0:2",
]


Prompts = list[list[tuple[list[int], int]]]
"""For each episode, the ids of its prompts and how many were answered."""
_EPISODE: contextvars.ContextVar[str] = contextvars.ContextVar("episode")


class Watched(Model):
    """A model that outlives its run and counts what passes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name = inner.name
        self.max_context = inner.max_context
        self.defaults = inner.defaults
        self.asked: dict[str, list[tuple[list[int], int]]] = {}
        self.cached = 0
        self._ask = inner._host.ask
        inner._host.ask = self._watch

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer as the model does."""
        _EPISODE.set(conversation.key)
        completion: Completion = await self.inner.generate(conversation, sampling)
        return completion

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Count as the model does."""
        return int(self.inner.count_tokens(messages))

    async def _watch(self, ids: Sequence[int], parameters: Any) -> Any:
        answer = await self._ask(ids, parameters)
        asked = self.asked.setdefault(_EPISODE.get(), [])
        asked.append((list(ids), len(answer.ids)))
        self.cached += answer.cached_tokens or 0
        return answer

    def forget(self) -> None:
        """Drop what was counted, and what the engine has cached."""
        self.asked, self.cached = {}, 0
        engine = self.inner._host._serving._engine
        self.wait(engine.reset_prefix_cache())

    def wait(self, coroutine: Any) -> Any:
        """Run a coroutine in the engine's thread."""
        loop = self.inner._host._serving._loop
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def play(model: Watched, settings: dict[str, Any], concurrency: int) -> float:
    """Return the tokens a second of a whole run."""
    model.forget()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        rb.run(
            envs=CELLS,
            model="watched",
            out=Path(folder) / "run",
            concurrency=concurrency,
            **settings,
        )
        spent = time.perf_counter() - began
    return tokens(list(model.asked.values())) / spent


def tokens(asked: Prompts) -> int:
    """Return how many tokens were sampled."""
    return sum(count for episode in asked for _, count in episode)


def bare(model: Watched, asked: Prompts, concurrency: int) -> float:
    """Return the tokens a second of the engine alone."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    model.forget()
    engine = model.inner._host._serving._engine
    names = (f"bare-{number}" for number in itertools.count())

    async def sample(ids: list[int], count: int) -> None:
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=count,
            min_tokens=count,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = {"prompt_token_ids": ids}
        async for _ in engine.generate(prompt, parameters, next(names)):
            pass

    async def in_turn(slots: asyncio.Semaphore, episode: Any) -> None:
        async with slots:
            for ids, count in episode:
                await sample(ids, count)

    async def everything() -> None:
        slots = asyncio.Semaphore(concurrency)
        await asyncio.gather(*(in_turn(slots, episode) for episode in asked))

    began = time.perf_counter()
    model.wait(everything())
    return tokens(asked) / (time.perf_counter() - began)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    model = Watched(make_model(f"vllm:{asked.folder}", dtype=asked.dtype))
    MODELS.add("watched", lambda rest: model)
    settings = {
        "seeds": asked.seeds,
        "shots": asked.shots,
        "max_tokens": asked.max_tokens,
    }
    play(model, settings, asked.concurrency)
    episodes, cached = list(model.asked.values()), model.cached
    replies = [[reply] for episode in episodes for reply in episode]
    rows: list[tuple[float, ...]] = []
    for _ in range(asked.pairs):
        row = (
            play(model, settings, asked.concurrency),
            bare(model, episodes, asked.concurrency),
            bare(model, replies, len(replies)),
        )
        rows.append(row)
        print("tokens/s:", *(f"{rate:,.0f}" for rate in row), flush=True)
    read = sum(len(ids) for ((ids, _),) in replies)
    print(
        f"\n{len(episodes)} episodes, {asked.concurrency} in flight; {len(replies)} "
        f"replies; prompts of {read:,} tokens, {100 * cached / read:.0f} % of them "
        f"cached; {tokens(episodes):,} tokens sampled\n"
    )
    print("| | tokens/s, median | least | most | run's share, %, median of pairs |")
    print("|---|---|---|---|---|")
    names = ("run", "bare engine, in the order of play", "bare engine, all at once")
    for column, name in enumerate(names):
        rates = [row[column] for row in rows]
        share = statistics.median(100 * row[0] / row[column] for row in rows)
        print(
            f"| {name} | {statistics.median(rates):,.0f} | {min(rates):,.0f} "
            f"| {max(rates):,.0f} | {share:.1f} |"
        )
    asyncio.run(model.inner.aclose())


if __name__ == "__main__":
    main()
