"""True runs and their bundles, and ways to spoil them, for the tests of verification.

A run is held as the JSON values of its files, so that a test may change any of them
and pack it again.
"""

import copy
import dataclasses
import hashlib
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ragen_bench as rb
from ragen_bench.board import Board, BoardCell
from ragen_bench.errors import ProviderError
from ragen_bench.freezing import freeze, to_toml
from ragen_bench.registry import MODELS
from ragen_bench.verifying.ties import optimal_actions

CELLS = (
    BoardCell(env_id="ragen/FrozenLake-v0", level=2, seeds=3),
    BoardCell(env_id="ragen/Sokoban-v0", level=1, seeds=3),
    BoardCell(env_id="ragen/Bandit-v0", level=3, seeds=2),
)
META = {
    "schema": 1,
    "name": "somebody",
    "model": "some model",
    "organisation": "some people",
    "licence": "Apache-2.0",
    "training_data": "no",
}
LONG = "I look at the board and think. " * 20
REPLIES: list[Any] = [
    "<answer>Up || Left</answer>",
    f"<think>{LONG}</think><answer>Right</answer>",
    {"text": "<answer>Down || Down</answer>", "thinking": "apart from the reply"},
    "no answer, \u00e9\u4e2d\U0001f600 and \ud800 half a character",
    {"text": "<answer>Left", "finish_reason": "length"},
    "<answer>Right || Right || Up || Up || Up || Up</answer>",
    "<think>one</think><think>two</think><answer>down</answer>",
]


@dataclasses.dataclass
class Run:
    """The values of a run's files."""

    run: Any
    episodes: list[Any]
    meta: Any = None

    def copy(self) -> "Run":
        return copy.deepcopy(self)

    def members(self) -> dict[str, bytes]:
        """Return the files of a bundle."""
        return {
            "run.json": json.dumps(self.run, indent=2).encode(),
            "episodes.jsonl": lines(self.episodes),
            "meta.json": json.dumps(self.meta or META).encode(),
        }

    def turn(self, number: int = 0) -> Any:
        """Return a turn of the first episode."""
        return self.episodes[0]["turns"][number]


def lines(episodes: list[Any]) -> bytes:
    texts = [json.dumps(e, ensure_ascii=False, separators=(",", ":")) for e in episodes]
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")


def read(folder: Path) -> Run:
    """Return the values of a run folder."""
    text = (folder / "episodes.jsonl").read_text(encoding="utf-8")
    run = json.loads((folder / "run.json").read_text())
    return Run(run, [json.loads(line) for line in text.splitlines()])


def pack(path: Path, members: Mapping[str, bytes]) -> Path:
    """Write a zip archive of these files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def board(path: Path, cells: tuple[BoardCell, ...] = CELLS, repeats: int = 2) -> Board:
    """Write a small frozen board and return it."""
    made = freeze(
        Board(schema=1, name="small", title="small", repeats=repeats, cells=cells)
    )
    path.write_text(to_toml(made))
    return made


def script(path: Path, replies: list[Any] = REPLIES) -> str:
    """Write a script and return the model that plays it."""
    path.write_text(json.dumps(replies))
    return f"scripted:{path}"


def served(run: Run) -> Run:
    """Return a run as if a slow server had answered: it tells tokens and times."""
    run = run.copy()
    numbers = random.Random(7)
    for episode in run.episodes:
        for turn in episode["turns"]:
            turn["latency_s"] = round(numbers.uniform(0.5, 5.0), 6)
            size = len(turn["response"].encode())
            turn["usage"]["input_tokens"] = 500
            turn["usage"]["output_tokens"] = 3 + size // 4
            turn["details"] = {"response_id": f"id-{numbers.random()}"}
    return run


@dataclasses.dataclass(frozen=True)
class Flaky:
    """Says one thing to all, but for one episode, whose server is gone."""

    lost: str

    def __call__(self, rest: str) -> rb.Model:
        return _FlakyModel(self.lost)


class _FlakyModel(rb.Model):
    name = "flaky"

    def __init__(self, lost: str) -> None:
        self.lost = lost

    async def generate(
        self, conversation: rb.Conversation, sampling: rb.Sampling
    ) -> rb.Completion:
        if conversation.key == self.lost:
            raise ProviderError("the server is gone")
        return rb.Completion(text="<answer>nothing</answer>")


def flaky(lost: str) -> str:
    """Register a model that loses one episode, and return its name."""
    name = f"flaky-{hashlib.sha256(lost.encode()).hexdigest()[:8]}"
    MODELS.add(name, Flaky(lost))
    return name


class FairOptimal(rb.Agent):
    """Plays an optimal action a turn, any of them with equal chance."""

    privileged = True

    def reset(self, task: rb.Task) -> None:
        super().reset(task)
        self.chance = random.Random(task.seed)

    async def act(self, observation: str, info: Mapping[str, Any]) -> rb.Reply:
        core = self.task.env.core
        action = self.chance.choice(sorted(optimal_actions(core)))
        return rb.Reply(text=f"<answer>{core.actions[action]}</answer>")


# Archives that no honest packer writes ------------------------------------------


def raw_zip(
    path: Path,
    members: list[tuple[str, bytes]],
    **changes: Any,
) -> Path:
    """Write an archive by hand; ``changes`` of the last member's headers lie.

    Args:
        path: The file.
        members: Names and contents.
        **changes: ``size``, ``crc``, ``packed``, ``flags``, ``method``, ``mode``.
    """
    body = b""
    directory = b""
    for index, (name, data) in enumerate(members):
        lies = changes if index == len(members) - 1 else {}
        squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = lies.get("packed") or squeeze.compress(data) + squeeze.flush()
        crc = lies.get("crc", zlib.crc32(data))
        size = lies.get("size", len(data))
        flags, method = lies.get("flags", 0), lies.get("method", 8)
        raw = name.encode()
        flags |= 0 if name.isascii() else 0x800
        same = struct.pack("<4H3L2H", flags, method, 0, 33, crc, len(packed), size,
                           len(raw), 0)  # fmt: skip
        directory += (
            struct.pack("<4s2H", b"PK\x01\x02", 0x0314, 20)
            + same
            + struct.pack("<3H2L", 0, 0, 0, lies.get("mode", 0o100644) << 16, len(body))
            + raw
        )
        body += struct.pack("<4sH", b"PK\x03\x04", 20) + same + raw + packed
    count = len(members)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(directory),
                      len(body), 0)  # fmt: skip
    path.write_bytes(body + directory + end)
    return path


def bomb(block: bytes, times: int) -> tuple[bytes, int]:
    """Return deflated data that unpacks to a block so many times, and that size."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    once = squeeze.compress(block) + squeeze.flush(zlib.Z_FULL_FLUSH)
    return once * times, len(block) * times


Spoil = Callable[[Run], Any]
