"""The columns of data frames, and how they grow; what fills them is in `frames`."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ragen_bench.records import OUTCOMES

Kind: TypeAlias = str
"""Of a column: ``category``, ``str``, ``int64``, or a pandas dtype that admits NA."""

_LIMITS = ("", "_low", "_high", "_n")

EPISODES: Mapping[str, Kind] = {
    "run": "category",
    "env_id": "category",
    "level": "Int16",
    "split": "category",
    "seed": "int64",
    "rep": "Int32",
    "instance": "category",
    "outcome": "category",
    "scored": "boolean",
    "success": "boolean",
    "return": "Float64",
    "floor": "Float64",
    "ceiling": "Float64",
    "optimal_cost": "Int32",
    "turns": "Int32",
    "actions": "Int32",
    "invalid_turns": "Int32",
    "context_cut": "Int32",
    "reply_chars": "Int64",
    "thinking_chars": "Int64",
    "input_tokens": "Int64",
    "output_tokens": "Int64",
    "reasoning_tokens": "Int64",
    "latency_s": "Float64",
    "cost": "Float64",
}
TURNS: Mapping[str, Kind] = {
    "run": "category",
    "env_id": "category",
    "level": "Int16",
    "split": "category",
    "seed": "int64",
    "rep": "Int32",
    "turn": "Int32",
    "parse": "category",
    "valid": "boolean",
    "actions": "Int32",
    "effective_actions": "Int32",
    "reward": "Float64",
    "scored_reward": "Float64",
    "context_cut": "Int32",
    "reply_chars": "Int64",
    "thinking_chars": "Int64",
    "input_tokens": "Int64",
    "cached_tokens": "Int64",
    "output_tokens": "Int64",
    "reasoning_tokens": "Int64",
    "finish_reason": "category",
    "latency_s": "Float64",
}
CELLS: Mapping[str, Kind] = {
    "run": "category",
    "env_id": "category",
    "level": "Int16",
    "episodes": "Int64",
    **{
        name + limit: "Int64" if limit == "_n" else "Float64"
        for name in ("success", "return", "normalized")
        for limit in _LIMITS
    },
    "floor": "Float64",
    "ceiling": "Float64",
    "efficiency": "Float64",
    "invalid_rate": "Float64",
    "turns": "Float64",
    "actions": "Float64",
    "tokens": "Float64",
    "cost": "Float64",
    **{outcome: "Int64" for outcome in OUTCOMES},
}
RUNS: Mapping[str, Kind] = {
    "run": "category",
    "agent": "category",
    "model": "category",
    "class": "category",
    "board": "category",
    "board_version": "Int32",
    "split": "category",
    "repeats": "Int32",
    "prompt": "category",
    "shots": "Int32",
    "context": "category",
    "temperature": "Float64",
    "top_p": "Float64",
    "max_tokens": "Int64",
    "complete": "boolean",
    "rankable": "boolean",
    "unrankable_because": "str",
    "planned": "Int64",
    "owed": "Int64",
    **{outcome: "Int64" for outcome in OUTCOMES},
    "score": "Float64",
    "score_low": "Float64",
    "score_high": "Float64",
    "score_n": "Int64",
    "input_tokens": "Int64",
    "output_tokens": "Int64",
    "cost": "Float64",
    "currency": "category",
    "version": "category",
    "commit": "category",
    "started": "str",
}


class Columns:
    """The columns of a data frame while it grows."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self._categories: dict[str, dict[Any, int]] = {
            name: {} for name, kind in kinds.items() if kind == "category"
        }
        self._values: dict[str, Any] = {
            name: _empty(kind) for name, kind in kinds.items()
        }
        self._add: list[Callable[[Any], None]] = [
            self._adder(name, kind) for name, kind in kinds.items()
        ]

    def _adder(self, name: str, kind: Kind) -> Callable[[Any], None]:
        append: Callable[[Any], None] = self._values[name].append
        if kind == "category":
            known = self._categories[name]

            def add_name(value: Any) -> None:
                append(-1 if value is None else known.setdefault(value, len(known)))

            return add_name
        if kind in ("str", "int64"):
            return append

        def add_number(value: Any) -> None:
            append(_NAN if value is None else value)

        return add_number

    def add(self, row: Sequence[Any]) -> None:
        """Add a row, its values in the order of the columns."""
        for add, value in zip(self._add, row, strict=True):
            add(value)

    def frame(self) -> Any:
        """Return the data frame."""
        import pandas

        columns = {}
        for name, kind in self._kinds.items():
            values = self._values[name]
            if kind == "category":
                # Not inferred from the values, which may all be missing.
                names = pandas.Index(list(self._categories[name]), dtype="str")
                columns[name] = pandas.Categorical.from_codes(values, names)
            elif kind in ("str", "int64"):
                columns[name] = pandas.Series(values, dtype=kind)
            else:
                columns[name] = _masked(values, kind)
        return pandas.DataFrame(columns)


_NAN = float("nan")


def _empty(kind: Kind) -> Any:
    codes = {"category": "i", "int64": "q"}
    return [] if kind == "str" else array(codes.get(kind, "d"))


def _masked(values: "array[float]", kind: Kind) -> Any:
    """Return numbers as a pandas array in which NaN is a missing value."""
    import numpy
    import pandas

    numbers = numpy.frombuffer(values, dtype=float) if values else numpy.zeros(0)
    missing = numpy.isnan(numbers)
    if kind == "boolean":
        return pandas.arrays.BooleanArray(numbers == 1, missing)
    if kind == "Float64":
        return pandas.arrays.FloatingArray(numbers.copy(), missing)
    whole = numpy.where(missing, 0, numbers).astype(kind.lower())
    return pandas.arrays.IntegerArray(whole, missing)
