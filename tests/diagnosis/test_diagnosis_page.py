"""What a reader sees: terminal, JSON, and a page that needs nobody else and trusts no name."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from worlds import world

from rcalign.diagnosis import (
    Diagnosis,
    charts,
    contraction,
    diagnose_features,
    render_html,
    render_terminal,
    to_dict,
    to_json,
    tracking,
)
from rcalign.diagnosis.html_page import _figures

NASTY = [
    "<script>document.title='broken'</script>",
    "</script><img src=x onerror=\"document.title='broken'\">",
    "@up [red]",
]


def with_run(found: Diagnosis) -> Diagnosis:
    steps = list(range(0, 500, 10))
    falling = np.exp(-np.arange(50) / 20)
    return dataclasses.replace(
        found,
        contraction=contraction(steps, falling, 0.9 * falling, alignment_after=0.5 * falling),
        tracking=tracking(steps, falling, 0.3 * falling + 0.01 * np.cos(np.arange(50))),
    )


def everything() -> dict[str, Diagnosis]:
    made = world(1, domains=3, classes=3, samples=60, width=4, skew=True)
    names: dict[str, Any] = {"class_names": NASTY, "domain_names": [*NASTY[1:], "plain"]}
    rng = np.random.default_rng(0)
    return {
        "domains": diagnose_features(**made, **names),
        "labelled target": diagnose_features(**made, **names, target=NASTY[1]),
        "unlabelled target": with_run(
            diagnose_features(**made, **names, target_features=rng.normal(size=(20, 4)), target=NASTY[0])
        ),
        "two domains, one held out": diagnose_features(**world(2, domains=2), target="domain 0"),
        "logits only": diagnose_features(**world(3, head=False)),
        "unit features": diagnose_features(**world(4, unit=True)),
        "one feature": diagnose_features(**world(5, width=1)),
        "no class in common": diagnose_features([[0.0], [1.0]], [0, 1], [0, 1], head_weight=[[1.0], [0.0]]),
        "features all equal": diagnose_features(
            np.zeros((6, 2)), [0, 1] * 3, [0, 0, 1, 1, 2, 2], head_weight=np.eye(2)
        ),
    }


@pytest.fixture(scope="module")
def reports() -> dict[str, Diagnosis]:
    return everything()


KINDS = (
    "domains",
    "labelled target",
    "unlabelled target",
    "two domains, one held out",
    "logits only",
    "unit features",
    "one feature",
    "no class in common",
    "features all equal",
)


class Page(HTMLParser):
    """The elements of a page, and the text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.text += data


def parsed(page: str) -> Page:
    reader = Page()
    reader.feed(page)
    return reader


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_asks_nobody_for_anything(kind: str, reports: dict[str, Diagnosis]) -> None:
    page = render_html(reports[kind])
    assert len(page) < 500_000
    own = page.replace("http://www.w3.org/2000/svg", "")  # the name of a kind of elements, not an address to ask
    assert not re.search(r"(https?:)?//[a-z]", own.replace("<!doctype html>", ""))
    reader = parsed(own)
    assert not [
        tag for tag, attributes in reader.elements if {"src", "href"} & set(attributes) or tag in ("link", "img")
    ]
    policy = next(a["content"] for _, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_has_its_figure_and_every_mark_its_words(kind: str, reports: dict[str, Diagnosis]) -> None:
    found = reports[kind]
    own = render_html(found)
    stored = re.search(r'<script type="application/json" id="figures">(.*?)</script>', own, re.S)
    assert stored is not None
    figures = json.loads(stored.group(1))
    places = {a["data-figure"] for _, a in parsed(own).elements if "data-figure" in a}
    assert places == set(figures)
    assert figures == json.loads(json.dumps(_figures(found)))
    for figure in figures.values():
        for trace in figure["data"]:
            marks = trace["z"] if trace["type"] == "heatmap" else trace["x"]
            if trace.get("mode") != "lines":
                assert len(trace["hover"]) == len(marks)
                assert all(map(len, trace["hover"]))
            elif "hover" in trace:
                assert len(trace["hover"]) == len(marks)


def test_a_page_of_many_classes_stays_small() -> None:
    page = render_html(diagnose_features(**world(1, domains=4, classes=150, samples=900, width=3)))
    assert len(page.encode()) < 1_500_000 and "The 60 of 150 classes" in page


def test_names_from_the_data_stay_names(reports: dict[str, Diagnosis]) -> None:
    for kind in ("domains", "labelled target", "unlabelled target"):
        own = render_html(reports[kind])
        reader = parsed(own)
        assert sum(tag == "script" for tag, _ in reader.elements) == 2
        assert not [tag for tag, _ in reader.elements if tag == "img"]
        for name in NASTY:
            assert name in reader.text


def test_every_token_of_a_colour_has_a_value_in_both_themes(reports: dict[str, Diagnosis]) -> None:
    style = (Path(charts.__file__).parent / "style.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    text = "".join(
        json.dumps(_figures(found))
        for kind, found in reports.items()
        if kind not in ("domains", "labelled target", "unlabelled target")
    )
    tokens = set(re.findall(r'"@(\w+)"', text)) - {"sequential", "diverging"}
    assert len(tokens) > 8
    for token in tokens | {"low", "high", "cold", "middle", "warm", "surface", "text", "muted", "grid"}:
        assert f"--{token}:" in light and f"--{token}:" in dark, token


def test_the_waterfalls_end_where_they_should(reports: dict[str, Diagnosis]) -> None:
    for found in reports.values():
        for one in found.held_out:
            for figure, end in ((charts.exact(one), one.risk), (charts.up_to_the_bound(one), one.bound)):
                trace = figure["data"][0]
                level = 0.0
                for measure, value in zip(trace["measure"], trace["y"], strict=True):
                    if measure == "total":  # what the steps reached is what the bar says
                        assert level == pytest.approx(value, rel=1e-9, abs=1e-9)
                    level = level + value if measure == "relative" else value
                assert level == end


@pytest.mark.parametrize("kind", KINDS)
def test_the_terminal_shows_every_domain(kind: str, reports: dict[str, Diagnosis]) -> None:
    found = reports[kind]
    console = Console(width=160, file=io.StringIO(), force_terminal=False)
    console.print(render_terminal(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for finding in found.advice:
        assert finding.title.split("'")[0].strip() in text
    if found.held_out:
        assert "Theorem 1" in text and f"{found.held_out[0].bound:.3f}" in text
    if kind == "domains":
        assert "@up [red]" in text  # a name is not markup
    if found.tracking is not None:
        assert "r = " in text and "p = " in text


@pytest.mark.parametrize("kind", KINDS)
def test_json_is_complete_and_plain(kind: str, reports: dict[str, Diagnosis]) -> None:
    found = reports[kind]
    back = json.loads(to_json(found))
    assert back == to_dict(found)
    assert set(back) == {field.name for field in dataclasses.fields(found)}
    assert len(back["held_out"]) == len(found.held_out)
    if found.held_out:
        assert back["held_out"][0]["classes"][0]["name"] == found.classes[0]


def test_a_result_is_frozen(reports: dict[str, Diagnosis]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        reports["domains"].samples = 0  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["domains", "unlabelled target"])
def test_a_browser_draws_it(kind: str, reports: dict[str, Diagnosis], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here to draw the page")
    (tmp_path / "page.html").write_text(render_html(reports[kind]), encoding="utf-8")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    command += ["--disable-component-update", "--disable-sync", "--disable-quic", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    drawn = subprocess.run(
        [*command, f"file://{tmp_path / 'page.html'}"], capture_output=True, text=True, timeout=120, check=True
    )
    assert "<title>Diagnosis</title>" in drawn.stdout  # no name ran as a script
    assert "CONSOLE" not in drawn.stderr  # no error, nothing refused by the policy
    visible = len(re.findall(r'data-drawn="yes"', drawn.stdout))
    assert visible >= 6
    assert drawn.stdout.count('<svg role="img"') >= visible


def test_a_target_without_unusual_samples_is_said_to_have_none() -> None:
    made = world(0, domains=3, classes=2, samples=200, width=3)
    inside = np.repeat(made["features"].mean(0, keepdims=True), 5, axis=0)
    for target, unusual in ((inside, False), (inside + 1000.0, True)):
        page = render_html(diagnose_features(**made, target_features=target, replicates=10))
        assert ("No sample by itself is unusual" in page) != unusual and ('<ol class="unusual">' in page) == unusual
    assert "No sample by itself" not in render_html(diagnose_features(**made)), "nothing of a target that there is not"
