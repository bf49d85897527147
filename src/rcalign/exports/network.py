"""A trained model as one network: bytes in, probabilities out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rcalign.data.columns import ColumnEncoder
from rcalign.training.trained import TrainedModel


def resize_matrix(size: int, pixels: Tensor) -> Tensor:
    """Weights (size, full) that resize a row of ``full`` pixels: a triangle filter, wider where the row shrinks.

    pixels: their centres (full,), 0.5, 1.5, ... Everything is computed from that tensor, so an exported graph takes
    images of any size. Bilinear with antialiasing, as images are resized in training.

    >>> resize_matrix(2, torch.arange(4) + 0.5)
    tensor([[0.4286, 0.4286, 0.1429, 0.0000],
            [0.0000, 0.1429, 0.4286, 0.4286]])
    """
    scale = torch.ones_like(pixels).sum() / size
    centres = (torch.arange(size, device=pixels.device, dtype=pixels.dtype) + 0.5) * scale
    weights = (1 - (pixels[None, :] - centres[:, None]).abs() / scale.clamp(min=1)).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


class ImagesToInputs(nn.Module):
    """uint8 (n, height, width, 3), RGB, of any size -> float (n, 3, size, size), resized and normalised.

    In training a file is first brought to ``stored`` pixels a side, then to ``size``: here both filters are one. What
    differs is that nothing is rounded to whole grey levels on the way.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, size: int, stored: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.size, self.stored = size, stored
        self.register_buffer("scale", 1 / (255 * torch.tensor(std)).view(3, 1, 1))
        self.register_buffer("shift", (-torch.tensor(mean) / torch.tensor(std)).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        planes = images.permute(0, 3, 1, 2).to(self.scale.dtype)
        rows = self._filter(images.shape[1]).to(planes)
        columns = self._filter(images.shape[2]).to(planes)
        return (rows @ planes @ columns.T) * self.scale + self.shift

    def _filter(self, full: int) -> Tensor:
        like = self.scale
        first = resize_matrix(self.stored, torch.arange(full, device=like.device, dtype=like.dtype) + 0.5)
        if self.stored == self.size:
            return first
        return resize_matrix(self.size, torch.arange(self.stored, device=like.device, dtype=like.dtype) + 0.5) @ first


class Deployed(nn.Module):
    """What another program needs of a trained model.

    In: images uint8 (n, height, width, 3), or rows and series as floats in the units of the training data, or the
    columns of a table as numbers (``Encoding.read``).
    Out: logits (n, C) and calibrated probabilities (n, C).
    """

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        augmentation = model.augmentation
        self.to_inputs: nn.Module = nn.Identity()
        if augmentation is not None:
            self.to_inputs = ImagesToInputs(augmentation.size, model.stored_size, augmentation.mean, augmentation.std)
        elif model.encoding is not None:
            self.to_inputs = ColumnEncoder(model.encoding)
        self.frozen: nn.Module = model.frozen if model.frozen is not None else nn.Identity()
        self.algorithm = model.algorithm
        self.temperature = model.temperature
        self.eval()
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.algorithm(self.frozen(self.to_inputs(x)))[1]
        return logits, torch.softmax(logits / self.temperature, 1)
