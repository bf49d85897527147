"""Contrast of classes within and across domains, and pairs of one class whose domains are exchanged."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SMALL = 1e-5  # inside the logarithm and the denominator, as the public code has it


def domain_weighted_contrast(
    features: Tensor, y: Tensor, domain: Tensor, own_domain_weight: float = 0.5, temperature: float = 0.07
) -> Tensor:
    """Supervised contrast in which neighbours of the own domain and of others weigh differently: -> ().

    features (n, h), normalised here; y, domain (n,). e_ij = w_ij exp(z_i . z_j / temperature), w_ij the weight for
    d_j = d_i, one minus it otherwise; P_i the other samples of i's class, M the number of samples with a P_i:

        sum_i (1 / |P_i|) sum_{j in P_i} -log( e_ij / (sum_{j != i} e_ij + 1e-5) + 1e-5 ) / (M + 1)

    >>> z, y = torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1])
    >>> round(domain_weighted_contrast(z, y, torch.tensor([0, 1, 0])).item(), 4)   # positives found, close to -log 1
    -0.0
    >>> domain_weighted_contrast(z, torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0]))
    tensor(0.)
    """
    unit = F.normalize(features, dim=1)
    alike = domain[:, None] == domain
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    weight = torch.where(alike, own_domain_weight, 1 - own_domain_weight).to(unit.dtype)
    terms = weight * (unit @ unit.T / temperature).exp()
    terms = terms.masked_fill(itself, 0.0)
    fraction = terms / (terms.sum(1, keepdim=True) + SMALL)
    positive = (y[:, None] == y) & ~itself
    number = positive.sum(1)
    mean = (-(fraction + SMALL).log()).masked_fill(~positive, 0.0).sum(1) / number.clamp(min=1)
    return mean.sum() / ((number > 0).sum() + 1)
