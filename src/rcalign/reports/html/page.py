"""The page: a template, a style sheet, a script and the data, in one file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import jinja2

from rcalign.pages import chart_script, chart_style, embedded
from rcalign.reports import published
from rcalign.reports.figures import AVERAGE, Results, compare, default_baseline, leaders, mean_ranks, median_seconds
from rcalign.reports.html.series import page_data
from rcalign.reports.report import Report
from rcalign.reports.tables import (
    ResultTable,
    averages_table,
    cell_of,
    metrics_table,
    of_trials,
    published_figure,
    published_notes,
    signed,
)
from rcalign.store.names import name_key


def make_page(report: Report, reload_after: float | None = None) -> str:
    """The whole page as text. reload_after: seconds after which the page asks for itself again, None for never."""
    files = resources.files("rcalign.reports.html")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string((files / "page.html").read_text())
    return template.render(
        report=report,
        reload_after=reload_after,
        css=chart_style() + (files / "page.css").read_text(),
        js=chart_script() + (files / "page.js").read_text(),
        data=embedded(page_data(report)),
        overviews=[overview(table, report) for table in report.results],
        averages=averages_table(report.results) if _several_data_sets(report) else None,
        facts=facts(report),
        failures=[run for run in report.sweep.runs if run.last_lines],
        environment=environment_rows(report),
    )


@dataclass(frozen=True)
class OverviewCell:
    """value: what the column is sorted by. shade: 0 the lowest of its column, 1 the highest."""

    text: str
    value: float | None = None
    error: str = ""
    bold: bool = False
    missing: bool = False
    published: str = ""
    shade: float | None = None


@dataclass(frozen=True)
class Overview:
    """The first table of the page, for one data set."""

    title: str
    subtitle: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, tuple[OverviewCell, ...], bool], ...]  # label, cells, whether only published
    notes: tuple[str, ...]
    further: ResultTable | None  # metrics beside accuracy


def overview(table: Results, report: Report) -> Overview:
    """Our rows, then those that were only published, if they are compared with."""
    bold, ranks = leaders(table), mean_ranks([table])
    shades = {column: _shades(table, column) for column in table.columns}
    rows = []
    for name in by_average(table):
        cells = []
        for column in table.columns:
            figure = table.figures[name, column]
            plain = of_trials(figure, cell_of(figure, (name, column) in bold), len(table.figures[name, AVERAGE].values))
            printed = published_figure(table, name, column) if report.with_published else None
            cells.append(
                OverviewCell(
                    plain.text,
                    figure.mean if figure.known else None,
                    plain.error,
                    plain.bold,
                    plain.kind == "missing",
                    "" if printed is None else f"{printed.mean:.1f}",
                    shades[column].get(name),
                )
            )
        rank = ranks.get(name)
        cells.append(OverviewCell("–" if rank is None else f"{rank:.2f}", rank))
        cells.append(_cost_cell(table, name))
        rows.append((name, tuple(cells), False))
    if report.with_published:
        rows += _published_only(table)
    header = (*table.columns, "mean rank", "seconds")
    notes = published_notes(table) if report.with_published else ()
    subtitle = f"protocol {table.protocol}, chosen by {table.rule.title}"
    return Overview(table.data, subtitle, header, tuple(rows), notes, metrics_table(table, by_average(table)))


def by_average(table: Results) -> list[str]:
    """Algorithms, the largest average first; those that lack it last, in the order of the tables."""
    averages = {name: table.figures[name, AVERAGE] for name in table.algorithms}
    return sorted(
        averages, key=lambda name: (not averages[name].known, -averages[name].mean if averages[name].known else 0)
    )


def _published_only(table: Results) -> list[tuple[str, tuple[OverviewCell, ...], bool]]:
    ours = {name_key(name) for name in table.algorithms}
    names = dict.fromkeys(figure.algorithm for figure in published.table_of(table.data, table.protocol))
    rows = []
    for name in names:
        if name_key(name) not in ours:
            found = [published_figure(table, name, column) for column in table.columns]
            cells = [OverviewCell("–") if f is None else OverviewCell(f"{f.mean:.1f}", f.mean) for f in found]
            rows.append((f"{name}, published", (*cells, OverviewCell("–"), OverviewCell("–")), True))
    return rows


def _shades(table: Results, column: str) -> dict[str, float]:
    means = {name: table.figures[name, column].mean for name in table.algorithms if table.figures[name, column].known}
    low, high = min(means.values(), default=0.0), max(means.values(), default=0.0)
    return {name: (mean - low) / (high - low) for name, mean in means.items()} if high > low else {}


def _cost_cell(table: Results, algorithm: str) -> OverviewCell:
    middle = median_seconds(table, algorithm)
    if middle is None:
        return OverviewCell("–")
    return OverviewCell(f"{middle:,.0f}" if middle >= 10 else f"{middle:.1f}", middle)


def _several_data_sets(report: Report) -> bool:
    return len(report.results) > 1 and len({table.protocol for table in report.results}) == 1


def facts(report: Report) -> list[tuple[str, str, str]]:
    """What to know first: (label, figure, remark)."""
    runs = report.sweep.runs
    done = len([run for run in runs if run.problem is None and run.lost is None])
    found = [("finished runs", f"{done:,}", f"of {len(runs):,}" if done < len(runs) else "all of them")]
    for table in report.results[:3]:
        known = {name: table.figures[name, AVERAGE] for name in table.algorithms if table.figures[name, AVERAGE].known}
        where = f" on {table.data}" if len(report.results) > 1 else ""
        if not known:
            found.append((f"best average{where}", "–", "runs are missing"))
            continue
        best = max(known, key=lambda name: known[name].mean)
        error = known[best].error
        spread = "" if error is None else f" ± {error:.1f}"
        found.append((f"best average{where}", f"{known[best].mean:.1f}{spread}", best))
        baseline = default_baseline(table.algorithms, report.baseline)
        against = compare([table], best, baseline) if best != baseline else None
        if against is not None:
            interval = "" if against.low is None else f", {signed(against.low)} to {signed(against.high or 0.0)}"
            found.append((f"{best} against {baseline}{where}", signed(against.difference), f"points{interval}"))
    return found


def environment_rows(report: Report) -> list[tuple[str, list[tuple[str, int]]]]:
    """What the runs were made with: name -> each value with its number of runs."""
    found: dict[str, dict[str, int]] = {}
    for run in report.sweep.runs:
        if run.config is None:
            continue
        config = run.config
        values = {
            **{f"version of {name}": version for name, version in config.versions.items()},
            "device": config.device,
            "precision": config.precision,
            "threads": str(config.threads),
            "preset": config.preset,
            "backbone": config.backbone or "default for the data",
            "backbone frozen": "yes" if config.freeze_backbone else "no",
            "steps": f"{config.steps:,}",
            f"data {run.data}": config.data_fingerprint[:12],
            "weights": config.weights_fingerprint[:12],
        }
        for name, value in values.items():
            counts = found.setdefault(name, {})
            counts[value] = counts.get(value, 0) + 1
    return [(name, list(counts.items())) for name, counts in found.items()]
