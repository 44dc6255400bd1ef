"""What a wheel holds is what the checkout holds."""

import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

import ragen_bench

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS = {name: ROOT / path for name, path in SETTINGS["package-dir"].items()}


def folder_of(package: str) -> Path:
    """Return where a package lives, by the longest entry of package-dir."""
    owner = max((n for n in FOLDERS if f"{package}.".startswith(f"{n}.")), key=len)
    return FOLDERS[owner].joinpath(*package[len(owner) :].split("."))


@pytest.mark.parametrize("name", ["agents", "envs", "leaderboards"])
def test_a_link_leads_to_the_folder_that_package_dir_names(name: str) -> None:
    link = ROOT / "ragen_bench" / name
    if not link.is_symlink():
        pytest.skip("this checkout has no symbolic links")
    assert link.readlink() == Path("..", name)
    assert link.resolve() == FOLDERS[f"ragen_bench.{name}"].resolve()


def test_the_package_list_names_every_package() -> None:
    found = set()
    for package, folder in FOLDERS.items():
        for init in folder.rglob("__init__.py"):
            if init == init.resolve():
                inner = init.parent.relative_to(folder).parts
                found.add(".".join([package, *inner]))
    assert sorted(SETTINGS["packages"]) == sorted(found)


def installed() -> set[str]:
    """Return the files of the installed wheel, without what an installer adds."""
    found = {str(path) for path in distribution("ragen-bench").files or ()}
    if "ragen_bench/__init__.py" not in found:
        pytest.skip("ragen-bench is installed from the checkout, not from a wheel")
    return {
        name
        for name in found
        if "__pycache__" not in name and ".dist-info/" not in name
    }


def test_the_wheel_holds_the_packages_and_their_data_and_nothing_else() -> None:
    expected = set()
    for package in SETTINGS["packages"]:
        folder = folder_of(package)
        for pattern in ("*.py", *SETTINGS["package-data"].get(package, ())):
            for path in folder.glob(pattern):
                if path.is_file():
                    inner = path.relative_to(folder).parts
                    expected.add("/".join([*package.split("."), *inner]))
    scripts = {name for name in installed() if name.startswith("..")}
    assert installed() - scripts == expected
    assert [Path(name).stem for name in scripts] == ["ragen-bench"]


def test_the_wheel_holds_types_boards_pages_and_the_embedded_model() -> None:
    names = installed()
    assert "ragen_bench/py.typed" in names
    assert "ragen_bench/leaderboards/smoke.toml" in names
    assert "ragen_bench/envs/sokoban.py" in names
    assert "ragen_bench/leaderboards/viewer/index.html" in names
    tiny = {name for name in names if name.startswith("ragen_bench/models/tiny/")}
    assert any(name.endswith(".safetensors") for name in tiny)


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert ragen_bench.__version__ == project["version"]
    assert f'version: "{project["version"]}"' in (ROOT / "CITATION.cff").read_text()
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
