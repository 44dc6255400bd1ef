"""``doctor``, ``plan``, and what ``run`` and ``score`` say of money and repeats."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import toy
from click.testing import CliRunner, Result
from misbehaving import (
    Behaviour,
    Request,
    Server,
    Wire,
    closed_url,
    completion,
    error,
    raw,
    says,
)
from paid import TABLE, Paid

from ragen_bench.cli import cli
from ragen_bench.doctor import CELL
from ragen_bench.model import Message
from ragen_bench.plan import Settings, resolve
from ragen_bench.run_folder import read_episodes

RUN = ["run", "--env", toy.CELL, "--agent", "direct", "--model", "paid"]
RUN += ["--seeds", "4", "--out", "out", "-q"]
ENV = CELL.rpartition(":")[0]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "prices.toml").write_text(TABLE)
    yield tmp_path


def invoke(*words: str) -> Result:
    result = CliRunner().invoke(cli, words)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refusal(*words: str) -> str:
    """Return the one sentence with which the command is refused."""
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if "Error: " in line]
    return line.removeprefix("Error: ")


# Money --------------------------------------------------------------------------


def test_run_shows_what_it_cost(here: Path) -> None:
    result = invoke(*RUN, "--prices", "prices.toml")
    assert result.exit_code == 0
    header, total, *_ = result.stdout.splitlines()
    assert header.split()[-1] == "cost"
    assert total.split()[-1] == "EUR"
    assert "cost" not in invoke(*RUN[:-3], "other", "-q").stdout
    # What was paid is known later, too.
    assert invoke("score", "out").stdout.splitlines()[0].split() == header.split()
    summary = json.loads(invoke("score", "out", "--json").stdout)
    assert (
        summary["cost"] == json.loads((here / "out/summary.json").read_text())["cost"]
    )
    assert (summary["currency"], summary["price_date"]) == ("EUR", "2026-11-30")


def test_a_budget_ends_a_run_with_3_and_one_sentence(here: Path) -> None:
    how = ["--prices", "prices.toml", "--concurrency", "1", "--budget"]
    result = invoke(*RUN, *how, "1")
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    assert re.fullmatch(
        r"stopped: 2 of 4 episodes finished; the budget of 1.00 EUR is spent "
        r"\(1\.\d\d EUR\); the same command with a higher --budget goes on",
        line,
    )
    calls = Paid.calls
    assert invoke(*RUN, *how, "1").exit_code == 3
    assert Paid.calls == calls
    assert invoke(*RUN, *how, "50").exit_code == 0
    assert len(list(read_episodes(here / "out"))) == 4


def test_progress_tells_what_is_spent(here: Path) -> None:
    loud = [word for word in RUN if word != "-q"]
    result = invoke(*loud, "--prices", "prices.toml", "--budget", "50")
    assert re.search(
        r"4/4 episodes: solved 4; \d+ tokens \(.*/s\); 2\.\d\d of 50.00 EUR",
        result.stderr,
    )


def test_money_that_cannot_be_counted_is_refused(here: Path) -> None:
    calls = Paid.calls
    assert "needs a price table: give --prices" in refusal(*RUN, "--budget", "1")
    assert "cannot be read" in refusal(*RUN, "--prices", "nowhere.toml")
    (here / "prices.toml").write_text(TABLE.replace("models.paid", "models.piad"))
    assert "did you mean 'piad'?" in refusal(*RUN, "--prices", "prices.toml")
    assert Paid.calls == calls
    assert not (here / "out").exists()


def test_a_dry_run_tells_the_most_that_it_may_cost() -> None:
    words = [*RUN, "--prices", "prices.toml", "--dry-run"]
    assert re.search(
        r"cost at most [\d.,]+ EUR, by prices of 2026-11-30", invoke(*words).stdout
    )
    assert json.loads(invoke(*words, "--json").stdout)["cost"] > 1


def test_a_cache_spares_a_second_run_its_questions(here: Path) -> None:
    invoke(*RUN, "--cache", "cache")
    calls = Paid.calls
    again = [word if word != "out" else "again" for word in RUN]
    assert invoke(*again, "--cache", "cache").exit_code == 0
    assert Paid.calls == calls
    said = [
        [turn.response for e in read_episodes(here / out) for turn in e.turns]
        for out in ("out", "again")
    ]
    assert said[0] == said[1]


def test_score_shows_the_chances_of_several_tries() -> None:
    invoke(*RUN, "--repeats", "3", "--temperature", "1")
    result = invoke("score", "out", "--pass-at", "1", "--pass-at", "3", "--markdown")
    header = result.stdout.splitlines()[0]
    assert header.endswith("| pass@1 | pass^1 | pass@3 | pass^3 |")
    said = refusal("score", "out", "--pass-at", "4")
    assert said.startswith("pass@4 needs 4 tries of an instance, but 'out' has 3")
    assert "play more --repeats" in said


# Plan ---------------------------------------------------------------------------


def planned(*words: str) -> dict[str, Any]:
    result = invoke("plan", *words, "--json")
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_plan_tells_the_episodes_that_a_gap_needs() -> None:
    found = planned("--gap", "0.05", "--power", "0.8")
    assert found["paired"]["episodes"] == found["paired"]["seeds"] == 785
    assert found["unpaired"]["episodes"] == 1570
    assert found["forecast"]["cost"] is found["forecast"]["input_tokens"] is None
    text = invoke("plan", "--gap", "0.05").stdout
    assert "paired, on the same instances with correlation 0.5: 785 episodes" in text
    assert "tokens" not in text


def test_plan_shares_the_seeds_among_cells() -> None:
    cells = ["--env", toy.CELL, "--env", f"{toy.CELL}:2"]
    found = planned("--gap", "0.1", *cells)
    assert found["paired"] == {
        "episodes": 197,
        "seeds": 99,
        "visible_gap": pytest.approx(0.1, abs=1e-3),
    }
    assert found["cells"] == {f"{toy.CELL}:1": 99, f"{toy.CELL}:2": 99}
    text = invoke("plan", "--gap", "0.1", *cells).stdout
    assert "--seeds 99 (paired), 197 (unpaired)" in text


def test_plan_says_what_a_board_can_show() -> None:
    found = planned("--gap", "0.05", "--board", "smoke")
    assert set(found["cells"].values()) == {8}
    assert found["paired"]["visible_gap"] > 0.05
    text = invoke("plan", "--gap", "0.05", "--board", "smoke").stdout
    assert "board smoke: 8 seeds in each of 6 cells show a gap of" in text
    assert "not enough" in text
    assert ": enough, as " in invoke("plan", "--gap", "0.25", "--board", "smoke").stdout


def test_plan_bounds_the_tokens_of_a_model() -> None:
    words = ["--gap", "0.1", "--env", toy.CELL, "--model", "paid", "--agent", "direct"]
    found = planned(*words, "--prices", "prices.toml")["forecast"]
    assert found["episodes"] == 197
    # Five turns of at most 32 tokens.
    assert found["output_tokens"] == 197 * 5 * 32
    assert found["cost"] > 197 * 5 * 32 * 0.01
    assert found["seconds"] is None
    assert found["basis"].startswith("upper bound")


def test_plan_says_of_a_bound_that_it_is_one() -> None:
    words = ["--gap", "0.1", "--env", toy.CELL, "--model", "paid", "--agent", "direct"]
    text = invoke("plan", *words, "--prices", "prices.toml").stdout
    assert re.search(r"read at most [\d,]+, written at most [\d,]+; cost at most", text)
    assert "at one token a character" in text
    invoke(*RUN)
    learnt = invoke("plan", "--gap", "0.1", "--from", "out", "--success", "0.5").stdout
    assert "at most" not in learnt


@pytest.mark.api
def test_plan_counts_for_a_server_without_asking_it(here: Path) -> None:
    table = TABLE.replace("models.paid", 'models."openai:NAME"')
    (here / "prices.toml").write_text(table)
    words = ["--gap", "0.05", "--power", "0.8", "--board", "smoke"]
    words += ["--model", "openai:NAME", "--base-url", closed_url()]
    found = planned(*words, "--prices", "prices.toml")["forecast"]
    assert found["episodes"] == 48
    assert found["cost"] > 0


def test_plan_learns_from_a_run() -> None:
    invoke(*RUN, "--prices", "prices.toml")
    summary = json.loads(invoke("score", "out", "--json").stdout)
    found = planned("--gap", "0.1", "--from", "out", "--success", "0.5")["forecast"]
    assert found["episodes"] == 197
    share = 197 / 4
    assert found["input_tokens"] == round(summary["input_tokens"] * share)
    assert found["output_tokens"] == round(summary["output_tokens"] * share)
    assert found["cost"] == pytest.approx(summary["cost"] * share, rel=0.01)
    assert found["currency"] == "EUR"
    assert found["seconds"] > 0
    assert found["basis"] == "means of 4 episodes of paid"
    one = planned("--gap", "0.1", "--from", "out", "--success", "0.5")
    many = planned(
        "--gap", "0.1", "--from", "out", "--success", "0.5", "--concurrency", "1"
    )
    ratio = many["forecast"]["seconds"] / one["forecast"]["seconds"]
    assert ratio == pytest.approx(32)
    text = invoke("plan", "--gap", "0.1", "--from", "out", "--success", "0.5").stdout
    assert re.search(r"197 episodes of one model; tokens read [\d,]+, written", text)
    assert "with 32 episodes in flight" in text


def test_plan_takes_the_success_of_the_run() -> None:
    invoke(*RUN, "--temperature", "1", "--seeds", "40")
    solved = sum(episode.success is True for episode in read_episodes(Path("out")))
    assert 0 < solved < 40
    assert planned("--gap", "0.01", "--from", "out")["success"] == solved / 40


def test_plan_knows_nothing_of_cells_that_were_not_played() -> None:
    invoke(*RUN)
    found = planned(
        *("--gap", "0.1", "--success", "0.5", "--from", "out"),
        *("--env", toy.CELL, "--env", f"{toy.CELL}:2"),
    )["forecast"]
    assert found["input_tokens"] is found["cost"] is found["seconds"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gap", "2"], "gap is 2.0, but must be from 0.001 to 0.999"),
        (["--gap", "1e-300"], "gap is 1e-300, but must be"),
        (["--gap", "0.1", "--alpha", "1e-20"], "alpha is 1e-20, but must be"),
        (["--gap", "0.1", "--power", "0.9999999999"], "power is 0.9999999999, but"),
        (["--gap", "0.1", "--correlation", "0.9"], "can only have -1 to 0.818"),
        (["--gap", "0.1", "--prices", "prices.toml"], "prices need a model"),
        (["--gap", "0.1", "--from", "nowhere"], "is no run folder"),
        (["--gap", "0.1", "--env", "toy/Corridor-v9"], "no environment"),
    ],
)
def test_plan_refuses_what_cannot_be(words: list[str], message: str) -> None:
    assert message in refusal("plan", *words)


# Doctor -------------------------------------------------------------------------

Findings = list[dict[str, Any]]


def examined(*words: str, code: int = 0) -> tuple[dict[str, Any], Findings]:
    """Return the report of a doctor that must leave with an exit code."""
    result = invoke("doctor", *words, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == code, report
    assert report["healthy"] == (code == 0)
    return report, report["findings"]


def level(findings: Findings, topic: str, text: str = "") -> str:
    """Return the level of the one finding that says this."""
    found = [f for f in findings if f["topic"] == topic and text in f["text"]]
    (finding,) = found
    level: str = finding["level"]
    return level


def script(replies: list[Any]) -> str:
    Path("script.json").write_text(json.dumps(replies))
    return "scripted:script.json"


def test_doctor_finds_nothing_to_fix_in_sound_replies() -> None:
    spec = script(["<think>on</think><answer>Up</answer>"])
    report, findings = examined("--model", spec)
    assert level(findings, "answer") == "ok"
    assert level(findings, "stop", "ends with '</answer>'") == "ok"
    assert level(findings, "usage", "tokens are not told") == "note"
    assert level(findings, "context", "length is unknown") == "note"
    assert report["requests"] == 2
    text = invoke("doctor", "--model", spec).stdout
    assert "ok   answer: the first reply can be played" in text
    assert text.endswith("script.json was asked 2 times\n")


def test_doctor_says_how_long_a_reply_must_be_allowed_to_be() -> None:
    spec = script([{"text": "<think>so", "finish_reason": "length"}])
    report, findings = examined("--model", spec, code=1)
    assert level(findings, "answer", "cut off in mid-thought") == "fix"
    assert report["flags"] == ["--max-tokens", "1024"]
    assert "give: --max-tokens 1024" in invoke("doctor", "--model", spec).stdout


def test_doctor_sees_a_reply_that_goes_on_behind_its_end() -> None:
    spec = script(["<answer>Up</answer> and so <answer>Up</answer>"])
    _, findings = examined("--model", spec, code=1)
    assert level(findings, "stop", "goes on behind '</answer>'") == "fix"


def test_doctor_notes_an_answer_that_cannot_be_played() -> None:
    _, findings = examined("--model", script(["Up, I think"]))
    assert level(findings, "answer", "cannot be played (no_answer)") == "note"
    assert level(findings, "stop", "no reply held '</answer>'") == "note"


def test_doctor_sees_reasoning_that_comes_apart() -> None:
    reply = {"text": "<answer>Up</answer>", "thinking": "up it is"}
    _, findings = examined("--model", script([reply]))
    assert level(findings, "thinking", "comes apart from the reply") == "note"


def test_doctor_sees_a_context_that_is_too_short() -> None:
    report, findings = examined(
        *("--import", "toy", "--model", "parrot", "--model-arg", "context=100"),
        code=1,
    )
    assert level(findings, "context", "prompt has more than 100") == "fix"
    assert report["flags"] == ["--prompt", "compact"]


def test_doctor_sees_a_context_that_holds_one_turn() -> None:
    size = len("".join(message.content for message in first_prompt()))
    report, findings = examined(
        *("--import", "toy", "--model", "parrot:<answer>Up</answer>"),
        *("--model-arg", f"context={size + 20}"),
        code=1,
    )
    assert level(findings, "answer") == "ok"
    assert report["flags"] == ["--context", "single"]


def first_prompt() -> list[Message]:
    asked = Settings(envs=[CELL], model="parrot", seeds=1)
    plan = resolve(asked)
    return plan.opening(plan.config.cells[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "openai:m", "--base-url", ""], "base_url is ''"),
        (["--model", "openai:m\udcff"], "half a character"),
        (["--model", "tniy"], "no model 'tniy'; did you mean 'tiny'?"),
        (["--model", "paid", "--agent", "random"], "uses no model"),
        (["--model", "paid", "--model-arg", "x=1"], "no argument of model 'paid' 'x'"),
    ],
)
def test_doctor_refuses_what_is_no_model(words: list[str], message: str) -> None:
    assert message in refusal("doctor", *words)


@pytest.mark.hf
def test_doctor_finds_the_own_model_sound() -> None:
    report, findings = examined("--model", "tiny")
    assert report["requests"] == 2
    assert level(findings, "model", "dtype float32, device cpu") == "ok"
    assert level(findings, "template", "present") == "ok"
    assert level(findings, "template", "the whole of the rules") == "ok"
    assert level(findings, "end", "a reply ends with") == "ok"
    assert level(findings, "context", "2048 tokens") == "ok"
    assert level(findings, "usage", "read") == "ok"


# Doctor and servers -------------------------------------------------------------


def models(*entries: Mapping[str, Any]) -> Behaviour:
    return raw(json.dumps({"data": [{"id": "fake"}, *entries]}).encode())


def picky(
    refuses: Callable[[Mapping[str, Any]], str | None], listed: Behaviour | None = None
) -> Behaviour:
    """Return a server that answers 400 where ``refuses`` returns a message."""

    async def answer(request: Request, wire: Wire) -> None:
        if request.path.endswith("/models"):
            await (listed or models())(request, wire)
            return
        message = refuses(request.body)
        if message is None:
            await says("<answer>Up")(request, wire)
        else:
            await error(400, message)(request, wire)

    return answer


def ask_doctor(
    server: Server, *words: str, code: int = 0
) -> tuple[dict[str, Any], Findings]:
    """Return what the doctor finds, who asks a handful of times and says so."""
    report, findings = examined(
        *("--model", "openai:fake", "--base-url", server.url), *words, code=code
    )
    chats = [r for r in server.requests if r.path.endswith("/chat/completions")]
    assert report["requests"] == len(chats) <= 7
    assert len(server.requests) - len(chats) <= 1
    return report, findings


def plays(server: Server, report: dict[str, Any]) -> bool:
    """Return whether a run with the flags that the doctor gave goes well."""
    result = invoke(
        *("run", "--env", ENV, "--seeds", "1", "--max-tokens", "32", "-q"),
        *("--agent", "direct", "--model", "openai:fake", "--base-url", server.url),
        *report["flags"],
    )
    return result.exit_code == 0


@pytest.mark.api
def test_doctor_finds_a_good_server_sound() -> None:
    with Server(picky(lambda body: None)) as server:
        report, findings = ask_doctor(server)
    assert report["model_args"] == {}
    assert level(findings, "parameters", "max_tokens, seed, stop, temperature") == "ok"
    assert level(findings, "reply", "finish_reason 'stop'") == "ok"
    assert level(findings, "usage", "50 read (3 cached), 7 written") == "ok"
    assert level(findings, "answer") == "ok"
    assert report["requests"] == 3


SAYS_WHICH = "Unsupported parameter: '{0}' is not supported with this model."
SAYS_NOTHING = "bad request"


@pytest.mark.api
@pytest.mark.parametrize("message", [SAYS_WHICH, SAYS_NOTHING])
@pytest.mark.parametrize("name", ["temperature", "top_p", "stop", "seed"])
def test_doctor_leaves_out_what_a_server_refuses(name: str, message: str) -> None:
    def refuses(body: Mapping[str, Any]) -> str | None:
        return message.format(name) if name in body else None

    with Server(picky(refuses)) as server:
        report, findings = ask_doctor(server, code=1)
        assert level(findings, "parameters", "the server takes no") == "fix"
        left_out = report["model_args"]["omit"].split(",")
        if message == SAYS_WHICH:
            assert left_out == [name]
        else:
            # Which of two it was would take one more request.
            assert name in left_out and len(left_out) == 2
        assert plays(server, report)
        note = any("samples as it likes" in f["text"] for f in findings)
        assert note == ("temperature" in left_out)


@pytest.mark.api
@pytest.mark.parametrize("message", [SAYS_WHICH, SAYS_NOTHING])
def test_doctor_finds_the_field_that_bounds_a_reply(message: str) -> None:
    def refuses(body: Mapping[str, Any]) -> str | None:
        return message.format("max_tokens") if "max_tokens" in body else None

    with Server(picky(refuses)) as server:
        report, _ = ask_doctor(server, code=1)
        assert report["model_args"] == {"max_tokens_field": "max_completion_tokens"}
        assert plays(server, report)


@pytest.mark.api
@pytest.mark.parametrize("message", ["the 'system' role is not supported", "no"])
def test_doctor_finds_a_server_that_takes_no_system_message(message: str) -> None:
    def refuses(body: Mapping[str, Any]) -> str | None:
        roles = {message["role"] for message in body["messages"]}
        return message if "system" in roles else None

    with Server(picky(refuses)) as server:
        report, _ = ask_doctor(server, code=1)
        assert report["model_args"]["system"] == "merge"
        assert plays(server, report)


@pytest.mark.api
def test_doctor_finds_all_of_several_refusals() -> None:
    def refuses(body: Mapping[str, Any]) -> str | None:
        for name in ("max_tokens", "temperature", "stop"):
            if name in body:
                return SAYS_WHICH.format(name)
        return None

    with Server(picky(refuses)) as server:
        report, _ = ask_doctor(server, code=1)
        assert report["model_args"] == {
            "max_tokens_field": "max_completion_tokens",
            "omit": "temperature,stop",
        }
        assert report["flags"] == [
            *("--model-arg", "max_tokens_field=max_completion_tokens"),
            *("--model-arg", "omit=temperature,stop"),
        ]
        assert plays(server, report)


@pytest.mark.api
@pytest.mark.parametrize("count", range(1, 6))
def test_doctor_finds_as_many_refusals_as_there_are_parameters(count: int) -> None:
    names = ["max_tokens", "temperature", "top_p", "stop", "seed"][:count]

    def refuses(body: Mapping[str, Any]) -> str | None:
        return next((SAYS_WHICH.format(n) for n in names if n in body), None)

    with Server(picky(refuses)) as server:
        report, _ = ask_doctor(server, code=1)
        assert plays(server, report)


@pytest.mark.api
def test_doctor_tells_what_it_learnt_before_it_gave_up() -> None:
    names = ["max_tokens", "temperature", "stop"]

    def refuses(body: Mapping[str, Any]) -> str | None:
        named = (SAYS_WHICH.format(n) for n in names if n in body)
        return next(named, SAYS_NOTHING)

    with Server(picky(refuses)) as server:
        report, findings = ask_doctor(server, code=1)
    assert level(findings, "connection", "found out so far") == "fix"
    assert report["flags"] == [
        *("--model-arg", "max_tokens_field=max_completion_tokens"),
        *("--model-arg", "omit=temperature,stop"),
    ]


@pytest.mark.api
def test_doctor_learns_nothing_from_two_ways_that_are_both_refused() -> None:
    def refuses(body: Mapping[str, Any]) -> str | None:
        fields = ("max_tokens", "max_completion_tokens")
        return next(SAYS_WHICH.format(n) for n in fields if n in body)

    with Server(picky(refuses)) as server:
        report, _ = ask_doctor(server, code=1)
    assert report["flags"] == []


@pytest.mark.api
@pytest.mark.parametrize("fault", [error(503), says(""), raw(b"<html>")])
def test_doctor_asks_nothing_twice_and_counts_what_it_asks(fault: Behaviour) -> None:
    seen: list[Request] = []

    async def answer(request: Request, wire: Wire) -> None:
        if request.path.endswith("/models"):
            await models()(request, wire)
            return
        seen.append(request)
        await (says() if len(seen) == 1 else fault)(request, wire)

    with Server(answer) as server:
        report, findings = ask_doctor(server, code=1)
    assert report["requests"] == len(seen) == 2
    assert level(findings, "connection") == "fix"


@pytest.mark.api
def test_doctor_keeps_what_was_left_out_before() -> None:
    def refuses(body: Mapping[str, Any]) -> str | None:
        for name in ("temperature", "seed"):
            if name in body:
                return SAYS_WHICH.format(name)
        return None

    with Server(picky(refuses)) as server:
        report, _ = ask_doctor(server, "--model-arg", "omit=seed", code=1)
    assert report["model_args"] == {"omit": "temperature,seed"}


@pytest.mark.api
def test_doctor_gives_up_on_a_server_that_takes_nothing() -> None:
    with Server(picky(lambda body: SAYS_NOTHING)) as server:
        report, findings = ask_doctor(server, code=1)
    assert level(findings, "connection", "no reply: bad request") == "fix"
    assert report["flags"] == []


@pytest.mark.api
@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (error(401, "bad key"), "put the key into OPENAI_API_KEY"),
        (error(404, "no such model"), "look at the model's name"),
        (error(503, "overloaded"), "no reply: overloaded"),
        (raw(b"<html>hello</html>", kind="text/html"), "no reply: not JSON"),
    ],
)
def test_doctor_names_what_keeps_a_server_from_answering(
    behaviour: Behaviour, said: str
) -> None:
    with Server(behaviour) as server:
        report, findings = ask_doctor(server, code=1)
    assert level(findings, "connection", said) == "fix"
    assert report["requests"] == 1


@pytest.mark.api
def test_doctor_names_a_server_that_is_not_there() -> None:
    words = ["--model", "openai:fake", "--base-url", closed_url()]
    _, findings = examined(*words, code=1)
    assert level(findings, "connection", "is the server up") == "fix"


@pytest.mark.api
def test_doctor_reads_the_context_of_a_server() -> None:
    listed = raw(json.dumps({"data": [{"id": "fake", "max_model_len": 4096}]}).encode())
    with Server(picky(lambda body: None, listed)) as server:
        report, findings = ask_doctor(server)
    assert report["flags"] == ["--model-arg", "max_context=4096"]
    assert level(findings, "context", "the server tells of 4096 tokens") == "note"
    assert level(findings, "context", "4096 tokens; the first prompt") == "ok"


@pytest.mark.api
def test_doctor_names_the_models_of_a_server() -> None:
    listed = raw(json.dumps({"data": [{"id": "other"}, {"id": 7}, "x"]}).encode())
    with Server(picky(lambda body: None, listed)) as server:
        _, findings = ask_doctor(server)
    assert level(findings, "model", "lists no 'fake', but other") == "note"


@pytest.mark.api
@pytest.mark.parametrize("listed", [error(404), raw(b"[]"), raw(b"no"), raw(b"{}")])
def test_doctor_does_without_a_list_of_models(listed: Behaviour) -> None:
    with Server(picky(lambda body: None, listed)) as server:
        ask_doctor(server)


@pytest.mark.api
@pytest.mark.parametrize(
    ("message", "content", "where"),
    [
        ({"reasoning_content": "hm"}, "<answer>Up", "reasoning_content"),
        ({"reasoning": "hm"}, "<answer>Up", "reasoning"),
        ({}, "<think>hm</think><answer>Up", "content, as <think>"),
        (
            {},
            [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "<answer>Up"},
            ],
            "thinking",
        ),
    ],
)
def test_doctor_says_where_reasoning_stands(
    message: dict[str, Any], content: Any, where: str
) -> None:
    async def answer(request: Request, wire: Wire) -> None:
        await says(content, message=message)(request, wire)

    with Server(answer) as server:
        _, findings = ask_doctor(server)
    assert level(findings, "thinking", f"reasoning stands in {where};") == "note"


@pytest.mark.api
def test_doctor_sees_a_bound_that_is_not_kept() -> None:
    body = completion("<answer>Up")
    body["usage"]["completion_tokens"] = 999
    with Server(raw(json.dumps(body).encode())) as server:
        _, findings = ask_doctor(server)
    assert level(findings, "parameters", "999 were written") == "note"
