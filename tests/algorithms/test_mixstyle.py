"""MixStyle: where it mixes, and where it must not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rcalign import registry, spaces
from rcalign.errors import InputError
from toy import batch, make, spec, vector_network


def test_mixing_changes_training_but_not_the_network() -> None:
    model, plain = make("MixStyle", probability=1.0), make("MixStyle", probability=0.0)
    data = batch(0, images=True)
    mixed = model.loss(model.begin_step(data)).loss
    assert not torch.allclose(mixed, plain.loss(plain.begin_step(data)).loss)
    assert all(not stage._forward_hooks for stage in model.featurizer.stages)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(model.predict(data.x), plain.predict(data.x))


def test_probability_zero_is_cross_entropy() -> None:
    model = make("MixStyle", probability=0.0)
    data = batch(0, images=True)
    loss = model.loss(model.begin_step(data)).loss
    assert torch.equal(loss, F.cross_entropy(model(data.x)[1], data.y))


def test_one_sample_has_no_one_to_mix_with() -> None:
    model, plain = make("MixStyle", domains=1, probability=1.0), make("MixStyle", domains=1, probability=0.0)
    data = batch(0, (1,), domains=1, images=True)
    ours, theirs = (m.loss(m.begin_step(data)).loss for m in (model, plain))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(6, 6, 6), (1, 4, 2)])
def test_partners_of_other_domains(sizes: tuple[int, ...]) -> None:
    model = make("MixStyle", partners="other_domains", probability=1.0)
    assert torch.isfinite(model.step(batch(0, sizes, images=True))["loss"])


def test_one_domain_has_no_other() -> None:
    with pytest.raises(InputError, match="domain0"):
        make("MixStyle", domains=1, partners="other_domains")


def test_a_backbone_without_stages_is_refused_with_the_names_of_those_that_have_them() -> None:
    entry = registry.get("MixStyle")
    with pytest.raises(InputError, match=r"no such stages: use a ResNet, EfficientNet"):
        entry.algorithm(spec(), vector_network(), spaces.defaults(entry.algorithm.Hparams))
