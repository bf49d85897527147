"""``fit`` from a table to a model, a page and predictions: run once, looked at from all sides."""

from __future__ import annotations

import csv
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rcalign import api
from rcalign.data import loading
from rcalign.errors import InputError
from rcalign.fit.folds import EVALUATIONS, Fold, Outcome, evaluate_every, read_outcome, run_fold
from rcalign.fit.pipeline import run_pipeline
from rcalign.fit.portfolio import PORTFOLIO, portfolio, recommended
from rcalign.fit.search import SAFETY, Search
from rcalign.fit.timing import Clock, seconds_of
from rcalign.store.run_folder import Record
from toy import HOSPITALS
from toy import patients as table


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("fit")
    file = table(folder / "patients.csv")
    result = api.fit(
        file, label="ill", domain="hospital", budget="30m", steps=24, workers=1, out=folder / "out", more=["vrex"]
    )
    return folder, result


@pytest.mark.slow
def test_every_method_is_compared_on_every_domain(fitted: tuple[Path, dict[str, Any]]) -> None:
    _, result = fitted
    methods = {row["method"] for row in result["table"]}
    assert {candidate.name for candidate in PORTFOLIO} | {"VREx", "gradient boosting"} == methods
    for row in result["table"]:
        assert set(row["accuracy"]) == set(HOSPITALS)
        assert row["mean"] == pytest.approx(np.mean(list(row["accuracy"].values())))
    assert result["boosting"] is not None and "radient boosting" in result["boosting"]
    best = max(row["mean"] for row in result["table"] if row["network"])
    assert best > 0.7, "the marker tells"
    low, high = result["expectation"]["interval"]
    assert low < result["expectation"]["expected"] < high


@pytest.mark.slow
def test_the_model_is_trained_on_every_row_and_calibrated_on_left_out_ones(
    fitted: tuple[Path, dict[str, Any]],
) -> None:
    folder, result = fitted
    model = folder / "out" / "model"
    config = json.loads((model / "config.json").read_text())
    assert config["protocol"] == "all" and np.sum(config["spec"]["counts"]) == 4 * 60
    calibration = json.loads((model / "result.json").read_text())["calibration"]
    assert calibration["from_left_out"] and calibration["rows"] == 4 * 60
    chosen = next(row for row in result["table"] if row["method"] == result["method"]["name"])
    assert config["steps"] <= chosen["steps"]


@pytest.mark.slow
def test_the_three_commands_work_on_it(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, result = fitted
    new = table(folder / "new.csv", rows=20, seed=5)
    found = api.predict(result["model"], [new], coverage=0.8)
    with open(new, newline="") as opened:
        truth = [row["ill"] for row in csv.DictReader(opened)]
    right = [row["predicted"] == y for row, y in zip(found["rows"], truth, strict=True)]
    inside = [y in row["set"].split(" | ") for row, y in zip(found["rows"], truth, strict=True)]
    assert np.mean(right) > 0.65 and np.mean(inside) > 0.75 and np.mean(inside) >= np.mean(right)
    with pytest.raises(InputError, match="with 4 domains: at most 80 %"):
        api.predict(result["model"], [new], coverage=0.9)
    api.diagnose(result["model"])
    told = api.diagnose(result["model"], target=new)
    assert told.target is not None and told.target.samples == 4 * 20
    expected = told.target.expected
    assert expected is not None and expected.interval is not None, "judged by the domains when they were left out"
    assert set(expected.domains) == set(HOSPITALS)
    pytest.importorskip("onnxruntime")
    assert Path(api.export(result["model"])["file"]).exists()


@pytest.mark.slow
def test_the_page_is_small_whole_and_says_it(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, result = fitted
    page = (folder / "out" / "report.html").read_text()
    assert len(page.encode()) < 1.5e6 and "<script" not in page
    assert result["expectation"]["sentence"].split(";")[0] in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page), "nothing is loaded"
    for name in (*HOSPITALS, result["method"]["name"], "--coverage 0.8"):
        assert name in page
    card = (folder / "out" / "model-card.md").read_text()
    assert "domains left out" in card and result["expectation"]["sentence"] in card
    assert "say nothing about a new domain" not in card and "tested on rows held out" not in card
    exported = Path(api.export(result["model"], "safetensors", out=folder / "m.safetensors")["card"]).read_text()
    assert result["expectation"]["sentence"] in exported, "whoever gets the file is told as much"


@pytest.mark.slow
def test_the_same_call_trains_nothing_again_and_other_data_are_refused(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, result = fitted
    outcomes = {file: file.stat().st_mtime_ns for file in (folder / "out").rglob("outcome.json")}
    again = api.fit(
        folder / "patients.csv",
        label="ill",
        domain="hospital",
        budget="30m",
        steps=24,
        workers=1,
        out=folder / "out",
        more=["vrex"],
    )
    assert again["table"] == result["table"] and again["method"] == result["method"]
    assert {file: file.stat().st_mtime_ns for file in (folder / "out").rglob("outcome.json")} == outcomes
    other = table(folder / "other.csv", seed=9)
    with pytest.raises(InputError, match="other data"):
        api.fit(other, label="ill", domain="hospital", budget="1m", out=folder / "out")


def test_no_budget_trains_the_recommended_method_only(tmp_path: Path) -> None:
    file = table(tmp_path / "patients.csv")
    result = api.fit(file, label="ill", domain="hospital", budget=0, steps=20, out=tmp_path / "out")
    assert result["table"] == [] and result["expectation"] is None
    assert "nothing is known about the next domain" in (tmp_path / "out" / "report.html").read_text()
    assert api.predict(result["model"], [file])["count"] == 240
    with pytest.raises(InputError, match="nothing is left to test on"):
        api.evaluate(result["model"])
    with pytest.raises(InputError, match="no left-out predictions"):
        api.predict(result["model"], [file], coverage=0.8)


def test_small_networks_are_trained_by_one_thread(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        file = table(tmp_path / "patients.csv", rows=12)
        found = api.fit(file, label="ill", domain="hospital", budget=0, steps=4, out=tmp_path / "out")
        assert torch.get_num_threads() == 2, "only while it trains"
    finally:
        torch.set_num_threads(before)
    assert json.loads((Path(found["model"]) / "config.json").read_text())["threads"] == 1


def test_a_fold_goes_on_where_it_was_stopped_and_is_found_finished(tmp_path: Path) -> None:
    data = loading.load(f"{table(tmp_path / 'p.csv')}?label=ill&domain=hospital")
    fold = Fold(PORTFOLIO[0], "north", 24, str(tmp_path / "whole"))
    whole = run_fold(data, fold)
    assert whole.end == "finished" and read_outcome(fold) == whole and run_fold(data, fold) == whole
    with np.load(tmp_path / "whole" / "left-out.npz") as found:
        assert (data.domain[found["rows"]] == data.domains.index("north")).all() and len(found["rows"]) == 60
        assert (found["logits"].argmax(1) == found["y"]).mean() == pytest.approx(whole.accuracy)


def test_a_budget_without_room_says_so_and_stays_within_it(tmp_path: Path) -> None:
    """Two seconds do not compare anything: the recommended method is trained, and it is said."""
    said: list[str] = []
    data = loading.load(f"{table(tmp_path / 'p.csv')}?label=ill&domain=hospital")
    fitted = run_pipeline(data, data.name, tmp_path / "out", budget=2.0, steps=20, workers=1, say=said.append)
    assert fitted.expectation is None
    assert any("too small to compare" in line for line in said)


def test_one_domain_is_trained_and_nothing_is_promised(tmp_path: Path) -> None:
    rows = table(tmp_path / "all.csv").read_text().splitlines()
    (tmp_path / "one.csv").write_text("\n".join([rows[0], *(row for row in rows if row.startswith("north,"))]) + "\n")
    found = api.fit(
        tmp_path / "one.csv", label="ill", domain="hospital", budget="1m", steps=5, workers=1, out=tmp_path / "out"
    )
    assert found["expectation"] is None and found["table"] == []
    assert "nothing is known about the next domain" in (tmp_path / "out" / "report.html").read_text()


def test_steps_and_candidates_follow_the_budget(tmp_path: Path) -> None:
    data = loading.load(f"{table(tmp_path / 'p.csv')}?label=ill&domain=hospital")
    candidates = portfolio(domains=4, images=False, table=True)
    planned = []
    for budget in (60.0, 300.0, 3000.0):
        search = Search(data, "", tmp_path, Clock(budget), seconds_per_step=0.02, overhead=0.5)
        steps, chosen = search._first_round(candidates, 1000, budget)
        planned.append((len(chosen), steps))
        assert not chosen or search.round_seconds(chosen, steps) <= budget
    assert planned == sorted(planned), "more time, more methods or more steps"
    assert planned[-1][0] == len(candidates)
    few = Search(data, "", tmp_path, Clock(60), seconds_per_step=0.02, overhead=0.5)
    assert few._first_round(candidates, 5, 60.0)[0] <= 5, "no round has more steps than were asked for"


def test_a_round_of_more_steps_than_are_asked_for_now_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = loading.load(f"{table(tmp_path / 'p.csv')}?label=ill&domain=hospital")
    trained: list[int] = []

    def fold_at_once(data: object, fold: Fold) -> Outcome:
        trained.append(fold.steps)
        return Outcome("finished", accuracy=0.5)

    monkeypatch.setattr("rcalign.fit.search.run_fold", fold_at_once)
    for steps in (60, 20, 20):
        search = Search(data, "", tmp_path, Clock(3600), seconds_per_step=0.001, overhead=0.1)
        assert search.run(PORTFOLIO, steps)[-1].steps == trained[-1] == steps


def test_the_first_training_of_a_process_does_not_count_as_a_slow_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports take ten seconds, a fold after them one: a plan by the first fold would have room for a tenth of them."""
    now, imported = [0.0], [False]

    def fold_of_known_cost(data: object, fold: Fold, callbacks: Any = ()) -> Outcome:
        now[0] += 1.0 if imported[0] else 11.0
        imported[0] = True
        for callback in callbacks:
            callback.on_start(None)
            callback.on_step(fold.steps, {})
        return Outcome("finished", seconds=1.0)

    monkeypatch.setattr("rcalign.fit.search.run_fold", fold_of_known_cost)
    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: now[0])
    data = loading.load(f"{table(tmp_path / 'p.csv')}?label=ill&domain=hospital")
    search = Search(data, "", tmp_path, Clock(600))
    assert search.probe(PORTFOLIO[0])
    assert search.overhead == pytest.approx(1.0, abs=0.1) and search.warm_up == pytest.approx(10.0)
    again = Search(data, "", tmp_path, Clock(600))  # the same command after a stop: a process that has imported nothing
    assert again.probe(PORTFOLIO[0]) and again.available == pytest.approx(600 - 10.0)
    again.learn_from(Fold(PORTFOLIO[0], "north", 1, ""), 11.0)
    assert again.slowness == pytest.approx(1.0, abs=0.1) and again.available == pytest.approx(600)
    again.learn_from(Fold(PORTFOLIO[0], "south", 1, ""), 11.0)
    assert again.slowness > 3.0, "what is slow after that is the machine"


@pytest.fixture
def known_costs(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Folds of known cost on a clock of their own (the item); they are not real, so that the right answer is known."""
    now = [0.0]

    def fold_of_known_cost(data: object, fold: Fold, callbacks: Any = ()) -> Outcome:
        now[0] += 4.0
        callbacks[0].on_start(None)
        for step in range(1, fold.steps + 1):
            now[0] += 0.5 if step > 2 else 10.0  # the first steps in a process
            if step % evaluate_every(fold.steps, fold.evaluations) == 0:
                callbacks[0].on_step(step, {})
                now[0] += 3.0
                callbacks[0].on_evaluation(Record(step=step, loss=0.0, metrics={}, validation=0.0))
        now[0] += 1.0
        return Outcome("finished")

    monkeypatch.setattr("rcalign.fit.search.run_fold", fold_of_known_cost)
    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: now[0])
    return now


def test_a_probe_does_not_take_evaluations_or_the_first_training_for_steps(
    tmp_path: Path, known_costs: list[float]
) -> None:
    search = Search(loading.load(f"{table(tmp_path / 'p.csv')}?label=ill&domain=hospital"), "", tmp_path, Clock(3600))
    assert search.probe(PORTFOLIO[0])
    assert search.seconds(PORTFOLIO[0], 200) == pytest.approx(SAFETY * (5.0 + 0.5 * 200 + 3.0 * EVALUATIONS))
    again = Search(search.dataset, "", tmp_path, Clock(3600))
    before = known_costs[0]
    assert again.probe(PORTFOLIO[0])
    assert known_costs[0] == before and again.overhead == search.overhead, "measured once"


def test_what_was_measured_for_other_threads_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger or smaller budget may train with another number of workers, hence of threads."""
    data = loading.load(f"{table(tmp_path / 'p.csv')}?label=ill&domain=hospital")
    for threads in (1, 2, 1):
        monkeypatch.setattr("rcalign.fit.search.threads_of_fold", lambda workers, threads=threads: threads)
        assert Search(data, "", tmp_path, Clock(3600)).probe(PORTFOLIO[0])
        assert json.loads((tmp_path / "costs.json").read_text())["threads"] == threads


def test_a_probe_that_takes_too_long_ends_and_the_recommended_method_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rcalign.fit.search.PROBE_STEPS", 100_000)
    data = loading.load(f"{table(tmp_path / 'p.csv')}?label=ill&domain=hospital")
    fitted = run_pipeline(data, data.name, tmp_path / "out", budget=10.0, steps=60, workers=1)
    assert fitted.expectation is None and fitted.omitted and "too small" in fitted.omitted[0]
    assert fitted.omitted[0] in (tmp_path / "out" / "fit.json").read_text()


def test_folds_that_take_longer_than_was_measured_shorten_what_follows(tmp_path: Path) -> None:
    data = loading.load(f"{table(tmp_path / 'p.csv')}?label=ill&domain=hospital")
    search = Search(data, "", tmp_path, Clock(3600), seconds_per_step=0.02, overhead=0.5)
    fold = Fold(PORTFOLIO[0], "north", 100, "")
    before = search.affordable(PORTFOLIO, 5000, 600.0)
    search.learn_from(fold, 3 * (0.5 + 100 * 0.02))
    assert search.slowness == pytest.approx(3.0)
    assert 0 < search.affordable(PORTFOLIO, 5000, 600.0) < before / 2
    for _ in range(2):  # folds that were faster promise nothing
        search.learn_from(fold, 0.1)
    assert search.slowness == 1.0


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("90s", 90), ("2h", 7200), ("0", 0), (" 1.5M ", 90)])
def test_budgets_in_words(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["soon", "", "-5m", "10x", "nan"])
def test_wrong_budgets_are_said(text: str) -> None:
    with pytest.raises(InputError, match="30m, 90s"):
        seconds_of(text)


def test_wrong_input_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    file = table(tmp_path / "patients.csv")
    with pytest.raises(InputError, match="hold the class and the domain"):
        api.fit(file, out=tmp_path / "out")
    with pytest.raises(InputError, match="`domain` is missing"):
        api.fit(file, label="ill", out=tmp_path / "out")
    with pytest.raises(InputError, match="did you mean 'hospital'"):
        api.fit(file, label="ill", domain="hopsital", out=tmp_path / "out")
    with pytest.raises(InputError, match="unknown algorithm 'ERMM'"):
        api.fit(file, label="ill", domain="hospital", more=["ERMM"], budget="1m", out=tmp_path / "out")
    with pytest.raises(InputError, match="'mean' or 'worst'"):
        api.fit(file, label="ill", domain="hospital", rule="median", out=tmp_path / "other")
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1], domain=[0, 0, 1, 1])
    with pytest.raises(InputError, match="is for tables"):
        api.fit(tmp_path / "x.npz", label="y", domain="domain", out=tmp_path / "third")


def test_the_recommendation_follows_the_shares_of_classes() -> None:
    alike, _ = recommended(4, 0.0, images=False)
    shifted, why = recommended(4, 0.8, images=True)
    assert alike.name != shifted.name and "shares" in why and shifted.frozen
    assert recommended(2, 0.8, images=False)[0] == alike  # two domains leave nothing to align


@pytest.mark.slow
def test_processes_give_the_same_folds_and_stop_when_time_is_up(tmp_path: Path) -> None:
    """Two Ray workers, as a larger budget uses them: the same numbers as in this process; then no time at all."""
    data = f"{table(tmp_path / 'p.csv', rows=30)}?label=ill&domain=hospital"
    dataset = loading.load(data)
    candidates = portfolio(domains=4, images=False, table=True)[:2]
    accuracies = []
    for workers in (1, 2):
        out = tmp_path / f"workers{workers}"
        out.mkdir()
        search = Search(dataset, data, out, Clock(3600), workers=workers, seconds_per_step=0.01, overhead=0.1)
        with search.processes:
            accuracies.append(search.run_round(candidates, 12, position=0).scores(dataset.domains))
    assert accuracies[0] == accuracies[1] and len(accuracies[0]) == 2
    (tmp_path / "late").mkdir()
    late = Search(dataset, data, tmp_path / "late", Clock(0.0), workers=2, seconds_per_step=0.01, overhead=0.1)
    with late.processes:
        assert len(late.run_round(candidates, 5000, position=0).complete(dataset.domains)) == 0
