"""Domain-class alignment: pull a feature towards the centroids of its class in other domains.

Features are L2-normalised, a centroid is the mean of a pair's normalised features, normalised again, and the logit of a
sample for a centroid is minus their Euclidean distance over a temperature (Algorithm 2 of the RC-Align paper).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Denominator = Literal["negatives", "all_but_own"]


def pair_sums(features: Tensor, y: Tensor, domain: Tensor, num_domains: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sum and number of the rows of each (domain, class) pair: (n, h) -> (K, C, h), (K, C).

    >>> sums, counts = pair_sums(torch.eye(2), torch.tensor([0, 0]), torch.tensor([0, 0]), 1, 2)
    >>> sums.tolist(), counts.tolist()
    ([[[1.0, 1.0], [0.0, 0.0]]], [[2.0, 0.0]])
    """
    pair = domain * num_classes + y
    pairs = num_domains * num_classes
    sums = features.new_zeros(pairs, features.shape[1]).index_add_(0, pair, features)
    counts = features.new_zeros(pairs).index_add_(0, pair, features.new_ones(len(pair)))
    return sums.view(num_domains, num_classes, -1), counts.view(num_domains, num_classes)


@torch.no_grad()
def centroids(features: Tensor, y: Tensor, domain: Tensor, num_domains: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Centroid of each (domain, class) pair, without gradient: (n, h) -> unit vectors (K, C, h), present (K, C) bool.

    >>> both = torch.tensor([0, 0])
    >>> mu, present = centroids(torch.tensor([[3.0, 0.0], [0.0, 2.0]]), both, both, 1, 2)
    >>> mu[0, 0], present.tolist()
    (tensor([0.7071, 0.7071]), [[True, False]])
    """
    sums, counts = pair_sums(F.normalize(features, dim=1), y, domain, num_domains, num_classes)
    return F.normalize(sums, dim=2), counts > 0


def shrunk_centroids(bank: Tensor, present: Tensor, counts: Tensor, strength: float) -> Tensor:
    """Centroids drawn towards their class's mean over domains, the more the fewer samples a pair has.

    mu_dc <- normalise((n_dc mu_dc + s m_c) / (n_dc + s)), m_c = mean over the domains that have class c.
    bank (K, C, h), present (K, C) bool, counts (K, C): the training samples n_dc. -> (K, C, h).

    >>> bank = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> shrunk_centroids(bank, torch.ones(2, 1, dtype=torch.bool), torch.tensor([[10.0], [0.0]]), 10.0)[1, 0]
    tensor([0.7071, 0.7071])
    """
    weight = present.to(bank)[..., None]  # (K, C, 1)
    class_mean = (bank * weight).sum(0) / weight.sum(0).clamp(min=1)  # (C, h)
    n = counts.to(bank)[..., None]
    return F.normalize((n * bank + strength * class_mean) / (n + strength), dim=2)


def centroid_logits(features: Tensor, mu: Tensor, temperature: float = 1.0) -> Tensor:
    """Minus the distance of each normalised row to each centroid, over the temperature.

    features (n, h), mu (K, C, h) unit vectors -> (n, K * C).

    >>> centroid_logits(torch.tensor([[2.0, 0.0]]), torch.eye(2)[None])
    tensor([[-0.0000, -1.4142]])
    """
    unit = F.normalize(features, dim=1)
    distance = torch.cdist(unit, mu.reshape(-1, mu.shape[2]), compute_mode="donot_use_mm_for_euclid_dist")
    # a lone sample is its own centroid up to rounding: there the norm's gradient would be a unit vector of noise
    distance = distance.masked_fill(distance < 1000 * torch.finfo(distance.dtype).eps, 0.0)
    return -distance / temperature


def alignment_terms(
    logits: Tensor, y: Tensor, domain: Tensor, present: Tensor, denominator: Denominator = "negatives"
) -> tuple[Tensor, Tensor]:
    """For each row the sum of its terms of the alignment loss and their number: (n,), (n,).

    logits (n, K * C) from ``centroid_logits``, y (n,), domain (n,), present (K, C) bool.

    >>> both = torch.ones(2, 2, dtype=torch.bool)
    >>> alignment_terms(torch.zeros(1, 4), torch.tensor([0]), torch.tensor([0]), both)  # one positive, three others
    (tensor([1.0986]), tensor([1]))
    """
    num_domains, num_classes = present.shape
    of_class = torch.arange(num_classes, device=y.device).repeat(num_domains)
    of_domain = torch.arange(num_domains, device=y.device).repeat_interleave(num_classes)
    here = present.reshape(-1)
    same_class = of_class == y[:, None]
    same_domain = of_domain == domain[:, None]
    positive = same_class & ~same_domain & here
    allowed = here & ~(positive if denominator == "negatives" else same_class & same_domain)
    counted = positive & allowed.any(1, keepdim=True)
    # finite filling: a row without a denominator must not send infinities into the backward pass
    floor = torch.finfo(logits.dtype).min
    log_sum = torch.logsumexp(logits.masked_fill(~allowed, floor), dim=1, keepdim=True)
    terms = torch.where(counted, log_sum - logits, torch.zeros_like(logits))
    return terms.sum(1), counted.sum(1)


def alignment_loss(
    features: Tensor,
    y: Tensor,
    domain: Tensor,
    mu: Tensor,
    present: Tensor,
    *,
    temperature: float = 1.0,
    denominator: Denominator = "negatives",
) -> Tensor:
    """Mean over all positive (sample, centroid) pairs of log-sum-exp(denominator's logits) - the positive's logit.

    features (n, h), y (n,), domain (n,); mu (K, C, h) unit vectors, present (K, C) bool. Positives of a sample:
    centroids of its class in other domains. Denominator: ``negatives`` = every centroid but the positives (its own pair
    included; Algorithm 2), ``all_but_own`` = every centroid but its own pair's (Eq. 6). With no positive pair, or none
    that has a denominator, the loss is exactly zero with zero gradient.

    >>> mu = torch.eye(2)[None].expand(2, 2, 2)  # two domains that agree on two classes
    >>> here = dict(y=torch.tensor([0]), domain=torch.tensor([0]), mu=mu, present=torch.ones(2, 2, dtype=torch.bool))
    >>> near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> bool(alignment_loss(near, **here) < alignment_loss(far, **here))
    True
    """
    sums, counts = alignment_terms(centroid_logits(features, mu, temperature), y, domain, present, denominator)
    return sums.sum() / counts.sum().clamp(min=1)
