"""Style of a feature vector (its mean and spread) and content (what is left), and swaps of either between samples."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-5


def style_and_content(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (n, 1), unbiased variance (n, 1) over each row, and the standardised row (n, h).

    >>> mean, variance, content = style_and_content(torch.tensor([[1.0, 3.0]]))
    >>> mean.item(), variance.item(), [round(v, 4) for v in content[0].tolist()]
    (2.0, 2.0, [-0.7071, 0.7071])
    """
    mean, variance = features.mean(1, keepdim=True), features.var(1, keepdim=True)
    return mean, variance, (features - mean) / (variance + EPSILON).sqrt()


def style_randomized(features: Tensor, weight: Tensor, permutation: Tensor) -> Tensor:
    """Each row with a mix of its own style and that of row ``permutation[i]``: (n, h), (n, 1), (n,) -> (n, h).

    >>> z = torch.tensor([[1.0, 3.0], [0.0, 8.0]])
    >>> torch.allclose(style_randomized(z, torch.ones(2, 1), torch.tensor([1, 0])), z, atol=1e-6)
    True
    """
    mean, variance, content = style_and_content(features)
    mean = weight * mean + (1 - weight) * mean[permutation]
    variance = weight * variance + (1 - weight) * variance[permutation]
    return content * (variance + EPSILON).sqrt() + mean


def content_randomized(features: Tensor, permutation: Tensor) -> Tensor:
    """Each row's style on the content of row ``permutation[i]``, which gets no gradient: (n, h), (n,) -> (n, h).

    >>> z = torch.tensor([[1.0, 3.0], [8.0, 0.0]])
    >>> [[round(v, 2) for v in row] for row in content_randomized(z, torch.tensor([1, 0])).tolist()]
    [[3.0, 1.0], [0.0, 8.0]]
    """
    mean, variance, content = style_and_content(features)
    return content[permutation].detach() * (variance + EPSILON).sqrt() + mean


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """Mean cross-entropy against the uniform distribution over classes: (n, C) -> ().

    >>> uniform_cross_entropy(torch.zeros(2, 4))
    tensor(1.3863)
    """
    return -torch.log_softmax(logits, dim=1).mean()
