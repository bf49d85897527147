"""Tiny stand-ins: a benchmark's layout, domain names and class names with drawn images, for trying things and tests.

A class is a shape and a hue, a domain a manner of drawing, so that there is something to learn. A stand-in is marked:
loading it says so, and it never passes for the data set.
"""

from __future__ import annotations

import colorsys
import csv
import gzip
import io
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rcalign.data.benchmarks import mnist
from rcalign.data.benchmarks.facts import Benchmark
from rcalign.data.benchmarks.place import STAND_IN, disk_errors
from rcalign.errors import InputError
from rcalign.files import write_whole


def sample(
    benchmark: Benchmark,
    out: str | os.PathLike[str],
    *,
    each: int = 4,
    size: int = 64,
    long_tailed: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Writes ``out/folder/domain/class/image``; ``out`` is then a data root. each: images of every (domain, class)
    pair.

    long_tailed: with a split file; each pair has one val and one test image, and 1 to ``each`` training images.
    """
    _positive(each=each, size=size)
    with _written(Path(out).absolute() / benchmark.folder) as growing:
        images = 0
        split: list[tuple[str, int, str, str]] = []
        for k, domain in enumerate(benchmark.domains):
            suffix = benchmark.suffix.get(domain, ".jpg")
            for c, label in enumerate(benchmark.classes):
                folder = growing / domain / label
                folder.mkdir(parents=True)
                number = 2 + max(1, round(each * 0.25 ** (((c + k) % 4) / 3))) if long_tailed else each
                for n in range(number):
                    rng = np.random.default_rng([seed, k, c, n])
                    picture = draw_picture(k, c, len(benchmark.classes), size, rng)
                    picture.save(folder / f"pic_{n + 1:03d}{suffix}", quality=90)
                    part = ("val", "test")[n] if n < 2 else "train"
                    split.append((domain, c, f"{domain}/{label}/pic_{n + 1:03d}{suffix}", part))
                images += number
        if long_tailed:
            _write_split(growing / f"{benchmark.name}.csv", split)
    return {"name": benchmark.name, "root": str(Path(out).absolute()), "folder": benchmark.folder, "images": images}


def sample_mnist(name: str, out: str | os.PathLike[str], *, each: int = 4, seed: int = 0) -> dict[str, Any]:
    """Drawn digits as the four files of MNIST; ``each`` of every digit for each of RotatedMNIST's domains."""
    _positive(each=each)
    rng = np.random.default_rng([seed, 0x6D])
    with _written(Path(out).absolute() / mnist.FOLDER) as growing:
        (growing / "raw").mkdir()
        total = 0
        for stem, number in (("train", each * 50), ("t10k", each * 10)):
            digits = rng.permutation(np.arange(number) % 10).astype(np.uint8)
            images = np.stack([_digit(int(digit), rng) for digit in digits])
            for file, array in ((f"{stem}-images-idx3-ubyte.gz", images), (f"{stem}-labels-idx1-ubyte.gz", digits)):
                header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
                (growing / "raw" / file).write_bytes(gzip.compress(header + array.tobytes(), mtime=0))
            total += number
    return {"name": name, "root": str(Path(out).absolute()), "folder": mnist.FOLDER, "images": total}


def sample_rows(
    name: str,
    folder: str,
    drawn: Callable[[Path, int, int], int],
    out: str | os.PathLike[str],
    *,
    each: int = 4,
    seed: int = 0,
) -> dict[str, Any]:
    """A stand-in of a data set without images. drawn: writes ``each`` rows of every pair into a folder."""
    _positive(each=each)
    with _written(Path(out).absolute() / folder) as growing:
        rows = drawn(growing, each, seed)
    return {"name": name, "root": str(Path(out).absolute()), "folder": folder, "images": rows, "unit": "rows"}


def draw_picture(domain: int, label: int, classes: int, size: int, rng: np.random.Generator) -> Image.Image:
    """A star of the class's own points and hue, in the domain's manner."""
    points, depth = 3 + label % 6, 0.35 + 0.2 * (label // 6 % 3)
    hue = label / classes + rng.normal(0, 0.01)
    bright = tuple(round(255 * v) for v in colorsys.hsv_to_rgb(hue % 1, 0.85, 0.9))
    pale = tuple(round(255 * v) for v in colorsys.hsv_to_rgb(hue % 1, 0.25, 0.95))
    back, fill, line = (
        ((245, 240, 225), pale, bright),
        ((255, 255, 255), bright, (0, 0, 0)),
        ((60, 70, 60), bright, bright),
        ((255, 255, 255), (255, 255, 255), (0, 0, 0)),
    )[domain % 4]
    image = Image.new("RGB", (size, size), back)
    centre = size * rng.uniform(0.42, 0.58, 2)
    radius, turn = size * rng.uniform(0.3, 0.42), rng.uniform(0, 2 * math.pi)
    corners = [
        (
            float(centre[0] + radius * (depth if i % 2 else 1) * math.cos(turn + math.pi * i / points)),
            float(centre[1] + radius * (depth if i % 2 else 1) * math.sin(turn + math.pi * i / points)),
        )
        for i in range(2 * points)
    ]
    ImageDraw.Draw(image).polygon(corners, fill=fill, outline=line, width=max(1, size // 32))
    return image


def _digit(digit: int, rng: np.random.Generator) -> np.ndarray:
    image = Image.new("L", (28, 28), 0)
    x, y = rng.integers(6, 10, 2)
    ImageDraw.Draw(image).text((int(x), int(y) - 4), str(digit), 255, font=ImageFont.load_default(20))
    return np.asarray(image)


def _write_split(file: Path, rows: Sequence[tuple[str, int, str, str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("env", "label", "path", "split"))
    writer.writerows(rows)
    write_whole(file, text.getvalue().encode())


@contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """A folder that grows beside its place and appears there whole, marked as a stand-in."""
    growing = folder.with_name(f".{folder.name}.growing")
    if folder.exists():
        raise InputError(f"'{folder}' exists already: a stand-in never replaces anything; give another `out`.")
    shutil.rmtree(growing, ignore_errors=True)
    try:
        with disk_errors(growing):
            growing.mkdir(parents=True)
            (growing / STAND_IN).write_text("Drawn by 'rcalign data sample': not the data set, and not its size.\n")
            yield growing
            os.rename(growing, folder)
    finally:
        shutil.rmtree(growing, ignore_errors=True)


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise InputError(f"`{name}` is {value}, but must be at least 1.")
