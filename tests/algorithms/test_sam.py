"""SAM: the gradient of the largest loss nearby, and no trace of the look uphill."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from toy import batch, make, weights


def test_gradient_is_that_of_the_loss_uphill() -> None:
    model, data = make("SAM", radius=0.5), batch(0)
    names = [name for name, _ in model.named_parameters()]

    def gradient(values: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [value.detach().requires_grad_() for value in values]
        logits = torch.func.functional_call(model, dict(zip(names, leaves, strict=True)), (data.x,))[1]
        return list(torch.autograd.grad(F.cross_entropy(logits, data.y), leaves))

    start = [p.detach().clone() for p in model.parameters()]
    first = gradient(start)
    norm = torch.cat([g.flatten() for g in first]).norm()
    expected = gradient([p + 0.5 * g / norm for p, g in zip(start, first, strict=True)])
    logs = model.step(data)
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g, atol=1e-6, rtol=1e-4)
    assert float(logs["perturbed"]) > float(logs["loss"])


def test_a_zero_gradient_is_not_perturbed() -> None:
    model, data = make("SAM", radius=0.5, learning_rate=0.0), batch(0)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.bincount(data.y, minlength=3).float().log())  # the best constant answer
        model.featurizer[2].weight.zero_()
        model.featurizer[2].bias.zero_()
    before = weights(model)
    logs = model.step(data)
    assert all(torch.equal(before[name], value) for name, value in weights(model).items())
    assert torch.isfinite(logs["perturbed"])
