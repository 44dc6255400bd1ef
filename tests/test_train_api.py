"""`rb.train`: the trainer by keywords."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("torch")

from trainees import LAKE  # noqa: E402

import ragen_bench as rb  # noqa: E402
from ragen_bench.errors import InvalidSpec, UnknownName  # noqa: E402
from ragen_bench.starpo import public  # noqa: E402

pytestmark = pytest.mark.hf

SMALL = {"groups": 2, "rollouts": 2, "max_tokens": 4, "hidden_size": 32, "layers": 1}


def test_keywords_are_settings_and_an_outcome_comes_back(tmp_path: Path) -> None:
    outcome = rb.train(envs=LAKE, out=tmp_path, iterations=1, **SMALL)
    assert outcome.complete and outcome.iterations == 1
    assert outcome.model == tmp_path / "model"
    card = (outcome.model / "README.md").read_text()
    assert (
        f"- Command: `ragen_bench.train(envs={LAKE!r}, iterations=1, groups=2" in card
    )


def test_the_same_call_goes_on(tmp_path: Path) -> None:
    rb.train(envs=LAKE, out=tmp_path, iterations=1, **SMALL)
    outcome = rb.train(envs=LAKE, out=str(tmp_path), iterations=2, **SMALL)
    assert outcome.iterations == 2


def test_it_trains_where_an_event_loop_runs(tmp_path: Path) -> None:
    async def notebook() -> bool:
        return rb.train(envs=LAKE, out=tmp_path, iterations=1, **SMALL).complete

    assert asyncio.run(notebook())


def test_a_keyword_is_stronger_than_the_file_and_the_file_than_the_preset(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('preset = "starpo-s"\ngroups = 5\nrollouts = 7\n')
    config = public.configure(
        path, preset=None, envs=(), model="hf:some/model", settings={"rollouts": 9}
    )
    assert (config.preset, config.filter) == ("starpo-s", "top_k")
    assert (config.groups, config.rollouts, config.model) == (5, 9, "some/model")
    assert str(public.default_folder(config, path)) == (
        "runs/train-mine-ragen_Sokoban-v0_1"
    )


@pytest.mark.parametrize(
    ("keywords", "error", "said"),
    [
        ({"grops": 3}, UnknownName, "did you mean 'groups'"),
        ({"preset": "starpo_s"}, UnknownName, "did you mean 'starpo-s'"),
        ({"model": "vllm:x"}, InvalidSpec, "must be fresh, tiny or hf:FOLDER_OR_ID"),
        ({"envs": "ragen/Nowhere-v0"}, UnknownName, "ragen/Nowhere-v0"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    tmp_path: Path, keywords, error, said
) -> None:
    with pytest.raises(error, match=said):
        rb.train(out=tmp_path / "t", **keywords)
    assert not (tmp_path / "t").exists()


def test_a_preset_among_the_settings_would_do_nothing_and_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="give it as --preset"):
        public.configure(
            None, preset=None, envs=(), model=None, settings={"preset": "grpo"}
        )
