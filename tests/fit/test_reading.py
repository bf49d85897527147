"""Reading within a budget: all rows or a sample of each domain and class, on a clock that only reading moves on."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import api
from rcalign.data import loading, sentences
from rcalign.data.forecasts import ForecastWork, tell_begin
from rcalign.data.source import Dataset, sample_of, stratified_rows
from rcalign.errors import InputError
from rcalign.fit.pipeline import run_pipeline
from rcalign.fit.reading import FEWEST_ROWS, READING_SHARE, RowSample, read_in_time, remember_sample
from rcalign.fit.timing import CLOSING, Clock
from toy import dark_and_light


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: found[0])
    return found


class SlowReader:
    """Reads rows, each in so many seconds of the clock; after some of them, more slowly."""

    def __init__(self, now: list[float], total: int, seconds: float, slower: tuple[int, float] = (10**9, 1.0)) -> None:
        self.now, self.total, self.seconds, self.slower = now, total, seconds, slower
        self.read = 0
        self.calls: list[int | None] = []

    def __call__(self, rows: int | None) -> int:
        self.calls.append(rows)
        count = self.total if rows is None else rows
        work = ForecastWork("reading", count, count)
        for row in range(1, count + 1):
            self.read += 1
            self.now[0] += self.seconds * (self.slower[1] if self.read > self.slower[0] else 1.0)
            work.advance(1, count - row)
        return count


@pytest.mark.parametrize("slower", [(10**9, 1.0), (200, 2.0), (500, 3.0)])
@pytest.mark.parametrize("budget", [40.0, 60.0, 100.0, 300.0])
def test_reading_leaves_time_for_what_follows(
    now: list[float], tmp_path: Path, budget: float, slower: tuple[int, float]
) -> None:
    reader, clock = SlowReader(now, 2000, 0.05, slower), Clock(budget)
    said: list[str] = []
    count, sample = read_in_time(reader, clock, said.append, tmp_path)
    assert clock.left >= CLOSING, "whatever the machine does, the model can still be written"
    if budget == 300.0 and slower[1] == 1.0:
        assert sample is None and reader.calls == [None] and count == 2000
    elif sample is not None:
        assert FEWEST_ROWS <= count == sample.rows < sample.of == 2000
        assert f"{sample.rows:,} of 2,000 rows" in sample.sentence and "larger budget" in sample.sentence
        assert len(reader.calls) <= 3, "not again and again"
        if slower[1] == 1.0:
            assert count * 0.05 >= 0.5 * READING_SHARE * (budget - CLOSING - 10), "and the time is used"


def test_without_a_budget_all_is_read(now: list[float], tmp_path: Path) -> None:
    reader = SlowReader(now, 2000, 5.0)
    assert read_in_time(reader, Clock(0), lambda line: None, tmp_path) == (2000, None)


@pytest.mark.parametrize(("budget", "ends"), [(15.0, True), (60.0, False), (0.0, False)])
def test_nothing_is_loaded_when_starting_used_the_budget_up(
    now: list[float], tmp_path: Path, budget: float, ends: bool
) -> None:
    """A busy machine may take longer to start the program than the budget is."""
    loaded: list[int | None] = []

    def read(rows: int | None) -> int:
        tell_begin("reading 5 texts", 5)
        loaded.append(rows)
        return 5

    now[0] = 20.0
    clock = Clock(budget, begun=0.0)
    if ends:
        with pytest.raises(InputError, match=r"15 s is used up before reading 5 texts: .* 20 s .* at least 60 s"):
            read_in_time(read, clock, lambda line: None, tmp_path)
    else:
        assert read_in_time(read, clock, lambda line: None, tmp_path) == (5, None)
    assert loaded == ([] if ends else [None])


def test_a_budget_that_holds_no_sample_is_refused_with_one_that_does(now: list[float], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"at least (\d+) s, or 0 for no limit") as refused:
        read_in_time(SlowReader(now, 2000, 0.2), Clock(25.0), lambda line: None, tmp_path)
    least = float(str(refused.value).split("at least ")[1].split(" s")[0])
    assert now[0] < 25.0, "said at once"
    now[0] = 0.0
    count, sample = read_in_time(SlowReader(now, 2000, 0.2), Clock(least + 1), lambda line: None, tmp_path)
    assert sample is not None and count >= FEWEST_ROWS and now[0] <= least + 1


def test_the_same_budget_reads_the_same_sample_and_a_larger_one_all(now: list[float], tmp_path: Path) -> None:
    _, sample = read_in_time(SlowReader(now, 2000, 0.05), Clock(60.0), lambda line: None, tmp_path)
    assert sample is not None
    remember_sample(tmp_path, sample)
    now[0] = 0.0
    again = SlowReader(now, 2000, 0.05)
    assert read_in_time(again, Clock(60.0), lambda line: None, tmp_path)[1] == sample and again.calls == [sample.rows]
    now[0] = 0.0
    little_more = SlowReader(now, 2000, 0.05)
    found = read_in_time(little_more, Clock(66.0), lambda line: None, tmp_path)[1]
    assert found is not None and found.rows == sample.rows, "what was compared with these rows can be used again"
    now[0] = 0.0
    assert read_in_time(SlowReader(now, 2000, 0.05), Clock(300.0), lambda line: None, tmp_path)[1] is None


# --- samples ----------------------------------------------------------------------------------------------------------


def test_a_sample_has_the_shares_of_all_rows_and_every_pair() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        domains, classes = int(rng.integers(2, 6)), int(rng.integers(2, 6))
        weights = rng.dirichlet(np.full(domains * classes, 0.7))
        pair = rng.choice(domains * classes, int(rng.integers(400, 1500)), p=weights)
        y, domain = pair % classes, pair // classes
        count = int(rng.integers(100, 350))
        rows = stratified_rows(y, domain, count)
        assert len(rows) == count == len(set(rows)) and (np.diff(rows) > 0).all()
        before, after = (np.bincount(part, minlength=domains * classes) for part in (pair, pair[rows]))
        assert (after[before > 0] > 0).all(), "no pair is lost"
        first = min(5, count // (2 * (before > 0).sum()))
        wanted = before / len(pair) * count
        assert (after >= np.floor(wanted * (1 - first * (before > 0).sum() / count)) - 1).all()
        assert (after <= np.maximum(np.ceil(wanted) + 1, first)).all(), "no pair is much more frequent"


def test_the_name_of_a_sample_loads_it(tmp_path: Path) -> None:
    folder = dark_and_light(tmp_path / "photos", each=8, gap=60, width=40)
    whole = loading.load(str(folder))
    part = loading.load(f"{folder}?sample=20")
    assert len(part) == 20 and part.fingerprint == sample_of(whole, 20).fingerprint != whole.fingerprint
    assert "a sample of 20 of" in part.notes[-1]
    with pytest.raises(InputError, match="`sample` is 'x'"):
        loading.load(f"{folder}?sample=x")


# --- all of it --------------------------------------------------------------------------------------------------------


def slow_features(monkeypatch: pytest.MonkeyPatch, now: list[float], seconds: float) -> list[int]:
    """Features of images that take time on the clock. -> how many were asked for in each call."""
    asked: list[int] = []

    def features(dataset: Dataset, *options: Any) -> np.ndarray:
        asked.append(len(dataset))
        work = ForecastWork("features", len(dataset), len(dataset))
        for row in range(1, len(dataset) + 1):
            now[0] += seconds
            work.advance(1, len(dataset) - row)
        return np.random.default_rng(0).normal(size=(len(dataset), 4)).astype(np.float32)

    monkeypatch.setattr("rcalign.fit.pipeline._frozen_features", features)
    return asked


@pytest.mark.slow
def test_a_sample_of_images_is_said_everywhere_and_a_larger_budget_takes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    monkeypatch.setattr("rcalign.fit.reading.FEWEST_ROWS", 10)
    for name in (
        "FEWEST_TUNING_STEPS",
        "MOST_STEPS",
    ):  # training takes no time on this clock, so all of it would be done
        monkeypatch.setattr(f"rcalign.fit.leaders.{name}", 4)
    folder = dark_and_light(tmp_path / "photos", each=10, gap=60, width=40)
    whole = loading.load(str(folder))
    asked = slow_features(monkeypatch, now, 1.0)
    settings = {"backbone": "test_vit", "weights": "none", "image_size": 32}
    options: dict[str, Any] = {"steps": 4, "workers": 1, "settings": settings}
    said: list[str] = []
    small = run_pipeline(whole, str(folder), tmp_path / "out", budget=50.0, say=said.append, **options)
    assert small.sample is not None and asked == [len(whole), small.sample.rows] and now[0] <= 50.0
    summary = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert summary["sample"] == {"rows": small.sample.rows, "of": len(whole), "sentence": small.sample.sentence}
    assert small.sample.sentence in (tmp_path / "out" / "report.html").read_text() and small.sample.sentence in said
    config = json.loads((tmp_path / "out" / "model" / "config.json").read_text())
    assert config["data"] == f"{folder}?sample={small.sample.rows}"
    assert loading.load(config["data"]).fingerprint == config["data_fingerprint"], "its rows are found again"
    now[0] = 0.0
    large = run_pipeline(whole, str(folder), tmp_path / "out", budget=3000.0, **options)
    assert large.sample is None and large.look.rows == len(whole)
    config = json.loads((tmp_path / "out" / "model" / "config.json").read_text())
    assert config["data"] == str(folder) and config["data_fingerprint"] == whole.fingerprint
    other = loading.load(str(dark_and_light(tmp_path / "other", each=9, gap=60, width=40)))
    with pytest.raises(InputError, match="other data"):
        run_pipeline(other, str(tmp_path / "other"), tmp_path / "out", budget=50.0, **options)


def test_a_sample_of_texts_is_read_and_the_model_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """An encoder that takes half a second of the clock for a batch of 32 texts: 75 seconds for all."""
    monkeypatch.setenv("RCALIGN_CACHE", str(tmp_path / "cache"))

    embedded: list[str] = []

    def compute(texts: Any, encoder: str, progress: bool, read: Any = lambda batch, vectors: None) -> np.ndarray:
        found = np.array([[len(text), text.count("good"), text.count("x")] for text in texts], np.float32)
        for start in range(0, len(texts), sentences.BATCH):
            now[0] += 0.5
            embedded.extend(texts[start : start + sentences.BATCH])
            read(texts[start : start + sentences.BATCH], found[start : start + sentences.BATCH])
        return found

    for name, value in (
        ("compute", compute),
        ("_model", lambda folder: None),
        ("_folder", lambda encoder: Path(encoder)),
        ("width_of", lambda encoder: 3),
        ("find_encoder", lambda name: "toy"),
        ("encoder_fingerprint", lambda encoder: "toy"),
    ):
        monkeypatch.setattr(sentences, name, value)
    rng = np.random.default_rng(0)
    rows = 4800
    with open(tmp_path / "reviews.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["shop", "text", "stars"])
        for k in range(rows):
            good = bool(rng.random() < 0.4)
            words = " ".join(["x"] * int(rng.integers(3, 9)))
            writer.writerow([f"shop {k % 3}", f"{'good' if good else 'bad'} {words} {k}", "yes" if good else "no"])
    said: list[str] = []
    monkeypatch.setattr("rcalign.fit.ticker.Ticker.say", lambda self, line: said.append(line))
    options: dict[str, Any] = {"label": "stars", "domain": "shop", "text": ["text"], "steps": 5, "workers": 1}
    found = api.fit(tmp_path / "reviews.csv", budget=60.0, out=tmp_path / "out", **options)
    assert now[0] <= 60.0 and FEWEST_ROWS <= found["sample"]["rows"] < found["sample"]["of"] == rows
    assert found["sample"]["sentence"] in said and not any("a sample of" in note for note in found["notes"])
    assert sum(map(sum, found["look"]["counts"])) == found["sample"]["rows"]
    shares = np.array(found["look"]["counts"]) / found["sample"]["rows"]
    assert np.abs(shares.sum(0) - [0.6, 0.4]).max() < 0.03 and np.abs(shares.sum(1) - 1 / 3).max() < 0.01
    evaluated = api.evaluate(found["model"], tmp_path / "reviews.csv")
    assert any("were part of the training and were left out" in note for note in evaluated["notes"])
    now[0] = 0.0
    whole = api.fit(tmp_path / "reviews.csv", budget=600.0, out=tmp_path / "out", **options)
    assert whole["sample"] is None and sum(map(sum, whole["look"]["counts"])) == rows
    assert len(embedded) == len(set(embedded)) == rows, "a sample and all rows share what was embedded"


def test_a_sample_remembered_wrongly_is_not_used(now: list[float], tmp_path: Path) -> None:
    (tmp_path / "sample.json").write_text("{")
    assert read_in_time(SlowReader(now, 200, 0.01), Clock(60.0), lambda line: None, tmp_path) == (200, None)
    remember_sample(tmp_path, RowSample(50, 200, 60.0))
    remember_sample(tmp_path, None)
    assert not (tmp_path / "sample.json").exists()
