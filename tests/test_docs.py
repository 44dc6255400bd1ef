"""The tour runs as it is written."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def test_every_block_of_the_tour_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "tour.md").read_text(), re.S)
    assert len(blocks) >= 8
    names: dict[str, object] = {"__name__": "tour"}
    for block in blocks:
        exec(compile(block, "docs/tour.md", "exec"), names)
