"""`build`: a whole site into a folder, which appears complete or not at all."""

import dataclasses
import importlib.resources
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragen_bench.board import load
from ragen_bench.entries import Entry
from ragen_bench.errors import InvalidSpec, MissingExtra, RagenError
from ragen_bench.provenance import versions
from ragen_bench.ranking.played import of_entry, of_run
from ragen_bench.records import RunConfig
from ragen_bench.run_sources import ENTRY, Run, open_entry, open_run
from ragen_bench.viewing import boards, facts, pieces, trainings
from ragen_bench.viewing.boards import Row
from ragen_bench.viewing.optimal import EPISODES, Solver
from ragen_bench.viewing.sources import is_training
from ragen_bench.viewing.transcripts import Writer

MARK = "ragen-site.json"
"""Tells a folder that may be replaced from one that may not."""
_PAGES = ("index", "run", "episode", "training")
_TEMPLATES = ("base.html", *(f"{page}.html" for page in _PAGES))
_SUFFIXES = (".js", ".css", ".svg")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What was written."""

    index: Path
    """The page to open."""
    runs: int
    trainings: int
    episodes: int


def build(
    folders: Sequence[str | Path],
    out: str | Path,
    *,
    entries: str | Path | None = None,
    solved: int = EPISODES,
) -> Site:
    """Write the site of boards, runs and trainings.

    Args:
        folders: Run folders, bundles, entries, and folders of trainings.
        out: The site's folder; replaced if it holds a site.
        entries: Folder of entries, ``BOARD/NAME.json`` with bundles beside them;
            those that ship with the project by default.
        solved: For how many episodes of each cell of a run the optimal actions are
            found.

    Raises:
        MissingExtra: Jinja2 is not installed.
        InvalidSpec: ``out`` is no site and not empty.
        RecordError: A path is of another kind, or a file of it cannot be read.
    """
    target = Path(out)
    paths = [Path(folder) for folder in folders]
    shown = boards.entries_folder() if entries is None else Path(entries)
    _check_target(target, [*paths, shown])
    pages = _render()
    beside = target.parent / f".{target.name}.part"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        site = _Builder(root=beside, solved=solved)
        site.add_entries(shown)
        for path in paths:
            site.add(path)
        site.finish(pages)
        _swap(beside, target)
    except OSError as error:
        raise InvalidSpec(
            f"site {str(target)!r} cannot be written: {error.strerror}; "
            "make room or give another --out"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Site(
        index=target / "index.html",
        runs=len(site.rows),
        trainings=len(site.trainings),
        episodes=sum(row.episodes for row in site.rows),
    )


def _check_target(target: Path, sources: Sequence[Path]) -> None:
    """Refuse to replace what is not ours, or what is read.

    Raises:
        InvalidSpec: The target must not be written to.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InvalidSpec(f"site {str(target)!r} is no folder; give another --out")
    if not target.name or target.name == "..":
        raise InvalidSpec(
            f"site {str(target)!r} needs the name of a folder; give another --out"
        )
    whole = target.resolve()
    for source in sources:
        inner = source.resolve()
        if whole == inner or whole in inner.parents or inner in whole.parents:
            raise InvalidSpec(
                f"site {str(target)!r} and {str(source)!r} lie in each other; give "
                "another --out"
            )
    if target.is_dir() and any(target.iterdir()) and not (target / MARK).is_file():
        raise InvalidSpec(
            f"{str(target)!r} holds something else than a site (it has no {MARK}); "
            "give another --out, or empty it"
        )


def _swap(beside: Path, target: Path) -> None:
    """Put a new folder in the place of an old one."""
    if not target.exists():
        os.rename(beside, target)
        return
    old = target.parent / f".{target.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    os.rename(target, old)
    os.rename(beside, target)
    shutil.rmtree(old, ignore_errors=True)


def _render() -> dict[str, str]:
    """Return the pages by file name.

    Raises:
        MissingExtra: Jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("report", "the viewer") from error

    folder = _assets()
    texts = {name: (folder / name).read_text("utf-8") for name in _TEMPLATES}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(texts),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return {
        f"{page}.html": environment.get_template(f"{page}.html").render(
            page=page, version=versions()["ragen-bench"]
        )
        for page in _PAGES
    }


def _assets() -> Any:
    return importlib.resources.files("ragen_bench.leaderboards") / "viewer"


@dataclasses.dataclass(slots=True, kw_only=True)
class _Builder:
    """A site that is being written."""

    root: Path
    solved: int
    rows: list[Row] = dataclasses.field(default_factory=list)
    trainings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    _slugs: set[str] = dataclasses.field(default_factory=set)

    def _slug(self, label: str) -> str:
        name = pieces.slug(label, self._slugs)
        self._slugs.add(name)
        return name

    def add_entries(self, folder: Path) -> None:
        """Add each entry of a folder of boards."""
        for path, entry in boards.read_entries(folder):
            self._add_entry(path, entry)

    def _add_entry(self, path: Path, entry: Entry) -> None:
        """Add an entry, and its transcripts where the bundle lies beside it."""
        if any(row.entry == entry for row in self.rows):
            return  # given, and among the entries of the boards, too
        slug = self._slug(entry.meta.name)
        page = facts.of_entry(entry)
        episodes = 0
        if path.with_name(entry.bundle).is_file():
            run = open_run(path)
            writer = self._writer(slug, run)
            for _ in writer.passing(run.episodes()):
                pass
            episodes = writer.close()
            page["unsolved"] = writer.solver.why_not
        row = Row(
            slug=slug,
            label=entry.meta.name,
            board=entry.board,
            played=dataclasses.replace(of_entry(entry), label=slug),
            entry=entry,
            episodes=episodes,
        )
        self._write(row, page)

    def add(self, path: Path) -> None:
        """Add a run, an entry or a training."""
        if is_training(path):
            label = path.name or path.resolve().name
            slug = self._slug(label)
            self.trainings.append(trainings.write(self.root, path, slug, self.solved))
        elif path.suffix == ENTRY and path.is_file():
            self._add_entry(path, open_entry(path))
        else:
            self._add_run(path)

    def _add_run(self, path: Path) -> None:
        run = open_run(path)
        label = path.resolve().stem if run.bundled else path.resolve().name
        slug = self._slug(label)
        writer = self._writer(slug, run)
        played = of_run(run.record, writer.passing(run.episodes()), slug)
        page = facts.of_run(run.record, played.summary)
        episodes = writer.close()
        page["unsolved"] = writer.solver.why_not
        row = Row(
            slug=slug,
            label=label,
            board=run.record.config.board,
            played=played,
            entry=None,
            episodes=episodes,
        )
        self._write(row, page)

    def _writer(self, slug: str, run: Run) -> Writer:
        config = run.record.config
        # A stranger's settings may ask for a board that fills the memory.
        trusted = not run.bundled or _is_a_board(config)
        return Writer(self.root, slug, Solver(config, self.solved if trusted else 0))

    def _write(self, row: Row, page: dict[str, Any]) -> None:
        self.rows.append(row)
        about = {
            "slug": row.slug,
            "label": row.label,
            "board": row.board,
            "episodes": row.episodes,
            **facts.standing(row.summary),
            "rankable": not row.unranked_because,
            "because": list(row.unranked_because),
        }
        pieces.write(self.root, f"run/{row.slug}", {**about, **page})

    def finish(self, pages: dict[str, str]) -> None:
        """Write the list of everything, the pages and what they need."""
        value = {
            "boards": boards.tables(self.rows),
            "trainings": self.trainings,
        }
        pieces.write(self.root, "site", value)
        for name, text in pages.items():
            (self.root / name).write_text(text, "utf-8", newline="\n")
        assets = self.root / "assets"
        assets.mkdir()
        for file in _assets().iterdir():
            if file.name.endswith(_SUFFIXES):
                (assets / file.name).write_bytes(file.read_bytes())
        mark = {"made_by": "ragen-bench view", "schema": 1}
        (self.root / MARK).write_text(f"{json.dumps(mark)}\n", "ascii", newline="\n")


def _is_a_board(config: RunConfig) -> bool:
    """Return whether a run plays what a board of ours lists."""
    if config.board is None:
        return False
    try:
        return not load(config.board).breaches(config)
    except RagenError:
        return False
