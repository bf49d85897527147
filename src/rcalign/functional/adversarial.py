"""What a domain discriminator is trained with."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

PenaltyForm = Literal["cross_entropy", "softmax"]


def class_balanced_weights(y: Tensor, num_classes: int | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """1 / (samples of the label in the batch * number of classes): (n,) -> (n,).

    ``num_classes`` defaults to the classes present, so that the weights sum to one.

    >>> class_balanced_weights(torch.tensor([0, 0, 5])), class_balanced_weights(torch.tensor([0, 0, 5]), 6).sum()
    (tensor([0.2500, 0.2500, 0.5000]), tensor(0.3333))
    """
    _, position, counts = torch.unique(y, return_inverse=True, return_counts=True)
    return 1 / (counts[position] * (len(counts) if num_classes is None else num_classes)).to(dtype)


def input_gradient_penalty(inputs: Tensor, logits: Tensor, domain: Tensor, form: PenaltyForm) -> Tensor:
    """Mean squared norm of the gradient, by each input row (n, h), of a sum over the discriminator's logits (n, K).

    cross_entropy: the sum of cross-entropies with the domains (n,). softmax: the sum over rows i and over all labels j
    of softmax(logits_i)[domain_j], a published slip: constant, so the penalty is zero, where domains are equally
    frequent. Differentiable.

    >>> x = torch.ones(2, 1, requires_grad=True)
    >>> logits = torch.cat([x, -x], 1)
    >>> both = torch.tensor([0, 1])
    >>> [round(input_gradient_penalty(x, logits, both, form).item(), 2) for form in ("cross_entropy", "softmax")]
    [1.58, 0.0]
    """
    if form == "cross_entropy":
        total = F.cross_entropy(logits, domain, reduction="sum")
    else:
        total = (logits.softmax(1) * torch.bincount(domain, minlength=logits.shape[1])).sum()
    (gradient,) = torch.autograd.grad(total, inputs, create_graph=True)
    return gradient.square().sum(1).mean()


def taken_for_noise(logits: Tensor) -> Tensor:
    """Mean cross-entropy of calling features noise, from logits (n, 1) that are high for noise: ().

    >>> taken_for_noise(torch.zeros(2, 1))
    tensor(0.6931)
    """
    return F.binary_cross_entropy_with_logits(logits[:, 0], torch.ones_like(logits[:, 0]))


def told_from_noise(
    noise: Tensor, features: Tensor, noise_target: Tensor, feature_target: Tensor, feature_weight: float
) -> Tensor:
    """What a discriminator of noise (target near 1) from features (near 0) descends: logits (n, 1), targets (n,) -> ().

    >>> told_from_noise(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1), torch.zeros(1), feature_weight=1.0)
    tensor(1.3863)
    """
    of_noise = F.binary_cross_entropy_with_logits(noise[:, 0], noise_target)
    return of_noise + feature_weight * F.binary_cross_entropy_with_logits(features[:, 0], feature_target)
