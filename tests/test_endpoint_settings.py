"""Addresses, keys and model arguments of an endpoint are checked before any request."""

import datetime
import email.utils
import json

import pytest

from ragen_bench.errors import InvalidSpec, MissingExtra, UnknownName
from ragen_bench.models import endpoint, endpoint_client
from ragen_bench.models.endpoint_client import Answer
from ragen_bench.models.endpoint_faults import judge, retry_after
from ragen_bench.models.endpoint_key import Key
from ragen_bench.registry import make_model

pytestmark = pytest.mark.api

LOCAL = "http://127.0.0.1:8000/v1"
SECRET = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def load(name: str = "m", **args):
    return make_model(f"openai:{name}", **{"base_url": LOCAL, **args})


@pytest.mark.parametrize(
    "url",
    [
        " ",
        "localhost:8000",
        "ftp://host/v1",
        "http://",
        "http://host:port/v1",
        "http://host:99999/v1",
        "http://ho st/v1",
        "http://hôst/v1",
        "http://host/v1/chat/completions",
        7,
        f"http://user:{SECRET}@host/v1",
        f"http://{SECRET}@host/v1",
        f"http://host/v1?key={SECRET}",
        f"http://host/v1#{SECRET}",
    ],
)
def test_an_address_that_cannot_be_used_or_recorded_is_refused(url) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load(base_url=url)
    assert SECRET not in str(caught.value)


def test_the_address_comes_from_the_argument_then_the_environment(monkeypatch) -> None:
    assert load(base_url=f"{LOCAL}/").options.base_url == LOCAL
    monkeypatch.setenv("OPENAI_BASE_URL", "http://10.0.0.1/v1/")
    assert load(base_url=None).options.base_url == "http://10.0.0.1/v1"
    assert load().options.base_url == LOCAL
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert load(base_url=None).options.base_url == "https://api.openai.com/v1"


def test_the_hosted_address_wants_a_key() -> None:
    with pytest.raises(InvalidSpec, match="OPENAI_API_KEY is not set"):
        load(base_url=None)
    assert load()._key.reveal() == "none"


def test_another_variable_may_hold_the_key(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "usual-key")
    monkeypatch.setenv("MINE", SECRET)
    assert load(api_key_env="MINE")._key.reveal() == SECRET
    assert load()._key.reveal() == "usual-key"


@pytest.mark.parametrize("given", [SECRET, "gsk_0123456789secret", 7, ""])
def test_a_key_in_place_of_a_variable_is_refused_and_not_repeated(given) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load(api_key_env=given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["two words", "line\nbreak", "kéy-0123456789"])
def test_a_key_that_no_header_can_hold_is_refused(value, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(InvalidSpec) as caught:
        load()
    assert value not in str(caught.value)


def test_settings_that_hold_the_key_are_refused(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    for args in (
        {"base_url": f"http://host/{SECRET}/v1"},
        {"extra_body": {"auth": SECRET}},
    ):
        with pytest.raises(InvalidSpec, match="holds the key") as caught:
            load(**args)
        assert SECRET not in str(caught.value)


def test_nothing_about_a_model_shows_its_key(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    model = load()
    facts = [repr(model._key), repr(vars(model)), json.dumps(dict(model.describe()))]
    assert not any(SECRET in fact for fact in facts)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"no {SECRET}!", "no [key]!"),
        (f"no {SECRET[:9]}... here", "no [key]... here"),
        (f"no ***{SECRET[-8:]}", "no ***[key]"),
        (f"{SECRET}{SECRET}", "[key][key]"),
        (f"a {SECRET[:7]} b", f"a {SECRET[:7]} b"),
        ("", ""),
    ],
)
def test_no_part_of_a_key_stays_in_an_error(text, shown) -> None:
    assert Key(SECRET).hide_parts(text).replace("[key][key]", "[key]") == (
        shown.replace("[key][key]", "[key]")
    )


def test_a_placeholder_is_no_secret() -> None:
    assert Key("EMPTY").hide("the room is EMPTY") == "the room is EMPTY"
    assert Key(None).hide_parts("none") == "none"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens_field", "tokens"),
        ("system", "user"),
        ("send_reasoning", "true"),
        ("send_reasoning", True),
        ("send_reasoning", "field"),
        ("omit", "model"),
        ("omit", 7),
        ("omit", ["max_tokens"]),
        ("extra_body", "no json"),
        ("extra_body", "[1]"),
        ("extra_body", {"x": float("nan")}),
        ("extra_body", {"temperature": 1}),
        ("extra_body", {"stream": True}),
        ("extra_body", {"messages": []}),
        ("send_stop", "perhaps"),
        ("max_in_flight", 0),
        ("max_in_flight", "many"),
        ("timeout", 0),
        ("timeout", "soon"),
        ("timeout", "inf"),
        ("timeout", True),
        ("patience", -1),
        ("retries", -1),
        ("retries", 1.5),
        ("retries", True),
        ("backoff", "nan"),
        ("max_context", "long"),
    ],
)
def test_a_setting_that_breaks_a_rule_is_named(name, value) -> None:
    with pytest.raises((InvalidSpec, UnknownName), match=name.split("_")[0]):
        load(**{name: value})


def test_settings_come_as_text_too() -> None:
    options = load(
        timeout="2.5",
        patience="30",
        retries="0",
        backoff="0.1",
        max_in_flight="3",
        omit="seed,top_p",
        send_reasoning="false",
        extra_body={"top_k": 5},
    ).options
    assert (options.timeout, options.patience, options.retries) == (2.5, 30.0, 0)
    assert (options.backoff, options.max_in_flight) == (0.1, 3)
    assert options.omit == {"seed", "top_p"} and options.send_reasoning == "none"
    assert options.sent() == ["max_tokens", "stop", "temperature", "top_k"]


def test_a_model_needs_a_name_and_knows_no_key_argument() -> None:
    with pytest.raises(InvalidSpec, match="names no model"):
        load("")
    with pytest.raises(UnknownName, match="api_key_env"):
        load(api_key="x")


def test_facts_do_not_change_between_two_loads() -> None:
    assert load().describe() == load().describe()
    assert load(max_context="4096").max_context == 4096


def test_a_missing_sdk_is_one_sentence(monkeypatch) -> None:
    def missing(feature: str) -> None:
        raise MissingExtra("api", feature)

    monkeypatch.setattr(endpoint, "require_extra", missing)
    with pytest.raises(MissingExtra, match=r"ragen-bench\[api\]"):
        load()
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(MissingExtra, match=r"ragen-bench\[api\]"):
        endpoint_client.require_extra("this")


# What a failure means ---------------------------------------------------------


def judged(status: int, body: object = b"", sent=None, **headers: str):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return judge(Answer(status, headers, data, 0.0), sent or {"max_tokens": 5})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "no\n  such"}}, "no such"),
        ({"error": "plain"}, "plain"),
        ({"detail": "fast api"}, "fast api"),
        ({"detail": [{"msg": "field"}]}, '[{"msg": "field"}]'),
        ({"object": "error", "message": "old vllm"}, "old vllm"),
        ([{"error": {"message": "in a list"}}], "in a list"),
        (b"<html><h1>Bad</h1> <p>gateway</p></html>", "Bad gateway"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ({"error": {}}, '{"error": {}}'),
        ("x" * 10**6, "x" * 299 + "..."),
        (b"[" * 10**5, "["),
        (7, "7"),
    ],
)
def test_what_an_error_says_is_quoted_in_one_line(body, words) -> None:
    fault = judged(418, body)
    assert fault.kind == "final"
    assert words in fault.message and "\n" not in fault.message
    assert len(fault.message) < 400


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        # A rate limit that speaks of quota passes; one whose quota is empty does not.
        (429, {"error": {"message": "You exceeded your current quota"}}, "transient"),
        (429, {"error": {"type": "insufficient_quota"}}, "refusal"),
        (429, {"error": {"message": "max context length tokens/min"}}, "transient"),
        (403, {"error": {"message": "input was flagged"}}, "final"),
        (403, {"error": {"code": "unsupported_country_region_territory"}}, "refusal"),
        (501, b"", "transient"),
        (418, b"", "final"),
        # Only what we send can be refused, and only if it is named as a parameter.
        (400, {"error": {"message": "unknown field `seed`"}}, "final"),
        (400, {"error": {"message": "max_tokens must be at least 16"}}, "refusal"),
        (400, {"error": {"message": "max_tokens were counted"}}, "final"),
        (400, {"error": {"message": "no", "param": "max_tokens"}}, "refusal"),
        (400, {"error": {"message": "no", "param": "messages[0].content"}}, "final"),
        (404, {"error": {"message": "max_tokens is unknown"}}, "final"),
    ],
)
def test_a_failure_is_judged_by_what_it_says(status, body, kind) -> None:
    assert judged(status, body).kind == kind


def test_a_refused_field_of_extra_body_is_named() -> None:
    said = {"error": {"message": "Unrecognized request argument: 'top_k'"}}
    fault = judged(400, said, {"max_tokens": 5, "top_k": 3})
    assert fault.kind == "refusal" and "take top_k out" in fault.message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after-ms": "soon", "retry-after": "4"}, 4),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        (
            {
                "retry-after": "Wed, 21 Oct 2015 07:28:30 GMT",
                "date": "Wed, 21 Oct 2015 07:28:00 GMT",
            },
            30,
        ),
        (
            {
                "retry-after": "Wed, 21 Oct 2015 09:28:30 +0200",
                "date": "Wed, 21 Oct 2015 07:28:00 GMT",
            },
            30,
        ),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None),
    ],
)
def test_retry_after_is_understood_in_each_form(headers, seconds) -> None:
    assert retry_after(headers) == seconds


def test_a_date_without_the_servers_clock_counts_from_ours() -> None:
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    date = email.utils.format_datetime(until, usegmt=True)
    assert 3500 < retry_after({"retry-after": date}) <= 3600
