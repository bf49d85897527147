"""MLIR: what its weight switches off, and who moves whom."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from rcalign.types import Batch
from toy import batch, make, weights


def test_weight_zero_gives_plain_gradients() -> None:
    model = make("MLIR", discrepancy_weight=0.0)
    plain = make("ERM")
    model.step(batch(0))
    plain.step(batch(0))
    theirs = dict(plain.named_parameters())
    for name, p in theirs.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, p.grad)


def test_the_head_always_gets_the_plain_gradient() -> None:
    model, plain = make("MLIR"), make("ERM")
    model.step(batch(0))
    plain.step(batch(0))
    torch.testing.assert_close(model.head.weight.grad, plain.head.weight.grad)
    first = next(model.featurizer.parameters())
    assert not torch.allclose(first.grad, next(plain.featurizer.parameters()).grad)


def test_equal_domains_have_no_discrepancy() -> None:
    model = make("MLIR")
    data = batch(0, (6, 6, 6))
    part = (data.x[:6], data.y[:6])
    logs = model.step(Batch.from_domains([part, part, part]))
    assert logs["discrepancy"] == 0 and logs["loss"] == logs["cross_entropy"]


def test_pair_classifiers_climb_and_the_features_stay() -> None:
    model = make("MLIR", pairs_rate=1e-2)
    data = batch(0)
    features = model.embed(data.x)
    rows = {k: (z, y) for k, (z, y) in enumerate(zip(data.split(features), data.split(data.y), strict=True))}
    before = weights(model)
    start = model._discrepancy(rows, [(0, 1)]).item()
    for _ in range(20):
        model._raise(rows, [(0, 1)], splits=1)
    assert model._discrepancy(rows, [(0, 1)]).item() > start
    after = weights(model)
    assert {name for name in after if not torch.equal(before[name], after[name])} == {"pairs.0.weight", "pairs.0.bias"}


def test_gradient_of_a_split_is_the_one_described() -> None:
    """Three domains, one split: steps (2) and (4) done by hand on a copy, with pair classifiers that do not move."""
    options = {"pairs_rate": 0.0, "discrepancy_weight": 2.0, "outer_weight": 3.0, "inner_rate_factor": 5.0}
    model, data = make("MLIR", **options), batch(0, (4, 6, 5))
    parts = list(data.per_domain())
    model.train()
    trained = list(model.featurizer.parameters())
    total = [torch.zeros_like(p) for p in trained]
    model._split(data, model(data.x)[0], 2, [0, 1], trained, total, 3)

    def gap(values: dict[str, torch.Tensor], i: int, j: int, pair: int) -> torch.Tensor:
        losses = []
        for k in (i, j):
            z = torch.func.functional_call(model.featurizer, values, (parts[k].x[:4],))
            losses.append(F.cross_entropy(model.pairs[pair](z), parts[k].y[:4]))
        return (losses[0] - losses[1]).abs()

    here = {name: p.detach().clone().requires_grad_() for name, p in model.featurizer.named_parameters()}
    inner = torch.autograd.grad(gap(here, 0, 1, 0) / 3, list(here.values()))
    rate = 5.0 * model.hparams.featurizer_rate
    there = {
        name: (p.detach() - rate * g / (g.abs() + 1e-8)).requires_grad_()
        for (name, p), g in zip(here.items(), inner, strict=True)
    }
    outer = 2.0 * (gap(there, 0, 2, 1) + gap(there, 1, 2, 2)) / 2
    expected = torch.autograd.grad(outer, list(there.values()))
    for found, value in zip(total, expected, strict=True):
        torch.testing.assert_close(found, 3.0 * value / 3, atol=1e-6, rtol=1e-4)
