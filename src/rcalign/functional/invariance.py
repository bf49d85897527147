"""Penalties on a classifier that is not equally good in every domain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def scale_gradients(logits: Tensor, y: Tensor) -> Tensor:
    """Derivative of each sample's cross-entropy by a factor s on its logits, at s = 1: (n, C), (n,) -> (n,).

    d/ds CE(s * logits_i, y_i) = sum_c (softmax(logits_i)_c - 1[c = y_i]) * logits_ic, in closed form so that a penalty
    on it needs no second backward pass.

    >>> scale_gradients(torch.zeros(1, 3), torch.tensor([2])), scale_gradients(torch.eye(2), torch.tensor([0, 0]))
    (tensor([0.]), tensor([-0.2689,  0.7311]))
    """
    return (logits.softmax(1) * logits).sum(1) - logits.gather(1, y[:, None]).squeeze(1)


def invariance_penalty(logits: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
    """IRMv1's penalty of each domain, an unbiased estimate of a squared gradient: logits (N, C), y (N,) -> (K,).

    The mean derivative of the even rows times that of the odd rows; may be negative. One row alone is squared (biased).

    >>> logits, y = torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0])
    >>> torch.allclose(invariance_penalty(logits, y, (2,)), scale_gradients(logits, y)[:1] ** 2)
    True
    """
    parts = torch.split(scale_gradients(logits, y), list(sizes))
    return torch.stack([part[::2].mean() * (part[1::2] if len(part) > 1 else part).mean() for part in parts])


def risk_variance(risks: Tensor) -> Tensor:
    """(1/K) sum_d (r_d - mean r)^2: (K,) -> ().

    >>> risk_variance(torch.tensor([1.0, 3.0]))
    tensor(1.)
    """
    return (risks - risks.mean()).square().mean()


def reweighted_log(log_weights: Tensor, risks: Tensor, rate: float) -> Tensor:
    """Exponentiated-gradient step on domain weights, in logarithms: log of q_d exp(rate r_d) / sum. (K,), (K,) -> (K,).

    In logarithms a weight that becomes tiny can come back.

    >>> reweighted_log(torch.zeros(2), torch.tensor([1.0, 0.0]), rate=1.0).exp()
    tensor([0.7311, 0.2689])
    """
    return F.log_softmax(log_weights + rate * risks.detach(), dim=0)
