"""A model's card says on what it was trained, how, by whom, and how well it did."""

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402
from trainees import LAKE, small  # noqa: E402

from ragen_bench.cli import cli  # noqa: E402
from ragen_bench.starpo import card, metrics, training  # noqa: E402
from ragen_bench.starpo import config as configuration  # noqa: E402

pytestmark = pytest.mark.hf

TINY = {
    "envs": [LAKE, "ragen/Bandit-v0:1"],
    "groups": 3,
    "rollouts": 2,
    "max_tokens": 6,
    "hidden_size": 32,
    "layers": 1,
    "clone_seconds": 0.0,
    "clone_steps": 2,
    "iterations": 3,
    "eval_every": 2,
    "eval_seeds": 2,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    config = configuration.make("tiny-cpu", TINY)
    training.train(config, folder, command="ragen-bench train --preset tiny-cpu")
    return folder


@pytest.fixture(scope="module")
def text(trained: Path) -> str:
    return (trained / "model" / "README.md").read_text()


def test_it_counts_the_instances_and_episodes_of_each_cell(text: str) -> None:
    assert f"| `{LAKE}` | train | 5 | 10 |" in text
    assert "| `ragen/Bandit-v0:1` | train | 4 | 8 |" in text


def test_the_last_scores_are_said_to_be_of_train_and_of_dev(
    text: str, trained: Path
) -> None:
    rows = metrics.read(trained / "metrics.csv")
    assert "Iteration 3, train split, sampled at temperature 1:" in text
    assert f"- return_mean: {float(rows[2]['return_mean']):.4g}\n" in text
    assert "Iteration 2, dev split, greedy, the first 2 seeds of a cell:" in text
    assert f"- dev_return: {float(rows[1]['dev_return']):.4g}\n" in text


def test_it_names_command_commit_versions_and_warm_start(text: str) -> None:
    assert "- Command: `ragen-bench train --preset tiny-cpu`\n" in text
    assert re.search(r"^- Commit: \w+", text, re.M)
    assert f"torch {torch.__version__}" in text and "gymnasium " in text
    assert "2 steps of behaviour cloning (batches of 16 episodes, loss " in text


def test_it_lists_what_differs_from_the_preset_and_nothing_else(text: str) -> None:
    shown = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", text, re.M))
    assert "the preset `tiny-cpu`, but for these" in text
    assert set(shown) == set(TINY)
    assert shown["groups"] == "3"


def test_a_resumed_training_remembers_its_warm_start(
    trained: Path, text: str, tmp_path: Path
) -> None:
    config = configuration.make("tiny-cpu", {**TINY, "iterations": 1})
    training.train(config, tmp_path)
    training.train(configuration.make("tiny-cpu", TINY), tmp_path)
    resumed = (tmp_path / "model" / "README.md").read_text()
    told = "2 steps of behaviour cloning"
    assert told in text and told in resumed


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"README.md": "---\nlicense: apache-2.0\ntags: x\n---\n# A\n"}, "apache-2.0"),
        ({"README.md": "license: of something else\n"}, None),
        ({"LICENSE": "\nMIT License\n\nCopyright\n"}, "MIT License"),
        ({}, None),
    ],
)
def test_the_licence_is_what_the_folder_of_the_first_model_states(
    trained: Path, tmp_path: Path, files: dict[str, str], licence: str | None
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for path in (trained / "model").iterdir():
        if path.name != "README.md":
            (base / path.name).write_bytes(path.read_bytes())
    for name, content in files.items():
        (base / name).write_text(content)
    config = small(model=str(base), iterations=0)
    made = training.build(config, *training.check(config))
    text = card.write(made, None, [])
    assert ("states the licence: " in text) == (licence is not None)
    assert f"states the licence: {licence}.\n" in text or licence is None
    assert "No iteration was run." in text


def test_the_command_line_is_kept_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--env", LAKE, "--set", "iterations=0", "--set", "layers=1"]
    words += ["--set", "hidden_size=32", "--out", "a b"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    told = f"ragen-bench {' '.join(words[:-1])} 'a b'"
    assert f"- Command: `{told}`\n" in Path("a b/model/README.md").read_text()
    settings = json.loads(Path("a b/model/ragen.json").read_text())
    assert settings["training"]["command"] == told
