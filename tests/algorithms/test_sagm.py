"""SAGM: closed forms, and no trace of the look uphill."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm
from toy import batch, make, weights


def gradients(model: Algorithm) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def plain(model: Algorithm, shift: float = 0.0) -> dict[str, torch.Tensor]:
    """The gradient of the loss at theta + shift * grad."""
    data = batch(0)

    def at(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        loss = F.cross_entropy(torch.func.functional_call(model, values, (data.x,))[1], data.y)
        return dict(zip(values, torch.autograd.grad(loss, list(values.values())), strict=True))

    here = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    first = at(here)
    return at({name: (p.detach() + shift * first[name]).requires_grad_() for name, p in here.items()})


def test_gradient_is_the_mean_of_both_passes() -> None:
    model = make("SAGM", radius=0.5, alpha=0.2)
    first = plain(model)
    norm = torch.cat([g.flatten() for g in first.values()]).norm()
    second = plain(model, (0.5 / norm - 0.2).item())
    model.step(batch(0))
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, (first[name] + second[name]) / 2, atol=1e-6, rtol=1e-4)


def test_alpha_that_undoes_the_radius_gives_the_plain_gradient() -> None:
    model = make("SAGM")
    first = plain(model)
    norm = torch.cat([g.flatten() for g in first.values()]).norm().item()
    model = make("SAGM", radius=0.05, alpha=0.05 / norm)
    model.step(batch(0))
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, first[name], atol=1e-6, rtol=1e-4)


def test_parameters_are_those_of_before_when_the_optimizer_steps() -> None:
    model = make("SAGM", radius=10.0, learning_rate=0.0)
    before = weights(model)
    model.step(batch(0))
    assert all(torch.equal(before[name], value) for name, value in weights(model).items())


def test_frozen_parameters_are_not_perturbed() -> None:
    model = make("SAGM")
    for p in model.featurizer.parameters():
        p.requires_grad_(False)
    model.step(batch(0))
    assert all(p.grad is None for p in model.featurizer.parameters())
