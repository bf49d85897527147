"""A report: the runs of a folder, the figures of a rule, the tables to print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rcalign.errors import InputError, unknown
from rcalign.extensions import import_modules
from rcalign.reports.figures import Results, default_baseline, results
from rcalign.reports.tables import ResultTable, all_tables, definitions, missing_lines
from rcalign.store.names import name_key
from rcalign.store.read_runs import RunCollection, read_runs
from rcalign.store.run_view import Run

COMPARE = ("published",)
SHOWN_LOSSES = 5  # algorithms that a note names


@dataclass(frozen=True, eq=False)
class Report:
    """Everything that any format shows."""

    sweep: RunCollection
    results: tuple[Results, ...]
    tables: tuple[ResultTable, ...]
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
        notes = (*self.sweep.notes, *lost_runs_note(self.sweep.runs))
        further = len(set(self.sweep.missing) - set(self.missing))
        if further:
            notes = (*notes, f"{further} incomplete runs more are not needed by this selection rule.")
        return notes

    @property
    def definitions(self) -> tuple[str, ...]:
        return definitions(self.results)


def make_report(
    folder: Path | str,
    select: str | None = None,
    compare: str | None = None,
    baseline: str | None = None,
    data: Sequence[str] = (),
    algorithms: Sequence[str] = (),
) -> Report:
    """Reads a folder and computes its figures. data, algorithms: only these; none means all."""
    if compare is not None and compare not in COMPARE:
        raise unknown("comparison", compare, COMPARE)
    sweep = with_modules_of_runs(only(read_runs(folder), data, algorithms))
    tables = results(sweep, select)
    if not any(run.problem is None and run.lost is None for run in sweep.runs):
        lines = missing_lines(sweep.runs)
        more = f" and {len(lines) - 1} lines more" if len(lines) > 1 else ""
        raise InputError(f"no run in '{folder}' is finished yet ({lines[0]}{more}): wait for one, or train again.")
    if baseline is not None:
        default_baseline([name for table in tables for name in table.algorithms], baseline)  # says so if unknown
    printed = all_tables(tables, with_published=compare == "published", baseline=baseline)
    return Report(sweep, tuple(tables), tuple(printed), compare == "published", baseline)


def with_modules_of_runs(runs: RunCollection) -> RunCollection:
    """Imports the modules that the runs were trained with, whose metrics are theirs; a note names what is not found."""
    modules = dict.fromkeys(name for run in runs.runs if run.config is not None for name in run.config.imports)
    notes = []
    for module in modules:
        try:
            import_modules([module])
        except InputError:
            notes.append(
                f"the module '{module}', which runs were trained with, is not found here, so metrics of its own are "
                "left out: make the report in the folder that holds it, or put that on PYTHONPATH."
            )
    return replace(runs, notes=(*runs.notes, *notes))


def only(runs: RunCollection, data: Sequence[str], algorithms: Sequence[str]) -> RunCollection:
    """The runs of some data sets and algorithms, by their names in the report; of none given, all.

    >>> def run(data, algorithm):
    ...     return Run(name="", data=data, algorithm=algorithm, protocol="lodo", domains=(), test_domains=())
    >>> found = RunCollection("", "", "rcalign", (run("PACS", "ERM"), run("PACS", "CORAL"), run("VLCS", "ERM")))
    >>> [(r.data, r.algorithm) for r in only(found, ["pacs"], ["erm"]).runs]
    [('PACS', 'ERM')]
    >>> len(only(found, ["pacs,vlcs"], []).runs)
    3
    """
    kept = runs.runs
    for what, names, name_of in (("data set", data, _data_of), ("algorithm", algorithms, _algorithm_of)):
        known = {name_key(name_of(run)): name_of(run) for run in runs.runs}
        wanted = set()
        for text in names:  # several may be given with commas between them, but a name may have a comma too
            for name in [text] if name_key(text) in known else text.split(","):
                if name_key(name) not in known:
                    raise unknown(f"{what} in this report", name.strip(), known.values())
                wanted.add(name_key(name))
        kept = tuple(run for run in kept if not wanted or name_key(name_of(run)) in wanted)
    if not kept:
        raise InputError("no run is of both the data and the algorithms asked for: leave one of them out.")
    return replace(runs, runs=kept)


def _data_of(run: Run) -> str:
    return run.data


def _algorithm_of(run: Run) -> str:
    return run.algorithm


def lost_runs_note(runs: Iterable[Run]) -> tuple[str, ...]:
    """One sentence on the runs that cannot be chosen because they diverged or were given up.

    >>> def run(draw, lost):
    ...     return Run(name=f"id{draw}", data="PACS", algorithm="ERM", protocol="lodo", domains=(), draw=draw,
    ...                test_domains=("A",), lost=lost)
    >>> lost_runs_note([run(0, "diverged: step 3"), run(1, "diverged: step 5"), run(2, "given up at step 9")])
    ('3 runs cannot be chosen: 2 diverged (2 of ERM), 1 given up (1 of ERM).',)
    """
    runs = [run for run in runs if run.lost is not None]
    if len(runs) == 1:
        return (f"cannot be chosen: {missing_lines(runs)[0]}.",)
    if not runs:
        return ()
    parts = []
    for kind in ("diverged", "given up"):
        counts = Counter(run.algorithm for run in runs if str(run.lost).startswith(kind))
        if counts:
            listed = ", ".join(f"{n} of {name}" for name, n in counts.most_common(SHOWN_LOSSES))
            more = f" and {len(counts) - SHOWN_LOSSES} algorithms more" if len(counts) > SHOWN_LOSSES else ""
            parts.append(f"{counts.total()} {kind} ({listed}{more})")
    return (f"{len(runs)} runs cannot be chosen: {', '.join(parts)}.",)
