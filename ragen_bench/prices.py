"""What replies cost: a dated price table that the user gives, and token counts.

The table is TOML::

    date = 2026-11-30
    currency = "USD"

    [models."openai:some-model"]
    input = 1.25          # a million tokens
    cached_input = 0.125  # left out: as any other input
    output = 10.0
    reasoning = 10.0      # only if it comes on top of the output
    per_request = 0.0

A cost is that of the replies as recorded, at full price for those that a replay cache
gave (`ragen_bench.ledger` tells what was really spent).  Where a provider does not say
how many tokens it read or wrote, the cost is unknown, never 0; where it does not say
how many it had cached, none of them counts as cached.
"""

import dataclasses
import datetime
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, ValidationError

from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.records import Price, Record, Turn, first_fault

_MILLION = 1_000_000
_DIGITS = 10
"""Decimals of a cost, as of every number of a summary."""


class _Usage(Protocol):
    """Tokens of a reply, as models and records know them."""

    @property
    def input_tokens(self) -> int | None: ...
    @property
    def cached_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def reasoning_tokens(self) -> int | None: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of some replies; None where one of them is unknown."""

    requests: int = 0
    input: int | None = 0
    cached: int = 0
    output: int | None = 0
    reasoning: int | None = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            requests=self.requests + other.requests,
            input=_plus(self.input, other.input),
            cached=self.cached + other.cached,
            output=_plus(self.output, other.output),
            reasoning=_plus(self.reasoning, other.reasoning),
        )


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def tokens_of(usage: _Usage) -> Tokens:
    """Return the tokens of one reply."""
    read, cached = usage.input_tokens, usage.cached_tokens or 0
    return Tokens(
        requests=1,
        input=read,
        cached=min(cached, read) if read is not None else 0,
        output=usage.output_tokens,
        reasoning=usage.reasoning_tokens,
    )


def tokens_of_turns(turns: Iterable[Turn], *, replayed: bool = True) -> Tokens:
    """Return the tokens of an episode's replies.

    Args:
        turns: Its turns.
        replayed: Whether replies count that a replay cache gave.
    """
    total = Tokens()
    for turn in turns:
        if replayed or turn.details.get("cached") is not True:
            total += tokens_of(turn.usage)
    return total


def cost(tokens: Tokens, price: Price | None) -> float | None:
    """Return what replies cost, None if the price or a needed count is unknown."""
    if price is None or tokens.input is None or tokens.output is None:
        return None
    cheap = price.input if price.cached_input is None else price.cached_input
    total = (tokens.input - tokens.cached) * price.input + tokens.cached * cheap
    total += tokens.output * price.output
    if price.reasoning is not None:
        if tokens.reasoning is None:
            return None
        total += tokens.reasoning * price.reasoning
    return round(total / _MILLION + tokens.requests * price.per_request, _DIGITS)


def money(amount: float | None, currency: str) -> str:
    """Return such as ``"1.25 USD"`` or ``"0.000731 USD"``."""
    if amount is None:
        return f"unknown {currency}"
    digits = f"{amount:,.2f}" if amount >= 1 else f"{amount:.3g}"
    return f"{digits} {currency}"


class _Line(Record):
    """A model's line of a table."""

    input: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
    output: float = Field(ge=0)
    reasoning: float | None = Field(default=None, ge=0)
    per_request: float = Field(default=0.0, ge=0)


class PriceTable(Record):
    """Prices of models on some day."""

    date: datetime.date
    currency: str = Field(min_length=1, max_length=12)
    models: dict[str, _Line]

    def price(self, spec: str, where: str) -> Price:
        """Return the price of a model.

        Args:
            spec: Such as ``"openai:some-model"``; the table may name it so, or by
                what stands after the colon.
            where: The table's file, for the refusal.

        Raises:
            UnknownName: The table does not name it.
        """
        for name in (spec, spec.partition(":")[2]):
            if name in self.models:
                return Price(
                    model=name,
                    date=self.date.isoformat(),
                    currency=self.currency,
                    **self.models[name].model_dump(),
                )
        way_out = f"add it to {where!r}, or leave prices and budget out"
        raise UnknownName.of("price of model", spec, self.models, way_out)


def read_table(path: str | Path) -> PriceTable:
    """Return the price table of a TOML file.

    Raises:
        InvalidSpec: It cannot be read, is no TOML, or breaks a rule.
    """
    where = str(path)
    try:
        found: dict[str, Any] = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InvalidSpec(
            f"prices {where!r} cannot be read: {error.strerror}; give a TOML file"
        ) from error
    except ValueError as error:  # no UTF-8, or no TOML
        raise InvalidSpec(f"prices {where!r} is not TOML: {error}") from error
    try:
        return PriceTable.model_validate(found)
    except ValidationError as error:
        raise InvalidSpec(f"prices {where!r}: {first_fault(error)}") from error


def price_for(
    prices: str | Path | None, budget: float | None, spec: str | None
) -> Price | None:
    """Return the price that a run is to be counted with, None without a table.

    Args:
        prices: The table's file.
        budget: What the run may spend.
        spec: The run's model.

    Raises:
        InvalidSpec: The budget is no amount, or has no table; the table cannot be
            read; or there is no model whose replies would cost anything.
        UnknownName: The table does not name the model.
    """
    if budget is not None and not 0 < budget < float("inf"):
        raise InvalidSpec(f"budget is {budget!r}, but must be an amount above 0")
    if prices is None:
        if budget is not None:
            raise InvalidSpec(
                f"a budget of {budget:g} needs a price table: give --prices FILE"
            )
        return None
    if spec is None:
        raise InvalidSpec("the agent uses no model; leave --prices and --budget out")
    return read_table(prices).price(spec, str(prices))
