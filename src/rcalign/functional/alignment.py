"""Domain-class alignment: pull a feature towards the centroids of its class in other domains.

Features are L2-normalised, a centroid is the mean of a pair's normalised features, normalised again, and the logit of a
sample for a centroid is minus their Euclidean distance over a temperature (Algorithm 2 of the RC-Align paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.functional.known_gradient import for_loops, numbers, with_gradient

Denominator = Literal["negatives", "all_but_own"]
ZERO = 1000  # roundings of the number one that a distance must have, or it is zero


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
    if for_loops(features):
        from rcalign.functional.row_kernels import mean_directions

        mu = features.new_zeros(num_domains, num_classes, features.shape[1])
        present = torch.zeros(num_domains, num_classes, dtype=torch.bool)
        mean_directions(*map(numbers, (features, y, domain, mu, present)))
        return mu, present
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
    distance = distance.masked_fill(distance < _zero(distance.dtype), 0.0)
    return -distance / temperature


def _zero(dtype: torch.dtype) -> float:
    """The distance below which two vectors of this precision are the same up to rounding."""
    return ZERO * torch.finfo(dtype).eps


def alignment_masks(y: Tensor, domain: Tensor, present: Tensor, denominator: Denominator) -> tuple[Tensor, Tensor]:
    """Which centroids are positives that count for a row, and which stand in its denominator: two of (..., n, K * C).

    y, domain (..., n); present (K, C) bool. A positive counts where the row has a denominator.
    """
    num_domains, num_classes = present.shape
    same_class = y[..., None, None] == torch.arange(num_classes, device=y.device)  # (..., n, 1, C)
    other_domain = domain[..., None, None] != torch.arange(num_domains, device=y.device)[:, None]  # (..., n, K, 1)
    positive = (same_class & other_domain & present).flatten(-2)
    # a > b of two bools is a and not b, in one operation
    if denominator == "negatives":
        allowed = present.reshape(-1) > positive
    else:
        allowed = (present > (same_class > other_domain)).flatten(-2)
    return positive & allowed.any(-1, keepdim=True), allowed


def grouped_alignment(
    features: Tensor,
    y: Tensor,
    domain: Tensor,
    mu: Tensor,
    present: Tensor,
    *,
    group: Tensor,
    weight: Tensor,
    temperature: float = 1.0,
    denominator: Denominator = "negatives",
    twice: bool = False,
) -> Tensor:
    """sum_sg weight_sg * (the ``alignment_loss`` of the rows of group g under their s-th labels).

    features (n, h); y, domain (s, n): a row may have several labels; group (n,) positions in the columns of weight
    (s, g). On a CPU value and gradient are computed together, by compiled loops. twice: the gradient may itself be
    differentiated, which is left to autograd.

    >>> mu, y = torch.eye(2)[None].expand(2, 2, 2), torch.tensor([0, 1])
    >>> here = dict(y=y, domain=torch.tensor([0, 0]), mu=mu, present=torch.ones(2, 2, dtype=torch.bool))
    >>> z = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> one = {**here, "y": y[None], "domain": torch.tensor([[0, 0]])}
    >>> grouped = grouped_alignment(z, **one, group=torch.tensor([0, 0]), weight=torch.ones(1, 1))
    >>> bool(torch.isclose(grouped, alignment_loss(z, **here)))
    True
    """
    if not twice and for_loops(mu):
        value, gradient = _value_and_gradient(
            features, (y, domain, mu, present, group, weight), temperature, denominator == "negatives"
        )
        return with_gradient(features, value, gradient)
    with torch.no_grad():
        counted, allowed = alignment_masks(y, domain, present, denominator)
        counts = counted.sum(-1)
        totals = counts.new_zeros(weight.shape).index_add_(1, group, counts)
        scale = (weight / totals.clamp_(min=1)).index_select(1, group)  # (s, n): of each term of a row
    logits = centroid_logits(features, mu, temperature)
    # finite filling: a row without a denominator must not send infinities into the backward pass
    log_sum = torch.logsumexp(torch.where(allowed, logits, torch.finfo(mu.dtype).min), dim=-1)
    return (scale * counts * log_sum).sum() - ((scale[..., None] * counted).sum(0) * logits).sum()


def _value_and_gradient(
    features: Tensor, others: Sequence[Tensor], temperature: float, negatives: bool
) -> tuple[float, np.ndarray]:
    """The value of ``grouped_alignment`` and its gradient (n, h). others: y, domain, mu, present, group, weight."""
    from rcalign.functional import row_kernels  # here and not above: compiled when it is needed

    rows = numbers(features)
    y, domain, mu, present, group, weight = map(numbers, others)
    unit, scale, row_squared = row_kernels.unit_rows(rows)
    pairs, centers, center_squared = row_kernels.existing_centroids(mu, present)
    columns = torch.from_numpy(centers)
    cosine = torch.mm(torch.from_numpy(unit), columns.T).numpy()
    squared, labels = (row_squared, center_squared), (y, domain, present, group, weight)
    value, slope = row_kernels.alignment_slopes(
        cosine, *squared, pairs, *labels, temperature, negatives, _zero(torch.float32)
    )
    moves = torch.mm(torch.from_numpy(slope), columns).numpy()
    gradient = np.empty_like(rows)
    row_kernels.turning(moves, slope, cosine, unit, scale, gradient)
    return value, gradient


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
    logits = centroid_logits(features, mu, temperature)
    counted, allowed = alignment_masks(y, domain, present, denominator)
    # finite filling: a row without a denominator must not send infinities into the backward pass
    floor = torch.finfo(logits.dtype).min
    log_sum = torch.logsumexp(logits.masked_fill(~allowed, floor), dim=1, keepdim=True)
    terms = torch.where(counted, log_sum - logits, torch.zeros_like(logits))
    return terms.sum(1).sum() / counted.sum().clamp(min=1)
