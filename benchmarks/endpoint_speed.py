"""Times the harness over HTTP, beside a bare client that sends the same requests.

    python benchmarks/endpoint_speed.py

A server in a process of its own answers each request in 200 ms.  `think_act` plays
Bandit through the runner, records on disk; then a bare loop over `openai.AsyncOpenAI`
sends the very bodies that the harness sent, as many at once.  The ideal rate is
requests in flight over seconds of an answer.  CPU is that of this process alone; the
two take turns, and the table has the median and the spread of the pairs.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ragen_bench as rb

CELL = "ragen/Bandit-v0:3"
SERVER = """
import asyncio, json, re, sys

LATENCY = float(sys.argv[1])
LOG = open(sys.argv[2], "wb")

async def answer(body, writer):
    await asyncio.sleep(LATENCY)
    name = re.search(rb"Actions: ([^.,]+)", body)[1].decode()
    text = f"<think>hm</think><answer>{name}"
    reply = json.dumps({
        "id": "x", "object": "chat.completion", "created": 0, "model": "fake",
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 300, "completion_tokens": 9, "total_tokens": 309},
    }).encode()
    head = f"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\n"
    writer.write(f"{head}Content-Length: {len(reply)}\\r\\n\\r\\n".encode() + reply)

async def serve(reader, writer):
    while True:
        try:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        length = re.search(rb"content-length: (\\d+)", head, re.I)
        body = await reader.readexactly(int(length[1]))
        if not LOG.closed:
            LOG.write(body + b"\\n")
        await answer(body, writer)

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    LOG.close()
    await asyncio.Event().wait()

asyncio.run(main())
"""


def play(url: str, seeds: int, in_flight: int) -> tuple[float, float]:
    """Play through the harness; return seconds of wall clock and of CPU."""
    with tempfile.TemporaryDirectory() as folder:
        wall, spent = time.perf_counter(), time.process_time()
        summary = rb.run(
            envs=[CELL],
            seeds=seeds,
            agent="think_act",
            model="openai:fake",
            model_args={"base_url": url},
            concurrency=in_flight,
            out=Path(folder) / "run",
        )
        spent = time.process_time() - spent
        wall = time.perf_counter() - wall
    assert summary.outcomes["finished"] == seeds
    return wall, spent


def send_bare(
    url: str, bodies: list[dict[str, Any]], in_flight: int
) -> tuple[float, float]:
    """Send the same requests with nothing around; return wall and CPU seconds."""
    import openai

    async def work(client: Any, left: list[dict[str, Any]]) -> None:
        while left:
            reply = await client.chat.completions.create(**left.pop())
            assert reply.choices[0].message.content

    async def main() -> None:
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        left = bodies[::-1]
        async with client:
            await asyncio.gather(*(work(client, left) for _ in range(in_flight)))

    wall, spent = time.perf_counter(), time.process_time()
    asyncio.run(main())
    return time.perf_counter() - wall, time.process_time() - spent


def start(latency: float, log: Path) -> tuple["subprocess.Popen[str]", str]:
    """Start a server that writes down what it is sent; return it and its address."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(latency), str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    return server, f"http://127.0.0.1:{int(server.stdout.readline())}/v1"


def measure(asked: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Return wall and CPU seconds of the pairs, harness and bare client."""
    found: dict[str, list[tuple[float, float]]] = {"harness": [], "bare client": []}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "bodies.jsonl"
        server, url = start(asked.latency, log)
        assert server.stdin is not None
        try:
            # The first run warms caches up and tells what is to be sent.
            play(url, asked.seeds, asked.in_flight)
            server.stdin.write("enough\n")
            server.stdin.flush()
            time.sleep(0.2)
            bodies = [json.loads(line) for line in log.read_text().splitlines()]
            send_bare(url, bodies[: 2 * asked.in_flight], asked.in_flight)
            for _ in range(asked.pairs):
                found["harness"].append(play(url, asked.seeds, asked.in_flight))
                found["bare client"].append(send_bare(url, bodies, asked.in_flight))
        finally:
            server.kill()
            server.communicate()
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency", type=float, default=0.2, help="seconds")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=256, help="episodes of 10 turns")
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    turns = 10 * asked.seeds
    ideal = asked.in_flight / asked.latency
    found = measure(asked)
    print("| | turns | turns/s | of the ideal rate | CPU ms a turn | least | most |")
    print("|---|---|---|---|---|---|---|")
    for name, times in found.items():
        rate = turns / statistics.median(wall for wall, _ in times)
        each = sorted(1e3 * spent / turns for _, spent in times)
        print(
            f"| {name} | {turns} | {rate:.1f} | {rate / ideal:.1%} "
            f"| {statistics.median(each):.2f} | {each[0]:.2f} | {each[-1]:.2f} |"
        )
    pairs = zip(found["harness"], found["bare client"], strict=True)
    above = sorted(1e3 * (ours - bare) / turns for (_, ours), (_, bare) in pairs)
    print(
        f"\nCPU above the bare client, ms a turn: {statistics.median(above):.2f} "
        f"({above[0]:.2f} to {above[-1]:.2f})"
    )


if __name__ == "__main__":
    main()
