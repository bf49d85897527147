"""Tables of figures as they are printed, in every format the same. Pure."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rcalign.data.benchmarks.facts import get_benchmark as benchmark_facts
from rcalign.data.benchmarks.place import data_root, is_stand_in
from rcalign.errors import InputError
from rcalign.reports import published
from rcalign.reports.evaluated import shot_meanings
from rcalign.reports.figures import (
    AVERAGE,
    WORST,
    Figure,
    Results,
    algorithm_order,
    all_blocks,
    by_protocol,
    compare,
    default_baseline,
    leaders,
    mean_ranks,
)
from rcalign.reports.published import PublishedFigure
from rcalign.selection import SHOTS
from rcalign.store.names import name_key
from rcalign.store.run_view import Run

DEFINITIONS = (
    "Accuracies in per cent: mean over trials ± standard error (population standard deviation over trials / √trials; "
    "none with one trial).",
    "average: mean over the tested domains within a trial; worst: the lowest domain within a trial; each then averaged "
    "over trials.",
    "Bold (* in plain text): leads the next best of its column by more than the standard error of their difference, "
    "√(e₁² + e₂²); none where a figure of the column is missing or has no error.",
)
SHOT_DEFINITION = (
    "many, medium, few, zero: mean accuracy of the (domain, class) pairs by their number of training samples: {limits}"
    "; a domain held out counts by the class's mean number over the source domains."
)


@dataclass(frozen=True)
class Cell:
    """The text of one cell; error without its sign. kind: "", "missing" or "published"."""

    text: str
    error: str = ""
    bold: bool = False
    kind: str = ""


@dataclass(frozen=True)
class ResultTable:
    """Rows of cells below a header; the first cell of a row is its label."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


NOTHING = Cell("–")
MISSING = Cell("missing", kind="missing")


def main_table(table: Results, with_published: bool = False) -> ResultTable:
    """Algorithms by domains, average, worst and shots; with the paper's row below ours where it has one."""
    bold = leaders(table)
    printed = _published_rows(table) if with_published else {}
    rows = []
    for name in table.algorithms:
        trials = len(table.figures[name, AVERAGE].values)
        cells = [
            of_trials(table.figures[name, c], cell_of(table.figures[name, c], (name, c) in bold), trials)
            for c in table.columns
        ]
        rows.append((Cell(name), *cells))
        if name_key(name) in printed:
            rows.append(printed.pop(name_key(name)))
    rows += printed.values()
    notes = published_notes(table) if with_published else ()
    title = f"{table.data}: protocol {table.protocol}, chosen by {table.rule.title}"
    return ResultTable(title, ("algorithm", *table.columns), tuple(rows), notes)


def of_trials(figure: Figure, cell: Cell, trials: int) -> Cell:
    """A cell that says so if its figure rests on fewer trials than the average.

    >>> of_trials(Figure({0: 0.5}), cell_of(Figure({0: 0.5})), 3).text
    '50.0 (1 of 3 trials)'
    """
    if not figure.known or len(figure.values) >= trials:
        return cell
    return dataclasses.replace(cell, text=f"{cell.text} ({len(figure.values)} of {trials} trials)")


def metrics_table(table: Results, algorithms: Sequence[str] | None = None) -> ResultTable | None:
    """Algorithms, in their order or the one given, by the metrics beside accuracy; None where the records have none."""
    if not table.metrics:
        return None
    bold = leaders(table, [metric.name for metric in table.metrics])
    rows = [
        (
            Cell(name),
            *(
                cell_of(table.figures[name, m.name], (name, m.name) in bold, 1 + 2 * (not m.per_cent))
                for m in table.metrics
            ),
        )
        for name in algorithms or table.algorithms
    ]
    title = f"{table.data}, further metrics: protocol {table.protocol}, chosen by {table.rule.title}"
    helps = [f"{m.title}: {m.help}{', per cent' if m.per_cent else ''}" for m in table.metrics if m.help]
    notes = (
        f"Mean over the tested domains, then over trials ± standard error. {'; '.join(helps)}.",
        "Metrics of probabilities are known at the checkpoint that a run chose itself: none (–) where the rule of this "
        "report chose another.",
    )
    return ResultTable(title, ("algorithm", *(m.title for m in table.metrics)), tuple(rows), notes)


def cell_of(figure: Figure, bold: bool = False, digits: int = 1) -> Cell:
    """The cell that shows a figure.

    >>> cell_of(Figure({0: 0.64, 1: 0.66}))
    Cell(text='65.0', error='0.7', bold=False, kind='')
    """
    if figure.missing:
        return MISSING
    if not figure.values:
        return NOTHING
    error = "" if figure.error is None else f"{figure.error:.{digits}f}"
    return Cell(f"{figure.mean:.{digits}f}", error, bold)


def _published_rows(table: Results) -> dict[str, tuple[Cell, ...]]:
    """The key of an algorithm -> its printed row, in the columns of a table."""
    rows = {}
    for name in dict.fromkeys(figure.algorithm for figure in published.table_of(table.data, table.protocol)):
        cells = []
        for column in table.columns:
            figure = published_figure(table, name, column)
            error = "" if figure is None or figure.stderr is None else f"{figure.stderr:.1f}"
            cells.append(NOTHING if figure is None else Cell(f"{figure.mean:.1f}", error, kind="published"))
        setting = published.PROTOCOLS[table.protocol].setting
        rows[name_key(name)] = (Cell(f"{name}, published ({setting})", kind="published"), *cells)
    return rows


def published_figure(table: Results, algorithm: str, column: str) -> PublishedFigure | None:
    """What the paper prints for one of our cells, if it does."""
    own = {
        figure.column: figure
        for figure in published.table_of(table.data, table.protocol)
        if name_key(figure.algorithm) == name_key(algorithm)
    }
    summary = {AVERAGE: "Avg", WORST: "Worst", **{shot: shot.capitalize() for shot in SHOTS}}
    if column in table.tested:
        return own.get(published.column_of(column, [name for name in own if name not in summary.values()]) or "")
    return own.get(summary.get(column, ""))


def published_notes(table: Results) -> tuple[str, ...]:
    """What the published figures are, and in what ours were made differently."""
    if not published.table_of(table.data, table.protocol):
        known = dict.fromkeys(f.dataset for f in published.figures() if f.protocol == table.protocol)
        return (
            f"Nothing was published for '{table.data}' under protocol {table.protocol} (only for {', '.join(known)}).",
        )
    theirs = published.PROTOCOLS[table.protocol]
    finished = [run for run in table.runs if run.problem is None and run.lost is None]
    differs = []
    presets = sorted({run.preset for run in finished} - set(theirs.presets) - {""})
    if presets:
        differs.append(f"preset {', '.join(presets)}")
    # a run that counts its steps from 0 (DomainBed, BoDA) has made one more
    steps = {run.config.steps if run.config else run.records[-1].step + 1 for run in finished}
    if steps - set(theirs.steps):
        differs.append(f"{', '.join(f'{n:,}' for n in sorted(steps))} steps")
    if table.rule.name not in (theirs.rule, "training-domain" if table.protocol == "mdlt" else theirs.rule):
        differs.append(f"{table.rule.title}")
    notes = [
        f"Published: {theirs.doc}; most rows are quoted by the paper from the papers of the methods.",
        *(f"Ours: {setting}." for setting in own_settings(finished)),
    ]
    if differs:
        notes.append(f"Not the published protocol: ours used {'; '.join(differs)}.")
    return tuple(notes)


def own_settings(runs: Sequence[Run]) -> list[str]:
    """How our own runs were made, in what matters beside a published figure: one line for each way."""
    found: dict[str, int] = {}
    for run in runs:
        config = run.config
        if config is None:
            continue
        network = config.backbone or ("the default backbone" if config.image_size else "a small network")
        words = [
            f"{network}{', frozen' if config.freeze_backbone else ''}",
            "no pretrained weights" if config.weights == "none" else "",
            f"images of {config.image_size} x {config.image_size}" if config.image_size else "rows of numbers",
            f"{config.steps:,} steps",
            "on a drawn stand-in, not the data set" if _is_stand_in(config.data) else "",
        ]
        text = ", ".join(filter(None, words))
        found[text] = found.get(text, 0) + 1
    return [text if len(found) == 1 else f"{text} ({n} runs)" for text, n in found.items()]


@functools.cache
def _is_stand_in(data: str) -> bool:
    """Whether what lies there now, if the data are a benchmark, was drawn by ``rcalign data sample``."""
    name, _, parameters = data.partition(":")
    root = re.search(r"(?:^|,)root=([^,]*)", parameters)
    try:
        return is_stand_in(data_root(root[1] if root else None) / benchmark_facts(name).folder)
    except InputError:
        return False


def averages_table(tables: Sequence[Results]) -> ResultTable:
    """Algorithms by data sets: the averages, and their mean."""
    names = sorted({name for table in tables for name in table.algorithms}, key=algorithm_order)
    rows = []
    for name in names:
        figures = [table.figures.get((name, AVERAGE), Figure()) for table in tables]
        complete = all(figure.known for figure in figures)
        mean = f"{np.mean([figure.mean for figure in figures]):.1f}" if complete else ""
        missing = any(figure.missing for figure in figures)
        last = Cell(mean) if complete else MISSING if missing else NOTHING
        rows.append((Cell(name), *(cell_of(figure) for figure in figures), last))
    title = f"Averages: protocol {tables[0].protocol}, chosen by {tables[0].rule.title}"
    return ResultTable(title, ("algorithm", *(table.data for table in tables), AVERAGE), tuple(rows))


def comparison_table(tables: Sequence[Results], baseline: str | None = None) -> ResultTable | None:
    """Every algorithm against a baseline, with mean ranks; None where there is only one algorithm."""
    names = sorted({name for table in tables for name in table.algorithms}, key=algorithm_order)
    if len(names) < 2:
        return None
    against = default_baseline(names, baseline)
    ranks = mean_ranks(tables)
    rows = []
    for name in names:
        unranked = MISSING if all_blocks(tables, name) is None else NOTHING
        rank = Cell(f"{ranks[name]:.2f}") if name in ranks else unranked
        if name == against:
            rows.append((Cell(name), rank, NOTHING, NOTHING, NOTHING, NOTHING))
            continue
        found = compare(tables, name, against)
        if found is None:
            rows.append((Cell(name), rank, *(MISSING,) * 4))
            continue
        interval = "–" if found.low is None else f"{signed(found.low)} to {signed(found.high or 0.0)}"
        score = f"{found.wins} / {found.ties} / {found.losses}"
        rows.append(
            (Cell(name), rank, Cell(signed(found.difference)), Cell(interval), Cell(score), Cell(str(found.pairs)))
        )
    where = ", ".join(table.data for table in tables)
    title = f"Compared with {against}: {where}, protocol {tables[0].protocol}, chosen by {tables[0].rule.title}"
    header = ("algorithm", "mean rank", "difference", "95 % interval", "wins / ties / losses", "pairs")
    notes = (
        "difference: mean over the pairs (domain, trial) of the difference in accuracy, in points, with the 95 % t "
        "interval over pairs taken as independent: it speaks about these domains, not about domains in general.",
        "mean rank: over the same pairs, 1 is the best, ties share their ranks; algorithms with a missing figure are "
        "not ranked.",
        *(_not_compared(tables, against)),
    )
    return ResultTable(title, header, tuple(rows), notes)


def _not_compared(tables: Sequence[Results], against: str) -> tuple[str, ...]:
    """Which comparisons leave out data sets that are not finished."""
    if len(tables) < 2:
        return ()
    lines = []
    for table in tables:
        left_out = [name for name in table.algorithms if table.blocks(name) is None]
        if against in left_out:
            lines.append(f"{table.data} (runs of {against} are missing)")
        elif left_out:
            lines.append(f"{table.data} of {', '.join(left_out)}")
    return (f"Not compared yet, since runs are missing: {'; '.join(lines)}.",) if lines else ()


def signed(value: float) -> str:
    """A difference with its sign.

    >>> signed(1.25), signed(-0.04), signed(-3)
    ('+1.2', '0.0', '−3.0')
    """
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else ("+" if value > 0 else "−") + text


def all_tables(
    tables: Sequence[Results], with_published: bool = False, baseline: str | None = None
) -> list[ResultTable]:
    """Everything that a report prints, in order."""
    found = []
    for table in tables:
        found += [shown for shown in (main_table(table, with_published), metrics_table(table)) if shown is not None]
    for group in by_protocol(tables):
        if len(group) > 1:
            found.append(averages_table(group))
        compared = comparison_table(group, baseline)
        if compared is not None:
            found.append(compared)
    return found


def definitions(tables: Sequence[Results]) -> tuple[str, ...]:
    """What the columns mean; of shots only where there are some."""
    with_shots = [table for table in tables if any(shot in table.columns for shot in SHOTS)]
    if not with_shots:
        return DEFINITIONS
    data_of: dict[tuple[int, int], list[str]] = {}
    for table in with_shots:
        data_of.setdefault(shot_limits(table.runs), []).append(table.data)
    listed = [(", ".join(shot_meanings(limits).values()), data) for limits, data in data_of.items()]
    alone = len(listed) == 1
    limits = "; ".join(words if alone else f"{words} ({', '.join(data)})" for words, data in listed)
    return (*DEFINITIONS, SHOT_DEFINITION.format(limits=limits))


def shot_limits(runs: Sequence[Run]) -> tuple[int, int]:
    """The limits of many and few, as the runs' results state them, else as they are known for the data set.

    >>> def of(data):
    ...     return [Run(name="", data=data, algorithm="", protocol="mdlt", domains=(), test_domains=())]
    >>> shot_limits(of("OfficeHome")), shot_limits(of("rows"))
    ((60, 20), (100, 20))
    """
    for run in runs:
        if run.result is not None and run.result.shot_limits is not None:
            many, few = run.result.shot_limits
            return many, few
    try:
        return benchmark_facts(runs[0].data.partition(":")[0]).shots
    except InputError:
        return 100, 20


def missing_lines(runs: Iterable[Run]) -> list[str]:
    """Incomplete runs by name, draws that are alike on one line.

    >>> def run(draw, problem):
    ...     return Run(name=f"id{draw}", data="PACS", algorithm="ERM", protocol="lodo", domains=(), draw=draw,
    ...                test_domains=("A",), problem=problem)
    >>> for line in missing_lines([run(0, "not started"), run(1, "not started"), run(3, "failed: x")]):
    ...     print(line)
    ERM on PACS, A held out, trial 0, draws 0–1: not started
    ERM on PACS, A held out, trial 0, draw 3 (id3): failed: x
    """
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        held_out = f", {' + '.join(run.test_domains)} held out" if run.test_domains else ""
        repeat = ", repeated" if run.phase == "repeat" else ""
        label = f"{run.algorithm} on {run.data}{held_out}, trial {run.trial}{repeat}"
        groups.setdefault((label, run.problem or run.lost or ""), []).append(run)
    lines = []
    for (label, problem), group in groups.items():
        draws = sorted({run.draw for run in group})
        which = f"draws {_ranges(draws)}" if len(draws) > 1 else f"draw {draws[0]}"
        name = f" ({group[0].name})" if len(group) == 1 and group[0].name else ""
        lines.append(f"{label}, {which}{name}: {problem}")
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    """
    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0–2, 5, 7–8'
    """
    parts = []
    for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}")
    return ", ".join(parts)
