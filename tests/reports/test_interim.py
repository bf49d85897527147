"""Reports while a sweep is under way: some data sets and algorithms only, what is finished, a page that follows it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rcalign.errors import InputError
from rcalign.reports.figures import AVERAGE, compare, results
from rcalign.reports.report import Report, make_report, only
from rcalign.reports.tables import all_tables, comparison_table, main_table
from rcalign.reports.watching import watched
from rcalign.store.read_runs import RunCollection
from rcalign.store.run_folder import Record
from rcalign.store.run_view import Run
from rcalign.store.sweep_folder import SweepFolder

DOMAINS = ("a", "b")


def runs_of(data: str, algorithm: str, level: float, protocol: str = "lodo") -> list[Run]:
    found = []
    for held_out in DOMAINS if protocol == "lodo" else ("",):
        for trial in range(3):
            tests = {name: {"val": level, "test": level + trial / 100} for name in DOMAINS}
            record = Record(step=10, loss=None, validation=level, metrics={"accuracy": tests})
            found.append(
                Run(name=f"{data}{algorithm}{held_out}{trial}", data=data, algorithm=algorithm, protocol=protocol,
                    domains=DOMAINS, test_domains=(held_out,) if held_out else (), trial=trial, records=(record,))
            )  # fmt: skip
    return found


def collected(*runs: Run) -> RunCollection:
    return RunCollection("toy", "", "rcalign", tuple(runs))


def test_what_is_finished_is_compared() -> None:
    """CORAL is not finished on the second data set: its comparison rests on the first, and says so."""
    first = [*runs_of("one", "ERM", 0.5), *runs_of("one", "CORAL", 0.6)]
    second = [*runs_of("two", "ERM", 0.5), *runs_of("two", "CORAL", 0.4)]
    whole = results(collected(*first, *second))
    found = compare(whole, "CORAL", "ERM")
    assert found is not None and found.pairs == 12 and found.difference == pytest.approx(0)
    second[-1] = dataclasses.replace(second[-1], problem="not started", records=())
    tables = results(collected(*first, *second))
    found = compare(tables, "CORAL", "ERM")
    assert found is not None and found.pairs == 6 and found.difference == pytest.approx(10)
    printed = comparison_table(tables)
    assert printed is not None and printed.notes[-1] == "Not compared yet, since runs are missing: two of CORAL."
    alone = results(collected(*second))
    assert compare(alone, "CORAL", "ERM") is None


def test_only_some_data_sets_and_algorithms(sweep_of_two: RunCollection) -> None:
    kept = only(sweep_of_two, ["TWO"], ["erm", "boda_r,c"])
    assert {(run.data, run.algorithm) for run in kept.runs} == {("two", "ERM"), ("two", "BoDA_r,c")}
    assert len(only(sweep_of_two, ["one,two"], ["ERM,CORAL"]).runs) == 24
    with pytest.raises(InputError, match=r"algorithm in this report 'CORRAL'.*CORAL"):
        only(sweep_of_two, [], ["CORRAL"])
    with pytest.raises(InputError, match="no run is of both"):
        only(sweep_of_two, ["one"], ["BoDA_r,c"])


@pytest.fixture
def sweep_of_two() -> RunCollection:
    names = ("ERM", "CORAL")
    some = [run for data in ("one", "two") for name in names for run in runs_of(data, name, 0.5)]
    return collected(*some, *runs_of("two", "BoDA_r,c", 0.6))


def test_shots_say_on_how_many_trials_they_rest() -> None:
    runs = runs_of("one", "ERM", 0.5)
    shots = {10: {"many": 0.7, "medium": 0.5, "few": 0.4, "zero": None}}
    known = [dataclasses.replace(run, shots=shots if run.trial == 1 else {}) for run in runs]
    (table,) = results(collected(*known))
    (row,) = main_table(table).rows
    cells = dict(zip(main_table(table).header, row, strict=True))
    assert cells["many"].text == "70.0 (1 of 3 trials)" and "trials" not in cells[AVERAGE].text


def test_a_page_is_written_until_the_sweep_ends(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    entry = {"id": "x", "data": "one", "label": "ERM", "test_domains": ["a"], "draw": 0, "seed": 0, "phase": "search"}
    out = tmp_path / "report.html"
    runs = runs_of("one", "ERM", 0.5)

    def report() -> Report:
        if not out.exists() and not waited:
            raise InputError("no run is finished yet")
        sweep = collected(*runs)
        tables = results(sweep)
        return Report(sweep, tuple(tables), tuple(all_tables(tables)))

    waited: list[float] = []
    pages: list[bool] = []
    driver = folder.driving()
    driver.__enter__()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        pages.append(out.exists() and 'http-equiv="refresh" content="7"' in out.read_text())
        if len(waited) == 2:
            driver.__exit__(None, None, None)  # the sweep ends

    folder.begin("toy", "domainbed", [entry])
    said = list(watched(tmp_path, out, report, every=7, wait=wait))
    assert said[0] == "Waiting: no run is finished yet" and len(said) == 3
    assert waited == [7, 7] and pages == [False, True]
    assert "refresh" not in out.read_text()


def test_a_folder_that_is_no_sweep_is_not_watched(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a sweep"):
        next(watched(tmp_path, tmp_path / "r.html", lambda: make_report(tmp_path)))
