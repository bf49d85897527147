"""Domain-class alignment: pull a feature towards the centroids of its class in other domains.

Features are L2-normalised, a centroid is the mean of a pair's normalised features, normalised again, and the logit of a
sample for a centroid is minus their Euclidean distance over a temperature (Algorithm 2 of the RC-Align paper).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Denominator = Literal["negatives", "all_but_own"]
MOST = 2**22  # numbers in the differences of near pairs
NEAR = 0.01  # squared distance above which a matrix product is exact enough
ZERO = 1000  # roundings of the number one that a distance must have, or it is zero
SMALLEST = 1e-12  # length that a row is divided by at least, as in torch's ``normalize``


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
    distance = distance.masked_fill(distance < _zero(distance), 0.0)
    return -distance / temperature


class Distances(NamedTuple):
    """Distances of rows (n, h) to vectors (k, h) of length one or zero, by a matrix product.

    The product, d^2 = |u|^2 + |m|^2 - 2 u m, is off by some roundings of the number one whatever the distance. The p
    pairs for which that would show are named here, and their distance is the length of the difference.
    """

    distance: Tensor  # (n, k)
    cosine: Tensor  # (n, k)
    row: Tensor  # (p,): of the near pairs
    center: Tensor  # (p,)
    difference: Tensor  # (p, h): vector minus row


def centroid_distances(unit: Tensor, centers: Tensor) -> Distances | None:
    """Distances of rows (n, h) to vectors (k, h), all of length one or zero. No gradient.

    None where so many pairs are near that their differences would be more than ``MOST`` numbers.

    >>> near = torch.tensor([[1.0, 1e-3]])
    >>> centroid_distances(near, torch.tensor([[1.0, 0.0], [0.0, 1.0]])).distance
    tensor([[1.0000e-03, 1.4135e+00]])
    """
    cosine = unit @ centers.T
    squared = (centers.square().sum(1) + unit.square().sum(1, keepdim=True)).sub_(cosine, alpha=2)
    row, center = (squared < NEAR).nonzero(as_tuple=True)
    if len(row) * unit.shape[1] > MOST:
        return None
    difference = centers.index_select(0, center).sub_(unit.index_select(0, row))
    if len(row):
        squared[row, center] = difference.square().sum(1)
    return Distances(squared.sqrt_(), cosine, row, center, difference)


def _zero(values: Tensor) -> float:
    """The distance below which two vectors are the same up to rounding."""
    return ZERO * torch.finfo(values.dtype).eps


def alignment_masks(y: Tensor, domain: Tensor, present: Tensor, denominator: Denominator) -> tuple[Tensor, Tensor]:
    """Which centroids are positives that count for a row, and which stand in its denominator: two of (..., n, K * C).

    y, domain (..., n); present (K, C) bool. A positive counts where the row has a denominator.
    """
    num_domains, num_classes = present.shape
    same_class = torch.arange(num_classes, device=y.device) == y[..., None, None]  # (..., n, 1, C)
    same_domain = torch.arange(num_domains, device=y.device)[:, None] == domain[..., None, None]  # (..., n, K, 1)
    positive = (same_class & ~same_domain & present).flatten(-2)
    if denominator == "negatives":
        allowed = present.reshape(-1) & ~positive
    else:
        allowed = (present & ~(same_class & same_domain)).flatten(-2)
    return positive & allowed.any(-1, keepdim=True), allowed


class _KnownGradient(torch.autograd.Function):
    """A number that was computed together with its gradient with respect to the features."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None


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
    (s, g). Value and gradient are computed together, by few operations, which rows of numbers need: there the network
    itself takes no longer than some dozens of them. twice: the gradient may itself be differentiated, which takes
    several times as long; so does a batch with most rows near most centroids.

    >>> mu, y = torch.eye(2)[None].expand(2, 2, 2), torch.tensor([0, 1])
    >>> here = dict(y=y, domain=torch.tensor([0, 0]), mu=mu, present=torch.ones(2, 2, dtype=torch.bool))
    >>> z = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> one = {**here, "y": y[None], "domain": torch.tensor([[0, 0]])}
    >>> grouped = grouped_alignment(z, **one, group=torch.tensor([0, 0]), weight=torch.ones(1, 1))
    >>> bool(torch.isclose(grouped, alignment_loss(z, **here)))
    True
    """
    with torch.no_grad():
        counted, allowed = alignment_masks(y, domain, present, denominator)
        counts = counted.sum(-1)
        totals = counts.new_zeros(weight.shape).index_add_(1, group, counts)
        scale = (weight / totals.clamp_(min=1)).index_select(1, group)  # (s, n): of each term of a row
        of_log_sum = scale * counts
        of_logits = (scale[..., None] * counted).sum(0)  # (n, K * C)
    # finite filling: a row without a denominator must not send infinities into the backward pass
    floor = torch.finfo(mu.dtype).min
    found = None
    # elsewhere the host would have to wait for the number of near pairs; double precision is for exactness
    if not twice and features.device.type == "cpu" and mu.dtype == torch.float32:
        with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
            f, centers = features.to(mu.dtype), mu.reshape(-1, mu.shape[2])
            length = torch.linalg.vector_norm(f, dim=1, keepdim=True).clamp_min_(SMALLEST)
            unit = f / length
            found = centroid_distances(unit, centers)
    if found is None:
        logits = centroid_logits(features, mu, temperature)
        log_sum = torch.logsumexp(torch.where(allowed, logits, floor), dim=-1)
        return (of_log_sum * log_sum).sum() - (of_logits * logits).sum()
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        distance = found.distance
        logits = distance.masked_fill_(distance < _zero(distance), 0.0) / -temperature
        masked = torch.where(allowed, logits, floor)
        top = masked.amax(-1, keepdim=True)
        shares = masked.sub_(top).exp_()
        below = shares.sum(-1, keepdim=True)
        value = (of_log_sum * (below.log() + top).squeeze(-1)).sum() - (of_logits * logits).sum()
        slope = (shares.mul_(of_log_sum[..., None] / below)).sum(0).sub_(of_logits)  # by the logits
        gradient = _by_direction(slope, found, unit, centers, temperature).div_(length)
    return _KnownGradient.apply(features, value, gradient.to(features.dtype))


def _by_direction(slope: Tensor, found: Distances, unit: Tensor, centers: Tensor, temperature: float) -> Tensor:
    """Gradient by the rows' directions (n, h) of a loss whose gradient by the logits -distance / temperature is slope.

    A row u that turns towards a centroid m moves along m - (u m) u; near ones have that from their difference.
    """
    slope = slope.div_(found.distance * temperature)
    row, center, difference = found.row, found.center, found.difference
    if len(row):
        # a distance of zero has no direction
        near = torch.where(found.distance[row, center] > 0, slope[row, center], 0.0)[:, None]
        slope[row, center] = 0.0
        own = unit.index_select(0, row)
        tangent = torch.addcmul(difference, own, (own * difference).sum(1, keepdim=True), value=-1)
    along = (slope * found.cosine).sum(1, keepdim=True)
    gradient = torch.addcmul(slope @ centers, unit, along, value=-1)
    return gradient.index_add_(0, row, near * tangent) if len(row) else gradient


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
