"""From a run folder to a bundle and an entry: what is checked, written, kept back."""

import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from submissions import FACTS, META, SALT, board_file, play, small

import ragen_bench as rb
from ragen_bench import cli_submit, meta_files
from ragen_bench.cli import cli
from ragen_bench.entries import MEMBERS, Entry, Meta, read_entry
from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.records import RunRecord
from ragen_bench.redaction import HIDDEN, redact, redact_command
from ragen_bench.run_folder import read_run, write_json
from ragen_bench.submission import obstacles, submit
from ragen_bench.verifying import verify


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.fixture
def run(here: Path) -> Path:
    return play(here)


def edit(folder: Path, **config: object) -> RunRecord:
    """Change the configuration in ``run.json``."""
    held = read_run(folder)
    changed = held.model_copy(update={"config": held.config.model_copy(update=config)})
    write_json(folder / "run.json", changed)
    return changed


def drop(folder: Path, count: int) -> None:
    """Leave out the last episodes."""
    path = folder / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) - count]))


def member(bundle: Path, name: str) -> bytes:
    with zipfile.ZipFile(bundle) as archive:
        return archive.read(name)


def invoke(*words: object, input: str | None = None) -> Result:
    result = CliRunner().invoke(cli, [str(word) for word in words], input=input)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def submitting(*more: object, board: str = "small.toml", **how) -> Result:
    words = ("submit", "run", "--board", board, "--out", "mine.zip", *more)
    return invoke(*words, **how)


def meta_file(folder: Path, **changed: object) -> Path:
    path = folder / "meta.json"
    path.write_text(json.dumps({**FACTS, **changed}), encoding="utf-8")
    return path


# What is written ----------------------------------------------------------------


def test_submit_writes_a_bundle_and_an_entry_that_a_replay_confirms(here, run):
    made = submit(run, small(), here / "mine.zip", META)
    assert made.faults == ()
    with zipfile.ZipFile(here / "mine.zip") as archive:
        assert tuple(archive.namelist()) == MEMBERS
    entry = read_entry(here / "mine.json")
    assert entry == made.entry
    bundle = (here / "mine.zip").read_bytes()
    assert entry.bundle == "mine.zip"
    assert entry.bundle_sha256 == hashlib.sha256(bundle).hexdigest()
    episodes = member(here / "mine.zip", "episodes.jsonl")
    assert entry.episodes_sha256 == hashlib.sha256(episodes).hexdigest()
    assert episodes == (run / "episodes.jsonl").read_bytes()
    assert (entry.status, entry.sealed, entry.meta) == ("replayed", None, META)
    assert entry.board_digest == small().digest
    checked = verify(here / "mine.json", board=small())
    assert checked.faults == ()
    assert entry.returns == checked.returns and entry.summary == checked.summary
    assert {cell: len(held) for cell, held in entry.returns.items()} == {
        "ragen/Bandit-v0:1": 3,
        "ragen/Sokoban-v0:1": 4,
        "ragen/FrozenLake-v0:1": 4,
    }
    assert entry.settings["prompt"] == "full" and entry.settings["repeats"] == 1
    assert not list(here.glob(".part*"))


def test_the_same_run_gives_the_same_bytes(here, run):
    submit(run, small(), here / "a" / "mine.zip", META)
    submit(run, small(), here / "b" / "mine.zip", META)
    for name in ("mine.zip", "mine.json"):
        assert (here / "a" / name).read_bytes() == (here / "b" / name).read_bytes()
    with zipfile.ZipFile(here / "a" / "mine.zip") as archive:
        assert {info.date_time for info in archive.infolist()} == {
            (1980, 1, 1, 0, 0, 0)
        }


def test_scores_come_from_the_replay_and_not_from_the_folder(here, run):
    summary = json.loads((run / "summary.json").read_text())
    summary["score"]["mean"] = 99.0
    (run / "summary.json").write_text(json.dumps(summary))
    made = submit(run, small(), here / "mine.zip", META)
    assert made.entry is not None and made.entry.summary.score.mean != 99.0


def test_a_run_with_a_fault_writes_nothing(here, run):
    path = run / "episodes.jsonl"
    lines = path.read_text().splitlines()
    episode = json.loads(lines[0])
    episode["turns"][0]["observation"] += "x"
    path.write_text("\n".join([json.dumps(episode), *lines[1:]]) + "\n")
    made = submit(run, small(), here / "mine.zip", META)
    assert made.entry is None
    assert "observation_mismatch" in {fault.code for fault in made.faults}
    result = submitting("--meta", meta_file(here))
    assert result.exit_code == 1
    assert "observation_mismatch" in result.stdout
    assert "nothing was written" in result.stderr
    assert sorted(path.name for path in here.glob("*mine*")) == []


def test_a_bundle_is_named_like_its_entry(here, run):
    with pytest.raises(InvalidSpec, match=r"give --out .*mine\.zip"):
        submit(run, small(), here / "other.zip", META)


@pytest.mark.parametrize(
    "there", [["mine.zip"], ["mine.json"], ["mine.zip", "mine.json"]]
)
def test_a_submission_of_old_is_replaced_only_on_request(here, run, there):
    for name in there:
        (here / name).write_text("of old")
    result = submitting("--meta", meta_file(here))
    assert result.exit_code == 2
    assert f"{' and '.join(there)} exist" in result.stderr
    assert "--force" in result.stderr and "another --out" in result.stderr
    assert all((here / name).read_text() == "of old" for name in there)
    with pytest.raises(InvalidSpec, match="already"):
        submit(run, small(), here / "mine.zip", META)
    assert submitting("--meta", meta_file(here), "--force").exit_code == 0
    assert verify(here / "mine.json", board=small()).faults == ()
    assert verify(here / "mine.zip", board=small()).faults == ()


def test_an_old_submission_is_told_of_before_anything_is_asked(here, monkeypatch):
    monkeypatch.setattr(cli_submit, "is_terminal", lambda: True)
    board_file(here)
    (here / "mine.zip").write_text("of old")
    # There is no run, and nobody answers.
    assert "mine.zip exists already" in submitting().stderr


def test_one_fault_is_no_faults(here, run):
    path = run / "episodes.jsonl"
    first, rest = path.read_text().split("\n", 1)
    episode = json.loads(first)
    episode["final_observation"] += "x"
    path.write_text(f"{json.dumps(episode)}\n{rest}")
    result = submitting("--meta", meta_file(here))
    assert len(result.stdout.splitlines()) == 1
    assert "run: 1 fault in the replay" in result.stderr


def test_a_last_line_that_is_cut_off_stays_out_of_the_bundle(here, run):
    whole = (run / "episodes.jsonl").read_bytes()
    with open(run / "episodes.jsonl", "ab") as file:
        file.write(b'{"schema": 1, "env_')
    submit(run, small(), here / "mine.zip", META)
    assert member(here / "mine.zip", "episodes.jsonl") == whole


class Wordy(rb.Agent):
    """Stands still, with details as large and as deep as a record may hold."""

    def reset(self, task: rb.Task) -> None:
        super().reset(task)
        self.left = 149_900

    async def act(self, observation: str, info: object) -> rb.Reply:
        deep: object = [2**63 - 1, -(2**63)]
        for _ in range(25):
            deep = {"x": deep}
        count, self.left = self.left // 2, self.left - self.left // 2
        details = {"deep": deep, "many": [0] * max(0, count - 40)}
        return rb.Reply(text="<answer>?</answer>", details=details)


def test_whatever_was_played_can_be_submitted(here, monkeypatch):
    play(here, agent=f"{__name__}:Wordy")
    summary = rb.score("run")
    assert not summary.outcomes["agent_error"]
    found = verify(here / "run", board=small())
    assert found.faults == ()


# What must not leave the machine ------------------------------------------------


def test_no_key_password_or_home_is_in_a_bundle(here, run, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "topsecretvalue")
    held = read_run(run)
    config = held.config.model_copy(
        update={
            "model_args": {
                "api_key": "plainkey1",
                "base_url": "https://me:pass123@host.example/v1?key=query77&a=b",
                "file": "/home/somebody/models/one.gguf",
                "extra_body": '{"headers": {"X-Auth": "inbody99"}, "top_k": 4}',
                "note": "with topsecretvalue inside",
                "header": {"Authorization": "Bearer headervalue"},
                "max_tokens_field": "max_tokens",
                "prefix": "/no_think",
            }
        }
    )
    command = (
        "ragen-bench run --model hf:/home/somebody/models/Small-1B "
        "--model-arg api_key=plainkey1 --out /home/somebody/runs/x "
        "--base-url https://me:pass123@host.example/v1"
    )
    facts = {"folder": "/home/somebody/models/Small-1B", "files": {"a": "b" * 64}}
    changed = held.model_copy(
        update={
            "config": config,
            "command": command,
            "model_facts": facts,
            "serving": {"api_key_env": "MY_API_KEY"},
        }
    )
    write_json(run / "run.json", changed)
    made = submit(run, small(), here / "mine.zip", META)
    assert made.faults == ()
    text = member(here / "mine.zip", "run.json") + (here / "mine.json").read_bytes()
    for secret in ("plainkey1", "pass123", "query77", "inbody99", "topsecret"):
        assert secret.encode() not in text
    for private in ("headervalue", "somebody", "MY_API_KEY"):
        assert private.encode() not in text
    kept = made.entry.settings["model_args"]
    assert kept["file"] == "one.gguf"
    assert kept["base_url"].startswith(f"https://{HIDDEN}@host.example/v1?key={HIDDEN}")
    assert kept["max_tokens_field"] == "max_tokens"
    assert kept["prefix"] == "/no_think"
    assert json.loads(kept["extra_body"]) == {"headers": HIDDEN, "top_k": 4}
    assert "hf:Small-1B" in made.entry.command
    assert made.entry.model_facts["files"] == {"a": "b" * 64}


def test_a_secret_of_this_machine_in_an_episode_is_refused(here, run, monkeypatch):
    line = (run / "episodes.jsonl").read_text().splitlines()[0]
    word = json.loads(line)["turns"][0]["prompt_sha256"] or json.loads(line)["instance"]
    monkeypatch.setenv("SOME_TOKEN", word)
    with pytest.raises(InvalidSpec, match="line 1 holds the value") as raised:
        submit(run, small(), here / "mine.zip", META)
    assert word not in str(raised.value)
    assert list(here.glob("*mine*")) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sk-abcdefghijklmnopqrstuv", HIDDEN),
        ("hf_abcdefghijklmnopqrstuv", HIDDEN),
        ("pretrained=/data/me/x,dtype=float32", "pretrained=x,dtype=float32"),
        ("~/models/x", "x"),
        (r"C:\Users\me\x.gguf", "x.gguf"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("org/model", "org/model"),
        ("max_tokens=128", "max_tokens=128"),
        ("/no_think", "/no_think"),
        ("api_key=12345", f"api_key={HIDDEN}"),
        ("api-key: abc", f"api-key: {HIDDEN}"),
        ("https://host/x?sig=abc&v=1", f"https://host/x?sig={HIDDEN}&v=1"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0", HIDDEN),
        ("file:///home/me/data/x", "file://x"),
        ("loaded from /home/me/x", "loaded from x"),
        ("@/home/me/salt", "@salt"),
    ],
)
def test_texts_keep_what_is_no_secret(text, shown):
    assert redact(text) == shown


@pytest.mark.parametrize(
    "name",
    ["access_key", "openai_key", "subscription-key", "user_token", "auth", "db.pwd"],
)
def test_values_are_hidden_by_what_they_are_called(name):
    for value in ("abc", ["user", "word"], {"a": 1}):
        assert redact({name: value}) == {name: HIDDEN}
    assert redact({"pad_token": "<pad>"}) == {"pad_token": "<pad>"}


@pytest.mark.parametrize(
    "word",
    ["--model-arg=password=abc,defsecret", "--model-arg=api_key=12345678"],
)
def test_a_pair_within_an_option_is_hidden_whole(word):
    assert HIDDEN in redact_command(f"ragen-bench run {word}")
    assert "secret" not in redact_command(f"ragen-bench run {word}")
    assert "1234" not in redact_command(f"ragen-bench run {word}")


def test_a_secret_that_begins_like_a_path_is_one(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "/wJalrXUtnFEMI/K7MDENG")
    assert redact("x /wJalrXUtnFEMI/K7MDENG") == f"x {HIDDEN}"


def test_a_providers_key_in_an_episode_is_refused(here, run):
    path = run / "episodes.jsonl"
    first, rest = path.read_text().split("\n", 1)
    episode = json.loads(first)
    episode["turns"][0]["details"] = {"note": "sk-abcdefghijklmnopqrstuv"}
    path.write_text(f"{json.dumps(episode)}\n{rest}")
    with pytest.raises(InvalidSpec, match="line 1 holds what looks like") as raised:
        submit(run, small(), here / "mine.zip", META)
    assert "sk-abc" not in str(raised.value)


def test_a_command_keeps_its_options():
    command = "ragen-bench run --api-key abc123 --model-arg token=t0 --out /a/b/c -q"
    shown = redact_command(command)
    assert "abc123" not in shown and "t0" not in shown
    assert shown.endswith("--out c -q")
    assert redact_command("never 'closed") == HIDDEN
    assert redact_command(None) is None


# What stands in the way ---------------------------------------------------------


def test_a_sound_run_has_no_obstacle(run):
    assert obstacles(run, small()) == ()


def test_every_obstacle_is_told_at_once(run):
    edit(run, prompt="compact", salt="x", agent_class="human")
    board = small().model_copy(
        update={"rules": small().rules.model_copy(update={"prompts": ("full",)})}
    )
    drop(run, 2)
    found = obstacles(run, board)
    assert [obstacle.kind for obstacle in found] == [
        "unrankable",
        "unrankable",
        "incomplete",
    ]
    told = " ".join(obstacle.message for obstacle in found)
    assert "a salt moves the noise" in told and "prompt is 'compact'" in told
    assert "2 of 11 episodes owed; the command that began the run goes on" in told


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        ({"board": None}, "the run is of no board; play one: ragen-bench run"),
        ({"board": "other"}, "the run is of board 'other', but --board is 'small'"),
        ({"board_version": 7}, "of version 7 of board 'small', but version 1 is here"),
    ],
)
def test_a_run_of_another_board_is_wrong_usage(here, run, changed, hint):
    edit(run, **changed)
    result = submitting("--meta", meta_file(here))
    assert result.exit_code == 2
    assert hint in result.stderr
    assert not (here / "mine.zip").exists()


def test_an_incomplete_run_exits_3(here, run):
    drop(run, 1)
    result = submitting("--meta", meta_file(here))
    assert result.exit_code == 3
    assert "1 of 11 episodes owed" in result.stderr


def test_an_unrankable_run_exits_4_and_says_why(here, run):
    path = run / "episodes.jsonl"
    lines = path.read_text().splitlines()
    episode = {**json.loads(lines[0]), "outcome": "timeout", "error": "late"}
    path.write_text("\n".join([json.dumps(episode), *lines[1:]]) + "\n")
    result = submitting("--meta", meta_file(here))
    assert result.exit_code == 4
    assert "nobody's play" in result.stderr and "--retry-errors" in result.stderr


def test_a_folder_without_a_run_is_refused(here):
    board_file(here)
    (here / "run").mkdir()
    result = submitting("--meta", meta_file(here))
    assert (result.exit_code, "is no run folder" in result.stderr) == (2, True)


# What people say ----------------------------------------------------------------


def test_the_command_says_what_it_wrote_and_what_comes_next(here, run):
    result = submitting("--meta", meta_file(here, attempt=3))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["mine.zip", "mine.json"]
    assert "leaderboards/entries/small/" in result.stderr
    assert "pull request" in result.stderr
    assert read_entry(here / "mine.json").meta.attempt == 3


def test_without_a_terminal_the_fields_are_listed(here, run):
    result = submitting()
    assert result.exit_code == 2
    for field in meta_files.QUESTIONS:
        assert field in result.stderr
    assert "--meta-template" in result.stderr


def test_on_a_terminal_it_asks_and_asks_again(here, run, monkeypatch):
    monkeypatch.setattr(cli_submit, "is_terminal", lambda: True)
    answers = [
        "",
        "none",
        "  ",
        "Me",
        "ftp://x",
        "https://x.example",
        "MIT",
        "none",
        "0",
        "",
    ]
    result = submitting(input="\n".join(answers) + "\n")
    assert result.exit_code == 0, result.output
    meta = read_entry(here / "mine.json").meta
    wanted = Meta(
        name="mine",
        model="none",
        organisation="Me",
        link="https://x.example",
        licence="MIT",
        training_data="none",
    )
    assert meta == wanted


def test_a_template_is_a_file_to_fill_in(here):
    assert invoke("submit", "--meta-template", "new.toml").exit_code == 0
    text = (here / "new.toml").read_text()
    assert all(f"{field} = " in text for field in meta_files.QUESTIONS)
    filled = text.replace('= ""', '= "said"').replace('link = "said"', 'link = ""')
    (here / "filled.toml").write_text(filled)
    assert meta_files.read_meta(here / "filled.toml", "x").name == "new"
    again = invoke("submit", "--meta-template", "new.toml")
    assert (again.exit_code, "File exists" in again.stderr) == (2, True)
    assert "must end in .toml" in invoke("submit", "--meta-template", "a.json").stderr


def test_a_template_that_nobody_filled_in_is_refused(here, run):
    invoke("submit", "--meta-template", "mine.toml")
    result = submitting("--meta", "mine.toml")
    assert result.exit_code == 2
    for field in ("model", "organisation", "licence", "training_data"):
        assert f"{field} is not filled in ({meta_files.QUESTIONS[field]})" in (
            result.stderr
        )
    # The link may stay empty; name and attempt are given.
    for field in ("link", "name", "attempt"):
        assert f"{field} is" not in result.stderr
    assert not (here / "mine.zip").exists()


@pytest.mark.parametrize("field", FACTS)
@pytest.mark.parametrize("value", ["", "  ", "\u00a0"])
def test_a_field_that_is_left_open_is_named(here, field, value):
    with pytest.raises(InvalidSpec, match=f": {field} is not filled in") as raised:
        meta_files.read_meta(meta_file(here, **{field: value}, attempt=0), "mine")
    assert "attempt is 0" in str(raised.value)
    assert str(raised.value).count(" is not filled in") == 1


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("a.json", "{", "cannot be understood"),
        ("a.json", "[]", "must hold a table"),
        ("a.toml", "x", "cannot be understood"),
        ("a.yaml", "", r"must end in \.toml or \.json"),
        ("a.json", json.dumps({**FACTS, "attempt": 0}), "attempt is 0"),
        ("a.json", json.dumps({**FACTS, "name": "../x"}), "name is '../x'"),
        ("a.json", "{}", "model is missing .*; organisation is missing .*; licence"),
    ],
)
def test_a_meta_file_that_breaks_a_rule_is_refused(here, name, text, hint):
    (here / name).write_text(text)
    with pytest.raises(InvalidSpec, match=hint):
        meta_files.read_meta(here / name, "mine")


def test_an_unknown_key_of_a_meta_file_gets_a_suggestion(here):
    with pytest.raises(UnknownName, match="did you mean 'licence'"):
        meta_files.read_meta(meta_file(here, license="MIT"), "mine")
    with pytest.raises(InvalidSpec, match="cannot be read"):
        meta_files.read_meta(here / "none.toml", "mine")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("submit",), "submit needs DIR, --board NAME and --out NAME.zip"),
        (("submit", "run", "--board", "smoke", "--out", "a.tar"), "must end in .zip"),
        (("submit", "run", "--board", "smok", "--out", "a.zip"), "mean 'smoke'"),
    ],
)
def test_wrong_usage_is_refused(words, hint):
    result = invoke(*words)
    assert (result.exit_code, hint in result.stderr) == (2, True)


# Sealed runs --------------------------------------------------------------------


def test_a_keepers_run_on_sealed_seeds_is_called_sealed(here):
    run = play(here, small(seal=True), salt=SALT)
    result = submitting("--meta", meta_file(here), "--salt", SALT)
    assert result.exit_code == 0, result.output
    entry = read_entry(here / "mine.json")
    assert (entry.status, entry.sealed) == ("sealed", small(seal=True).seal.commitment)
    assert "keep the bundle" in result.stderr
    written = (here / "mine.json").read_text() + result.output
    written += member(here / "mine.zip", "run.json").decode()
    assert SALT not in written and SALT not in (run / "run.json").read_text()


def test_a_sealed_run_needs_the_salt_until_it_is_revealed(here):
    play(here, small(seal=True), salt=SALT)
    result = submitting("--meta", meta_file(here))
    assert result.exit_code == 2
    assert "cannot be checked without their salt; give --salt @FILE" in result.stderr
    opened = small(seal=True)
    opened = opened.model_copy(
        update={"seal": opened.seal.model_copy(update={"salt": SALT})}
    )
    board_file(here, opened)
    assert submitting("--meta", meta_file(here)).exit_code == 0
    # Anyone knows these seeds by now.
    assert read_entry(here / "mine.json").status == "replayed"
    again = submitting("--meta", meta_file(here), "--salt", SALT, "--force")
    assert again.exit_code == 0
    assert read_entry(here / "mine.json").status == "replayed"


def test_a_salt_for_a_run_on_open_seeds_is_refused(here):
    play(here, small(seal=True))
    result = submitting("--meta", meta_file(here), "--salt", SALT)
    assert result.exit_code == 2
    assert "--salt is given, but the run has open seeds; leave it out" in result.stderr


def test_an_entry_is_never_called_verified():
    with pytest.raises(ValueError, match="status"):
        Entry.model_validate({"status": "verified"})
