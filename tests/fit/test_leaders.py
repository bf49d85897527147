"""Fine-tuning the leaders: whole comparisons only, within the budget, also where it takes longer than was measured."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rcalign.data import loading
from rcalign.data.source import Dataset
from rcalign.fit import leaders
from rcalign.fit.folds import Fold, Outcome, left_out, rows_left_out, run_fold
from rcalign.fit.portfolio import PORTFOLIO
from rcalign.fit.search import Round, Search
from rcalign.fit.timing import Clock, Pace
from rcalign.training.trained import load_trained
from toy import dark_and_light

SETTINGS = {"backbone": "test_vit", "weights": "none", "image_size": 32}
FROZEN = [dataclasses.replace(candidate, frozen=True, hparams={"batch_size": 4}) for candidate in PORTFOLIO[:2]]
STEPS = 10


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return loading.load(str(dark_and_light(tmp_path_factory.mktemp("photos"), each=6, gap=60, width=160)))


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "FEWEST_TUNING_STEPS", STEPS)
    monkeypatch.setattr(leaders, "MOST_STEPS", STEPS)


def search_of(photos: Dataset, out: Path, budget: float) -> tuple[Search, Round]:
    """A comparison on features that has ended, the second method ahead."""
    search = Search(photos, "", out, Clock(budget), settings=SETTINGS)
    outcomes = {c.name: {d: Outcome("finished", 0.5 + 0.1 * k) for d in photos.domains} for k, c in enumerate(FROZEN)}
    return search, Round(40, tuple(FROZEN), outcomes, {})


def test_what_a_frozen_fold_says_is_what_its_whole_model_says(photos: Dataset, tmp_path: Path) -> None:
    """Features from the cache, against the images through backbone and network."""
    fold = Fold(FROZEN[0], "a", 4, str(tmp_path / "fold"), settings=SETTINGS)
    assert run_fold(photos, fold).end == "finished"
    model = load_trained(tmp_path / "fold", torch.device("cpu"))
    rows = rows_left_out(photos, "a", 0)
    whole = np.concatenate([model.logits(x).numpy() for x in model.inputs(photos, rows)])
    logits, y = left_out(fold)
    np.testing.assert_allclose(logits, whole, atol=1e-5)
    np.testing.assert_array_equal(y, photos.y[rows])


@pytest.mark.slow
def test_with_time_enough_both_leaders_are_trained_on_every_domain(photos: Dataset, tmp_path: Path) -> None:
    search, last = search_of(photos, tmp_path, 3600)
    done = leaders.fine_tune_leaders(search, last)
    names = [c.name for r in done for c in r.candidates]
    assert names == [f"{c.name}, fine-tuned" for c in reversed(FROZEN)] and not search.omitted
    assert all(r.complete(photos.domains) for r in done) and {r.steps for r in done} == {STEPS}
    trained = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("outcome.json")}
    again, last = search_of(photos, tmp_path, 60)
    assert [r.scores(photos.domains) for r in leaders.fine_tune_leaders(again, last)] == [
        r.scores(photos.domains) for r in done
    ]
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("outcome.json")} == trained, "nothing again"


def test_without_time_nothing_is_begun_and_it_is_said(photos: Dataset, tmp_path: Path) -> None:
    search, last = search_of(photos, tmp_path, 1.0)
    assert leaders.fine_tune_leaders(search, last) == []
    assert not list(tmp_path.rglob("config.json"))
    assert len(search.omitted) == 1 and "SWAD and ERM" in search.omitted[0] and "larger budget" in search.omitted[0]


def test_what_took_too_long_at_the_start_is_not_measured_again_at_the_end(
    photos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end there is less time than at the start, and it is kept for the final model."""
    search, last = search_of(photos, tmp_path, 1.0)
    assert leaders.reserve_for_leaders(search, FROZEN) == 0.0
    measured: list[object] = []
    monkeypatch.setattr(leaders, "measure_tuning", lambda *what: measured.append(what))
    assert leaders.fine_tune_leaders(search, last) == [] and not measured
    assert "steps of one method take at least" in search.omitted[0]


@pytest.mark.slow
def test_a_machine_slower_than_was_measured_ends_within_the_budget(
    photos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps were measured at nearly nothing: the plan is far too long, and must be given up while it is under way."""
    monkeypatch.setattr(leaders, "MOST_STEPS", 5000)
    monkeypatch.setattr("rcalign.fit.timing.LOOK_EVERY", 0.1)
    search, last = search_of(photos, tmp_path, 15.0)

    def measured(tuning: Search, candidate: object) -> bool:
        tuning.seconds_per_step, tuning.overhead = 1e-4, 0.05
        return True

    monkeypatch.setattr(leaders, "measure_tuning", measured)
    done = leaders.fine_tune_leaders(search, last)
    assert search.clock.left > 3, "the final model is yet to come"
    assert all(r.complete(photos.domains) for r in done), "whole comparisons only"
    assert (len(done) == 2) != bool(search.omitted)


def test_folds_that_are_late_are_noticed_while_they_train(photos: Dataset, tmp_path: Path) -> None:
    """Evaluations that come every second, where a tenth of that was expected; 200 seconds are left."""
    search = Search(photos, "", tmp_path, Clock(200.0), seconds_per_step=0.01, overhead=0.1)
    candidate = dataclasses.replace(PORTFOLIO[0], name="slow")
    folds = list(search.folds([candidate], 1000).values())

    def expected(fold: Fold) -> float:
        return search.expected_seconds(fold.candidate, fold.steps)

    pace = Pace(folds, expected)

    def evaluated(step: int, at: float) -> bool:
        folder = Path(folds[0].folder)
        folder.mkdir(parents=True, exist_ok=True)
        row = {"step": step, "loss": 0.0, "metrics": {"accuracy": {}}, "validation": 0.0}
        with open(folder / "records.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        os.utime(folder / "records.jsonl", (at, at))
        pace._looked = 0.0  # as if some time had passed
        return search._late(pace)

    now = time.time()
    assert not evaluated(10, now - 1000), "of an earlier call: says nothing of today"
    assert not evaluated(20, now + 1)
    assert not evaluated(30, now + 1.2), "0.02 seconds a step: three folds and the final model take two minutes"
    assert evaluated(40, now + 5), "0.2 seconds a step: ten minutes"
    assert search.slowness == pytest.approx(0.2 * 1000 / (0.1 + 0.01 * 1000), rel=0.1)
    search.ratios.clear()
    waiting = Pace(folds, expected)
    waiting._begun, waiting._looked = now - 60, 0.0
    os.utime(Path(folds[0].folder) / "records.jsonl", (now - 50, now - 50))
    assert search._late(waiting), "83 steps have not come in 50 seconds: three folds take half an hour"
