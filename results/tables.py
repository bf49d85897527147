"""Tables in Markdown from committed records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rcalign.reports.figures import (
    AVERAGE,
    WORST,
    Comparison,
    Figure,
    Results,
    compare_pairs,
    median_seconds,
    results,
)
from rcalign.reports.tables import cell_of
from rcalign.selection import SHOTS, ChosenRun
from rcalign.store.read_runs import RunCollection
from results import plans


def figures_of(sweep: RunCollection, labels: Sequence[str] | None = None) -> Results:
    """Of the sweep's one data set, of some methods only."""
    runs = tuple(run for run in sweep.runs if labels is None or run.algorithm in labels)
    found = results(dataclasses.replace(sweep, runs=runs))
    assert len(found) == 1, "the sweep has several data sets"
    return found[0]


def chosen(table: Results, label: str) -> list[ChosenRun]:
    return [choice for (name, _, _), choice in table.choices.items() if name == label]


def balanced(table: Results, label: str) -> Figure:
    """Class-balanced accuracy, mean over the tested domains."""
    by_trial: dict[int, list[float]] = {}
    for choice in chosen(table, label):
        by_trial.setdefault(choice.run.trial, []).append(float(np.mean(list(choice.run.result.balanced.values()))))  # type: ignore[union-attr]
    return Figure({trial: float(np.mean(values)) for trial, values in by_trial.items()})


def blocks(table: Results, label: str, what: str = "accuracy") -> dict[tuple[str, int], float]:
    """(domain, trial) -> accuracy, or balanced accuracy."""
    found = {}
    for choice in chosen(table, label):
        for domain in choice.run.tested:
            found[domain, choice.run.trial] = float(getattr(choice.run.result, what)[domain])  # type: ignore[index]
    return found


def against(table: Results, label: str, baseline: str, what: str = "accuracy") -> Comparison:
    ours, theirs = blocks(table, label, what), blocks(table, baseline, what)
    found = compare_pairs(label, baseline, [(ours[key], theirs[key]) for key in ours if key in theirs])
    assert found is not None, f"{label} and {baseline} share no pair"
    return found


def validation(table: Results, label: str) -> float:
    """Per cent: mean over what was chosen."""
    return 100 * float(np.mean([choice.score for choice in chosen(table, label)]))


def verdict(found: Comparison) -> str:
    if found.low is None or found.high is None:
        return "–"
    return "wins" if found.low > 0 else "loses" if found.high < 0 else "ties"


def pm(figure: Figure) -> str:
    cell = cell_of(figure)
    return f"{cell.text} ± {cell.error}" if cell.error else cell.text


def difference(found: Comparison) -> str:
    if found.low is None or found.high is None:
        return f"{found.difference:+.2f}"
    return f"{found.difference:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main_table(table: Results, baseline: str = "ERM") -> str:
    """Every method, the best average first."""
    shots = [shot for shot in SHOTS if shot in table.columns]
    several = len(table.tested) <= 4
    header = ["method", *(table.tested if several else ()), "average", "worst", "balanced", *shots]
    header += [f"− {baseline} (95 %)", "wins / ties / losses", "", "time"]
    cost = median_seconds(table, baseline)
    rows = []
    for name in sorted(table.algorithms, key=lambda name: -table.figures[name, AVERAGE].mean):
        row = [name, *(pm(table.figures[name, column]) for column in (table.tested if several else ()))]
        row += [pm(table.figures[name, AVERAGE]), pm(table.figures[name, WORST]), pm(balanced(table, name))]
        row += [f"{table.figures[name, shot].mean:.1f}" for shot in shots]
        if name == baseline:
            row += ["", "", ""]
        else:
            found = against(table, name, baseline)
            row += [difference(found), f"{found.wins} / {found.ties} / {found.losses}", verdict(found)]
        seconds = median_seconds(table, name)
        rows.append([*row, "–" if not cost or seconds is None else f"{seconds / cost:.1f}"])
    return markdown(header, rows)


# --- the decision between readings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A reading's validation accuracies: (data set, held out, trial) -> the best draw's, as a fraction."""

    name: str
    scores: Mapping[tuple[str, str, int], float]
    kept_out: Mapping[tuple[str, str, int], float]  # accuracy on the vendor that takes no part

    @property
    def mean(self) -> float:
        return 100 * float(np.mean(list(self.scores.values())))


def readings(sweep: RunCollection, kept_out: str) -> list[Reading]:
    """All readings of a sweep, the best first."""
    scores: dict[str, dict[Any, float]] = {}
    tests: dict[str, dict[Any, float]] = {}
    for table in results(sweep):
        for (name, column, trial), choice in table.choices.items():
            key = (table.data, column, trial)
            scores.setdefault(name, {})[key] = choice.score
            tests.setdefault(name, {})[key] = choice.accuracy[kept_out]
    found = [Reading(name, scores[name], tests[name]) for name in scores]
    return sorted(found, key=lambda reading: -reading.mean)


def paired(a: Mapping[Any, float], b: Mapping[Any, float]) -> tuple[float, float]:
    """Mean difference and its standard error, in points."""
    gaps = np.array([100 * (a[key] - b[key]) for key in a])
    return float(gaps.mean()), float(gaps.std(ddof=1) / math.sqrt(len(gaps)))


def decide(final: Sequence[Reading], shipped: str) -> str:
    """The rule of docs/results/protocol.md: the best, unless the shipped default is within one standard error."""
    best = final[0]
    own = next(reading for reading in final if reading.name == shipped)
    mean, error = paired(best.scores, own.scores)
    return shipped if best.name == shipped or mean <= error else best.name


def final_table(final: Sequence[Reading], shipped: str, kept_out: str) -> str:
    own = next(reading for reading in final if reading.name == shipped)
    rows = []
    for reading in final:
        other = reading.name != shipped
        rows.append(
            [
                f"`{reading.name}`",
                f"{reading.mean:.2f}",
                _gap(reading.scores, own.scores) if other else "",
                f"{100 * float(np.mean(list(reading.kept_out.values()))):.1f}",
                _gap(reading.kept_out, own.kept_out) if other else "",
            ]
        )
    header = ["reading", "validation", "− shipped (± standard error)", kept_out, "− shipped (± standard error)"]
    return markdown(header, rows)


def _gap(a: Mapping[Any, float], b: Mapping[Any, float]) -> str:
    mean, error = paired(a, b)
    return f"{mean:+.2f} ± {error:.2f}"


def effects_table(screen: Sequence[Reading], options: Mapping[str, Sequence[Any]]) -> str:
    """Mean and best validation accuracy of the readings that share a choice."""
    rows = []
    for position, (name, values) in enumerate(options.items()):
        for value in values:
            word = plans.word(value)
            means = [reading.mean for reading in screen if reading.name.split()[position] == word]
            rows.append([f"`{name} = {word}`", f"{np.mean(means):.1f}", f"{np.median(means):.1f}", f"{max(means):.1f}"])
    return markdown(["choice", "mean of its readings", "median", "best"], rows)
