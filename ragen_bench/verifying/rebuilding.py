"""The prompts of an episode, rebuilt from its replies: hashes without the prompts.

A conversation grows at its end, so that the hash of a long prompt goes on from that of
the one before.  The hashes are those of `ragen_bench.prompts.sha256_of_messages`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ragen_bench.agent import Shot, Task
from ragen_bench.chat import ChatAgent
from ragen_bench.model import Message
from ragen_bench.prompts import ContextPolicy, shot_messages, system_text
from ragen_bench.records import Episode, RunConfig
from ragen_bench.shots import solved_examples
from ragen_bench.verifying.faults import Faults, difference
from ragen_bench.verifying.replay import Cell

_MOST_OPENINGS = 256
_encode = json.JSONEncoder(ensure_ascii=True).encode


class Prompts:
    """What one of our chat agents is asked in a cell."""

    def __init__(self, cell: Cell, agent: type[ChatAgent], config: RunConfig) -> None:
        env = cell.env
        self.policy = ContextPolicy.parse(config.context)
        self.protocol = agent.protocol
        self.shots: tuple[Shot, ...] = ()
        if config.shots:
            settings = {"prompt": config.prompt, **config.env_args}
            self.shots = solved_examples(
                cell.env_id, cell.level, config.shots, settings
            )
        self._task = Task(
            key="",
            env_id=cell.env_id,
            level=cell.level,
            rules="",
            action_names=(),
            max_turns=env.limits.max_turns,
            max_actions=env.core.limits.max_actions,
            max_actions_per_turn=env.limits.max_actions_per_turn,
            seed=0,
            prompt=config.prompt,
            shots=self.shots,
        )
        self._openings: dict[str, Any] = {}

    def opening(self, rules: str) -> list[Message]:
        """Return the messages that every prompt of an episode begins with."""
        task = dataclasses.replace(self._task, rules=rules)
        system = system_text(task, self.protocol, task.prompt)
        shots = shot_messages(self.shots, self.protocol)
        return [Message(role="system", content=system), *shots]

    def begin(self, rules: str) -> "Conversation":
        """Return the conversation of a new episode with these rules."""
        opening = self._openings.get(rules)
        if opening is None:
            if len(self._openings) >= _MOST_OPENINGS:
                self._openings.clear()
            pairs = [_pair(m.role, m.content) for m in self.opening(rules)]
            opening = hashlib.sha256(b"[" + b",".join(pairs))
            self._openings[rules] = opening
        return Conversation(opening, bool(self.shots))

    def check(self, episode: Episode, faults: Faults) -> None:
        """Compare the prompts of a faithfully recorded episode with what they were."""
        talk = self.begin(episode.rules)
        for number, turn in enumerate(episode.turns):
            cut = turn.context_cut
            place = f"{episode.key} turn {number}"
            least, most = self.cuts(number)
            if not least <= cut <= most:
                rule = f"{least}" if least == most else f"from {least} to {most}"
                message = f"context_cut is {cut}, but must be {rule}"
                faults.add("prompt_mismatch", place, message)
                cut = least
            found = talk.prompt(turn.observation, cut)
            if found != turn.prompt_sha256:
                message = difference("prompt_sha256", turn.prompt_sha256, found)
                faults.add("prompt_mismatch", place, message)
            talk.add(turn.observation, turn.response)

    def cuts(self, past: int) -> tuple[int, int]:
        """Return how many earlier turns may be left out, at least and at most.

        Under ``tokens:n`` only the model could tell, so that any number may be.
        """
        policy = self.policy
        if policy.kind == "tokens":
            return 0, past
        kept = {"full": past, "single": 0, "window": min(past, policy.size)}
        return past - kept[policy.kind], past - kept[policy.kind]


class Conversation:
    """The turns of an episode so far, as they enter the hash of a prompt."""

    def __init__(self, opening: "hashlib._Hash", shots: bool) -> None:
        self._opening = opening
        self._all = opening.copy()
        self._head = "Your task.\n" if shots else ""
        self._turns: list[tuple[str, bytes, bytes]] = []

    def prompt(self, observation: str, cut: int) -> str:
        """Return the hash of the next question, with so many turns left out."""
        kept: Sequence[tuple[str, bytes, bytes]] = self._turns[cut:] if cut else ()
        if cut:
            hasher = self._opening.copy()
            for index, (shown, user, reply) in enumerate(kept):
                first = index == 0 and self._head
                question = _pair("user", self._head + shown) if first else user
                hasher.update(b",%b,%b" % (question, reply))
            is_first = not kept
        else:
            hasher = self._all.copy()
            is_first = not self._turns
        text = self._head + observation if is_first else observation
        hasher.update(b",%b]" % _pair("user", text))
        return hasher.hexdigest()

    def add(self, observation: str, reply: str) -> None:
        """Go on behind a reply."""
        user = _pair("user", observation)
        first = not self._turns and self._head
        shown = _pair("user", self._head + observation) if first else user
        answer = _pair("assistant", reply)
        self._all.update(b",%b,%b" % (shown, answer))
        self._turns.append((observation, user, answer))


def _pair(role: str, content: str) -> bytes:
    return f'["{role}",{_encode(content)}]'.encode("ascii")
