"""The final model: the chosen method on all rows of all domains, as long and averaged as in the folds.

There is no row left to choose a checkpoint by, nor to calibrate on: the folds say both. Its probabilities are
calibrated on predictions for domains that were left out, which is what a new domain is like; calibrating on training
domains makes a model too sure of itself.

It must end within the budget. What its steps take is measured when it begins; if not all of them fit, as many are
planned as do, so that a learning-rate schedule and the averaging of weights come to their end with it. If the machine
then is slower still, it ends after the step at which time is up.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.checkpoints import save_weights
from rcalign.data.batches import evaluation_batches
from rcalign.data.source import Dataset
from rcalign.data.splits import split as make_splits
from rcalign.evaluation.evaluate import BATCH, evaluate_parts
from rcalign.evaluation.metrics import TEMPERATURES, expected_calibration_error, fit_temperature, softmax
from rcalign.fit.boosting import fit_trees
from rcalign.fit.folds import EVALUATIONS, Fold, evaluate_every
from rcalign.fit.portfolio import PORTFOLIO, Candidate, stages_cost
from rcalign.fit.timing import Clock, TrainingCosts, measure_costs
from rcalign.models.boosted_trees import ABOUT
from rcalign.store.run_folder import RunConfig, RunFolder, read_config
from rcalign.training.job import Job, prepare_run
from rcalign.training.loop import HowFar, run_result
from rcalign.training.options import TrainOptions
from rcalign.training.run import complete, cut_by_time

FEWEST_FINAL_STEPS = 10  # that are made whatever the time
FEWEST_DEFAULT_STEPS = 40  # likewise, of a model that nothing was compared for: on features or a table they take little
SLACK = 1.15  # how much longer than measured a step may take
BATCH_NORM_INPUTS = 500  # batches, at most, from which averaged weights have their statistics (``training.averaging``)
MORE_FINAL = 1.5  # times as many steps as an earlier call had time for, from which it is worth training again


@dataclass(frozen=True)
class Length:
    """How long to train. average_from: the step from which weights are averaged; None: not averaged."""

    steps: int
    average_from: int | None
    reason: str


def length(folds: Sequence[Fold]) -> Length:
    """What the finished folds of a method say: the median of their best steps, or of their averaged spans."""
    best, spans = [], []
    for fold in folds:
        result = RunFolder(fold.folder).result()
        weights = "" if result is None else result.weights
        every = evaluate_every(fold.steps)
        span = re.search(r"evaluations (\d+) to (\d+)", weights)
        if span:
            spans.append(((int(span[1]) - 1) * every + 1, min(fold.steps, int(span[2]) * every)))
        elif "averaged" in weights:
            spans.append((1 + 3 * fold.steps // 4, fold.steps))
        best.append(fold.steps if result is None else result.best_step or fold.steps)
    if spans:
        first, last = (int(np.median([span[k] for span in spans])) for k in (0, 1))
        last = max(last, FEWEST_FINAL_STEPS)
        first = min(first, last)
        return Length(last, first, f"{last} steps, weights averaged from step {first}: the medians over the folds")
    steps = max(FEWEST_FINAL_STEPS, int(np.median(best)))
    return Length(steps, None, f"{steps} steps: the median over the folds of the step that validation chose")


def temperature_of(logits: Mapping[str, np.ndarray], y: Mapping[str, np.ndarray]) -> tuple[float, dict[str, float]]:
    """The temperature that left-out predictions ask for, and the calibration error before and after.

    Each domain counts the same: of larger ones as many rows are taken as the smallest has, but at least 50.
    """
    smallest = max(50, min(len(labels) for labels in y.values()))
    rng = np.random.default_rng(0)
    taken = {
        name: rng.permutation(len(labels))[:smallest] if len(labels) > smallest else np.arange(len(labels))
        for name, labels in y.items()
    }
    z = np.concatenate([logits[name][rows] for name, rows in taken.items()])
    labels = np.concatenate([y[name][rows] for name, rows in taken.items()])
    temperature = fit_temperature(z, labels)
    if temperature in TEMPERATURES:
        temperature = 1.0
    errors = {
        "before": expected_calibration_error(softmax(z), labels),
        "after": expected_calibration_error(softmax(z / temperature), labels),
    }
    return temperature, errors


@dataclass(frozen=True)
class FinalTraining:
    """How long the final model was trained.

    wanted: steps by the folds, or of the default. planned: those of them that fitted into the time when it began. made:
    those of the model. cut: whether time was up before all that were planned. unit: what is counted.
    """

    wanted: int
    planned: int
    made: int
    cut: bool
    unit: str = "steps"

    @property
    def sentence(self) -> str:
        """What the budget had no room for; empty if that is nothing."""
        if self.cut:
            which = "" if self.planned == self.wanted else f" (of {self.wanted:,} that were wanted)"
            return (
                f"The final training was stopped after {self.made:,} of {self.planned:,} {self.unit}{which} by the "
                "budget. The same command with a larger budget goes on from there."
            )
        if self.planned < self.wanted:
            return (
                f"The final training had {self.planned:,} of {self.wanted:,} {self.unit}: more did not fit into the "
                "budget. The same command with a larger budget trains longer."
            )
        return ""


def train_final(
    dataset: Dataset,
    data: str,
    candidate: Candidate,
    found: Length,
    out: Path,
    *,
    clock: Clock,
    seed: int,
    settings: Mapping[str, Any],
    progress: bool,
) -> FinalTraining:
    """Trains on every row, as long as the folds say or the time allows."""
    # one evaluation, at the end: no checkpoint is chosen by rows that were trained on
    options = _options(candidate, found.steps, found.steps, seed, settings)
    splits = make_splits(dataset, "all", (), seed)
    job = prepare_run(options, dataset, data=data, splits=splits, progress=progress)
    job = dataclasses.replace(job, config=dataclasses.replace(job.config, protocol="all"))
    return train_in_time(job, out, clock, average_from=found.average_from, progress=progress)


def train_trees(
    dataset: Dataset,
    data: str,
    out: Path,
    *,
    clock: Clock,
    seed: int,
    settings: Mapping[str, Any],
    progress: bool = False,
) -> FinalTraining:
    """Fits gradient boosting on every row, as far as there is time, and leaves a run folder as a network does."""
    folder = RunFolder(out)
    begun = time.perf_counter()
    splits = make_splits(dataset, "all", (), seed)
    # of a network's configuration, what is true of trees too: the data, its classes and counts
    options = TrainOptions(algorithm=PORTFOLIO[0].algorithm, seed=seed, **settings)
    made = prepare_run(options, dataset, data=data, splits=splits, progress=progress)
    limited = (lambda: clock.left - clock.closing) if clock.budget > 0 else None
    found = fit_trees(dataset, np.arange(len(dataset)), seed, limited)
    most = int(found.settings["max_iter"])
    config = dataclasses.replace(
        made.config,
        algorithm=ABOUT.name,
        protocol="all",
        hparams=dict(found.settings),
        steps=found.rounds,
        evaluate_every=found.rounds,
        average=None,
        spec=dataclasses.replace(made.config.spec, input_shape=(found.x.shape[1],)),
        table=found.encoding.to_json(),
    )
    folder.begin(config, resume=folder.config_file.exists())
    try:
        save_weights(folder.best_file, found.trees.state_dict())
        parts = evaluate_parts(
            found.trees.predict,
            splits,
            dataset.y,
            lambda rows: evaluation_batches(found.x, rows, BATCH),
            len(dataset.classes),
        )
        at = HowFar(found.rounds, found.rounds, seconds=time.perf_counter() - begun)
        which = f"{found.rounds} of {most}" if found.cut else f"all {found.rounds}"
        folder.finish(run_result(parts, config, at, f"{which} rounds of trees", dataset.shots))
    finally:
        folder.release()
    return FinalTraining(most, most, found.rounds, found.cut, unit="rounds of trees")


def train_default(
    dataset: Dataset,
    data: str,
    candidate: Candidate,
    out: Path,
    *,
    steps: int | None,
    clock: Clock,
    evaluations: int = EVALUATIONS,
    seed: int,
    settings: Mapping[str, Any],
    progress: bool,
) -> FinalTraining:
    """Trains one method on all domains, a fifth of each kept to choose the checkpoint and the temperature by."""
    every = None if steps is None else evaluate_every(steps, evaluations)
    options = _options(candidate, steps, every, seed, settings)
    splits = make_splits(dataset, "lodo", (), seed)
    job = prepare_run(options, dataset, data=data, splits=splits, progress=progress)
    return train_in_time(job, out, clock, fewest=FEWEST_DEFAULT_STEPS, progress=progress)


def _options(
    candidate: Candidate, steps: int | None, every: int | None, seed: int, settings: Mapping[str, Any]
) -> TrainOptions:
    return TrainOptions(
        algorithm=candidate.algorithm,
        average=candidate.average,
        hparams=candidate.hparams,
        steps=steps,
        evaluate_every=every,
        seed=seed,
        freeze_backbone=candidate.frozen,
        **settings,
    )


def train_in_time(
    job: Job,
    out: Path,
    clock: Clock,
    *,
    fewest: int = FEWEST_FINAL_STEPS,
    average_from: int | None = None,
    progress: bool = False,
) -> FinalTraining:
    """Trains a run in its folder, goes on with it, or finds it finished, as many of its steps as the clock allows.

    fewest: steps that are made whatever the time. average_from: average the weights from that step on.

    What another run left in the folder is removed. A run that an earlier call had to shorten begins again if there is
    time for clearly more steps.
    """
    folder, config = RunFolder(out), job.config
    wanted = config.steps
    before = _same_before(out, config)
    found = folder.result()
    if before is not None and before.steps == wanted and found is not None and not cut_by_time(folder, before, found):
        return FinalTraining(wanted, wanted, found.steps, cut=False)
    planned, limit = wanted, None
    if clock.budget > 0:
        costs = measure_costs(job)
        assert costs is not None
        averages = config.average is not None or average_from is not None
        after = clock.closing + _last_evaluations(job, costs, averages)
        planned = min(wanted, max(fewest, steps_in(clock.left - after, job, costs)))
        limit = clock.limit(after, min(wanted, fewest))
    every = config.evaluate_every
    if planned < wanted:
        every = evaluate_every(planned, max(1, wanted // every))
    if before is not None and before.steps < wanted and planned >= min(wanted, MORE_FINAL * before.steps):
        shutil.rmtree(out)
    elif before is not None:
        planned, every = before.steps, before.evaluate_every
    # whatever goes by the number of steps comes to its end with the last one
    config = dataclasses.replace(config, steps=planned, evaluate_every=every)
    if average_from is not None and planned < wanted:
        average_from = max(1, round(average_from * planned / wanted))
    _, result = complete(
        job.task,
        config,
        folder,
        job.hparams,
        resume=folder.config_file.exists(),
        progress=progress,
        average_from=average_from,
        time_limit=limit,
    )
    return FinalTraining(wanted, planned, result.steps, cut_by_time(folder, config, result))


def steps_in(seconds: float, job: Job, costs: TrainingCosts) -> int:
    """The steps of a run that fit into a time, at most all of them; none or fewer if there is no time."""
    config = job.config
    evaluations = max(1, config.steps // config.evaluate_every)
    for_steps = seconds - costs.start - evaluations * costs.row * _evaluated_rows(job)
    per_step = SLACK * costs.step * stages_cost(config.algorithm)
    if for_steps >= config.steps * per_step:
        return config.steps
    return int(for_steps / per_step)


def _evaluated_rows(job: Job) -> int:
    splits = job.task.splits
    return sum(map(len, (*splits.val.values(), *splits.test.values())))


def _last_evaluations(job: Job, costs: TrainingCosts, averages: bool) -> float:
    """The seconds of a run after its last step: two evaluations, and batch-norm statistics of averaged weights."""
    rows = 2 * _evaluated_rows(job)
    if averages and not job.config.freeze_batch_norm:
        rows += costs.rows_in_step * min(BATCH_NORM_INPUTS, job.config.steps)
    return SLACK * costs.row * rows


def _same_before(out: Path, config: RunConfig) -> RunConfig | None:
    """The run that a folder holds, if it is this one, perhaps shorter; any other run is removed."""
    if not (out / "config.json").exists():
        return None
    before = read_config(out)
    same = dataclasses.replace(before, steps=config.steps, evaluate_every=config.evaluate_every)
    if before.steps <= config.steps and _identity(same) == _identity(config):
        return before
    shutil.rmtree(out)
    return None


def _identity(config: RunConfig) -> Any:
    return json.loads(json.dumps(config.identity()))


def calibrate(out: Path, temperature: float, rows: int, errors: Mapping[str, float]) -> None:
    """Writes the temperature of left-out predictions into the result of the final model."""
    folder = RunFolder(out)
    result = folder.result()
    assert result is not None
    found = {"temperature": temperature, "rows": rows, "from_left_out": True, "ece": {"test": dict(errors)}}
    folder.finish(dataclasses.replace(result, calibration=found))
