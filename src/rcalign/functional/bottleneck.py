"""How well a sample's neighbours tell its domain: the contrastive domain bottleneck."""

from __future__ import annotations

import torch
from torch import Tensor

BASE_TEMPERATURE = 0.07  # the loss is scaled by temperature / 0.07, as in the contrastive loss that it comes from


def domain_bottleneck(
    features: Tensor,
    y: Tensor,
    domain: Tensor,
    temperature: float,
    *,
    within_class: bool,
    flipped: bool = True,
    published: bool = False,
) -> Tensor:
    """Mean over samples of the log share of one domain among their neighbours: features (n, h), y, domain (n,) -> ().

    A_i: all other samples, or with ``within_class`` those of sample i's class. B_i: those of A_i from other domains if
    ``flipped``, from i's own domain if not. With s_ij = z_i . z_j / temperature:

        q_i = log [ sum_{j in B_i} exp(s_ij) / sum_{j in A_i} exp(s_ij) ],   loss = -+ temperature / 0.07 * mean_i q_i

    minus if flipped. Samples with an empty B_i take no part; if there are no others, the loss is exactly 0. published:
    the public code's form without ``within_class``: samples whose class occurs once take no part, and where not flipped
    the sample counts as a neighbour of its own domain, with s_ii = 0, in the numerator only.

    >>> z, domain = torch.zeros(3, 2), torch.tensor([0, 0, 1])   # one of the first sample's two neighbours is foreign
    >>> y = torch.zeros(3, dtype=torch.int64)
    >>> round(domain_bottleneck(z, y, domain, 0.07, within_class=False).item(), 4)   # (log 2 + log 2 + log 1) / 3
    0.4621
    """
    similarity = features @ features.T / temperature
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    of_class = (y[:, None] == y) & ~itself
    of_domain = domain[:, None] == domain
    neighbours = of_class if within_class else ~itself
    share = neighbours & (~of_domain if flipped else of_domain)
    counted = share.any(1)
    if published and not within_class:
        if not flipped:
            similarity = similarity.masked_fill(itself, 0.0)
            share = share | itself
        counted = of_class.any(1) & share.any(1)
    if not counted.any():
        return features.new_zeros(())
    log_share = _masked_logsumexp(similarity, share, counted) - _masked_logsumexp(similarity, neighbours, counted)
    sign = -1.0 if flipped else 1.0
    return sign * temperature / BASE_TEMPERATURE * log_share.mean()


def _masked_logsumexp(values: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """log sum_j exp(values_ij) over the masked j, of the given rows; every one of them has an entry."""
    floor = torch.finfo(values.dtype).min
    return torch.logsumexp(values[rows].masked_fill(~mask[rows], floor), dim=1)
