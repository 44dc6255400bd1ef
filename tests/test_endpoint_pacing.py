"""Requests go out in order, more at once while it helps, fewer when it hurts."""

import asyncio
import itertools
import threading

import pytest

from ragen_bench.models.endpoint_pacing import Gate


class Service:
    """A server on a clock of its own, asked by as many clients as there are.

    Args:
        rate: Answers a second at most, whatever is in flight; 0 is without bound.
        latency: Seconds of one answer.
    """

    def __init__(self, most: int, *, rate: float = 0.0, latency: float = 0.2) -> None:
        self.now = 0.0
        self.gate = Gate(most, now=lambda: self.now)
        self.rate = rate
        self.latency = latency
        self.limits: list[int] = []

    async def serve(self, clients: int, rounds: int, fault=lambda service: False):
        """Answer whatever is in flight, so many times."""
        gate = self.gate
        waiting = [asyncio.create_task(self._ask()) for _ in range(clients)]
        self.answered = asyncio.Event()
        for _ in range(rounds):
            for _ in range(5):
                await asyncio.sleep(0)
            needed = gate.in_flight / self.rate if self.rate else 0.0
            self.now += max(self.latency, needed)
            self.failing = fault(self)
            self.answered.set()
            self.answered = asyncio.Event()
            self.limits.append(gate.limit)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            async with self.gate.slot():
                await self.answered.wait()
                if self.failing:
                    self.gate.overloaded()
                else:
                    self.gate.answered()


def limits(most=64, clients=200, rounds=40, fault=lambda service: False, **facts):
    service = Service(most, **facts)
    asyncio.run(service.serve(clients, rounds, fault))
    return service.limits


def test_the_limit_doubles_while_answers_come_faster() -> None:
    found = limits()
    assert found[:4] == [8, 16, 32, 64] or found[:4] == [16, 32, 64, 64]
    assert set(found[4:]) == {64}


def test_it_never_passes_its_bound_and_starts_within_it() -> None:
    assert set(limits(most=3)) == {3}
    assert max(limits(most=20)) == 20


def test_it_stops_growing_where_more_do_not_help() -> None:
    # The server answers 100 a second, which 20 in flight reach.
    found = limits(most=1000, clients=2000, rounds=300, rate=100)
    assert 16 <= found[-1] <= 66


def test_it_does_not_grow_without_need() -> None:
    assert set(limits(clients=5)) == {8}


def test_overload_cuts_it_once_a_burst_and_down_to_one() -> None:
    one_burst = limits(rounds=10, fault=lambda service: len(service.limits) == 6)
    assert one_burst[7] == int(64 * 0.7)
    few = limits(rounds=10, clients=10, fault=lambda service: len(service.limits) == 6)
    assert (few[6], few[7]) == (16, 7), "what is in flight counts, not what may be"
    endless = limits(rounds=200, fault=lambda service: True)
    assert endless[-1] == 1
    # A burst in each round of 0.2 s is one cut in a second.
    assert all(b >= int(a * 0.7) for a, b in itertools.pairwise(endless))
    assert len(set(endless[1:5])) == 1


def test_it_recovers_after_an_overload() -> None:
    found = limits(rounds=400, fault=lambda service: 5 <= len(service.limits) < 40)
    assert min(found) < 5
    assert found[-1] > 20


def test_turns_come_in_order() -> None:
    async def main() -> list[int]:
        gate, order = Gate(1), []

        async def one(index: int) -> None:
            async with gate.slot():
                order.append(index)
                await asyncio.sleep(0)

        await asyncio.gather(*(one(index) for index in range(20)))
        return order

    assert asyncio.run(main()) == list(range(20))


@pytest.mark.parametrize("when", range(6))
def test_whoever_leaves_the_queue_takes_no_turn_along(when) -> None:
    async def main() -> None:
        gate = Gate(1)
        release = asyncio.Event()

        async def one() -> None:
            async with gate.slot():
                await release.wait()

        tasks = [asyncio.create_task(one()) for _ in range(6)]
        await asyncio.sleep(0)
        if when % 2:
            release.set()
        for _ in range(when):
            await asyncio.sleep(0)
        for task in tasks[:4]:
            task.cancel()
        release.set()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
            async with gate.slot():
                assert gate.in_flight == 1
        assert gate.in_flight == 0

    asyncio.run(main())


def test_a_gate_needs_no_loop_to_be_made() -> None:
    made: list[Gate] = []
    thread = threading.Thread(target=lambda: made.append(Gate(4)))
    thread.start()
    thread.join()
    assert made[0].limit == 4
