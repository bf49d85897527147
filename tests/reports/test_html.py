"""The page in a real browser: it loads from a file, sorts, filters, switches runs, and asks nobody for anything."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import api
from rcalign.reports.figures import results
from rcalign.reports.html import make_page
from rcalign.reports.report import Report, make_report
from rcalign.reports.tables import all_tables
from rcalign.store.read_runs import RunCollection
from rcalign.store.run_folder import Record
from rcalign.store.run_view import Run
from rcalign.store.sweep_folder import SweepFolder
from reports.conftest import CLASSES, DOMAINS

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --force-prefers-reduced-motion"
)
LIMIT = 8_000_000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Debian's Chromium with its own driver."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with its driver here (Debian: apt-get install chromium chromium-driver)")
    pytest.importorskip("selenium", reason="selenium is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    found.implicitly_wait(2)
    yield found
    found.quit()


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[[Path], Any]]:
    """Opens a page; afterwards the console must be empty and no request may have left the machine."""

    pages: list[Path] = []

    def opened(page: Path, width: int = 1200) -> Any:
        pages.append(page)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get_log("performance")
        browser.get(page.as_uri())
        return browser

    yield opened
    assert browser.get_log("browser") == []
    if not pages:  # the test was skipped before it came to a page
        return
    ours = {page.as_uri() for page in pages}
    asked: list[str] = []
    for _ in range(600):  # the browser hands its log over in its own time
        events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        # the browser's own start page, which may still be loading, asks for resources too
        asked += [request["request"]["url"] for request in sent if request["documentURL"].partition("#")[0] in ours]
        if asked:
            break
        time.sleep(0.1)
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)


@pytest.fixture(scope="module")
def page(finished_sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    api.report(finished_sweep, out=file)
    return file


def column(browser: Any, k: int) -> list[str]:
    script = """return [...document.querySelectorAll('.overview:not([hidden]) tbody tr')].filter(r => !r.hidden)
                .map(r => r.children[arguments[0]].innerText)"""
    return browser.execute_script(script, k)


def pick(browser: Any, select: str, value: str) -> None:
    options = browser.find_elements("css selector", f"#{select} option")  # Selenium's own Select trips over quotes
    (option,) = [option for option in options if option.get_attribute("value") == value]
    option.click()


def texts(browser: Any, selector: str) -> list[str]:
    return [node.get_attribute("textContent") for node in browser.find_elements("css selector", selector)]


def test_every_section_draws(show: Callable[..., Any], page: Path) -> None:
    browser = show(page)
    assert browser.title == "tiny – rcalign report"
    drawn = ["domains-chart", "curve-test", "curve-validation", "hp-chart", "cost-chart", "class-chart"]
    for chart in [*drawn, "confusion-chart", "compare-chart"]:
        assert browser.find_elements("css selector", f"#{chart} svg .mark"), chart
    assert len(browser.find_elements("css selector", "#chosen-list .choice")) == 6  # three domains, two trials
    assert "None: every figure has all the runs it needs." in browser.find_element("id", "missing").text
    assert "torch" in browser.find_element("id", "environment").text


def test_sorting_by_mouse_and_by_keyboard(show: Callable[..., Any], page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = show(page)
    headings = browser.find_elements("css selector", ".overview thead button")
    average = next(k for k, heading in enumerate(headings) if heading.text == "average")
    headings[average].click()
    values = [float(text.split("±")[0]) for text in column(browser, average)]
    assert values == sorted(values, reverse=True) and len(values) == 2
    headings[average].send_keys(Keys.ENTER)
    assert [float(text.split("±")[0]) for text in column(browser, average)] == sorted(values)
    assert headings[average].find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    headings[0].send_keys(Keys.SPACE)
    assert column(browser, 0) == ["CORAL", "ERM"]


def test_filtering_reaches_the_charts(show: Callable[..., Any], page: Path) -> None:
    browser = show(page)
    browser.find_element("id", "filter").send_keys("cor")
    assert column(browser, 0) == ["CORAL"] and browser.find_element("id", "shown").text == "1 of 2 rows"
    assert set(texts(browser, "#domains-chart svg text.ink")) == {"CORAL"}
    browser.find_element("id", "filter").clear()
    browser.find_element("id", "filter").send_keys("erm, coral")
    assert column(browser, 0) == ["CORAL", "ERM"]  # by their averages


def test_switching_runs_changes_both_views(show: Callable[..., Any], page: Path, finished_sweep: Path) -> None:
    browser = show(page)
    options = browser.find_elements("css selector", "#run option")
    assert len(options) == 12  # two algorithms, three domains, two trials
    for option in (options[0], options[-1]):
        pick(browser, "run", option.get_attribute("value"))
        again = browser.find_element("id", "run-again")
        assert again.get_attribute("value") == option.get_attribute("value")
        # the counts drawn are those of the run's own result
        what = option.get_attribute("textContent")
        run = next(choice.run for choice in make_report(finished_sweep).results[0].choices.values()
                   if what == f"{choice.run.algorithm} on rows, {choice.run.test_domains[0]} held out, "
                              f"trial {choice.run.trial}, draw {choice.run.draw}")  # fmt: skip
        assert run.result is not None
        matrix = np.array(run.result.confusion[run.test_domains[0]])
        shown = [int(text) for text in texts(browser, "#confusion-chart svg text.on")]
        shares = (100 * matrix / matrix.sum(1, keepdims=True)).ravel()
        assert shown == [int(np.floor(share + 0.5)) for share in shares if share >= 0.5]


def test_the_address_keeps_what_is_chosen(show: Callable[..., Any], page: Path, tmp_path: Path) -> None:
    browser = show(page)
    browser.find_element("id", "filter").send_keys("cor")
    headings = browser.find_elements("css selector", ".overview thead button")
    next(heading for heading in headings if heading.text == "worst").click()
    pick(browser, "curve-trial", "1")
    address = browser.current_url
    browser.get("about:blank")
    browser.get(address)
    assert column(browser, 0) == ["CORAL"]
    assert browser.find_element("id", "curve-trial").get_attribute("value") == "1"
    (sorted_by,) = browser.find_elements("css selector", ".overview th[aria-sort]")
    assert sorted_by.text.startswith("worst") and sorted_by.get_attribute("aria-sort") == "descending"


def test_curves_and_hyperparameters_follow_their_controls(show: Callable[..., Any], page: Path) -> None:
    browser = show(page)
    assert len(browser.find_elements("css selector", "#curve-test svg path")) == 4  # a mean and its band for each
    pick(browser, "curve-trial", "0")
    assert len(browser.find_elements("css selector", "#curve-test svg path")) == 2  # the chosen run of each algorithm
    pick(browser, "curve-show", "ERM")
    assert len(browser.find_elements("css selector", "#curve-test svg path")) == 2  # its two draws
    pick(browser, "curve-column", DOMAINS[1])
    assert DOMAINS[1] in browser.find_element("css selector", "#curve-test figcaption").text
    before = len(browser.find_elements("css selector", "#hp-chart figure:first-child .mark"))
    pick(browser, "hp-column", DOMAINS[0])
    assert len(browser.find_elements("css selector", "#hp-chart figure:first-child .mark")) == before / 3
    assert "learning_rate" in texts(browser, "#hp-chart figcaption")


def test_arrow_keys_read_a_chart_out(show: Callable[..., Any], page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = show(page)
    chart = browser.find_element("css selector", "#cost-chart svg")
    chart.send_keys(Keys.ARROW_RIGHT)
    first = browser.find_element("id", "tip").text
    chart.send_keys(Keys.ARROW_RIGHT)
    assert "a run" in first and browser.find_element("id", "tip").text != first
    chart.send_keys(Keys.ESCAPE)
    assert not browser.find_element("id", "tip").is_displayed()


def test_copied_hyperparameters_are_the_chosen_ones(show: Callable[..., Any], page: Path, finished_sweep: Path) -> None:
    browser = show(page)
    browser.execute_script("window.kept = []; navigator.clipboard.writeText = async (text) => window.kept.push(text)")
    for button in browser.find_elements("css selector", "#chosen-list .choice:first-child button"):
        button.click()
    hparams, command = browser.execute_script("return window.kept")
    chosen = make_report(finished_sweep).results[0].choices["ERM", sorted(DOMAINS)[0], 0].run
    assert json.loads(hparams) == chosen.hparams
    assert command.startswith("rcalign train ") and f"--set learning_rate={chosen.hparams['learning_rate']}" in command
    assert browser.find_element("id", "copied").text == "Command copied."


def test_names_of_classes_and_domains_stay_text(show: Callable[..., Any], page: Path) -> None:
    browser = show(page)
    assert "<script>alert" not in page.read_text()
    assert texts(browser, ".overview thead button")[1:4] == sorted(DOMAINS)
    assert CLASSES[0] in texts(browser, "#class-chart svg text") or CLASSES[0][:8] in str(
        texts(browser, "#class-chart text")
    )
    assert browser.execute_script("return document.scripts.length") == 2


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_sticks_out_on_a_phone(show: Callable[..., Any], page: Path, width: int) -> None:
    browser = show(page, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    right = "return [...document.querySelectorAll('main svg')].map(s => s.getBoundingClientRect().right)"
    assert max(browser.execute_script(right)) <= width


def test_dark_mode_is_dark(show: Callable[..., Any], page: Path) -> None:
    browser = show(page)
    tone = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert min(browser.execute_script(tone)) > 200
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert max(browser.execute_script(tone)) < 60
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_missing_runs_and_last_lines(
    show: Callable[..., Any], sweep: Path, run_id: Callable[..., str], tmp_path: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    layout, run = SweepFolder(sweep), run_id([DOMAINS[0]])
    layout.run(run).result_file.unlink()
    layout.fail(run, "error", "RuntimeError: <b>no memory</b>", ["first", "<i>last</i>"])
    api.report(sweep, out=tmp_path / "page.html")
    browser = show(tmp_path / "page.html")
    section = browser.find_element("id", "missing")
    assert run in section.text and "RuntimeError: <b>no memory</b>" in section.text
    section.find_element("tag name", "summary").click()
    assert "<i>last</i>" in section.find_element("tag name", "pre").text
    assert "missing" in column(browser, 1)
    # a column with a missing figure sorts it last, both ways
    heading = browser.find_elements("css selector", ".overview thead button")[1]
    for _ in range(2):
        heading.send_keys(Keys.ENTER)
        assert column(browser, 1)[-1] == "missing"


def test_two_data_sets_share_a_page(show: Callable[..., Any], reference: Path, tmp_path: Path) -> None:
    copies = tmp_path / "both"
    for data in ("VLCS", "PACS"):
        shutil.copytree(reference / "domainbed-sweep" / "runs", copies / data)
        for file in (copies / data).rglob("*"):
            file.chmod(0o755)
        for file in (copies / data).rglob("results.jsonl"):
            file.write_text(file.read_text().replace('"VLCS"', f'"{data}"'))
    api.report(copies, out=tmp_path / "page.html", compare="published")
    browser = show(tmp_path / "page.html")
    first = texts(browser, "#domains-chart figcaption")
    pick(browser, "which", "1")
    second = texts(browser, "#domains-chart figcaption")
    assert {tuple(first[:4]), tuple(second[:4])} == {("C", "L", "S", "V"), ("A", "C", "P", "S")}
    assert "no versions" in browser.find_element("id", "environment").text
    assert any("published" in name for name in column(browser, 0))
    browser = show(tmp_path / "page.html", 360)  # the names of both data sets are longer than a phone is wide
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("width", [360, 1200])
def test_no_name_crosses_an_interval(show: Callable[..., Any], tmp_path: Path, width: int) -> None:
    rng = np.random.default_rng(0)
    runs = []
    for k in range(20):  # all about equally good, and equally dear
        for held_out in ("a", "b"):
            for trial in range(3):
                tested = {held_out: {"val": 0.5, "test": 0.6 + 0.05 * rng.random()}}
                record = Record(step=1, loss=0.1, validation=0.5, metrics={"accuracy": tested})
                runs.append(
                    Run(name=f"{k}{held_out}{trial}", data="toy", algorithm=f"method {k}", protocol="lodo",
                        domains=("a", "b"), test_domains=(held_out,), trial=trial, records=(record,),
                        seconds=1 + 0.05 * k)
                )  # fmt: skip
    sweep = RunCollection("toy", "", "rcalign", tuple(runs))
    tables = results(sweep)
    (tmp_path / "page.html").write_text(make_page(Report(sweep, tuple(tables), tuple(all_tables(tables)))))
    browser = show(tmp_path / "page.html", width)
    boxes = """return [...document.querySelectorAll('#cost-chart ' + arguments[0])]
               .map(node => node.getBoundingClientRect())
               .map(box => [box.left, box.right, box.top, box.bottom])"""
    names = browser.execute_script(boxes, "text.ink")
    intervals = browser.execute_script(boxes, "line[stroke-linecap]")
    assert len(names) >= 3 and len(intervals) == 20
    for left, right, top, bottom in names:
        for x, _, high, low in intervals:
            assert not (left < x < right and top + 3 < low and high < bottom - 3)


# --- without a browser ---------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_but_itself(page: Path) -> None:
    text = page.read_text()
    assert len(text) < 400_000
    assert "default-src 'none'" in text
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", text) and "@import" not in text and "url(" not in text


def test_a_large_sweep_stays_below_the_limit() -> None:
    rng = np.random.default_rng(0)
    domains = tuple(f"domain{k}" for k in range(4))
    runs = []
    for algorithm in [f"method{k}" for k in range(10)]:
        for held_out in domains:
            for trial in range(3):
                for draw in range(20):
                    rows = tuple(
                        Record(step=300 * s, loss=rng.random(), validation=rng.random(),
                               metrics={"accuracy": {held_out: {"val": 0.5, "test": rng.random()}}})
                        for s in range(17)
                    )  # fmt: skip
                    hparams = {f"hyperparameter{k}": float(rng.random()) for k in range(12)}
                    runs.append(
                        Run(name=f"{len(runs):016x}", data="large", algorithm=algorithm, protocol="lodo",
                            domains=domains, test_domains=(held_out,), draw=draw, trial=trial, records=rows,
                            hparams=hparams, seconds=1.0)
                    )  # fmt: skip
    sweep = RunCollection("large", "", "rcalign", tuple(runs))
    tables = results(sweep)
    text = make_page(Report(sweep, tuple(tables), tuple(all_tables(tables))))
    assert len(text) < LIMIT
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, flags=re.DOTALL)[0])
    assert len(data["runs"]) == 2400
    assert {str(choice["run"]) for choice in data["tables"][0]["choices"]} <= set(data["curves"])
