"""Which run, and which of its checkpoints, a protocol chooses. Pure: records in, a choice out.

The rules are those of DomainBed and of BoDA, to the figure, ties included: of a run's equal checkpoints the earliest is
chosen, of equal draws the last (both sort the draws by score, ascending, and reverse the list). They differ in what
they may look at: only ``oracle`` reads anything of the domain that is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rcalign.errors import InputError, unknown
from rcalign.store.run_folder import Record
from rcalign.store.run_view import Run

SHOTS = ("many", "medium", "few", "zero")


@dataclass(frozen=True, eq=False)
class ChosenRun:
    """A run, one of its checkpoints, and the figure it was chosen by."""

    run: Run
    record: Record
    score: float

    @property
    def accuracy(self) -> dict[str, float]:
        """Accuracy on the test part of every tested domain."""
        return {name: self.record.accuracy[name]["test"] for name in self.run.tested}

    def metric(self, name: str) -> float | None:
        """Mean of a metric over the test parts of the tested domains; None where one has no value."""
        values = [self.record.metrics.get(name, {}).get(domain, {}).get("test") for domain in self.run.tested]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if len(known) == len(values) else None

    @property
    def shots(self) -> Mapping[str, float | None]:
        return self.run.shots.get(self.record.step, {})


@dataclass(frozen=True, eq=False)
class Missing:
    """There is no choice, because these runs are not finished (or all of them are lost)."""

    runs: tuple[Run, ...]


def training_domain(run: Run, companions: Sequence[Run] = ()) -> ChosenRun:
    """The checkpoint with the largest mean accuracy on the validation parts of the training domains.

    >>> rows = [Record(step=s, loss=0, validation=v, metrics={"accuracy": {"b": {"val": 0.1, "test": t}}})
    ...         for s, v, t in [(100, 0.7, 0.4), (200, 0.9, 0.5), (300, 0.9, 0.6)]]
    >>> run = Run(name="", data="", algorithm="", protocol="lodo", domains=("a", "b"), test_domains=("b",),
    ...           records=tuple(rows))
    >>> training_domain(run).record.step, training_domain(run).accuracy
    (200, {'b': 0.5})
    """
    if run.protocol == "wilds" and run.config is not None:  # whose own validation is that of further domains
        sources = run.config.spec.domains
        return _best(run, [(record, _mean(record, sources, "val")) for record in run.checkpoints])
    return own_validation(run)


def own_validation(run: Run, companions: Sequence[Run] = ()) -> ChosenRun:
    """The checkpoint with the largest validation accuracy as the run's protocol defines it."""
    return _best(run, [(record, record.validation) for record in run.checkpoints])


def leave_one_domain_out(run: Run, companions: Sequence[Run] = ()) -> ChosenRun | None:
    """The checkpoint with the largest mean accuracy on further domains, each held out beside the tested one.

    companions: the runs with the same hyperparameters that hold out ``run.test_domains`` and one domain v more; each
    gives v's accuracy at the same step. A step that one of them did not evaluate is passed over; None if all are.
    """
    held_out = set(run.test_domains)
    further = [name for name in run.domains if name not in held_out]
    by_domain = {(set(other.test_domains) - held_out).pop(): other for other in companions}
    scores = []
    for record in run.checkpoints:
        beside = [_at(by_domain[name], record) for name in further]
        if all(found is not None for found in beside):
            values = [found.accuracy[name]["test"] for name, found in zip(further, beside, strict=True) if found]
            scores.append((record, float(np.mean(values))))
    return _best(run, scores) if scores else None


def oracle(run: Run, companions: Sequence[Run] = ()) -> ChosenRun:
    """Chooses by the tested domains themselves: an upper bound, never a result.

    "lodo", "adapt": the last checkpoint, ranked by the validation part of the domains held out (DomainBed). "mdlt",
    "wilds": the checkpoint with the largest mean test accuracy (BoDA).
    """
    if run.protocol not in ("lodo", "adapt"):
        return _best(run, [(record, _mean(record, run.tested, "test")) for record in run.checkpoints])
    last = run.checkpoints[-1]
    return ChosenRun(run, last, _mean(last, run.test_domains, "val"))


@dataclass(frozen=True)
class Rule:
    """A way to choose. companions: it needs the runs that hold out one domain more. protocols: where it has a sense."""

    name: str
    title: str
    choose: Callable[[Run, Sequence[Run]], ChosenRun | None]
    companions: bool = False
    protocols: tuple[str, ...] = ("lodo", "mdlt", "wilds", "adapt")


RULES = {
    rule.name: rule
    for rule in (
        Rule("training-domain", "training-domain validation", training_domain),
        Rule(
            "leave-one-domain-out",
            "leave-one-domain-out cross-validation",
            leave_one_domain_out,
            companions=True,
            protocols=("lodo", "adapt"),
        ),
        Rule("oracle", "test-domain validation (oracle)", oracle),
        Rule("mdlt", "mean validation accuracy over domains", own_validation, protocols=("mdlt",)),
        Rule("wilds", "lowest accuracy of a validation domain", own_validation, protocols=("wilds",)),
    )
}
DEFAULT_RULES = {"lodo": "training-domain", "mdlt": "mdlt", "wilds": "wilds", "adapt": "training-domain"}


def get_rule(name: str | None, protocol: str) -> Rule:
    """The rule of a name, or the protocol's own.

    >>> get_rule(None, "mdlt").title
    'mean validation accuracy over domains'
    """
    if name is not None and name not in RULES:
        raise unknown("selection rule", name, RULES)
    rule = RULES[name or DEFAULT_RULES[protocol]]
    if protocol not in rule.protocols:
        fitting = ", ".join(known.name for known in RULES.values() if protocol in known.protocols)
        raise InputError(f"selection rule '{rule.name}' is not for protocol {protocol}: use one of {fitting}.")
    return rule


def rank(rule: Rule, runs: Iterable[Run], held_out: Collection[str] = ()) -> list[ChosenRun]:
    """The best checkpoint of every run that holds out exactly these domains, the best first, of equals the last draw.

    runs: finished runs of one data set, algorithm and trial; one that is lost, or has lost a companion, is passed over.
    """
    runs = list(runs)
    found = []
    for run in sorted(_holding_out(runs, held_out), key=lambda run: run.draw):
        companions = _companions(run, runs) if rule.companions else []
        if all(read.lost is None for read in (run, *companions)):
            choice = rule.choose(run, companions)
            if choice is not None:
                found.append(choice)
    return sorted(found, key=lambda choice: choice.score)[::-1]


def choose(rule: Rule, runs: Iterable[Run], held_out: Collection[str] = ()) -> ChosenRun | Missing:
    """The best of ``rank``, unless a run that the rule would read is incomplete.

    runs: all planned runs of one data set, algorithm and trial, finished or not.
    """
    read = _read_by(rule, list(runs), held_out)
    unfinished = tuple(run for run in read if run.problem is not None)
    ranked = [] if unfinished else rank(rule, read, held_out)
    return ranked[0] if ranked else Missing(unfinished or tuple(run for run in read if run.lost is not None))


def choose_per_trial(rule: Rule, runs: Iterable[Run], held_out: Collection[str] = ()) -> dict[int, ChosenRun | Missing]:
    """The choice of every trial: DomainBed's way, where each trial chooses among its own draws.

    runs: all planned runs of one data set and algorithm.
    """
    runs = list(runs)
    trials = sorted({run.trial for run in _holding_out(runs, held_out)})
    return {trial: choose(rule, [run for run in runs if run.trial == trial], held_out) for trial in trials}


def tune_then_repeat(rule: Rule, runs: Iterable[Run], held_out: Collection[str] = ()) -> dict[int, ChosenRun | Missing]:
    """The choice of every trial where one draw is chosen for all: the largest mean score over the trials of the search,
    of equals the first draw. Neither peer has this rule; sweeps repeat the draw that it chooses.

    Of the winner count its runs of the search and its repetitions, each with its own best checkpoint.
    runs: all planned runs of one data set and algorithm.
    """
    runs = list(runs)
    search = [run for run in runs if run.phase != "repeat"]
    repeats = [run for run in _holding_out(runs, held_out) if run.phase == "repeat"]
    trials = sorted({run.trial for run in _holding_out(search, held_out)})
    read = [run for trial in trials for run in _read_by(rule, [r for r in search if r.trial == trial], held_out)]
    unfinished = tuple(run for run in read if run.problem is not None)
    if unfinished:  # which draw deserves repeating is not known yet
        return dict.fromkeys([*trials, *sorted(run.trial for run in repeats)], Missing(unfinished))
    ranked = {trial: rank(rule, [run for run in search if run.trial == trial], held_out) for trial in trials}
    by_draw: dict[int, dict[int, ChosenRun]] = {}
    for trial, choices in ranked.items():
        for choice in choices:
            by_draw.setdefault(choice.run.draw, {})[trial] = choice
    complete = {draw: found for draw, found in sorted(by_draw.items()) if len(found) == len(trials)}
    if not complete:
        return dict.fromkeys(trials, Missing(tuple(run for run in read if run.lost is not None)))
    winner = max(complete, key=lambda draw: float(np.mean([choice.score for choice in complete[draw].values()])))
    outcome: dict[int, ChosenRun | Missing] = dict(complete[winner])
    for run in sorted(repeats, key=lambda run: run.trial):
        outcome[run.trial] = _repetition(rule, run, complete[winner][trials[0]])
    return outcome


def _repetition(rule: Rule, run: Run, winner: ChosenRun) -> ChosenRun | Missing:
    """A repetition chooses its own checkpoint; by a rule that looks at companions, which it has not, the winner's."""
    if run.draw != winner.run.draw:
        why = f"not trained: the sweep repeated draw {run.draw}, the choice of another rule"
        return Missing((replace(run, name="", draw=winner.run.draw, records=(), problem=why),))
    if run.problem is not None or run.lost is not None:
        return Missing((run,))
    if not rule.companions:
        return rule.choose(run, []) or Missing((run,))
    record = _at(run, winner.record)
    return Missing((run,)) if record is None else ChosenRun(run, record, winner.score)


def _read_by(rule: Rule, runs: Sequence[Run], held_out: Collection[str]) -> list[Run]:
    """The runs of one trial that a rule looks at."""
    own = _holding_out(runs, held_out)
    return own + [other for run in own for other in _companions(run, runs)] if rule.companions else own


def _holding_out(runs: Iterable[Run], held_out: Collection[str]) -> list[Run]:
    return [run for run in runs if set(run.test_domains) == set(held_out)]


def _companions(run: Run, runs: Iterable[Run]) -> list[Run]:
    """For every source domain v of a run the one with its draw that holds out v too; a stand-in where nobody ran it."""
    same_draw = [other for other in runs if other.draw == run.draw]
    found = []
    for name in run.domains:
        if name not in run.test_domains:
            both = (*run.test_domains, name)
            absent = replace(run, name="", test_domains=both, records=(), problem="not trained")
            found.append(next(iter(_holding_out(same_draw, both)), absent))
    return found


def _best(run: Run, scores: Sequence[tuple[Record, float]]) -> ChosenRun:
    """The first of the largest: an earlier checkpoint wins a tie, as in both peers."""
    record, score = max(scores, key=lambda pair: pair[1])
    return ChosenRun(run, record, score)


def _mean(record: Record, domains: Iterable[str], part: str) -> float:
    try:
        return float(np.mean([record.accuracy[name][part] for name in domains]))
    except KeyError as error:
        raise InputError(
            f"oracle selection reads the {part} part of the tested domains, but a run has none ({error}): "
            "choose another `select`."
        ) from None


def _at(run: Run, record: Record) -> Record | None:
    """The evaluation of another run at the same step; of averaged weights there is only one."""
    same = [other for other in run.checkpoints if record.averaged or other.step == record.step]
    return same[0] if same else None
