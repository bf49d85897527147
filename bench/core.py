"""RC-Align against ERM: time of a step and peak memory (ResNet-50, 3 domains x 8 images of 96 px)."""

from __future__ import annotations

from typing import Any

import torch

import rcalign.algorithms  # noqa: F401  (registers)
from bench.timing import Row, interleaved, peak_memory, ratio, row
from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, Network, seeded
from rcalign.models.backbones import build
from rcalign.training.task import placed
from rcalign.types import Batch, DataSpec


def model(name: str, backbone: str, size: int, classes: int = 7, domains: int = 3, **changes: Any) -> Algorithm:
    """An algorithm with its default hyperparameters on a randomly initialised backbone: only its cost matters."""
    entry = registry.get(name)
    spec = DataSpec(
        tuple(f"class {c}" for c in range(classes)),
        tuple(f"domain {d}" for d in range(domains)),
        tuple(tuple(20 + 13 * ((c + d) % classes) for c in range(classes)) for d in range(domains)),
        (3, size, size),
    )
    with seeded(0):
        made = build(backbone, spec.input_shape, weights="none")
        network = placed(Network(made.featurizer, made.features, classes), torch.device("cpu"))
    return entry.algorithm(spec, network, spaces.defaults(entry.algorithm.Hparams, "default", **changes), seed=0)


def batch(size: int, per_domain: int = 8, classes: int = 7, domains: int = 3) -> Batch:
    made = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(domains):
        x = torch.randn(per_domain, 3, size, size, generator=made)
        parts.append((x, torch.randint(classes, (per_domain,), generator=made)))
    data = Batch.from_domains(parts)
    return Batch(data.x.contiguous(memory_format=torch.channels_last), data.y, data.domain, data.index, data.sizes)


def memory(made: Algorithm) -> float:
    """MiB that an algorithm needs at the highest, its parameters included."""
    setup = f"from bench.core import batch, model\ndata, made = batch(96), model({made.name!r}, 'resnet50', 96)"
    parameters = sum(p.numel() for p in made.parameters()) * 4 / 2**20
    return peak_memory(setup, "for _ in range(6):\n    made.step(data)") + parameters


def measure(rounds: int = 16) -> list[Row]:
    data = batch(96)
    models = {name: model(name, "resnet50", 96) for name in ("ERM", "RC-Align")}
    models["MLDG-style"] = model("RC-Align", "resnet50", 96, alignment_weight=0.0, mixup_alpha=0.0)
    taken = interleaved({name: lambda m=m: m.step(data) for name, m in models.items()}, rounds)  # type: ignore[misc]
    taken_memory = {name: memory(models[name]) for name in ("ERM", "RC-Align")}
    return [
        row("RC-Align step / ERM step (ResNet-50, 3 domains, 96 px)", ratio(taken, "RC-Align", "ERM"), "<= 1.12"),
        row("RC-Align without alignment and mixup / ERM step", ratio(taken, "MLDG-style", "ERM"), "<= 1.12"),
        row("RC-Align peak memory / ERM peak memory", taken_memory["RC-Align"] / taken_memory["ERM"], "<= 1.10"),
    ]
