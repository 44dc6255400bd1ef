"""Compares runs of one model that were played through different engines, turn by turn.

    python scripts/agreement.py REFERENCE DIR... [--model FOLDER] [--first]

prints a Markdown table of how many replies each run shares with the reference, and
one of all that differ.  Only turns whose prompts are the same in both runs count.
With ``--model``, the margin of each difference is how much more likely the token of
the reference is than that of the other run where the two first differ, in nats,
computed by transformers in float32; it needs the extra ``hf``.  A margin near zero
is a matter of rounding; a large one is a fault.  ``--first`` compares first turns only.
"""

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen_bench.errors import RagenError
from ragen_bench.model import Completion, Conversation, Message, Model, Sampling
from ragen_bench.plan import Plan
from ragen_bench.records import Episode, EpisodeKey, RunRecord, Turn
from ragen_bench.run_folder import read_episodes, read_run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder in memory."""

    name: str
    record: RunRecord
    episodes: Mapping[EpisodeKey, Episode]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Two replies to one prompt that are not the same."""

    key: EpisodeKey
    turn: int
    ours: Turn
    theirs: Turn


@dataclasses.dataclass(kw_only=True)
class Comparison:
    """One run against the reference."""

    run: Run
    episodes: int = 0
    same_score: int = 0
    turns: int = 0
    elsewhere: int = 0
    """Turns whose prompts differ, or that only one of the two runs has."""
    differences: list[Difference] = dataclasses.field(default_factory=list)


class Recorded(Model):
    """Answers what was answered in a run, and keeps the conversation of each turn."""

    name = "recorded"

    def __init__(self, chat: Any) -> None:
        self.turns: Iterator[Turn] = iter(())
        self.prompts: list[list[Message]] = []
        self._chat = chat

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Return the next reply of the record."""
        self.prompts.append(list(conversation.messages))
        turn = next(self.turns)
        return Completion(text=turn.response, thinking=turn.thinking)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a prompt of these messages has."""
        return len(self._chat.prompt(messages, None)[1])


class Judge:
    """Tells by how much a model prefers one reply to another.

    Args:
        folder: The model.
        record: Of the run that asked the questions.
    """

    def __init__(self, folder: str, record: RunRecord) -> None:
        from ragen_bench.models import hf_loading
        from ragen_bench.models.chat_template import Chat

        self._network, tokenizer = hf_loading.load_network(folder, "float32", "cpu")
        self._chat = Chat(tokenizer, hf_loading.end_ids(self._network, tokenizer))

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
            return ids

        self._encode = encode
        self._end = tokenizer.eos_token_id
        self._model = Recorded(self._chat)
        self._plan = Plan(config=record.config, board=None, model=self._model)

    def margin(
        self, episode: Episode, found: Difference
    ) -> tuple[int, str, str, float]:
        """Return where two replies part, both tokens, and the gap in nats."""
        import torch

        prompt = self._chat.prompt(self._messages(episode, found.turn), None)[1]
        ours = [*self._encode(found.ours.response), self._end]
        theirs = [*self._encode(found.theirs.response), self._end]
        pairs = enumerate(zip(ours, theirs, strict=False))
        place = next((i for i, (a, b) in pairs if a != b), None)
        if place is None:
            raise RagenError("replies that differ have the same tokens")
        ids = torch.tensor([[*prompt, *ours[:place]]])
        with torch.inference_mode():
            logprobs = self._network(input_ids=ids).logits[0, -1].log_softmax(-1)
        a, b = ours[place], theirs[place]
        names = self._chat.piece(a) or "<end>", self._chat.piece(b) or "<end>"
        return place, *names, float(logprobs[a] - logprobs[b])

    def _messages(self, episode: Episode, turn: int) -> list[Message]:
        """Return the conversation that a turn's reply answers."""
        from ragen_bench.episode import noise_rep, task_of

        config, model = self._plan.config, self._model
        env = self._plan.env(episode.env_id, episode.level)
        options = {"rep": noise_rep(episode.rep, config.salt)}
        _, info = env.reset(seed=episode.seed, options=options)
        shots = self._plan.shots(episode.env_id, episode.level)
        agent, key = self._plan.agent(), episode.key
        agent.reset(task_of(key, env, info["rules"], shots, agent, config.salt))
        model.turns, model.prompts = iter(episode.turns), []

        async def play() -> None:
            for played in episode.turns[: turn + 1]:
                await agent.act(played.observation, {})

        asyncio.run(play())
        return model.prompts[turn]


def read(folder: Path) -> Run:
    """Return a run folder."""
    episodes = {episode.key: episode for episode in read_episodes(folder)}
    return Run(name=folder.name, record=read_run(folder), episodes=episodes)


def compare(reference: Run, run: Run, *, first: bool) -> Comparison:
    """Return how a run differs from the reference.

    Args:
        reference: What it is compared with.
        run: Another run over the same episodes.
        first: Whether first turns alone count.
    """
    found = Comparison(run=run)
    for key, episode in reference.episodes.items():
        other = run.episodes.get(key)
        if other is None:
            continue
        found.episodes += 1
        found.same_score += (episode.outcome, episode.episode_return) == (
            other.outcome,
            other.episode_return,
        )
        length = 1 if first else max(len(episode.turns), len(other.turns))
        for turn in range(length):
            if turn >= min(len(episode.turns), len(other.turns)):
                found.elsewhere += 1
                continue
            ours, theirs = episode.turns[turn], other.turns[turn]
            if ours.prompt_sha256 != theirs.prompt_sha256:
                found.elsewhere += 1
                continue
            found.turns += 1
            if (ours.response, ours.finish_reason) != (
                theirs.response,
                theirs.finish_reason,
            ):
                pair = Difference(key=key, turn=turn, ours=ours, theirs=theirs)
                found.differences.append(pair)
    return found


def show(reference: Run, found: Sequence[Comparison], judge: Judge | None) -> None:
    """Print the tables."""
    print(f"Reference: `{reference.name}` ({played_by(reference)}).\n")
    print("| run | played by | episodes | same result | replies | identical | share |")
    print("|---|---|---|---|---|---|---|")
    for each in found:
        same = each.turns - len(each.differences)
        share = f"{100 * same / each.turns:.2f} %" if each.turns else "-"
        print(
            f"| `{each.run.name}` | {played_by(each.run)} | {each.episodes} "
            f"| {each.same_score} | {each.turns} | {same} | {share} |"
        )
    for each in found:
        if each.elsewhere:
            print(
                f"\n`{each.run.name}`: {each.elsewhere} turns behind a difference, "
                "with other prompts, are left out."
            )
    if any(each.differences for each in found):
        print("\n| run | episode | turn | token | reference | other | margin, nats |")
        print("|---|---|---|---|---|---|---|")
    for each in found:
        for pair in each.differences:
            row = f"| `{each.run.name}` | {pair.key} | {pair.turn} "
            if judge is not None:
                episode = reference.episodes[pair.key]
                place, ours, theirs, gap = judge.margin(episode, pair)
                row += f"| {place} | `{ours!r}` | `{theirs!r}` | {gap:.2g} |"
            else:
                row += "| - | - | - | - |"
            print(row)


def played_by(run: Run) -> str:
    """Return an engine's name, its number format and its version."""
    facts = run.record.model_facts
    kind = (run.record.config.model or "?").partition(":")[0]
    version = facts.get("vllm") or facts.get("transformers")
    parts = [kind, facts.get("dtype"), version]
    return " ".join(str(part) for part in parts if part)


def main(arguments: Sequence[str]) -> int:
    """Compare run folders; the exit code is 1 if one shares too little."""
    parser = argparse.ArgumentParser(
        description="compare runs of one model through different engines"
    )
    parser.add_argument("reference", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--model", help="folder of the model, for the margins")
    parser.add_argument("--first", action="store_true", help="first turns only")
    parser.add_argument(
        "--least", type=float, default=0.0, help="share that must agree, in [0, 1]"
    )
    asked = parser.parse_args(arguments)
    try:
        reference, runs = read(asked.reference), [read(run) for run in asked.runs]
    except RagenError as error:
        print(f"agreement: {error}", file=sys.stderr)
        return 2
    judge = Judge(asked.model, reference.record) if asked.model else None
    found = [compare(reference, run, first=asked.first) for run in runs]
    show(reference, found, judge)
    enough = [
        each.turns and len(each.differences) <= (1 - asked.least) * each.turns
        for each in found
    ]
    return 0 if all(enough) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
