"""The evidence: every figure comes from the committed records, and its rules are those that were written down."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rcalign import api
from rcalign.reports.figures import AVERAGE, WORST
from rcalign.reports.report import make_report
from rcalign.sweeps import plan_file
from rcalign.sweeps.plan import expand
from results import __main__ as command
from results import pages, plans, records, tables
from results.tables import Reading

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "results" / "records"


def test_figures_are_what_the_records_give(tmp_path: Path) -> None:
    pages.write_all(RECORDS, tmp_path)
    made, committed = ((folder / "figures.md").read_text() for folder in (tmp_path, RECORDS.parent))
    assert made.split("## Cost")[0] == committed.split("## Cost")[0]  # costs are measured anew by every `make bench`


@pytest.mark.parametrize("name", command.STUDIES)
def test_every_planned_run_is_in_the_records(name: str, tmp_path: Path) -> None:
    sweep = plan_file.read(plans.write(command.STUDIES[name](), tmp_path / f"{name}.toml"))
    planned = {run.id for run in expand(sweep)}
    lines = records.lines_of(RECORDS / f"{name}.jsonl")
    assert planned <= {line["id"] for line in lines}
    assert all(line.get("problem") is None for line in lines)


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
