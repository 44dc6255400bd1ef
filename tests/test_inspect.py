"""inspect plays our tasks, and its scores are ours."""

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lm_eval_stand_ins import chosen

import ragen_bench as rb
from ragen_bench.errors import InvalidSpec
from ragen_bench.records import Episode

pytestmark = [
    pytest.mark.inspect,
    # inspect leaves streams open, here as elsewhere.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def streams_end_here() -> Iterator[None]:
    """Collect inspect's open streams while their warnings are still ignored."""
    yield
    gc.collect()


ROLES = ("system", "user", "assistant")


def said(messages: Any, **more: Any) -> Any:
    """Return an output of inspect that says what `chosen` says."""
    from inspect_ai.model import ModelOutput, ModelUsage

    text = chosen([{"role": m.role, "content": m.text} for m in messages])
    output = ModelOutput.from_content(
        "mockllm/model", text.removesuffix("</answer>"), **more
    )
    # Without usage inspect counts tokens by a vocabulary that it downloads.
    output.usage = ModelUsage(input_tokens=5, output_tokens=3, total_tokens=8)
    return output


def evaluate(
    folder: Path, answer: Callable[..., Any] = said, **settings: Any
) -> tuple[Any, list[Any]]:
    """Return inspect's log and the configurations that the model was asked with."""
    import inspect_ai
    from inspect_ai.model import get_model

    from ragen_bench.inspect_tasks import ragen

    asked = []

    def reply(messages: Any, tools: Any, choice: Any, config: Any) -> Any:
        asked.append(config)
        return answer(messages)

    epochs = settings.pop("epochs", 1)
    (log,) = inspect_ai.eval(
        ragen(**settings),
        model=get_model("mockllm/model", custom_outputs=reply),
        display="none",
        log_dir=str(folder),
        epochs=epochs,
    )
    return log, asked


def numbers(log: Any) -> dict[str, float]:
    (score,) = log.results.scores
    return {name: metric.value for name, metric in score.metrics.items()}


@pytest.mark.parametrize("context", ["full", "single"])
def test_the_scores_are_those_of_our_own_run(tmp_path, context) -> None:
    settings: dict[str, Any] = {"agent": "direct", "context": context}
    ours = rb.run("smoke", model="player", out=tmp_path / "ours", **settings)
    log, asked = evaluate(tmp_path / "logs", board="smoke", **settings)
    assert log.status == "success"
    found = numbers(log)
    assert found["score"] == ours.score.mean
    for name, cell in ours.cells.items():
        assert found[f"normalized {name}"] == cell.normalized.mean
        assert found[f"success {name}"] == cell.success.mean
    assert len(asked) == sum(c.turns * c.episodes for c in ours.cells.values())


def test_what_a_model_is_asked_with_is_said(tmp_path) -> None:
    cell = {"env": "ragen/Bandit-v0:1", "agent": "direct", "seeds": 1}
    _, (greedy,) = evaluate(tmp_path / "a", **cell)
    assert (greedy.temperature, greedy.stop_seqs) == (0.0, ["</answer>"])
    assert greedy.seed is None and greedy.max_tokens is not None
    _, (drawn,) = evaluate(tmp_path / "b", temperature=0.5, max_tokens=7, **cell)
    assert (drawn.temperature, drawn.max_tokens) == (0.5, 7)
    assert drawn.seed is not None


def test_a_sample_holds_the_whole_episode(tmp_path) -> None:
    log, _ = evaluate(tmp_path, env="ragen/Sokoban-v0:1", agent="direct", seeds=2)
    for sample in log.samples:
        episode = Episode.model_validate(sample.scores["episode"].metadata["episode"])
        assert str(episode.key) == sample.id
        assert episode.turns[0].usage.output_tokens == 3
        assert [message.role for message in sample.messages[:3]] == list(ROLES)
        json.dumps(sample.scores["episode"].metadata)


@pytest.mark.parametrize(("read", "written"), [(400, None), (400, 20), (None, 20)])
def test_tokens_of_a_cache_are_input_too(tmp_path, read, written) -> None:
    from inspect_ai.model import ModelUsage

    def answer(messages: Any) -> Any:
        output = said(messages)
        output.usage = ModelUsage(
            input_tokens=5,
            input_tokens_cache_read=read,
            input_tokens_cache_write=written,
            output_tokens=3,
        )
        return output

    cell = {"env": "ragen/Bandit-v0:1", "agent": "direct", "seeds": 1}
    log, _ = evaluate(tmp_path, answer, **cell)
    (sample,) = log.samples
    episode = Episode.model_validate(sample.scores["episode"].metadata["episode"])
    usage = episode.turns[0].usage
    assert usage.input_tokens == 5 + (read or 0) + (written or 0)
    assert usage.cached_tokens == read


@pytest.mark.parametrize(
    ("stop", "outcome"),
    [("max_tokens", {"turn_limit"}), ("model_length", {"context_overflow"})],
)
def test_an_end_that_is_not_the_models_own_is_an_outcome(
    tmp_path, stop, outcome
) -> None:
    log, _ = evaluate(
        tmp_path,
        lambda messages: said(messages, stop_reason=stop),
        env="ragen/FrozenLake-v0:1",
        agent="direct",
        seeds=3,
    )
    assert {s.scores["episode"].answer for s in log.samples} == outcome


def test_a_fault_of_the_model_is_inspects_business(tmp_path) -> None:
    def fail(messages: Any) -> Any:
        raise RuntimeError("gone")

    log, _ = evaluate(tmp_path, fail, env="ragen/Bandit-v0:1", agent="direct", seeds=1)
    assert log.status == "error"
    assert "gone" in log.error.message


def test_repeats_take_the_place_of_epochs(tmp_path) -> None:
    cell: dict[str, Any] = {"env": "ragen/Bandit-v0:1", "agent": "direct", "seeds": 1}
    log, asked = evaluate(tmp_path / "a", repeats=3, **cell)
    assert (log.status, len(asked)) == ("success", 3)
    log, _ = evaluate(tmp_path / "b", epochs=2, **cell)
    assert "give -T repeats=N" in log.error.message


def test_unknown_arguments_are_refused() -> None:
    from ragen_bench.inspect_tasks import ragen

    with pytest.raises(InvalidSpec, match="no task argument 'sead'; known are"):
        ragen(sead=3)
    with pytest.raises(InvalidSpec, match="no task argument 'model'"):
        ragen(model="tiny")


def test_inspect_finds_the_task_by_name(tmp_path) -> None:
    import inspect_ai
    from inspect_ai.model import get_model

    (log,) = inspect_ai.eval(
        "ragen_bench/ragen",
        model=get_model(
            "mockllm/model", custom_outputs=lambda messages, *_: said(messages)
        ),
        task_args={"env": "ragen/Bandit-v0:2", "agent": "direct", "seeds": 2},
        display="none",
        log_dir=str(tmp_path),
    )
    assert log.eval.task == "ragen_bench/ragen"
    assert "normalized ragen/Bandit-v0:2" in numbers(log)
