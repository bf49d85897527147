"""Distances between domains' feature distributions: by first and second moments, by kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GAUSSIAN_RATES = tuple(10.0**power for power in range(-3, 4))


def moment_gap(parts: Sequence[Tensor]) -> Tensor:
    """Mean over pairs of domains of (1/h) ||mu_i - mu_j||^2 + (1/h^2) ||S_i - S_j||_F^2, S with 1/(n - 1).

    parts: K tensors (n_k, h). A domain of one row has no covariance and is left out of the second term only. The sum
    over pairs is taken as K sum_i ||a_i - mean a||^2: K covariances, no K(K - 1)/2 differences of them.

    >>> x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]])
    >>> moment_gap([x, y]), moment_gap([x, x]), moment_gap([x])
    (tensor(1.), tensor(0.), tensor(0.))
    """
    width, pairs = parts[0].shape[1], len(parts) * (len(parts) - 1) / 2
    if not pairs:
        return parts[0].new_zeros(())
    means = torch.stack([part.mean(0) for part in parts])
    total = _pairwise_squares(means) / width
    centred = [part - mean for part, mean in zip(parts, means, strict=True) if len(part) > 1]
    if len(centred) > 1:
        covariances = torch.stack([part.T @ part / (len(part) - 1) for part in centred])
        total = total + _pairwise_squares(covariances) / width**2
    return total / pairs


def within_variance(features: Tensor, sizes: Sequence[int]) -> Tensor:
    """Mean over domains of the mean over features of their variance within the domain, with 1/(n - 1): (N, h) -> ().

    A domain of one row has no variance and counts as 0.

    >>> within_variance(torch.tensor([[0.0], [2.0], [5.0]]), (2, 1))
    tensor(1.)
    """
    parts = [part.var(0).mean() for part in torch.split(features, list(sizes)) if len(part) > 1]
    return torch.stack(parts).sum() / len(sizes) if parts else features.new_zeros(())


def cut_apart(features: Tensor, sizes: Sequence[int], cuts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The first ``cuts[k]`` rows of every domain k, and the other rows: features (N, h) -> (m, h), (N - m, h).

    >>> first, second = cut_apart(torch.arange(5)[:, None], (3, 2), (1, 2))
    >>> first.flatten().tolist(), second.flatten().tolist()
    ([0, 3, 4], [1, 2])
    """
    parts = torch.split(features, list(sizes))
    first = torch.cat([part[:cut] for part, cut in zip(parts, cuts, strict=True)])
    return first, torch.cat([part[cut:] for part, cut in zip(parts, cuts, strict=True)])


def _pairwise_squares(stacked: Tensor) -> Tensor:
    """Sum over pairs i < j of ||a_i - a_j||^2, a stacked (K, ...)."""
    return len(stacked) * (stacked - stacked.mean(0)).square().sum()


def kernel_gap(
    features: Tensor, sizes: Sequence[int], *, unbiased: bool = False, rates: Sequence[float] = GAUSSIAN_RATES
) -> Tensor:
    """Mean over pairs of domains of mean k(X, X) + mean k(Y, Y) - 2 mean k(X, Y).

    k(a, b) = sum over rates g of exp(-g ||a - b||^2). features (N, h): domain k has the k-th ``sizes[k]`` rows.
    unbiased: a sample is not compared with itself (where a domain has more than one row); may be negative.

    >>> x = torch.tensor([[0.0], [1.0]])
    >>> kernel_gap(torch.cat([x, x]), (2, 2)).item(), round(kernel_gap(torch.tensor([[0.0], [9.0]]), (1, 1)).item(), 2)
    (0.0, 11.27)
    """
    pairs = len(sizes) * (len(sizes) - 1) / 2
    if not pairs:
        return features.new_zeros(())
    # by differences: the matrix product form loses the small distances that the large rates look at
    squares = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").square().clamp(min=1e-30)
    kernel = torch.stack([torch.exp(-rate * squares) for rate in rates]).sum(0)  # (N, N)
    rows = torch.stack([part.mean(0) for part in torch.split(kernel, list(sizes))])  # (K, N)
    means = torch.stack([part.mean(1) for part in torch.split(rows, list(sizes), dim=1)])  # (K, K)
    if unbiased:
        n = means.new_tensor(sizes)
        within = torch.where(n > 1, (n * means.diagonal() - len(rates)) / (n - 1).clamp(min=1), means.diagonal())
        means = means - torch.diag(means.diagonal() - within)
    # sum over i < j of m_ii + m_jj - 2 m_ij = K trace(m) - sum(m)
    return (len(sizes) * means.diagonal().sum() - means.sum()) / pairs
