"""A training's folder in hard times: taken, torn, full, or of another training."""

import errno
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from trainees import built, small  # noqa: E402

from ragen_bench.errors import (  # noqa: E402
    InvalidSpec,
    RecordError,
    RunIncomplete,
    RunMismatch,
)
from ragen_bench.starpo import (  # noqa: E402
    checkpoint,
    diagnostics,
    export,
    metrics,
    training,
    training_folder,
)

pytestmark = pytest.mark.hf


def place(folder):
    return checkpoint.newest(folder / training_folder.CHECKPOINTS)


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


DAMAGES = {
    "cut off": lambda p: (p / "tensors.pt").write_bytes(
        (p / "tensors.pt").read_bytes()[:1000]
    ),
    "empty": lambda p: (p / "tensors.pt").write_bytes(b""),
    "no tensors at all": lambda p: (p / "tensors.pt").write_bytes(bytes(5000)),
    "a bit turned": lambda p: flip(p / "tensors.pt"),
    "gone": lambda p: (p / "tensors.pt").unlink(),
    "a list": lambda p: torch.save([1], p / "tensors.pt"),
    "of nothing": lambda p: torch.save({"network": {}}, p / "tensors.pt"),
    "state is no JSON": lambda p: (p / "state.json").write_text("{"),
    "state is a list": lambda p: (p / "state.json").write_text("[]"),
    "state is empty": lambda p: (p / "state.json").write_text("{}"),
    "latest is no text": lambda p: (p.parent / "latest").write_bytes(b"\xff\xfe"),
    "latest is empty": lambda p: (p.parent / "latest").write_text(""),
    "train.json is no JSON": lambda p: (p.parent.parent / "train.json").write_text("{"),
    "train.json is a list": lambda p: (p.parent.parent / "train.json").write_text("[]"),
    "metrics are no text": lambda p: (p.parent.parent / "metrics.csv").write_bytes(
        b"\xff\xfe\n"
    ),
    "alarms are no text": lambda p: (p.parent.parent / "alarms.jsonl").write_bytes(
        b"\xff\xfe\n"
    ),
    "gradients are others": lambda p: (p.parent.parent / "gradients.csv").write_text(
        "loss\n1\n"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_told_of_and_never_trained_on(tmp_path, damage) -> None:
    training.train(small(iterations=0), tmp_path)
    damage(place(tmp_path))
    with pytest.raises(RecordError):
        training.train(small(iterations=0), tmp_path)


def test_a_table_of_another_version_keeps_its_rows(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("iteration,loss,old\n1,2.5,x\n2,3.5,y\n")
    metrics.Table(path, ("iteration", "loss", "entropy"), rows=2)
    assert path.read_text() == "iteration,loss,entropy\n1,2.5,\n2,3.5,\n"


class TestWhoseFolder:
    def test_a_file_is_no_folder(self, tmp_path) -> None:
        (tmp_path / "file").write_text("")
        for out in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(InvalidSpec, match="cannot be a folder"):
                training.train(small(iterations=0), out)

    def test_a_second_process_is_refused(self, tmp_path) -> None:
        pytest.importorskip("fcntl")
        code = (
            "import fcntl, sys\n"
            "file = open(sys.argv[1], 'wb')\n"
            "fcntl.flock(file, fcntl.LOCK_EX)\n"
            "print('locked', flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / ".lock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            with pytest.raises(InvalidSpec, match="in use"):
                training.train(small(iterations=0), tmp_path)
            other.communicate(b"")
        training.train(small(iterations=0), tmp_path)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"hidden_size": 40},
            {"agent": "random"},
            {"model": "/no/such/folder"},
            {"env_args": {"no_such": 1}},
        ],
    )
    def test_what_was_refused_leaves_no_claim_on_the_folder(
        self, tmp_path, wrong
    ) -> None:
        with pytest.raises(Exception, match=r"40|random|folder|no_such"):
            training.train(small(iterations=0, **wrong), tmp_path)
        assert training.train(small(iterations=0), tmp_path).complete

    def test_iterations_are_those_over_which_the_rate_falls(self, tmp_path) -> None:
        training.train(small(iterations=0, decay="linear"), tmp_path / "falls")
        with pytest.raises(RunMismatch, match="iterations 0, but 3 .*'linear'"):
            training.train(small(iterations=3, decay="linear"), tmp_path / "falls")

    @pytest.mark.parametrize(
        "later",
        [
            {"iterations": 0, "budget_seconds": 9.0},
            {"iterations": 0, "save_every": 3},
            {"iterations": 0, "keep_rollouts": [1]},
            {"iterations": 0, "stop_on_collapse": True},
        ],
    )
    def test_what_moves_no_number_may_change(self, tmp_path, later) -> None:
        training.train(small(iterations=0), tmp_path)
        assert training.train(small(**later), tmp_path).complete

    def test_a_budget_that_was_spent_can_be_raised(self, tmp_path) -> None:
        first = training.train(
            small(clone_steps=1, clone_batch=1, budget_seconds=1e-6), tmp_path
        )
        again = training.train(
            small(clone_steps=1, clone_batch=1, budget_seconds=0.0), tmp_path
        )
        assert (first.iterations, again.iterations) == (0, 2)


class TestFullDisk:
    def full(self, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def test_pytorch_tells_of_it_in_its_own_words(self, tmp_path, monkeypatch) -> None:
        def torn(*_: object) -> None:
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected")

        monkeypatch.setattr(torch, "save", torn)
        with pytest.raises(RunIncomplete, match="make room"):
            checkpoint.save(tmp_path / "c", 1, {}, {})
        assert not (tmp_path / "c" / ".000001.part").exists()

    @pytest.mark.parametrize("step", ["write_text", "mkdir"])
    def test_an_export_leaves_the_last_one(self, tmp_path, monkeypatch, step) -> None:
        made = built()
        export.write(made, tmp_path / "model")
        before = (tmp_path / "model" / "README.md").read_bytes()
        path = type(tmp_path)
        with monkeypatch.context() as patch:
            if step == "mkdir":
                patch.setattr(made.policy.network, "save_pretrained", self.full)
            else:
                patch.setattr(path, "write_text", self.full)
            with pytest.raises(RunIncomplete, match="make room"):
                export.write(made, tmp_path / "model")
        assert (tmp_path / "model" / "README.md").read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["model"]

    def test_small_files_too(self, tmp_path, monkeypatch) -> None:
        (tmp_path / "alarms.jsonl").write_text("")
        monkeypatch.setattr("os.replace", self.full)
        writers = (
            lambda: training_folder.adopt(tmp_path, small()),
            lambda: training_folder.keep(tmp_path, 1, []),
            lambda: metrics.Table(tmp_path / "m.csv", ("iteration",)),
            lambda: diagnostics.Diagnostics(tmp_path, 0),
        )
        for write in writers:
            with pytest.raises(RunIncomplete, match="make room"):
                write()


def test_the_folder_says_what_it_is_trained_with(tmp_path) -> None:
    training.train(small(iterations=0), tmp_path)
    assert json.loads((tmp_path / "train.json").read_text())["config"]["groups"] == 2
