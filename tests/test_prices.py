"""Costs follow from recorded tokens, and a budget stops a run that can go on."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import toy
from paid import TABLE, Paid

import ragen_bench as rb
from ragen_bench import forecast
from ragen_bench.errors import InvalidSpec, RunIncomplete, UnknownName
from ragen_bench.ledger import Ledger
from ragen_bench.model import Usage
from ragen_bench.plan import Settings, resolve
from ragen_bench.prices import (
    Tokens,
    cost,
    money,
    price_for,
    read_table,
    tokens_of,
)
from ragen_bench.records import Price, Summary
from ragen_bench.run_folder import RunFolder, read_episodes, read_run
from ragen_bench.runner import Observer
from ragen_bench.scoring import score

PRICE = Price(model="m", date="2026-11-30", currency="USD", input=2.0, output=10.0)
REPLY = 60 * 0.001 + 40 * 0.0005 + 10 * 0.01 + 0.01
"""What one reply of the model ``paid`` costs by this table."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(TABLE)
    return path


def play(out: Path, **settings: Any) -> Summary:
    settings = {"agent": "direct", "model": "paid", "seeds": 6, **settings}
    summary = rb.run(out=out, **{"envs": toy.CELL, **settings})
    assert summary == score(out)
    return summary


def replies(out: Path) -> int:
    return sum(len(episode.turns) for episode in read_episodes(out))


def spent(out: Path) -> float:
    """Return what the ledger's lines say, each of which is one reply."""
    return (out / "ledger.jsonl").read_bytes().count(b"\n") * REPLY


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-9)


# One reply ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "usage", "expected"),
    [
        ({}, Usage(input_tokens=1_000_000, output_tokens=100_000), 3.0),
        # Without a price of their own, cached tokens cost what others do.
        ({}, Usage(input_tokens=10**6, cached_tokens=10**6, output_tokens=0), 2.0),
        (
            {"cached_input": 0.5},
            Usage(input_tokens=10**6, cached_tokens=600_000, output_tokens=0),
            0.4 * 2 + 0.6 * 0.5,
        ),
        # What nobody says was cached was not; it is never more than was read.
        ({"cached_input": 0.5}, Usage(input_tokens=10**6, output_tokens=0), 2.0),
        (
            {"cached_input": 0.5},
            Usage(input_tokens=10**6, cached_tokens=10**7, output_tokens=0),
            0.5,
        ),
        # Reasoning is within the output, unless the table prices it.
        ({}, Usage(input_tokens=0, output_tokens=10**6, reasoning_tokens=10**6), 10.0),
        (
            {"reasoning": 4.0},
            Usage(input_tokens=0, output_tokens=10**6, reasoning_tokens=10**6),
            14.0,
        ),
        ({"per_request": 0.25}, Usage(input_tokens=0, output_tokens=0), 0.25),
        ({}, Usage(output_tokens=5), None),
        ({}, Usage(input_tokens=5), None),
        ({"reasoning": 4.0}, Usage(input_tokens=5, output_tokens=5), None),
    ],
)
def test_a_reply_costs_what_its_tokens_do(changes, usage, expected) -> None:
    found = cost(tokens_of(usage), PRICE.model_copy(update=changes))
    assert found == (None if expected is None else near(expected))


def test_no_reply_costs_nothing_and_no_price_is_unknown() -> None:
    assert cost(Tokens(), PRICE) == 0.0
    assert cost(Tokens(), None) is None


def test_one_unknown_reply_makes_the_sum_unknown() -> None:
    known = tokens_of(Usage(input_tokens=1, output_tokens=1))
    assert cost(known + tokens_of(Usage(input_tokens=1)), PRICE) is None


@pytest.mark.parametrize(
    ("amount", "text"),
    [(1234.5, "1,234.50 EUR"), (0.00073123, "0.000731 EUR"), (None, "unknown EUR")],
)
def test_money_is_short(amount, text) -> None:
    assert money(amount, "EUR") == text


# The table ----------------------------------------------------------------------


def test_a_table_names_models_with_or_without_their_prefix(table) -> None:
    found = read_table(table)
    price = found.price("openai:some/model", str(table))
    assert (price.model, price.output) == ("some/model", 2.0)
    assert (price.date, price.currency) == ("2026-11-30", "EUR")
    assert found.price("paid", str(table)).cached_input == 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("date = ", "is not TOML"),
        ("currency = 'EUR'\n[models]", "date is "),
        (TABLE.replace("input = 1000", "inptu = 1000"), "models.paid.input is "),
        (TABLE.replace("output = 2", "output = -2"), "models.some/model.output is -2"),
        (TABLE.replace("2026-11-30", "'soon'"), "date is 'soon'"),
        (TABLE.replace("input = 1\n", "input = nan\n"), "models.some/model.input"),
    ],
)
def test_a_wrong_table_is_refused(table, text, message) -> None:
    table.write_text(text)
    with pytest.raises(InvalidSpec, match=message):
        read_table(table)


def test_a_table_that_is_no_text_is_refused(tmp_path, table) -> None:
    table.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSpec, match="is not TOML"):
        read_table(table)
    with pytest.raises(InvalidSpec, match="cannot be read: No such file"):
        read_table(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"budget": 1.0}, InvalidSpec, "a budget of 1 needs a price table"),
        ({"budget": 0.0, "prices": "T"}, InvalidSpec, "budget is 0.0, but must be"),
        ({"budget": float("nan"), "prices": "T"}, InvalidSpec, "budget is nan"),
        ({"model": "parrot", "prices": "T"}, UnknownName, "no price of model 'parrot'"),
        (
            {"agent": "random", "model": None, "prices": "T"},
            InvalidSpec,
            "the agent uses no model; leave --prices",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused_before_any_question(
    tmp_path, table, settings, error, message
) -> None:
    calls = Paid.calls
    given = {k: table if v == "T" else v for k, v in settings.items()}
    with pytest.raises(error, match=message):
        play(tmp_path / "out", **given)
    assert Paid.calls == calls
    assert not (tmp_path / "out").exists()


def test_without_a_table_there_is_no_price() -> None:
    assert price_for(None, None, "paid") is None


# A run --------------------------------------------------------------------------


def test_a_summary_tells_the_cost_and_its_table(tmp_path, table) -> None:
    summary = play(tmp_path / "out", prices=table)
    count = replies(tmp_path / "out")
    assert summary.cost == near(count * REPLY)
    assert (summary.currency, summary.price_date) == ("EUR", "2026-11-30")
    assert summary.cells[f"{toy.CELL}:1"].cost == summary.cost
    assert summary.envs[toy.CELL].cost == summary.cost
    assert spent(tmp_path / "out") == near(count * REPLY)


def test_without_prices_a_cost_is_unknown(tmp_path) -> None:
    summary = play(tmp_path / "out")
    assert summary.cost is summary.currency is summary.price_date is None
    assert summary.cells[f"{toy.CELL}:1"].cost is None
    assert not (tmp_path / "out" / "ledger.jsonl").exists()


def test_unknown_tokens_make_an_unknown_cost(tmp_path, table) -> None:
    summary = play(tmp_path / "out", model_args={"known": False}, prices=table)
    assert summary.complete
    assert summary.cost is None
    assert summary.currency == "EUR"


def test_a_provider_error_costs_what_came_before_it(tmp_path, table) -> None:
    summary = play(tmp_path / "out", model_args={"fails": "/3/"}, prices=table)
    assert summary.outcomes["provider_error"] == 1
    assert summary.cost == near(replies(tmp_path / "out") * REPLY)


def test_the_latest_prices_hold_for_the_whole_run(tmp_path, table) -> None:
    play(tmp_path / "out")
    first = play(tmp_path / "out", prices=table)
    assert first.cost == near(replies(tmp_path / "out") * REPLY)
    table.write_text(TABLE.replace("2026-11-30", "2026-12-24").replace("000", "00"))
    later = play(tmp_path / "out", prices=table)
    assert later.cost is not None and first.cost is not None
    assert later.cost < first.cost
    assert later.price_date == "2026-12-24"
    # They are kept, so that neither a resume nor a later count needs the table.
    assert play(tmp_path / "out") == later
    assert read_run(tmp_path / "out").price is not None


# Budgets ------------------------------------------------------------------------


class Reasons(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def over_budget(self, why: str) -> None:
        self.said.append(why)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_budget_stops_a_run_that_a_higher_one_goes_on_with(
    tmp_path, table, concurrency
) -> None:
    out, straight = tmp_path / "out", tmp_path / "straight"
    heard = Reasons()
    budget, before = 1.5, Paid.calls
    how: dict[str, Any] = {"prices": table, "concurrency": concurrency}
    first = play(out, budget=budget, observer=heard, **how)
    assert 0 < first.owed < 6
    assert not first.complete
    (said,) = heard.said
    assert said.startswith("the budget of 1.50 EUR is spent (1.")
    assert "higher --budget goes on" in said
    # What was under way when the money ran out is all that goes beyond it.
    assert budget <= spent(out) < budget + concurrency * REPLY
    saved = (out / "episodes.jsonl").read_bytes()
    calls = Paid.calls
    again = play(out, budget=budget, **how)
    assert Paid.calls == calls
    assert again == first
    last = play(out, budget=100.0, **how)
    assert last.complete
    assert (out / "episodes.jsonl").read_bytes().startswith(saved)
    assert last == play(straight, **how)
    summaries = [(path / "summary.json").read_bytes() for path in (out, straight)]
    assert summaries[0] == summaries[1]
    # The replies of episodes that were given up were paid for all the same.
    assert spent(out) >= spent(straight)
    assert round(spent(out) / REPLY) == Paid.calls - before - replies(straight)


def test_a_budget_that_is_just_enough_leaves_a_complete_run(tmp_path, table) -> None:
    heard = Reasons()
    whole = play(tmp_path / "one", prices=table)
    assert whole.cost is not None
    summary = play(
        tmp_path / "two", prices=table, budget=whole.cost - 1e-6, observer=heard
    )
    assert summary.complete
    assert heard.said == []


def test_a_budget_needs_a_model_that_counts(tmp_path, table) -> None:
    heard = Reasons()
    summary = play(
        tmp_path,
        model_args={"known": False},
        prices=table,
        budget=9.0,
        concurrency=1,
        observer=heard,
    )
    assert summary.owed == 6
    (said,) = heard.said
    assert "does not say how many tokens a reply takes; leave --budget out" in said


def test_what_was_played_without_prices_counts_for_a_budget(tmp_path, table) -> None:
    calls = Paid.calls
    play(tmp_path)
    played = Paid.calls - calls
    lines = (tmp_path / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "episodes.jsonl").write_bytes(b"".join(lines[:-1]))
    kept = replies(tmp_path)
    assert kept < played
    calls = Paid.calls
    summary = play(tmp_path, prices=table, budget=kept * REPLY - 1e-6)
    assert (Paid.calls, summary.owed) == (calls, 1)


def test_a_retried_episode_was_paid_for_twice(tmp_path, table) -> None:
    play(tmp_path, prices=table)
    before = spent(tmp_path)
    lines = (tmp_path / "episodes.jsonl").read_bytes().splitlines()
    lost = json.loads(lines[0]) | {"outcome": "timeout"}
    lines[0] = json.dumps(lost).encode()
    (tmp_path / "episodes.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    play(tmp_path, prices=table, retry_errors=True)
    assert spent(tmp_path) == near(before + len(lost["turns"]) * REPLY)


KILLED = f"""
import os, sys, paid
import ragen_bench as rb
from ragen_bench.runner import Observer
class Last(Observer):
    def episode(self, episode):
        print(paid.Paid.calls, flush=True)
        os._exit(9)
rb.run(envs="toy:{toy.CELL}", agent="direct", model="paid", seeds=6, concurrency=3,
       out=sys.argv[1], prices=sys.argv[2], observer=Last())
"""


def test_a_killed_run_has_paid_for_what_was_in_flight(tmp_path, table) -> None:
    out = tmp_path / "out"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(out), str(table)],
        capture_output=True,
        text=True,
    )
    assert killed.returncode == 9, killed.stderr
    asked = int(killed.stdout)
    assert asked > replies(out)
    assert spent(out) == near(asked * REPLY)
    before, calls = spent(out), Paid.calls
    assert play(out, envs=f"toy:{toy.CELL}", prices=table).complete
    assert spent(out) == near(before + (Paid.calls - calls) * REPLY)


# The file -----------------------------------------------------------------------


def opened(out: Path, price: Price = PRICE, budget: float | None = None) -> Ledger:
    with (
        RunFolder(out, read_run(out)) as folder,
        closing(Ledger(folder, price, budget)) as ledger,
    ):
        return ledger


@pytest.mark.parametrize("tail", [b"{", b"\x00" * 99, b'{"episode": "a"', b"null"])
def test_a_torn_last_line_of_a_ledger_is_cut_off(tmp_path, table, tail) -> None:
    play(tmp_path, prices=table)
    whole = (tmp_path / "ledger.jsonl").read_bytes()
    before = opened(tmp_path).spent
    with open(tmp_path / "ledger.jsonl", "ab") as file:
        file.write(tail)
    assert opened(tmp_path).spent == before
    assert (tmp_path / "ledger.jsonl").read_bytes() == whole


def test_a_line_that_is_no_reply_is_refused(tmp_path, table) -> None:
    play(tmp_path, prices=table)
    whole = (tmp_path / "ledger.jsonl").read_bytes()
    (tmp_path / "ledger.jsonl").write_bytes(b"{}\n" + whole)
    with pytest.raises(RunIncomplete, match="which is no line of a ledger"):
        opened(tmp_path)


def test_a_ledger_says_what_is_spent_and_of_how_much(tmp_path, table) -> None:
    play(tmp_path, seeds=1, prices=table)
    price = read_table(table).price("paid", str(table))
    text = money(replies(tmp_path) * REPLY, "EUR")
    assert str(opened(tmp_path, price)) == text
    assert str(opened(tmp_path, price, 2.0)) == f"{text[:-4]} of 2.00 EUR"


def test_a_forecast_has_a_cost(table) -> None:
    plan = resolve(Settings(envs=[toy.CELL], agent="direct", model="paid", seeds=2))
    cells = forecast.forecast(plan)
    price = read_table(table).price("paid", "here")
    (cell,) = cells
    assert cell.input_tokens is not None and cell.output_tokens is not None
    expected = (cell.input_tokens * 1000 + cell.output_tokens * 10000) / 1e6
    expected += 2 * 5 * 0.01
    assert forecast.cost_of(cells, price) == near(expected)
    assert "cost at most" in forecast.to_text(cells, price)
    assert forecast.to_json(cells, price)["cost"] == near(expected)
