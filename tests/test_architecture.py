"""Imports point downwards, plug-ins stand alone, heavy packages wait to be asked."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FLOORS = [
    {"errors", "parsing", "provenance", "seeding", "spaces", "template_texts"}
    | {"wording"},
    {"symbolic"},
    {"model", "text_env"},
    {"agent"},
    {"prompts", "records", "registry"},
    {"board", "chat", "episode", "intervals", "power", "prices", "replay_cache"}
    | {"redaction", "run_folder", "shots"},
    {"agents", "entries", "envs", "freezing", "instance_bank", "leaderboards", "ledger"}
    | {"models", "passes", "tables", "templates"},
    {"bundle_writing", "cell_scores", "frame_columns", "meta_files", "sealing"},
    {"checks", "listing", "plan", "scoring"},
    {"doctor", "forecast", "ranking", "runner", "verifying"},
    {"run_sources"},
    {"frames"},
    {"reporting", "study", "submission"},
    {"cli_options", "entry_checks", "inspect_tasks", "lm_eval_plugin"}
    | {"lm_eval_tasks", "progress", "starpo"},
    {"cli_boards", "cli_compare", "cli_models", "cli_run", "cli_submit", "cli_train"}
    | {"cli_verify", "viewing"},
    {"cli_view"},
    {"cli"},
]
"""From the ground up; a room is a module of ragen_bench, or a package as a whole."""

FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
DOORS = {"__init__", "__main__"}
"""They may open any room."""
PLUG_INS = {"agents", "envs", "leaderboards", "models"}
"""Found by name through the registry; nobody imports them."""
GUESTS = {"inspect_tasks", "lm_eval_tasks"}
"""Another harness loads their files, and has its own package then."""

HEAVY = {
    "datasets",
    "httpx",
    "inspect_ai",
    "jax",
    "jinja2",
    "lm_eval",
    "matplotlib",
    "openai",
    "pandas",
    "peft",
    "scipy",
    "seaborn",
    "statsmodels",
    "tensorboard",
    "torch",
    "transformers",
    "vllm",
    "wandb",
}
"""Only inside functions, or in heavy rooms, which only such functions import."""
HEAVY_ROOMS = {"models", "starpo"}
LATER = {"click", "pydantic", "rich"}
"""Not in what ``import ragen_bench`` loads."""


def files() -> list[Path]:
    """Return each module once, in the folder where it really lives."""
    folders = ["ragen_bench", "agents", "envs", "leaderboards"]
    found = (p for name in folders for p in sorted((ROOT / name).rglob("*.py")))
    return [path for path in found if path == path.resolve()]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "ragen_bench" else ("ragen_bench", *parts))


MODULES = {module_of(path): path for path in files()}
every_module = pytest.mark.parametrize("module", MODULES)


def room(module: str) -> str:
    return f"{module}.__init__".split(".")[1]


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imports(module: str, at_the_top: bool = False) -> Iterator[str]:
    """Yield what a module imports, as modules where they are ours."""
    for node in nodes(tree(module), at_the_top):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def nodes(tree: ast.AST, at_the_top: bool) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, or those that run when the module is imported."""
    for child in ast.iter_child_nodes(tree):
        if at_the_top and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(
            child.test
        )
        if at_the_top and typing_only:
            continue
        yield child
        yield from nodes(child, at_the_top)


def test_every_module_has_a_floor_and_every_floor_its_modules() -> None:
    assert {room(module) for module in MODULES} - DOORS == set(FLOOR)


@every_module
def test_imports_point_down(module: str) -> None:
    here = room(module)
    if here in DOORS:
        return
    for name in imports(module):
        there = room(name)
        if not name.startswith("ragen_bench") or there == here:
            continue
        if name == "ragen_bench":
            assert room(module) == "cli", f"{module}: import from the defining module"
            continue
        assert there in FLOOR, f"{module} imports {name}, which is no module of ours"
        assert FLOOR[there] < FLOOR[here], f"{module} must not import {name}"


@every_module
def test_nobody_imports_a_plug_in(module: str) -> None:
    here = room(module)
    if here in DOORS:
        return
    for name in imports(module):
        if name.startswith("ragen_bench.") and room(name) != here:
            # The trainer's engines are models over its own weights.
            own = here == "starpo" and room(name) == "models"
            assert own or room(name) not in PLUG_INS, f"{module} must not import {name}"


def heavy_modules() -> set[str]:
    """Return the modules that import a heavy package when they are imported."""
    return {
        module
        for module in MODULES
        if any(name.split(".")[0] in HEAVY for name in imports(module, True))
    }


def test_only_heavy_rooms_import_a_heavy_package_at_the_top() -> None:
    assert {room(module) for module in heavy_modules()} <= {*HEAVY_ROOMS, *GUESTS}


def loaded() -> set[str]:
    """Return the modules that ``import ragen_bench`` loads."""
    found = {"ragen_bench"}
    # The two folders import each of their files by itself.
    todo = ["ragen_bench"] + [m for m in MODULES if room(m) in ("agents", "envs")]
    while todo:
        module = todo.pop()
        found.add(module)
        todo += [
            name
            for name in imports(module, True)
            if name in MODULES and name not in found
        ]
    return found


def test_importing_ragen_bench_loads_nothing_heavy() -> None:
    light = loaded()
    assert {"ragen_bench.text_env", "ragen_bench.envs.bandit"} <= light
    assert not light & heavy_modules()
    for module in sorted(light):
        tops = {name.split(".")[0] for name in imports(module, True)}
        assert not tops & LATER, f"{module} imports {tops & LATER}"


def test_other_modules_import_heavy_ones_inside_functions() -> None:
    heavy = heavy_modules()
    for module in MODULES:
        if room(module) not in {*HEAVY_ROOMS, *GUESTS}:
            assert not heavy & set(imports(module, True)), module


def test_the_trainer_is_imported_inside_functions() -> None:
    for module in MODULES:
        if room(module) != "starpo":
            ours = {name for name in imports(module, True) if name in MODULES}
            assert "starpo" not in map(room, ours), module
