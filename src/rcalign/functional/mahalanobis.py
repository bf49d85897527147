"""Covariances of (domain, class) pairs from few samples, and distances under them.

Three forms: ``diagonal``, a variance per pair and dimension (K, C, h); ``pooled``, one covariance of all deviations
from their pair's mean (h, h); ``full``, one covariance per pair (K, C, h, h).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rcalign.functional.alignment import pair_sums

FORMS = ("diagonal", "pooled", "full")
RIDGE = 1e-4  # share of the mean variance that is added to every dimension
SMALLEST = 1e-12  # keeps constant features finite


def covariance_shape(form: str, num_domains: int, num_classes: int, width: int) -> tuple[int, ...]:
    """The shape of what is kept of the covariances, for K domains, C classes and h features.

    >>> covariance_shape("pooled", 3, 7, 512)
    (512, 512)
    """
    pairs = (num_domains, num_classes, width)
    return {"diagonal": pairs, "pooled": (width, width), "full": (*pairs, width)}[form]


def pair_covariance(
    deviation: Tensor, y: Tensor, domain: Tensor, num_domains: int, num_classes: int, form: str
) -> Tensor:
    """Covariance of deviations (n, h) from their pair's mean, divided by the number of rows; shape by ``form``.

    >>> zero = torch.tensor([0, 0])
    >>> pair_covariance(torch.tensor([[-1.0], [1.0]]), zero, zero, 1, 1, "diagonal").tolist()
    [[[1.0]]]
    """
    if form == "pooled":
        return deviation.T @ deviation / len(deviation)
    if form == "diagonal":
        sums, counts = pair_sums(deviation.square(), y, domain, num_domains, num_classes)
        return sums / counts.clamp(min=1)[..., None]
    width = deviation.shape[1]
    found = deviation.new_zeros(num_domains, num_classes, width, width)
    for d in range(num_domains):
        for c in range(num_classes):
            rows = deviation[(domain == d) & (y == c)]
            found[d, c] = rows.T @ rows / max(len(rows), 1)
    return found


def outer(shift: Tensor, counts: Tensor, form: str) -> Tensor:
    """Outer product of each pair's vector (K, C, h) with itself in the shape of ``form``; ``pooled``: mean by counts.

    >>> outer(torch.ones(1, 1, 2), torch.ones(1, 1), "pooled").tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    if form == "diagonal":
        return shift.square()
    if form == "full":
        return shift[..., None] * shift[..., None, :]
    share = (counts / counts.sum().clamp(min=1)).to(shift).flatten()
    flat = shift.flatten(0, 1)
    return (share[:, None] * flat).T @ flat


def shrunk(covariance: Tensor, counts: Tensor, form: str, strength: float, ridge: float = RIDGE) -> Tensor:
    """S_p = (1 - r_p) Sigma_p + r_p Sigma_pool + eps I, the same shape as ``covariance``.

    r_p = strength / (N_p + strength), and one for N_p <= 1; Sigma_pool = sum_p N_p Sigma_p / sum_p N_p;
    eps = ridge * trace(Sigma_pool) / h. Form ``pooled``: Sigma_pool + eps I. counts (K, C): N_p.

    >>> shrunk(torch.tensor([[[4.0], [0.0]]]), torch.tensor([[10, 1]]), "diagonal", 10.0, ridge=0.0).flatten()
    tensor([3.8182, 3.6364])
    """
    width = covariance.shape[-1]
    if form == "pooled":
        return covariance + _ridge(covariance.diagonal().mean(), ridge) * torch.eye(width).to(covariance)
    n = counts.to(covariance)
    r = torch.where(n > 1, strength / (n + strength), 1.0)
    n, r = (t.reshape(*t.shape, *[1] * (covariance.ndim - 2)) for t in (n, r))
    pool = (n * covariance).sum((0, 1)) / n.sum().clamp(min=1)  # (h,) or (h, h)
    mixed = (1 - r) * covariance + r * pool
    if form == "diagonal":
        return mixed + _ridge(pool.mean(), ridge)
    return mixed + _ridge(pool.diagonal().mean(), ridge) * torch.eye(width).to(covariance)


def _ridge(mean_variance: Tensor, ridge: float) -> Tensor:
    return (ridge * mean_variance).clamp(min=SMALLEST)


def whitening(shrunk_covariance: Tensor, form: str) -> Tensor:
    """W with W S W^T = I, the same shape: 1 / sqrt(S) for ``diagonal``, else the inverse of the Cholesky factor.

    Computed in float64: with fewer samples than dimensions S is as ill-conditioned as its ridge allows.

    >>> whitening(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), "pooled").tolist()
    [[0.5, 0.0], [0.0, 1.0]]
    """
    exact = shrunk_covariance.to("cpu", torch.float64)  # not every device has float64
    if form == "diagonal":
        return exact.rsqrt().to(shrunk_covariance)
    factor = torch.linalg.cholesky(exact)
    eye = torch.eye(exact.shape[-1]).to(exact)
    return torch.linalg.solve_triangular(factor, eye, upper=False).to(shrunk_covariance)


def mahalanobis_distances(features: Tensor, centroids: Tensor, whiten: Tensor, form: str) -> Tensor:
    """||W_p (z_i - mu_p)|| / sqrt(h); the gradient at distance zero is zero: (n, h), (K, C, h) -> (n, K * C).

    >>> z, mu = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 1, 2)
    >>> mahalanobis_distances(z, mu, torch.ones(1, 1, 2), "diagonal") * 2**0.5
    tensor([[5.]])
    """
    width = features.shape[1]
    flat = centroids.flatten(0, 1)
    if form == "pooled":
        z, mu = features @ whiten.T, flat @ whiten.T
        return torch.cdist(z, mu, compute_mode="donot_use_mm_for_euclid_dist") / width**0.5
    if form == "full":
        whitened = torch.einsum("pab,npb->npa", whiten.flatten(0, 1), features[:, None] - flat)
        squares = whitened.square().sum(2)
    else:
        # (z - mu)^2 / s summed by matrix products: no (n, K * C, h) table. Centred first, against cancellation
        center = flat.mean(0)
        z, mu, weight = features - center, flat - center, whiten.flatten(0, 1).square()
        squares = z.square() @ weight.T - 2 * z @ (weight * mu).T + (weight * mu.square()).sum(1)
    tiny = torch.finfo(squares.dtype).tiny
    return torch.where(squares > tiny, squares, 0.0).clamp(min=tiny).sqrt() / width**0.5
