"""Closeness under a Gaussian with learned variances, and the part of features that labels explain."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

SMALLEST_VARIANCE = 1e-5


def variance_of(raw: Tensor) -> Tensor:
    """softplus(raw) + 1e-5: a positive variance from a free parameter.

    >>> variance_of(torch.tensor(raw_variance(0.1)))
    tensor(0.1000)
    """
    return F.softplus(raw) + SMALLEST_VARIANCE


def raw_variance(variance: float) -> float:
    """The free parameter that ``variance_of`` maps to this variance."""
    return math.log(math.expm1(variance - SMALLEST_VARIANCE))


def gaussian_gap(values: Tensor, target: Tensor, variance: Tensor) -> Tensor:
    """mean((values - target)^2 / variance + log variance) / 2: values and target alike, variance broadcast -> ().

    >>> gaussian_gap(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]), torch.tensor(1.0))
    tensor(1.)
    """
    return ((values - target).square() / variance + variance.log()).mean() / 2


def explained_spread(features: Tensor, labels: Tensor) -> Tensor:
    """mean(S^2) of S = C_zv C_vv^+ C_vz, the covariance of features that labels' embeddings explain linearly.

    features Z (n, h), labels V (n, h') -> (). Both divided by their Frobenius norms and centred; C_ab = A^T B / n; V is
    a constant. Computed without an h x h matrix: with P the projector on V's columns,
    mean(S^2) = ||P Z Z^T P||^2 / (h n)^2.

    >>> z = torch.randn(6, 4)
    >>> bool(torch.isclose(explained_spread(z, torch.eye(6)), explained_spread(5 * z, torch.eye(6))))
    True
    """
    z, v = (_scaled_and_centred(values) for values in (features, labels.detach()))
    rows, width = z.shape
    values, vectors = torch.linalg.eigh(v @ v.T)  # ascending; of the (n, n) Gram matrix
    # the public code's pseudo-inverse of the h' x h' covariance drops the same directions
    cut = torch.finfo(values.dtype).eps * v.shape[1] * values[-1]
    basis = vectors[:, values > cut]  # (n, r)
    inside = basis.T @ z  # (r, h)
    return (inside @ inside.T).square().sum() / (width * rows) ** 2


def _scaled_and_centred(values: Tensor) -> Tensor:
    scaled = values / (values.norm() + 1e-12)
    return scaled - scaled.mean(0)


def matched_scale(reference: Tensor, gradient: Tensor) -> Tensor:
    """max(reference) / max(gradient), 0 where that is no number: brings a term's gradient to the size of another's.

    >>> matched_scale(torch.tensor([1.0, -4.0]), torch.tensor([0.5])), matched_scale(torch.ones(1), torch.zeros(1))
    (tensor(2.), tensor(0.))
    """
    return torch.nan_to_num(reference.max() / gradient.max(), nan=0.0, posinf=0.0, neginf=0.0)
