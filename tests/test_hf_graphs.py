"""Passes of a fixed shape over all slots: what a GPU plays back, on a CPU."""

import asyncio
import dataclasses

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.model import Conversation, Message, Sampling  # noqa: E402
from ragen_bench.models import hf_graphs  # noqa: E402
from ragen_bench.models.hf_engine import HFModel  # noqa: E402
from ragen_bench.models.hf_graphs import DecodeGraphs  # noqa: E402
from ragen_bench.models.hf_options import Options  # noqa: E402
from ragen_bench.starpo.policy import fresh  # noqa: E402

pytestmark = pytest.mark.hf

NETWORK, TOKENIZER = fresh((64, 2), 0, "cpu")


@dataclasses.dataclass
class Recorder:
    """Records nothing, and counts."""

    recorded: int = 0
    played: int = 0

    def __call__(self, work):
        self.recorded += 1

        def play_back():
            self.played += 1
            return work()

        return play_back


def replies(record=None, lengths=(3, 40, 9, 25), slots: int = 4, turns: int = 3):
    """Return ids and log-probabilities of conversations, and the decoder's graphs."""
    options = Options(batch_size=slots, decoder="slots", inline=True)
    model = HFModel("it", NETWORK, TOKENIZER, options)
    decoder = model._decoder
    assert decoder._graphs is None
    if record is not None:
        decoder._graphs = DecodeGraphs(NETWORK, decoder._slots, record)

    async def talk(index: int, length: int):
        found = []
        talked = Conversation(key=str(index), seed=index)
        for turn in range(turns):
            asked = Message(role="user", content=f"round {turn} " * (index + 1))
            talked.messages = [*talked.messages, asked]
            said = await model.generate(
                talked, Sampling(temperature=1.0, max_tokens=length)
            )
            talked.turn += 1
            answer = Message(
                role="assistant", content=said.text, token_ids=said.token_ids
            )
            talked.messages = [*talked.messages, answer]
            found.append((said.token_ids, said.logprobs))
        return found

    async def everybody():
        return await asyncio.gather(*map(talk, range(len(lengths)), lengths))

    return asyncio.run(everybody()), decoder._graphs


def test_replies_are_those_of_plain_passes() -> None:
    record = Recorder()
    plain, _ = replies()
    found, _ = replies(record)
    assert record.played > 50
    for one, other in zip(plain, found, strict=True):
        for (ids, logprobs), (same, near) in zip(one, other, strict=True):
            assert ids == same
            assert logprobs == pytest.approx(near, abs=1e-4)


def test_a_shape_is_recorded_once() -> None:
    record = Recorder()
    _, graphs = replies(record, lengths=(30, 30), slots=2)
    assert record.recorded == len(graphs._made) == 1


def test_what_cannot_be_recorded_is_computed_plainly() -> None:
    def refuse(work):
        raise RuntimeError("no capture here")

    plain, _ = replies()
    found, graphs = replies(refuse)
    assert graphs.broken == "no capture here"
    assert [[ids for ids, _ in one] for one in found] == [
        [ids for ids, _ in one] for one in plain
    ]


@pytest.mark.parametrize(
    ("needed", "most", "expected"), [(1, 128, 8), (9, 128, 16), (100, 120, 120)]
)
def test_few_sizes_serve_all_batches(needed: int, most: int, expected: int) -> None:
    assert hf_graphs._bucket(needed, most) == expected
