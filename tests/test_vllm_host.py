"""The processes of vLLM's engine, played here by one that sleeps."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, os, signal
from ragen_bench.models import vllm_surroundings

print("top", flush=True)
context = multiprocessing.get_context("spawn")
with vllm_surroundings.own_main():
    ours, theirs = context.Pipe()
    # It answers when it is up, and then hears of nothing.
    work = "import time; c.send(1); time.sleep(600)"
    child = context.Process(target=exec, args=(work, {"c": theirs}))
    child.start()
ours.recv()
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others have no such signal")
def test_the_engine_ends_with_a_killed_parent_and_runs_no_main_script(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    # Without a guard for __main__, as people write them.
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60
    )
    top, child = done.stdout.split()
    assert (top, done.stderr) == ("top", "")
    deadline = time.monotonic() + 30
    while is_alive(int(child)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
