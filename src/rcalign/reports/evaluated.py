"""What ``rcalign train`` and ``rcalign evaluate`` print: the figures of one model, by domain and by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rcalign.evaluation.metric_table import Metric, domain_values, measured_metrics

MOST_CLASSES = 12  # of which recalls and confusions are printed; of more, the lowest recalls and largest confusions


def figures_of_run(result: Mapping[str, Any]) -> Group:
    """Metrics by domain, shots, and the calibration error of the probabilities that users get."""
    table = Table(title=Text(f"{result['algorithm']} on {result['data']}, shares in per cent"))
    table.add_column("metric")
    columns = {metric: domain_values(result, metric.name) for metric in measured_metrics(result)}
    domains = list(result["accuracy"])
    shown: Sequence[str] = domains if len(domains) <= 6 else ()
    for heading in (*shown, *(("average", "worst domain") if len(domains) > 1 else ())):
        table.add_column(Text(heading), justify="right")
    for metric, values in columns.items():
        cells = [_cell(metric, values.get(domain)) for domain in shown]
        if len(domains) > 1:
            known = list(values.values())
            cells.append(_cell(metric, sum(known) / len(known) if known else None))
            cells.append(_cell(metric, metric.worst(known) if known else None))
        table.add_row(metric.title, *cells)
    parts: list[RenderableType] = [table]
    if not shown:
        parts.append(_by_domain(domains, columns))
    lines = [_shots(result), _calibration(result)]
    return Group(*parts, *(Text(line) for line in lines if line))


def figures_of_classes(result: Mapping[str, Any]) -> Group:
    """Recall of every class in every domain, and which classes are taken for which."""
    classes, recall = list(result["classes"]), result["recall"]
    domains = list(recall)
    lowest = {c: min((recall[d][c] for d in domains if recall[d][c] is not None), default=None) for c in classes}
    listed = classes
    title = "recall of each class, per cent"
    if len(classes) > MOST_CLASSES:
        listed = sorted((c for c in classes if lowest[c] is not None), key=lambda c: lowest[c] or 0.0)[:MOST_CLASSES]
        title = f"the {len(listed)} of {len(classes)} classes with the lowest recall in some domain, per cent"
    table = Table(title=title)
    table.add_column("class")
    shown = domains if len(domains) <= 6 else []
    for heading in shown or ["lowest", "of domain"]:
        table.add_column(Text(heading), justify="right")
    for name in listed:
        if shown:
            cells = [_share(recall[domain][name]) for domain in shown]
        else:
            known = {domain: recall[domain][name] for domain in domains if recall[domain][name] is not None}
            where = min(known, key=lambda domain: known[domain]) if known else "–"
            cells = [_share(lowest[name]), where]
        table.add_row(Text(name), *(Text(cell) for cell in cells))
    return Group(table, _confusions(result))


def _by_domain(domains: Sequence[str], columns: Mapping[Metric, Mapping[str, float]]) -> Table:
    """More domains than fit as columns: one row for each, with the first metrics."""
    first = list(columns)[:4]
    table = Table("domain", *(metric.title for metric in first))
    for domain in domains:
        table.add_row(Text(domain), *(_cell(metric, columns[metric].get(domain)) for metric in first))
    return table


def _confusions(result: Mapping[str, Any]) -> RenderableType:
    """The confusion matrix over all domains; of many classes, the pairs that are confused most often."""
    classes, matrices = list(result["classes"]), list(result["confusion"].values())
    total = [[sum(matrix[t][p] for matrix in matrices) for p in range(len(classes))] for t in range(len(classes))]
    if len(classes) <= MOST_CLASSES:
        table = Table(title="rows by true class, predicted as (all domains)")
        table.add_column("true class")
        for name in classes:
            table.add_column(Text(name), justify="right")
        for name, row in zip(classes, total, strict=True):
            table.add_row(Text(name), *map(str, row))
        return table
    pairs = [(total[t][p], t, p) for t in range(len(classes)) for p in range(len(classes)) if t != p and total[t][p]]
    table = Table("true class", "predicted as", "rows", title="most frequent confusions (all domains)")
    for count, t, p in sorted(pairs, key=lambda pair: -pair[0])[:MOST_CLASSES]:
        table.add_row(Text(classes[t]), Text(classes[p]), str(count))
    return table


def _shots(result: Mapping[str, Any]) -> str:
    known = {name: value for name, value in result["shots"].items() if value is not None}
    if not known:
        return ""
    meanings = shot_meanings(tuple(result.get("shot_limits", (100, 20))))
    listed = ", ".join(f"{name} ({meanings[name]}) {100 * value:.1f}" for name, value in known.items())
    return f"Accuracy by training samples of the (domain, class) pair: {listed}."


def _calibration(result: Mapping[str, Any]) -> str:
    found = (result.get("calibration") or {}).get("ece", {}).get("test")
    if found is None:
        return ""
    return (
        f"Calibration error of the predicted probabilities, all rows: {100 * found['after']:.1f} per cent "
        f"(before the temperature {result['calibration']['temperature']:.3g}: {100 * found['before']:.1f})."
    )


def shot_meanings(limits: tuple[int, int]) -> dict[str, str]:
    """How many training samples each group has.

    >>> shot_meanings((60, 20))
    {'many': 'above 60', 'medium': '21 to 60', 'few': '1 to 20', 'zero': 'none'}
    """
    many, few = limits
    return {"many": f"above {many}", "medium": f"{few + 1} to {many}", "few": f"1 to {few}", "zero": "none"}


def _cell(metric: Metric, value: float | None) -> str:
    return "–" if value is None else metric.shown(value)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
