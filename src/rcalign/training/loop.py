"""The training loop: steps, evaluations, checkpoints. A run that is killed at any instant goes on to the same bits."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from rcalign.algorithms.base import Algorithm
from rcalign.checkpoints import load_state, load_weights, save_state, save_weights
from rcalign.devices import keep_freed_memory
from rcalign.distributed import DividedRows, any_worker, first_alone, workers
from rcalign.errors import DivergedError
from rcalign.evaluation.evaluate import (
    Part,
    calibration,
    confusions,
    measure,
    summary,
    validation_accuracy,
    validation_loss,
)
from rcalign.interrupts import asked_to_stop
from rcalign.store.results import RunResult
from rcalign.store.run_folder import Record, RunConfig, RunFolder
from rcalign.training.averaging import Averaging, recompute_batch_norm
from rcalign.training.callbacks import Callbacks
from rcalign.training.fine_tuning import FineTuning
from rcalign.training.options import TUNING, described, differing
from rcalign.training.scaling import GradientScale
from rcalign.training.task import Task
from rcalign.training.time_limit import TimeLimit
from rcalign.training.tracking import Tracker
from rcalign.types import Batch

CHECK_EVERY = 10  # steps between looks at what would make a GPU or other workers wait


class Interrupted(Exception):
    """The user stopped the run between two steps; its state was saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


@dataclass
class HowFar:
    """How far a run is: everything beside the algorithm that resuming needs."""

    step: int = 0
    best_step: int = 0
    best_validation: float = -1.0
    seconds: float = 0.0


@dataclass(frozen=True)
class FirstTraining:
    """What a training that repeats another with more rows takes over from it, having no rows left to choose by.

    steps: how long to train. validation_losses: by step, of the first training's evaluations.
    """

    steps: int
    validation_losses: Mapping[int, float]


def run_loop(
    model: Algorithm,
    task: Task,
    folder: RunFolder,
    config: RunConfig,
    *,
    averaging: Averaging | None = None,
    tracker: Tracker | None = None,
    callbacks: Callbacks | None = None,
    resume: bool = False,
    progress: bool = False,
    repeats: FirstTraining | None = None,
    time_limit: TimeLimit | None = None,
) -> RunResult:
    """Trains until ``config.steps``, chooses the checkpoint by validation accuracy, and returns the result.

    repeats: train as long as that says instead, observe its validation losses, and choose the last weights.
    time_limit: end with fewer steps once it is reached.
    """
    here = workers()
    callbacks = callbacks or Callbacks((), folder)
    tuning = _fine_tuning(model, config)
    scale = GradientScale(model.optimizers.values()) if config.precision == "fp16" else None
    at = _restore(model, folder, averaging, scale) if resume and folder.state_file.exists() else HowFar()
    first_alone(lambda: folder.keep_records_until(at.step))
    if tracker is not None and here.is_first:
        tracker.keep_until(at.step)
    # pieces of a loss that is a mean over rows are simply added up; others need all features before their loss
    adds_up = model.traits.row_losses and here.size == 1 and model.hparams.dropout == 0
    pieces = 1 if adds_up else config.accumulate
    domains = model.spec.num_domains + len(model.spec.targets)
    divided = [
        DividedRows(network, model.hparams.batch_size, pieces, scale, domains=domains) for network in model.row_networks
    ]
    batches = task.batches(model.hparams.batch_size, config.seed, model.traits.balanced_sampling, here)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    autocast = torch.autocast(task.inputs.device.type, half, enabled=half is not None)
    on_cpu = task.inputs.device.type == "cpu"
    images = task.inputs.augmentation is not None
    if on_cpu and images:  # rows of numbers never need blocks that large
        keep_freed_memory()
    until = config.steps if repeats is None else repeats.steps
    if averaging is not None and at.step == 0:
        averaging.take_start(model.state_dict())
    logs: Mapping[str, Tensor | float] = {}
    first_alone(lambda: callbacks.start(config, model))
    started = time.perf_counter() - at.seconds
    with callbacks, asked_to_stop() as asked, _bar(progress and here.is_first) as bar:
        line = bar.add_task(config.algorithm, total=until, completed=at.step, figures="")
        # drawing rows of numbers takes less than handing them over from another thread
        for batch in batches.iterate(at.step, until, workers=1 if images or not on_cpu else 0):
            if averaging is not None and averaging.finished:
                break
            if model.refresh_due():
                model.refresh(*task.training_features(model))
            with autocast, contextlib.ExitStack() as stack:
                for part in divided:
                    stack.enter_context(part)
                if tuning is not None:
                    tuning.before(at.step)
                in_pieces = adds_up and config.accumulate > 1
                logs = model.step_in_pieces(batch, config.accumulate) if in_pieces else model.step(batch)
            at.step += 1
            last = at.step == until
            due = at.step % config.evaluate_every == 0 or last
            # reading a number makes the host wait for a GPU: there only now and then
            if (due or on_cpu or at.step % CHECK_EVERY == 0) and not math.isfinite(float(logs["loss"])):
                raise DivergedError(_divergence(model, batch, at.step, task, folder))
            if averaging is not None:
                averaging.update(model.state_dict())
            if tracker is not None and here.is_first:
                tracker.record(model, at.step)
            callbacks.step(at.step, logs, due)
            bar.update(line, completed=at.step)
            stopped = asked.is_set()
            over = time_limit is not None and time_limit.reached(at.step)
            if here.size > 1:  # all workers stop after the same step
                look = at.step % CHECK_EVERY == 0
                stopped = look and any_worker(stopped)
                over = time_limit is not None and look and any_worker(over)
            if due:
                at.seconds = time.perf_counter() - started
                record = _evaluate(model, task, config, at, logs, bar)
                loss = record.logs["validation_loss"] if repeats is None else repeats.validation_losses[at.step]
                model.observe(loss)
                if averaging is not None:
                    averaging.observe(loss)
                best = record.validation > at.best_validation if repeats is None else last
                if best:
                    at.best_validation, at.best_step = record.validation, at.step
                if here.is_first:
                    folder.append(record)
                    callbacks.evaluation(record)
                    if best:
                        save_weights(folder.best_file, model.state_dict())
                    if config.keep == "every":
                        save_weights(folder.step_file(at.step), model.state_dict())
                    _save(model, folder, averaging, scale, at)
                bar.update(line, figures=f"validation {100 * record.validation:.1f} %")
            elif (stopped or over) and here.is_first:
                at.seconds = time.perf_counter() - started
                _save(model, folder, averaging, scale, at)
            if stopped and not last:
                raise Interrupted(at.step)
            if over:
                break
        at.seconds = time.perf_counter() - started
        result = _finish(model, task, folder, config, averaging, callbacks, at, bar)
        callbacks.end(result)
        return result


def _fine_tuning(model: Algorithm, config: RunConfig) -> FineTuning | None:
    """What the run changes about its optimizers; None where that is nothing."""
    options = {name: getattr(config, name) for name, about in described().items() if about.option.group == TUNING}
    if not differing(options):
        return None
    return FineTuning(model, steps=config.steps, **options)


def _finish(
    model: Algorithm,
    task: Task,
    folder: RunFolder,
    config: RunConfig,
    averaging: Averaging | None,
    callbacks: Callbacks,
    at: HowFar,
    bar: Progress,
) -> RunResult:
    """The last weights, the chosen ones, and their figures on the test parts."""
    first = workers().is_first
    if first:
        save_weights(folder.last_file, model.state_dict())
    averaged = averaging.averaged() if averaging is not None else None
    evaluated = at.best_step > 0  # not if time was over before the first evaluation
    if first and not evaluated:
        save_weights(folder.best_file, model.state_dict())
    if averaged is not None:
        model.load_state_dict(averaged)
        batches = task.batches(model.hparams.batch_size, config.seed, model.traits.balanced_sampling)
        recompute_batch_norm(model, (batch.x for batch in batches.iterate(0, config.steps)))
        if first:
            save_weights(folder.best_file, model.state_dict())
    any_worker(False)  # the others wait until the first has written
    model.load_state_dict(load_weights(folder.best_file))
    parts = task.evaluate(model, bar)
    if first and (averaged is not None or not evaluated):
        # a row of its own: selection between runs must see what would be used
        record = make_record(parts, config, at.step, {}, averaged=averaged is not None)
        folder.append(record)
        callbacks.evaluation(record)
    chosen = "best validation accuracy" if averaged is None else f"averaged ({config.average}): {averaging.note}"  # type: ignore[union-attr]
    if averaged is None and not evaluated:
        chosen = f"the last: time was over after {at.step} of {config.steps} steps"
    at.best_step = at.best_step if averaged is None and evaluated else at.step
    return run_result(parts, config, at, chosen, task.dataset.shots, model.traits.batch_dependent)


def run_result(
    parts: Sequence[Part],
    config: RunConfig,
    at: HowFar,
    weights: str,
    shots: tuple[int, int],
    batch_dependent: bool = False,
) -> RunResult:
    """The result of a run from the outputs of its chosen weights.

    weights: how they were chosen, in words. shots: the data set's limits of many and few. batch_dependent: a prediction
    depends on the other rows of its batch.
    """
    spec = config.spec
    calibrated = calibration(parts, spec.domains)
    return RunResult(
        algorithm=config.algorithm,
        seed=config.seed,
        protocol=config.protocol,
        preset=config.preset,
        data=config.data,
        test_domains=list(config.test_domains),
        **summary(parts, list(spec.domains), spec.count_matrix.numpy(), shots, calibrated["temperature"]),
        calibration=calibrated,
        validation=validation_accuracy(parts, spec.domains, config.protocol),
        steps=at.step,
        seconds=round(at.seconds, 2),
        best_step=at.best_step,
        weights=weights,
        batch_dependent=batch_dependent,
        confusion=confusions(parts, spec.num_classes),
        classes=list(spec.classes),
    )


def _evaluate(
    model: Algorithm, task: Task, config: RunConfig, at: HowFar, logs: Mapping[str, Tensor | float], bar: Progress
) -> Record:
    return make_record(task.evaluate(model, bar), config, at.step, logs)


def make_record(
    parts: Sequence[Part], config: RunConfig, step: int, logs: Mapping[str, Tensor | float], averaged: bool = False
) -> Record:
    """One evaluation of a run."""
    sources = config.spec.domains
    return Record(
        step=step,
        loss=float(logs["loss"]) if "loss" in logs else None,
        metrics=measure(parts),
        validation=validation_accuracy(parts, sources, config.protocol),
        averaged=averaged,
        logs={
            **{name: float(value) for name, value in logs.items() if name != "loss"},
            "validation_loss": validation_loss(parts, sources),
        },
    )


def _save(
    model: Algorithm, folder: RunFolder, averaging: Averaging | None, scale: GradientScale | None, at: HowFar
) -> None:
    state = {
        "model": model.training_state(),
        "averaging": None if averaging is None else averaging.state(),
        "scale": None if scale is None else scale.state(),
        "at": dict(vars(at)),
    }
    save_state(folder.state_file, state)


def _restore(model: Algorithm, folder: RunFolder, averaging: Averaging | None, scale: GradientScale | None) -> HowFar:
    state = load_state(folder.state_file)
    model.load_training_state(state["model"])
    if averaging is not None:
        averaging.load(state["averaging"])
    if scale is not None:
        scale.load(state["scale"])
    return HowFar(**state["at"])


def _divergence(model: Algorithm, batch: Batch, step: int, task: Task, folder: RunFolder) -> str:
    """Which step and domain went wrong, and where the last good state is."""
    bad = []
    for name, part in zip(task.spec.domains, batch.per_domain(), strict=True):
        own = part.x[workers().positions(1, len(part))]
        if not torch.isfinite(model.predict(own)).all():
            bad.append(name)
    where = f"domain {', '.join(bad)}" if 0 < len(bad) < len(task.spec.domains) else "every domain"
    saved = (
        f"the last checkpoint is {folder.state_file}" if folder.state_file.exists() else "no checkpoint was saved yet"
    )
    return (
        f"the loss of step {step} is not a number (logits of {where} are affected); {saved}: lower learning_rate or "
        "the weights of the method's own terms in `hparams`, and look for wrong values in the data."
    )


def _bar(progress: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
        console=Console(stderr=True),
        disable=not progress,
    )
