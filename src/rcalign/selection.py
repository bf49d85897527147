"""Which run, and which of its checkpoints, a protocol chooses. Pure: records in, a choice out.

The rules are those of DomainBed and of BoDA, to the figure. They differ in what they may look at: only ``oracle`` reads
anything of the domain that is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rcalign.errors import InputError, unknown
from rcalign.records import Record, RunConfig

SHOTS = ("many", "medium", "few", "zero")


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run as selection and reports see it, whoever wrote it.

    domains: all domains of the data set, in its order. test_domains: those held out; none under protocol "mdlt", where
    every domain trains and is tested. draw: the number of its hyperparameters; trial: of its repetition; within a
    trial the best draw is chosen. phase: "search", or "repeat" for the winner of a search trained again.
    records: its evaluations, by step. shots: step -> "many", "medium", "few", "zero" -> accuracy, where known.
    problem: why it is incomplete, None for a finished run. config and result are there for our own runs only.
    """

    name: str
    data: str
    algorithm: str
    protocol: str
    domains: tuple[str, ...]
    test_domains: tuple[str, ...]
    draw: int = 0
    trial: int = 0
    seed: int = 0
    phase: str = "search"
    preset: str = ""
    hparams: Mapping[str, Any] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    shots: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)
    seconds: float | None = None
    problem: str | None = None
    last_lines: tuple[str, ...] = ()
    folder: str = ""
    config: RunConfig | None = None
    result: Mapping[str, Any] | None = None

    @property
    def tested(self) -> tuple[str, ...]:
        """The domains whose test part counts."""
        return self.test_domains or self.domains

    @property
    def checkpoints(self) -> tuple[Record, ...]:
        """What may be chosen: all evaluations, or only that of the averaged weights where a run averages."""
        averaged = tuple(record for record in self.records if record.averaged)
        return averaged or self.records


@dataclass(frozen=True, eq=False)
class Choice:
    """A run, one of its checkpoints, and the figure it was chosen by."""

    run: Run
    record: Record
    score: float

    @property
    def accuracy(self) -> dict[str, float]:
        """Accuracy on the test part of every tested domain."""
        return {name: self.record.accuracy[name]["test"] for name in self.run.tested}

    @property
    def shots(self) -> Mapping[str, float | None]:
        return self.run.shots.get(self.record.step, {})


@dataclass(frozen=True, eq=False)
class Missing:
    """There is no choice, because these runs are not finished."""

    runs: tuple[Run, ...]


def training_domain(run: Run, companions: Sequence[Run] = ()) -> Choice:
    """The checkpoint with the largest mean accuracy on the validation parts of the training domains.

    >>> rows = [Record(step=s, loss=0, nll={}, validation=v, accuracy={"b": {"val": 0.1, "test": t}})
    ...         for s, v, t in [(100, 0.7, 0.4), (200, 0.9, 0.5), (300, 0.9, 0.6)]]
    >>> run = Run(name="", data="", algorithm="", protocol="lodo", domains=("a", "b"), test_domains=("b",),
    ...           records=tuple(rows))
    >>> training_domain(run).record.step, training_domain(run).accuracy
    (200, {'b': 0.5})
    """
    return _best(run, [(record, record.validation) for record in run.checkpoints])


def leave_one_domain_out(run: Run, companions: Sequence[Run] = ()) -> Choice | None:
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


def oracle(run: Run, companions: Sequence[Run] = ()) -> Choice:
    """Chooses by the tested domains themselves: an upper bound, never a result.

    "lodo": the last checkpoint, ranked by the validation part of the domains held out (DomainBed). "mdlt": the
    checkpoint with the largest mean test accuracy (BoDA).
    """
    if run.protocol == "mdlt":
        return _best(run, [(record, _mean(record, run.tested, "test")) for record in run.checkpoints])
    last = run.checkpoints[-1]
    return Choice(run, last, _mean(last, run.test_domains, "val"))


@dataclass(frozen=True)
class Rule:
    """A way to choose. companions: it needs the runs that hold out one domain more. protocols: where it has a sense."""

    name: str
    title: str
    choose: Callable[[Run, Sequence[Run]], Choice | None]
    companions: bool = False
    protocols: tuple[str, ...] = ("lodo", "mdlt")


RULES = {
    rule.name: rule
    for rule in (
        Rule("training-domain", "training-domain validation", training_domain),
        Rule(
            "leave-one-domain-out",
            "leave-one-domain-out cross-validation",
            leave_one_domain_out,
            companions=True,
            protocols=("lodo",),
        ),
        Rule("oracle", "test-domain validation (oracle)", oracle),
        Rule("mdlt", "mean validation accuracy over domains", training_domain, protocols=("mdlt",)),
    )
}
DEFAULT_RULES = {"lodo": "training-domain", "mdlt": "mdlt"}


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


def rank(rule: Rule, runs: Iterable[Run], held_out: Collection[str] = ()) -> list[Choice]:
    """The best checkpoint of every run that holds out exactly these domains, the best first, of equals the first draw.

    runs: finished runs of one data set, algorithm and trial.
    """
    runs = list(runs)
    found = []
    for run in sorted(_holding_out(runs, held_out), key=lambda run: run.draw):
        choice = rule.choose(run, _companions(run, runs) if rule.companions else [])
        if choice is not None:
            found.append(choice)
    return sorted(found, key=lambda choice: -choice.score)


def choose(rule: Rule, runs: Iterable[Run], held_out: Collection[str] = ()) -> Choice | Missing:
    """The best of ``rank``, unless a run that the rule would read is incomplete.

    runs: all planned runs of one data set, algorithm and trial, finished or not.
    """
    runs = list(runs)
    read = _holding_out(runs, held_out)
    if rule.companions:
        read += [companion for run in read for companion in _companions(run, runs)]
    unfinished = tuple(run for run in read if run.problem is not None)
    ranked = [] if unfinished else rank(rule, read, held_out)
    return ranked[0] if ranked else Missing(unfinished)


def choose_per_trial(rule: Rule, runs: Iterable[Run], held_out: Collection[str] = ()) -> dict[int, Choice | Missing]:
    """The choice of every trial. runs: all planned runs of one data set and algorithm.

    Where the winner of a search is repeated, each repetition is a trial with nothing left to choose but its checkpoint,
    and the winning run of the search counts as the trial of its own seed.
    """
    runs = list(runs)
    repeats = [run for run in runs if run.phase == "repeat" and set(run.test_domains) == set(held_out)]
    search = [run for run in runs if run.phase != "repeat"]
    if not repeats:
        return {
            trial: choose(rule, [run for run in search if run.trial == trial], held_out)
            for trial in sorted({run.trial for run in _holding_out(search, held_out)})
        }
    winner = choose(rule, search, held_out)
    if isinstance(winner, Missing):  # which draw deserved repeating is not known yet
        return dict.fromkeys(sorted(run.trial for run in repeats), winner)
    found: dict[int, Choice | Missing] = {winner.run.trial: winner}
    for run in repeats:
        found[run.trial] = Missing((run,)) if run.problem is not None else _repetition(rule, run, winner)
    return dict(sorted(found.items()))


def _repetition(rule: Rule, run: Run, winner: Choice) -> Choice | Missing:
    """A repetition chooses its own checkpoint; by a rule that looks at companions, which it has not, the winner's."""
    if not rule.companions:
        return rule.choose(run, []) or Missing((run,))
    record = _at(run, winner.record)
    return Missing((run,)) if record is None else Choice(run, record, winner.score)


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


def _best(run: Run, scores: Sequence[tuple[Record, float]]) -> Choice:
    """The first of the largest: an earlier checkpoint wins a tie, as in both peers."""
    record, score = max(scores, key=lambda pair: pair[1])
    return Choice(run, record, score)


def _mean(record: Record, domains: Iterable[str], part: str) -> float:
    try:
        return float(np.mean([record.accuracy[name][part] for name in domains]))
    except KeyError as error:
        raise InputError(
            f"oracle selection reads the {part} part of the tested domains, but a run has none ({error}): "
            "choose another --select."
        ) from None


def _at(run: Run, record: Record) -> Record | None:
    """The evaluation of another run at the same step; of averaged weights there is only one."""
    same = [other for other in run.checkpoints if record.averaged or other.step == record.step]
    return same[0] if same else None
