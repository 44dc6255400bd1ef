"""The static site: what its files hold, and what they can never do."""

import json
import math
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sites
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ragen_bench.board import load
from ragen_bench.cli import cli
from ragen_bench.errors import InvalidSpec, RecordError
from ragen_bench.run_folder import read_episodes, read_run
from ragen_bench.scoring import score
from ragen_bench.viewing import pieces
from ragen_bench.viewing.site import MARK, build

pytestmark = pytest.mark.report
CALL = re.compile(r'ragen\("([A-Za-z0-9._/~-]+)",(.*)\);\n', re.DOTALL)


def held(site: Path, key: str):
    """Return what a piece holds."""
    text = (site / "data" / f"{key}.js").read_text("ascii")
    call = CALL.fullmatch(text)
    assert call is not None and call[1] == key
    return json.loads(call[2])


def held_page(site: Path, slug: str):
    return held(site, f"run/{slug}")


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("site")
    runs = sites.fair_runs(root)
    return {
        **runs,
        "hostile": sites.hostile_run(root),
        "training": sites.training(root / "training", runs["oracle"]),
        "entries": sites.entries(root / "entries", runs),
        "none": root / "script.json",
    }


@pytest.fixture(scope="module")
def site(made, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "site"
    folders = [made[name] for name in ("oracle", "random", "hostile", "training")]
    found = build(folders, out, entries=made["entries"])
    assert (found.runs, found.trainings, found.index) == (5, 1, out / "index.html")
    assert found.episodes == 5 * 48
    return out


def rows_of(site: Path):
    [board] = held(site, "site")["boards"]
    return board


class TestBoards:
    def test_local_runs_stand_by_score_among_ranked_entries_without_a_rank(self, site):
        board = rows_of(site)
        slugs = [row["slug"] for row in board["ranked"]]
        assert slugs[:2] == ["by-oracle", "oracle"] and len(slugs) == 4
        scores = [row["score"][0] for row in board["ranked"]]
        assert scores == sorted(scores, reverse=True)
        assert [row["ranks"] for row in board["ranked"]] == [[1, 1], None, None, None]
        statuses = [row["status"] for row in board["ranked"]]
        assert statuses == ["replayed", "run", "run", "run"]

    def test_local_runs_change_no_entrys_rank(self, made, tmp_path):
        home = shutil.copytree(made["entries"], tmp_path / "entries")
        copied = json.loads((home / "smoke/by-oracle.json").read_text())
        copied["meta"]["name"] = "twin"
        (home / "smoke/twin.json").write_text(json.dumps(copied))

        def ranks(name: str, *runs: Path) -> dict[str, list[int]]:
            build(runs, tmp_path / name, entries=home, solved=0)
            rows = rows_of(tmp_path / name)["ranked"]
            return {row["slug"]: row["ranks"] for row in rows if row["ranks"]}

        alone = ranks("alone")
        assert alone == {"by-oracle": [1, 2], "twin": [1, 2]}
        many = [made[name] for name in ("oracle", "random", "hostile")]
        assert ranks("beside", *many) == alone

    def test_without_a_ranked_entry_the_runs_are_ranked(self, made, tmp_path):
        (tmp_path / "none").mkdir()
        runs = [made["oracle"], made["random"]]
        build(runs, tmp_path / "site", entries=tmp_path / "none", solved=0)
        rows = rows_of(tmp_path / "site")["ranked"]
        assert [(row["slug"], row["ranks"]) for row in rows] == [
            ("oracle", [1, 1]),
            ("random", [2, 2]),
        ]

    @pytest.mark.parametrize(
        ("changed", "reason"),
        [
            ({"board_version": 2}, "played version 2 of the board, which is 1 now"),
            ({"board_digest": "0" * 64}, "played another list of episodes"),
            ({"sealed": "1" * 64}, "seeds of a seal that the board no longer has"),
        ],
    )
    def test_an_entry_that_is_not_the_boards_is_not_ranked(
        self, made, tmp_path, changed, reason
    ):
        home = shutil.copytree(made["entries"], tmp_path / "entries")
        path = home / "smoke/by-oracle.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
        build([], tmp_path / "site", entries=home, solved=0)
        board = rows_of(tmp_path / "site")
        because = {row["slug"]: row["because"] for row in board["others"]}
        assert board["ranked"] == [] and reason in because["by-oracle"][0]

    def test_a_class_is_called_declared_unless_the_agent_comes_with_us(
        self, site, made, tmp_path
    ):
        rows = rows_of(site)["ranked"]
        assert not any(row["declared"] for row in rows)
        run = shutil.copytree(made["oracle"], tmp_path / "mine")
        held = json.loads((run / "run.json").read_text())
        held["config"].update(agent="mine:Agent", **{"class": "llm"})
        (run / "run.json").write_text(json.dumps(held))
        build([run], tmp_path / "site", entries=made["entries"], solved=0)
        rows = {row["slug"]: row for row in rows_of(tmp_path / "site")["ranked"]}
        assert (rows["mine"]["class"], rows["mine"]["declared"]) == ("llm", True)
        assert held_page(tmp_path / "site", "mine")["declared"] is True

    def test_an_entry_of_another_version_stands_apart_with_the_reason(self, site):
        [other] = rows_of(site)["others"]
        assert (other["slug"], other["ranks"]) == ("by-random", None)
        assert "version 2" in other["because"][0] and not other["rankable"]

    def test_floor_and_ceiling_of_every_environment_and_cell_are_shown(self, site):
        names = {line["name"] for line in rows_of(site)["floors"]}
        board = load(sites.BOARD)
        assert {f"{c.env_id}:{c.level}" for c in board.cells} <= names
        assert {c.env_id for c in board.cells} <= names
        assert all(line["floor"] < line["ceiling"] for line in rows_of(site)["floors"])

    def test_a_row_shows_what_score_gives(self, site, made):
        expected = score(made["oracle"])
        row = next(r for r in rows_of(site)["ranked"] if r["slug"] == "oracle")
        mean, low, high, n = row["score"]
        assert n == expected.score.n
        for shown, value in zip(
            (mean, low, high),
            (expected.score.mean, expected.score.low, expected.score.high),
            strict=True,
        ):
            assert math.isclose(shown, value, abs_tol=1e-6)
        assert [env["name"] for env in row["envs"]] == sorted(expected.envs)

    def test_an_incomplete_run_is_not_ranked_and_says_why(self, made, tmp_path):
        part = shutil.copytree(made["oracle"], tmp_path / "part")
        lines = (part / "episodes.jsonl").read_text().splitlines(keepends=True)
        (part / "episodes.jsonl").write_text("".join(lines[:-3]))
        build([part], tmp_path / "site", entries=made["entries"])
        row = next(
            r for r in rows_of(tmp_path / "site")["others"] if r["slug"] == "part"
        )
        assert row["owed"] == 3 and row["because"] and not row["rankable"]

    def test_without_any_entry_the_boards_that_ship_are_listed(self, tmp_path):
        (tmp_path / "none").mkdir()
        build([], tmp_path / "site", entries=tmp_path / "none")
        boards = held(tmp_path / "site", "site")["boards"]
        assert {"smoke", "standard"} <= {board["name"] for board in boards}
        assert not any(board["ranked"] or board["others"] for board in boards)

    def test_an_entry_in_the_folder_of_another_board_is_refused(self, made, tmp_path):
        shutil.copytree(made["entries"] / "smoke", tmp_path / "entries/lite")
        with pytest.raises(RecordError, match="must lie in smoke/by-oracle"):
            build([], tmp_path / "site", entries=tmp_path / "entries")
        assert not (tmp_path / "site").exists()


class TestRuns:
    def test_a_page_tells_command_settings_versions_and_hashes(self, site, made):
        page = held(site, "run/oracle")
        record = read_run(made["oracle"])
        assert page["command"] == record.command
        assert dict(page["versions"]) == dict(record.versions)
        assert dict(page["prompts"]) == dict(record.prompt_sha256)
        assert dict(page["settings"])["max_tokens"] == record.config.max_tokens
        entry = dict(held(site, "run/by-oracle")["hashes"])
        assert re.fullmatch("[0-9a-f]{64}", entry["bundle_sha256"])

    def test_breakdown_outcomes_and_parses_add_up(self, site):
        page = held(site, "run/img-src-x-onerror-window.hacked-1")
        assert sum(count for _, count in page["outcomes"]) == page["planned"] == 48
        cells = [row for row in page["breakdown"] if row["cell"]]
        assert sum(row["episodes"] for row in cells) == 48
        parses = {name for row in cells for name, count in row["parses"] if count}
        assert "unparsable" in parses

    def test_every_episode_is_found_by_the_index(self, site, made):
        index = held(site, "index/oracle")
        known = {e.key: e for e in read_episodes(made["oracle"])}
        assert len(index["at"]) == len(known) == 48
        assert sorted(index["at"]) == list(range(48))
        first = held(site, "episodes/oracle/0")
        for i, at in enumerate(index["at"]):
            record = first["episodes"][at]
            cell = index["cells"][index["cell"][i]]
            assert (record["cell"], record["split"]) == (cell["cell"], cell["split"])
            assert record["seed"] == index["seed"][i]
            assert record["outcome"] == index["outcomes"][index["outcome"][i]]
            assert len(record["turns"]) == index["turns"][i]

    def test_a_transcript_holds_every_text_as_it_was(self, site, made):
        slug = "img-src-x-onerror-window.hacked-1"
        found = held(site, f"episodes/{slug}/0")
        for record, episode in zip(
            found["episodes"], read_episodes(made["hostile"]), strict=True
        ):
            assert found["rules"][record["rules"]] == episode.rules
            assert record["last"] == episode.final_observation
            for shown, turn in zip(record["turns"], episode.turns, strict=True):
                assert shown["see"] == turn.observation
                assert shown["say"] == turn.response
                assert shown.get("think", "") == turn.thinking
                assert shown["actions"] == list(turn.actions)
                assert shown["parse"] == turn.parse

    def test_the_oracle_plays_what_the_page_calls_optimal(self, site):
        episodes = held(site, "episodes/oracle/0")["episodes"]
        planned = [e for e in episodes if "Bandit" not in e["cell"]]
        assert planned and all("best" in e for e in planned)
        cost = [e for e in planned if "Sokoban" in e["cell"]]
        for episode in cost:
            best = episode["best"]
            assert len(best["actions"]) == len(episode["turns"])
            assert not any(any(turn) for turn in best["dead"])
            played = [len(turn["actions"]) for turn in episode["turns"]]
            assert [len(turn) for turn in best["actions"]] == played
            assert sum(played) == episode["cost"]

    def test_a_record_that_does_not_replay_gets_no_optimal_actions(
        self, made, tmp_path
    ):
        run = shutil.copytree(made["oracle"], tmp_path / "other")
        lines = (run / "episodes.jsonl").read_text().splitlines()
        spoiled = []
        for line in lines:
            episode = json.loads(line)
            if "Sokoban" in episode["env_id"]:
                turn = episode["turns"][0]
                turn["observation"] = turn["observation"].replace("#", "_", 1)
            spoiled.append(json.dumps(episode))
        (run / "episodes.jsonl").write_text("\n".join(spoiled) + "\n")
        build([run], tmp_path / "site", entries=made["entries"])
        episodes = held(tmp_path / "site", "episodes/other/0")["episodes"]
        sokoban = [e for e in episodes if "Sokoban" in e["cell"]]
        assert sokoban and not any("best" in e for e in sokoban)
        told = dict(held(tmp_path / "site", "run/other")["unsolved"])
        assert told["the replay gives another board than the record"] == len(sokoban)

    def test_solved_says_how_many_episodes_are_replayed(self, made, tmp_path):
        build([made["oracle"]], tmp_path / "s", entries=made["entries"], solved=1)
        episodes = held(tmp_path / "s", "episodes/oracle/0")["episodes"]
        assert sum("best" in episode for episode in episodes) == 6


class TestTrainings:
    def test_curves_alarms_and_kept_rollouts_are_there(self, site):
        page = held(site, "training/training")
        assert page["iterations"] == list(range(1, 11))
        assert [kept[:2] for kept in page["kept"]] == [[1, 48], [5, 48], [10, 48]]
        assert page["alarms"] and all(a[0] > 6 for a in page["alarms"])
        assert len(held(site, "index/training~5")["at"]) == 48
        assert dict(page["settings"])["algorithm"] == page["method"] == "starpo-s"

    def test_one_without_rollouts_is_shown_too(self, made, tmp_path):
        bare = shutil.copytree(made["training"], tmp_path / "bare")
        shutil.rmtree(bare / "rollouts")
        build([bare], tmp_path / "site", entries=made["entries"])
        assert held(tmp_path / "site", "training/bare")["kept"] == []


class _Page(HTMLParser):
    """What a page loads, and what of it is code."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.faults: list[str] = []
        self._inline = ""

    def handle_starttag(self, tag: str, attrs) -> None:
        self._inline = tag if tag in ("script", "style") else ""
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.faults.append(name)
            if name in ("src", "href") and not value.startswith("#"):
                self.loads.append(value)

    def handle_data(self, data: str) -> None:
        if self._inline and data.strip():
            self.faults.append(data)


class TestSafety:
    def test_pages_hold_no_code_and_load_files_beside_them_alone(self, site):
        for path in site.glob("*.html"):
            page = _Page()
            page.feed(path.read_text("utf-8"))
            assert page.faults == []
            for name in page.loads:
                assert (site / name).is_file(), name
            policy = re.search(r'Security-Policy" content="([^"]*)"', path.read_text())
            assert policy and "default-src 'none'" in policy[1]
            assert "unsafe" not in policy[1] and "connect-src" not in policy[1]

    def test_scripts_never_make_elements_of_text(self, site):
        for path in (site / "assets").glob("*.js"):
            code = path.read_text("utf-8")
            for word in (
                "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                "eval(", "new Function", "srcdoc", "fetch(", "XMLHttpRequest",
                "import(",
            ):  # fmt: skip
                assert word not in code, (path.name, word)

    def test_pieces_are_one_call_in_ascii_with_nothing_that_ends_a_script(self, site):
        files = list((site / "data").rglob("*.js"))
        assert len(files) > 15
        for path in files:
            text = path.read_bytes().decode("ascii")
            assert CALL.fullmatch(text)
            assert not set("<>&\u2028\u2029") & set(text)
            assert str(path.relative_to(site / "data")).removesuffix(".js") in text

    @given(st.text(st.characters(exclude_categories=())) | st.sampled_from(["\ud800"]))
    def test_any_text_comes_back_from_a_piece(self, text):
        call = CALL.fullmatch(pieces.script("run/x", {"text": text}))
        assert call and call[2].isascii() and not set("<>&") & set(call[2])
        assert json.loads(call[2]) == {"text": text}

    def test_keys_of_a_stranger_are_no_keys_of_a_piece(self, site):
        settings = held(site, "training/training")["settings"]
        assert ["__proto__", "x"] in settings

    @given(st.text(max_size=90), st.sets(st.text(max_size=9), max_size=3))
    def test_any_label_gives_a_safe_and_new_name(self, label, taken):
        name = pieces.slug(label, taken)
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", name)
        assert not name.endswith(".") and ".." not in name[:1]
        assert name.casefold() not in {one.casefold() for one in taken}

    @pytest.mark.parametrize(
        "label",
        ["../../x", "con", "NUL.txt", "a/b\\c", ".", "..", "", "-x", "COM1"],
    )
    def test_a_name_is_no_path_and_no_device(self, label):
        name = pieces.slug(label, set())
        assert "/" not in name and "\\" not in name and not name.startswith(".")
        assert name.split(".")[0].casefold() not in {"con", "nul", "com1"}

    def test_names_that_differ_in_case_alone_are_told_apart(self):
        assert pieces.slug("Run", {"run"}) == "Run-2"

    def test_an_environment_that_names_a_module_is_never_imported(self, made, tmp_path):
        run = shutil.copytree(made["oracle"], tmp_path / "evil")
        text = (run / "episodes.jsonl").read_text()
        text = text.replace("ragen/Sokoban-v0", "antigravity:ragen/Sokoban-v0")
        (run / "episodes.jsonl").write_text(text)
        config = (run / "run.json").read_text()
        config = config.replace("ragen/Sokoban-v0", "antigravity:ragen/Sokoban-v0")
        (run / "run.json").write_text(config)
        build([run], tmp_path / "site", entries=made["entries"])
        told = dict(held(tmp_path / "site", "run/evil")["unsolved"])
        assert any("ValueError" in reason for reason in told)


class TestOut:
    def test_the_same_sources_give_the_same_bytes(self, site, made, tmp_path):
        folders = [made[name] for name in ("oracle", "random", "hostile", "training")]
        build(folders, tmp_path / "again", entries=made["entries"])
        assert tree(tmp_path / "again") == tree(site)

    def test_an_older_site_is_replaced_as_a_whole(self, made, tmp_path):
        out = tmp_path / "site"
        build([made["oracle"]], out, entries=made["entries"])
        build([made["random"]], out, entries=made["entries"])
        assert (out / "data/run/random.js").exists()
        assert not (out / "data/run/oracle.js").exists()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["site"]

    def test_a_folder_that_is_no_site_is_refused_and_kept(self, tmp_path):
        out = tmp_path / "mine"
        out.mkdir()
        (out / "thesis.txt").write_text("years of work")
        with pytest.raises(InvalidSpec, match=MARK):
            build([], out)
        assert tree(tmp_path) == {"mine/thesis.txt": b"years of work"}

    def test_an_empty_folder_is_taken(self, made, tmp_path):
        (tmp_path / "site").mkdir()
        build([], tmp_path / "site", entries=made["entries"])
        assert (tmp_path / "site" / MARK).exists()

    @pytest.mark.parametrize("inner", ["a", "a/b", "a/b/site"])
    def test_a_site_and_its_sources_may_not_lie_in_each_other(
        self, made, tmp_path, inner
    ):
        run = shutil.copytree(made["oracle"], tmp_path / "a/b")
        before = tree(tmp_path)
        with pytest.raises(InvalidSpec, match="--out"):
            build([run], tmp_path / inner, entries=made["entries"])
        assert tree(tmp_path) == before

    def test_a_file_or_a_link_is_refused(self, made, tmp_path):
        (tmp_path / "file").write_text("x")
        os.symlink(tmp_path, tmp_path / "link")
        for name in ("file", "link"):
            with pytest.raises(InvalidSpec, match="no folder"):
                build([], tmp_path / name, entries=made["entries"])

    def test_a_broken_run_leaves_the_older_site_alone(self, made, tmp_path):
        out = tmp_path / "site"
        build([made["oracle"]], out, entries=made["entries"])
        before = tree(out)
        run = shutil.copytree(made["oracle"], tmp_path / "broken")
        (run / "episodes.jsonl").write_text('{"schema": 1}\n' * 2)
        with pytest.raises(RecordError, match="line 1"):
            build([run], out, entries=made["entries"])
        assert tree(out) == before
        assert sorted(p.name for p in tmp_path.iterdir()) == ["broken", "site"]


class TestCommand:
    def test_view_prints_the_page_to_open(self, made, tmp_path):
        out, bundle = str(tmp_path / "site"), made["entries"] / "smoke/by-oracle.zip"
        args = ["view", str(made["oracle"]), str(bundle), "--out", out]
        args += ["--entries", str(made["entries"]), "--solved", "1"]
        done = CliRunner().invoke(cli, args)
        assert (done.exit_code, done.output) == (0, f"{out}/index.html\n")
        # An entry that is among those of the boards is shown once.
        args.append(str(bundle.with_suffix(".json")))
        done = CliRunner().invoke(cli, [*args, "--json"])
        facts = json.loads(done.output)
        assert facts["runs"] == 4 and facts["episodes"] == 4 * 48

    def test_an_entry_is_shown_as_one_with_its_transcripts(self, made, tmp_path):
        (tmp_path / "none").mkdir()
        out, path = tmp_path / "site", made["entries"] / "smoke/by-oracle.json"
        args = ["view", str(path), "--out", str(out)]
        done = CliRunner().invoke(cli, [*args, "--entries", str(tmp_path / "none")])
        assert done.exit_code == 0, done.output
        [row] = rows_of(out)["ranked"]
        assert (row["status"], row["episodes"]) == ("replayed", 48)
        bare = tmp_path / "by-oracle.json"
        shutil.copy(path, bare)
        build([bare], out, entries=tmp_path / "none")
        [row] = rows_of(out)["ranked"]
        assert (row["status"], row["episodes"]) == ("replayed", 0)

    def test_a_damaged_bundle_is_refused_in_one_line(self, made, tmp_path):
        whole = (made["entries"] / "smoke/by-oracle.zip").read_bytes()
        middle = len(whole) // 2
        damaged = tmp_path / "damaged.zip"
        damaged.write_bytes(
            whole[:middle]
            + bytes(b ^ 255 for b in whole[middle : middle + 40])
            + whole[middle + 40 :]
        )
        done = CliRunner().invoke(cli, ["view", str(damaged), "--out", str(tmp_path)])
        assert done.exit_code == 2 and "damaged.zip" in done.output

    @pytest.mark.parametrize("kind", ["none", "entries"])
    def test_what_is_no_run_is_refused_with_the_way_out(self, made, tmp_path, kind):
        out = str(tmp_path / "site")
        done = CliRunner().invoke(cli, ["view", str(made[kind]), "--out", out])
        assert done.exit_code == 2 and "give" in done.output
        assert not (tmp_path / "site").exists()
