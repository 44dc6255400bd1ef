"""A server of chat completions, a player and a model class, for tests of lm-eval."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import ragen_bench as rb
from ragen_bench.registry import MODELS

Answer = Callable[[Mapping[str, Any]], tuple[int, Any]]

REPLIES = ("<answer>Right</answer>", "<answer>Down || Right</answer>", "no idea")


def chosen(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the reply of a player who goes by the whole conversation."""
    said = json.dumps([(m["role"], m["content"]) for m in messages])
    return REPLIES[hashlib.sha256(said.encode()).digest()[0] % len(REPLIES)]


class Player(rb.Model):
    """Answers as the server does."""

    def __init__(self) -> None:
        self.name = "player"

    async def generate(
        self, conversation: rb.Conversation, sampling: rb.Sampling
    ) -> rb.Completion:
        pairs = [{"role": m.role, "content": m.content} for m in conversation.messages]
        return rb.Completion(text=chosen(pairs))


def load_player(rest: str) -> rb.Model:
    """Return the model ``player``."""
    return Player()


MODELS.add("player", load_player)


def completion(text: str | None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    """Return the body of a chat completion."""
    message = {"role": "assistant", "content": text, **more}
    return {
        "id": "r-1",
        "system_fingerprint": "fp",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def play(body: Mapping[str, Any]) -> tuple[int, Any]:
    """Answer as `Player` does, with the stop string cut off, as servers do."""
    text = chosen(body["messages"])
    for stop in body.get("stop") or ():
        text = text.split(stop)[0]
    return 200, completion(text)


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve chat completions; yield the address and the bodies that come in."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            status, told = answer(body)
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Bare:
    """The least that a model object of lm-eval is: texts to texts.

    Args:
        answer: Makes a reply of a prompt; what it raises fails the whole batch.
    """

    max_length = 1000

    def __init__(self, answer: Callable[[str], Any]) -> None:
        self.answer = answer
        self.batches: list[list[str]] = []
        self.arguments: list[dict[str, Any]] = []

    def apply_chat_template(
        self, chat: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return "".join(f"[{m['role']}]{m['content']}" for m in chat)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[Any]:
        assert disable_tqdm
        prompts = [request.args[0] for request in requests]
        self.batches.append(prompts)
        self.arguments += [request.args[1] for request in requests]
        return [self.answer(prompt) for prompt in prompts]
