"""What the probes of templates in ``metrics.csv`` show: RAGEN-2's four regimes."""

import dataclasses
import functools
import statistics
from collections.abc import Sequence
from typing import Literal

from ragen_bench.starpo.collapse_signs import Row
from ragen_bench.starpo.template_collapse import smoothed
from ragen_bench.starpo.thresholds import Thresholds

Regime = Literal["diverse", "template", "compressed", "collapsed"]
"""High or low entropy with much or little information, as `template_collapse` says."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TemplatePicture:
    """The probes of a training; what is last is a median of three."""

    probes: int
    first_entropy: float
    """Conditional entropy in nats a token, a median of three."""
    last_entropy: float
    best_information: float
    """Mutual information in nats, the largest median of three in a row."""
    last_information: float
    best_told: float
    """How well replies tell their prompts, 0 at chance and 1 at best, likewise."""
    last_told: float
    z_score: float | None
    """RAGEN-2's moving average of z-scores at the end."""
    varies: bool
    """Whether the entropy is still high."""
    depends: bool
    """Whether replies still depend on their prompts."""

    @property
    def regime(self) -> Regime:
        """Which of the four it is in the end."""
        if self.varies:
            return "diverse" if self.depends else "template"
        return "compressed" if self.depends else "collapsed"


def template_picture(rows: Sequence[Row], limits: Thresholds) -> TemplatePicture | None:
    """Return what the probes among rows of metrics show, None without any.

    Entropy is low below `Thresholds.entropy_share` of the first one.  Replies no longer
    depend on their prompts if they tell them no better than `template_share` of their
    best, or, if they never could, at all.
    """
    columns = (
        "conditional_entropy",
        "mutual_information",
        "retrieval",
        "retrieval_chance",
    )
    found = [
        [float(value) for value in (row.get(c) for c in columns) if value is not None]
        for row in rows
    ]
    whole = [values for values in found if len(values) == len(columns)]
    if not whole:
        return None
    entropy = [h for h, _, _, _ in whole]
    information = _windows([i for _, i, _, _ in whole])
    told = _windows([(r - c) / (1 - c) if c < 1 else 0.0 for _, _, r, c in whole])
    scores = [z for row in rows if (z := row.get("mi_z_score")) is not None]
    first, last = statistics.median(entropy[:3]), statistics.median(entropy[-3:])
    least = max(limits.template_share * max(told), 0.01)
    return TemplatePicture(
        probes=len(whole),
        first_entropy=first,
        last_entropy=last,
        best_information=max(information),
        last_information=information[-1],
        best_told=max(told),
        last_told=told[-1],
        z_score=functools.reduce(smoothed, scores, None),
        varies=last > limits.entropy_share * first,
        depends=told[-1] > least,
    )


def _windows(values: Sequence[float]) -> list[float]:
    """Return the medians of three in a row, or of all if there are no more."""
    count = max(1, len(values) - 2)
    return [statistics.median(values[i : i + 3]) for i in range(count)]
