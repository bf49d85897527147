"""Figures against recorded tables, other programs' statistics and cases small enough to see through."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rcalign.errors import InputError
from rcalign.reports import published
from rcalign.reports.figures import (
    AVERAGE,
    WORST,
    Results,
    compare,
    compare_pairs,
    default_baseline,
    leaders,
    mean_ranks,
    results,
)
from rcalign.reports.report import make_report
from rcalign.reports.tables import comparison_table, main_table, published_figure
from rcalign.store.read_runs import RunCollection
from rcalign.store.run_folder import Record
from rcalign.store.run_view import Run
from rcalign.store.sweep_folder import SweepFolder
from reports.conftest import DOMAINS

RULES = {
    "training-domain": "training-domain validation set",
    "leave-one-domain-out": "leave-one-domain-out cross-validation",
    "oracle": "test-domain validation set (oracle)",
}


def expected_tables(reference: Path, title: str) -> tuple[dict[str, str], str]:
    """What DomainBed prints: column -> figure, and the average with its error."""
    text = (reference / "domainbed-sweep" / "expected-tables.txt").read_text()
    blocks = [block for block in text.split("-------- ") if title in block.splitlines()[0]]
    (one,), (averages,) = ([b for b in blocks if b.startswith(kind)] for kind in ("Dataset", "Averages"))
    header, row = one.splitlines()[1:3]
    cells = re.findall(r"\d+\.\d(?: \+/- \d+\.\d)?", row)
    return dict(zip(header.split()[1:], cells, strict=True)), re.findall(r"\d+\.\d \+/- \d+\.\d", averages)[0]


@pytest.mark.parametrize("rule", RULES)
def test_the_table_of_domainbeds_sweep_shows_domainbeds_figures(reference: Path, rule: str) -> None:
    expected, average = expected_tables(reference, RULES[rule])
    table = make_report(reference / "domainbed-sweep", rule).tables[0]
    shown = {
        name: f"{cell.text} +/- {cell.error}" for name, cell in zip(table.header[1:], table.rows[0][1:], strict=True)
    }
    assert {name: shown[name] for name in "CLSV"} == {name: expected[name] for name in "CLSV"}
    assert shown[AVERAGE] == average and shown[AVERAGE].startswith(expected["Avg"])


def made_up(values: dict[str, dict[str, list[float]]], protocol: str = "lodo") -> Results:
    """algorithm -> domain -> accuracy of each trial."""
    domains = tuple(next(iter(values.values())))
    runs = []
    for algorithm, by_domain in values.items():
        for domain, trials in by_domain.items():
            for trial, value in enumerate(trials):
                accuracy = {name: {"val": 0.5, "test": value} for name in domains}
                record = Record(step=1, loss=0, metrics={"accuracy": accuracy}, validation=0.5)
                runs.append(
                    Run(
                        name=f"{algorithm}-{domain}-{trial}",
                        data="toy",
                        algorithm=algorithm,
                        protocol=protocol,
                        domains=domains,
                        test_domains=(domain,),
                        trial=trial,
                        records=(record,),
                    )
                )
    (table,) = results(RunCollection("toy", "", "rcalign", tuple(runs)))
    return table


def test_average_and_worst_are_taken_within_a_trial() -> None:
    table = made_up({"X": {"a": [0.2, 0.8], "b": [0.6, 0.4]}})
    assert table.figures["X", AVERAGE].values == {0: pytest.approx(0.4), 1: pytest.approx(0.6)}
    assert table.figures["X", WORST].values == {0: 0.2, 1: 0.4}
    assert table.figures["X", WORST].mean == pytest.approx(30.0)  # below the smaller column, which is 50
    assert table.figures["X", AVERAGE].error == pytest.approx(10 / np.sqrt(2))


def test_bold_needs_a_lead_beyond_the_error() -> None:
    # errors of 1 point each: their difference has one of 1.41
    table = made_up({"X": {"a": [0.60, 0.60 + 0.02 * np.sqrt(2)]}, "Y": {"a": [0.61, 0.61 + 0.02 * np.sqrt(2)]}})
    assert leaders(table) == set()
    table = made_up({"X": {"a": [0.60, 0.60 + 0.02 * np.sqrt(2)]}, "Y": {"a": [0.62, 0.62 + 0.02 * np.sqrt(2)]}})
    assert leaders(table) == {("Y", "a"), ("Y", AVERAGE), ("Y", WORST)}
    assert leaders(made_up({"X": {"a": [0.1]}, "Y": {"a": [0.9]}})) == set()  # one trial: no error is known
    assert leaders(made_up({"Y": {"a": [0.9, 0.9]}})) == set()  # nobody to lead


def test_paired_comparison_is_the_t_interval_of_scipy() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.uniform(size=12), rng.uniform(size=12)
    found = compare_pairs("x", "y", list(zip(ours, theirs, strict=True)))
    expected = stats.ttest_rel(100 * ours, 100 * theirs).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert (found.wins, found.losses) == (int((ours > theirs).sum()), int((ours < theirs).sum()))


def test_comparison_pairs_domains_and_trials() -> None:
    table = made_up({"X": {"a": [0.5, 0.6], "b": [0.7, 0.8]}, "Y": {"a": [0.4, 0.6], "b": [0.8, 0.5]}})
    found = compare([table], "X", "Y")
    assert found is not None
    assert (found.pairs, found.wins, found.ties, found.losses) == (4, 2, 1, 1)
    assert found.difference == pytest.approx(100 * (0.1 + 0 - 0.1 + 0.3) / 4)


def test_mean_rank_shares_ties() -> None:
    table = made_up({"X": {"a": [0.5], "b": [0.9]}, "Y": {"a": [0.5], "b": [0.8]}, "Z": {"a": [0.1], "b": [0.7]}})
    assert mean_ranks([table]) == {"X": 1.25, "Y": 1.75, "Z": 3.0}


def test_a_missing_run_takes_every_figure_that_needs_it(sweep: Path, run_id: Callable[..., str]) -> None:
    run = run_id([DOMAINS[0]], label="CORAL", trial=1, draw=1)
    SweepFolder(sweep).run(run).result_file.unlink()
    report = make_report(sweep)
    (table,) = report.results
    gone = {key for key, figure in table.figures.items() if figure.missing}
    assert gone >= {("CORAL", DOMAINS[0]), ("CORAL", AVERAGE), ("CORAL", WORST)}
    assert all(algorithm == "CORAL" for algorithm, _ in gone) and ("CORAL", DOMAINS[1]) not in gone
    assert [r.name for r in report.missing] == [run] and f"draw 1 ({run}): stopped" in report.missing_lines[0]
    assert all(not cell.bold for row in main_table(table).rows for cell in row[1:] if cell.text == "missing")
    assert not {column for _, column in leaders(table)} & {DOMAINS[0], AVERAGE, WORST}
    compared = comparison_table([table])
    assert compared is not None
    assert {cell.text for cell in compared.rows[1][1:]} == {"missing"}  # difference, interval, rank: all need it


def test_a_companion_is_missed_by_the_rule_that_reads_it_only(sweep: Path, run_id: Callable[..., str]) -> None:
    SweepFolder(sweep).run(run_id(DOMAINS[:2])).result_file.unlink()
    report = make_report(sweep, "training-domain")
    assert report.missing == () and "1 incomplete runs more are not needed" in report.notes[-1]
    (table,) = make_report(sweep, "leave-one-domain-out").results
    gone = {
        column for algorithm, column in table.figures if algorithm == "ERM" and table.figures["ERM", column].missing
    }
    assert gone & set(DOMAINS) == set(DOMAINS[:2])


def test_leave_one_domain_out_needs_pairs(sweep: Path) -> None:
    plan = SweepFolder(sweep).plan()
    alone = [entry for entry in plan["runs"] if len(entry["test_domains"]) == 1]
    SweepFolder(sweep).write_plan("x", "domainbed", alone)
    with pytest.raises(InputError, match=r"needs runs that hold out a second domain .*use `select=training-domain`"):
        make_report(sweep, "leave-one-domain-out")


def test_a_sweep_without_a_finished_run(sweep: Path) -> None:
    for file in sweep.glob("runs/*/result.json"):
        file.unlink()
    with pytest.raises(InputError, match=r"no run in '.*' is finished yet"):
        make_report(sweep)


def test_a_draw_that_diverged_is_said_and_not_missed(sweep: Path, run_id: Callable[..., str]) -> None:
    run = run_id([DOMAINS[0]], draw=1)
    SweepFolder(sweep).run(run).result_file.unlink()
    SweepFolder(sweep).fail(run, "diverged", "the loss is not a number", [])
    report = make_report(sweep)
    assert report.missing == () and report.results[0].figures["ERM", AVERAGE].known
    assert report.notes == (f"cannot be chosen: ERM on rows, {DOMAINS[0]} held out, trial 0, draw 1 ({run}): "
                            "diverged: the loss is not a number.",)  # fmt: skip


def test_long_tailed_columns(long_tailed_sweep: Path) -> None:
    report = make_report(long_tailed_sweep)
    (table,) = report.results
    assert report.sweep.tuned and table.rule.name == "mdlt"
    assert table.columns == (*sorted(DOMAINS), AVERAGE, WORST, "medium", "few")
    chosen = table.choices["ERM", "", 0]
    assert chosen.run.result is not None
    for column in sorted(DOMAINS):
        assert table.figures["ERM", column].values == {0: chosen.run.result.accuracy[column]}
    assert table.figures["ERM", "few"].values == {0: chosen.run.result.shots["few"]}


def test_shots_are_shown_only_of_checkpoints_whose_shots_are_known(sweep: Path, run_id: Callable[..., str]) -> None:
    def shown() -> list[str]:
        return [column for column in make_report(sweep, "oracle").results[0].columns if column in ("medium", "few")]

    assert shown() == []  # oracle takes the last checkpoint, which not every run chose for itself
    for file in sweep.glob("runs/*/result.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"best_step": 6}))
    assert shown() == ["medium", "few"]


def test_the_baseline_by_name() -> None:
    assert default_baseline(["CORAL", "ERM", "RC-Align"]) == "ERM"
    assert default_baseline(["CORAL", "RC-Align"], "rcalign") == "RC-Align"
    with pytest.raises(InputError, match="did you mean 'CORAL'"):
        default_baseline(["CORAL"], "coal")


# --- published figures ---------------------------------------------------------------------------------------------


def test_all_published_figures_ship(reference: Path) -> None:
    with (reference / "paper-results.csv").open() as file:
        rows = list(csv.DictReader(file))
    protocols = {"dg": "lodo", "mdlt": "mdlt"}
    expected = [
        (protocols[r["setting"]], r["dataset"], r["algorithm"], r["column"], float(r["mean"]), r["stderr"], r["table"])
        for r in rows
    ]
    shipped = [
        (f.protocol, f.dataset, f.algorithm, f.column, f.mean, "" if f.stderr is None else str(f.stderr), f.table)
        for f in published.figures()
    ]
    assert shipped == expected and len(shipped) == 1800


def test_published_beside_ours(reference: Path) -> None:
    report = make_report(reference / "domainbed-sweep", compare="published")
    table = report.tables[0]
    row = {name: cell.text for name, cell in zip(table.header, table.rows[1], strict=True)}
    assert row == {"algorithm": "ERM, published (ResNet-50, 224 x 224)", "C": "97.7", "L": "64.3", "S": "73.4",
                   "V": "74.6", "average": "77.5", "worst": "–"}  # fmt: skip
    assert len(table.rows) == 26  # ours and all 25 of the paper's table
    assert "Not the published protocol: ours used 1,001 steps." in table.notes
    ours = published_figure(report.results[0], "rc_align", "L")
    assert ours is not None and (ours.mean, ours.stderr) == (68.5, 0.4)


def test_nothing_published_is_said(long_tailed_sweep: Path) -> None:
    report = make_report(long_tailed_sweep, compare="published")
    assert (
        report.tables[0].notes[0].startswith("Nothing was published for 'rows' under protocol mdlt (only for PACS-MLT")
    )
    with pytest.raises(InputError, match="unknown comparison 'publihsed': did you mean 'published'"):
        make_report(long_tailed_sweep, compare="publihsed")


@pytest.mark.parametrize("protocol", ["lodo", "mdlt"])
def test_every_published_column_is_found_from_a_real_domain_name(protocol: str) -> None:
    names = {
        "PACS": ("art_painting", "cartoon", "photo", "sketch"),
        "VLCS": ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
        "OfficeHome": ("Art", "Clipart", "Product", "Real World"),
        "terra_incognita": ("location_100", "location_38", "location_43", "location_46"),
    }
    summary = {"Avg", "Worst", "Many", "Medium", "Few", "Zero"}
    for data, domains in names.items():
        columns = list(dict.fromkeys(f.column for f in published.table_of(data, protocol) if f.column not in summary))
        assert [published.column_of(domain, columns) for domain in domains] == columns
