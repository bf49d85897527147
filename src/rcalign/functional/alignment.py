"""Domain-class alignment: pull a feature towards the centroids of its class in other domains.

Features are L2-normalised, a centroid is the mean of a pair's normalised features, normalised again, and the logit of a
sample for a centroid is minus their Euclidean distance over a temperature (Algorithm 2 of the RC-Align paper).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Denominator = Literal["negatives", "all_but_own"]
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
    (s, g). On a CPU value and gradient are computed together, by few operations, which rows of numbers need: there the
    network itself takes no longer than some dozens of them. twice: the gradient may itself be differentiated, which is
    left to autograd.

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
    # double precision is for exactness, and slow on most other devices
    if not twice and features.device.type == "cpu" and mu.dtype == torch.float32:
        with torch.no_grad():
            value, gradient = _with_gradient(features, mu, scale.double(), counts, counted, allowed, temperature)
        return _KnownGradient.apply(features, value.to(mu.dtype), gradient.to(features.dtype))
    logits = centroid_logits(features, mu, temperature)
    # finite filling: a row without a denominator must not send infinities into the backward pass
    log_sum = torch.logsumexp(torch.where(allowed, logits, torch.finfo(mu.dtype).min), dim=-1)
    return (scale * counts * log_sum).sum() - ((scale[..., None] * counted).sum(0) * logits).sum()


def _with_gradient(
    features: Tensor, mu: Tensor, scale: Tensor, counts: Tensor, counted: Tensor, allowed: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """sum_si scale_si * sum over the counted centroids q of row i of (log-sum-exp(allowed logits of i) - logit_iq).

    features (n, h), mu (K, C, h), scale, counts (s, n), counted, allowed (s, n, K * C) -> a number, and its gradient
    (n, h). Distances come from a matrix product, d^2 = |u|^2 + |m|^2 - 2 u m, which is off by some roundings of the
    number one. In double precision these do not show at any distance that single precision tells from zero.
    """
    f, centers = features.double(), mu.reshape(-1, mu.shape[2]).double()
    norm = torch.linalg.vector_norm(f, dim=1, keepdim=True)
    length = norm.clamp_min(SMALLEST)
    unit = f.div_(length) if f is not features else f / length
    cosine = unit @ centers.T
    squared = (centers.square().sum(1) + (norm / length).square_()).sub_(cosine, alpha=2)
    distance = squared.clamp_min_(0.0).sqrt_()
    zero = distance < _zero(mu.dtype)
    logits = (distance / -temperature).masked_fill_(zero, 0.0)
    # rows without a denominator count nothing; all their centroids stand in it, so that no infinity comes of them
    masked = torch.where(allowed | ~allowed.any(-1, keepdim=True), logits, -torch.inf)
    top = masked.amax(-1, keepdim=True)
    shares = masked.sub_(top).exp_()
    below = shares.sum(-1, keepdim=True)
    of_log_sum = (scale * counts)[..., None]
    of_logits = (scale[..., None] * counted).sum(0)
    value = torch.dot(of_log_sum.view(-1), top.add_(below.log()).view(-1)) - torch.dot(
        of_logits.view(-1), logits.view(-1)
    )
    slope = shares.mul_(of_log_sum / below).sum(0).sub_(of_logits)  # by the logits
    # by the distances; a distance of zero has no direction
    slope.div_(distance.mul_(temperature)).masked_fill_(zero, 0.0)
    # a row u that turns towards a centroid m moves along m - (u m) u
    along = (slope * cosine).sum(1, keepdim=True)
    return value, torch.addmm(unit * along, slope, centers, beta=-1).div_(length)


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
