"""From runs to figures: means over trials, comparisons, ranks. Pure.

A figure is a mean over trials with its standard error, the population standard deviation over trials divided by the
square root of their number (DomainBed's and BoDA's). A figure that needs an incomplete run does not exist.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rcalign import registry
from rcalign.errors import InputError, unknown
from rcalign.evaluation.metric_table import Metric, known_metrics
from rcalign.selection import SHOTS, ChosenRun, Missing, Rule, choose_per_trial, get_rule, tune_then_repeat
from rcalign.store.names import name_key
from rcalign.store.read_runs import RunCollection
from rcalign.store.run_view import Run

AVERAGE, WORST = "average", "worst"
CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class Figure:
    """One cell. values: trial -> value, of accuracy a fraction. missing: the runs without which there is no figure.

    scale: what values are multiplied with to be shown, 100 for per cent.

    >>> figure = Figure({0: 0.64, 1: 0.66})
    >>> round(figure.mean, 1), round(figure.error, 2), Figure({0: 0.5}).error
    (65.0, 0.71, None)
    """

    values: Mapping[int, float] = field(default_factory=dict)
    missing: tuple[Run, ...] = ()
    scale: float = 100.0

    @property
    def known(self) -> bool:
        return bool(self.values) and not self.missing

    @property
    def mean(self) -> float:
        """The mean over trials as it is shown: shares in per cent."""
        return self.scale * float(np.mean(list(self.values.values())))

    @property
    def error(self) -> float | None:
        """Standard error, on the scale of the mean; None with one trial."""
        n = len(self.values)
        return self.scale * float(np.std(list(self.values.values()))) / math.sqrt(n) if n > 1 else None


@dataclass(frozen=True, eq=False)
class Results:
    """The figures of one data set under one protocol and one rule.

    tested: the columns that are domains (or domains held out together, "a + b"). columns: those, then average, worst
    and the shot groups. choices: (algorithm, tested column or "" under mdlt, trial) -> what was chosen. metrics: those
    that some chosen checkpoint has beside accuracy; ``figures`` has their mean over the tested domains, by their name.
    """

    data: str
    protocol: str
    rule: Rule
    tested: tuple[str, ...]
    columns: tuple[str, ...]
    algorithms: tuple[str, ...]
    figures: Mapping[tuple[str, str], Figure]
    choices: Mapping[tuple[str, str, int], ChosenRun]
    runs: tuple[Run, ...]
    metrics: tuple[Metric, ...] = ()

    def blocks(self, algorithm: str) -> dict[tuple[str, str, int], float] | None:
        """(data, domain, trial) -> accuracy, the unit of paired comparison; None if a figure is missing."""
        figures = {column: self.figures[algorithm, column] for column in self.tested}
        if not all(figure.known for figure in figures.values()):
            return None
        return {(self.data, c, trial): value for c, figure in figures.items() for trial, value in figure.values.items()}

    @property
    def missing(self) -> tuple[Run, ...]:
        """The incomplete runs that some figure needs."""
        found = itertools.chain(*(figure.missing for figure in self.figures.values()))
        return tuple(dict.fromkeys(found))


def results(sweep: RunCollection, select: str | None = None) -> list[Results]:
    """The figures of every data set and protocol of a sweep. select: a rule's name; None is the protocol's own."""
    kinds = dict.fromkeys((run.data, run.protocol) for run in sweep.runs)
    found = []
    for data, protocol in kinds:
        runs = tuple(run for run in sweep.runs if (run.data, run.protocol) == (data, protocol))
        found.append(_results(data, protocol, get_rule(select, protocol), runs, sweep.tuned))
    return found


def _results(data: str, protocol: str, rule: Rule, runs: tuple[Run, ...], tuned: bool) -> Results:
    algorithms = tuple(sorted({run.algorithm for run in runs}, key=algorithm_order))
    test_sets = _test_sets(runs, rule)
    figures: dict[tuple[str, str], Figure] = {}
    choices: dict[tuple[str, str, int], ChosenRun] = {}
    for algorithm in algorithms:
        own = [run for run in runs if run.algorithm == algorithm]
        way = tune_then_repeat if tuned else choose_per_trial
        outcomes = {column: way(rule, own, test_set) for column, test_set in test_sets.items()}
        for column, by_trial in outcomes.items():
            choices |= {(algorithm, column, t): c for t, c in by_trial.items() if isinstance(c, ChosenRun)}
        # under lodo and adapt each column is another run; else one run is tested in every domain that counts
        cells = (
            _lodo_figures(outcomes) if protocol in ("lodo", "adapt") else _mdlt_figures(next(iter(outcomes.values())))
        )
        figures |= {(algorithm, column): figure for column, figure in cells.items()}
    tested = tuple(test_sets) if protocol in ("lodo", "adapt") else runs[0].tested
    # one group alone is the accuracy by class: no division into shots
    shots = [shot for shot in SHOTS if any(figures[name, shot].values for name in algorithms)]
    columns = (*tested, AVERAGE, WORST, *(shots if len(shots) > 1 else ()))
    metrics = _further_metrics(choices.values())
    for algorithm in algorithms:
        average = figures[algorithm, AVERAGE]
        for metric in metrics:
            figures[algorithm, metric.name] = _metric_figure(metric, algorithm, average, choices)
    return Results(data, protocol, rule, tested, columns, algorithms, figures, choices, runs, metrics)


def _further_metrics(choices: Iterable[ChosenRun]) -> tuple[Metric, ...]:
    """What checkpoints have beside accuracy. Records of format 1 have one, which no report showed: they stay so."""
    found = known_metrics(itertools.chain(*(choice.record.metrics for choice in choices)))
    further = tuple(metric for metric in found if metric.name != "accuracy")
    return further if len(further) > 1 else ()


def _metric_figure(
    metric: Metric, algorithm: str, average: Figure, choices: Mapping[tuple[str, str, int], ChosenRun]
) -> Figure:
    """The mean over the tested domains within a trial, of the trials that the average has; none where one lacks it."""
    values: dict[int, list[float | None]] = {trial: [] for trial in average.values}
    for (name, _, trial), choice in choices.items():
        if name == algorithm and trial in values:
            values[trial].append(choice.metric(metric.name))
    means = {trial: [v for v in found if v is not None] for trial, found in values.items()}
    if any(len(means[trial]) < len(found) for trial, found in values.items()):
        return Figure({}, average.missing, metric.scale)
    return Figure({trial: float(np.mean(found)) for trial, found in means.items()}, average.missing, metric.scale)


def _test_sets(runs: Sequence[Run], rule: Rule) -> dict[str, tuple[str, ...]]:
    """Column -> the domains held out. Larger sets serve selection only where single domains are held out as well."""
    sets = {frozenset(run.test_domains) for run in runs if not run.companion}
    smallest = min(len(found) for found in sets)
    if rule.companions and all(len(run.test_domains) == smallest for run in runs):
        raise InputError(
            f"{rule.name} selection needs runs that hold out a second domain beside the tested one, but there are none "
            f"of '{runs[0].data}': plan them, or use `select=training-domain`."
        )
    if smallest == 1:
        sets = {found for found in sets if len(found) == 1}
    order = runs[0].domains
    named = [tuple(sorted(found, key=order.index)) for found in sets]
    return {" + ".join(names): names for names in sorted(named, key=lambda names: [order.index(n) for n in names])}


def _lodo_figures(outcomes: Mapping[str, Mapping[int, ChosenRun | Missing]]) -> dict[str, Figure]:
    """One choice for each domain held out and trial."""
    missing = {column: _missing(by_trial) for column, by_trial in outcomes.items()}
    everything = tuple(dict.fromkeys(itertools.chain(*missing.values())))
    figures = {}
    for column, by_trial in outcomes.items():
        values = {t: float(np.mean(list(c.accuracy.values()))) for t, c in by_trial.items() if isinstance(c, ChosenRun)}
        figures[column] = Figure(values, missing[column])
    trials = [t for t in next(iter(outcomes.values()), {}) if all(t in by_trial for by_trial in outcomes.values())]
    complete = not everything and all(figure.known for figure in figures.values())
    of_trial = {
        t: [c for c in (by_trial[t] for by_trial in outcomes.values()) if isinstance(c, ChosenRun)]
        for t in (trials if complete else ())
    }
    figures[AVERAGE] = Figure(
        {t: float(np.mean([f.values[t] for f in figures.values()])) for t in of_trial}, everything
    )
    figures[WORST] = Figure({t: min(min(c.accuracy.values()) for c in cs) for t, cs in of_trial.items()}, everything)
    for shot in SHOTS:
        found = {t: [c.shots.get(shot) for c in cs] for t, cs in of_trial.items() if _all_have_shots(cs)}
        known = {t: [value for value in values if value is not None] for t, values in found.items()}
        figures[shot] = Figure({t: float(np.mean(values)) for t, values in known.items() if values}, everything)
    return figures


def _mdlt_figures(by_trial: Mapping[int, ChosenRun | Missing]) -> dict[str, Figure]:
    """One choice for each trial; it is tested in every domain that counts."""
    missing = _missing(by_trial)
    chosen = {t: c for t, c in by_trial.items() if isinstance(c, ChosenRun)}
    runs = [c.run for c in chosen.values()] or list(missing)
    figures = {name: Figure({t: c.accuracy[name] for t, c in chosen.items()}, missing) for name in runs[0].tested}
    figures[AVERAGE] = Figure({t: float(np.mean(list(c.accuracy.values()))) for t, c in chosen.items()}, missing)
    figures[WORST] = Figure({t: min(c.accuracy.values()) for t, c in chosen.items()}, missing)
    for shot in SHOTS:
        found = {t: c.shots.get(shot) for t, c in chosen.items() if _all_have_shots(chosen.values())}
        figures[shot] = Figure({t: value for t, value in found.items() if value is not None}, missing)
    return figures


def _missing(by_trial: Mapping[int, ChosenRun | Missing]) -> tuple[Run, ...]:
    found = itertools.chain(*(outcome.runs for outcome in by_trial.values() if isinstance(outcome, Missing)))
    return tuple(dict.fromkeys(found))


def _all_have_shots(choices: Iterable[ChosenRun]) -> bool:
    """Our own runs know their shots at the checkpoint that they chose themselves, not at every one."""
    return all(choice.shots for choice in choices)


def leaders(table: Results, columns: Sequence[str] | None = None) -> set[tuple[str, str]]:
    """The (algorithm, column) pairs to print bold: see ``tables.DEFINITIONS``. columns: None is those of accuracy."""
    found = set()
    lower_is_better = {metric.name for metric in table.metrics if not metric.higher_is_better}
    for column in table.columns if columns is None else columns:
        figures = {name: table.figures[name, column] for name in table.algorithms}
        if len(figures) < 2 or not all(figure.known for figure in figures.values()):
            continue
        sign = 1 if column in lower_is_better else -1
        (best, first), (_, second) = sorted(figures.items(), key=lambda item: sign * item[1].mean)[:2]
        if first.error is None or second.error is None:
            continue
        if abs(first.mean - second.mean) > math.hypot(first.error, second.error):
            found.add((best, column))
    return found


@dataclass(frozen=True)
class Comparison:
    """One algorithm against another over the pairs (data set, domain, trial) that both have. Differences in points.

    low, high: t interval of the mean difference, treating pairs as independent: it is about these domains, not about
    domains in general. None with fewer than two pairs.
    """

    algorithm: str
    baseline: str
    pairs: int
    difference: float
    low: float | None
    high: float | None
    wins: int
    ties: int
    losses: int


def compare(tables: Sequence[Results], algorithm: str, baseline: str) -> Comparison | None:
    """Over the data sets on which neither has a missing figure; None if there is none, or they share no pair."""
    compared = [table for table in tables if algorithm in table.algorithms and baseline in table.algorithms]
    finished = [table for table in compared if table.blocks(algorithm) and table.blocks(baseline)]
    ours, theirs = all_blocks(finished, algorithm), all_blocks(finished, baseline)
    if ours is None or theirs is None:
        return None
    return compare_pairs(algorithm, baseline, [(ours[block], theirs[block]) for block in ours if block in theirs])


def compare_pairs(algorithm: str, baseline: str, pairs: Sequence[tuple[float, float]]) -> Comparison | None:
    """The comparison of pairs of accuracies (fractions).

    >>> found = compare_pairs("a", "b", [(0.52, 0.50), (0.54, 0.50), (0.50, 0.50)])
    >>> round(found.difference, 2), round(found.low, 2), round(found.high, 2), (found.wins, found.ties, found.losses)
    (2.0, -2.97, 6.97, (2, 1, 0))
    """
    if not pairs:
        return None
    differences = np.array([100 * (ours - theirs) for ours, theirs in pairs])
    n, mean = len(differences), float(differences.mean())
    low = high = None
    if n > 1:
        from scipy import stats  # half a second to import, which an error should not wait for

        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * differences.std(ddof=1) / math.sqrt(n))
        low, high = mean - half, mean + half
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    return Comparison(algorithm, baseline, n, mean, low, high, wins, n - wins - losses, losses)


def mean_ranks(tables: Sequence[Results]) -> dict[str, float]:
    """Algorithm -> mean over the blocks (data set, domain, trial) of its rank by accuracy, 1 the best, ties shared.

    Only algorithms without a missing figure are ranked, over the blocks that all of them have.
    """
    names = sorted({name for table in tables for name in table.algorithms}, key=algorithm_order)
    blocks = {name: found for name in names if (found := all_blocks(tables, name)) is not None}
    shared = set.intersection(*(set(found) for found in blocks.values())) if blocks else set()
    if not shared or len(blocks) < 2:
        return {}
    values = np.array([[found[block] for block in sorted(shared)] for found in blocks.values()])
    from scipy import stats

    ranks = stats.rankdata(-values, axis=0)
    return {name: float(row.mean()) for name, row in zip(blocks, ranks, strict=True)}


def median_seconds(table: Results, algorithm: str) -> float | None:
    """The median training time of its finished runs; None where no time was recorded."""
    found = [run.seconds for run in table.runs if run.algorithm == algorithm and run.seconds is not None]
    return round(float(np.median(found)), 2) if found else None


def all_blocks(tables: Sequence[Results], algorithm: str) -> dict[tuple[str, str, int], float] | None:
    """The blocks of all data sets that an algorithm ran on; None if one of its figures is missing."""
    found: dict[tuple[str, str, int], float] = {}
    for table in tables:
        if algorithm in table.algorithms:
            blocks = table.blocks(algorithm)
            if blocks is None:
                return None
            found |= blocks
    return found or None


def default_baseline(algorithms: Sequence[str], asked: str | None = None) -> str:
    """What others are compared with: the one asked for, else the registry's plain baseline, else the first."""
    if asked is not None:
        found = [name for name in algorithms if name_key(name) == name_key(asked)]
        if not found:
            raise unknown("algorithm in this report", asked, algorithms)
        return found[0]
    return sorted(algorithms, key=algorithm_order)[0]


def algorithm_order(name: str) -> tuple[bool, str]:
    """The plain baseline first, the others by name."""
    try:
        return registry.description(name).family != "baseline", name.lower()
    except InputError:
        return True, name.lower()


def by_protocol(tables: Sequence[Results]) -> Iterator[list[Results]]:
    """Only figures of one protocol may be averaged or compared."""
    for protocol in dict.fromkeys(table.protocol for table in tables):
        yield [table for table in tables if table.protocol == protocol]
