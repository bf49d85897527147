"""Style swaps, masks over dominant features, and what discriminators are trained with."""

from __future__ import annotations

import math

import pytest
import torch

from rcalign.functional.adversarial import class_balanced_weights, input_gradient_penalty
from rcalign.functional.masking import challenged, dominant_kept
from rcalign.functional.style import content_randomized, style_and_content, style_randomized, uniform_cross_entropy

torch.manual_seed(0)
Z = torch.randn(6, 9, dtype=torch.float64)
SWAP = torch.tensor([1, 2, 3, 4, 5, 0])


def test_own_style_gives_the_features_back() -> None:
    torch.testing.assert_close(style_randomized(Z, torch.ones(6, 1, dtype=torch.float64), SWAP), Z)
    torch.testing.assert_close(content_randomized(Z, torch.arange(6)), Z)


def test_other_style_has_the_others_mean_and_spread() -> None:
    moved = style_randomized(Z, torch.zeros(6, 1, dtype=torch.float64), SWAP)
    torch.testing.assert_close(moved.mean(1), Z[SWAP].mean(1))
    torch.testing.assert_close(moved.var(1), Z[SWAP].var(1), atol=1e-4, rtol=1e-4)  # epsilon
    content, before = style_and_content(moved)[2], style_and_content(Z)[2]
    torch.testing.assert_close(content, before, atol=1e-4, rtol=1e-4)


def test_swapped_content_gets_no_gradient() -> None:
    z = Z.clone().requires_grad_()
    content_randomized(z, SWAP)[0].square().sum().backward()
    assert z.grad is not None and (z.grad[0] != 0).any() and (z.grad[1:] == 0).all()


def test_uniform_cross_entropy_is_least_for_equal_logits() -> None:
    assert uniform_cross_entropy(torch.zeros(3, 5)).item() == pytest.approx(math.log(5))
    assert uniform_cross_entropy(torch.randn(3, 5)) > math.log(5)


def test_dominant_features_are_the_largest_by_sign() -> None:
    gradients = torch.tensor([[-9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0]])
    kept = dominant_kept(gradients, 0.3)
    assert (~kept).nonzero()[:, 1].tolist() == [6, 7, 8]  # -9 is large only in size
    assert not dominant_kept(torch.ones(1, 4), 0.3).any()  # ties are muted


def test_challenged_are_those_that_lost_most() -> None:
    before, y = torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64)
    after = torch.zeros(10, 2)
    after[:, 1] = torch.arange(10.0)
    assert challenged(before, after, y, 0.3).nonzero()[:, 0].tolist() == [7, 8, 9]
    assert challenged(before, after, y, 0.0).nonzero()[:, 0].tolist() == [9]


def test_class_weights_sum_to_one_whatever_the_numbering() -> None:
    y = torch.tensor([0, 0, 0, 7, 3])
    weights = class_balanced_weights(y)
    assert weights.sum().item() == pytest.approx(1)
    assert [weights[y == c].sum().item() for c in (0, 3, 7)] == pytest.approx([1 / 3] * 3)
    assert class_balanced_weights(y, 8).sum().item() == pytest.approx(3 / 8)


def test_gradient_penalty_of_a_linear_discriminator_is_closed_form() -> None:
    weight, z, domain = torch.randn(3, 9, dtype=torch.float64), Z.clone().requires_grad_(), torch.tensor([0, 1, 2] * 2)
    logits = z @ weight.T
    gradient = (logits.softmax(1) - torch.nn.functional.one_hot(domain, 3)) @ weight
    penalty = input_gradient_penalty(z, logits, domain, "cross_entropy")
    torch.testing.assert_close(penalty, gradient.square().sum(1).mean())


def test_published_gradient_penalty_vanishes_for_equal_batches_only() -> None:
    weight, z = torch.randn(3, 9, dtype=torch.float64), Z.clone().requires_grad_()
    equal, unequal = torch.tensor([0, 1, 2] * 2), torch.tensor([0, 0, 0, 0, 1, 2])
    assert input_gradient_penalty(z, z @ weight.T, equal, "softmax").item() < 1e-20
    softmax = input_gradient_penalty(z, z @ weight.T, unequal, "softmax")
    literal = torch.autograd.grad((z @ weight.T).softmax(1)[:, unequal].sum(), z)[0]  # the published indexing
    torch.testing.assert_close(softmax, literal.square().sum(1).mean())
    assert softmax > 1e-3
