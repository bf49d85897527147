"""From options and data to a run: every choice that is left open is made here, once, and then the run is trained."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import presets, registry
from rcalign.data import loading
from rcalign.data.source import Arrays, Dataset, with_sample, without_sample
from rcalign.data.sources import hub, named
from rcalign.data.splits import Splits
from rcalign.data.splits import split as make_splits
from rcalign.devices import resolve_device
from rcalign.distributed import first_alone, together
from rcalign.errors import InputError, unknown
from rcalign.extensions import import_modules
from rcalign.models.clip import check_templates
from rcalign.registry import RegisteredAlgorithm
from rcalign.store.names import file_name, short_data_name
from rcalign.store.run_folder import RunConfig, RunFolder, versions
from rcalign.training.callbacks import Callback, make_callbacks
from rcalign.training.options import TrainOptions
from rcalign.training.run import complete, hparams_of
from rcalign.training.task import Task, make_task


@dataclass(frozen=True)
class Job:
    """A run made ready. config: its options with every choice made. hparams: the hyperparameters that were asked for,
    some of which may be its first stage's."""

    task: Task
    config: RunConfig
    hparams: Mapping[str, Any]


def run_job(
    data: str | Path | Dataset,
    options: TrainOptions,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Trains one model in the run folder ``out`` and returns its result, as in ``result.json``, with the folder."""
    import_modules(options.imports)
    registry.get(options.algorithm)  # a wrong name, or a logger that is not installed, is noticed before data are read
    loggers: list[Callback] = []
    first_alone(lambda: loggers.extend(make_callbacks(options.log)))

    def ready() -> Job:
        dataset = data
        if not isinstance(dataset, Dataset):
            dataset = loading.load(dataset, skip_bad=options.skip_bad, progress=progress)
        if options.skip_bad and progress:
            for note in dataset.notes:
                print(note, file=sys.stderr)
        return prepare_run(
            options, dataset, data=None if isinstance(data, Dataset) else located(data), progress=progress
        )

    job = together(ready)
    folder = RunFolder(out if out is not None else default_folder(job.config.data, job.config))
    followers = [*loggers, *callbacks]
    _, result = complete(
        job.task, job.config, folder, job.hparams, resume=resume, progress=progress, callbacks=followers
    )
    return {**result.to_json(), "folder": str(folder.path)}


def prepare_run(
    options: TrainOptions,
    dataset: Dataset,
    *,
    data: str | None = None,
    splits: Splits | None = None,
    progress: bool = False,
) -> Job:
    """What a run needs: rows split, images decoded, the network's featurizer built, every open option decided.

    data: how to find the data again (by default the data set's name). splits: the rows of each part, where the caller
    divides them; by default those of the protocol.
    """
    entry = registry.get(options.algorithm)
    arrays = isinstance(dataset.content, Arrays)
    freeze_backbone = options.freeze_backbone or options.linear_probe
    preset = presets.choose_preset(options.preset, arrays=arrays, freeze_backbone=freeze_backbone)
    protocol = options.protocol or preset.protocol
    if splits is None:
        _check_test_domains(dataset, protocol, options.test_domains)
    _check_network_options(options, arrays)
    _check_label_smoothing(options, entry)
    values = hparams_of(entry, preset.name, options.hparams)
    if protocol == "adapt":
        registry.check_adapts(entry.name, entry.traits, vars(values))
    if splits is None:
        share = options.unlabelled_share
        splits = make_splits(dataset, protocol, options.test_domains, options.seed, unlabelled_share=share)
        if protocol == "lodo":  # those rows are only left out
            splits = dataclasses.replace(splits, unlabelled={})
    _check_training_part(dataset, splits)
    # the official split names the domains that are tested
    test_domains = tuple(splits.test) if protocol == "wilds" else options.test_domains
    device = torch.device(resolve_device(options.device))
    image_size = None
    if not isinstance(dataset.content, Arrays):
        image_size = options.image_size or preset.image_size or dataset.content.native_size or 224
    decided: dict[str, Any] = {
        "backbone": options.backbone or preset.backbone,
        "weights": _located_weights(options.weights),
        "freeze_backbone": freeze_backbone,
        "freeze_batch_norm": preset.freeze_batch_norm
        if options.freeze_batch_norm is None
        else options.freeze_batch_norm,
        "image_size": image_size,
        "lora": options.lora,
        "lora_alpha": options.lora_alpha,
        "linear_probe": options.linear_probe,
        "head": options.head,
        "templates": options.templates,
        "seed": options.seed,
    }
    task = make_task(dataset, splits, preset, device=device, progress=progress, **decided)
    _check_memory(task, values.batch_size)
    config = RunConfig(
        **{
            **{item.name: getattr(options, item.name) for item in dataclasses.fields(options)},
            **decided,
            "algorithm": entry.name,
            "protocol": protocol,
            "test_domains": test_domains,
            "preset": preset.name,
            "steps": options.steps or preset.steps,
            "evaluate_every": options.evaluate_every or preset.evaluate_every,
            "average": options.average or entry.traits.averaging(dataclasses.asdict(values)),
            "hparams": dataclasses.asdict(values),
            "device": device.type,
        },
        data=data or dataset.name,
        data_fingerprint=dataset.fingerprint,
        weights_fingerprint=task.backbone.weights,
        spec=task.spec,
        threads=torch.get_num_threads(),
        table=None if task.encoding is None else task.encoding.to_json(),
        stored_size=task.stored_size,
        stage_one=entry.traits.stage_one,
        versions=versions(),
    )
    return Job(task, config, options.hparams)


def located(data: str | Path) -> str:
    """How to find the data from any folder: a path as an absolute one; a name as it is.

    >>> located("emoji"), located("photos/") == os.path.abspath("photos")
    ('emoji', True)
    """
    text = os.fspath(data)
    if hub.is_address(text):
        return text
    whole, count = without_sample(text)
    if count is not None and not os.path.exists(text):
        return with_sample(located(whole), count)
    if isinstance(data, Path) or not named.is_name(text):
        path, mark, columns = (text, "", "") if os.path.exists(text) else text.partition("?")  # of a table
        return os.path.abspath(path) + mark + columns
    return re.sub(r"(?<=[:,])root=([^,]*)", lambda found: "root=" + os.path.abspath(found[1]), text)


def _located_weights(weights: str | None) -> str | None:
    return os.path.abspath(weights) if weights is not None and os.path.exists(weights) else weights


def default_folder(data: str, options: TrainOptions | RunConfig) -> Path:
    """runs/DATA-ALGORITHM-HELDOUT-PROTOCOL-seedS.

    >>> default_folder("emoji", TrainOptions(algorithm="erm", test_domains=("windows",))).name
    'emoji-ERM-windows-lodo-seed0'
    """
    name = short_data_name(data)
    protocol = options.protocol or presets.get_preset(options.preset or "default").protocol
    algorithm = registry.get(options.algorithm).name
    return Path("runs") / file_name(name, algorithm, *options.test_domains, protocol, f"seed{options.seed}")


def _check_test_domains(dataset: Dataset, protocol: str, test_domains: tuple[str, ...]) -> None:
    for name in test_domains:
        if name not in dataset.domains:
            raise unknown("domain", name, dataset.domains)
    if protocol == "mdlt" and test_domains:
        raise InputError("under `protocol=mdlt` every domain trains and is tested: leave `test_domains` out.")
    if protocol in ("lodo", "adapt") and not test_domains:
        listed = ", ".join(dataset.domains)
        raise InputError(f"`test_domains` is missing: name the domain to hold out, one of {listed}.")


def _check_network_options(options: TrainOptions, arrays: bool) -> None:
    """Options for images are not silently left out where the data are rows or series."""
    for_images = ("freeze_backbone", "image_size", "weights", "lora", "linear_probe", "head", "templates")
    for name in for_images if arrays else ():
        if getattr(options, name):
            raise InputError(f"`{name}` needs images, but the data are arrays: leave it out.")
    for name in ("freeze_backbone", "linear_probe") if options.lora is not None else ():
        if getattr(options, name):
            raise InputError(f"`lora` trains the backbone, which `{name}` leaves as it is: leave one of them out.")
    if options.head == "zero-shot" and options.freeze_backbone and not options.linear_probe:
        raise InputError(
            "`head=zero-shot` reads the backbone's own features, but `freeze_backbone` puts a network in between: "
            "give `linear_probe` instead of `freeze_backbone`."
        )
    check_templates(options.templates)
    if options.lora is None and options.lora_alpha is not None:
        raise InputError("`lora_alpha` is given without `lora`: give the rank of the changes, such as `lora=8`.")


def _check_label_smoothing(options: TrainOptions, entry: RegisteredAlgorithm) -> None:
    if options.label_smoothing and not entry.traits.cross_entropy:
        raise InputError(
            f"`label_smoothing` is {options.label_smoothing:g}, but the loss of {entry.name} is no cross-entropy with "
            "class labels: leave it out, or choose another algorithm."
        )


def _check_training_part(dataset: Dataset, splits: Splits) -> None:
    labels = {int(label) for rows in splits.train.values() for label in dataset.y[rows]}
    if len(labels) < 2:
        rows = sum(map(len, splits.train.values()))
        found = f"one class only, '{dataset.classes[labels.pop()]}'" if labels else "no class"
        raise InputError(
            f"the training part of '{dataset.name}' ({rows} rows) has {found}, but a classifier needs at least two: "
            "add rows of another class."
        )


def _check_memory(task: Task, batch_size: int) -> None:
    """A batch that cannot fit is refused before the run folder is made."""
    domains = task.spec.num_domains + len(task.spec.targets)
    needed = 4 * batch_size * domains * math.prod(task.spec.input_shape)
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > here:
        raise InputError(
            f"hyperparameter 'batch_size' is {batch_size}: the inputs of one step would take {needed / 2**30:,.0f} "
            f"GiB, but this machine has {here / 2**30:,.0f}: lower it."
        )
