"""Contrasts with proxies and prototypes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.functional.contrastive import moved_prototypes, prototype_contrast, proxy_contrast


@pytest.fixture
def case() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([2, 0, 1, 0, 2, 1, 1])
    return torch.randn(7, 5, generator=generator), torch.randn(3, 5, generator=generator), y


def literal(projections: Tensor, proxies: Tensor, y: Tensor, scale: float, published: bool) -> float:
    """The formula, term by term."""
    p, w = F.normalize(projections, dim=1), F.normalize(proxies, dim=1)
    own = [math.exp(scale * float(w[y[i]] @ p[i])) for i in range(len(y))]
    if published:  # class by class, as a mask of shape (classes, samples) lists them
        own = [own[i] for c in range(len(w)) for i in range(len(y)) if y[i] == c]
    total = 0.0
    for i in range(len(y)):
        below = own[i]
        if not published:
            below += sum(math.exp(scale * float(w[c] @ p[i])) for c in range(len(w)) if c != y[i])
        for j in range(len(y)):
            cosine = float(p[i] @ p[j])
            if y[j] != y[i] and (not published or cosine >= 1e-6):
                below += math.exp(scale * cosine)
        total -= math.log(own[i] / below)
    return total / len(y)


@pytest.mark.parametrize("published", [False, True])
def test_proxy_contrast_is_the_formula(case: tuple[Tensor, Tensor, Tensor], published: bool) -> None:
    found = proxy_contrast(*case, scale=3.0, published=published)
    assert found.item() == pytest.approx(literal(*case, scale=3.0, published=published), rel=1e-5)
    assert found.item() > 0


def test_proxy_contrast_ignores_lengths(case: tuple[Tensor, Tensor, Tensor]) -> None:
    projections, proxies, y = case
    lengths = torch.rand(7, 1, generator=torch.Generator().manual_seed(1)) + 0.5
    expected = proxy_contrast(projections, proxies, y, 12.0)
    torch.testing.assert_close(proxy_contrast(projections * lengths, proxies * 3, y, 12.0), expected)


def test_the_order_of_samples_matters_only_in_the_published_form(case: tuple[Tensor, Tensor, Tensor]) -> None:
    projections, proxies, y = case
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    same = proxy_contrast(projections[order], proxies, y[order], 12.0)
    torch.testing.assert_close(same, proxy_contrast(projections, proxies, y, 12.0))
    other = proxy_contrast(projections[order], proxies, y[order], 12.0, published=True)
    assert not torch.allclose(other, proxy_contrast(projections, proxies, y, 12.0, published=True))


def test_a_batch_of_one_class(case: tuple[Tensor, Tensor, Tensor]) -> None:
    projections, proxies, y = case
    alike = torch.zeros_like(y)
    assert proxy_contrast(projections, proxies, alike, 12.0, published=True).item() == 0
    assert proxy_contrast(projections, proxies, alike, 12.0).item() > 0  # the other classes' proxies stay


def test_prototype_contrast_leaves_out_what_is_unknown() -> None:
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    prototypes = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0]])
    target = torch.tensor([0, 1, 1, 0])
    known = torch.tensor([True, True, False])
    found = prototype_contrast(features, prototypes, target, 0.07, negatives=False, known=known)
    expected = F.cross_entropy(F.normalize(features, dim=1) @ prototypes[:2].T / 0.07, target)
    torch.testing.assert_close(found, expected)
    found.backward()
    assert torch.isfinite(features.grad).all()
    everything = prototype_contrast(features, prototypes, target, 0.07, negatives=False, known=None)
    assert everything > found  # a zero prototype is a logit of zero


def test_prototype_contrast_with_unlike_rows() -> None:
    unit = F.normalize(torch.tensor([[1.0, 0.2], [0.9, 0.5], [-1.0, 0.0]]), dim=1)
    target = torch.tensor([0, 1, 1])
    prototypes = torch.eye(2)
    found = prototype_contrast(unit, prototypes, target, 0.5, negatives=True, known=None)
    cosine = float(unit[0] @ unit[1])  # the only unlike pair that is not opposed
    expected = 0.0
    for i, extra in enumerate(([cosine], [cosine], [])):
        logits = [*(unit[i] @ prototypes.T).tolist(), *extra]
        expected += math.log(sum(math.exp(v / 0.5) for v in logits)) - logits[int(target[i])] / 0.5
    assert found.item() == pytest.approx(expected / 3, rel=1e-5)


def test_prototypes_move_sample_by_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    start = F.normalize(torch.randn(4, 3, generator=generator), dim=1)
    start[3] = 0
    values = torch.randn(9, 3, generator=generator)
    index = torch.tensor([0, 2, 0, 0, 1, 2, 0, 1, 0])
    expected = start.clone()
    for value, k in zip(values, index, strict=True):
        expected[k] = 0.9 * expected[k] + 0.1 * value
    torch.testing.assert_close(moved_prototypes(start, values, index, 0.9), F.normalize(expected, dim=1))
