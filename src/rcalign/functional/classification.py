"""Cross-entropy, as seen from several domains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def domain_means(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Mean of per-sample values (N,) within each domain: (K,), the rows of domain k being the k-th ``sizes[k]`` rows.

    >>> domain_means(torch.tensor([1.0, 3.0, 5.0]), (2, 1))
    tensor([2., 5.])
    """
    return torch.stack([part.mean() for part in torch.split(values, list(sizes))])


def domain_cross_entropy(logits: Tensor, y: Tensor, sizes: Sequence[int], label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of each domain: logits (N, C), y (N,) -> (K,).

    >>> domain_cross_entropy(torch.zeros(3, 2), torch.tensor([0, 1, 1]), (2, 1))
    tensor([0.6931, 0.6931])
    """
    return domain_means(F.cross_entropy(logits, y, reduction="none", label_smoothing=label_smoothing), sizes)


def mean_square(logits: Tensor) -> Tensor:
    """Mean over samples and classes of the squared logits: (N, C) -> ().

    >>> mean_square(torch.tensor([[1.0, 3.0]]))
    tensor(5.)
    """
    return logits.square().mean()
