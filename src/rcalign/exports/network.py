"""A trained model as one network: bytes in, probabilities out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rcalign.data.column_encoder import ColumnEncoder
from rcalign.data.picture_input import PictureToInput
from rcalign.models.boosted_trees import BoostedTrees
from rcalign.training.trained import TrainedModel


class Deployed(nn.Module):
    """What another program needs of a trained model.

    In: images uint8 (n, height, width, 3), or rows and series as floats in the units of the training data, or the
    columns of a table as numbers (``Encoding.read``), which trees split as they are.
    Out: logits (n, C) and calibrated probabilities (n, C).
    """

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        augmentation = model.augmentation
        self.to_inputs: nn.Module = nn.Identity()
        if augmentation is not None:
            self.to_inputs = PictureToInput(augmentation.size, model.stored_size, augmentation.mean, augmentation.std)
        elif model.encoding is not None and not isinstance(model.algorithm, BoostedTrees):
            self.to_inputs = ColumnEncoder(model.encoding)
        self.frozen: nn.Module = model.frozen if model.frozen is not None else nn.Identity()
        self.algorithm = model.algorithm
        self.temperature = model.temperature
        self.eval()
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.algorithm(self.frozen(self.to_inputs(x)))[1]
        return logits, torch.softmax(logits / self.temperature, 1)
