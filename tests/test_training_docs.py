"""`docs/training.md` says what each setting and each metric is, and its code runs."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ragen_bench.starpo import config as configuration  # noqa: E402
from ragen_bench.starpo import metrics  # noqa: E402
from ragen_bench.starpo.train_config import TrainConfig  # noqa: E402

pytestmark = pytest.mark.hf

PAGE = (Path(__file__).parent.parent / "docs" / "training.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| `(.+?)` \| (.+?) \| (.*?) \|(.*)\|$", re.M)
SECTION = PAGE[PAGE.index("## Settings") : PAGE.index("## Algorithms")]
SETTINGS = {found[1]: found for found in ROW.finditer(SECTION)}


def test_the_table_has_every_setting_in_the_order_of_the_code() -> None:
    assert list(SETTINGS) == list(configuration.fields())


@pytest.mark.parametrize("name", configuration.fields())
def test_a_setting_has_its_default_a_meaning_and_a_unit(name: str) -> None:
    default = getattr(TrainConfig(), name)
    _, shown, meaning, unit, _ = SETTINGS[name].groups()
    assert shown == repr(default)
    assert meaning.strip() and unit.strip()


@pytest.mark.parametrize("name", configuration.PRESETS)
def test_every_preset_is_in_the_page(name: str) -> None:
    presets = PAGE[PAGE.index("## Presets") : PAGE.index("Settings come from")]
    assert f"`{name}`" in presets


@pytest.mark.parametrize("column", [*metrics.COLUMNS, *metrics.TIMES])
def test_every_column_stands_in_a_table_with_its_formula(column: str) -> None:
    tables = PAGE[PAGE.index("## Metrics") :]
    row = re.search(
        rf"^\| (?:`\w+`, )*`{column}`(?:, `\w+`)* \| \S.+ \|$", tables, re.M
    )
    assert row or column == "iteration"


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 2
    names: dict[str, object] = {"__name__": "training"}
    for block in blocks:
        exec(compile(block, "docs/training.md", "exec"), names)
