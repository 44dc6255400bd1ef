"""The boards and tasks of ragen-bench for ``inspect eval``.

``inspect eval ragen_bench/ragen -T board=smoke --model ...`` plays episodes with the
machinery of ``ragen-bench run`` and inspect's models, so that both give the same
scores.  inspect finds the task by the entry point ``inspect_ai``; the path of this
file works too.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentReasoning,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from ragen_bench.episode import play
from ragen_bench.errors import ContextOverflow, InvalidSpec, ProviderError
from ragen_bench.model import (
    Completion,
    Conversation,
    FinishReason,
    Message,
    Model,
    Sampling,
    Usage,
)
from ragen_bench.plan import Plan, Settings, resolve
from ragen_bench.records import Episode, EpisodeKey, RunConfig, Summary
from ragen_bench.scoring import summarise

_FIELDS = frozenset(field.name for field in dataclasses.fields(Settings))
_FIXED = frozenset({"board", "envs", "model", "model_args"})
_MESSAGES = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
}


@task  # type: ignore[untyped-decorator]
def ragen(board: str = "smoke", env: str | None = None, **settings: Any) -> Task:
    """Play a board, or one cell, with inspect's model.

    Args:
        board: A board's name, or the path of a TOML file.
        env: A cell as ``ID`` or ``ID:level``, in place of the board.
        **settings: The other settings of a run, such as ``agent``, ``prompt``,
            ``context``, ``shots``, ``seeds`` and ``max_tokens``.

    Raises:
        RagenError: A setting is refused.
    """
    asked = {"board": None if env else board, "env": env, **settings}
    config = _plan(asked).config
    # As in a run: a limit on the samples still sees every cell.
    keys = sorted(config.keys(), key=lambda key: (key.rep, key.seed))
    return Task(
        dataset=[
            Sample(id=str(key), input=str(key), metadata=key._asdict()) for key in keys
        ],
        solver=episode_player(
            {"board": None if env else board, "env": env, **settings}
        ),
        scorer=episode_scorer(config.model_dump(mode="json")),
        version=config.board_version or 0,
    )


@solver  # type: ignore[untyped-decorator]
def episode_player(asked: dict[str, Any]) -> Solver:
    """Return what plays the episode of a sample.

    Args:
        asked: The arguments of `ragen`.
    """
    plan = _plan(asked)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if state.epoch != 1:
            raise InvalidSpec("epochs would play the same again; give -T repeats=N")
        key = EpisodeKey(*(state.metadata[name] for name in EpisodeKey._fields))
        model = InspectModel()
        episode = await _play(dataclasses.replace(plan, model=model), key)
        if model.fault is not None:
            # inspect has rules of its own for what fails or reaches a limit.
            raise model.fault
        state.metadata["episode"] = episode.model_dump(mode="json")
        state.messages = [_MESSAGES[m.role](content=m.content) for m in model.shown]
        if model.output is not None:
            state.output = model.output
        state.completed = True
        return state

    return solve


@metric(name="ragen")  # type: ignore[untyped-decorator]
def episode_metric(run: dict[str, Any]) -> Metric:
    """Return what computes the numbers of ``ragen-bench score``.

    Args:
        run: The run's configuration.
    """
    config = RunConfig.model_validate(run)

    def compute(scores: list[SampleScore]) -> dict[str, float]:
        told = [(item.score.metadata or {})["episode"] for item in scores]
        episodes = [Episode.model_validate(one) for one in told]
        return _numbers(summarise(config, episodes))

    return compute


def episode_scorer(run: dict[str, Any]) -> Scorer:
    """Return what scores an episode that was played.

    Args:
        run: The run's configuration.
    """

    @scorer(metrics=[episode_metric(run)], name="episode")  # type: ignore[untyped-decorator]
    def make() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            told = state.metadata["episode"]
            episode = Episode.model_validate(told)
            room = episode.ceiling - episode.floor
            value = (episode.episode_return - episode.floor) / room if room > 0 else 0.0
            return Score(
                value=value,
                answer=episode.outcome,
                explanation=episode.final_observation,
                metadata={"episode": told},
            )

        return score

    made: Scorer = make()
    return made


class InspectModel(Model):
    """The model that inspect evaluates, for one episode.

    Attributes:
        fault: What inspect's model raised, if anything.
        shown: The last prompt and the reply to it.
        output: inspect's last output.
    """

    deterministic = False

    def __init__(self) -> None:
        self.name = "inspect"
        self.fault: Exception | None = None
        self.shown: list[Message] = []
        self.output: ModelOutput | None = None

    async def generate(
        self, conversation: Conversation, sampling: Sampling
    ) -> Completion:
        """Answer the last message of a conversation.

        Raises:
            ContextOverflow: The model's context is full.
            ProviderError: inspect's model raised, or the provider refused.
        """
        messages: list[ChatMessage] = [
            _MESSAGES[message.role](content=message.content)
            for message in conversation.messages
        ]
        sampled = sampling.temperature > 0
        config = GenerateConfig(
            temperature=sampling.temperature,
            top_p=sampling.top_p if sampled else None,
            max_tokens=sampling.max_tokens,
            stop_seqs=list(sampling.stop),
            seed=conversation.turn_seed() if sampled else None,
        )
        try:
            output = await get_model().generate(messages, config=config)
        except Exception as error:  # a provider's client may raise anything
            self.fault = error
            raise ProviderError(f"inspect's model failed: {error!r}") from error
        self.output = output
        completion = _completion(output, sampling)
        reply = Message(role="assistant", content=completion.text)
        self.shown = [*conversation.messages, reply]
        if completion.finish_reason == "content_filter":
            self.fault = ProviderError("the provider refused by its content filter")
            raise self.fault
        return completion


async def _play(plan: Plan, key: EpisodeKey) -> Episode:
    episode, _ = await play(
        plan.env(key.env_id, key.level),
        plan.agent(),
        key,
        shots=plan.shots(key.env_id, key.level),
        salt=plan.config.salt,
    )
    return episode


def _plan(asked: Mapping[str, Any]) -> Plan:
    """Return the run that a task's arguments stand for.

    Raises:
        RagenError: One of them is refused.
    """
    env = asked["env"]
    settings = {name: asked[name] for name in asked.keys() - {"env"}}
    for name in settings:
        if name not in _FIELDS or name in _FIXED - {"board"}:
            known = ", ".join(sorted(_FIELDS - _FIXED))
            raise InvalidSpec(f"no task argument {name!r}; known are {known}")
    envs = () if env is None else (env,)
    return resolve(Settings(envs=envs, model="inspect", **settings), load_model=False)


def _completion(output: ModelOutput, sampling: Sampling) -> Completion:
    """Return inspect's output as a completion.

    Raises:
        ContextOverflow: The model's context is full.
    """
    if output.stop_reason == "model_length":
        raise ContextOverflow("the conversation fills the model's context")
    reason: FinishReason = "stop"
    if output.stop_reason == "max_tokens":
        reason = "length"
    elif output.stop_reason == "content_filter":
        reason = "content_filter"
    text = output.completion
    if reason == "stop" and text.rfind("<answer>") > text.rfind("</answer>"):
        # Servers cut the stop string off, which is part of the reply.
        text += "</answer>" if "</answer>" in sampling.stop else ""
    return Completion(
        text=text,
        thinking=_thinking(output),
        usage=_usage(output.usage),
        finish_reason=reason,
    )


def _usage(told: ModelUsage | None) -> Usage:
    """Return the tokens of a reply; Inspect leaves a cache's out of the input."""
    if told is None:
        return Usage()
    cache = (told.input_tokens_cache_read, told.input_tokens_cache_write)
    return Usage(
        input_tokens=told.input_tokens + sum(count or 0 for count in cache),
        cached_tokens=told.input_tokens_cache_read,
        output_tokens=told.output_tokens,
        reasoning_tokens=told.reasoning_tokens,
    )


def _thinking(output: ModelOutput) -> str | None:
    content = output.message.content if output.choices else ""
    if isinstance(content, str):
        return None
    thoughts = [
        part.reasoning for part in content if isinstance(part, ContentReasoning)
    ]
    return "\n".join(thoughts) or None


def _numbers(summary: Summary) -> dict[str, float]:
    """Return the numbers that inspect shows."""
    found = {
        "score": summary.score.mean,
        "score_low": summary.score.low,
        "score_high": summary.score.high,
    }
    for name, cell in summary.cells.items():
        found[f"normalized {name}"] = cell.normalized.mean
        found[f"success {name}"] = cell.success.mean
    return {name: value for name, value in found.items() if value is not None}
