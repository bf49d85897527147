"""Masks and penalties on domains' gradients, beside the recorded figures in tests/parity."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rcalign.functional.agreement import agreed, gradient_spread, head_gradient_variances, smoothly_agreed
from rcalign.functional.moments import cut_apart, within_variance


def gradients(domains: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(domains, 5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_agreed_keeps_entries_of_one_sign_and_the_length_of_the_step() -> None:
    g = gradients(3)
    kept = (g > 0).all(0) | (g < 0).all(0)
    found = agreed(g, 1.0)
    assert torch.equal(found != 0, kept) and 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(found[kept], g.mean(0)[kept] / kept.double().mean())
    torch.testing.assert_close(agreed(g, 0.0), g.mean(0))
    torch.testing.assert_close(agreed(g[:1], 1.0), g[0])  # one domain agrees with itself


def test_smoothly_agreed_is_agreed_when_sharp_and_nothing_at_threshold_one() -> None:
    g = gradients(3)
    torch.testing.assert_close(smoothly_agreed(g, 0.5, 1e9), agreed(g, 1.0))
    assert not smoothly_agreed(g, 1.0, 10.0).any()
    torch.testing.assert_close(smoothly_agreed(g[:1], 0.5, 1e-3), g[0])
    assert torch.isfinite(smoothly_agreed(torch.zeros(3, 2), 0.0, 10.0)).all()


def test_smoothly_agreed_follows_like_sizes_further() -> None:
    g = torch.tensor([[1.0, 1.0], [1.1, 5.0]])
    found = smoothly_agreed(g, 0.5, 0.1) / g.mean(0)
    assert found[0] > 5 * found[1] > 0


def test_spread_is_the_trace_of_the_covariance_of_gradients() -> None:
    g = [gradients(3), gradients(3, 1)[:, 0]]
    whole = torch.cat([each.reshape(3, -1) for each in g], 1)
    found = gradient_spread([list(each) for each in g])
    torch.testing.assert_close(found, whole.var(0, correction=0).sum())


@pytest.mark.parametrize("sizes", [(4, 3, 5), (1, 2, 9)])
def test_closed_form_variances_are_those_of_one_backward_pass_per_sample(sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (12,), generator=generator)
    head = torch.nn.Linear(6, 3).double()
    each = []
    for row, label in zip(z, y, strict=True):
        weight, bias = torch.autograd.grad(F.cross_entropy(head(row[None]), label[None]), list(head.parameters()))
        each.append(torch.cat([weight, bias[:, None]], 1))
    expected = [part.var(0, correction=0) for part in torch.split(torch.stack(each), list(sizes))]
    torch.testing.assert_close(head_gradient_variances(z, head(z), y, sizes), torch.stack(expected))


def test_variances_are_not_taken_in_half_precision() -> None:
    z = 10 + torch.rand(8, 4, generator=torch.Generator().manual_seed(0))
    y, logits = torch.arange(8) % 2, torch.zeros(8, 2)
    plain = head_gradient_variances(z, logits, y, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(head_gradient_variances(z, logits, y, (8,)), plain)


def test_within_variance_does_not_see_shifts_between_domains() -> None:
    z = gradients(2).reshape(8, 5)
    shifted = z + torch.tensor([0.0] * 3 + [7.0] * 5, dtype=torch.float64)[:, None]
    torch.testing.assert_close(within_variance(z, (3, 5)), within_variance(shifted, (3, 5)))
    assert within_variance(z[:2], (1, 1)).item() == 0


def test_cuts_share_every_row_between_two_parts() -> None:
    rows = torch.arange(9)[:, None]
    first, second = cut_apart(rows, (4, 3, 2), (0, 2, 1))
    assert first.flatten().tolist() == [4, 5, 7] and second.flatten().tolist() == [0, 1, 2, 3, 6, 8]
