"""RC-Align against ERM: time of a step and peak memory (ResNet-50, 3 domains, 96 px).

With the default batch, DomainBed's 32 images per domain, and for comparison with 8: there a step costs more beside
ERM's, since any pass through the network has a cost of its own that few images do not cover. What that comes to is
measured in a bare torch loop: the same images in two passes instead of one, without any loss of RC-Align's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

import rcalign.algorithms  # noqa: F401  (registers)
from bench.timing import Row, interleaved, peak_memory, ratio, row
from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, BaseHparams, Network, seeded
from rcalign.functional.alignment import centroids
from rcalign.models.backbones import build_backbone
from rcalign.training.task import placed
from rcalign.types import Batch, DataSpec

PER_DOMAIN = BaseHparams().batch_size  # 32
SMALL = 8


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
        made = build_backbone(backbone, spec.input_shape, weights="none")
        network = placed(Network(made.featurizer, made.features, classes), torch.device("cpu"))
    return entry.algorithm(spec, network, spaces.defaults(entry.algorithm.Hparams, "default", **changes), seed=0)


def batch(size: int, per_domain: int = PER_DOMAIN, classes: int = 7, domains: int = 3) -> Batch:
    made = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(domains):
        x = torch.randn(per_domain, 3, size, size, generator=made)
        parts.append((x, torch.randint(classes, (per_domain,), generator=made)))
    data = Batch.from_domains(parts)
    return Batch(data.x.contiguous(memory_format=torch.channels_last), data.y, data.domain, data.index, data.sizes)


def memory(made: Algorithm, per_domain: int) -> float:
    """MiB that an algorithm needs at the highest, its parameters included; libraries, numba's compiler among them
    (130 MiB, once in a process), are loaded before."""
    build = f"load_compiler()\ndata, made = batch(96, {per_domain}), model({made.name!r}, 'resnet50', 96)"
    parameters = sum(p.numel() for p in made.parameters()) * 4 / 2**20
    steps = "for _ in range(4):\n    made.step(data)"
    return peak_memory(f"from bench.core import batch, load_compiler, model\n{build}", steps) + parameters


def load_compiler() -> None:
    """Loads numba with the first function of ours that it has compiled."""
    nothing = torch.zeros(1, dtype=torch.int64)
    centroids(torch.ones(1, 1), nothing, nothing, 1, 1)


def measure() -> list[Row]:
    return [
        *compared(PER_DOMAIN, rounds=4, others=("ERM", "MLDG")),
        *compared(SMALL, rounds=8, others=("ERM",)),
        two_passes(SMALL, rounds=8),
    ]


def two_passes(per_domain: int, rounds: int) -> Row:
    """The least that an episode can cost: two domains' images in one pass and the third's in another."""
    data = batch(96, per_domain)
    network = model("ERM", "resnet50", 96)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
    network.train()

    def step(*parts: slice) -> None:
        optimizer.zero_grad(set_to_none=True)
        for part in parts:
            F.cross_entropy(network(data.x[part])[1], data.y[part]).backward()
        optimizer.step()

    support, query = slice(0, 2 * per_domain), slice(2 * per_domain, 3 * per_domain)
    taken = interleaved({"one": lambda: step(slice(None)), "two": lambda: step(support, query)}, rounds)
    where = f"(ResNet-50, {2 * per_domain} and {per_domain} images of 96 px)"
    return row(f"bare torch loop: two passes / one {where}", ratio(taken, "two", "one"))


def compared(per_domain: int, rounds: int, others: tuple[str, ...]) -> list[Row]:
    """RC-Align's time and memory beside others', interleaved with one of them at a time. Goals are beside ERM."""
    data = batch(96, per_domain)
    ours = model("RC-Align", "resnet50", 96)
    room = memory(ours, per_domain)
    where = f"(ResNet-50, 3 domains x {per_domain} images of 96 px)"
    rows = []
    for name in others:
        other = model(name, "resnet50", 96)
        taken = interleaved({name: lambda m=other: m.step(data), "ours": lambda: ours.step(data)}, rounds)  # type: ignore[misc]
        slower, larger = ratio(taken, "ours", name), room / memory(other, per_domain)
        goals = ("<= 1.12", "<= 1.10") if name == "ERM" else ("none", "none")
        rows.append(row(f"RC-Align step / {name} step {where}", slower, goals[0]))
        rows.append(row(f"RC-Align peak memory / {name} peak memory {where}", larger, goals[1]))
    return rows
