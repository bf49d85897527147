"""Gaussian closeness and the label-conditional spread."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rcalign.functional.gaussian import explained_spread, gaussian_gap, matched_scale, raw_variance, variance_of


def literal_spread(features: Tensor, labels: Tensor) -> Tensor:
    """With every h x h matrix written out."""
    z, v = features / features.norm(), labels / labels.norm()
    z, v = z - z.mean(0), v - v.mean(0)
    rows = len(z)
    shared = z.T @ v / rows
    explained = shared @ torch.linalg.pinv(v.T @ v / rows) @ shared.T
    return explained.square().mean()


@pytest.mark.parametrize(("rows", "width", "rank"), [(7, 5, 5), (5, 9, 9), (12, 6, 2), (6, 6, 1)])
def test_cheap_form_is_the_literal_one(rows: int, width: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    z = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    v = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    v = v @ torch.randn(rank, width, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(explained_spread(z, v), literal_spread(z, v), rtol=1e-8, atol=1e-18)


def test_spread_is_positive_and_ignores_the_scale_of_features() -> None:
    generator = torch.Generator().manual_seed(0)
    z, v = torch.randn(8, 5, generator=generator), torch.randn(8, 5, generator=generator)
    assert explained_spread(z, v) > 0
    torch.testing.assert_close(explained_spread(z * 40, v), explained_spread(z, v))
    assert explained_spread(z, torch.ones(8, 5)) == 0  # labels that say nothing explain nothing
    assert explained_spread(z[:1], v[:1]) == 0


def test_labels_that_differ_in_every_row_drop_out() -> None:
    """The caveat on the page: as many directions as samples, and the term is the features' own covariance."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    one, other = (torch.randn(4, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(explained_spread(z, one), explained_spread(z, other))


def test_spread_differentiates_in_the_features_only() -> None:
    z = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    v = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: 1e4 * explained_spread(a, v), (z,))
    explained_spread(z, v).backward()
    assert v.grad is None and z.grad.any()


def test_gap_is_least_at_the_target_with_the_true_variance() -> None:
    target, values = torch.zeros(1000), torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 2
    true = values.square().mean().item()
    best = gaussian_gap(values, target, variance_of(torch.tensor(raw_variance(true))))
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert gaussian_gap(values, target, variance_of(torch.tensor(raw_variance(factor * true)))) > best
    assert gaussian_gap(target, target, torch.tensor(true)) < best


def test_matched_scale_uses_signed_maxima() -> None:
    assert matched_scale(torch.tensor([2.0, -9.0]), torch.tensor([4.0, -100.0])) == 0.5
    assert matched_scale(torch.zeros(2), torch.zeros(2)) == 0
