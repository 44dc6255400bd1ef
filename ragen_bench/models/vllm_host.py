"""`EngineHost`: vLLM's asynchronous engine in a thread of its own.

Requests come from any thread and any event loop.  The engine computes in processes
that it starts itself; they end with the host, and with Python.
"""

import asyncio
import atexit
import concurrent.futures
import dataclasses
import itertools
import shutil
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ragen_bench.errors import InvalidSpec, ProviderError, ProviderRefusal, RagenError
from ragen_bench.models.vllm_surroundings import surroundings

T = TypeVar("T")

_CLOSED = "the model was closed before it answered"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the engine sampled for one prompt."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str | None
    cached_tokens: int | None


class EngineHost:
    """One engine; it starts when asked, and again after it was stopped.

    Args:
        arguments: Those of vLLM's ``AsyncEngineArgs``.
        lora: Folder of an adapter that serves all requests.
        environment: Variables that its processes get.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        lora: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = dict(arguments)
        self._lora = lora
        self._environment = dict(environment or {})
        self._lock = threading.Lock()
        self._serving: _Serving | None = None
        _HOSTS.add(self)

    def start(self) -> None:
        """Start the engine if it does not run; this takes many seconds.

        Raises:
            InvalidSpec: The engine refuses the model or an argument.
        """
        with self._lock:
            if self._serving is not None:
                return
            serving = _Serving(self._arguments, self._lora, self._environment)
            serving.open()
            # Behind what vLLM and multiprocessing registered, to be called before:
            # they would wait for processes that nobody has told to end.
            atexit.unregister(_stop_all)
            atexit.register(_stop_all)
            self._serving = serving

    async def ask(self, ids: Sequence[int], parameters: Any) -> Answer:
        """Return the answer to a prompt; who is cancelled withdraws the request.

        Args:
            ids: The prompt.
            parameters: vLLM's ``SamplingParams``.

        Raises:
            ProviderError: The request failed, or the host was stopped.
            ProviderRefusal: The engine is dead.
        """
        if self._serving is None:
            await asyncio.to_thread(self.start)
        serving = self._serving
        if serving is None:
            raise ProviderError(_CLOSED)
        answer = await asyncio.wrap_future(serving.submit(ids, parameters))
        if isinstance(answer, RagenError):
            raise answer
        return answer

    def use(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """Let a coroutine use the engine, in its own thread, and wait for the result.

        Args:
            work: Gets vLLM's ``AsyncLLM``.

        Raises:
            ProviderError: The work failed, or the host was stopped.
        """
        self.start()
        serving = self._serving
        if serving is None:
            raise ProviderError(_CLOSED)
        return serving.use(work)

    def stop(self) -> None:
        """End the engine, its processes and the thread, failing what waits."""
        with self._lock:
            serving, self._serving = self._serving, None
            if serving is not None:
                serving.close()


class _Serving:
    """The engine from one start to one stop."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        lora: str | None,
        environment: Mapping[str, str],
    ) -> None:
        self._arguments = arguments
        self._environment = environment
        self._lora_place = lora
        self._lora: Any = None
        self._engine: Any = None
        self._closing = False
        self._sockets = tempfile.mkdtemp(prefix="ragen-")
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, name="ragen-bench vllm model", daemon=True
        )

    def open(self) -> None:
        """Start the thread and wait until the engine can be asked."""
        self._thread.start()
        try:
            self._ready.result()
        except RagenError:
            raise
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise InvalidSpec(
                f"vLLM cannot serve {self._arguments['model']!r} so: "
                f"{type(error).__name__}: {first}"
            ) from error

    def close(self) -> None:
        """Stop and wait until all is gone."""
        self._closing = True
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def submit(
        self, ids: Sequence[int], parameters: Any
    ) -> "concurrent.futures.Future[Answer | RagenError]":
        """Hand a request to the thread."""
        answering = self._answer(ids, parameters)
        try:
            return asyncio.run_coroutine_threadsafe(answering, self._loop)
        except RuntimeError as error:  # the loop was closed meanwhile
            answering.close()
            raise ProviderError(_CLOSED) from error

    def use(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine over the engine in the thread, and wait."""
        working = work(self._engine)
        try:
            return asyncio.run_coroutine_threadsafe(working, self._loop).result()
        except RagenError:
            raise
        except Exception as error:
            working.close()
            raise ProviderError(f"vLLM failed: {error.__cause__ or error!r}") from error

    def _run(self) -> None:
        # A Ctrl-C at the terminal reaches all processes.  The engine's inherit this
        # mask, and so live until the run has stopped in its own way.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            with surroundings(self._environment, self._sockets):
                self._engine = self._make_engine()
            await self._load_adapter()
        except BaseException as error:
            self._shut_down()
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        await self._over.wait()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        self._shut_down()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _make_engine(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments))

    async def _load_adapter(self) -> None:
        if self._lora_place is None:
            return
        from vllm.lora.request import LoRARequest

        self._lora = LoRARequest(
            lora_name="adapter", lora_int_id=1, lora_path=self._lora_place
        )
        await self._engine.add_lora(self._lora)

    def _shut_down(self) -> None:
        engine = self._engine
        if engine is not None:
            engine.shutdown()
            # Its destructor calls this again, when Python may be half gone.
            engine.shutdown = _do_nothing
        shutil.rmtree(self._sockets, ignore_errors=True)

    async def _answer(self, ids: Sequence[int], parameters: Any) -> Answer | RagenError:
        """Return an answer, or why there is none.

        An exception that is raised where nobody waits any more would be logged.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        replies = self._engine.generate(
            {"prompt_token_ids": list(ids)},
            parameters,
            f"ragen-{next(self._numbers)}",
            lora_request=self._lora,
        )
        try:
            (output,) = [reply async for reply in replies]
            return _read(output)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            return ProviderError(_CLOSED)
        except RagenError as error:
            return error
        except Exception as error:
            if self._closing:
                return ProviderError(_CLOSED)
            if isinstance(error, EngineDeadError):
                failure: RagenError = ProviderRefusal(
                    "vLLM's engine has died; what it wrote last says why, and the "
                    "same command goes on from here"
                )
            else:
                failure = ProviderError(f"vLLM failed: {error.__cause__ or error!r}")
            failure.__cause__ = error
            return failure


def _read(output: Any) -> Answer:
    (reply,) = output.outputs
    if reply.finish_reason not in ("stop", "length"):
        raise ProviderError(f"vLLM gave up the request: {reply.finish_reason}")
    # What was sampled comes first at each position.
    known, ids = reply.logprobs, tuple(reply.token_ids)
    return Answer(
        ids=ids,
        logprobs=tuple(known.logprobs[start] for start in known.start_indices),
        finish_reason=reply.finish_reason,
        cached_tokens=output.num_cached_tokens,
    )


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


_HOSTS: weakref.WeakSet[EngineHost] = weakref.WeakSet()


def _stop_all() -> None:
    for host in list(_HOSTS):
        host.stop()
