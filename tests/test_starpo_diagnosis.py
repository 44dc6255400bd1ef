"""Diagnosis of a training from its files, and the script that fits thresholds."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import starpo_curves as curves

from ragen_bench.errors import RecordError
from ragen_bench.records import Episode, Turn, TurnUsage
from ragen_bench.starpo.diagnosis import diagnose, diagnose_rows, half_fall
from ragen_bench.starpo.thresholds import Thresholds

SCRIPT = Path(__file__).parent.parent / "scripts" / "fit_echo_trap.py"


def turn(thinking: str, answer: str, valid: bool = True) -> Turn:
    return Turn(
        observation="?",
        response=f"<think>{thinking}</think><answer>{answer}</answer>",
        thinking=thinking,
        actions=(),
        effective=(),
        parse="ok",
        valid=valid,
        reward=0.0,
        reward_parts={"task": 0.0, "format": 0.0},
        scored_reward=0.0,
        prompt_sha256=None,
        context_cut=0,
        usage=TurnUsage(),
        finish_reason="stop",
        latency_s=None,
    )


def episode(success: bool, *turns: Turn) -> Episode:
    return Episode(
        env_id="ragen/Bandit-v0",
        level=1,
        split="train",
        seed=0,
        rep=0,
        instance="",
        outcome="solved" if success else "failed",
        success=success,
        episode_return=0.0,
        floor=0.0,
        ceiling=1.0,
        optimal_cost=None,
        terminated=True,
        truncated=False,
        error=None,
        rules="",
        turns=turns,
        final_observation="",
    )


def test_a_collapse_is_told_in_words(tmp_path) -> None:
    found = diagnose(curves.write(tmp_path / "run", curves.rows(curves.echoes, 0)))
    text = str(found)
    assert found.trapped_at is not None and found.half_fall is not None
    assert found.lead_time == found.half_fall - found.trapped_at
    assert f"the echo-trap alarm came {found.lead_time} iterations before" in text
    assert f"success had fallen by half in iteration {found.half_fall}" in text
    assert f"alarm, iteration {found.trapped_at}: training collapses" in text
    (spread,) = [one for one in found.breaks if one.column == "spread_mean"]
    assert 30 <= spread.iteration <= 42
    assert f"spread_mean changes level in iteration {spread.iteration}" in text


def test_a_healthy_run_has_no_alarm(tmp_path) -> None:
    found = diagnose(curves.write(tmp_path / "run", curves.rows(curves.learns, 0)))
    assert (found.alarms, found.half_fall, found.lead_time) == ((), None, None)
    assert "no alarm" in str(found)


def test_files_say_what_the_rows_do(tmp_path) -> None:
    rows = curves.rows(curves.bursts, 2)
    assert diagnose(curves.write(tmp_path / "run", rows)) == diagnose_rows(rows)


def test_thresholds_are_passed_on(tmp_path) -> None:
    folder = curves.write(tmp_path / "run", curves.rows(curves.echoes, 0))
    assert diagnose(folder, Thresholds(votes=7)).trapped_at is None


def test_rollouts_are_looked_at(tmp_path) -> None:
    folder = curves.write(tmp_path / "run", curves.rows(curves.learns, 0))
    (folder / "rollouts").mkdir()
    records = [
        episode(True, turn("up and left now", "A"), turn("up and left now", "A")),
        episode(False, turn("down", "B", valid=False)),
    ]
    lines = "".join(record.model_dump_json() + "\n" for record in records)
    (folder / "rollouts" / "iteration-7.jsonl").write_text(lines)
    (facts,) = diagnose(folder).rollouts
    assert (facts.episodes, facts.success) == (2, 0.5)
    assert facts.valid_rate == facts.top_share == pytest.approx(2 / 3)
    assert facts.thought_tokens == pytest.approx((4 + 4 + 1) / 3)
    assert facts.top_reply == records[0].turns[0].response
    assert facts.distinct_4 is not None and facts.distinct_4 < 1
    assert "iteration-7.jsonl: 2 episodes, success 50%" in str(diagnose(folder))


@pytest.mark.parametrize(
    ("text", "named"), [(None, "cannot be read"), ("a,b\n1,2\n", "'iteration'")]
)
def test_a_folder_without_metrics_is_refused(tmp_path, text, named) -> None:
    if text is not None:
        (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(RecordError, match=named):
        diagnose(tmp_path)


def test_empty_cells_words_and_half_a_row_are_passed_over(tmp_path) -> None:
    (tmp_path / "metrics.csv").write_text(
        "iteration,success,note\n1,0.5,x\n2,,y\n3,0.7,\n4,0.0"
    )
    found = diagnose(tmp_path)
    assert (found.iterations, found.last_success) == (3, pytest.approx(0.6))


def test_metrics_without_a_row_have_nothing_to_tell(tmp_path) -> None:
    (tmp_path / "metrics.csv").write_text("iteration,success\n")
    assert str(diagnose(tmp_path)) == "0 iterations\nno alarm"


@pytest.mark.parametrize(
    ("success", "want"),
    [
        ([0.2, 0.8, 0.8, 0.4, 0.3, 0.2], 3),
        ([0.8, 0.4, 0.8, 0.3, 0.3, 0.8], None),
        ([0.8, 0.5, 0.5, 0.5], None),
        ([0.05, 0.0, 0.0, 0.0], None),
        ([], None),
    ],
)
def test_success_has_fallen_by_half_if_it_stays_so(success, want) -> None:
    assert half_fall(success) == want


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("fit_echo_trap", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def runs(script, seeds):
    return [
        script.Run(name=c.__name__, rows=curves.rows(c, seed, 70), collapses=collapses)
        for seed in seeds
        for c, collapses in (
            (curves.learns, False),
            (curves.improves, False),
            (curves.echoes, True),
            (curves.bursts, True),
        )
    ]


def test_the_grid_names_thresholds(script) -> None:
    names = {field.name for field in dataclasses.fields(Thresholds)}
    assert set(script.GRID) <= names


def test_fitting_mends_thresholds_that_are_wrong(script) -> None:
    some = runs(script, [0])
    bad = Thresholds(votes=7)
    assert script.right(some, bad) == 2
    fitted = script.fit(some, bad, rounds=1)
    assert script.right(some, fitted) == len(some)
    fresh = runs(script, [50, 51])
    assert script.right(fresh, fitted) == len(fresh)


def test_good_thresholds_stay(script) -> None:
    some = runs(script, [0])[::3]
    assert script.fit(some, Thresholds(), rounds=1) == Thresholds()


def test_the_table_counts_false_alarms(script) -> None:
    eager = Thresholds(votes=1, entropy_share=3.0)
    lines = script.table(runs(script, [0]), eager)
    assert "WRONG" in "\n".join(lines)
    assert "false alarms 2 of 2" in lines[-1]


def test_the_script_checks_folders(script, tmp_path, capsys) -> None:
    bad = curves.write(tmp_path / "bad", curves.rows(curves.echoes, 0))
    good = curves.write(tmp_path / "good", curves.rows(curves.learns, 0))
    out = tmp_path / "thresholds.json"
    arguments = ["--keep", "--fresh-collapsing", str(bad), "--fresh-healthy", str(good)]
    assert script.main([*arguments, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "caught in time 1 of 1, false alarms 0 of 1" in said
    assert Thresholds.of(json.loads(out.read_text())) == Thresholds()
    swapped = ["--keep", "--fresh-collapsing", str(good), "--fresh-healthy", str(bad)]
    assert script.main(swapped) == 1
    assert script.main(["--healthy", str(tmp_path / "nowhere")]) == 2
