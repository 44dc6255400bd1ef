"""Metrics in TensorBoard and wandb: complete, without duplicates, never in the way."""

import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from trainees import small  # noqa: E402

from ragen_bench.errors import MissingExtra, RunIncomplete, UnknownName  # noqa: E402
from ragen_bench.starpo import metrics, sinks, training  # noqa: E402

pytestmark = pytest.mark.hf


class Deaf(training.Progress):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def warning(self, text):
        self.told.append(text)


def row(iteration, **numbers):
    return {"iteration": iteration, "success": 0.5, "value_loss": None, **numbers}


def start(folder, iteration=0):
    return sinks.Start(folder=folder, iteration=iteration, settings={"lr": 0.1})


def written(folder):
    """Return tag to (step, value) pairs, as TensorBoard's own reader has them."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    found = accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("tensorboard")

    def test_it_holds_every_number_of_both_files(self, tmp_path):
        training.train(small(sinks=["tensorboard"], eval_every=2), tmp_path)
        found = written(tmp_path)
        for name, table in (("metrics", "metrics.csv"), ("timing", "timing.csv")):
            rows = metrics.read(tmp_path / table)
            for column in set(rows[0]) - {"iteration"}:
                expected = [
                    (int(row["iteration"]), pytest.approx(float(row[column]), 1e-5))
                    for row in rows
                    if row[column]
                ]
                assert found.get(f"{name}/{column}", []) == expected
        assert [step for step, _ in found["metrics/dev_return"]] == [2]

    def test_a_resumed_training_has_each_step_once(self, tmp_path):
        training.train(small(sinks="tensorboard", iterations=2), tmp_path)
        training.train(small(sinks="tensorboard", iterations=4), tmp_path)
        found = written(tmp_path)["metrics/return_mean"]
        assert [step for step, _ in found] == [1, 2, 3, 4]

    def test_what_a_killed_training_wrote_too_much_is_void(self, tmp_path):
        with sinks.opened(["tensorboard"], start(tmp_path), print) as sink:
            for iteration in range(1, 6):
                sink.add(row(iteration, loss=1.0), {"iteration": iteration})
        with sinks.opened(["tensorboard"], start(tmp_path, 3), print) as sink:
            sink.add(row(4, loss=2.0), {"iteration": 4})
        assert written(tmp_path)["metrics/loss"] == [
            (1, 1.0),
            (2, 1.0),
            (3, 1.0),
            (4, 2.0),
        ]


class Wandb(types.ModuleType):
    """Stands in for wandb: keeps what it is given."""

    def __init__(self):
        super().__init__("wandb")
        self.inits, self.logged, self.finished = [], [], 0

    def init(self, **options):
        self.inits.append(options)
        return self

    def log(self, numbers, step):
        self.logged.append((step, numbers))

    def finish(self):
        self.finished += 1


class TestWandb:
    @pytest.fixture
    def wandb(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "wandb", Wandb())
        return sys.modules["wandb"]

    def test_it_is_given_the_settings_and_every_row(self, wandb, tmp_path):
        training.train(small(sinks=["wandb"]), tmp_path / "t")
        (options,) = wandb.inits
        assert options["name"] == "t" and options["config"]["lr"] == 1e-3
        assert [step for step, _ in wandb.logged] == [1, 2]
        first = metrics.read(tmp_path / "t" / "metrics.csv")[0]
        assert wandb.logged[0][1]["metrics/return_mean"] == float(first["return_mean"])
        assert None not in wandb.logged[0][1].values()
        assert wandb.finished == 1

    def test_a_resumed_training_is_the_same_run(self, wandb, tmp_path):
        training.train(small(sinks=["wandb"], iterations=1), tmp_path)
        training.train(small(sinks=["wandb"], iterations=2), tmp_path)
        first, second = wandb.inits
        assert first["id"] == second["id"] and second["resume"] == "allow"
        assert [step for step, _ in wandb.logged] == [1, 2]

    def test_two_trainings_are_two_runs(self, wandb, tmp_path):
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            with sinks.opened(["wandb"], start(tmp_path / name), print):
                pass
        assert wandb.inits[0]["id"] != wandb.inits[1]["id"]


class Broken:
    """A dashboard that fails at one of its methods."""

    def __init__(self, at):
        self.at, self.calls = at, 0

    def add(self, row, times):
        self.calls += 1
        if self.at == "add":
            raise ConnectionError("no network\nat all")

    def close(self):
        if self.at == "close":
            raise ConnectionError("no network")


class TestFailures:
    @pytest.fixture
    def broken(self, monkeypatch):
        made = []

        def register(at):
            def opened(start):
                if at == "open":
                    raise ConnectionError("no network")
                made.append(Broken(at))
                return made[-1]

            monkeypatch.setitem(sinks.SINKS._items, "broken", opened)
            return made

        return register

    @pytest.mark.parametrize("at", ["open", "add", "close"])
    def test_a_failing_dashboard_loses_nothing_and_is_told_of_once(
        self, broken, at, tmp_path
    ):
        broken(at)
        progress = Deaf()
        training.train(small(), tmp_path / "without")
        training.train(small(sinks=["broken"]), tmp_path / "with", progress=progress)
        for name in ("metrics.csv", "model/model.safetensors"):
            without = (tmp_path / "without" / name).read_bytes()
            assert (tmp_path / "with" / name).read_bytes() == without
        (told,) = progress.told
        assert "sink 'broken' failed" in told and "ConnectionError: no network" in told
        assert "\n" not in told

    def test_a_failed_dashboard_is_not_tried_again(self, broken, tmp_path):
        made = broken("add")
        training.train(small(sinks=["broken"]), tmp_path, progress=Deaf())
        assert made[0].calls == 1

    def test_the_row_is_in_the_file_before_a_dashboard_sees_it(
        self, monkeypatch, tmp_path
    ):
        seen = []

        class Reader(Broken):
            def add(self, row, times):
                seen.append(len(metrics.read(tmp_path / "metrics.csv")))

        monkeypatch.setitem(sinks.SINKS._items, "reader", lambda _: Reader(""))
        training.train(small(sinks=["reader"]), tmp_path)
        assert seen == [1, 2]

    def test_a_full_disk_says_how_to_go_on(self, monkeypatch, tmp_path):
        def full(self, row):
            raise OSError(28, "No space left on device", "metrics.csv")

        with sinks.opened([], start(tmp_path), print) as sink:
            monkeypatch.setattr(metrics.Table, "add", full)
            with pytest.raises(RunIncomplete, match="make room and run the same"):
                sink.add(row(1), {"iteration": 1})


class TestNames:
    def test_an_unknown_sink_is_refused_before_training(self, tmp_path):
        with pytest.raises(UnknownName, match="did you mean 'wandb'"):
            training.train(small(sinks=["wandbb"]), tmp_path / "t")
        assert not (tmp_path / "t").exists()

    @pytest.mark.parametrize(
        ("name", "module", "line"),
        [
            ("wandb", "wandb", r"pip install 'ragen-bench\[wandb\]'"),
            ("tensorboard", "tensorboard", r"pip install 'ragen-bench\[train\]'"),
        ],
    )
    def test_a_missing_package_is_said_before_training(
        self, monkeypatch, tmp_path, name, module, line
    ):
        for loaded in [m for m in sys.modules if m.startswith("torch.utils.tensorb")]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match=line):
            training.train(small(sinks=[name]), tmp_path / "t")
        assert not (tmp_path / "t").exists()

    def test_a_sink_of_ones_own_is_one_file_outside_the_package(
        self, monkeypatch, tmp_path
    ):
        Path(tmp_path, "my_sink.py").write_text(
            "class Lines:\n"
            "    def __init__(self, start):\n"
            "        self.path = start.folder / 'lines'\n"
            "    def add(self, row, times):\n"
            "        with self.path.open('a') as file:\n"
            "            print(row['iteration'], file=file)\n"
            "    def close(self):\n"
            "        pass\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        training.train(small(sinks=["my_sink:Lines"]), tmp_path / "t")
        assert (tmp_path / "t" / "lines").read_text() == "1\n2\n"

    def test_other_sinks_are_no_other_training(self, tmp_path):
        training.train(small(), tmp_path)
        outcome = training.train(small(sinks=["tensorboard"]), tmp_path)
        assert outcome.iterations == 2
