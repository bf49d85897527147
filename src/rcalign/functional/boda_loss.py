"""Balanced domain-class alignment: distances of features to the centroids of (domain, class) pairs, and the loss.

Shapes: features (n, h), centroids (K, C, h), counts (K, C) training samples of each pair, distances (n, K * C) in the
order of the flattened (domain, class) table. Statistics of the training set are constants: no gradient reaches them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rcalign.functional.alignment import pair_sums


def pair_means(
    features: Tensor, y: Tensor, domain: Tensor, num_domains: int, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Mean feature of each pair (K, C, h), zero where it has no rows, and which pairs have rows (K, C) bool.

    >>> one = torch.tensor([0, 0])
    >>> means, found = pair_means(torch.tensor([[1.0], [3.0]]), one, one, 1, 2)
    >>> means.tolist(), found.tolist()
    ([[[2.0], [0.0]]], [[True, False]])
    """
    sums, counts = pair_sums(features, y, domain, num_domains, num_classes)
    return sums / counts.clamp(min=1)[..., None], counts > 0


def euclidean_distances(features: Tensor, centroids: Tensor) -> Tensor:
    """||z_i - mu_p||, not squared; the gradient at distance zero is zero: (n, h), (K, C, h) -> (n, K * C).

    >>> euclidean_distances(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2, 2)).tolist()
    [[5.0, 5.0]]
    """
    return torch.cdist(features, centroids.flatten(0, 1), compute_mode="donot_use_mm_for_euclid_dist")


def boda_loss(
    distances: Tensor,
    y: Tensor,
    domain: Tensor,
    counts: Tensor,
    present: Tensor,
    *,
    nu: float = 0.5,
    temperature: float = 1.0,
) -> Tensor:
    """Mean over (sample i, positive p) of log sum_q exp s(i, q) - s(i, p), q over all pairs but i's own.

    s(i, p) = -d(i, p) (N_p / N_i)^nu / (N_i temperature), N the training samples of a pair, N_i of i's own pair.
    Positives: the class of i in other domains. distances (n, K * C), y (n,), domain (n,), counts (K, C) int, present
    (K, C) bool: pairs that have a centroid. Samples of a pair that counts zero are left out. With no positive at all
    the loss is exactly zero with zero gradient.

    >>> counts, zero = torch.ones(2, 2), torch.tensor([0])
    >>> where = dict(y=zero, domain=zero, counts=counts, present=counts > 0)
    >>> distances = torch.tensor([[0.0, 5.0, 1.0, 5.0]])  # own pair, other class, positive, other class there
    >>> bool(boda_loss(distances, **where) < boda_loss(distances.flip(1), **where))
    True
    """
    num_domains, num_classes = counts.shape
    of_class = torch.arange(num_classes, device=y.device).repeat(num_domains)
    of_domain = torch.arange(num_domains, device=y.device).repeat_interleave(num_classes)
    n = counts.to(distances)
    here = (present & (counts > 0)).reshape(-1)
    own = n[domain, y]
    same_class, same_domain = of_class == y[:, None], of_domain == domain[:, None]
    counted = same_class & ~same_domain & here & (own > 0)[:, None]
    allowed = here & ~(same_class & same_domain)
    own = own.clamp(min=1)[:, None]
    # pairs without samples are masked below; at zero counts the power would be infinite for negative nu
    scores = -distances * (n.reshape(-1).clamp(min=1) / own) ** nu / (own * temperature)
    # finite filling: a row with nothing allowed must not send infinities into the backward pass
    floor = torch.finfo(scores.dtype).min
    log_sum = torch.logsumexp(scores.masked_fill(~allowed, floor), dim=1, keepdim=True)
    terms = torch.where(counted, log_sum - scores, torch.zeros_like(scores))
    return terms.sum() / counted.sum().clamp(min=1)


def blend(current: Tensor, old: Tensor, momentum: Tensor) -> Tensor:
    """(1 - m) current + m old, written so that m = 0 gives ``current`` whatever ``old`` holds.

    >>> blend(torch.ones(2), torch.zeros(2), torch.tensor([0.0, 0.25])).tolist()
    [1.0, 0.75]
    """
    return current + momentum * (old - current)
