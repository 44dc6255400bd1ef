"""Times continuous refilling against a loop in lockstep, on a decoder of fixed speed.

    python benchmarks/refill_speed.py

The decoder needs the same time for each decoding step, whatever is in its batch, and
replies are 1 to 10 steps long.  Once the real runner plays through the real worker:
an episode asks again as soon as its reply is in.  Once all episodes take turns
together: each round lasts as long as its longest reply, and the slot of an episode
that has ended goes to the next one.  Both play the same episodes with the same
replies; seconds include the harness.
"""

import argparse
import asyncio
import collections
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.episode import noise_rep
from ragen_bench.model import Completion, Conversation, Model, Sampling
from ragen_bench.models.batching import Draft, Request, Worker
from ragen_bench.plan import Settings, resolve
from ragen_bench.records import EpisodeKey
from ragen_bench.registry import MODELS
from ragen_bench.run_folder import read_episodes
from ragen_bench.runner import execute
from ragen_bench.seeding import Stream, child_seed

CELLS = ("ragen/FrozenLake-v0:2", "ragen/Sokoban-v0:2")
LONGEST = 10


class FixedSpeedDecoder:
    """Answers up to ``slots`` requests at once, one token each a step."""

    def __init__(self, slots: int, step_s: float = 0.0) -> None:
        self.slots = slots
        self.step_s = step_s
        self.steps = 0
        self.rows: list[tuple[Request, int]] = []

    @property
    def busy(self) -> bool:
        """Whether replies are being decoded."""
        return bool(self.rows)

    def admit(self, waiting: collections.deque[Request]) -> None:
        """Fill the free slots."""
        while waiting and len(self.rows) < self.slots:
            request = waiting.popleft()
            self.rows.append((request, request.sampling.max_tokens))

    def step(self) -> None:
        """Decode one token of each reply."""
        if not self.rows:
            return
        if self.step_s:
            time.sleep(self.step_s)
        self.steps += 1
        rows = [(request, left - 1) for request, left in self.rows]
        self.rows = [(request, left) for request, left in rows if left]
        for request, left in rows:
            if not left:
                request.resolve(draft_of(request))

    def abandon(self, error: BaseException) -> None:
        """Fail every reply."""
        rows, self.rows = self.rows, []
        for request, _ in rows:
            request.fail(error)

    def clear(self) -> None:
        """Forget nothing: there are no weights."""


def request_of(seed: int, turn: int) -> Request:
    """Return a request whose reply is 1 to 10 tokens long, fixed by seed and turn."""
    stream = Stream(seed, "turn", turn)
    length = 1 + int(stream.random() * LONGEST)
    return Request(ids=[], sampling=Sampling(max_tokens=length), stream=stream)


def draft_of(request: Request) -> Draft:
    """Return the reply: one random move."""
    move = request.stream.choice(("Up", "Down", "Left", "Right"))
    ids = tuple(range(request.sampling.max_tokens))
    return Draft(f"<answer>{move}</answer>", ids, (), "stop", 0)


class FixedSpeedModel(Model):
    """Asks a decoder through the worker that serves ``hf:``."""

    name = "fixed"

    def __init__(self, decoder: FixedSpeedDecoder) -> None:
        self.worker = Worker(decoder)

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer in 1 to 10 steps."""
        request = request_of(conversation.seed, conversation.turn)
        draft = await asyncio.wrap_future(self.worker.submit(request))
        return Completion(text=draft.text, token_ids=draft.token_ids)

    async def aclose(self) -> None:
        """End the thread."""
        await asyncio.to_thread(self.worker.stop)


def refilled(
    decoder: FixedSpeedDecoder,
    seeds: int,
    cells: Sequence[str] = CELLS,
    **options: Any,
) -> int:
    """Play all episodes through the runner, and return their turns."""
    plan = resolve(settings(seeds, cells), load_model=False)
    plan = dataclasses.replace(plan, model=FixedSpeedModel(decoder))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        execute(plan, out, concurrency=decoder.slots, **options)
        return sum(len(episode.turns) for episode in read_episodes(out))


def lockstep(decoder: FixedSpeedDecoder, seeds: int) -> int:
    """Play the same episodes in rounds, and return their turns."""
    plan = resolve(settings(seeds), load_model=False)
    owed = iter(sorted(plan.config.keys(), key=lambda key: (key.rep, key.seed)))
    live = [game for _ in range(decoder.slots) if (game := next_game(plan, owed))]
    turns = 0
    while live:
        requests = [request_of(seed, turn) for _, seed, turn in live]
        waiting = collections.deque(requests)
        decoder.admit(waiting)
        while decoder.busy:
            decoder.step()
        after = []
        for (env, seed, turn), request in zip(live, requests, strict=True):
            turns += 1
            text = request.future.result().text
            _, _, terminated, truncated, _ = env.step(text)
            over = terminated or truncated
            game = next_game(plan, owed) if over else (env, seed, turn + 1)
            after += [game] if game else []
        live = after
    return turns


def next_game(plan: Any, owed: Iterator[EpisodeKey]) -> tuple[Any, int, int] | None:
    """Return environment, agent's seed and turn of the next episode, if any."""
    key = next(owed, None)
    if key is None:
        return None
    env = plan.env(key.env_id, key.level)
    env.reset(seed=key.seed, options={"rep": noise_rep(key.rep, "")})
    return env, child_seed(key.seed, "agent", str(key), ""), 0


def settings(seeds: int, cells: Sequence[str] = CELLS) -> Settings:
    """Return what is played."""
    return Settings(envs=cells, seeds=seeds, agent="direct", model="fixed")


MODELS.add("fixed", lambda rest: FixedSpeedModel(FixedSpeedDecoder(1)))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=20.0)
    asked = parser.parse_args()
    print("| loop | turns | decoding steps | seconds | turns/s |")
    print("|---|---|---|---|---|")
    rates = []
    for name, loop in (("lockstep", lockstep), ("refilled", refilled)):
        decoder = FixedSpeedDecoder(asked.slots, asked.step_ms / 1000)
        began = time.perf_counter()
        turns = loop(decoder, asked.seeds)
        spent = time.perf_counter() - began
        rates.append(turns / spent)
        print(
            f"| {name} | {turns} | {decoder.steps} | {spent:.2f} | {rates[-1]:,.0f} |",
            flush=True,
        )
    print(f"\nrefilled / lockstep: {rates[1] / rates[0]:.2f}")


if __name__ == "__main__":
    main()
