"""Methods of several passes move trained batch-norm statistics in the first pass only; frozen copies never."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rcalign import registry, spaces
from rcalign.algorithms.base import Network, seeded
from toy import CLASSES, batch, spec


def normalised(name: str):
    with seeded(0):
        featurizer = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    entry = registry.get(name)
    return entry.algorithm(spec(), Network(featurizer, 8, CLASSES), spaces.defaults(entry.algorithm.Hparams, "arrays"))


@pytest.mark.parametrize("name", ["SAGM", "SAM", "Arith", "MLIR"])
def test_statistics_move_once_in_a_step(name: str) -> None:
    model = normalised(name)
    for t in range(3):
        model.step(batch(t))
    assert model.featurizer[1].num_batches_tracked == 3


@pytest.mark.parametrize("name", ["GMDG", "MIRO"])
def test_a_frozen_copy_keeps_its_statistics(name: str) -> None:
    model = normalised(name)
    for t in range(3):
        model.step(batch(t))
    assert model.featurizer[1].num_batches_tracked == 3
    kept = model.pretrained.network[1]
    assert (
        kept.num_batches_tracked == 0 and not kept.running_mean.any() and torch.equal(kept.running_var, torch.ones(16))
    )
