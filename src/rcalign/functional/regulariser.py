"""A regulariser of a linear head with one strength for each weight, and heads trained under it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def weighted_l1(weight: Tensor, strength: Tensor) -> Tensor:
    """R(W) = sum_j strength_j |W_j|: two of (C, h) -> ().

    >>> weighted_l1(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 0.25]]))
    tensor(1.)
    """
    return (strength * weight.abs()).sum()


def adapted_head(
    weight: Tensor, bias: Tensor, features: Tensor, y: Tensor, strength: Tensor, *, rate: float, steps: int
) -> tuple[Tensor, Tensor]:
    """A head after some gradient steps on CE(features, y) + R(weight), as a differentiable function of ``strength``.

    weight (C, h), bias (C,), features (n, h), y (n,), strength (C, h) -> new weight and bias. Neither the features nor
    the head that the steps start from get a gradient.

    >>> new, _ = adapted_head(torch.ones(2, 1), torch.zeros(2), torch.zeros(1, 1), torch.tensor([0]),
    ...                       torch.full((2, 1), 0.5), rate=0.1, steps=2)
    >>> new.flatten().detach()   # no gradient from zero features: 1 - 2 * 0.1 * 0.5
    tensor([0.9000, 0.9000])
    """
    weight, bias = weight.detach().requires_grad_(), bias.detach().requires_grad_()
    features = features.detach()
    for _ in range(steps):
        loss = F.cross_entropy(F.linear(features, weight, bias), y) + weighted_l1(weight, strength)
        towards = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        weight, bias = weight - rate * towards[0], bias - rate * towards[1]
    return weight, bias
