"""A whole run in its folder: the first stage where an algorithm has one, the model, its averaging, the loop."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.checkpoints import load_weights, save_weights, shortened
from rcalign.distributed import agree, check_division, first_alone, together, workers
from rcalign.errors import InputError
from rcalign.registry import RegisteredAlgorithm
from rcalign.store.results import RunResult
from rcalign.store.run_folder import STAGE_ONE, WITH_VALIDATION, RunConfig, RunFolder
from rcalign.training.averaging import Averaging, make_averaging
from rcalign.training.callbacks import Callback, Callbacks
from rcalign.training.loop import FirstTraining, HowFar, make_record, run_loop, run_result
from rcalign.training.task import Task, with_validation_rows
from rcalign.training.time_limit import TimeLimit
from rcalign.training.tracking import Tracker


def hparams_of(entry: RegisteredAlgorithm, preset: str, options: Mapping[str, Any]) -> BaseHparams:
    """The hyperparameters of a run; options may also name fields of the first stage, which are left out here."""
    kind = entry.algorithm.Hparams
    if entry.traits.stage_one is not None:
        own = spaces.fields_of(kind)
        first = spaces.fields_of(registry.get(entry.traits.stage_one).algorithm.Hparams)
        options = {name: value for name, value in options.items() if name in own or name not in first}
    return spaces.defaults(kind, preset, **options)


def complete(
    task: Task,
    config: RunConfig,
    folder: RunFolder,
    options: Mapping[str, Any],
    *,
    resume: bool = False,
    progress: bool = False,
    average_from: int | None = None,
    callbacks: Sequence[Callback] = (),
    keeps_folder: bool = True,
    time_limit: TimeLimit | None = None,
) -> tuple[Algorithm, RunResult]:
    """Trains, resumes or finds finished the run of a folder: the model and its result.

    options: the hyperparameters that were asked for, some of which may be the first stage's. The model of a run that
    was found finished has its first weights, not its last. average_from: average the weights from that step on,
    instead of as the configuration says. callbacks: follow the run, on the first worker only. keeps_folder: whether
    the folder stays when the run has ended. time_limit: end with fewer steps once it is reached; a run that an earlier
    limit ended goes on unless this one is over already.
    """
    callbacks = callbacks if workers().is_first else ()
    # build before the folder exists: a wrong option must leave nothing behind
    model = make_model(task, config)
    check_division(model.hparams.batch_size, config.accumulate)
    averaging = _averaging(config, model)
    if average_from is not None:
        names = [name for name, _ in model.named_parameters()]
        averaging = make_averaging("swa", start=average_from, parameters=names)
    tracker = None if config.track_bound is None else Tracker(task, folder, config.track_bound)
    _begin(folder, config, resume)
    if progress and workers().is_first:
        for note in model.notes:
            print(f"note: {note}", file=sys.stderr)
    try:
        result = folder.result()
        cut = time_limit is not None and result is not None and cut_by_time(folder, config, result)
        if result is None or (cut and time_limit is not None and not time_limit.is_over):
            if config.stage_one is not None and not folder.state_file.exists():
                half = None if time_limit is None else time_limit.first_half()
                model.start_from(_stage_one(config, task, folder, options, progress, callbacks, keeps_folder, half))
            result = run_loop(
                model,
                task,
                folder,
                config,
                averaging=averaging,
                tracker=tracker,
                callbacks=Callbacks(callbacks, folder, kept=keeps_folder, goes_on=config.stage_one is not None),
                resume=resume,
                progress=progress,
                time_limit=time_limit,
            )
            if config.train_on_validation:
                model, result = _train_again(model, result, task, folder, config, progress, callbacks, keeps_folder)
            if workers().is_first:
                folder.finish(result)
            finished = averaging is not None and averaging.finished
            cut = time_limit is not None and not finished and cut_by_time(folder, config, result)
        if workers().is_first:
            _tidy(folder, config, keep_state=cut)
    except Exception as error:
        # by name: importing those takes seconds
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise InputError(
            f"torch.compile does not work here ({why}): install a C++ compiler, or leave `compile` out."
        ) from None
    finally:
        folder.release()
    return model, result


def cut_by_time(folder: RunFolder, config: RunConfig, result: RunResult) -> bool:
    """Whether a time limit ended a run before all its steps, so that it can go on from its state."""
    return result.steps < config.steps and folder.state_file.exists()


def _tidy(folder: RunFolder, config: RunConfig, keep_state: bool) -> None:
    """Leaves on the disk what a finished run keeps."""
    again = RunFolder(folder.path / WITH_VALIDATION)
    if again.best_file.exists():  # after the result was written: a kill in between must not mix the two trainings
        os.replace(again.best_file, folder.best_file)
        again.drop_what_is_not_kept("none")
    folder.drop_what_is_not_kept(config.keep, keep_state)
    first = RunFolder(folder.path / STAGE_ONE)
    if first.config_file.exists():
        first.drop_what_is_not_kept(config.keep)
    if config.kept_precision == "bf16":
        for file in set(folder.path.rglob("*.safetensors")) - {folder.state_file}:
            save_weights(file, {name: shortened(value) for name, value in load_weights(file).items()})


def _train_again(
    model: Algorithm,
    result: RunResult,
    task: Task,
    folder: RunFolder,
    config: RunConfig,
    progress: bool,
    callbacks: Sequence[Callback],
    keeps_folder: bool,
) -> tuple[Algorithm, RunResult]:
    """The run repeated with the validation rows of the source domains among the training rows.

    It starts from the same weights and is as long as the first training was to its chosen weights, with the averaging
    and the learning rates that the first one's validation losses led to. The figures on validation rows, and the
    temperature, stay those of the first training, since the second has seen these rows.
    """
    first = task.evaluate(model)
    losses = {row.step: row.logs["validation_loss"] for row in folder.records() if not row.averaged}
    repeats = FirstTraining(result.best_step if config.average is None else result.steps, losses)
    more = with_validation_rows(task)
    again = RunFolder(folder.path / WITH_VALIDATION)
    more_config = dataclasses.replace(config, spec=more.spec, train_on_validation=False, keep="best")
    model = make_model(more, more_config)
    if config.stage_one is not None:
        stage_one = RunFolder(folder.path / STAGE_ONE)
        part = registry.get(config.stage_one).traits.recipe_part
        model.start_from(load_weights(stage_one.last_file if part else stage_one.best_file))
    resume = again.config_file.exists()
    _begin(again, more_config, resume)
    try:
        averaging = _averaging(config, model)
        second = run_loop(
            model,
            more,
            again,
            more_config,
            averaging=averaging,
            callbacks=Callbacks(callbacks, again, kept=keeps_folder, goes_on=True),
            resume=resume,
            progress=progress,
            repeats=repeats,
        )
    finally:
        again.release()
    sources = set(task.spec.domains)
    unseen = [part for part in first if part.part == "val" and part.domain in sources]
    parts = [*unseen, *(part for part in task.evaluate(model) if part.part == "test" or part.domain not in sources)]
    at = HowFar(step=repeats.steps, best_step=repeats.steps, seconds=result.seconds + second.seconds)
    if workers().is_first:
        folder.keep_records_until(config.steps)
        folder.append(make_record(parts, config, at.step, {}, averaged=True))
    words = f"{result.weights}; then trained again for {repeats.steps} steps with the validation rows"
    return model, run_result(parts, config, at, words, task.dataset.shots, model.traits.batch_dependent)


def _begin(folder: RunFolder, config: RunConfig, resume: bool) -> None:
    """Claims the folder; where several workers share the run, the first does, and the others must see it.

    A run that is refused here leaves no configuration behind, so that it can be started again in the same folder.
    """
    agree("the code, the data or an option", json.dumps([config.identity(), config.versions], sort_keys=True))
    found = folder.config_file.exists()

    def seen() -> None:
        if not folder.config_file.exists():
            raise InputError(
                f"the run folder '{folder.path}' is not there on this machine: `out` must lie on a disk that all "
                "workers share."
            )

    first_alone(lambda: folder.begin(config, resume))
    try:
        together(seen)
    except InputError:
        if workers().is_first and not found:
            folder.config_file.unlink()
        folder.release()
        raise


def _stage_one(
    config: RunConfig,
    task: Task,
    folder: RunFolder,
    options: Mapping[str, Any],
    progress: bool,
    callbacks: Sequence[Callback],
    keeps_folder: bool,
    time_limit: TimeLimit | None,
) -> dict[str, Tensor]:
    """Runs (or resumes, or finds finished) the first stage in a folder of its own; returns its chosen weights."""
    assert config.stage_one is not None
    entry = registry.get(config.stage_one)
    known = spaces.fields_of(entry.algorithm.Hparams)
    values = hparams_of(entry, config.preset, {name: value for name, value in options.items() if name in known})
    first = RunFolder(folder.path / STAGE_ONE)
    first_config = dataclasses.replace(
        config,
        algorithm=entry.name,
        hparams=dataclasses.asdict(values),
        average=entry.traits.averaging(dataclasses.asdict(values)),
        stage_one=entry.traits.stage_one,
    )
    resume = first.config_file.exists()
    _begin(first, first_config, resume)
    try:
        if first.result() is None:
            model = make_model(task, first_config)
            averaging = _averaging(first_config, model)
            result = run_loop(
                model,
                task,
                first,
                first_config,
                averaging=averaging,
                callbacks=Callbacks(callbacks, first, kept=keeps_folder),
                resume=resume,
                progress=progress,
                time_limit=time_limit,
            )
            if workers().is_first:
                first.finish(result)
    finally:
        first.release()
    # a pretext task has no labels to choose a checkpoint by: its last weights are what it learned
    return load_weights(first.last_file if entry.traits.recipe_part else first.best_file)


def make_model(task: Task, config: RunConfig) -> Algorithm:
    algorithm = registry.get(config.algorithm).algorithm
    hparams = spaces.build_hparams(algorithm.Hparams, config.hparams)
    model = algorithm(task.spec, task.network(config.seed), hparams, seed=config.seed)
    if task.head is not None and not (
        isinstance(model.head, nn.Linear) and torch.equal(model.head.weight.cpu(), task.head)
    ):
        raise InputError(
            f"{algorithm.name} has a head of its own, which cannot start from class names: give `head=random`, or "
            "choose another algorithm."
        )
    if config.compile:
        model.featurizer.compile()  # in place: the names of weights stay as they are
    return model


def _averaging(config: RunConfig, model: Algorithm) -> Averaging | None:
    """The run's weight averaging, over the parameters only; an algorithm that always averages sets its options.

    SWA leaves out the first quarter of the run.
    """
    if config.average is None:
        return None
    by_kind: dict[str, dict[str, Any]] = {"swa": {"start": config.steps // 4}, "beta": {"steps": config.steps}}
    options = by_kind.get(config.average, {})
    if config.average == model.traits.averages:
        options = {**options, **model.averaging_options()}
    return make_averaging(config.average, parameters=[name for name, _ in model.named_parameters()], **options)
