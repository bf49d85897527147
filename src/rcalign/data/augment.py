"""Augmentation of whole batches, on any device: what torchvision's transforms do to one image at a time.

Random numbers come from a numpy generator, so a batch is the same whatever the device or the number of workers. The
distributions are those of ``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ColorJitter`` and ``RandomGrayscale``,
drawn for each image on its own, with one difference: the order of the four colour changes is drawn once for each batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights of red, green, blue
BLOCK_PIXELS = 100_000
ATTEMPTS = 10  # torchvision's tries to fit a crop before it takes the middle


@dataclass(frozen=True)
class Augmentation:
    """uint8 (n, s, s, 3) -> float32 (n, 3, size, size), channels last. The defaults are DomainBed's.

    >>> augmentation = Augmentation(size=8)
    >>> x = torch.zeros(2, 10, 10, 3, dtype=torch.uint8)
    >>> augmentation.train(x, np.random.default_rng(0)).shape, augmentation.evaluate(x).shape
    (torch.Size([2, 3, 8, 8]), torch.Size([2, 3, 8, 8]))
    """

    size: int
    scale: tuple[float, float] = (0.7, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    brightness: float = 0.3
    contrast: float = 0.3
    saturation: float = 0.3
    hue: float = 0.3
    greyscale: float = 0.1
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def train(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Random crop, flip and colours, then normalised."""
        draws = self.draw(len(x), x.shape[1], x.shape[2], rng)
        out = torch.empty((len(x), 3, self.size, self.size), device=x.device, memory_format=torch.channels_last)
        scale, shift = (values.view(3, 1, 1) for values in self._normalisation(x.device))
        factors = {name: torch.from_numpy(draws.factors[name]).to(x.device) for name in draws.order}
        # on a CPU a block's planes stay in its cache while all operations pass over them: three times faster
        step = max(1, round(BLOCK_PIXELS / self.size**2)) if x.device.type == "cpu" else len(x)
        for start in range(0, len(x), step):
            block = slice(start, start + step)
            planes = crop_resize(x[block], draws.boxes[block], self.size, draws.flipped[block])
            planes = planes.permute(0, 3, 1, 2).contiguous().to(torch.float32).div_(255)
            for name in draws.order:
                OPERATIONS[name](planes, factors[name][block])
            grey = np.flatnonzero(draws.grey[block])
            if len(grey):
                rows = torch.from_numpy(grey).to(x.device)
                planes[rows] = luma(planes[rows]).expand(-1, 3, -1, -1)
            out[block] = planes.mul_(scale).add_(shift)
        return out

    def evaluate(self, x: Tensor) -> Tensor:
        """Resized to size x size if need be, then normalised. Nothing is random."""
        n, height, width = x.shape[:3]
        whole = np.tile(np.array([0, 0, height, width]), (n, 1))
        resized = crop_resize(x, whole, self.size, np.zeros(n, dtype=bool)).to(torch.float32)
        # one row of pixels at a time: three channels alone would be too short a run for vector instructions
        scale, shift = (values.repeat(self.size) for values in self._normalisation(x.device))
        resized.view(-1, self.size * 3).mul_(scale / 255).add_(shift)
        return resized.permute(0, 3, 1, 2)

    def _normalisation(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """x * scale + shift = (x - mean) / std: two tensors (3,)."""
        mean, std = torch.tensor(self.mean, device=device), torch.tensor(self.std, device=device)
        return 1 / std, -mean / std

    def draw(self, n: int, height: int, width: int, rng: np.random.Generator) -> Draws:
        """All random choices of a batch, always as many draws whatever they turn out to be."""
        boxes = random_boxes(n, height, width, self.scale, self.ratio, rng)
        flipped = rng.random(n) < self.flip
        ranges = {name: getattr(self, name) for name in OPERATIONS}
        order = [list(OPERATIONS)[i] for i in rng.permutation(len(OPERATIONS))]
        factors = {}
        for name, strength in ranges.items():
            low, high = (-strength, strength) if name == "hue" else (max(0.0, 1 - strength), 1 + strength)
            factors[name] = rng.uniform(low, high, n).astype(np.float32)
        grey = rng.random(n) < self.greyscale
        return Draws(boxes, flipped, tuple(name for name in order if ranges[name] > 0), factors, grey)


@dataclass(frozen=True, eq=False)
class Draws:
    """The choices for n images. boxes: (n, 4) int64 top, left, height, width. factors: (n,) for each colour change."""

    boxes: np.ndarray
    flipped: np.ndarray
    order: tuple[str, ...]
    factors: dict[str, np.ndarray]
    grey: np.ndarray


def random_boxes(
    n: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> np.ndarray:
    """torchvision's ``RandomResizedCrop.get_params`` for n images at once: (n, 4) top, left, height, width."""
    area = height * width * rng.uniform(*scale, (n, ATTEMPTS))
    aspect = np.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1]), (n, ATTEMPTS)))
    corner = rng.random((n, 2))
    w = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.argmax(axis=1)
    rows = np.arange(n)
    w, h = w[rows, first], h[rows, first]
    top = np.floor(corner[:, 0] * (height - h + 1)).astype(np.int64)
    left = np.floor(corner[:, 1] * (width - w + 1)).astype(np.int64)
    boxes = np.stack([top, left, h, w], axis=1)
    boxes[~fits.any(axis=1)] = _middle(height, width, ratio)
    return boxes


def _middle(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """The largest crop in the middle whose aspect ratio is allowed."""
    w, h = width, height
    if width / height < min(ratio):
        h = round(width / min(ratio))
    elif width / height > max(ratio):
        w = round(height * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w


def crop_resize(x: Tensor, boxes: np.ndarray, size: int, flipped: np.ndarray) -> Tensor:
    """Crops resized (bilinear, antialiased) and mirrored: uint8 (n, h, w, 3) -> uint8 (n, size, size, 3).

    On a CPU torch's uint8 kernel does one image after the other, which is fastest there; elsewhere the same filter is
    two matrix products over the whole batch. They differ by at most one grey level.
    """
    if x.device.type != "cpu":
        return _resize_by_matrices(x, boxes, size, flipped)
    if not flipped.any() and (boxes == (0, 0, size, size)).all() and x.shape[1:3] == (size, size):
        return x
    out = torch.empty((len(x), size, size, 3), dtype=torch.uint8)
    images, results = x.permute(0, 3, 1, 2), out.permute(0, 3, 1, 2)
    for i, (top, left, height, width) in enumerate(boxes.tolist()):
        crop = images[i : i + 1, :, top : top + height, left : left + width]
        if (height, width) != (size, size):
            crop = F.interpolate(crop, (size, size), mode="bilinear", antialias=True)
        results[i] = crop[0].flip(2) if flipped[i] else crop[0]
    return out


def _resize_by_matrices(x: Tensor, boxes: np.ndarray, size: int, flipped: np.ndarray) -> Tensor:
    top, left, height, width = torch.from_numpy(boxes.T.copy()).to(x.device, torch.float32)
    rows = _filter(top, height, size, x.shape[1])  # (n, size, h)
    columns = _filter(left, width, size, x.shape[2])  # (n, size, w)
    mirrored = torch.from_numpy(flipped).to(x.device)[:, None, None]
    columns = torch.where(mirrored, columns.flip(1), columns)
    planes = x.permute(0, 3, 1, 2).to(torch.float32)
    resized = torch.matmul(torch.matmul(rows[:, None], planes), columns[:, None].transpose(2, 3))
    return resized.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def _filter(start: Tensor, length: Tensor, size: int, full: int) -> Tensor:
    """Weights (n, size, full) of the triangle filter that resizes [start, start + length) to ``size`` pixels."""
    scale = (length / size)[:, None, None]
    support = scale.clamp(min=1)
    centre = (torch.arange(size, device=start.device) + 0.5)[None, :, None] * scale
    pixel = torch.arange(full, device=start.device)[None, None, :] - start[:, None, None] + 0.5
    inside = (pixel > 0) & (pixel < length[:, None, None])
    weight = (1 - (pixel - centre).abs() / support).clamp(min=0) * inside
    return weight / weight.sum(2, keepdim=True)


# --- colours: float (n, 3, h, w) in [0, 1], one factor for each image (n,), as torchvision's functions of that name ---


def luma(x: Tensor) -> Tensor:
    """Grey (n, 1, h, w)."""
    return (x[:, :1] * LUMA[0]).add_(x[:, 1:2], alpha=LUMA[1]).add_(x[:, 2:], alpha=LUMA[2])


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """factor * x, cut to [0, 1]. In place, like the other three."""
    return x.mul_(factor[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """factor * x + (1 - factor) * the mean grey of the image."""
    # two steps: the bits of a one-step mean could depend on the number of threads
    mean = luma(x).mean(3, keepdim=True).mean(2, keepdim=True)
    f = factor[:, None, None, None]
    return x.mul_(f).add_(mean * (1 - f)).clamp_(0, 1)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """factor * x + (1 - factor) * the grey of each pixel."""
    f = factor[:, None, None, None]
    grey = luma(x).mul_(1 - f)
    return x.mul_(f).add_(grey).clamp_(0, 1)


def adjust_hue(x: Tensor, factor: Tensor) -> Tensor:
    """The hue turned by ``factor`` of a full circle; value and chroma are kept.

    With value V = max, chroma D = max - min and the turned hue H in circles, channel k becomes
    V - D * clamp(2 - 6 |r|, 0, 1), r = H + s_k minus its nearest whole number, s = (3, 1, -1) / 6 for red, green, blue.
    The hue itself comes from two sorting exchanges, which count the sixth of the circle, without a branch.
    """
    red, green, blue = x.unbind(1)
    swapped = green.clone().lt_(blue)  # 1.0 where true
    high, low = torch.maximum(green, blue), torch.minimum(green, blue)
    exchanged = red.clone().lt_(high)
    value, middle = torch.maximum(red, high), torch.minimum(red, high)
    chroma = value - torch.minimum(middle, low)
    sixth = exchanged.mul_(swapped.mul(2).sub_(1 / 3)).sub_(swapped)
    hue = middle.sub_(low).div_(chroma.mul(6).add_(1e-12)).add_(sixth).abs_().add_(factor[:, None, None])
    for channel, shift in enumerate((3 / 6, 1 / 6, -1 / 6)):
        torch.add(hue, shift, out=high)
        torch.round(high, out=low)
        high.sub_(low).abs_().mul_(-6).add_(2).clamp_(0, 1)
        torch.addcmul(value, chroma, high, value=-1, out=x[:, channel])
    return x


OPERATIONS = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}
