"""Gradient boosting, where it wins, is a model like any other: saved, calibrated, used, exported."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import api
from rcalign.fit.expectation import choose_method
from rcalign.fit.pipeline import _boosting_sentence
from rcalign.models.boosted_trees import ABOUT


def table(file: Path, rows: int, seed: int, domains: int = 5) -> Path:
    """Whether it sells depends on price and season together, which a few steps of a network do not find."""
    rng = np.random.default_rng(seed)
    with open(file, "w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["shop", "price", "season", "day", "sells"])
        for k in range(domains):
            for _ in range(rows):
                price, season = rng.normal(), rng.choice(["winter", "spring", "summer", "autumn"])
                sells = (price > 0) == (season in ("winter", "summer")) or rng.random() < 0.02
                shown = f"{price:.3f}" if rng.random() > 0.05 else ""
                day = f"2024-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}"
                writer.writerow([f"shop {k}", shown, season, day, "yes" if sells else "no"])
    return file


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("boosting")
    file = table(folder / "sales.csv", rows=80, seed=0)
    found = api.fit(file, label="sells", domain="shop", budget="30m", steps=4, workers=1, out=folder / "out")
    return folder, found


@pytest.mark.slow
def test_it_is_chosen_saved_and_said(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, result = fitted
    assert result["method"]["name"] == "gradient boosting" and " wins: " in result["boosting"]
    assert result["boosting"] in (folder / "out" / "report.html").read_text().replace("&#39;", "'")
    config = json.loads((folder / "out" / "model" / "config.json").read_text())
    assert config["algorithm"] == ABOUT.name and config["protocol"] == "all"
    assert np.sum(config["spec"]["counts"]) == 5 * 80
    calibration = json.loads((folder / "out" / "model" / "result.json").read_text())["calibration"]
    assert calibration["from_left_out"] and calibration["rows"] == 5 * 80
    assert not list((folder / "out" / "model").rglob("*.pkl")) and "pickle" not in str(config)
    assert "decision trees" in (folder / "out" / "model-card.md").read_text()


@pytest.mark.slow
def test_every_command_works_with_it(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, result = fitted
    new = table(folder / "new.csv", rows=40, seed=9, domains=2)
    with open(new, newline="") as opened:
        truth = [row["sells"] for row in csv.DictReader(opened)]
    found = api.predict(result["model"], [new], coverage=0.8)["rows"]
    right = np.mean([row["predicted"] == y for row, y in zip(found, truth, strict=True)])
    inside = np.mean([y in row["set"].split(" | ") for row, y in zip(found, truth, strict=True)])
    assert right > 0.85 and inside >= 0.8
    # the columns have the roles that they had in training
    assert api.evaluate(result["model"], new)["average"] == pytest.approx(right)


@pytest.mark.slow
def test_the_known_domains_are_judged_by_models_that_had_not_seen_them(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, result = fitted
    new = table(folder / "target.csv", rows=40, seed=9, domains=2)
    told = api.diagnose(result["model"], target=new)
    assert told.target is not None and told.target.samples == 80
    assert any("trained without it" in note for note in told.notes)
    left_out = next(row for row in result["table"] if row["method"] == "gradient boosting")["accuracy"]
    assert {one.domain: one.accuracy for one in told.held_out} == pytest.approx(left_out)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torchscript"])
def test_the_exported_trees_say_the_same(fitted: tuple[Path, dict[str, Any]], format: str) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    _, result = fitted
    done = api.export(result["model"], format)
    assert done["difference"] < 1e-6 and Path(done["file"]).exists()


@pytest.mark.parametrize(
    ("trees", "said"),
    [([0.9, 0.9, 0.8], "wins: 26.7 points above B"), ([0.1, 0.2, 0.3], "does not win: 40.0 points below B")],
)
def test_the_report_says_whether_it_wins(trees: list[float], said: str) -> None:
    scores = {"A": [0.5, 0.4, 0.6], "B": [0.6, 0.6, 0.6], "gradient boosting": trees}
    sentence = _boosting_sentence(scores, {"A", "B"}, choose_method(scores))
    assert sentence is not None and said in sentence


def test_a_tie_is_no_win() -> None:
    scores = {"A": [0.5, 0.8, 0.6], "gradient boosting": [0.6, 0.7, 0.61]}
    sentence = _boosting_sentence(scores, {"A"}, choose_method(scores))
    assert sentence is not None and "are tied by the mean over the domains left out (+0.3 points)" in sentence
