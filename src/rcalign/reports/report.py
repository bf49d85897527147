"""A report: the runs of a folder, the figures of a rule, the tables to print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rcalign.errors import InputError, unknown
from rcalign.reports.figures import Results, default_baseline, results
from rcalign.reports.tables import Table, all_tables, definitions, missing_lines
from rcalign.store.read_runs import RunCollection, read_runs
from rcalign.store.run import Run

COMPARE = ("published",)


@dataclass(frozen=True, eq=False)
class Report:
    """Everything that any format shows."""

    sweep: RunCollection
    results: tuple[Results, ...]
    tables: tuple[Table, ...]
    with_published: bool = False
    baseline: str | None = None

    @property
    def missing(self) -> tuple[Run, ...]:
        """The incomplete runs that figures need, each once."""
        return tuple(dict.fromkeys(run for table in self.results for run in table.missing))

    @property
    def missing_lines(self) -> list[str]:
        return missing_lines(self.missing)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures should know about the runs."""
        lost = missing_lines(run for run in self.sweep.runs if run.lost is not None)
        notes = (*self.sweep.notes, *(f"cannot be chosen: {line}." for line in lost))
        further = len(set(self.sweep.missing) - set(self.missing))
        if further:
            notes = (*notes, f"{further} incomplete runs more are not needed by this selection rule.")
        return notes

    @property
    def definitions(self) -> tuple[str, ...]:
        return definitions(self.results)


def make_report(
    folder: Path | str, select: str | None = None, compare: str | None = None, baseline: str | None = None
) -> Report:
    """Reads a folder and computes its figures."""
    if compare is not None and compare not in COMPARE:
        raise unknown("comparison", compare, COMPARE)
    sweep = read_runs(folder)
    tables = results(sweep, select)
    if not any(run.problem is None and run.lost is None for run in sweep.runs):
        lines = missing_lines(sweep.runs)
        more = f" and {len(lines) - 1} lines more" if len(lines) > 1 else ""
        raise InputError(f"no run in '{folder}' is finished yet ({lines[0]}{more}): wait for one, or train again.")
    if baseline is not None:
        default_baseline([name for table in tables for name in table.algorithms], baseline)  # says so if unknown
    printed = all_tables(tables, with_published=compare == "published", baseline=baseline)
    return Report(sweep, tuple(tables), tuple(printed), compare == "published", baseline)
