"""What one worker of the test does: some steps of each case in float64; the first worker writes what came of them.

python dividing.py OUT CASE...
"""

from __future__ import annotations

import itertools
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rcalign import distributed, registry, spaces
from rcalign.algorithms.base import Network, seeded
from rcalign.checkpoints import save_weights
from rcalign.distributed import TRAFFIC, DividedRows, workers
from rcalign.types import Batch
from toy import CLASSES, ConvStages, batch, make, spec, takes_images, training_set

STEPS = 20
TOLERANCE = 1e-10
ROWS = 7  # of each domain: not divisible by two or three


class NormedStages(ConvStages):
    """Stages with batch norm, which trains."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 6, 8, 12)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        )


def cases() -> list[str]:
    """Every algorithm with its defaults, and what the defaults leave out: maps, batch norm, second order."""
    return [
        *registry.names(parts=True),
        "GMDG images",
        "TRM start_step=2",
        "ERM normed",
        "MTL normed",
        "RC-Align normed",
        "RC-Align meta_gradient=exact meta_step=sgd",
    ]


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    found = {key: value for key, value in found.items() if not key.startswith("sent.")}
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda m, k=key: f"{k}: {m}")


def in_double(data: Batch) -> Batch:
    return replace(data, x=data.x.double())


def train(case: str, accumulate: int = 1) -> dict[str, Tensor]:
    """Weights, losses of the steps and predictions, on as many workers as there are; rows of others are not numbers."""
    name, *more = case.split()
    changes: dict[str, Any] = dict(item.split("=") for item in more if "=" in item)
    if {"images", "normed"} & set(more):
        entry = registry.get(name)
        with seeded(0):
            network = Network(NormedStages() if "normed" in more else ConvStages(), 12, CLASSES)
        hparams = spaces.defaults(entry.algorithm.Hparams, "arrays", batch_size=ROWS)
        model = entry.algorithm(spec(3, images=True), network, hparams, seed=0)
    else:
        model = make(name, dropout=0.1, batch_size=ROWS, **changes)
    model.double()
    if "compiled" in more:
        model.featurizer.compile()
    model.optimizers = model.make_optimizers()
    for group in [group for optimizer in model.optimizers.values() for group in optimizer.param_groups]:
        group["eps"] = 1e-4  # a bias before batch norm has gradient zero: Adam would make steps of its rounding
    domains = model.spec.num_domains
    divided = [DividedRows(network, ROWS, accumulate, domains=domains) for network in model.row_networks]
    own = workers().positions(domains, ROWS)
    losses = []
    for step in range(STEPS):
        if model.refresh_due():
            whole = in_double(training_set(model))
            model.refresh(model.embed(whole.x), whole.y, whole.domain)
        data = in_double(batch(step, (ROWS,) * model.spec.num_domains, images=takes_images(model)))
        x = torch.full_like(data.x, torch.nan)
        x[own] = data.x[own]
        with ExitStack() as stack:
            for part in divided:
                stack.enter_context(part)
            losses.append(float(model.step(replace(data, x=x))["loss"]))
    sent = {f"sent.{kind}": torch.tensor(number) for kind, number in TRAFFIC.sent.items()}
    TRAFFIC.sent.clear()
    unseen = in_double(batch(999, images=takes_images(model)))
    return {
        **{f"weights.{key}": value.detach().clone() for key, value in model.state_dict().items()},
        **sent,
        "losses": torch.tensor(losses, dtype=torch.float64),
        "predictions": model.predict(unseen.x),
    }


def main() -> None:
    out, *names = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.ARRIVAL_SECONDS = 1200  # imports may take long beside other work
    with distributed.process_group():
        train_all(Path(out), names)


def train_all(out: Path, names: list[str]) -> None:
    failures = {}
    for case in names:
        try:
            found = train(case)
        except Exception as error:  # the test says which case it was
            failures[case] = f"{type(error).__name__}: {error}"
            continue
        if workers().is_first:
            save_weights(out / f"{case}.safetensors", {k: v.contiguous() for k, v in found.items()})
    if workers().is_first:
        (out / "failures.json").write_text(json.dumps(failures))


if __name__ == "__main__":
    main()
