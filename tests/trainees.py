"""What the trainer's tests train: small policies, tables of pairs, scripts."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
import transformers

from ragen_bench.model import Completion, Model
from ragen_bench.models import hf_engine
from ragen_bench.models.chat_template import Chat
from ragen_bench.starpo import config as configuration
from ragen_bench.starpo import training, update
from ragen_bench.starpo.experience import Experience
from ragen_bench.starpo.gae import Estimate
from ragen_bench.starpo.rollout import Cell, Group, Rollouts
from ragen_bench.starpo.trajectories import Segment, Trajectory

LAKE = "ragen/FrozenLake-v0:1"
CORRIDOR = Cell(env_id="toy:toy/Corridor-v0", level=1)
SLIPPERY = Cell(env_id="toy:toy/Corridor-v0", level=2)
KINDS = ("llama", "gpt2")
"""Rotary and absolute positions."""
MODES = {
    "token-mean": None,
    "seq-mean-token-mean": None,
    "seq-mean-token-sum": None,
    "constant": 16.0,
}
"""Aggregations and their constants."""
SIZE = 40
"""Vocabulary of `network`."""


def small(**changed):
    """Return settings of a training that takes a tenth of a second an iteration."""
    settings = {
        "envs": [LAKE],
        "env_args": {"max_turns": 3},
        "groups": 2,
        "rollouts": 3,
        "max_tokens": 6,
        "lr": 1e-3,
        "iterations": 2,
        "entropy": 0.01,
        "hidden_size": 32,
        "layers": 1,
        "device": "cpu",
        **changed,
    }
    return configuration.make(None, settings)


def built(**changed):
    """Return such a training before its first iteration."""
    config = small(**changed)
    return training.build(config, *training.check(config))


def network(kind: str = "llama", **changed):
    """Return a random network of 40 tokens, ready to predict."""
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=SIZE, n_embd=32, n_layer=2, n_head=2, n_positions=128, **changed
        )
        made = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=SIZE,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=128,
            **changed,
        )
        made = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    return made.eval()


class Bigram(torch.nn.Module):
    """Knows pairs alone: row i of a table is what may follow token i."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.head = torch.nn.Linear(*table.shape, bias=False)
        self.head.weight = torch.nn.Parameter(table.log().T.contiguous())
        self.device = torch.device("cpu")

    def base_model(self, input_ids, **options):
        size = self.head.weight.shape[1]
        return SimpleNamespace(
            last_hidden_state=torch.nn.functional.one_hot(input_ids, size).float()
        )

    def get_output_embeddings(self):
        return self.head


TABLE = torch.tensor(
    [
        [0.1, 0.2, 0.3, 0.4],
        [0.4, 0.3, 0.2, 0.1],
        [0.25, 0.25, 0.4, 0.1],
        [0.7, 0.1, 0.1, 0.1],
    ]
)


def segment(*parts: Sequence[int], rewards: Sequence[float] = ()) -> Segment:
    """Return what was read, sampled, read, sampled and so on.

    The log-probability of every sampled token is -1.
    """
    made = Segment()
    for index, ids in enumerate(parts):
        if index % 2:
            made.write(list(ids), [-1.0] * len(ids))
        else:
            made.read(list(ids))
    for turn, reward in zip(made.turns, rewards, strict=False):
        turn.reward = reward
    return made


def experience(*segments: Segment, groups: Sequence[int] | None = None) -> Experience:
    """Return the experience of trajectories of one segment each."""
    numbers = range(len(segments)) if groups is None else groups
    return Experience.of(
        [
            Trajectory(group=group, segments=[one], episode=None)
            for group, one in zip(numbers, segments, strict=True)
        ]
    )


def random_segments(count: int, seed: int = 0, head: int = 0) -> list[Segment]:
    """Return segments of two or three turns and different lengths.

    Args:
        count: How many.
        seed: Draws them.
        head: Leading tokens that all have in common.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(least: int, most: int) -> list[int]:
        size = int(torch.randint(least, most + 1, (), generator=generator))
        return torch.randint(SIZE, (size,), generator=generator).tolist()

    start = draw(head, head)
    made = []
    for index in range(count):
        parts = [start + draw(2, 5), draw(1, 4), draw(1, 6), draw(1, 4)]
        parts += [draw(1, 3), draw(2, 3)] if index % 2 else []
        made.append(segment(*parts, rewards=[0.5 * index, 0.0, 1.0]))
    return made


def lesson(held: Experience, made=None, **changed) -> update.Lesson:
    """Return what there is to learn, with random advantages.

    Args:
        held: Experience.
        made: Network whose log-probabilities ratios are taken to, moved a little.
        changed: Fields of the lesson.
    """
    generator = torch.Generator().manual_seed(1)
    count = len(held.trajectory)
    if made is not None:
        exact = update.reference_logprobs(made, held, 1.0, 10**6)
        held.logprobs = exact + 0.3 * torch.randn(count, generator=generator)
    advantages = torch.randn(count, generator=generator)
    estimate = Estimate(
        advantages=advantages,
        returns=torch.randn(count, generator=generator),
        value_mask=torch.arange(count) % 3 == 0,
    )
    fields = {"experience": held, "estimate": estimate, "old": held.logprobs, **changed}
    return update.Lesson(**fields)


def learn(made, what: update.Lesson, chosen=None, budget: int = 10**6, **numbers):
    """Return the gradients of one step, flat, and what it saw."""
    made.zero_grad()
    chosen = range(len(what.experience.trajectories)) if chosen is None else chosen
    objective = update.Objective(**numbers)
    step = update.accumulate(made, what, chosen, objective, budget)
    return torch.cat([p.grad.flatten() for p in made.parameters()]), step


def tokenizer():
    """Return the byte-level tokenizer of `tiny`."""
    place = f"{hf_engine.__file__.rpartition('/')[0]}/tiny"
    return transformers.AutoTokenizer.from_pretrained(place)


class Script(Model):
    """Says what a script tells it, in ids of its own, and remembers all of it.

    Args:
        say: Turn to text, and whether the reply is cut off before its end.
        letters: Whether texts are spelt letter by letter, as no tokenizer would.
    """

    name = "script"

    def __init__(
        self, say: Callable[[int], tuple[str, bool]], letters: bool = False
    ) -> None:
        self.tokenizer = tokenizer()
        self.end = self.tokenizer.eos_token_id
        self.chat = Chat(self.tokenizer, [self.end])
        self.said: dict[str, list[list[int]]] = {}
        """Conversation to the ids of its replies."""
        self.prompts: dict[str, list[list[int]]] = {}
        self.messages: dict[str, list] = {}
        """Conversation to the messages of its last prompt."""
        self._say = say
        self._letters = letters

    async def generate(self, conversation, sampling):
        for _ in range(len(conversation.key) % 3):
            await asyncio.sleep(0)
        _, prompt = self.chat.prompt(conversation.messages)
        text, cut = self._say(conversation.turn)
        pieces = list(text) if self._letters else [text]
        ids = [id for piece in pieces for id in self.chat.encode_inside(piece)]
        ids += [] if cut else [self.end]
        self.said.setdefault(conversation.key, []).append(ids)
        self.prompts.setdefault(conversation.key, []).append(prompt)
        self.messages[conversation.key] = copy.copy(conversation.messages)
        return Completion(
            text=text,
            prompt_token_ids=tuple(prompt),
            token_ids=tuple(ids),
            logprobs=tuple(-0.5 for _ in ids),
            finish_reason="length" if cut else "stop",
        )


def played(
    model: Model, cell: Cell = CORRIDOR, size: int = 2, salt: str = "s", **settings
) -> list[Trajectory]:
    """Return the trajectories of two groups."""
    rollouts = Rollouts(model, "direct", {"max_tokens": 40}, settings)
    groups = [Group(cell=cell, seed=seed, size=size) for seed in (3, 4)]
    return asyncio.run(rollouts.play(groups, salt))
