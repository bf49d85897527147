"""Many short runs in one process, on features or activations that were computed once.

A run here makes the same steps as ``rcalign train`` with the same seed and chooses its checkpoint by the same rule; it
keeps no folder, evaluates the test parts once, at the end, and takes weight averages beside the one training: SWAD
changes no step, so that a method and the same method with SWAD are one run with two outcomes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rcalign import presets, registry, spaces
from rcalign.algorithms.base import Algorithm, seeded
from rcalign.data import loading, source
from rcalign.data.augment import Augmentation
from rcalign.data.cache import cache_root, open_images
from rcalign.data.splits import split
from rcalign.evaluation.evaluate import Part, evaluate_parts, summary, validation_accuracy, validation_loss
from rcalign.models.backbones import Standardised, build_backbone
from rcalign.training.averaging import make_averaging
from rcalign.training.run import hparams_of
from rcalign.training.task import Inputs, Task, frozen_features, make_task, storage_size

COMPONENTS = 128


def features_task(data: str, protocol: str, held_out: Sequence[str], seed: int, size: int | None) -> Task:
    """Rows of numbers as they are; images as the main components of their features under the frozen backbone."""
    dataset = loading.load(data)
    images = not isinstance(dataset.content, source.Arrays)
    if images:
        dataset = replace(dataset, content=source.Arrays(_features(dataset, size)))
    task = make_task(
        dataset,
        split(dataset, protocol, held_out, seed),
        presets.get_preset("arrays"),
        backbone=None,
        weights=None,
        freeze_backbone=False,
        freeze_batch_norm=True,
        image_size=None,
        device=torch.device("cpu"),
        seed=seed,
    )
    return _reduced(task, seed) if images and task.inputs.shape[0] > COMPONENTS else task


def _features(dataset: source.Dataset, size: int | None) -> np.ndarray:
    """(n, h) of every image, kept in a file: data sets that share their images would else be decoded in turns."""
    assert not isinstance(dataset.content, source.Arrays)
    size = size or dataset.content.native_size or 224
    file = cache_root() / f"results-{dataset.fingerprint[:24]}-{size}.npy"
    if not file.exists():
        with seeded(0):
            backbone = build_backbone(None, (3, size, size))
        augmentation = Augmentation(size=size, mean=backbone.mean, std=backbone.std)  # type: ignore[arg-type]
        store = open_images(dataset, storage_size(size, dataset.content.native_size))
        inputs = Inputs(store, augmentation, torch.device("cpu"))
        np.save(file, frozen_features(dataset, inputs, backbone, progress=True), allow_pickle=False)
    return np.load(file, allow_pickle=False)


def _reduced(task: Task, seed: int) -> Task:
    """The task on the first principal components of its standardised inputs, of the source domains' rows.

    It makes a run four times cheaper. All components keep the scale that they have, so that the small ones stay small.
    """
    features = np.asarray(task.inputs.content)
    known = np.isin(task.dataset.domain, [task.dataset.domains.index(name) for name in task.spec.domains])
    center, scale = features[known].mean(0), features[known].std(0)
    unit = (features - center) / np.where(scale > 0, scale, 1)
    _, vectors = np.linalg.eigh(np.cov(unit[known].T.astype(np.float64)))
    content = (unit @ vectors[:, : -COMPONENTS - 1 : -1]).astype(np.float32)
    with seeded(seed):
        backbone = build_backbone(None, (COMPONENTS,))
    assert isinstance(backbone.featurizer, Standardised)
    backbone.featurizer.standardise(torch.zeros(COMPONENTS), torch.full((COMPONENTS,), float(content[known].std())))
    spec = replace(task.spec, input_shape=(COMPONENTS,))
    return replace(task, spec=spec, inputs=replace(task.inputs, content=content), backbone=backbone)


def train(
    task: Task,
    algorithm: str,
    options: Mapping[str, Any],
    *,
    steps: int,
    every: int,
    seed: int,
    preset: str = "arrays",
    averages: Sequence[str] = ("swad",),
    after_step: Callable[[Algorithm, int], None] | None = None,
) -> dict[str | None, dict[str, Any]]:
    """The outcome of one run, by averaging: None is the best checkpoint on validation, no average."""
    entry = registry.get(algorithm)
    values = hparams_of(entry, preset, options)
    model = entry.algorithm(task.spec, task.network(seed), values, seed=seed)
    if entry.traits.stage_one is not None:
        first = registry.get(entry.traits.stage_one)
        known = spaces.fields_of(first.algorithm.Hparams)
        theirs = {name: value for name, value in options.items() if name in known}
        found = train(task, first.name, theirs, steps=steps, every=every, seed=seed, preset=preset, averages=())
        model.start_from(found[None]["weights"])
    return _fit(model, task, steps, every, seed, averages, after_step)


def _fit(
    model: Algorithm,
    task: Task,
    steps: int,
    every: int,
    seed: int,
    averages: Sequence[str],
    after_step: Callable[[Algorithm, int], None] | None,
) -> dict[str | None, dict[str, Any]]:
    started = time.perf_counter()
    beside = {name: _averaging(name, model, steps) for name in averages}
    batches = task.batches(model.hparams.batch_size, seed, model.traits.balanced_sampling)
    best, best_step, best_weights = -1.0, 0, None
    curve = []
    for step in range(steps):
        if model.refresh_due():
            model.refresh(*task.training_features(model))
        model.step(batches.at(step))
        if after_step is not None:
            after_step(model, step + 1)
        for average in beside.values():
            average.update(model.state_dict())
        if (step + 1) % every and step + 1 < steps:
            continue
        parts = _validation(model, task)
        accuracy = validation_accuracy(parts, task.spec.domains)
        curve.append(round(accuracy, 4))
        for average in beside.values():
            average.observe(validation_loss(parts, task.spec.domains))
        if accuracy > best:
            best, best_step = accuracy, step + 1
            best_weights = copy.deepcopy(model.state_dict())
    seconds = time.perf_counter() - started
    chosen: dict[str | None, Any] = {None: best_weights}
    chosen |= {name: average.averaged() for name, average in beside.items()}
    found: dict[str | None, dict[str, Any]] = {}
    for name, weights in chosen.items():
        model.load_state_dict(weights)
        parts = task.evaluate(model)
        figures = summary(parts, list(task.spec.domains), model.spec.count_matrix.numpy(), task.dataset.shots)
        found[name] = {
            "validation": validation_accuracy(parts, task.spec.domains),
            "best_step": best_step if name is None else steps,
            "accuracy": figures["accuracy"],
            "balanced": figures["balanced"],
            "shots": figures["shots"],
            "ece": figures["ece"],
            "curve": curve,
            "seconds": round(seconds, 1),
            "weights": weights,
        }
    return found


def _averaging(name: str, model: Algorithm, steps: int) -> Any:
    options: dict[str, Any] = {"start": steps // 4} if name == "swa" else {}
    if name.startswith("ema"):
        name, _, momentum = name.partition(":")
        options = {"momentum": float(momentum or 0.99)}
    return make_averaging(name, parameters=[key for key, _ in model.named_parameters()], **options)


def _validation(model: Algorithm, task: Task) -> list[Part]:
    """The validation parts of the training domains."""
    known = {name: task.splits.val[name] for name in task.spec.domains}
    return evaluate_parts(
        model.predict,
        replace(task.splits, val=known, test={}),
        task.dataset.y,
        task.inputs.batches,
        task.spec.num_classes,
    )
