"""MIRO: its prior on real stages, and GMDG without its own two terms."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, Network, seeded
from toy import CLASSES, ConvStages, batch, make, spec, weights


def on_images(name: str, **changes: object) -> Algorithm:
    entry = registry.get(name)
    with seeded(0):
        network = Network(ConvStages(), 12, CLASSES)
    return entry.algorithm(spec(images=True), network, spaces.defaults(entry.algorithm.Hparams, "arrays", **changes))


@pytest.mark.parametrize("images", [False, True])
def test_gmdg_without_its_own_terms_is_miro_to_the_bit(images: bool) -> None:
    build = on_images if images else make
    miro = build("MIRO", rate_factor=10.0)
    gmdg = build("GMDG", conditional_weight=0.0, domain_weight=0.0, rate_factor=10.0)
    for t in range(5):
        logs = [model.step(batch(t, images=images)) for model in (miro, gmdg)]
        assert torch.equal(logs[0]["loss"], logs[1]["loss"])
    ours, theirs = weights(miro), weights(gmdg)
    assert ours.keys() < theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_prior_is_the_formula_over_all_layers() -> None:
    model, data = on_images("MIRO", prior_weight=0.5), batch(3, images=True)
    for t in range(2):
        model.step(batch(t, images=True))
    expected = 0.0
    with torch.no_grad():
        a, a0 = data.x, data.x
        layers = []
        for own, given in zip(model.featurizer.stages, model.pretrained.network.stages, strict=True):
            a, a0 = own(a), given(a0)
            layers.append((a, a0))
        layers.append((a.mean((2, 3)), a0.mean((2, 3))))
        assert len(layers) == len(model.layer_variances)
        for (x, y), raw in zip(layers, model.layer_variances, strict=True):
            variance = (F.softplus(raw) + 1e-5).reshape(1, -1, *[1] * (x.dim() - 2))
            expected += float((((x - y) ** 2 / variance) + variance.log()).mean() / 2)
    logs = model.step(data)
    assert float(logs["prior"]) == pytest.approx(expected, rel=1e-5)
    assert float(logs["loss"]) == pytest.approx(float(logs["cross_entropy"]) + 0.5 * expected, rel=1e-5)


def test_the_copy_stays_and_the_variances_learn_faster() -> None:
    model = make("MIRO")
    before = weights(model)
    for t in range(3):
        model.step(batch(t))
    after = weights(model)
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("pretrained"))
    moved = (after["layer_variances.0"] - before["layer_variances.0"]).abs().max()
    assert moved > 5 * (after["head.weight"] - before["head.weight"]).abs().max()
