"""The evidence: every figure comes from the committed records, and its rules are those that were written down."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from rcalign import api
from rcalign.reports.figures import AVERAGE, WORST
from rcalign.reports.report import make_report
from rcalign.sweeps import plan_file
from rcalign.sweeps.plan import expand
from results import __main__ as command
from results import late, pages, plans, quick, records, step_pages, step_study, tables
from results.tables import Reading

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "results" / "records"


def test_figures_are_what_the_records_give(tmp_path: Path) -> None:
    pages.write_all(RECORDS, tmp_path)
    made, committed = ((folder / "figures.md").read_text() for folder in (tmp_path, RECORDS.parent))
    assert made.split("## Cost")[0] == committed.split("## Cost")[0]  # costs are measured anew by every `make bench`


@pytest.mark.parametrize("name", command.STUDIES)
def test_every_planned_run_is_in_the_records(name: str, tmp_path: Path) -> None:
    """By id, of everything that determines a run; RC-Align's by place: it has other fields and defaults now."""
    planned = expand(plan_file.read_plan(plans.write(command.STUDIES[name](), tmp_path / f"{name}.toml")))
    lines = records.lines_of(RECORDS / f"{name}.jsonl")
    others, ours = ([run for run in planned if (run.algorithm == "RC-Align") is own] for own in (False, True))
    assert {run.id for run in others} <= {line["id"] for line in lines}
    places = {(line["data"], line["label"], tuple(line["test_domains"]), line["draw"], line["trial"]) for line in lines}
    assert {(run.data, run.label, tuple(run.test_domains), run.draw, run.trial) for run in ours} <= places
    assert all(line.get("problem") is None for line in lines)


@pytest.mark.parametrize("name", [row for row in step_study.ROWS if (RECORDS / f"table-{row}.jsonl").exists()])
def test_the_final_table_is_whole(name: str) -> None:
    """Every method of a row has both draws of the search for every domain, and a seed that counts has all methods."""
    file = RECORDS / f"table-{name}.jsonl"
    lines = step_study.lines_of(file)
    places = [(line["held_out"], line["method"], line["draw"], line["seed"], line["average"]) for line in lines]
    assert len(places) == len(set(places))
    row, methods = step_study.ROWS[name], step_study.methods_of(name)
    for held_out, method, draw in itertools.product(row.held_out, methods, range(step_study.DRAWS)):
        assert {(held_out, method, draw, 0, average) for average in ("", "swad")} <= set(places)
    for line in lines:
        if "hparams" in line:
            fixed = methods[line["method"]][1]
            later = {"target_prior", "weight_average"} - line["hparams"].keys()  # added after some of the runs
            assert {key: line["hparams"][key] for key in fixed if key not in later} == {
                key: value for key, value in fixed.items() if key not in later
            }
            assert line["hparams"]["batch_size"] == step_study.BATCH


def test_quick_runs_are_those_of_the_library(tmp_path: Path) -> None:
    """The same steps, checkpoint and figures as ``rcalign train``, also with SWAD beside instead of around."""
    rng = np.random.default_rng(0)
    y, domain = np.tile(np.arange(2), 90), np.repeat(["a", "b", "c"], 60)
    x = rng.standard_normal((180, 4)).astype(np.float32) + y[:, None] * (1 + (domain == "c"))[:, None]
    np.savez(tmp_path / "rows.npz", x=x, y=y, domain=domain)
    task = quick.features_task(str(tmp_path / "rows.npz"), "lodo", ["c"], 1, None)
    for algorithm, options in (("ERM", {}), ("RC-Align", {**step_study.OURS, "weight_average": False})):
        options = {"batch_size": 8, **options}
        found = quick.train(task, algorithm, options, steps=24, every=2, seed=1)
        for average, result in found.items():
            told = api.train(
                tmp_path / "rows.npz",
                algorithm,
                ["c"],
                steps=24,
                evaluate_every=2,
                seed=1,
                hparams=options,
                average=average,
                out=tmp_path / f"{algorithm}-{average}",
            )
            assert result["accuracy"] == told["accuracy"] and result["validation"] == told["validation"]


def test_intervals_and_correction() -> None:
    values = [0.5, 1.5, 2.0, -0.3]
    found = step_pages.weighted(values, [0.25] * 4)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(values), low, high))
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert step_pages.holm({"a": 0.5, "b": 0.001, "c": 0.02}) == pytest.approx({"a": 0.5, "b": 0.003, "c": 0.04})


def test_condensed_records_keep_the_figures(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(2), 90)
    domain = np.repeat(["a", "b", "c"], 60)
    x = rng.standard_normal((180, 4)).astype(np.float32) + y[:, None] * (1 + (domain == "c"))[:, None]
    np.savez(tmp_path / "rows.npz", x=x, y=y, domain=domain)
    for label, seed, held_out in [(a, s, d) for a in ("ERM", "CORAL") for s in (0, 1) for d in "abc"]:
        out = tmp_path / "runs" / f"{label}-{seed}-{held_out}"
        api.train(
            tmp_path / "rows.npz",
            algorithm=label,
            test_domains=[held_out],
            steps=12,
            evaluate_every=4,
            seed=seed,
            out=out,
        )
    records.condense(tmp_path / "runs", tmp_path / "runs.jsonl")
    full = make_report(tmp_path / "runs").results[0]
    light = tables.figures_of(records.load(tmp_path / "runs.jsonl"))
    for label in ("ERM", "CORAL"):
        for column in ("a", "b", "c", AVERAGE, WORST):
            assert light.figures[label, column].mean == pytest.approx(full.figures[label, column].mean, abs=1e-4)
            assert light.figures[label, column].error == pytest.approx(full.figures[label, column].error, abs=1e-4)
    assert "| CORAL |" in tables.main_table(light)


def test_all_readings_are_screened() -> None:
    names = plans.readings()
    assert len(names) == 72
    assert {plans.SHIPPED, plans.TO_THE_LETTER} <= names.keys()
    assert names[plans.TO_THE_LETTER]["steps"] * 5 == plans.STEPS  # the same number of images


def reading(name: str, *scores: float) -> Reading:
    values = {("data", "held out", trial): score for trial, score in enumerate(scores)}
    return Reading(name, values, values)


@pytest.mark.parametrize(
    ("best", "chosen"),
    [
        ((0.60, 0.61, 0.62), "other"),  # ahead by two points each time
        ((0.50, 0.68, 0.59), "shipped"),  # ahead by less than the error
    ],
)
def test_the_shipped_default_stays_within_one_standard_error(best: tuple[float, ...], chosen: str) -> None:
    final = [reading("other", *best), reading("shipped", 0.58, 0.59, 0.60)]
    assert tables.decide(final, "shipped") == chosen


def test_the_decision_never_sees_the_vendor_kept_out() -> None:
    for plan in (plans.screen(), plans.final([plans.SHIPPED])):
        assert all(plans.KEPT_OUT in held_out for held_out in plan["test_domains"])


def test_late_stages_on_activations_are_the_whole_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen early stages, then the late ones: the features of the whole backbone, for images as they are."""
    monkeypatch.setenv("RCALIGN_CACHE", str(tmp_path))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(12, 64, 64, 3)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(12) % 2, domain=np.repeat(["a", "b", "c"], 4))
    task = late.late_task(str(tmp_path / "images.npz"), ["c"], 0, size=64, most=100)
    whole = late.whole_task(str(tmp_path / "images.npz"), ["c"], 0, size=64, most=100)
    rows = np.arange(12)
    with torch.inference_mode():
        ours = task.backbone.featurizer.eval()(next(task.inputs.batches(rows)))
        theirs = whole.backbone.featurizer.eval()(next(whole.inputs.batches(rows)))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    seen = [task.batches(2, 0, False).at(step).x for step in range(3)]
    kept = {row.numpy().tobytes() for view in task.views for row in torch.from_numpy(view)}
    assert all(row.numpy().tobytes() in kept for x in seen for row in x)
    assert all(parameter.requires_grad for parameter in task.network(0).parameters())
