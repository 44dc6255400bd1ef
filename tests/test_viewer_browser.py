"""The built site in Chromium, from a disk and from a server."""

import functools
import http.server
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sites

from ragen_bench.viewing.site import build

pytestmark = pytest.mark.browser
ATTACKER = "img-src-x-onerror-window.hacked-1"
PAGES = {
    "boards": "index.html",
    "run": "run.html#oracle",
    "entry": "run.html#by-oracle",
    "hostile run": f"run.html#{ATTACKER}",
    "episode": f"episode.html#{ATTACKER}/40/2",
    "pair": f"episode.html#{ATTACKER}/40/1/oracle",
    "training": "training.html#training/5",
    "nothing": "episode.html#nobody/7",
}
LIMIT = 20.0
"""Seconds within which anything must have appeared."""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"these tests need {name}; bash scripts/install_chromium.sh")
    return found


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("viewer")
    runs = sites.fair_runs(root)
    folders = [
        *runs.values(),
        sites.hostile_run(root),
        sites.training(root / "training", runs["oracle"]),
    ]
    entries = sites.entries(root / "entries", runs)
    return build(folders, root / "site", entries=entries).index.parent


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def served(site) -> Iterator[str]:
    handler = functools.partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["disk", "server"])
def base(request, site, served) -> str:
    return site.as_uri() + "/" if request.param == "disk" else served


class Browser:
    """Chromium, and what the tests do with it."""

    def __init__(self, folder: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = program("chromium")
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update",
            "--disable-dev-shm-usage", "--disable-sync", f"--user-data-dir={folder}",
            "--window-size=1280,900",
        ):  # fmt: skip
            options.add_argument(argument)
        logs = {"browser": "ALL", "performance": "ALL"}
        options.set_capability("goog:loggingPrefs", logs)
        service = Service(program("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.media()

    def media(self, scheme: str = "light", width: int = 1280) -> None:
        """Set the colours that the reader likes and the width of the window."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        tell = self.driver.execute_cdp_cmd
        tell("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        tell("Emulation.setDeviceMetricsOverride", size)

    def open(self, address: str) -> None:
        """Open a page and wait until it shows what it is about, or that it cannot."""
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(address)
        self.until(
            "return document.querySelector('[role=alert]')"
            " || document.title.split(' - ').length > 2 || "
            "(document.querySelector('#table tbody tr, #breakdown tr, .panes .turn,"
            " #panels figure'))"
        )

    def js(self, code: str, *values: Any) -> Any:
        return self.driver.execute_script(code, *values)

    def until(self, code: str) -> Any:
        """Return what a script returns as soon as it is true."""
        end = time.monotonic() + LIMIT
        while not (found := self.js(code)):
            assert time.monotonic() < end, f"in vain: {code}"
        return found

    def one(self, selector: str) -> Any:
        self.until(f"return document.querySelector({json.dumps(selector)})")
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def choose(self, selector: str, value: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.one(selector)).select_by_value(value)

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def texts(self, selector: str) -> list[str]:
        return self.js(
            "return [...document.querySelectorAll(arguments[0])]"
            ".map((node) => node.textContent)",
            selector,
        )

    def faults(self) -> list[str]:
        """Return what the browser complained of."""
        return [line["message"] for line in self.driver.get_log("browser")]

    def asked(self) -> set[str]:
        """Return the addresses that were asked for since the page was opened."""
        messages = [
            json.loads(line["message"])["message"]
            for line in self.driver.get_log("performance")
        ]
        return {
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        }


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(chromium) -> Browser:
    chromium.media()
    return chromium


ENTRIES = "#table tbody:first-of-type th[scope=row] a"


def test_the_table_is_sorted_by_its_headers(browser, base):
    browser.open(base + "index.html")
    header = "th:has([data-key=value])"
    assert browser.one(header).get_attribute("aria-sort") == "descending"
    before = browser.texts(ENTRIES)
    assert before[:2] == ["by-oracle", "oracle"]
    browser.click("[data-key=value]")
    assert browser.one(header).get_attribute("aria-sort") == "ascending"
    assert browser.texts(ENTRIES)[-1] in before[:2]
    assert browser.js("return document.activeElement.dataset.key") == "value"
    browser.click("[data-key=label]")
    assert browser.texts(ENTRIES) == sorted(before, key=str.lower)
    assert browser.one(header).get_attribute("aria-sort") == "none"


def test_local_runs_are_marked_and_have_no_rank(browser, base):
    browser.open(base + "index.html")
    rows = dict(
        browser.js(
            "return [...document.querySelectorAll('#table tbody:first-of-type tr')]"
            ".filter((row) => row.querySelector('a')).map((row) =>"
            " [row.querySelector('a').textContent, [row.cells[0].textContent,"
            " [...row.querySelectorAll('th .tag')].map((tag) => tag.textContent)]])"
        )
    )
    assert rows["by-oracle"] == ["1", []]
    assert rows["oracle"] == rows["random"] == ["\u2013", ["local"]]
    assert "without a rank" in browser.one("#local").text
    browser.click("[data-key=rank]")
    assert browser.texts(ENTRIES)[0] == "by-oracle"


def test_a_warning_is_told_in_words(browser, base):
    browser.open(base + "run.html#by-oracle")
    text = "prompt_unchecked  run.json: mine:Agent does not come with ragen-bench"
    assert browser.js("return RB.warning(arguments[0])", text) == (
        "Prompts were not checked: mine:Agent does not come with ragen-bench."
    )
    assert browser.js("return RB.warning(arguments[0])", "odd") == (
        "Warning of the verifier: odd."
    )


def test_filters_narrow_the_table_and_floor_and_ceiling_stay(browser, base):
    browser.open(base + "index.html")
    assert len(browser.texts("#table tr.reference")) == 2
    assert browser.texts("#table .divider + tr a") == ["by-random"]
    assert "version 2" in browser.one("#table .because").text
    kinds = browser.js("return [...document.querySelector('#class').options].length")
    assert kinds > 2
    browser.choose("#class", "solver")
    assert "oracle" in browser.texts(ENTRIES)
    assert sites.HOSTILE_NAME not in browser.texts(ENTRIES)
    assert len(browser.texts("#table tr.reference")) == 2
    browser.choose("#env", "ragen/Sokoban-v0")
    browser.choose("#level", "1")
    shown = browser.js(
        "return [...document.querySelectorAll('#table tbody:first-of-type tr')]"
        ".map((row) => [row.querySelector('th').innerText.split('\\n')[0].trim(),"
        " row.querySelector('.value b').textContent])"
    )
    assert {tuple(row) for row in shown if row[0].startswith("Ceiling")} == {
        ("Ceiling: best play", "1.00")
    }
    assert [value for name, value in shown if name.startswith("oracle")] == ["1.00"]
    browser.choose("#measure", "success")
    assert "Success" in browser.one("[data-key=value]").text


def test_an_episode_is_opened_from_its_run_and_played(browser, base):
    from selenium.webdriver.common.keys import Keys

    browser.open(base + "index.html")
    browser.click("a[href='run.html#oracle']")
    browser.until("return document.querySelectorAll('#episodes tbody tr').length > 40")
    cells = browser.js(
        "return [...document.querySelector('#cell').options]"
        ".map((o) => [o.value, o.textContent])"
    )
    browser.choose("#cell", next(v for v, name in cells if name == "Sokoban 1"))
    assert browser.one("#count").text == "8 of 48 episodes"
    browser.click("#episodes tbody a")
    browser.until("return document.querySelector('.turns li.current')")
    assert "Sokoban, level 1" in browser.one("#title").text
    assert browser.one("#where").text.startswith("Turn 1 of")
    assert "optimal here: " in browser.one(".stage svg.grid").get_attribute(
        "aria-label"
    )
    browser.choose("#speed", "1600")
    browser.click("#play")
    assert browser.one("#play").get_attribute("aria-label") == "Pause"
    browser.choose("#speed", "150")
    browser.until(
        "return document.querySelector('#where').textContent.startsWith('End')"
    )
    browser.until("return document.querySelector('#play').ariaLabel === 'Play'")
    assert "Solved with" in browser.one("#live").get_attribute("textContent")
    browser.js("document.activeElement.blur()")
    browser.press(Keys.HOME)
    assert browser.one("#where").text.startswith("Turn 1 of")
    browser.press(Keys.ARROW_RIGHT)
    assert not browser.one("#where").text.startswith("Turn 1 of")
    browser.press("?")
    assert browser.js("return document.querySelector('#help').open")
    browser.press(Keys.ESCAPE)
    assert not browser.js("return document.querySelector('#help').open")
    title = browser.one("#title").text
    browser.press("n")
    browser.until(f"return document.querySelector('#title').textContent != '{title}'")
    assert browser.faults() == []


def test_a_link_leads_to_its_turn(browser, base):
    browser.open(f"{base}episode.html#{ATTACKER}/40/3")
    assert browser.one("#where").text.startswith("Turn 3 of")
    assert "Turn 3" in browser.one(".turns li[aria-current=step] h3").text
    browser.click(".turns li:nth-child(2) h3 a")
    browser.until(
        "return document.querySelector('#where').textContent.startsWith('Turn 2')"
    )
    assert browser.driver.current_url.endswith(f"#{ATTACKER}/40/2")


def test_two_agents_play_one_instance_side_by_side(browser, base):
    browser.open(f"{base}episode.html#{ATTACKER}/40/1")
    browser.choose("#other", "oracle")
    browser.until("return document.querySelectorAll('.pane').length === 2")
    assert browser.driver.current_url.endswith(f"#{ATTACKER}/40/1/oracle")
    heads = browser.texts(".pane > header h2")
    assert heads == [sites.HOSTILE_NAME, "oracle"]
    labels = browser.js(
        "return [...document.querySelectorAll('.stage svg.grid')]"
        ".map((grid) => grid.getAttribute('aria-label'))"
    )
    assert len(labels) == 2 and labels[0] == labels[1]
    assert "optimal here" in labels[0]
    browser.click("#step")
    assert browser.texts(".current h3") == ["Turn 2", "Turn 2"]
    for _ in range(5):
        browser.click("#step")
    assert browser.texts(".current h3") == ["Turn 7", "End"]


def test_text_is_found_in_a_run_and_in_an_episode(browser, base):
    browser.open(f"{base}run.html#{ATTACKER}")
    browser.one("#text").send_keys("FAR TOO long")
    browser.click("#filters button[type=submit]")
    browser.until(
        "return document.querySelector('#count').textContent.includes(' of 48')"
    )
    found = browser.texts("#episodes tbody th")
    assert 0 < len(found) < 48
    browser.click("#episodes tbody a")
    browser.one("#find").send_keys("far too long")
    browser.click("#tools button[type=submit]")
    browser.until("return document.querySelector('#found').textContent == '1 of 1000'")
    assert browser.one("mark.here").text.lower() == "far too long"
    assert browser.one("#where").text.startswith("Turn 9")


def test_a_long_text_is_folded_until_somebody_asks(browser, base):
    browser.open(f"{base}episode.html#{ATTACKER}/40/9")
    size = "return document.querySelector('.current .say pre').textContent.length"
    assert browser.js(size) < 5000
    browser.click(".current .say .fold")
    assert browser.js(size) > 200_000


def test_a_training_shows_the_rollouts_of_the_iteration_chosen(browser, base):
    browser.open(base + "training.html#training/1")
    assert browser.one("#where").text == "Iteration 1"
    browser.js(
        "const at = document.querySelector('#at'); at.value = 1;"
        "at.dispatchEvent(new Event('input'))"
    )
    browser.until(
        "return document.querySelector('#where').textContent == 'Iteration 5'"
    )
    browser.until(
        "return location.hash === '#training~5' || location.hash === '#training/5'"
    )
    assert len(browser.texts("#panels svg.chart")) > 4
    assert len(browser.texts("#alarms li")) > 0
    browser.click("#episodes tbody a")
    browser.until("return document.querySelector('.turns li.current')")
    assert browser.one("#crumb").text == "training, iteration 5"


@pytest.mark.parametrize("page", PAGES)
def test_no_page_runs_a_strangers_script_or_asks_elsewhere(browser, base, page):
    browser.open(base + PAGES[page])
    if page == "hostile run":
        browser.one("#text").send_keys("hacked")
        browser.click("#filters button[type=submit]")
        browser.until(
            "return document.querySelector('#count').textContent.includes('hacked')"
        )
    if page in ("episode", "pair"):
        for _ in range(12):
            browser.click("#step")
            if not browser.one("#step").is_enabled():
                break
    assert browser.js("return window.hacked") is None
    assert (
        browser.js("return document.querySelectorAll('img[src=x], base').length") == 0
    )
    assert (
        browser.js("return document.querySelectorAll('a[href^=javascript]').length")
        == 0
    )
    assert {url for url in browser.asked() if not url.startswith(base)} <= {
        "about:blank"
    }
    if page == "nothing":
        assert "could not be drawn" in browser.one("[role=alert]").text
    else:
        assert browser.faults() == []
        assert not browser.js("return document.querySelector('[role=alert]')")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_shuts_anybody_out(browser, site, page, scheme):
    from axe_selenium_python import Axe

    browser.media(scheme)
    browser.open(f"{site.as_uri()}/{PAGES[page]}")
    for opener in browser.driver.find_elements("css selector", "details:not([open])"):
        browser.js("arguments[0].open = true", opener)
    axe = Axe(browser.driver)
    # The policy of the page forbids eval, which a debugger's script needs not.
    axe.inject()
    found = axe.run()
    bad = [
        (v["id"], v["impact"], v["nodes"][0]["target"], v["nodes"][0]["failureSummary"])
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]
    assert bad == []
    assert len(found["passes"]) > 10


@pytest.mark.parametrize("page", PAGES)
def test_a_phone_shows_each_page_without_scrolling_sideways(browser, site, page):
    browser.media(width=360)
    browser.open(f"{site.as_uri()}/{PAGES[page]}")
    assert browser.js("return document.documentElement.scrollWidth") <= 360


def test_the_colours_can_be_chosen(browser, base):
    browser.open(base + "index.html")
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.js(ground)
    browser.click("#theme")
    assert browser.js(ground) == light
    browser.click("#theme")
    assert browser.one("#theme").text == "Theme: dark"
    assert browser.js(ground) != light
    browser.click("#theme")


def test_the_keyboard_reaches_everything(browser, base):
    from selenium.webdriver.common.keys import Keys

    browser.open(base + "index.html")
    browser.press(Keys.TAB)
    assert browser.js("return document.activeElement.id") == "skip"
    reached = set()
    for _ in range(40):
        browser.press(Keys.TAB)
        reached.add(
            browser.js(
                "const a = document.activeElement;"
                "return a.id || a.dataset.key || a.getAttribute('href') || a.tagName"
            )
        )
    assert {"theme", "class", "env", "level", "measure", "value", "label"} <= reached
    assert "run.html#oracle" in reached


Opener = Callable[[str], None]
