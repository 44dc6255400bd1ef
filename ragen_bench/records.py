"""What a run leaves on disk: validated, versioned, strict JSON.

The files themselves are read and written by `ragen_bench.run_folder`.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypeVar,
)

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from ragen_bench.agent import AgentClass
from ragen_bench.errors import RecordError
from ragen_bench.parsing import whole
from ragen_bench.symbolic import Split

R = TypeVar("R", bound="Record")

SCHEMA = 1
"""The version of every record; readers refuse one that they do not know."""

Outcome: TypeAlias = Literal[
    "solved",
    "failed",
    "finished",
    "turn_limit",
    "context_overflow",
    "agent_error",
    "provider_error",
    "timeout",
]
OUTCOMES: tuple[Outcome, ...] = (
    "solved",
    "failed",
    "finished",
    "turn_limit",
    "context_overflow",
    "agent_error",
    "provider_error",
    "timeout",
)
UNSCORED: frozenset[Outcome] = frozenset({"provider_error", "timeout"})
"""Nobody's play: never averaged into a score."""

Parse: TypeAlias = Literal[
    "ok", "empty", "no_answer", "unparsable", "illegal", "too_many", "cut_off"
]


def holds_half_character(value: Any) -> bool:
    """Return whether a string somewhere in a value is none that UTF-8 can hold.

    Args:
        value: A string, or JSON-able values; others hold none.
    """
    if isinstance(value, str):
        return whole(value) != value
    if isinstance(value, Mapping):
        return any(map(holds_half_character, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_half_character, value))
    return False


Text: TypeAlias = Annotated[str, PlainSerializer(whole, when_used="unless-none")]


MAX_DEPTH = 32
"""Brackets within brackets of one JSON text of ours; verification refuses more."""
MAX_VALUES = 200_000
"""Values of one JSON text of ours, such as a line of ``episodes.jsonl``."""
MAX_INT = 2**63
"""Integers lie below it, and not below its negative."""
_MOST_DEPTH = MAX_DEPTH - 4
"""Of a value within such a text: no record holds one deeper than four brackets."""


def plain_json(value: Any) -> Any:
    """Return a value as it comes back from strict JSON in UTF-8.

    Raises:
        TypeError: JSON has no such thing.
        ValueError: A number is not finite or has more than 64 bits, or the value holds
            itself or is too deep.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        plain = json.loads(whole(text))
    except RecursionError:
        raise ValueError(f"is nested over {_MOST_DEPTH} deep") from None
    _check_bounds(plain)
    return plain


def _check_bounds(plain: Any) -> None:
    todo = [(plain, 1)]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, int) and not -MAX_INT <= value < MAX_INT:
            raise ValueError(f"{value} does not fit into 64 bits; write it as a string")
        if not isinstance(value, dict | list):
            continue
        if depth > _MOST_DEPTH:
            raise ValueError(f"is nested over {_MOST_DEPTH} deep")
        inner = value.values() if isinstance(value, dict) else value
        todo += [(each, depth + 1) for each in inner]


def count_values(plain: Any) -> int:
    """Return how many values a JSON value holds, itself included."""
    if isinstance(plain, dict):
        return 1 + sum(map(count_values, plain.values()))
    return 1 + sum(map(count_values, plain)) if isinstance(plain, list) else 1


class Record(BaseModel):
    """A frozen record that refuses unknown keys and numbers that JSON lacks."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        serialize_by_alias=True,
        protected_namespaces=(),
    )


class Versioned(Record):
    """A record that says, under the key ``schema``, how it is to be read."""

    schema_version: int = Field(
        default=SCHEMA,
        validation_alias=AliasChoices("schema", "schema_version"),
        serialization_alias="schema",
    )


class EpisodeKey(NamedTuple):
    """What tells one episode of a run from every other."""

    env_id: str
    level: int
    split: Split
    seed: int
    rep: int

    @property
    def cell(self) -> str:
        """The cell, such as ``"ragen/Bandit-v0:1"``."""
        return f"{self.env_id}:{self.level}"

    def __str__(self) -> str:
        return f"{self.cell}/{self.split}/{self.seed}/{self.rep}"


class TurnUsage(Record):
    """Tokens of one reply; None where the provider does not say."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


class Turn(Record):
    """One reply, what led to it and what came of it."""

    observation: Text
    response: Text
    thinking: Text
    actions: tuple[str, ...]
    """Names of the executed actions."""
    effective: tuple[bool, ...]
    """For each executed action, whether it changed the state."""
    parse: Parse
    valid: bool
    reward: float
    reward_parts: Mapping[str, float]
    """``task`` and ``format``; they add up to the reward."""
    scored_reward: float
    prompt_sha256: str | None
    context_cut: int
    """Earlier turns that were left out of the prompt."""
    usage: TurnUsage
    finish_reason: str
    latency_s: float | None
    """Wall-clock seconds that the agent took."""
    details: Mapping[str, Any] = Field(default_factory=dict)


class Episode(Versioned):
    """One finished episode: one line of ``episodes.jsonl``."""

    env_id: str
    level: int
    split: Split
    seed: int
    rep: int
    instance: str
    """Digest of the instance's canonical form; equal instances cluster by it."""
    outcome: Outcome
    success: bool | None
    """None where the task has no success."""
    episode_return: float = Field(
        validation_alias=AliasChoices("return", "episode_return"),
        serialization_alias="return",
    )
    """Sum of the scored rewards."""
    floor: float
    """Expected return of uniform random actions on this instance."""
    ceiling: float
    """Expected return of the best policy on this instance."""
    optimal_cost: int | None
    """Fewest actions to success, None if undefined."""
    terminated: bool
    truncated: bool
    error: Text | None
    rules: Text
    turns: tuple[Turn, ...]
    final_observation: Text

    @property
    def key(self) -> EpisodeKey:
        """The episode's key within its run."""
        return EpisodeKey(self.env_id, self.level, self.split, self.seed, self.rep)

    @property
    def scored(self) -> bool:
        """Whether the episode counts in scores."""
        return self.outcome not in UNSCORED

    @property
    def action_count(self) -> int:
        """How many actions were executed."""
        return sum(len(turn.actions) for turn in self.turns)


class CellPlan(Record):
    """The episodes of one cell."""

    env_id: str
    level: int
    seeds: tuple[int, ...]

    @property
    def cell(self) -> str:
        """The cell, such as ``"ragen/Bandit-v0:1"``."""
        return f"{self.env_id}:{self.level}"


class RunConfig(Versioned):
    """Everything that a result depends on, apart from versions.

    Two runs of equal configuration and versions play the same episodes.
    """

    board: str | None = None
    board_version: int | None = None
    split: Split = "test"
    cells: tuple[CellPlan, ...]
    repeats: int = Field(default=1, ge=1)
    agent: str
    agent_args: Mapping[str, Any] = Field(default_factory=dict)
    agent_class: AgentClass = Field(
        default="llm",
        validation_alias=AliasChoices("class", "agent_class"),
        serialization_alias="class",
    )
    model: str | None = None
    model_args: Mapping[str, Any] = Field(default_factory=dict)
    env_args: Mapping[str, Any] = Field(default_factory=dict)
    prompt: Literal["full", "compact"] = "full"
    shots: int = Field(default=0, ge=0)
    context: str = "full"
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    salt: str = ""
    """Moves every noise and sampling stream; instances stay."""
    sealed: str | None = None
    """The commitment of the seal that the seeds come from, None for open seeds."""
    breaches: tuple[str, ...] = ()
    """In which ways the run is not the board's; such a run is not ranked."""

    def keys(self) -> tuple[EpisodeKey, ...]:
        """Return every planned episode, in order."""
        return tuple(
            EpisodeKey(plan.env_id, plan.level, self.split, seed, rep)
            for plan in self.cells
            for seed in plan.seeds
            for rep in range(self.repeats)
        )


class Price(Record):
    """What one model costs, in a currency, by a table of some day."""

    model: str
    """The table's name for it."""
    date: str
    """Of the table, ISO 8601."""
    currency: str
    input: float = Field(ge=0)
    """A million tokens that are read."""
    cached_input: float | None = Field(default=None, ge=0)
    """A million of them that the provider had cached; None: as any other."""
    output: float = Field(ge=0)
    """A million tokens that are written."""
    reasoning: float | None = Field(default=None, ge=0)
    """A million reasoning tokens where they come on top of the output; None: they
    are within it."""
    per_request: float = Field(default=0.0, ge=0)


class RunRecord(Versioned):
    """``run.json``: the configuration and what it was played with."""

    config: RunConfig
    versions: Mapping[str, str]
    """Package to version."""
    commit: str | None
    """Commit of the checkout that the package lies in, None if it lies in none."""
    model_facts: Mapping[str, Any]
    """What the model says of itself, such as template and weight hashes."""
    prompt_sha256: Mapping[str, str]
    """Cell to the hash of its first prompt."""
    command: str | None = None
    """The command line that began the run."""
    started: str
    """UTC, ISO 8601."""
    price: Price | None = None
    """What the model cost when it was last asked, None if nobody said."""
    agent_sha256: str | None = None
    """Of the source file of an agent that does not come with ragen-bench; None for one
    that does, or where there is no such file."""
    serving: Mapping[str, Any] = Field(default_factory=dict)
    """Model arguments that change no result, as the run began; others may go on."""


class Interval(Record):
    """A mean with a 95 % interval; all None without any episode."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


class CellScore(Record):
    """The score of one cell, or of one environment over its cells."""

    episodes: int
    success: Interval
    episode_return: Interval
    normalized: Interval
    """(return - floor) / (ceiling - floor), not clipped."""
    floor: float | None
    ceiling: float | None
    efficiency: float | None
    """Mean of optimal cost over actions, over the solved episodes."""
    invalid_rate: float | None
    """Share of turns that were not valid."""
    parses: Mapping[str, int]
    """Turns by parse outcome."""
    turns: float | None
    """Mean turns an episode."""
    actions: float | None
    """Mean actions an episode."""
    tokens: float | None
    """Mean tokens that the agent wrote in an episode, None if unknown."""
    outcomes: Mapping[str, int]
    cost: float | None = None
    """What its replies cost at the run's price, None if unknown."""
    pass_at_k: Mapping[int, Interval] = Field(default_factory=dict)
    """With repeats, for each k: the chance that one of k tries or more succeeds."""
    pass_hat_k: Mapping[int, Interval] = Field(default_factory=dict)
    """With repeats, for each k: the chance that all of k tries succeed."""


class Summary(Versioned):
    """``summary.json``: what a run scored.  It holds no wall-clock time."""

    board: str | None
    agent_class: AgentClass = Field(
        validation_alias=AliasChoices("class", "agent_class"),
        serialization_alias="class",
    )
    agent: str
    model: str | None
    complete: bool
    rankable: bool
    unrankable_because: tuple[str, ...]
    planned: int
    owed: int
    outcomes: Mapping[str, int]
    """Every bucket; with ``owed`` they add up to ``planned``."""
    score: Interval
    """Normalized score: the mean over environments of the mean over cells."""
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None = None
    """What all replies cost, None if unknown; see `ragen_bench.prices`."""
    currency: str | None = None
    price_date: str | None = None
    """The day of the table that the cost was computed with."""
    envs: Mapping[str, CellScore]
    cells: Mapping[str, CellScore]


def parse_record(kind: type[R], text: str | bytes, where: str) -> R:
    """Return the record that a JSON text holds.

    Raises:
        RecordError: The text is not JSON, of another schema, or breaks a rule.
    """
    record = _read_own(kind, text)
    if record is not None:
        return record
    try:
        raw = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where} is not JSON: {error}") from error
    version = raw.get("schema") if isinstance(raw, dict) else None
    if version != SCHEMA:
        raise RecordError(
            f"{where} has schema {version!r}, but this version of ragen-bench reads "
            f"{SCHEMA}; use the version that wrote it"
        )
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise RecordError(f"{where}: {first_fault(error)}") from error


_OWN_HEAD = f'{{"schema":{SCHEMA},'.encode()
"""How our own lines begin."""


def _read_own(kind: type[R], text: str | bytes) -> R | None:
    """Return the record of a line as we write it, None for whatever is else.

    It takes half the time, because no Python object is made of what a record does not
    hold in the end.  It never decides that a text is at fault: `parse_record` does.
    """
    if not isinstance(text, bytes) or not text.startswith(_OWN_HEAD):
        return None
    if b"NaN" in text or b"Infinity" in text:
        return None  # perhaps a number that JSON lacks, perhaps words of a reply
    try:
        record = kind.model_validate_json(text)
    except ValidationError:
        return None
    return record if getattr(record, "schema_version", None) == SCHEMA else None


def first_fault(error: ValidationError) -> str:
    """Return where and what the first fault of a record is, in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place} is {first['input']!r:.80}: {first['msg']}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def sha256_of(value: Any) -> str:
    """Return the SHA-256 of a JSON-able value, as hex digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
