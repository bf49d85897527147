"""Settings of a run that every algorithm must bear: half precision, a frozen backbone."""

from __future__ import annotations

import pytest
import torch

from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, Network, seeded
from rcalign.errors import InputError
from toy import CLASSES, ConvStages, advance, batch, make, spec, takes_images, vector_network, weights

NAMES = registry.names(parts=True)


@pytest.mark.parametrize("name", NAMES)
def test_steps_in_half_precision(name: str) -> None:
    model = make(name)
    for t in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            logs = advance(model, batch(t, images=takes_images(model)))
        assert torch.isfinite(torch.as_tensor(logs["loss"]))
    found = weights(model)
    assert all(torch.isfinite(value).all() for value in found.values())
    assert not any(value.dtype == torch.bfloat16 for value in found.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_backbone_stays_as_it_is(name: str) -> None:
    entry = registry.get(name)
    images = entry.traits.images_only

    def fresh() -> Algorithm:
        with seeded(0):
            network = Network(ConvStages(), 12, CLASSES) if images else vector_network()
        network.featurizer.requires_grad_(False)
        return entry.algorithm(spec(3, images), network, spaces.defaults(entry.algorithm.Hparams, "arrays"))

    if not any(p.requires_grad for p in make(name).head.parameters()):
        with pytest.raises(InputError, match="nothing to train"):
            fresh()
        return
    model = fresh()
    if entry.traits.stage_one is not None:
        model.start_from(make(entry.traits.stage_one).state_dict())
    before = {key: value.clone() for key, value in model.featurizer.state_dict().items()}
    start = weights(model)
    for t in range(3):
        advance(model, batch(t, images=images))
    assert all(torch.equal(before[key], value) for key, value in model.featurizer.state_dict().items())
    assert any(not torch.equal(start[key], value) for key, value in weights(model).items())
