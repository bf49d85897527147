"""PCL on its encoder."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rcalign.errors import InputError
from toy import batch, make


def test_weight_zero_is_cross_entropy_on_the_encoder() -> None:
    model = make("PCL", contrast_weight=0.0)
    start = model.training_state()["random"]
    model.step(batch(0))
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert all(not g.any() for name, g in gradients.items() if name.startswith("project"))

    fresh = make("PCL", contrast_weight=0.0)
    fresh.rng.bit_generator.state = start
    fresh.train()
    F.cross_entropy(fresh(batch(0).x)[1], batch(0).y).backward()
    for name, p in fresh.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(gradients[name], p.grad)


def test_contrast_reaches_everything() -> None:
    model = make("PCL")
    model.step(batch(0))
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_head_is_without_bias_on_the_encoded_feature() -> None:
    model = make("PCL", width=7)
    assert model.head.bias is None and model.embed(batch(0).x).shape[1] == 7


def test_a_single_sample_is_refused() -> None:
    with pytest.raises(InputError, match="at least two samples"):
        make("PCL", domains=1).step(batch(0, (1,), domains=1))


def test_published_form_trains_too() -> None:
    model = make("PCL", form="published")
    assert torch.isfinite(model.step(batch(0))["loss"])
