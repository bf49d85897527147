"""The final model: the chosen method on all rows of all domains, as long and averaged as in the folds.

There is no row left to choose a checkpoint by, nor to calibrate on: the folds say both. Its probabilities are
calibrated on predictions for domains that were left out, which is what a new domain is like; calibrating on training
domains makes a model too sure of itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data.source import Dataset
from rcalign.data.splits import split as make_splits
from rcalign.evaluation.metrics import TEMPERATURES, expected_calibration_error, fit_temperature, softmax
from rcalign.fit.folds import EVALUATIONS, Fold, evaluate_every
from rcalign.fit.portfolio import Candidate
from rcalign.store.results import RunResult
from rcalign.store.run_folder import RunFolder
from rcalign.training.job import prepare_run
from rcalign.training.options import TrainOptions
from rcalign.training.run import complete

FEWEST_FINAL_STEPS = 10


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


def train_final(
    dataset: Dataset,
    data: str,
    candidate: Candidate,
    found: Length,
    out: Path,
    *,
    seed: int,
    settings: Mapping[str, Any],
    progress: bool,
) -> RunResult:
    """Trains on every row."""
    options = TrainOptions(
        algorithm=candidate.algorithm,
        average=candidate.average,
        hparams=candidate.hparams,
        steps=found.steps,
        evaluate_every=found.steps,  # one evaluation, at the end: no checkpoint is chosen by rows that were trained on
        seed=seed,
        freeze_backbone=candidate.frozen,
        **settings,
    )
    splits = make_splits(dataset, "all", (), seed)
    made = prepare_run(options, dataset, data=data, splits=splits, progress=progress)
    config = dataclasses.replace(made.config, protocol="all")
    folder = RunFolder(out)
    resume = folder.config_file.exists()
    _, result = complete(
        made.task,
        config,
        folder,
        made.hparams,
        resume=resume,
        progress=progress,
        average_from=found.average_from,
    )
    folder.state_file.unlink(missing_ok=True)
    return result


def train_default(
    dataset: Dataset,
    data: str,
    candidate: Candidate,
    out: Path,
    *,
    steps: int | None,
    evaluations: int = EVALUATIONS,
    seed: int,
    settings: Mapping[str, Any],
    progress: bool,
) -> RunResult:
    """Trains one method on all domains, a fifth of each kept to choose the checkpoint and the temperature by."""
    options = TrainOptions(
        algorithm=candidate.algorithm,
        average=candidate.average,
        hparams=candidate.hparams,
        steps=steps,
        evaluate_every=None if steps is None else evaluate_every(steps, evaluations),
        seed=seed,
        freeze_backbone=candidate.frozen,
        **settings,
    )
    splits = make_splits(dataset, "lodo", (), seed)
    made = prepare_run(options, dataset, data=data, splits=splits, progress=progress)
    folder = RunFolder(out)
    resume = folder.config_file.exists()
    return complete(made.task, made.config, folder, made.hparams, resume=resume, progress=progress)[1]


def calibrate(out: Path, temperature: float, rows: int, errors: Mapping[str, float]) -> None:
    """Writes the temperature of left-out predictions into the result of the final model."""
    folder = RunFolder(out)
    result = folder.result()
    assert result is not None
    found = {"temperature": temperature, "rows": rows, "from_left_out": True, "ece": {"test": dict(errors)}}
    folder.finish(dataclasses.replace(result, calibration=found))
