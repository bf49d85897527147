"""Distributions of losses: their quantile over domains, and how far the worst domain's losses are from all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rcalign.functional.moments import GAUSSIAN_RATES, kernel_gap

HALVINGS = 32
LOSS_RATES = (1e-4, *GAUSSIAN_RATES)


def normal_bandwidth(values: Tensor) -> Tensor:
    """1.06 s K^(-1/5), s the standard deviation with 1/(K - 1): the width of a Gaussian kernel density, (K,) -> ().

    One value, or equal values, have the width 1e-10: no more than a point.

    >>> normal_bandwidth(torch.tensor([1.0, 3.0])), normal_bandwidth(torch.tensor([2.0])).item() < 1e-9
    (tensor(1.3050), True)
    """
    variance = values.var() if len(values) > 1 else values.new_zeros(())
    return (1.06 * len(values) ** -0.2 * variance.clamp(min=1e-20).sqrt()).clamp(min=1e-10)


def risk_quantile(risks: Tensor, quantile: float, *, exact: bool = True) -> Tensor:
    """The quantile of a Gaussian kernel density over the domains' risks r: (K,) -> ().

    q with (1/K) sum_d Phi((q - r_d) / h) = quantile, h the ``normal_bandwidth``, found by halving. A negative
    ``quantile`` is log(1 - quantile) for quantiles next to one, by their asymptotic form mean(r) + h sqrt(-2 quantile).
    exact: the gradient is the quantile's own, by the implicit function theorem: with u_d = (q - r_d) / h and w_d the
    normal density at u_d over the sum of all, dq = sum_d w_d (dr_d + u_d dh). Else it is that of the interval's end
    points min(r) + h z and max(r) + h z, z the quantile of the standard normal, with q at a fixed share between them.

    >>> risks = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    >>> [round(risk_quantile(risks, q).item(), 3) for q in (0.05, 0.5, 0.95)]
    [0.073, 2.0, 3.927]
    >>> round(risk_quantile(risks[:1], 0.9).item(), 6)
    1.0
    """
    width = normal_bandwidth(risks)
    if quantile < 0:
        return risks.mean() + width * math.sqrt(-2 * quantile)
    values, scale = risks.detach().double(), width.detach().double()
    z = torch.special.ndtri(torch.tensor(quantile, dtype=torch.float64, device=risks.device))
    ends = values.min() + scale * z, values.max() + scale * z
    low, high = ends
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = torch.special.ndtr((middle - values) / scale).mean() > quantile
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    found = (low + high) / 2
    if exact:
        u = (found - values) / scale
        weights = torch.softmax(-u.square() / 2, 0)
        return (weights * (risks.double() + u * width.double())).sum().to(risks.dtype)
    span = ends[1] - ends[0]
    share = torch.where(span > 0, (found - ends[0]) / span, 0.5).to(risks.dtype)
    return (1 - share) * risks.min() + share * risks.max() + width * z.to(risks.dtype)


def risk_matching(losses: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """How far the losses of the worst domain are from those of all domains: losses (N,) -> two scalars.

    The first is mean k(W, W) + mean k(A, A) - 2 mean k(W, A), W the losses of the domain with the largest mean, A all
    of them, k a sum of Gaussians. The second is the variance of A plus that of W, with 1/(n - 1); of one loss it is 0.

    >>> gap, variance = risk_matching(torch.tensor([1.0, 3.0, 5.0, 7.0]), (2, 2))
    >>> round(gap.item(), 3), round(variance.item(), 3)
    (1.361, 8.667)
    >>> [value.item() for value in risk_matching(torch.tensor([4.0]), (1,))]
    [0.0, 0.0]
    """
    parts = torch.split(losses, list(sizes))
    worst = parts[int(torch.stack([part.detach().mean() for part in parts]).argmax())]
    gap = kernel_gap(torch.cat([worst, losses])[:, None], (len(worst), len(losses)), rates=LOSS_RATES)
    variances = [values.var() for values in (losses, worst) if len(values) > 1]
    return gap, torch.stack(variances).sum() if variances else losses.new_zeros(())
