"""Cross-entropy, as seen from several domains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.functional.known_gradient import for_loops, numbers, with_gradient


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


def grouped_cross_entropy(
    logits: Tensor,
    y: Tensor,
    domain: Tensor,
    *,
    group: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    label_smoothing: float = 0.0,
    twice: bool = False,
) -> Tensor:
    """sum_sg weight_sg * (mean cross-entropy of the rows of group g with their s-th labels).

    logits (n, C); y, domain (s, n): a row may have several labels, each with a domain, whose offsets (K, C) are added
    to the row's logits; group (n,) positions in the columns of weight (s, g). On a CPU value and gradient are computed
    together, by compiled loops. twice: the gradient may itself be differentiated, which is left to autograd.

    >>> one = torch.zeros(1, 2, dtype=torch.int64)
    >>> grouped_cross_entropy(torch.zeros(2, 4), one, one, group=one[0], weight=torch.ones(1, 1))
    tensor(1.3863)
    """
    if not twice and for_loops(logits):
        from rcalign.functional.row_kernels import cross_entropies  # here and not above: compiled when it is needed

        values = numbers(logits)
        gradient = np.empty_like(values)
        added = np.zeros((int(domain.max()) + 1, logits.shape[1]), np.float32) if offsets is None else numbers(offsets)
        arrays = values, *map(numbers, (y, domain, group, weight)), added
        return with_gradient(logits, cross_entropies(*arrays, label_smoothing, gradient), gradient)
    rows = weight.new_zeros(weight.shape[1]).index_add_(0, group, weight.new_ones(len(group)))
    adjusted = (logits if offsets is None else logits + offsets[domain]).expand(*y.shape, -1)
    of_rows = F.cross_entropy(
        adjusted.reshape(y.numel(), -1), y.reshape(-1), reduction="none", label_smoothing=label_smoothing
    )
    each = (weight / rows).index_select(1, group)  # (s, n)
    return torch.dot(each.reshape(-1).to(of_rows.dtype), of_rows)  # half-precision logits with offsets are single


def mean_square(logits: Tensor) -> Tensor:
    """Mean over samples and classes of the squared logits: (N, C) -> ().

    >>> mean_square(torch.tensor([[1.0, 3.0]]))
    tensor(5.)
    """
    return logits.square().mean()
