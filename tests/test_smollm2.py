"""A real language model plays through ``hf:``, with and without solved examples.

The model comes out of a package (93 MB); ``RAGEN_SMOLLM2`` may name a folder that
``scripts/smollm2_folder.py`` has made already.
"""

import importlib.util
import os
from pathlib import Path

import pytest

import ragen_bench as rb

pytest.importorskip("torch")
# One worker builds the folder once.
pytestmark = [
    pytest.mark.hf,
    pytest.mark.network,
    pytest.mark.xdist_group("smollm2"),
]

SCRIPT = Path(__file__).parent.parent / "scripts" / "smollm2_folder.py"
CELLS = ["ragen/Bandit-v0:1", "ragen/FrozenLake-v0:1", "ragen/Sokoban-v0:1"]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = os.environ.get("RAGEN_SMOLLM2")
    if made:
        return Path(made)
    spec = importlib.util.spec_from_file_location("smollm2_folder", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("smollm2")
    script.build(folder)
    return folder


def play(
    folder: Path, out: Path, agent: str, shots: int
) -> tuple[rb.Summary, list[rb.Episode]]:
    from ragen_bench.run_folder import read_episodes

    summary = rb.run(
        envs=CELLS,
        seeds=4,
        agent=agent,
        model=f"hf:{folder}",
        model_args={"threads": 1},
        shots=shots,
        max_tokens=64 if agent == "think_act" else 24,
        out=out,
    )
    return summary, list(read_episodes(out))


def valid_turns(episodes: list[rb.Episode]) -> float:
    turns = [turn for episode in episodes for turn in episode.turns]
    return sum(turn.valid for turn in turns) / len(turns)


@pytest.mark.parametrize("agent", ["direct", "think_act"])
@pytest.mark.filterwarnings("default")
def test_two_solved_examples_teach_the_form_of_an_answer(
    smollm2: Path, tmp_path: Path, agent: str
) -> None:
    bare, episodes = play(smollm2, tmp_path / "0", agent, 0)
    taught, shown = play(smollm2, tmp_path / "2", agent, 2)
    for summary in (bare, taught):
        assert summary.complete
        assert summary.outcomes["agent_error"] == 0
        assert summary.outcomes["context_overflow"] == 0
    assert valid_turns(shown) > valid_turns(episodes)
    assert valid_turns(shown) > 0.4


def test_every_turn_says_what_it_cost(smollm2: Path, tmp_path: Path) -> None:
    _, episodes = play(smollm2, tmp_path / "run", "direct", 2)
    for episode in episodes:
        for turn in episode.turns:
            assert turn.usage.input_tokens is not None
            assert turn.usage.input_tokens > 100
            assert turn.usage.output_tokens is not None
            assert 1 <= turn.usage.output_tokens <= 24
            assert turn.prompt_sha256 is not None
            assert turn.finish_reason in ("stop", "length")
