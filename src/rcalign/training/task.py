"""A training problem made ready: data split, network built, batches drawn, parts to evaluate."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn

from rcalign.algorithms.base import Algorithm, Network, seeded
from rcalign.data.augment import Augmentation
from rcalign.data.batches import Batches, evaluation_batches
from rcalign.data.cache import ImageStore, cache_root, open_images
from rcalign.data.column_encoder import encode_columns
from rcalign.data.columns import Encoding, Table, learn_encoding
from rcalign.data.picture import RECIPE
from rcalign.data.source import Arrays, Dataset
from rcalign.data.splits import Splits
from rcalign.distributed import Workers, any_worker, gathered_chunks, own_chunks
from rcalign.errors import InputError
from rcalign.evaluation.evaluate import BATCH, Part, evaluate_parts
from rcalign.models.backbones import NO_LAYERS, Backbone, Standardised, build_backbone
from rcalign.models.clip import TEMPLATES
from rcalign.models.features import computed_once
from rcalign.models.lora import add_lora
from rcalign.models.weights import weights_fingerprint
from rcalign.presets import Preset
from rcalign.types import DataSpec

M = TypeVar("M", bound=nn.Module)
DecodedContent = ImageStore | np.ndarray  # images by row, or float rows (n, ...)


@dataclass(frozen=True)
class Inputs:
    """Where network inputs come from: decoded images with their augmentation, or rows as they are."""

    content: DecodedContent
    augmentation: Augmentation | None
    device: torch.device

    def batches(self, rows: np.ndarray, size: int = BATCH) -> Iterator[Tensor]:
        """Network inputs of the given rows, in order, without augmentation."""
        yield from evaluation_batches(self.content, rows, size, self.augmentation, self.device)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one network input."""
        if self.augmentation is not None:
            return (3, self.augmentation.size, self.augmentation.size)
        assert isinstance(self.content, np.ndarray)
        return tuple(self.content.shape[1:])


@dataclass(frozen=True)
class Task:
    """dataset and splits; spec: what the algorithm may know; inputs; backbone: what it starts from."""

    dataset: Dataset
    splits: Splits
    spec: DataSpec
    inputs: Inputs
    backbone: Backbone
    frozen: nn.Module | None  # the image backbone whose features are the inputs
    augmentation: Augmentation | None  # of the images, also where a frozen backbone stands between
    encoding: Encoding | None = None  # of the columns of a table
    head: Tensor | None = None  # (C, h): what the head's weight starts from, with no bias; None: random
    row_weights: np.ndarray | None = None  # (n,): a row is drawn in proportion to its weight, within its domain

    @property
    def stored_size(self) -> int | None:
        """The side at which images are kept before they are resized for the network; None for arrays."""
        if self.augmentation is None or isinstance(self.dataset.content, Arrays):
            return None
        return storage_size(self.augmentation.size, self.dataset.content.native_size)

    def network(self, seed: int) -> Network:
        """A new network with the pretrained featurizer and a head that is random or from class names, on the device."""
        with seeded(seed):
            featurizer = copy.deepcopy(self.backbone.featurizer)  # once a run: each stage starts from the same weights
            network = Network(featurizer, self.backbone.features, self.spec.num_classes)
        if self.head is not None:
            with torch.no_grad():
                network.head.weight.copy_(self.head)
                network.head.bias.zero_()
        return placed(network, self.inputs.device)

    def batches(self, batch_size: int, seed: int, balanced: bool, workers: Workers = Workers()) -> Batches:  # noqa: B008
        """The training batches of a run, of which this process may be one of several workers."""
        return Batches(
            self.inputs.content,
            self.dataset.y,
            list(self.splits.train.values()),
            batch_size,
            seed,
            balanced=balanced,
            augmentation=self.inputs.augmentation,
            device=self.inputs.device,
            workers=workers,
            weights=self.row_weights,
            unlabelled=list(self.splits.unlabelled.values()),
        )

    def evaluate(self, model: Algorithm, progress: Progress | None = None) -> list[Part]:
        """Every domain's validation and test parts under the model as it is."""
        arguments = (model.predict, self.splits, self.dataset.y, self.inputs.batches, self.spec.num_classes)
        if progress is None:
            return evaluate_parts(*arguments)
        rows = sum(len(part) for parts in (self.splits.val, self.splits.test) for part in parts.values())
        bar = progress.add_task("evaluating", total=rows, figures="")
        parts = evaluate_parts(*arguments, advance=lambda n: progress.advance(bar, n))
        progress.remove_task(bar)
        return parts

    def training_features(self, model: Algorithm) -> tuple[Tensor, Tensor, Tensor]:
        """Features (n, h) of the whole training set in evaluation mode, labels and domain positions."""
        rows = np.concatenate(list(self.splits.train.values()))
        domain = np.concatenate([np.full(len(part), k) for k, part in enumerate(self.splits.train.values())])
        own = [model.embed(x) for x in self.inputs.batches(own_chunks(rows, BATCH))]
        device = self.inputs.device
        features = torch.cat(own) if own else torch.zeros(0, model.features_dim, device=device)
        features = gathered_chunks(features, len(rows), BATCH)
        return features, torch.from_numpy(self.dataset.y[rows]).to(device), torch.from_numpy(domain).to(device)


def placed(network: M, device: torch.device) -> M:
    """On the device; channels last where there are 2-D convolutions (half the backward pass on a CPU)."""
    network.to(device)
    if any(isinstance(part, nn.Conv2d) for part in network.modules()):
        network.to(memory_format=torch.channels_last)
    return network


def make_task(
    dataset: Dataset,
    splits: Splits,
    preset: Preset,
    *,
    backbone: str | None,
    weights: str | Path | None,
    freeze_backbone: bool,
    freeze_batch_norm: bool,
    image_size: int | None,
    device: torch.device,
    seed: int,
    lora: int | None = None,
    lora_alpha: float | None = None,
    linear_probe: bool = False,
    head: str | None = None,
    templates: Sequence[str] = (),
    progress: bool = False,
) -> Task:
    """Decodes images (once, into the cache), builds the backbone, and with a frozen one computes features (once).

    image_size: side of the network's input; None for arrays. lora, lora_alpha: see ``models.lora``. linear_probe: no
    network between the features of a frozen backbone and the head. head: "zero-shot" makes it from the class names and
    ``templates``, by the backbone's text tower; None: that where there is one, else "random".
    """
    frozen, augmentation, encoding, start = None, None, None, None
    with seeded(seed):  # a backbone without pretrained weights starts from the run's seed
        if isinstance(dataset.content, Arrays):
            x = dataset.content.x
            if isinstance(dataset.content, Table):
                encoding = learn_encoding(dataset.content, np.concatenate(list(splits.train.values())))
                x = encode_columns(encoding, dataset.content, f"'{dataset.name}'")
            inputs = Inputs(x, None, device)
            made = build_backbone(backbone, inputs.shape, weights=weights, freeze_batch_norm=freeze_batch_norm)
        else:
            assert image_size is not None
            store = open_images(dataset, storage_size(image_size, dataset.content.native_size), progress=progress)
            made = build_backbone(
                backbone, (3, image_size, image_size), weights=weights, freeze_batch_norm=freeze_batch_norm
            )
            augmentation = Augmentation(size=image_size, mean=made.mean, std=made.std, **preset.augmentation)  # type: ignore[arg-type]
            inputs = Inputs(store, augmentation, device)
            fits = made.text is not None and (linear_probe or not freeze_backbone)
            if head == "zero-shot" or (head is None and fits):
                start = _zero_shot_head(made, dataset.classes, templates)
            if lora is not None:
                add_lora(made.featurizer, lora, lora_alpha)
            if freeze_backbone:
                frozen = made.featurizer
                features = frozen_features(dataset, inputs, made, progress)
                inputs = Inputs(features, None, device)
                between = build_backbone(NO_LAYERS if linear_probe else None, (features.shape[1],))
                made = replace(between, weights=made.weights)
    if isinstance(made.featurizer, Standardised):
        rows = inputs.content[np.concatenate(list(splits.train.values()))]  # type: ignore[index]
        axes = (0, *range(2, rows.ndim))  # all but the feature or channel axis
        center, scale = rows.mean(axes, dtype=np.float64), rows.std(axes, dtype=np.float64)
        made.featurizer.standardise(torch.from_numpy(center).float(), torch.from_numpy(scale).float())
    counts = [np.bincount(dataset.y[rows], minlength=len(dataset.classes)) for rows in splits.train.values()]
    spec = DataSpec(
        dataset.classes,
        tuple(splits.train),
        tuple(tuple(int(n) for n in row) for row in counts),
        inputs.shape,
        tuple(splits.unlabelled),
    )
    made = replace(made, text=None)  # it has done its work, and may be as large as the image tower
    return Task(dataset, splits, spec, inputs, made, frozen, augmentation, encoding, start)


def _zero_shot_head(backbone: Backbone, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
    if backbone.text is None:
        raise InputError(
            "`head=zero-shot` makes the head from class names, which takes a backbone with a text tower: choose one of "
            "CLIP's such as clip:ViT-B-32, or leave `head` out."
        )
    return backbone.text.head(classes, templates or TEMPLATES)


def with_validation_rows(task: Task) -> Task:
    """The same task with the validation rows of the source domains among the training rows; they stay in val too."""
    splits = task.splits
    train = {name: np.union1d(rows, splits.val.get(name, rows[:0])) for name, rows in splits.train.items()}
    labels, classes = task.dataset.y, task.spec.num_classes
    counts = tuple(tuple(int(n) for n in np.bincount(labels[rows], minlength=classes)) for rows in train.values())
    return replace(task, splits=replace(splits, train=train), spec=replace(task.spec, counts=counts))


def storage_size(size: int, native: int | None) -> int:
    """The side at which images are kept: some room above the crop for photographs, the drawing's own size if known."""
    return native or round(size * 8 / 7)


def frozen_features(dataset: Dataset, inputs: Inputs, backbone: Backbone, progress: bool) -> np.ndarray:
    """Features (n, h) of every row under a backbone that is not trained: computed once, kept in the cache."""
    assert isinstance(inputs.content, ImageStore) and inputs.augmentation is not None
    # one file of an earlier version, whose key says less
    old = f"features-{dataset.fingerprint[:24]}-{weights_fingerprint(backbone.featurizer)}-{inputs.shape[-1]}.npy"
    found = None
    with contextlib.suppress(OSError, ValueError, EOFError):
        if inputs.content.form == "raw":  # there was no other form then
            found = np.load(cache_root() / old, mmap_mode="r", allow_pickle=False)
    lacking = any_worker(found is None)  # all workers of a run must go the same way
    if found is not None and not lacking:
        return found
    # what makes an input of an image: the same for image sizes that come to the same
    form = () if inputs.content.form == "raw" else (inputs.content.form,)
    pixels = (
        *form,
        inputs.content.size,
        inputs.augmentation.size,
        inputs.augmentation.mean,
        inputs.augmentation.std,
    )
    featurizer = placed(backbone.featurizer, inputs.device)
    key = (dataset.fingerprint, RECIPE, *pixels)
    return computed_once(featurizer, inputs.batches, len(dataset), key=key, progress=progress, batch_size=BATCH)
