"""Human: you, at the terminal; one line you type is one turn."""

import contextlib
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from ragen_bench.agent import Agent, AgentClass, Reply, Task
from ragen_bench.errors import InvalidSpec
from ragen_bench.prompts import answer_text
from ragen_bench.registry import register_agent

_SEPARATORS = re.compile(r"\|\|?|[,;]")
_HELP = (
    "Type actions or beginnings of their names, with spaces between them; the answer "
    "tags are added for you.\n? shows the rules again, {stop} stops."
)


@register_agent("human")
class Human(Agent):
    """Shows observations and reads lines such as ``up up right`` or ``u || r``.

    A line that begins with ``<`` is sent as it stands, any other is wrapped into
    ``<answer>...</answer>``.  ``q`` (``quit`` where an action is called q), or the end
    of the input, stops the run; the episode stays owed.

    Args:
        read: Returns the next line, with its line break; "" at the end of input.
            By default the lines of standard input.
        write: Shows a text; by default on standard error.
    """

    agent_class: ClassVar[AgentClass] = "human"
    _told: ClassVar[str] = ""

    def __init__(
        self,
        *,
        read: Callable[[], str] | None = None,
        write: Callable[[str], object] | None = None,
    ) -> None:
        for name, given in (("read", read), ("write", write)):
            if given is not None and not callable(given):
                raise InvalidSpec(f"{name} is {given!r}, but must be callable")
        self._read = read or _read_line
        self._write = write or _write

    def reset(self, task: Task) -> None:
        """Show which episode begins, and its rules unless they were just shown."""
        super().reset(task)
        taken = {name.casefold() for name in task.action_names}
        self._stop = "quit" if "q" in taken else "q"
        self._write(f"\n--- {task.key} ---\n")
        if task.rules == Human._told:
            self._write("The rules are as before; ? shows them.\n")
            return
        Human._told = task.rules
        self._tell_rules()

    async def act(self, observation: str, info: Mapping[str, Any]) -> Reply:
        """Show the observation and return what the person types."""
        self._write(f"\n{observation}\n")
        while True:
            self._write("> ")
            line = await _in_thread(self._read)
            text = line.strip()
            if not line or text.casefold() == self._stop:
                await _stop_run()
            if text == "?":
                self._tell_rules()
            elif text.startswith("<"):
                return Reply(text=text)
            elif text:
                try:
                    names = read_actions(text, self.task.action_names)
                except InvalidSpec as fault:
                    self._write(f"{fault}\n")
                    continue
                most = self.task.max_actions_per_turn
                if len(names) <= most:
                    return Reply(text=answer_text(names, "", "direct"))
                self._write(f"{len(names)} actions, but a turn holds at most {most}\n")

    def _tell_rules(self) -> None:
        self._write(f"{self.task.rules}\n\n{_HELP.format(stop=self._stop)}\n")


def read_actions(text: str, names: Sequence[str]) -> list[str]:
    """Return the action names that a typed line means.

    Args:
        text: Names or unique beginnings of names, in any case, with white space,
            ``||``, ``|``, ``,`` or ``;`` between them.
        names: The names of the actions.

    Raises:
        InvalidSpec: Something in the line names no action, or several.
    """
    found: list[str] = []
    for chunk in _SEPARATORS.split(text):
        words = chunk.split()
        while words:
            # The longest run of words counts, because a name may have several.
            for size in range(len(words), 0, -1):
                meant = _meant(" ".join(words[:size]), names)
                if len(meant) == 1:
                    break
            else:
                known = ", ".join(meant or names)
                rule = "may be any of" if meant else "is no action; known are"
                raise InvalidSpec(f"{words[0]!r} {rule} {known}")
            found += meant
            del words[:size]
    if not found:
        raise InvalidSpec(f"{text!r} names no action; known are {', '.join(names)}")
    return found


def _meant(typed: str, names: Sequence[str]) -> list[str]:
    """Return the names that a text may stand for; an exact one alone counts."""
    wanted = typed.casefold()
    folded = [(" ".join(name.split()).casefold(), name) for name in names]
    exact = [name for form, name in folded if form == wanted]
    return exact or [name for form, name in folded if form.startswith(wanted)]


async def _stop_run() -> NoReturn:
    """Stop the run: a cancelled player is what the runner takes for that wish."""
    import asyncio  # here and below: it is slow, and only a person at play needs it

    player = asyncio.current_task()
    assert player is not None
    player.cancel("the person stopped")
    await asyncio.sleep(0)
    raise AssertionError("a cancelled task goes on")


async def _in_thread(read: Callable[[], str]) -> str:
    """Return what a blocking reader returns, without blocking the event loop.

    The thread is a daemon: `asyncio.to_thread` would keep a stopped run waiting for
    one more line.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def deliver(line: str, fault: Exception | None) -> None:
        if answer.cancelled():
            return
        if fault is None:
            answer.set_result(line)
        else:
            answer.set_exception(fault)

    def work() -> None:
        line = ""
        fault: Exception | None = None
        try:
            line = read()
        except Exception as error:  # handed to whoever waits for the line
            fault = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(deliver, line, fault)

    threading.Thread(target=work, name="ragen-bench human", daemon=True).start()
    return await answer


def _read_line() -> str:
    """Return the next line of standard input, "" at its end.

    It reads the file descriptor itself: a daemon thread that waits inside
    ``sys.stdin`` holds a lock that the interpreter needs when it exits.
    """
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError):
        return sys.stdin.readline() if sys.stdin else ""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            break
        line += byte
    return line.decode(sys.stdin.encoding or "utf-8", "replace")


def _write(text: str) -> None:
    """Show a text on standard error, with long lines broken between words."""
    width = shutil.get_terminal_size().columns
    lines = (
        line if len(line) <= width else textwrap.fill(line, width)
        for line in text.split("\n")
    )
    sys.stderr.write("\n".join(lines))
    sys.stderr.flush()
