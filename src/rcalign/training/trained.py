"""A finished (or interrupted) run as a model that predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, Classifier, Network, seeded
from rcalign.checkpoints import load_weights
from rcalign.data.augment import Augmentation
from rcalign.data.batches import evaluation_batches
from rcalign.data.cache import open_images
from rcalign.data.column_encoder import ColumnEncoder, encode_columns
from rcalign.data.columns import Encoding, Table
from rcalign.data.source import Arrays, Dataset
from rcalign.errors import InputError
from rcalign.evaluation.evaluate import BATCH
from rcalign.extensions import import_modules
from rcalign.models import boosted_trees
from rcalign.models.backbones import NO_LAYERS, Standardised, build_backbone
from rcalign.models.boosted_trees import BoostedTrees
from rcalign.models.lora import merged
from rcalign.presets import get_preset
from rcalign.registry import Traits
from rcalign.store.results import RunResult
from rcalign.store.run_folder import RunConfig, RunFolder, read_config
from rcalign.training.task import placed, storage_size
from rcalign.types import DataSpec

MEMBERS = "members"  # the folder of an ensemble's runs


class Ensemble(Classifier):
    """Several trained models as one, whose logits are the logarithm of the mean of their calibrated probabilities.

    Inputs (n, ...) are those of the first member; a member whose pixels have another mean and deviation gets them
    rescaled. Features are those of all members, side by side.
    """

    def __init__(self, members: Sequence[TrainedModel]) -> None:
        super().__init__()
        first = members[0].algorithm
        self.name: str = first.name
        self.spec: DataSpec = members[0].config.spec
        self.head = nn.Identity()
        self.traits: Traits = Traits(
            batch_dependent=any(member.algorithm.traits.batch_dependent for member in members),
            balanced_sampling=first.traits.balanced_sampling,
        )
        networks = [member.algorithm for member in members]
        self._members_shares = [one.assumed_shares if isinstance(one, Classifier) else None for one in networks]
        self.networks = nn.ModuleList(_Member(member, members[0].augmentation) for member in members)

    @property
    def assumed_shares(self) -> Tensor | None:
        """The mean of the members', if all of them say."""
        found = [shares for shares in self._members_shares if shares is not None]
        return torch.stack(found).mean(0) if len(found) == len(self._members_shares) else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (n, ...) -> features (n, h) and logits (n, C)."""
        outputs = [network(x) for network in self.networks]
        logs = torch.stack([torch.log_softmax(logits, 1) for _, logits in outputs])
        return torch.cat([features for features, _ in outputs], 1), torch.logsumexp(logs, 0) - math.log(len(outputs))


class _Member(nn.Module):
    """A model of an ensemble: inputs of the first one -> its own features and calibrated logits."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: TrainedModel, first: Augmentation | None) -> None:
        super().__init__()
        self.frozen: nn.Module = nn.Identity() if model.frozen is None else model.frozen
        self.algorithm, self.temperature = model.algorithm, model.temperature
        own = model.augmentation
        self.rescales = own is not None and first is not None and (own.mean, own.std) != (first.mean, first.std)
        if self.rescales:
            assert own is not None and first is not None
            (mean, std), (to_mean, to_std) = (
                (torch.tensor(part.mean)[:, None, None], torch.tensor(part.std)[:, None, None]) for part in (first, own)
            )
            self.register_buffer("scale", (std / to_std).to(model.device))
            self.register_buffer("shift", ((mean - to_mean) / to_std).to(model.device))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x * self.scale + self.shift if self.rescales else x
        features, logits = self.algorithm(self.frozen(x))
        return features, logits / self.temperature


@dataclass(frozen=True)
class TrainedModel:
    """config: how it was trained. algorithm: with the chosen weights, or trees. frozen: the untrained backbone before
    it, if any.

    augmentation: what turns images (n, s, s, 3) uint8 into inputs; None for arrays. temperature: what validation says
    logits should be divided by before they are probabilities; calibrated: it was fitted, and is not just 1. finished:
    the run came to its end, so that the weights are those that validation chose among all.
    """

    config: RunConfig
    algorithm: Algorithm | Ensemble | BoostedTrees
    frozen: nn.Module | None
    augmentation: Augmentation | None
    device: torch.device
    temperature: float = 1.0
    calibrated: bool = False
    finished: bool = True

    @property
    def notes(self) -> list[str]:
        """What whoever uses the predictions should know of the model, in sentences."""
        notes = []
        if not self.finished:
            notes.append(
                "The run is not finished: these are the best weights so far; go on with 'rcalign train --resume'."
            )
        if not self.calibrated:
            notes.append("The probabilities are not calibrated: a confidence says little about how often it is right.")
        if self.config.train_on_validation:
            notes.append(
                "The model was also trained on the validation rows of its source domains: what is measured on them now "
                "is too good."
            )
        return notes

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Network inputs (n, ...) -> logits (n, C)."""
        return self.algorithm.predict(x if self.frozen is None else self.frozen(x))

    @property
    def stored_size(self) -> int:
        """The side to which an image file is brought before ``augmentation``, as it was in training."""
        assert self.augmentation is not None
        return self.config.stored_size or storage_size(self.augmentation.size, None)

    def inputs(self, dataset: Dataset, rows: np.ndarray) -> Iterator[Tensor]:
        """Batches of network inputs of a data set's rows, if they are what the model was trained on."""
        content = dataset.content
        if isinstance(content, Arrays) != (self.augmentation is None):
            wanted = "images" if self.augmentation is not None else "arrays"
            raise InputError(f"the model was trained on {wanted}, but the data are not: give data of the same kind.")
        if isinstance(content, Table) or self.encoding is not None:
            content = Arrays(self._encoded(content, dataset.name))
        if isinstance(content, Arrays):
            shape, expected = tuple(content.x.shape[1:]), self.config.spec.input_shape
            if shape != expected:
                raise InputError(
                    f"samples have shape {shape}, but the model reads {expected}: give data of that shape."
                )
            return evaluation_batches(content, rows, BATCH, None, self.device)
        assert self.augmentation is not None
        # as in training, whatever this data set's own size is
        size = self.config.stored_size or storage_size(self.augmentation.size, content.native_size)
        store = open_images(dataset, size)
        return evaluation_batches(store, rows, BATCH, self.augmentation, self.device)

    @property
    def encoding(self) -> Encoding | None:
        """How columns of a table become inputs; None for a model of arrays or images."""
        return None if self.config.table is None else Encoding.from_json(self.config.table)

    def _encoded(self, content: object, name: str) -> np.ndarray:
        """Inputs (n, f) of a table's raw columns."""
        encoding = self.encoding
        if encoding is None:
            raise InputError(f"'{name}' is a table, but the model was trained on arrays: give an .npz of that shape.")
        if not isinstance(content, Table):
            columns = ", ".join(column.name for column in encoding.columns)
            raise InputError(f"the model reads the columns {columns}: give a .csv or .parquet file that has them.")
        if isinstance(self.algorithm, BoostedTrees):  # trees split numbers and categories as they are
            return encoding.read(content, f"'{name}'")
        return encode_columns(encoding, content, f"'{name}'")

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Network inputs (n, ...) -> what the head reads (n, h); of trees, the columns as a network would read them."""
        if isinstance(self.algorithm, BoostedTrees):
            assert self.encoding is not None
            return ColumnEncoder(self.encoding)(x)
        return self.algorithm.embed(x if self.frozen is None else self.frozen(x))

    @torch.no_grad()
    def untrained_features(self, x: Tensor) -> Tensor | None:
        """Network inputs (n, ...) -> what the first trained layer reads (n, f), on which rows of training and new rows
        have equal footing: features of a frozen backbone, rows of numbers, encoded columns of a table.

        None where layers that read pixels or series are trained, and for an ensemble.
        """
        if isinstance(self.algorithm, BoostedTrees):
            return self.features(x)
        if isinstance(self.algorithm, Ensemble):
            return None
        read = x if self.frozen is None else self.frozen(x)
        if read.ndim != 2:
            return None
        featurizer = self.algorithm.featurizer
        return (read - featurizer.center) / featurizer.scale if isinstance(featurizer, Standardised) else read

    def probabilities(self, x: Tensor) -> np.ndarray:
        """Calibrated probabilities (n, C) of one batch of inputs: in [0, 1], rows that sum to one."""
        return torch.softmax(self.logits(x).float() / self.temperature, 1).cpu().numpy()

    @property
    def training_priors(self) -> np.ndarray:
        """The class shares (C,) that the probabilities take for granted: those among the samples that training drew, or
        those that the algorithm trains for (``Algorithm.assumed_shares``).

        Batches draw every domain equally often; within a domain, rows as they are, or every class equally often where
        the algorithm samples so. Trees are fitted to all rows alike.
        """
        counts = self.config.spec.count_matrix.double().numpy()
        if isinstance(self.algorithm, BoostedTrees):
            return counts.sum(0) / counts.sum()
        if self.algorithm.assumed_shares is not None:
            return self.algorithm.assumed_shares.numpy()
        if self.algorithm.traits.balanced_sampling:
            counts = (counts > 0).astype(np.float64)
        return (counts / counts.sum(1, keepdims=True)).mean(0)


def input_kind(config: RunConfig) -> str:
    """What a run reads: "images", "table" or "rows" (of an .npz)."""
    if config.image_size is not None:
        return "images"
    return "rows" if config.table is None else "table"


def member_folders(run: Path | str) -> list[Path]:
    """The run folders of an ensemble's members, in order; none for any other run."""
    folders = [place for place in (Path(run) / MEMBERS).glob("*") if place.name.isdecimal()]
    return sorted(folders, key=lambda place: int(place.name))


def ensemble_of(members: Sequence[TrainedModel], config: RunConfig, result: RunResult | None) -> TrainedModel:
    """Trained models as one. result: of the ensemble, None as long as it was not measured."""
    first = members[0]
    return TrainedModel(
        config,
        Ensemble(members).to(first.device),
        None,
        first.augmentation,
        first.device,
        temperature=1.0 if result is None else result.temperature,
        calibrated=result is not None and bool((result.calibration or {}).get("rows")),
        finished=result is not None,
    )


def load_trained(run: Path | str, device: torch.device) -> TrainedModel:
    """The model of a run folder, with the weights that validation chose."""
    config = read_config(run)
    import_modules(config.imports)
    folder = RunFolder(run)
    members = member_folders(run)
    if members:
        return ensemble_of([load_trained(member, device) for member in members], config, folder.result())
    if not folder.best_file.exists() and config.keep == "none":
        raise InputError(f"the run '{run}' kept no weights (`keep=none`): train it again with `keep=best`.")
    if not folder.best_file.exists():
        raise InputError(f"the run '{run}' has no checkpoint yet: finish it with 'rcalign train ... --resume'.")
    result = folder.result()
    calibration = (result.calibration if result is not None else None) or {}
    known: dict[str, Any] = {
        "temperature": 1.0 if result is None else result.temperature,
        "calibrated": bool(calibration.get("rows")),
        "finished": result is not None,
    }
    if config.algorithm == boosted_trees.ABOUT.name:
        trees = BoostedTrees(load_weights(folder.best_file)).to(device)
        return TrainedModel(config, trees, None, None, device, **known)
    frozen, augmentation = None, None
    shape = config.spec.input_shape
    if config.image_size is not None:
        image_shape = (3, config.image_size, config.image_size)
        # the run's own weights follow, so a trained backbone starts empty; a frozen one is loaded as it was
        weights = config.weights if config.freeze_backbone else "none"
        if weights is not None and (folder.path / weights).is_file():  # of a published run
            weights = str(folder.path / weights)
        with seeded(config.seed):  # a frozen backbone without pretrained weights is the one that this seed gives
            made = build_backbone(
                config.backbone, image_shape, weights=weights, freeze_batch_norm=config.freeze_batch_norm
            )
        changes = get_preset(config.preset).augmentation
        augmentation = Augmentation(size=config.image_size, mean=made.mean, std=made.std, **changes)  # type: ignore[arg-type]
        if config.freeze_backbone:
            if made.weights != config.weights_fingerprint:
                raise InputError(
                    f"the frozen backbone '{config.backbone}' of '{run}' was loaded with other weights then: give the "
                    "same weights file again."
                )
            frozen = placed(made.featurizer, device).eval()
            made = build_backbone(NO_LAYERS if config.linear_probe else None, shape)
    else:
        made = build_backbone(config.backbone, shape)
    entry = registry.get(config.algorithm)
    network = placed(Network(made.featurizer, made.features, config.spec.num_classes), device)
    hparams = spaces.build_hparams(entry.algorithm.Hparams, config.hparams)
    algorithm = entry.algorithm(config.spec, network, hparams, seed=config.seed)
    algorithm.load_state_dict(merged(load_weights(folder.best_file)))
    return TrainedModel(config, algorithm, frozen, augmentation, device, **known)
