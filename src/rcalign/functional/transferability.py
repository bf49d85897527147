"""How a classifier of one domain fares on the others: risks, and first-order and second-order terms of its weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.functional.classification import domain_cross_entropy


def largest_gap(risks: Tensor) -> Tensor:
    """The largest minus the smallest of the domains' risks: (K,) -> (). Where several are, the first of them counts.

    >>> largest_gap(torch.tensor([0.5, 2.0, 1.0]))
    tensor(1.5000)
    """
    return risks[risks.argmax()] - risks[risks.argmin()]


def into_ball(point: Sequence[Tensor], centre: Sequence[Tensor], radius: float) -> list[Tensor]:
    """The nearest point to ``point`` within ``radius`` of ``centre``, all tensors taken as one vector.

    >>> into_ball([torch.tensor([3.0]), torch.tensor([4.0])], [torch.zeros(1), torch.zeros(1)], 1.0)
    [tensor([0.6000]), tensor([0.8000])]
    """
    apart = [a - b for a, b in zip(point, centre, strict=True)]
    distance = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in apart]))
    if float(distance) <= radius:
        return list(point)
    return [b + radius / distance * part for b, part in zip(centre, apart, strict=True)]


def fitted_classifier(
    features: Tensor, y: Tensor, weight: Tensor, bias: Tensor, rate: float, steps: int
) -> tuple[Tensor, Tensor]:
    """A linear classifier after gradient steps on its mean cross-entropy: features (n, h), weight (C, h), bias (C,).

    >>> z, y = torch.eye(2), torch.tensor([0, 1])
    >>> w, b = fitted_classifier(z, y, torch.zeros(2, 2), torch.zeros(2), rate=1.0, steps=1)
    >>> w
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """
    for _ in range(steps):
        residual = _residual(F.linear(features, weight, bias), y)
        weight = weight - rate * residual.T @ features / len(y)
        bias = bias - rate * residual.mean(0)
    return weight, bias


def weight_gradient(features: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy by the classifier's weight, (C, h); differentiable by features (n, h).

    >>> weight_gradient(torch.eye(2), torch.tensor([0, 1]), torch.zeros(2, 2), torch.zeros(2))
    tensor([[-0.2500,  0.2500],
            [ 0.2500, -0.2500]])
    """
    return _residual(F.linear(features, weight, bias), y).T @ features / len(y)


def hessian_product(features: Tensor, probabilities: Tensor, direction: Tensor) -> Tensor:
    """The Hessian of the mean cross-entropy by the classifier's weight, times a direction (C, h): (C, h).

    features (n, h), probabilities (n, C): the classifier's. In closed form:
    (1/n) sum_i [p_i * u_i - p_i (p_i . u_i)] z_i^T with u_i = direction z_i.

    >>> hessian_product(torch.ones(1, 1), torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0], [0.0]]))
    tensor([[ 0.2500],
            [-0.2500]])
    """
    moved = probabilities * F.linear(features, direction)  # (n, C)
    moved = moved - probabilities * moved.sum(1, keepdim=True)
    return moved.T @ features / len(features)


def inverse_hessian_series(
    vector: Tensor,
    features: Tensor,
    probabilities: Tensor,
    *,
    terms: int = 10,
    limit: float = 10.0,
    published: bool = False,
) -> Tensor:
    """The Neumann series v + (I - H) v + ... + (I - H)^terms v, an estimate of H^-1 v: (C, h) -> (C, h).

    H as in ``hessian_product``. Stops once an entry of the sum exceeds ``limit`` in size: the series does not converge.
    published: the public code's sum, in which the first term is overwritten by the second.

    >>> z, p = torch.ones(1, 1), torch.tensor([[0.5, 0.5]])
    >>> v = torch.tensor([[1.0], [-1.0]])                        # H v = v / 2
    >>> inverse_hessian_series(v, z, p, terms=2)[0]              # 1 + 1/2 + 1/4
    tensor([1.7500])
    >>> inverse_hessian_series(v, z, p, terms=2, published=True)[0]
    tensor([1.2500])
    """
    total = vector
    for k in range(terms):
        vector = vector - hessian_product(features, probabilities, vector)
        if published and k == 0:
            total = vector
        total = total + vector
        if float(total.abs().max()) > limit:
            break
    return total


def transfer_risks(features: Tensor, y: Tensor, sizes: Sequence[int], weights: Tensor, biases: Tensor) -> Tensor:
    """The mean cross-entropy of each domain's classifier on each domain: (K, K), row q for classifier q.

    features (N, h) grouped by domain, weights (K, C, h), biases (K, C).

    >>> transfer_risks(torch.zeros(3, 4), torch.tensor([0, 1, 1]), (2, 1), torch.zeros(2, 2, 4), torch.zeros(2, 2))
    tensor([[0.6931, 0.6931],
            [0.6931, 0.6931]])
    """
    return torch.stack(
        [domain_cross_entropy(F.linear(features, w, b), y, sizes) for w, b in zip(weights, biases, strict=True)]
    )


def _residual(logits: Tensor, y: Tensor) -> Tensor:
    """Probabilities minus the one-hot labels: (n, C)."""
    return logits.softmax(1) - F.one_hot(y, logits.shape[1]).to(logits.dtype)
