"""The steps from stored pixels to the network's input that are computed by torch; ``picture`` defines them all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PILLOW_BITS = 22  # of the fixed-point weights with which Pillow resizes


def to_input(images: Tensor, size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Stored pixels, uint8 (n, s, s, 3) -> network inputs, float32 (n, 3, size, size), channels last."""
    if images.shape[1:3] == (size, size):
        out = images.contiguous().to(torch.float32)
    else:
        planes = images.permute(0, 3, 1, 2)
        if images.device.type == "cpu":
            resized = F.interpolate(planes, (size, size), mode="bilinear", antialias=True)
        else:  # no kernel for bytes there: rounded afterwards, at most one grey level off
            resized = F.interpolate(planes.to(torch.float32), (size, size), mode="bilinear", antialias=True)
            resized = resized.round().clamp(0, 255)
        out = resized.permute(0, 2, 3, 1).contiguous().to(torch.float32)
    # one row of pixels at a time: three channels alone would be too short a run for vector instructions
    scale, shift = (values.repeat(size) for values in normalisation(mean, std, images.device))
    out.view(-1, size * 3).mul_(scale).add_(shift)
    return out.permute(0, 3, 1, 2)


def normalisation(mean: Sequence[float], std: Sequence[float], device: torch.device) -> tuple[Tensor, Tensor]:
    """x * scale + shift = (x / 255 - mean) / std: two tensors (3,)."""
    centre, spread = torch.tensor(mean, device=device), torch.tensor(std, device=device)
    return 1 / (255 * spread), -centre / spread


# --- the same as a network ---------------------------------------------------------------------------------------


def resize_matrix(size: int, pixels: Tensor) -> Tensor:
    """Weights (size, full) that resize a row of ``full`` pixels: a triangle filter, wider where the row shrinks.

    pixels: their centres (full,), 0.5, 1.5, ... Everything is computed from that tensor, so an exported graph takes
    images of any size.

    >>> resize_matrix(2, torch.arange(4) + 0.5)
    tensor([[0.4286, 0.4286, 0.1429, 0.0000],
            [0.0000, 0.1429, 0.4286, 0.4286]])
    """
    scale = torch.ones_like(pixels).sum() / size
    centres = (torch.arange(size, device=pixels.device, dtype=pixels.dtype) + 0.5) * scale
    weights = (1 - (pixels[None, :] - centres[:, None]).abs() / scale.clamp(min=1)).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


class PictureToInput(nn.Module):
    """uint8 (n, height, width, 3), RGB, of any size -> float (n, 3, size, size): steps 2 and 3 of a picture's way.

    Pillow and torch resize along the width, round to bytes, resize along the height, round again, with weights that are
    whole multiples of a power of two. Sums of such weights times bytes are exact in floating point, so this gives the
    same bytes.

    >>> from rcalign.data.picture import to_stored
    >>> pixels = torch.randint(0, 256, (1, 9, 7, 3), dtype=torch.uint8)
    >>> network = PictureToInput(4, 5, (0.5,) * 3, (0.5,) * 3)
    >>> stored = torch.from_numpy(to_stored(pixels[0].numpy(), 5))[None]
    >>> bool((network(pixels) - to_input(stored, 4, (0.5,) * 3, (0.5,) * 3)).abs().max() < 1e-6)
    True
    """

    scale: Tensor
    shift: Tensor
    second: Tensor

    def __init__(self, size: int, stored: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.size, self.stored = size, stored
        scale, shift = normalisation(mean, std, torch.device("cpu"))
        self.register_buffer("scale", scale.view(3, 1, 1))
        self.register_buffer("shift", shift.view(3, 1, 1))
        self.register_buffer("second", _torch_weights(size, stored))

    def forward(self, images: Tensor) -> Tensor:
        planes = images.permute(0, 3, 1, 2).to(torch.float64)
        planes = _rounded(planes @ self._first(images.shape[2]).T)
        planes = _rounded(self._first(images.shape[1]) @ planes)
        planes = planes.to(self.scale.dtype)
        if self.stored != self.size:
            planes = _rounded(planes @ self.second.T)
            planes = _rounded(self.second @ planes)
        return planes * self.scale + self.shift

    def _first(self, full: int) -> Tensor:
        """Pillow's weights (stored, full)."""
        pixels = torch.arange(full, device=self.scale.device, dtype=torch.float64) + 0.5
        return torch.floor(resize_matrix(self.stored, pixels) * 2**PILLOW_BITS + 0.5) / 2**PILLOW_BITS


def _torch_weights(size: int, stored: int) -> Tensor:
    """torch's weights (size, stored) for bytes: as many bits as fit into 16 with a sign."""
    weights = resize_matrix(size, torch.arange(stored, dtype=torch.float64) + 0.5)
    largest = float(weights.max())
    bits = 0
    while bits < 22 and int(0.5 + largest * 2 ** (bits + 1)) < 2**15:
        bits += 1
    return (torch.floor(weights * 2**bits + 0.5) / 2**bits).float()


def _rounded(values: Tensor) -> Tensor:
    """To whole grey levels, halves upwards."""
    return torch.floor(values + 0.5).clamp(0, 255)
