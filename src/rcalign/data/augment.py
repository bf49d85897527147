"""Augmentation of whole batches, on any device: what torchvision's transforms do to one image at a time.

Random numbers come from a numpy generator, so a batch is the same whatever the device or the number of workers. The
distributions are those of ``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ColorJitter`` and ``RandomGrayscale``,
drawn for each image on its own, with one difference: the order of the four colour changes is drawn once for each batch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.data.picture_input import normalisation, to_input

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights of red, green, blue
BLOCK_PIXELS = 200_000
WORK = 4  # working planes that the colour operations need
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

    def train(
        self,
        x: Tensor,
        rng: np.random.Generator,
        rows: np.ndarray | None = None,
        of: int = 0,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Random crop, flip and colours, then normalised. rows: x are these of a batch of ``of`` images, and become
        what they would be in it. out: float32 (n, size, size, 3) to write to, which the result is a view of."""
        draws = self.draw(len(x) if rows is None else of, x.shape[1], x.shape[2], rng)
        if rows is not None:
            draws = draws.of_rows(rows)
        if out is None:
            out = torch.empty(len(x), self.size, self.size, 3, device=x.device)
        if x.device.type == "cpu" and _torch_rounds_as_kernels():
            self._change_compiled(x, draws, out)
        else:
            self._change(x, draws, out)
        return out.permute(0, 3, 1, 2)

    def _change(self, x: Tensor, draws: Draws, out: Tensor) -> None:
        """Writes the augmented images to ``out``, (n, size, size, 3), by torch's operations."""
        scale, shift = (values.view(3, 1, 1, 1) for values in normalisation(self.mean, self.std, x.device))
        factors = {name: torch.from_numpy(draws.factors[name]).to(x.device) for name in draws.order}
        for block in self._blocks(x):
            planes, work = _workspace(len(x[block]), self.size, x.device)
            crop_resize(x[block], draws.boxes[block], draws.flipped[block], out=planes)
            for name in draws.order:
                OPERATIONS[name](planes, factors[name][block], work)
            for i in np.flatnonzero(draws.grey[block]).tolist():
                planes[:, i] = luma(planes[:, i], work[0, i])
            _interleave(planes.mul_(scale).add_(shift), out[block])

    def _change_compiled(self, x: Tensor, draws: Draws, out: Tensor) -> None:
        """``_change`` for images on a CPU, to the same bits. Only contrast, which needs the mean of the whole image,
        divides the operations into two passes over memory."""
        from rcalign.data import colour_kernels as kernels  # here and not above: only training on images needs numba

        scale, shift = (values.numpy() for values in normalisation(self.mean, self.std, x.device))
        codes = np.array([kernels.CODES[name] for name in draws.order], np.int64)
        before = draws.order.index("contrast") if "contrast" in draws.order else len(codes)
        first, second = codes[:before], codes[before:]
        factors = np.stack([draws.factors[name] for name in kernels.CODES], axis=1)
        lines = out.view(len(x), 3 * self.size**2).numpy()
        for block in self._blocks(x):
            planes, _ = _workspace(len(x[block]), self.size, x.device)
            flat = planes.view(3, -1, self.size**2).numpy()
            for i, crop in enumerate(_resized_crops(x[block], draws.boxes[block], self.size)):
                pixels = crop.permute(1, 2, 0).contiguous().view(self.size, -1).numpy()
                row = block.start + i
                kernels.to_planes(pixels, draws.flipped[row], first, factors[row], flat, i)
            means = _means(planes).numpy()
            kernels.to_inputs(flat, means, second, factors[block], draws.grey[block], scale, shift, lines[block])

    def _blocks(self, x: Tensor) -> Iterator[slice]:
        """The images in parts: on a CPU the planes of a few stay in its cache while all operations pass over them."""
        step = max(1, round(BLOCK_PIXELS / self.size**2)) if x.device.type == "cpu" else max(1, len(x))
        return (slice(start, start + step) for start in range(0, len(x), step))

    def evaluate(self, x: Tensor) -> Tensor:
        """Resized to size x size if need be, then normalised. Nothing is random."""
        return to_input(x, self.size, self.mean, self.std)

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

    def of_rows(self, rows: np.ndarray) -> Draws:
        """The choices for some of the images."""
        factors = {name: values[rows] for name, values in self.factors.items()}
        return Draws(self.boxes[rows], self.flipped[rows], self.order, factors, self.grey[rows])


def _torch_rounds_as_kernels() -> bool:
    """Whether torch uses the vector instructions whose roundings ``colour_kernels`` has."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


class _Memory(threading.local):
    """Each thread's own memory for intermediate values, kept between batches: fresh pages cost as much as half of the
    colours."""

    def __init__(self) -> None:
        self.work = torch.empty(0)


_memory = _Memory()


def _workspace(n: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Colour planes of n images (3, n, size, size) and working planes (WORK, n, size, size) with undefined content."""
    plane = n * size * size
    if device.type != "cpu":
        values = torch.empty((3 + WORK) * plane, device=device)
    else:
        if len(_memory.work) < (3 + WORK) * plane:
            _memory.work = torch.empty((3 + WORK) * plane)
        values = _memory.work
    planes = values[: (3 + WORK) * plane].view(3 + WORK, n, size, size)
    return planes[:3], planes[3:]


def _interleave(planes: Tensor, out: Tensor) -> None:
    """Copies (3, n, h, w) to (n, h, w, 3)."""
    if planes.device.type != "cpu":
        out.copy_(planes.permute(1, 2, 3, 0))
        return
    for channel, plane in enumerate(planes.numpy()):  # numpy writes every third number in two thirds of torch's time
        out.numpy()[..., channel] = plane


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


def crop_resize(x: Tensor, boxes: np.ndarray, flipped: np.ndarray, *, out: Tensor) -> Tensor:
    """Crops resized (bilinear, antialiased) and mirrored: uint8 (n, h, w, 3) -> out, float32 (3, n, s, s), 0 ... 255.

    On a CPU torch's uint8 kernel does one image after the other, which is fastest there; elsewhere the same filter is
    two matrix products over the whole batch. They differ by at most one grey level.
    """
    if x.device.type != "cpu":
        return out.copy_(_resize_by_matrices(x, boxes, out.shape[-1], flipped).transpose(0, 1))
    for i, crop in enumerate(_resized_crops(x, boxes, out.shape[-1])):
        if flipped[i]:  # numpy reads backwards, torch would make a copy first
            out.numpy()[:, i] = crop.numpy()[..., ::-1]
        else:
            out[:, i] = crop
    return out


def _resized_crops(x: Tensor, boxes: np.ndarray, size: int) -> Iterator[Tensor]:
    """Crops of images on a CPU, one after the other: uint8 (n, h, w, 3) -> uint8 (3, size, size) each."""
    images = x.permute(0, 3, 1, 2)
    for i, (top, left, height, width) in enumerate(boxes.tolist()):
        crop = images[i : i + 1, :, top : top + height, left : left + width]
        if crop.shape[2:] != (size, size):
            crop = F.interpolate(crop, (size, size), mode="bilinear", antialias=True)
        yield crop[0]


def _resize_by_matrices(x: Tensor, boxes: np.ndarray, size: int, flipped: np.ndarray) -> Tensor:
    top, left, height, width = torch.from_numpy(boxes.T.copy()).to(x.device, torch.float32)
    rows = _filter(top, height, size, x.shape[1])  # (n, size, h)
    columns = _filter(left, width, size, x.shape[2])  # (n, size, w)
    mirrored = torch.from_numpy(flipped).to(x.device)[:, None, None]
    columns = torch.where(mirrored, columns.flip(1), columns)
    planes = x.permute(0, 3, 1, 2).to(torch.float32)
    resized = torch.matmul(torch.matmul(rows[:, None], planes), columns[:, None].transpose(2, 3))
    return resized.round_().clamp_(0, 255)


def _filter(start: Tensor, length: Tensor, size: int, full: int) -> Tensor:
    """Weights (n, size, full) of the triangle filter that resizes [start, start + length) to ``size`` pixels."""
    scale = (length / size)[:, None, None]
    support = scale.clamp(min=1)
    centre = (torch.arange(size, device=start.device) + 0.5)[None, :, None] * scale
    pixel = torch.arange(full, device=start.device)[None, None, :] - start[:, None, None] + 0.5
    inside = (pixel > 0) & (pixel < length[:, None, None])
    weight = (1 - (pixel - centre).abs() / support).clamp(min=0) * inside
    return weight / weight.sum(2, keepdim=True)


# --- colours: float planes (3, n, h, w) from 0 to 255, one factor for each image (n,), changed in place -------------
# Each is torchvision's function of that name. work: (WORK, n, h, w) planes to write intermediate values to. What counts
# is how often memory is passed over: a pass that writes where it reads takes a third of one from two planes to another.


def luma(x: Tensor, out: Tensor) -> Tensor:
    """Grey of (3, ...), in ``out`` (...)."""
    return torch.mul(x[0], LUMA[0], out=out).add_(x[1], alpha=LUMA[1]).add_(x[2], alpha=LUMA[2])


def adjust_brightness(x: Tensor, factor: Tensor, work: Tensor) -> None:
    """factor * x, cut to the range."""
    x.mul_(factor[:, None, None]).clamp_(0, 255)


def adjust_contrast(x: Tensor, factor: Tensor, work: Tensor) -> None:
    """factor * x + (1 - factor) * the mean grey of the image, cut to the range."""
    red, green, blue = _means(x)
    mean = (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue)[:, None, None]
    f = factor[:, None, None]
    x.mul_(f).add_(mean * (1 - f)).clamp_(0, 255)


def _means(x: Tensor) -> Tensor:
    """The mean of each plane: (3, n, h, w) -> (3, n)."""
    return x.mean(3).mean(2)  # two steps: the bits of a one-step mean could depend on the number of threads


def adjust_saturation(x: Tensor, factor: Tensor, work: Tensor) -> None:
    """factor * x + (1 - factor) * the grey of each pixel, cut to the range."""
    torch.lerp(luma(x, work[0]), x, factor[:, None, None], out=x).clamp_(0, 255)


def adjust_hue(x: Tensor, factor: Tensor, work: Tensor) -> None:
    """The hue turned by ``factor`` of a full circle; value and chroma are kept.

    With value V = max, chroma D = V - min and the turned hue H in sixths of a circle, 0 <= H < 6:

        red = min + D u(H - 3),  green = V - D u(H - 2),  blue = V - D u(H - 4),  u(a) = clamp(|a| - 1, 0, 1).

    The hue comes from sorting the channels by two exchanges, which count the sixth, without a branch. Planes that are
    no longer needed take the next values.
    """
    red, green, blue = x
    first, high, value, chroma = work
    torch.lt(green, blue, out=first)  # 1 where exchanged, else 0
    torch.maximum(green, blue, out=high)
    low = torch.minimum(green, blue, out=green)
    second = torch.lt(red, high, out=blue)
    torch.maximum(red, high, out=value)
    hue = torch.minimum(red, high, out=red)  # the middle one, unless red is least
    least = torch.minimum(hue, low, out=high)
    torch.sub(value, least, out=chroma)
    hue.sub_(low).div_(torch.add(chroma, 1e-9, out=low))  # grey has hue 0
    sixth = torch.mul(first, 12, out=low).sub_(2)
    hue.addcmul_(second, sixth).sub_(first, alpha=6).abs_().add_((6 * factor)[:, None, None])
    hue.sub_(torch.mul(hue, 1 / 6, out=low).floor_(), alpha=6)
    torch.sub(hue, 2, out=green)
    torch.sub(hue, 4, out=blue)
    hue.sub_(3)
    x.abs_().sub_(1).clamp_(0, 1)
    for channel, start, sign in ((red, least, 1), (green, value, -1), (blue, value, -1)):
        torch.addcmul(start, chroma, channel, value=sign, out=channel)


OPERATIONS = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}
