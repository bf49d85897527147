"""Losses and weights for classes of unequal size. Counts (K, C) are training samples of each (domain, class) pair.

Weights and margins are float64 of shape (K, C); a pair without samples gets exactly zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.functional.classification import domain_means


def inverse_weights(counts: Tensor, power: float = 1.0) -> Tensor:
    """n^-power, zero where n = 0, scaled so that each domain's row sums to C: (K, C) -> (K, C).

    >>> inverse_weights(torch.tensor([[1, 3], [0, 9]])).tolist()
    [[1.5, 0.5], [0.0, 2.0]]
    """
    n = counts.double()
    return _scaled(torch.where(n > 0, n.clamp(min=1) ** -power, 0.0))


def effective_number_weights(counts: Tensor, beta: float) -> Tensor:
    """(1 - beta) / (1 - beta^n), zero where n = 0, scaled so that each domain's row sums to C: (K, C) -> (K, C).

    1 - beta^n is -expm1(n log beta): exact for beta near one, and a large n is never taken for a missing class.

    >>> effective_number_weights(torch.tensor([[5, 5000, 0]]), 0.99)[0, 1] > 0
    tensor(True)
    """
    n = counts.double()
    log_beta = math.log(beta) if beta > 0 else -math.inf
    effective = -torch.expm1(n.clamp(min=1) * log_beta) / (1 - beta)
    return _scaled(torch.where(n > 0, 1 / effective, 0.0))


def _scaled(weights: Tensor) -> Tensor:
    """Rows that sum to C; a row of zeros (a domain without samples) stays one."""
    total = weights.sum(1, keepdim=True)
    return weights * weights.shape[1] / torch.where(total > 0, total, 1.0)


def margins(counts: Tensor, largest: float) -> Tensor:
    """n^(-1/4), zero where n = 0, scaled so that each domain's largest is ``largest``: (K, C) -> (K, C).

    >>> margins(torch.tensor([[1, 16, 0]]), 0.5).tolist()
    [[0.5, 0.25, 0.0]]
    """
    n = counts.double()
    raw = torch.where(n > 0, n.clamp(min=1) ** -0.25, 0.0)
    peak = raw.amax(1, keepdim=True)
    return raw * largest / torch.where(peak > 0, peak, 1.0)


def log_prior(counts: Tensor) -> Tensor:
    """log n with n = 1 for a missing class, so that it counts as the rarest: (K, C) -> (K, C).

    >>> log_prior(torch.tensor([[0, 1, 10]]))
    tensor([[0.0000, 0.0000, 2.3026]], dtype=torch.float64)
    """
    return counts.double().clamp(min=1).log()


def expected_log_shares(counts: Tensor) -> Tensor:
    """The log class shares to expect of one more domain, up to a constant: (K, C), K >= 2 -> (C,).

    The mean over domains of their log shares, each centred over classes, times max(0, 1 - s / v): v is the variance of
    that mean over classes and s its squared standard error, the variance over domains divided by K. So it is shrunk
    towards equal shares as far as the domains disagree (James-Stein, in its empirical-Bayes form): domains with the
    same shares give those shares, domains whose frequent classes are unrelated give equal ones. A missing class counts
    as one sample.

    >>> expected_log_shares(torch.tensor([[8, 2], [8, 2]])).exp()
    tensor([2.0000, 0.5000], dtype=torch.float64)
    >>> expected_log_shares(torch.tensor([[8, 2], [2, 8]])).exp()
    tensor([1., 1.], dtype=torch.float64)
    """
    logs = log_prior(counts)
    logs = logs - logs.mean(1, keepdim=True)
    mean = logs.mean(0)
    error = logs.var(0).mean() / len(logs)
    spread = mean.square().sum() / max(1, len(mean) - 1)
    return mean * (1 - error / spread).clamp(min=0) if spread > 0 else mean


def cross_validated_log_shares(counts: Tensor) -> Tensor:
    """The log class shares that foretell those of a domain left out best, up to a constant: (K, C), K >= 2 -> (C,).

    t times the mean over domains of their log shares, each centred over classes. With m_-k that mean over the domains
    other than k, and p_k the shares of domain k, t in [0, 1] maximises the likelihood of leaving domains out,

        sum over k of  sum over c of  p_k(c) log softmax(t m_-k)(c),

    which is concave in t. Domains with the same shares give those shares; if the shares of the others say nothing of a
    domain's own, equal ones. A missing class counts as one sample.

    >>> cross_validated_log_shares(torch.tensor([[8, 2], [8, 2]])).softmax(0)
    tensor([0.8000, 0.2000], dtype=torch.float64)
    >>> cross_validated_log_shares(torch.tensor([[8, 2], [2, 8]])).softmax(0)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    logs = log_prior(counts)
    shares = logs.softmax(1)
    logs = logs - logs.mean(1, keepdim=True)
    others = (logs.sum(0) - logs) / (len(logs) - 1)  # (K, C): m_-k

    def slope(t: float) -> float:
        return float(((shares - (t * others).softmax(1)) * others).sum())

    low, high = 0.0, 1.0
    if slope(low) <= 0:
        high = low
    elif slope(high) >= 0:
        low = high
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return low * logs.mean(0)


def shares_after_adjustment(counts: Tensor, target_log_shares: Tensor, adjustment: float) -> Tensor:
    """The class shares that adjusted logits assume: (K, C), (C,) -> (C,).

    In training, ``adjustment`` times (log class counts of the row's domain - target_log_shares) was added to them. So
    1 - adjustment of a domain's own log shares is left in them, here the mean over domains.

    >>> shares_after_adjustment(torch.tensor([[8, 2], [2, 8]]), torch.zeros(2), 1.0)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    own = log_prior(counts).log_softmax(1).mean(0)
    return ((1 - adjustment) * own + adjustment * target_log_shares).softmax(0)


def weighted_cross_entropy(
    logits: Tensor, y: Tensor, weights: Tensor, sizes: Sequence[int], label_smoothing: float = 0.0
) -> Tensor:
    """Weighted mean of the cross-entropy within each domain: sum_i w_i ce_i / sum_i w_i, -> (K,).

    logits (N, C), y (N,), weights (N,) of the samples. A domain whose weights are all zero contributes exactly zero.

    >>> weighted_cross_entropy(torch.zeros(3, 2), torch.tensor([0, 1, 1]), torch.tensor([2.0, 1.0, 0.0]), (2, 1))
    tensor([0.6931, 0.0000])
    """
    ce = F.cross_entropy(logits, y, reduction="none", label_smoothing=label_smoothing)
    total = domain_means(weights, sizes)
    return domain_means(weights * ce, sizes) / torch.where(total > 0, total, 1.0)


def focal_loss(logits: Tensor, y: Tensor, gamma: float) -> Tensor:
    """(1 - p)^gamma * (-log p) of each sample, p the softmax probability of its label: (N, C), (N,) -> (N,).

    1 - p is kept above 1e-12: for gamma < 1 its power has no finite slope at zero.

    >>> focal_loss(torch.zeros(1, 2), torch.tensor([0]), 2.0)
    tensor([0.1733])
    """
    ce = F.cross_entropy(logits, y, reduction="none")
    miss = -torch.expm1(-ce)  # 1 - p
    return miss.clamp(min=1e-12) ** gamma * ce


def margin_logits(logits: Tensor, y: Tensor, margin: Tensor, scale: float) -> Tensor:
    """scale * (logits, with the label's logit lowered by the sample's margin): (N, C), (N,), (N,) -> (N, C).

    >>> margin_logits(torch.ones(1, 2), torch.tensor([1]), torch.tensor([0.5]), 10.0)
    tensor([[10.,  5.]])
    """
    return scale * (logits - margin[:, None] * F.one_hot(y, logits.shape[1]).to(logits))
