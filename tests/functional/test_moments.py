"""Distances between domains: zero where they should be, and what they do not see."""

from __future__ import annotations

import pytest
import torch

from rcalign.functional.moments import GAUSSIAN_RATES, kernel_gap, moment_gap

torch.manual_seed(0)
PARTS = [torch.randn(n, 5, dtype=torch.float64) * (1 + k) + k for k, n in enumerate((7, 4, 9))]
SIZES = tuple(len(part) for part in PARTS)


def literal_moment_gap(parts: list[torch.Tensor]) -> torch.Tensor:
    """The published double loop."""
    h, gaps = parts[0].shape[1], []
    for i, a in enumerate(parts):
        for b in parts[i + 1 :]:
            means = (a.mean(0) - b.mean(0)).square().sum() / h
            gaps.append(means + (torch.cov(a.T) - torch.cov(b.T)).square().sum() / h**2)
    return torch.stack(gaps).mean()


def test_moment_gap_is_the_double_loop_over_pairs() -> None:
    torch.testing.assert_close(moment_gap(PARTS), literal_moment_gap(PARTS))


def test_moment_gap_is_zero_for_equal_sets_and_ignores_a_common_shift() -> None:
    assert moment_gap([PARTS[0], PARTS[0], PARTS[0]]) == 0
    torch.testing.assert_close(moment_gap([part + 3.0 for part in PARTS]), moment_gap(PARTS))


def test_moment_gap_scales_by_the_second_and_fourth_power() -> None:
    centred = [part - part.mean(0) for part in PARTS]
    torch.testing.assert_close(moment_gap([3 * part for part in centred]), 81 * moment_gap(centred))
    single = [part[:1] for part in PARTS]  # one row each: means only
    torch.testing.assert_close(moment_gap([3 * part for part in single]), 9 * moment_gap(single))


def test_moment_gap_leaves_a_single_row_out_of_the_covariances_only() -> None:
    parts = [PARTS[0], PARTS[1], PARTS[2][:1]]
    covariances = (torch.cov(parts[0].T) - torch.cov(parts[1].T)).square().sum() / 25
    means = torch.stack([part.mean(0) for part in parts])
    expected = sum((means[i] - means[j]).square().sum() / 5 for i, j in ((0, 1), (0, 2), (1, 2))) + covariances
    torch.testing.assert_close(moment_gap(parts), expected / 3)


def test_kernel_gap_is_zero_for_equal_sets_and_bounded() -> None:
    assert kernel_gap(torch.cat([PARTS[0]] * 3), (7, 7, 7)).abs() < 1e-12
    assert 0 <= kernel_gap(torch.cat(PARTS), SIZES) <= 14
    apart = torch.tensor([[0.0], [1e6]])
    assert kernel_gap(apart, (1, 1)).item() == pytest.approx(14)


def test_kernel_gap_ignores_a_common_rotation_and_shift() -> None:
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
    moved = torch.cat(PARTS) @ rotation + 2.5
    torch.testing.assert_close(kernel_gap(moved, SIZES), kernel_gap(torch.cat(PARTS), SIZES))


def test_unbiased_kernel_gap_leaves_out_each_sample_with_itself() -> None:
    x, y = PARTS[0], PARTS[1]
    kernel = lambda a, b: sum(torch.exp(-g * torch.cdist(a, b) ** 2) for g in GAUSSIAN_RATES)  # noqa: E731
    within = [(kernel(z, z).sum() - 7 * len(z)) / (len(z) * (len(z) - 1)) for z in (x, y)]
    expected = within[0] + within[1] - 2 * kernel(x, y).mean()
    torch.testing.assert_close(kernel_gap(torch.cat([x, y]), (7, 4), unbiased=True), expected)


def test_unbiased_kernel_gap_has_mean_zero_where_the_biased_one_grows_as_batches_shrink() -> None:
    generator = torch.Generator().manual_seed(1)
    draws = [torch.randn(8, 3, generator=generator) for _ in range(400)]  # two domains of four rows, one distribution
    unbiased = torch.stack([kernel_gap(z, (4, 4), unbiased=True) for z in draws])
    biased = torch.stack([kernel_gap(z, (4, 4)) for z in draws])
    assert abs(unbiased.mean()) < 3 * unbiased.std() / 20
    assert biased.mean() > 1


def test_kernel_gap_of_single_rows_is_finite_with_a_finite_gradient() -> None:
    z = torch.randn(2, 3, requires_grad=True)
    for unbiased in (True, False):
        gap = kernel_gap(z, (1, 1), unbiased=unbiased)
        (gradient,) = torch.autograd.grad(gap, z)
        assert torch.isfinite(gap) and torch.isfinite(gradient).all()
