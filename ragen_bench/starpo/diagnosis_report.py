"""The words of a diagnosis, a line for each thing that it found."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ragen_bench.starpo.gradient_picture import GradientPicture
from ragen_bench.starpo.rollout_facts import RolloutFacts
from ragen_bench.starpo.template_picture import TemplatePicture

if TYPE_CHECKING:
    from ragen_bench.starpo.diagnosis import Diagnosis

VERDICTS: Mapping[str, str] = MappingProxyType(
    {
        "collapsed": "collapsed, success fell by half",
        "trapped": "in the echo trap, though success has not fallen by half",
        "template": "template collapse, replies hardly depend on their prompts",
        "suspicious": "no collapse, but single alarms",
        "healthy": "healthy",
        "empty": "nothing to judge",
    }
)
REGIMES: Mapping[str, str] = MappingProxyType(
    {
        "diverse": "they vary and depend on their prompts",
        "template": "they vary but fit any prompt: templates",
        "compressed": "they hardly vary but depend on their prompts",
        "collapsed": "they hardly vary and fit any prompt",
    }
)


def report(found: "Diagnosis") -> Iterator[str]:
    """Yield the lines of a diagnosis, the verdict first."""
    yield f"verdict: {VERDICTS[found.verdict]}"
    yield f"{found.iterations} iterations"
    if found.best_success is not None and found.last_success is not None:
        yield (
            f"success {found.best_success:.0%} at its best, "
            f"{found.last_success:.0%} at the end"
        )
    if found.half_fall is not None:
        yield f"success had fallen by half in iteration {found.half_fall}"
    if found.lead_time is not None:
        yield f"the echo-trap alarm came {_lead(found.lead_time)} that"
    elif found.half_fall is not None:
        yield "the echo-trap alarm did not come"
    for alarm in found.alarms:
        lead = found.lead_of(alarm.iteration)
        when = "" if lead is None else f" ({_lead(lead)} success had fallen by half)"
        yield f"alarm, iteration {alarm.iteration}: {alarm.text}{when}"
    if not found.alarms:
        yield "no alarm"
    for one in found.breaks:
        yield (
            f"{one.column} changes level in iteration {one.iteration}: "
            f"{one.point.before:.3g} before, {one.point.after:.3g} after "
            f"({one.point.explained:.0%} of its variation)"
        )
    if found.template is not None:
        yield _template(found.template)
    yield from map(_gradients, found.gradients)
    yield from map(_rollouts, found.rollouts)


def _lead(iterations: int) -> str:
    noun = "iteration" if abs(iterations) == 1 else "iterations"
    return f"{abs(iterations)} {noun} {'before' if iterations >= 0 else 'after'}"


def _template(found: TemplatePicture) -> str:
    text = (
        f"replies in {found.probes} probes: {REGIMES[found.regime]} "
        f"(tell them {found.last_told:.0%} above chance, {found.best_told:.0%} at "
        f"best; information {found.last_information:.2f} nats, "
        f"{found.best_information:.2f} at best; entropy {found.last_entropy:.3g} nats "
        f"a token, {found.first_entropy:.3g} at first"
    )
    if found.z_score is not None:
        text += f"; z-score {found.z_score:.2f}"
    return f"{text})"


def _gradients(found: GradientPicture) -> str:
    task = " ".join(f"{one.task:.2g}" for one in found.buckets)
    rest = " ".join(f"{one.regulariser:.2g}" for one in found.buckets)
    text = (
        f"gradients in iteration {found.iteration}, a token, from small to large "
        f"spread: task {task}, regularisers {rest}"
    )
    if found.outweighed:
        numbers = ", ".join(map(str, found.outweighed))
        noun = "bucket" if len(found.outweighed) == 1 else "buckets"
        text += f"; regularisers outweigh the task in {noun} {numbers}"
    return text


def _rollouts(facts: RolloutFacts) -> str:
    parts = [f"{facts.name}: {facts.episodes} episodes"]
    for value, text in (
        (facts.success, "success {:.0%}"),
        (facts.valid_rate, "valid replies {:.0%}"),
        (facts.distinct_4, "distinct 4-grams {:.1%}"),
        (facts.thought_tokens, "{:.0f} words of reasoning"),
        (facts.top_share, "the most frequent reply {:.0%}"),
    ):
        if value is not None:
            parts.append(text.format(value))
    return ", ".join(parts)
