"""GMDG: its special cases, and the copy it keeps."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional as F

from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, Network, seeded
from rcalign.checkpoints import load_state, save_state
from toy import CLASSES, ConvStages, batch, make, spec, weights


def on_images(**changes: object) -> Algorithm:
    entry = registry.get("GMDG")
    with seeded(0):
        network = Network(ConvStages(), 12, CLASSES)
    return entry.algorithm(spec(images=True), network, spaces.defaults(entry.algorithm.Hparams, "arrays", **changes))


def test_prior_pulls_nothing_where_nothing_has_moved() -> None:
    model, plain = make("GMDG", conditional_weight=0.0, domain_weight=0.0, prior_weight=5.0), make("ERM")
    model.step(batch(0))
    plain.step(batch(0))
    theirs = dict(plain.named_parameters())
    for name, p in model.named_parameters():
        if name in theirs:
            torch.testing.assert_close(p.grad, theirs[name].grad)
    assert model.layer_variances[0].grad.any()  # but the variances shrink
    first = next(p for p in model.featurizer.parameters())
    model.step(batch(1))
    plain.step(batch(1))
    assert not torch.allclose(first.grad, next(plain.featurizer.parameters()).grad)


def test_without_the_new_terms_it_is_miro() -> None:
    model = on_images(conditional_weight=0.0, domain_weight=0.0)
    for t in range(2):
        model.step(batch(t, images=True))
    data = batch(2, images=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logs = model.step(data)

    expected, x, x0 = 0.0, data.x, data.x
    twin = on_images()
    twin.load_state_dict(before)
    layers = zip(twin.featurizer.stages, twin.pretrained.network.stages, strict=True)
    for raw, (stage, stage0) in zip(twin.layer_variances, layers, strict=False):
        x, x0 = stage(x), stage0(x0)
        variance = (F.softplus(raw) + 1e-5)[:, None, None]
        expected += (((x - x0) ** 2 / variance) + variance.log()).mean() / 2
    variance = F.softplus(twin.layer_variances[-1]) + 1e-5
    expected += ((x.mean((2, 3)) - x0.mean((2, 3))) ** 2 / variance + variance.log()).mean() / 2
    torch.testing.assert_close(logs["prior"], expected.detach())
    torch.testing.assert_close(logs["loss"], logs["cross_entropy"] + 0.1 * logs["prior"])
    assert logs["conditional"] == logs["cross_domain"] == 0


def test_one_variance_for_each_channel_of_each_stage_and_the_features() -> None:
    assert [len(raw) for raw in on_images().layer_variances] == [6, 8, 12, 12]
    assert [len(raw) for raw in make("GMDG").layer_variances] == [8]


def test_the_copy_stays_and_survives_a_save(tmp_path: Path) -> None:
    model = make("GMDG", learning_rate=1e-2)
    start = {name: value.clone() for name, value in model.featurizer.state_dict().items()}
    for t in range(3):
        model.step(batch(t))
    kept = model.pretrained.network.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in start.items())
    assert any(not torch.equal(model.featurizer.state_dict()[name], value) for name, value in start.items())
    save_state(tmp_path / "state", model.training_state())
    other = make("GMDG", seed=7)
    other.load_training_state(load_state(tmp_path / "state"))
    assert all(torch.equal(other.pretrained.network.state_dict()[name], value) for name, value in start.items())


def test_the_label_network_does_not_move_the_head() -> None:
    model = make("GMDG")
    before = weights(model)
    model._train_labels(batch(0).y)
    changed = {name for name, value in weights(model).items() if not torch.equal(before[name], value)}
    assert changed and all(name.startswith("label_layers") for name in changed)


def test_conditional_gradient_is_as_large_as_that_of_the_loss() -> None:
    model, data = make("GMDG"), batch(0)
    model.train()
    features, logits = model(data.x)
    ce = F.cross_entropy(logits, data.y)
    term = model._conditional(ce, features, model._train_labels(data.y))
    (of_ce,) = torch.autograd.grad(ce, features, retain_graph=True)
    (of_term,) = torch.autograd.grad(term, features)
    torch.testing.assert_close(of_term.max(), of_ce.max(), rtol=1e-3, atol=0)


def test_cross_domain_term_by_hand() -> None:
    model, data = make("GMDG"), batch(0, (2, 4, 3))
    features, embedded = torch.randn(9, 8), torch.randn(9, 8)
    joint = torch.cat([features, embedded], 1)
    parts = [joint[:2], joint[2:4], joint[6:8]]
    mean = sum(parts) / 3
    expected = sum(((mean - part) ** 2 / 0.1 + torch.tensor(0.1).log()).mean() / 2 for part in parts) / 3
    found = model._across_domains(features, embedded, data)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_label_as_unit_vector() -> None:
    model = make("GMDG", label_input="one_hot")
    assert torch.isfinite(model.step(batch(0))["loss"])
    assert model.label_layers[0].in_features == CLASSES
