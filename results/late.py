"""Fine-tuning the last stages of a network on activations of the first ones, which are computed once.

The first stages are frozen, so their output for an image and a draw of its augmentation never changes: it is kept for
the image itself (evaluation) and for a few augmented views of it (training draws one of them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rcalign import presets
from rcalign.algorithms.base import seeded
from rcalign.data import loading, source
from rcalign.data.augment import Augmentation
from rcalign.data.batches import Batches
from rcalign.data.cache import cache_root, open_images
from rcalign.data.source import Dataset
from rcalign.data.splits import split
from rcalign.models.backbones import Backbone, ImageFeaturizer, build_backbone
from rcalign.training.task import Inputs, Task, make_task, placed, storage_size
from rcalign.types import Batch, DataSpec

VIEWS = 2  # augmented views of each image
FIRST = 5  # of seven stages


class _Views(Batches):
    """Training batches of activations: a random view of each row."""

    views: np.ndarray  # (VIEWS, n, channels, height, width)

    def at(self, step: int, out: Tensor | None = None) -> Batch:
        batch = super().at(step)
        rows = batch.index.cpu().numpy()
        view = np.random.default_rng([self._seed, step, 0x1A]).integers(len(self.views), size=len(rows))
        return replace(batch, x=torch.from_numpy(self.views[view, rows]))


@dataclass(frozen=True)
class LateTask(Task):
    """A task whose inputs are activations; ``views`` are those of the augmented images."""

    views: np.ndarray = field(kw_only=True)

    def batches(self, batch_size: int, seed: int, balanced: bool, *_: Any, **__: Any) -> Batches:
        found = _Views(
            self.inputs.content,  # type: ignore[arg-type]
            self.dataset.y,
            list(self.splits.train.values()),
            batch_size,
            seed,
            balanced=balanced,
            device=self.inputs.device,
        )
        found.views = self.views
        return found


def sample(dataset: Dataset, most: int) -> Dataset:
    """At most so many rows of each domain, the same share of each class, always the same ones."""
    rng = np.random.default_rng(0)
    kept = []
    for k in range(len(dataset.domains)):
        rows = rng.permutation(np.flatnonzero(dataset.domain == k))
        share = min(1.0, most / len(rows))
        for c in range(len(dataset.classes)):
            of_class = rows[dataset.y[rows] == c]
            kept.append(of_class[: round(share * len(of_class))])
    return dataset.select(np.sort(np.concatenate(kept)))


def whole_task(data: str, held_out: Sequence[str], seed: int, *, size: int | None, most: int) -> Task:
    """The same images for the whole backbone."""
    dataset = sample(loading.load(data), most)
    return make_task(
        dataset,
        split(dataset, "lodo", held_out, seed),
        presets.get_preset("default"),
        backbone=None,
        weights=None,
        freeze_backbone=False,
        freeze_batch_norm=True,
        image_size=size,
        device=torch.device("cpu"),
        seed=seed,
    )


def late_task(
    data: str, held_out: Sequence[str], seed: int, *, size: int | None, most: int, first: int = FIRST
) -> LateTask:
    """first: the first stage that is trained, counted from 0; the ones before it and the stem are frozen."""
    dataset = sample(loading.load(data), most)
    backbone, clean, views = _activations(dataset, first, size)
    splits = split(dataset, "lodo", held_out, seed)
    counts = [np.bincount(dataset.y[rows], minlength=len(dataset.classes)) for rows in splits.train.values()]
    spec = DataSpec(
        dataset.classes, tuple(splits.train), tuple(tuple(int(n) for n in row) for row in counts), clean.shape[1:]
    )
    return LateTask(dataset, splits, spec, Inputs(clean, None, torch.device("cpu")), backbone, None, None, views=views)


def _activations(dataset: Dataset, first: int, size: int | None) -> tuple[Backbone, np.ndarray, np.ndarray]:
    """The network from stage ``first`` on; activations (n, ...) of images and (VIEWS, n, ...) of augmented views."""
    assert not isinstance(dataset.content, source.Arrays)
    size = size or dataset.content.native_size or 224
    with seeded(0):
        made = build_backbone(None, (3, size, size))
    network: Any = made.featurizer.network  # timm's EfficientNet: a stem, stages, a last convolution
    stages = list(network.blocks.children())
    file = cache_root() / f"activations-{dataset.fingerprint[:24]}-{made.weights}-{size}-{first}-{VIEWS}.npy"
    if not file.exists():
        early = nn.Sequential(network.conv_stem, network.bn1, *stages[:first])
        np.save(file, _computed(dataset, placed(early, torch.device("cpu")).eval(), made, size), allow_pickle=False)
    kept = np.load(file, allow_pickle=False)
    for name in ("conv_stem", "bn1"):
        setattr(network, name, nn.Identity())
    network.blocks = nn.Sequential(*(nn.Identity() if k < first else part for k, part in enumerate(stages)))
    late = Backbone(ImageFeaturizer(network), made.features, made.weights)
    return late, kept[0], kept[1:]


@torch.inference_mode()
def _computed(dataset: Dataset, early: nn.Module, made: Backbone, size: int) -> np.ndarray:
    assert not isinstance(dataset.content, source.Arrays)
    store = open_images(dataset, storage_size(size, dataset.content.native_size))
    options = presets.get_preset("default").augmentation
    augmentation = Augmentation(size=size, mean=made.mean, std=made.std, **options)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    found: list[list[Tensor]] = [[] for _ in range(1 + VIEWS)]
    for rows in np.array_split(np.arange(len(dataset.y)), max(1, len(dataset.y) // 64)):
        images = store.take(rows)
        found[0].append(early(augmentation.evaluate(images)))
        for view in found[1:]:
            view.append(early(augmentation.train(images, rng)))
    return np.stack([torch.cat(view).contiguous().numpy() for view in found])
