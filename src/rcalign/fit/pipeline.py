"""``rcalign fit``: looks, compares, chooses, says what to expect, trains the final model, leaves a page."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rcalign import presets
from rcalign.data.columns import Table
from rcalign.data.source import Arrays, Dataset, partial_classes, sample_note, sample_of, with_sample, without_sample
from rcalign.data.splits import split as make_splits
from rcalign.errors import InputError
from rcalign.evaluation.metrics import softmax
from rcalign.exports.card import keep_findings, model_card
from rcalign.files import write_whole
from rcalign.fit.conformal import PredictionSets, abstention, learn_sets
from rcalign.fit.data_overview import DataOverview, summarise_data
from rcalign.fit.expectation import RULE_WORDS, RULES, ChosenMethod, Expectation, choose_method, expect
from rcalign.fit.final import FinalTraining, calibrate, length, temperature_of, train_default, train_final, train_trees
from rcalign.fit.fit_page import render_page
from rcalign.fit.folds import EVALUATIONS, Fold, keep_left_out, left_out
from rcalign.fit.leaders import fine_tune_leaders, reserve_for_leaders
from rcalign.fit.portfolio import PORTFOLIO, Candidate, portfolio, recommended
from rcalign.fit.reading import RowSample, read_in_time, remember_sample
from rcalign.fit.search import Round, Search, candidate_json, start_seconds, workers_for
from rcalign.fit.timing import Clock
from rcalign.store.json_files import write_json
from rcalign.store.run_folder import RunFolder, read_config
from rcalign.sweeps.progress import duration
from rcalign.training.job import prepare_run
from rcalign.training.options import TrainOptions

SETS_FILE = "prediction-sets.json"
FEW_EVALUATIONS = 4  # of the model that is trained when time has run out
LESS = "What is expected is for all these steps: this model may do worse."
TOO_SMALL = "The budget was too small to compare methods: the recommended one is trained."
Say = Callable[[str], None]
Show = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Fitted:
    """Everything that ``fit`` found, as it is written to ``fit.json`` and shown on the page."""

    data: str
    folder: Path
    model: Path
    look: DataOverview
    candidate: Candidate
    reason: str
    choice: ChosenMethod | None
    expectation: Expectation | None
    table: Sequence[Mapping[str, Any]]
    boosting: str | None
    temperature: float
    calibration: Mapping[str, float] | None
    sets: PredictionSets | None
    set_sizes: Mapping[float, float]
    abstention: Sequence[Mapping[str, float]]
    commands: Sequence[tuple[str, str]]
    notes: Sequence[str]
    length: str
    budget: float
    seconds: float
    rounds: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    omitted: Sequence[str] = ()  # what the budget had no room for, in sentences
    final: FinalTraining | None = None
    sample: RowSample | None = None  # the rows that there was time to read; None: all

    @property
    def shortened(self) -> str:
        """What the budget had no room for in the final training, and what that means; empty if that is nothing."""
        sentence = "" if self.final is None else self.final.sentence
        return f"{sentence} {LESS}" if sentence and self.expectation is not None else sentence


@dataclass(frozen=True)
class PreparedFit:
    """What every part of a fit needs. data: how to find the dataset again. out: the folder to write."""

    dataset: Dataset
    data: str
    out: Path
    seen: DataOverview
    clock: Clock
    seed: int
    settings: Mapping[str, Any]
    sample: RowSample | None
    say: Say
    progress: bool

    @property
    def images(self) -> bool:
        return not isinstance(self.dataset.content, Arrays)

    @property
    def notes(self) -> list[str]:
        """The notes on the data but those on missing classes and on the sample, which are said elsewhere."""
        data = self.dataset
        said = partial_classes(data.classes, data.domains, data.y, data.domain)
        if self.sample is not None:
            said.append(sample_note(self.sample.rows, self.sample.of))
        return [note for note in data.notes if note not in said]


def run_pipeline(
    dataset: Dataset,
    data: str,
    out: Path,
    *,
    budget: float,
    rule: str = "mean",
    more: Sequence[str] = (),
    steps: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    workers: int | None = None,
    clock: Clock | None = None,
    sample: RowSample | None = None,
    say: Say = lambda line: None,
    show: Show = lambda done, planned, text: None,
    progress: bool = False,
) -> Fitted:
    """From a data set to a model in ``out / "model"`` and a page ``out / "report.html"``.

    data: how to find the data again. budget: seconds for everything; 0 trains the recommended method only. rule: choose
    by the "mean" or the "worst" domain. more: further algorithms to try. steps: of a full training, by default the
    preset's. settings: further options of training. workers: processes, by default one for each core. sample: the data
    are that sample already.
    """
    clock = clock or Clock(budget)
    if rule not in RULES:
        raise InputError(f"the rule is '{rule}', but 'mean' or 'worst' is expected.")
    if len(dataset.classes) < 2:
        raise InputError(f"'{dataset.name}' has one class only, '{dataset.classes[0]}': at least two are needed.")
    start = start_seconds(clock)
    settings = dict(settings or {})
    images = not isinstance(dataset.content, Arrays)
    candidates = portfolio(more, domains=len(dataset.domains), images=images, table=isinstance(dataset.content, Table))
    out.mkdir(parents=True, exist_ok=True)
    _claim(out, without_sample(data)[0], None if sample is not None else dataset.fingerprint, seed, settings)
    features = None
    if images:
        whole = dataset

        def read(rows: int | None) -> tuple[Dataset, np.ndarray]:
            part = whole if rows is None else sample_of(whole, rows)
            return part, _frozen_features(part, seed, settings, progress)

        found, sample = read_in_time(read, clock, say, out)
        dataset, features = found
        data = with_sample(data, None if sample is None else sample.rows)
    remember_sample(out, sample)
    folds = out  # the folder of folds and of what is known about them
    if sample is not None:
        folds = out / "samples" / str(sample.rows)
        folds.mkdir(parents=True, exist_ok=True)
        _claim(folds, without_sample(data)[0], dataset.fingerprint, seed, settings)
    seen = summarise_data(dataset, features, seed=seed)
    say(f"{seen.rows:,} rows, {len(seen.domains)} domain{'s'[: len(seen.domains) > 1]}, {len(seen.classes)} classes.")
    if sample is not None:
        say(sample.sentence)
    fit = PreparedFit(dataset, data, out, seen, clock, seed, settings, sample, say, progress)
    for sentence in (*seen.sentences, *fit.notes):
        say(f"- {sentence}")
    if budget == 0 or len(dataset.domains) < 2:
        return _default_only(fit, steps)
    full = steps or presets.choose_preset(None, arrays=True, freeze_backbone=False).steps
    if clock.left <= clock.closing:
        say(TOO_SMALL)
        return _default_only(fit, full, TOO_SMALL)
    search = Search(
        dataset,
        data,
        folds,
        clock,
        seed=seed,
        settings=settings,
        workers=workers or workers_for(clock.left, start),
        start_seconds=start,
        say=say,
        show=show,
        rule=rule,
    )
    with search.processes:
        rounds, scores = _compare(search, candidates, full, images)
    if not scores:
        needed = search.needed_budget(candidates, full)
        sentence = TOO_SMALL if needed is None else f"{TOO_SMALL} About {duration(needed)} would compare two."
        say(sentence)
        return _default_only(fit, full, sentence)
    return _finish(fit, rounds, scores, search)


def _compare(
    search: Search, candidates: Sequence[Candidate], full_steps: int, images: bool
) -> tuple[list[Round], dict[str, list[float]]]:
    """The rounds that the budget allows, and the scores of the methods that are chosen from."""
    if not search.probe(next(c for c in candidates if c.network)):
        return [], {}
    if images:
        search.reserve = reserve_for_leaders(search, candidates)
    rounds = search.run(candidates, full_steps)
    scores = rounds[-1].scores(search.domains) if rounds else {}
    if images and scores:
        for tuned in fine_tune_leaders(search, rounds[-1]):
            rounds.append(tuned)
            scores |= tuned.scores(search.domains)
    return rounds, scores


# --- parts -----------------------------------------------------------------------------------------------------------


def _claim(out: Path, data: str, fingerprint: str | None, seed: int, settings: Mapping[str, Any]) -> None:
    """The folder is this data's; another's is refused. fingerprint: None where not all rows were read."""
    file = out / "data.json"
    ours = {"seed": seed, "settings": json.loads(json.dumps(dict(settings))), "data": data}
    if fingerprint is not None:
        ours["fingerprint"] = fingerprint
    theirs: dict[str, Any] = {}
    if file.exists():
        theirs = json.loads(file.read_text())
        same = "fingerprint" if "fingerprint" in ours and "fingerprint" in theirs else "data"  # may have been moved
        for name in (same, "seed", "settings"):
            if name in theirs and ours[name] != theirs[name]:
                what = "data" if name == "fingerprint" else name
                raise InputError(f"'{out}' holds a fit with other {what}: choose another `out`, or remove that folder.")
    elif any(not item.name.startswith(".") for item in out.iterdir()):
        raise InputError(f"the output folder '{out}' holds other files: choose an empty or new one.")
    write_whole(file, json.dumps(theirs | ours).encode())


def _frozen_features(dataset: Dataset, seed: int, settings: Mapping[str, Any], progress: bool) -> np.ndarray:
    """Features (n, f) of all images under the backbone, kept in the cache, where the folds find them."""
    options = TrainOptions(algorithm=PORTFOLIO[0].algorithm, freeze_backbone=True, seed=seed, steps=1, **settings)
    made = prepare_run(options, dataset, splits=make_splits(dataset, "all", (), seed), progress=progress)
    return np.asarray(made.task.inputs.content)


def _finish(fit: PreparedFit, rounds: Sequence[Round], scores: Mapping[str, list[float]], search: Search) -> Fitted:
    dataset, clock, say, rule = fit.dataset, fit.clock, fit.say, search.rule
    by_name = {c.name: (c, done) for done in rounds for c in done.candidates}
    choice, expected = judge_methods(dataset, rounds, scores, rule)
    say(f"Chosen by the {RULE_WORDS[rule]}: {choice.reason}.")
    candidate, done = by_name[choice.method]
    folds = [done.folds[candidate.name, d] for d in dataset.domains]
    logits, y = _left_out(folds)
    temperature, errors, probabilities, sets = calibrated_sets(logits, y)
    model = fit.out / "model"
    training: dict[str, Any] = {"clock": clock, "seed": fit.seed, "settings": fit.settings, "progress": fit.progress}
    found = length(folds) if candidate.network else None
    how_long = "scikit-learn's own settings" if found is None else found.reason
    say(f"Training {candidate.name} on all {len(dataset):,} rows: {how_long}.")
    if found is None:
        shutil.rmtree(model, ignore_errors=True)
        final = train_trees(dataset, fit.data, model, **training)
    else:
        final = train_final(dataset, fit.data, candidate, found, model, **training)
    calibrate(model, temperature, sum(map(len, y.values())), errors)
    keep_left_out(folds, model)
    write_json(model / SETS_FILE, sets.to_json())
    boosting = _boosting_sentence(scores, {c.name for c, _ in by_name.values() if c.network}, choice)
    if boosting is not None:
        say(boosting)
    fitted = Fitted(
        data=fit.data,
        folder=fit.out,
        model=model,
        look=fit.seen,
        candidate=candidate,
        reason=choice.reason,
        choice=choice,
        expectation=expected,
        table=_table(rounds, dataset.domains, scores, rule),
        boosting=boosting,
        temperature=temperature,
        calibration=errors,
        sets=sets,
        set_sizes=_set_sizes(sets, probabilities),
        abstention=abstention(probabilities, y),
        commands=_commands(model, dataset),
        notes=[*fit.notes, *(f"{name} failed: {why}" for name, why in search.failed.items())],
        length=how_long,
        budget=clock.budget,
        seconds=clock.spent,
        rounds=[{"steps": r.steps, "methods": [c.name for c in r.candidates]} for r in rounds],
        omitted=search.omitted,
        final=final,
        sample=fit.sample,
    )
    _write(fitted)
    return fitted


def _default_only(fit: PreparedFit, steps: int | None, omitted: str | None = None) -> Fitted:
    dataset, clock, say = fit.dataset, fit.clock, fit.say
    candidate, why = recommended(len(fit.seen.counts), fit.seen.prior_shift, images=fit.images)
    say(f"Training {candidate.name} without comparing: {why}.")
    if len(dataset.domains) < 2:
        say("There is one domain only: nothing can be said of the next one.")
    model = fit.out / "model"
    final = train_default(
        dataset,
        fit.data,
        candidate,
        model,
        steps=steps,
        clock=clock,
        evaluations=EVALUATIONS if omitted is None else FEW_EVALUATIONS,
        seed=fit.seed,
        settings=fit.settings,
        progress=fit.progress,
    )
    result = RunFolder(model).result()
    assert result is not None
    fitted = Fitted(
        data=fit.data,
        folder=fit.out,
        model=model,
        look=fit.seen,
        candidate=candidate,
        reason=why,
        choice=None,
        expectation=None,
        table=(),
        boosting=None,
        temperature=result.temperature,
        calibration=None,
        sets=None,
        set_sizes={},
        abstention=(),
        commands=_commands(model, dataset),
        notes=fit.notes,
        length=f"{result.steps} steps, a fifth of each domain kept for validation",
        budget=clock.budget,
        seconds=clock.spent,
        omitted=() if omitted is None else (omitted,),
        final=final,
        sample=fit.sample,
    )
    _write(fitted)
    return fitted


def judge_methods(
    dataset: Dataset, rounds: Sequence[Round], scores: Mapping[str, Sequence[float]], rule: str
) -> tuple[ChosenMethod, Expectation]:
    """The method that is chosen, and what to expect of it on the next domain.

    scores: of the methods that are chosen from, the accuracy on each domain of the data set. rounds: those that they
    were trained in, for what they cost.
    """
    cost = {c.name: c.cost * done.steps for done in rounds for c in done.candidates}
    costs = {name: cost[name] for name in scores}
    rows = [int(n) for n in np.bincount(dataset.domain, minlength=len(dataset.domains))]
    return choose_method(scores, costs, rule), expect(scores, dataset.domains, costs, rule, rows=rows)


def calibrated_sets(
    logits: Mapping[str, np.ndarray], y: Mapping[str, np.ndarray]
) -> tuple[float, dict[str, float], dict[str, np.ndarray], PredictionSets]:
    """The temperature, the calibration errors, the probabilities with that temperature, and prediction sets from them.

    logits: domain -> (n, C), of the model that left it out. y: domain -> (n,) labels.
    """
    temperature, errors = temperature_of(logits, y)
    probabilities = {name: softmax(z / temperature) for name, z in logits.items()}
    return temperature, errors, probabilities, learn_sets(probabilities, y)


def _left_out(folds: Sequence[Fold]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    logits, labels = {}, {}
    for fold in folds:
        logits[fold.domain], labels[fold.domain] = left_out(fold)
    return logits, labels


def _set_sizes(sets: PredictionSets, probabilities: Mapping[str, np.ndarray]) -> dict[float, float]:
    """Level -> mean number of classes in a set, over domains that count the same."""
    levels = [level for level in (0.6, 0.7, 0.8, 0.9, 0.95) if level <= sets.highest + 1e-9] or [sets.highest]
    return {
        level: float(np.mean([sets.sets(p, level).sum(1).mean() for p in probabilities.values()])) for level in levels
    }


def _table(rounds: Sequence[Round], domains: Sequence[str], choices: Container[str], rule: str) -> list[dict[str, Any]]:
    """One row for each method, from the last round it was in, the best by the rule first.

    choices: the methods that were chosen from; others are behind them.
    """
    other = next(name for name in RULES if name != rule)
    rows: dict[str, dict[str, Any]] = {}
    for done in rounds:
        for candidate in done.candidates:
            results = done.outcomes[candidate.name]
            if not all(name in results for name in domains):
                continue
            accuracy = {name: results[name].accuracy for name in domains}
            rows[candidate.name] = {
                "method": candidate.name,
                "network": candidate.network,
                "steps": done.steps if candidate.network else None,
                "last": candidate.name in choices,
                "accuracy": accuracy,
                "mean": float(np.mean(list(accuracy.values()))),
                "worst": min(accuracy.values()),
                "balanced": float(np.mean([results[name].balanced for name in domains])),
                "seconds": float(np.mean([results[name].seconds for name in domains])),
            }
    return sorted(rows.values(), key=lambda row: (-row["last"], -row[rule], -row[other]))


def _boosting_sentence(scores: Mapping[str, Sequence[float]], networks: set[str], choice: ChosenMethod) -> str | None:
    """How gradient boosting did against the best network, said plainly; None where not both were tried."""
    value = np.mean if choice.rule == "mean" else np.min
    found = {name: float(value(values)) for name, values in scores.items()}
    own = [name for name in found if name in networks]
    trees = [name for name in found if name not in networks]
    if not own or not trees:
        return None
    best = max(own, key=lambda name: found[name])
    ahead = 100 * (found[trees[0]] - found[best])
    what = "Gradient boosting (scikit-learn's HistGradientBoosting, its own settings)"
    if trees[0] in choice.tied and best in choice.tied:
        return f"{what} and {best}, the best network, are tied by the {RULE_WORDS[choice.rule]} ({ahead:+.1f} points)."
    wins = f"wins: {ahead:.1f} points above" if ahead > 0 else f"does not win: {-ahead:.1f} points below"
    return f"{what} {wins} {best}, the best network, by the {RULE_WORDS[choice.rule]}."


def _commands(model: Path, dataset: Dataset) -> list[tuple[str, str]]:
    """What to do next: (command, what for)."""
    folder = shlex.quote(str(model))
    if isinstance(dataset.content, Table):
        new = "new.csv"
    elif isinstance(dataset.content, Arrays):
        new = "new.npz"
    else:
        new = "new_images/"
    return [
        (f"rcalign predict {folder} {new} --out predictions.csv", "classes with probabilities for new rows:"),
        (f"rcalign diagnose {folder} --target {new}", "is a new domain like these? No label is needed:"),
        (f"rcalign export {folder}", "an ONNX file for other programs:"),
    ]


def _write(fitted: Fitted) -> None:
    config = read_config(fitted.model)
    result = RunFolder(fitted.model).result()
    findings = [("What to expect.", fitted.expectation.sentence)] if fitted.expectation else []
    findings += [("Data.", sentence) for sentence in fitted.look.sentences]
    findings += [("Choice.", f"{fitted.reason[:1].upper()}{fitted.reason[1:]}.")]
    findings += [("Budget.", sentence) for sentence in (fitted.shortened, *fitted.omitted) if sentence]
    if fitted.sample is not None:
        findings += [("Rows.", fitted.sample.sentence)]
    keep_findings(fitted.model, findings)
    write_whole(fitted.folder / "model-card.md", model_card(config, result, fit_findings=findings).encode())
    write_whole(fitted.folder / "report.html", render_page(fitted).encode())
    write_json(fitted.folder / "fit.json", fit_summary(fitted))


def fit_summary(fitted: Fitted) -> dict[str, Any]:
    """Plain values of all that was found."""
    final = None
    if fitted.final is not None:
        final = {**dataclasses.asdict(fitted.final), "sentence": fitted.shortened}
    values: dict[str, Any] = {
        "data": fitted.data,
        "folder": str(fitted.folder),
        "model": str(fitted.model),
        "report": str(fitted.folder / "report.html"),
        "card": str(fitted.folder / "model-card.md"),
        "method": candidate_json(fitted.candidate),
        "rule": None if fitted.choice is None else fitted.choice.rule,
        "reason": fitted.reason,
        "look": dataclasses.asdict(fitted.look),
        "expectation": None if fitted.expectation is None else dataclasses.asdict(fitted.expectation),
        "table": list(fitted.table),
        "boosting": fitted.boosting,
        "temperature": fitted.temperature,
        "calibration": fitted.calibration,
        "coverage": None
        if fitted.sets is None
        else {"highest": fitted.sets.highest, "sizes": {f"{k:g}": v for k, v in fitted.set_sizes.items()}},
        "abstention": [
            {name: None if math.isnan(value) else value for name, value in row.items()} for row in fitted.abstention
        ],
        "commands": [command for command, _ in fitted.commands],
        "notes": list(fitted.notes),
        "length": fitted.length,
        "final_training": final,
        "rounds": list(fitted.rounds),
        "sample": None
        if fitted.sample is None
        else {"rows": fitted.sample.rows, "of": fitted.sample.of, "sentence": fitted.sample.sentence},
        "omitted": list(fitted.omitted),
        "budget": fitted.budget,
        "seconds": round(fitted.seconds, 1),
    }
    return values
