"""What makes slots fast can be switched off, and no reply depends on it."""

import asyncio

import pytest

torch = pytest.importorskip("torch")

from ragen_bench.model import Conversation, Message, Sampling  # noqa: E402
from ragen_bench.models.hf_engine import HFModel  # noqa: E402
from ragen_bench.models.hf_options import Options  # noqa: E402
from ragen_bench.starpo.policy import fresh  # noqa: E402

pytestmark = pytest.mark.hf

NETWORK, TOKENIZER = fresh((64, 2), 0, "cpu")
LENGTHS = (2, 12, 5)
RULES = "these are the rules of a game, the same for all who play it"


def talks(admitted: list[int] | None = None, **switches):
    """Return completions of conversations of two turns each."""
    options = Options(batch_size=3, decoder="slots", inline=True, **switches)
    model = HFModel("it", NETWORK, TOKENIZER, options)
    decoder = model._decoder
    admit = decoder.admit

    def watched(waiting):
        before, rows = len(waiting), len(decoder._rows)
        admit(waiting)
        if admitted is not None and rows and len(waiting) < before:
            admitted.append(before - len(waiting))

    decoder.admit = watched

    async def talk(index: int, length: int):
        found, talked = [], Conversation(key=str(index), seed=index)
        for turn in range(2):
            asked = Message(role="user", content=f"{RULES} {turn}{'x' * index}")
            talked.messages = [*talked.messages, asked]
            sampling = Sampling(temperature=1.0, max_tokens=length)
            said = await model.generate(talked, sampling)
            talked.turn += 1
            answer = Message(
                role="assistant", content=said.text, token_ids=said.token_ids
            )
            talked.messages = [*talked.messages, answer]
            found.append(said)
        return found

    async def everybody():
        return await asyncio.gather(*map(talk, range(len(LENGTHS)), LENGTHS))

    return asyncio.run(everybody())


def read_before(talked) -> list[int]:
    return [said.usage.cached_tokens for one in talked for said in one]


@pytest.mark.parametrize(
    "switches",
    [
        {"refill": False},
        {"share_heads": False},
        {"kv_reuse": False},
        {"kv_reuse": False, "share_heads": False, "refill": False},
    ],
)
def test_replies_do_not_depend_on_them(switches) -> None:
    for one, other in zip(talks(), talks(**switches), strict=True):
        assert [said.token_ids for said in one] == [said.token_ids for said in other]


def test_all_are_on_unless_told_otherwise() -> None:
    first, *_ = talks()
    assert first[1].usage.cached_tokens > len(first[0].prompt_token_ids)


def test_without_reuse_and_sharing_nothing_is_known() -> None:
    assert not any(read_before(talks(kv_reuse=False, share_heads=False)))


def test_sharing_alone_knows_the_beginning() -> None:
    known = read_before(talks(kv_reuse=False))
    assert sum(count > 0 for count in known) >= 2


def test_without_refill_no_turn_begins_while_others_are_answered() -> None:
    joined: list[int] = []
    talks(joined, refill=False, share_heads=False)
    assert joined == []
    talks(joined, share_heads=False)
    assert joined
