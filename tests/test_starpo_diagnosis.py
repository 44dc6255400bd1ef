"""Diagnosis of a training from its files, and the script that fits thresholds."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import starpo_curves as curves
from click.testing import CliRunner

from ragen_bench.cli import cli
from ragen_bench.errors import RecordError, UnknownName
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
    assert found.verdict == "collapsed"
    assert text.startswith("verdict: collapsed")


def test_each_alarm_has_its_lead_time(tmp_path) -> None:
    found = diagnose(curves.write(tmp_path / "run", curves.rows(curves.echoes, 0)))
    lines = str(found).splitlines()
    assert len({alarm.iteration for alarm in found.alarms}) > 1
    for alarm in found.alarms:
        lead = found.half_fall - alarm.iteration
        assert found.lead_of(alarm.iteration) == lead
        (line,) = [one for one in lines if alarm.text in one]
        when = "before" if lead >= 0 else "after"
        assert f"({abs(lead)} iteration" in line and when in line


def test_a_healthy_run_has_no_alarm(tmp_path) -> None:
    found = diagnose(curves.write(tmp_path / "run", curves.rows(curves.learns, 0)))
    assert (found.alarms, found.half_fall, found.lead_time) == ((), None, None)
    assert "no alarm" in str(found)


def test_files_say_what_the_rows_do(tmp_path) -> None:
    rows = curves.rows(curves.bursts, 2)
    assert diagnose(curves.write(tmp_path / "run", rows)) == diagnose_rows(rows)


def test_a_table_is_read_without_a_folder_around_it(tmp_path) -> None:
    rows = curves.rows(curves.bursts, 2)
    folder = curves.write(tmp_path / "run", rows)
    assert diagnose(folder / "metrics.csv") == diagnose_rows(rows)


def test_a_place_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(RecordError, match="nowhere is neither"):
        diagnose(tmp_path / "nowhere")


def test_bytes_that_are_no_text_are_refused(tmp_path) -> None:
    (tmp_path / "metrics.csv").write_bytes(b"\xff\xfe\x00iteration\n")
    with pytest.raises(RecordError, match="cannot be read"):
        diagnose(tmp_path)


THEIRS = {
    "iteration": "Step",
    "success": "run 3 - train/CoordSokoban/success",
    "spread_mean": "run 3 - rollout/in_group_reward_std",
    "entropy": "run 3 - actor/entropy",
    "grad_norm": "run 3 - actor/grad_norm",
    "valid_rate": "run 3 - my own",
}


def foreign(path, rows):
    lines = [",".join(THEIRS.values())]
    lines += [",".join(str(row[name]) for name in THEIRS) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def test_an_export_of_ragen_gets_the_same_diagnosis(tmp_path) -> None:
    rows = curves.rows(curves.bursts, 2)
    ours = diagnose_rows([{name: row[name] for name in THEIRS} for row in rows])
    path = foreign(tmp_path / "export.csv", rows)
    assert diagnose(path, columns={"valid_rate": "run 3 - my own"}) == ours
    without = diagnose(path)
    assert "validity" in {alarm.sign for alarm in ours.alarms}
    assert "validity" not in {alarm.sign for alarm in without.alarms}
    assert without.half_fall == ours.half_fall is not None


def test_a_column_that_is_not_there_gets_a_suggestion(tmp_path) -> None:
    path = foreign(tmp_path / "export.csv", curves.rows(curves.stays, 0, 5))
    with pytest.raises(UnknownName, match="did you mean 'run 3 - my own'"):
        diagnose(path, columns={"valid_rate": "run 3 - my on"})


def probed(entropy, information, retrieval):
    rows = curves.rows(curves.stays, 0, 60)
    for row in rows[::10]:
        share = row["iteration"] / 60
        for name, (first, last) in {
            "conditional_entropy": entropy,
            "mutual_information": information,
            "retrieval": retrieval,
        }.items():
            row[name] = first if share < 0.5 else last
        row |= {"retrieval_chance": 0.1, "mi_z_score": 1.5}
    return rows


@pytest.mark.parametrize(
    ("entropy", "retrieval", "regime", "verdict"),
    [
        ((1.0, 0.9), (0.9, 0.8), "diverse", "healthy"),
        ((1.0, 0.9), (0.9, 0.1), "template", "template"),
        ((1.0, 0.1), (0.9, 0.8), "compressed", "healthy"),
        ((1.0, 0.1), (0.9, 0.1), "collapsed", "template"),
        ((1.0, 0.9), (0.1, 0.1), "template", "template"),
    ],
)
def test_probes_show_one_of_four_regimes(entropy, retrieval, regime, verdict) -> None:
    rows = probed(entropy, (2.0, 0.5), retrieval)
    found = diagnose_rows(rows)
    assert found.template is not None
    assert found.template.regime == regime
    assert (found.template.probes, found.template.z_score) == (6, pytest.approx(1.5))
    assert found.verdict == verdict
    assert "replies in 6 probes" in str(found)


GRADIENTS = """\
iteration,bucket,spread_low,spread_high,term,norm_per_token
1,1,0.0,0.1,task,0.1
1,1,0.0,0.1,entropy,0.2
1,1,0.0,0.1,kl,0.1
1,2,0.2,0.5,task,2.0
1,2,0.2,0.5,entropy,0.2
26,1,0.0,0.0,task,9.0
51,1,0.0,0.0,task,0.0
51,1,0.0,0.0,entropy,0.2
"""


def test_gradients_of_the_first_and_last_iteration_are_told(tmp_path) -> None:
    folder = curves.write(tmp_path / "run", curves.rows(curves.learns, 0))
    (folder / "gradients.csv").write_text(GRADIENTS)
    found = diagnose(folder)
    first, last = found.gradients
    assert (first.iteration, last.iteration) == (1, 51)
    assert [one.task for one in first.buckets] == [0.1, 2.0]
    assert first.buckets[0].regulariser == pytest.approx(0.3)
    assert (first.outweighed, last.outweighed) == ((1,), (1,))
    assert "regularisers outweigh the task in bucket 1" in str(found)


def test_gradients_of_another_kind_are_refused(tmp_path) -> None:
    folder = curves.write(tmp_path / "run", curves.rows(curves.learns, 0, 5))
    (folder / "gradients.csv").write_text("iteration,bucket\n1,1\n")
    with pytest.raises(RecordError, match="'term'"):
        diagnose(folder)


def test_json_holds_what_the_words_say(tmp_path) -> None:
    folder = curves.write(tmp_path / "run", curves.rows(curves.echoes, 0))
    (folder / "gradients.csv").write_text(GRADIENTS)
    found = diagnose(folder)
    value = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert value["verdict"] == "collapsed"
    assert value["lead_time"] == found.lead_time
    assert [a["lead_time"] for a in value["alarms"]] == [
        found.half_fall - a.iteration for a in found.alarms
    ]
    assert value["gradients"][0]["outweighed"] == [1]


def said(*arguments) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of the command."""
    result = CliRunner().invoke(cli, ["diagnose", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_a_diagnosis_or_json(tmp_path) -> None:
    folders = [
        curves.write(tmp_path / name, curves.rows(curve, 0))
        for name, curve in (("bad", curves.echoes), ("good", curves.learns))
    ]
    assert said(folders[0]) == (0, f"{diagnose(folders[0])}\n", "")
    code, out, _ = said(*folders, "--json")
    assert code == 0
    values = json.loads(out)
    assert [one["verdict"] for one in values] == ["collapsed", "healthy"]
    assert [one["place"] for one in values] == list(map(str, folders))


def test_the_command_takes_names_of_columns(tmp_path) -> None:
    path = foreign(tmp_path / "export.csv", curves.rows(curves.bursts, 2))
    code, out, _ = said(path, "--column", "valid_rate=run 3 - my own")
    assert code == 0 and "the share of valid replies fell" in out


def test_the_command_refuses_a_folder_of_something_else(tmp_path) -> None:
    code, out, err = said(tmp_path)
    assert (code, out) == (2, "")
    assert "has no metrics.csv" in err and "Traceback" not in err


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
    ("text", "named"), [(None, "has no metrics.csv"), ("a,b\n1,2\n", "'iteration'")]
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
    found = diagnose(tmp_path)
    assert found.verdict == "empty"
    assert str(found) == "verdict: nothing to judge\n0 iterations\nno alarm"


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
