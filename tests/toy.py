"""Small data and networks on which every algorithm can run in milliseconds."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, Network, seeded
from rcalign.types import Batch, DataSpec

CLASSES = 3


class ConvStages(nn.Module):
    """A convolutional featurizer with named stages, like the image backbones: (n, 3, s, s) -> (n, 12)."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        widths = (channels, 6, 8, 12)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.ReLU()) for a, b in itertools.pairwise(widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))


def vector_network(inputs: int = 6, features: int = 8, classes: int = CLASSES) -> Network:
    return Network(nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, features)), features, classes)


def spec(domains: int = 3, images: bool = False, counts: tuple[tuple[int, ...], ...] | None = None) -> DataSpec:
    names = tuple(f"domain{k}" for k in range(domains))
    counts = counts or tuple((20 + 7 * k, 11, 4) for k in range(domains))
    return DataSpec(("ant", "bee", "cat"), names, counts, (3, 8, 8) if images else (6,))


def make(name: str, domains: int = 3, seed: int = 0, **changes: Any) -> Algorithm:
    """An algorithm on a toy network, its first stage (if it has one) trained for two steps."""
    entry = registry.get(name)
    return make_with(name, spaces.defaults(entry.algorithm.Hparams, "arrays", **changes), domains, seed)


def make_with(name: str, hparams: Any, domains: int = 3, seed: int = 0) -> Algorithm:
    entry = registry.get(name)
    images = entry.traits.images_only
    with seeded(seed):
        network = Network(ConvStages(), 12, CLASSES) if images else vector_network()
    model = entry.algorithm(spec(domains, images), network, hparams, seed=seed)
    if entry.traits.stage_one is not None:
        first = make(entry.traits.stage_one, domains, seed)
        for t in range(2):
            advance(first, batch(t, domains=domains, images=takes_images(first)))
        model.start_from(first.state_dict())
    return model


def takes_images(model: Algorithm) -> bool:
    return len(model.spec.input_shape) == 3


def samples(y: np.ndarray, domain: int, rng: np.random.Generator, images: bool) -> Tensor:
    """Separable rows: the class sets one coordinate (or channel), the domain shifts another."""
    x = 0.3 * rng.standard_normal((len(y), 6)).astype(np.float32)
    x[np.arange(len(y)), y] += 2.0
    x[:, 3 + domain % 3] += 0.5
    if not images:
        return torch.from_numpy(x)
    picture = 0.1 * rng.standard_normal((len(y), 3, 8, 8)).astype(np.float32)
    return torch.from_numpy(picture + x[:, :3, None, None])


def batch(
    step: int, sizes: tuple[int, ...] | None = None, *, domains: int = 3, images: bool = False, classes: int = CLASSES
) -> Batch:
    """Batch number ``step``: a pure function of its arguments."""
    rng = np.random.default_rng([step, domains])
    parts = []
    for k, n in enumerate(sizes or (6,) * domains):
        y = rng.integers(classes, size=n)
        parts.append((samples(y, k, rng, images), torch.from_numpy(y)))
    return Batch.from_domains(parts)


def training_set(model: Algorithm) -> Batch:
    """The set that a refresh passes over."""
    return batch(10_000, (30,) * model.spec.num_domains, domains=model.spec.num_domains, images=takes_images(model))


def advance(model: Algorithm, data: Batch) -> dict[str, Any]:
    """One step the way the training loop makes it: a refresh first where one is due."""
    if model.refresh_due():
        whole = training_set(model)
        model.refresh(model.embed(whole.x), whole.y, whole.domain)
    return model.step(data)


def weights(model: Algorithm) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def dark_and_light(root: Path, *, each: int, gap: int, width: int) -> Path:
    """Noise of 32 x 32 pixels as three domains and two classes; light pixels are brighter by ``gap``."""
    rng = np.random.default_rng(0)
    for domain in ("a", "b", "c"):
        for k, label in enumerate(("dark", "light")):
            folder = root / domain / label
            folder.mkdir(parents=True)
            for n in range(each):
                pixels = rng.integers(gap * k, gap * k + width, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{n}.png")
    return root


HOSPITALS = ("north", "south", "east", "west")


def patients(file: Path, rows: int = 60, seed: int = 0) -> Path:
    """Patients of four hospitals: one number tells, one category helps, one is noise with gaps."""
    rng = np.random.default_rng(seed)
    with open(file, "w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["hospital", "marker", "smoker", "noise", "ill"])
        for k, hospital in enumerate(HOSPITALS):
            for _ in range(rows):
                ill = rng.random() < 0.35 + 0.1 * k
                smoker = rng.choice(["never", "daily"], p=[0.3, 0.7] if ill else [0.7, 0.3])
                noise = f"{rng.normal():.3f}" if rng.random() > 0.1 else ""
                writer.writerow([hospital, f"{rng.normal(2.0 * ill + 0.3 * k):.3f}", smoker, noise, "yn"[not ill]])
    return file
