"""What the page draws, as plain values: figures, runs, curves, confusions. Pure, and bounded in size."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rcalign.reports.figures import (
    AVERAGE,
    WORST,
    Figure,
    Results,
    by_protocol,
    compare,
    leaders,
    mean_ranks,
    median_seconds,
)
from rcalign.reports.report import Report
from rcalign.reports.tables import published_figure
from rcalign.selection import SHOTS, ChosenRun
from rcalign.store.run_view import Run, describe_run

CURVES_BUDGET = 2_500_000  # characters of JSON; chosen runs come first, what does not fit is left out and said
CONFUSIONS_BUDGET = 1_500_000
DIGITS = 4  # of an accuracy


def page_data(report: Report) -> dict[str, Any]:
    """Everything that the script of the page reads."""
    runs = [run for table in report.results for run in table.runs]
    number = {id(run): k for k, run in enumerate(runs)}
    chosen = [number[id(choice.run)] for table in report.results for choice in table.choices.values()]
    first = list(dict.fromkeys([*chosen, *range(len(runs))]))
    taken = set(chosen)
    curves, left_out = _within(CURVES_BUDGET, ((k, _curve(runs[k])) for k in first))
    confusions, _ = _within(CONFUSIONS_BUDGET, ((k, _confusion(runs[k])) for k in dict.fromkeys(chosen)))
    classes = list(dict.fromkeys(runs[k].config.spec.classes for k in confusions))  # type: ignore[union-attr]
    for k, confusion in confusions.items():
        confusion["classes"] = classes.index(runs[k].config.spec.classes)  # type: ignore[union-attr]
    names = {name: _searched(runs, name) for name in dict.fromkeys(run.algorithm for run in runs)}
    return {
        "tables": [_table(table, report, number) for table in report.results],
        "runs": [_run(run, k in taken, names[run.algorithm]) for k, run in enumerate(runs)],
        "hparams": names,
        "curves": curves,
        "curvesLeftOut": left_out,
        "confusions": confusions,
        "classes": classes,  # a confusion has the number of its list
    }


def _within(budget: int, items: Iterable[tuple[int, Any]]) -> tuple[dict[int, Any], int]:
    """As many of the items as fit, the first first, and how many did not."""
    kept: dict[int, Any] = {}
    left_out = 0
    for k, item in items:
        if item is None:
            continue
        budget -= len(json.dumps(item))
        if budget >= 0:
            kept[k] = item
        else:
            left_out += 1
    return kept, left_out


def _table(table: Results, report: Report, number: Mapping[int, int]) -> dict[str, Any]:
    group = next(group for group in by_protocol(report.results) if table in group)
    bold = leaders(table)
    figures = {
        name: {column: _figure(table.figures[name, column], (name, column) in bold) for column in table.columns}
        for name in table.algorithms
    }
    if report.with_published:
        for name, row in figures.items():
            for column, cell in row.items():
                printed = published_figure(table, name, column)
                if printed is not None:
                    cell["published"] = printed.mean
    return {
        "data": table.data,
        "protocol": table.protocol,
        "rule": table.rule.name,
        "tested": list(table.tested),
        "domains": list(table.runs[0].domains),
        "columns": list(table.columns),
        "summary": [AVERAGE, WORST],
        "shots": [shot for shot in SHOTS if shot in table.columns],
        "algorithms": list(table.algorithms),
        "figures": figures,
        "comparisons": _comparisons(group),
        "ranks": {name: round(rank, 3) for name, rank in mean_ranks(group).items()},
        "cost": {name: median_seconds(table, name) for name in table.algorithms},
        "choices": [
            {
                "algorithm": name,
                "column": column,
                "trial": trial,
                "run": number[id(choice.run)],
                "step": choice.record.step,
                "score": round(choice.score, DIGITS),
                "test": {domain: round(value, DIGITS) for domain, value in choice.accuracy.items()},
                "hparams": dict(choice.run.hparams),
                "command": _command(choice),
            }
            for (name, column, trial), choice in table.choices.items()
        ],
    }


def _figure(figure: Figure, bold: bool) -> dict[str, Any]:
    if not figure.known:
        return {"missing": len(figure.missing)}
    error = None if figure.error is None else round(figure.error, 3)
    values = {str(trial): round(100 * value, 3) for trial, value in figure.values.items()}
    return {"mean": round(figure.mean, 3), "error": error, "values": values, "bold": bold}


def _comparisons(tables: Sequence[Results]) -> dict[str, dict[str, dict[str, Any]]]:
    """baseline -> algorithm -> comparison, over all data sets of the protocol."""
    names = list(dict.fromkeys(name for table in tables for name in table.algorithms))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for baseline in names:
        for name in names:
            result = compare(tables, name, baseline) if name != baseline else None
            if result is not None:
                found.setdefault(baseline, {})[name] = {
                    "difference": round(result.difference, 3),
                    "low": None if result.low is None else round(result.low, 3),
                    "high": None if result.high is None else round(result.high, 3),
                    "wins": result.wins,
                    "ties": result.ties,
                    "losses": result.losses,
                    "pairs": result.pairs,
                }
    return found


def _command(choice: ChosenRun) -> str:
    """What trains the chosen run again, where it is one of ours."""
    run = choice.run
    if run.config is None:
        return ""
    config = run.config
    words = ["rcalign", "train", config.data, "--algorithm", config.algorithm]
    for name in config.test_domains:
        words += ["--test-domain", name]
    words += ["--protocol", config.protocol, "--preset", config.preset, "--steps", str(config.steps)]
    words += ["--evaluate-every", str(config.evaluate_every), "--seed", str(config.seed)]
    words += ["--backbone", config.backbone] if config.backbone else []
    words += ["--weights", config.weights] if config.weights else []
    words += ["--image-size", str(config.image_size)] if config.image_size else []
    words += ["--freeze-backbone"] if config.freeze_backbone else []
    words += [] if config.freeze_batch_norm else ["--train-batch-norm"]
    words += ["--average", config.average] if config.average else []
    for name, value in run.hparams.items():
        words += ["--set", f"{name}={value}"]
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """
    >>> _quoted("erm"), _quoted("it's a")
    ('erm', "'it'\\\\''s a'")
    """
    plain = word and all(letter.isalnum() or letter in "-_./=:,+@" for letter in word)
    return word if plain else "'" + word.replace("'", "'\\''") + "'"


def _run(run: Run, chosen: bool, names: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": run.name,
        "what": describe_run(run),
        "data": run.data,
        "protocol": run.protocol,
        "algorithm": run.algorithm,
        "heldOut": " + ".join(run.test_domains),
        "draw": run.draw,
        "trial": run.trial,
        "chosen": chosen,
    }
    if run.problem is not None or run.lost is not None:
        return {**values, "problem": run.problem or run.lost}
    best = max(run.checkpoints, key=lambda record: record.validation)
    tested = [best.accuracy[name]["test"] for name in run.tested if "test" in best.accuracy.get(name, {})]
    return {
        **values,
        "seconds": run.seconds,
        "validation": round(best.validation, DIGITS),
        "test": round(float(np.mean(tested)), DIGITS) if tested else None,
        "hparams": [_plain(run.hparams.get(name)) for name in names],
    }


def _searched(runs: Sequence[Run], algorithm: str) -> list[str]:
    """The hyperparameters that differ between the finished runs of an algorithm."""
    seen: dict[str, set[str]] = {}
    for run in runs:
        if run.algorithm == algorithm and run.problem is None and run.lost is None:
            for name, value in run.hparams.items():
                seen.setdefault(name, set()).add(repr(value))
    return [name for name, values in seen.items() if len(values) > 1]


def _plain(value: Any) -> Any:
    """A number of few digits, or a text."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, (int, float)):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    return str(value)


def _curve(run: Run) -> dict[str, Any] | None:
    rows = [record for record in run.records if not record.averaged]
    if not rows:
        return None
    tests = {
        name: [_rounded(record.accuracy.get(name, {}).get("test")) for record in rows]
        for name in run.tested
        if "test" in rows[0].accuracy.get(name, {})
    }
    return {
        "steps": [record.step for record in rows],
        "validation": [_rounded(record.validation) for record in rows],
        "loss": [_rounded(record.loss) for record in rows],
        "test": tests,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, DIGITS)


def _confusion(run: Run) -> dict[str, Any] | None:
    """Of the checkpoint that the run chose itself. cells: domain -> of each true class [predicted, count, predicted,
    count, ...] without zeros."""
    if run.result is None or run.config is None or not run.result.confusion:
        return None
    spec = run.config.spec
    cells = {}
    for domain, matrix in run.result.confusion.items():
        cells[domain] = [[int(n) for p in np.flatnonzero(row) for n in (p, row[p])] for row in np.asarray(matrix)]
    counts = spec.count_matrix.numpy()
    seen = {
        domain: counts[spec.domains.index(domain)].tolist()
        if domain in spec.domains
        else [round(float(mean), 1) for mean in counts.mean(0)]
        for domain in cells
    }
    return {"step": run.result.best_step, "cells": cells, "counts": seen}
