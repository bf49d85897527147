"""The alignment loss computed together with its gradient, against the same loss through autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rcalign.functional.alignment import alignment_loss, centroids, grouped_alignment

K, C, H = 3, 4, 6


def rows(seed: int, n: int, spread: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features (n, H) around a common point, two sets of labels and domains (2, n), two groups (n,)."""
    made = torch.Generator().manual_seed(seed)
    z = torch.ones(H, dtype=torch.float64) + spread * torch.randn(n, H, generator=made, dtype=torch.float64)
    y, domain = torch.randint(C, (2, n), generator=made), torch.randint(K, (2, n), generator=made)
    return z.to(dtype), y, domain, torch.randint(2, (n,), generator=made)


@pytest.mark.parametrize("spread", [1.0, 1e-3])  # far apart, and all within the distance that a product cannot tell
@pytest.mark.parametrize("denominator", ["negatives", "all_but_own"])
@pytest.mark.parametrize("twice", [False, True])
def test_groups_are_weighted_losses_of_their_own(spread: float, denominator: str, twice: bool) -> None:
    z, y, domain, group = rows(0, 30, spread, torch.float64)
    z[3] = 0  # a dead unit's row has no direction
    mu, present = centroids(z, y[0], domain[0], K, C)
    present[1, 2] = False
    weight, options = torch.tensor([[0.5, 2.0], [0.0, 1.0]], dtype=torch.float64), {"temperature": 0.3}
    a, b = (z.clone().requires_grad_() for _ in range(2))
    found = grouped_alignment(
        a, y, domain, mu, present, group=group, weight=weight, denominator=denominator, twice=twice, **options
    )
    expected = sum(
        weight[s, g]
        * alignment_loss(
            b[group == g],
            y[s][group == g],
            domain[s][group == g],
            mu,
            present,
            denominator=denominator,
            **options,
        )
        for s in range(2)
        for g in range(2)
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    (1.7 * found).backward()
    (1.7 * expected).backward()
    alive = torch.arange(30) != 3  # the gradient of a row without direction is divided by almost zero on either way
    torch.testing.assert_close(a.grad[alive], b.grad[alive], rtol=1e-7, atol=1e-10)


def test_a_lone_sample_is_at_its_centroid_without_gradient() -> None:
    z = torch.randn(4, H, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y, domain = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    mu, present = centroids(z, y, domain, 2, 2)  # every sample is its own centroid
    one = {"group": torch.zeros(4, dtype=torch.int64), "weight": torch.ones(1, 1)}
    ours = torch.autograd.grad(grouped_alignment(z, y[None], domain[None], mu, present, **one), z)[0]
    plain = torch.autograd.grad(alignment_loss(z, y, domain, mu, present), z)[0]
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)


def test_nothing_to_align_is_zero_with_a_zero_gradient() -> None:
    z, y, domain, group = rows(2, 5, 1.0, torch.float32)
    z.requires_grad_()
    none = torch.zeros(K, C, dtype=torch.bool)
    loss = grouped_alignment(z, y, domain, torch.zeros(K, C, H), none, group=group, weight=torch.ones(2, 2))
    assert float(loss.detach()) == 0 and not torch.autograd.grad(loss, z)[0].any()


def test_half_precision_around_it_does_not_reach_the_distances() -> None:
    z, y, domain, group = rows(4, 30, 0.3, torch.float32)
    mu, present = centroids(z, y[0], domain[0], K, C)
    options = {"group": group, "weight": torch.ones(2, 2)}
    expected = grouped_alignment(z, y, domain, mu, present, **options)
    with torch.autocast("cpu", torch.bfloat16):
        found = grouped_alignment(z, y, domain, mu, present, **options)
    assert float(found) == float(expected)


@pytest.mark.parametrize("denominator", ["negatives", "all_but_own"])
@pytest.mark.parametrize("spread", [1.0, 0.1, 0.01, 1e-3])  # from far apart to all close to their centroids
def test_the_gradient_that_comes_with_it_is_that_of_autograd(denominator: str, spread: float) -> None:
    made = torch.Generator().manual_seed(5)
    means = torch.randn(C, 64, generator=made)
    y, domain = torch.randint(C, (2, 40), generator=made), torch.randint(K, (2, 40), generator=made)
    z = means[y[0]] + spread * torch.randn(40, 64, generator=made)
    of, at = torch.arange(60) % C, torch.arange(60) % K
    mu, present = centroids(means[of] + spread * torch.randn(60, 64, generator=made), of, at, K, C)
    present[0, 1] = False
    options = {"group": torch.arange(40) % 3, "weight": torch.rand(2, 3, generator=made), "temperature": 0.5}
    a, b = z.clone().requires_grad_(), z.double().requires_grad_()
    quick = grouped_alignment(a, y, domain, mu, present, denominator=denominator, **options)
    assert "KnownGradient" in type(quick.grad_fn).__name__
    options["weight"] = options["weight"].double()
    slow = grouped_alignment(b, y, domain, mu.double(), present, denominator=denominator, **options)
    torch.testing.assert_close(quick.double(), slow, rtol=1e-7, atol=1e-7)
    gradients = torch.autograd.grad(quick, a)[0].double(), torch.autograd.grad(slow, b)[0]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 33])
def test_centroids_in_single_precision_are_those_in_double(n: int) -> None:
    z, y, domain, _ = rows(6, n, 1.0, torch.float64)
    z[0] = 0  # no direction
    exact, there = centroids(z, y[0], domain[0], K, C)
    found, present = centroids(z.float(), y[0], domain[0], K, C)
    assert torch.equal(present, there) and not found[~present].any()
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_does_not_vanish_in_the_loss(value: float) -> None:
    z, y, domain, group = rows(7, 20, 1.0, torch.float32)
    mu, present = centroids(z, y[0], domain[0], K, C)
    z[4, 2] = value
    loss = grouped_alignment(z, y, domain, mu, present, group=group, weight=torch.ones(2, 2))
    assert torch.isnan(loss) and torch.isnan(centroids(z, y[0], domain[0], K, C)[0]).any()


@pytest.mark.parametrize(("label", "at"), [(C, 0), (-1, 0), (0, K), (0, -1)])
def test_a_position_that_is_none_is_refused(label: int, at: int) -> None:
    """Compiled loops would write outside their memory."""
    z, y, domain, group = rows(8, 6, 1.0, torch.float32)
    mu, present = centroids(z, y[0], domain[0], K, C)
    y[1, 5], domain[1, 5] = label, at
    with pytest.raises(IndexError):
        grouped_alignment(z, y, domain, mu, present, group=group, weight=torch.ones(2, 2))
    with pytest.raises(IndexError):
        centroids(z, y[1], domain[1], K, C)
