"""Quantiles and distributions of losses, beside the recorded figures in tests/parity."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from rcalign.functional.risks import normal_bandwidth, risk_matching, risk_quantile


def risks(seed: int, n: int = 4) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3


@pytest.mark.parametrize("quantile", [0.05, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_quantile_solves_its_equation(quantile: float, seed: int) -> None:
    r = risks(seed)
    width = 1.06 * np.std(r.numpy(), ddof=1) * len(r) ** -0.2
    expected = optimize.brentq(lambda q: stats.norm.cdf((q - r.numpy()) / width).mean() - quantile, -9, 9, xtol=1e-13)
    for exact in (True, False):
        assert risk_quantile(r, quantile, exact=exact).item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("quantile", [0.05, 0.6, 0.9, -4.0])
def test_exact_gradient_is_the_derivative_and_the_other_is_not(quantile: float) -> None:
    r = risks(1).requires_grad_()
    (exact,) = torch.autograd.grad(risk_quantile(r, quantile), r)
    (ends,) = torch.autograd.grad(risk_quantile(r, quantile, exact=False), r)
    step = 1e-4
    for k in range(len(r)):
        moved = torch.zeros(len(r), dtype=torch.float64)
        moved[k] = step
        up, down = (risk_quantile(r.detach() + sign * moved, quantile).item() for sign in (1, -1))
        assert exact[k].item() == pytest.approx((up - down) / (2 * step), abs=1e-5)
    assert exact.sum().item() == pytest.approx(1)  # all risks up by one: so is the quantile
    assert (quantile < 0) == torch.allclose(exact, ends, atol=1e-3)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_quantile_of_equal_risks_and_of_one_is_the_risk(kind: torch.dtype) -> None:
    for values in (torch.full((3,), 0.7, dtype=kind), torch.full((1,), 0.7, dtype=kind)):
        for exact in (True, False):
            r = values.clone().requires_grad_()
            quantile = risk_quantile(r, 0.9, exact=exact)
            (gradient,) = torch.autograd.grad(quantile, r)
            assert quantile.item() == pytest.approx(0.7) and quantile.dtype == kind
            assert gradient.sum().item() == pytest.approx(1) and torch.isfinite(gradient).all()


def test_bandwidth_scales_with_the_values() -> None:
    assert normal_bandwidth(3 * risks(0)).item() == pytest.approx(3 * normal_bandwidth(risks(0)).item())


def literal_gap(a: np.ndarray, b: np.ndarray) -> float:
    def mean(x: np.ndarray, y: np.ndarray) -> float:
        return sum(np.exp(-g * (x[:, None] - y) ** 2).mean() for g in 10.0 ** np.arange(-4, 4))

    return mean(a, a) + mean(b, b) - 2 * mean(a, b)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (1, 9, 2), (3, 1, 1)])
def test_matching_is_between_the_worst_domain_and_all(sizes: tuple[int, ...]) -> None:
    losses = risks(2, sum(sizes))
    parts = [part.numpy() for part in torch.split(losses, list(sizes))]
    worst = max(parts, key=lambda part: part.mean())
    gap, variance = risk_matching(losses, sizes)
    assert gap.item() == pytest.approx(literal_gap(worst, losses.numpy()))
    of_worst = worst.var(ddof=1) if len(worst) > 1 else 0
    assert variance.item() == pytest.approx(losses.numpy().var(ddof=1) + of_worst)


def test_matching_of_one_domain_is_nothing() -> None:
    gap, _ = risk_matching(risks(0), (4,))
    assert gap.item() == pytest.approx(0, abs=1e-12)
