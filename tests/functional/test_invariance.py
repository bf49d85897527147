"""Invariance penalties and domain weights: closed forms and symmetries."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from rcalign.functional.invariance import invariance_penalty, reweighted_log, risk_variance, scale_gradients

torch.manual_seed(0)
LOGITS, Y = torch.randn(10, 4, dtype=torch.float64), torch.randint(4, (10,))


def test_scale_gradient_in_closed_form_is_autograd() -> None:
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(F.cross_entropy(scale * LOGITS, Y), scale)
    torch.testing.assert_close(scale_gradients(LOGITS, Y).mean(), expected)


def test_penalty_and_its_gradient_are_those_of_two_scaled_halves() -> None:
    ours, theirs = LOGITS.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    invariance_penalty(ours, Y, (6, 4)).mean().backward()
    total = torch.zeros((), dtype=torch.float64)
    for rows in (slice(0, 6), slice(6, 10)):
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        halves = [F.cross_entropy(scale * theirs[rows][k::2], Y[rows][k::2]) for k in (0, 1)]
        a, b = (torch.autograd.grad(half, scale, create_graph=True)[0] for half in halves)
        total = total + a * b / 2
    total.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_penalty_is_zero_for_zero_logits_and_a_square_for_equal_halves() -> None:
    assert invariance_penalty(torch.zeros(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), (3, 3)).abs().max() == 0
    twice, labels = LOGITS.repeat_interleave(2, 0), Y.repeat_interleave(2)
    expected = scale_gradients(LOGITS, Y).mean().square()
    torch.testing.assert_close(invariance_penalty(twice, labels, (20,))[0], expected)


def test_penalty_of_one_row_is_finite_and_may_be_negative_otherwise() -> None:
    torch.testing.assert_close(invariance_penalty(LOGITS[:1], Y[:1], (1,)), scale_gradients(LOGITS[:1], Y[:1]).square())
    confident = torch.tensor([[3.0, 0.0], [3.0, 0.0]])  # right, then wrong: the two halves pull apart
    assert invariance_penalty(confident, torch.tensor([0, 1]), (2,)) < 0


def test_risk_variance_weighs_domains_by_how_far_they_are_from_the_mean() -> None:
    risks = torch.tensor([0.2, 0.5, 1.1], dtype=torch.float64, requires_grad=True)
    weight, count = 7.0, 3
    (risks.mean() + weight * risk_variance(risks)).backward()
    mean = risks.detach().mean()
    torch.testing.assert_close(risks.grad, 1 / count + 2 * weight * (risks.detach() - mean) / count)
    assert risk_variance(torch.full((3,), 0.7)) == 0


def test_domain_weights_sum_to_one_and_ignore_a_common_loss() -> None:
    start, risks = torch.log(torch.tensor([0.2, 0.3, 0.5])), torch.tensor([1.0, 2.0, 0.5])
    moved = reweighted_log(start, risks, 0.3)
    torch.testing.assert_close(moved.exp().sum(), torch.tensor(1.0))
    torch.testing.assert_close(reweighted_log(start, risks + 5, 0.3), moved)
    torch.testing.assert_close(reweighted_log(start, torch.full((3,), 2.0), 0.3), start)
    torch.testing.assert_close(reweighted_log(start, risks, 0.0), start)


def test_a_weight_that_underflows_comes_back() -> None:
    log_weights = torch.log(torch.tensor([0.5, 0.5]))
    for _ in range(300):
        log_weights = reweighted_log(log_weights, torch.tensor([1.0, 0.0]), 1.0)
    assert log_weights.exp()[1] == 0
    for _ in range(301):
        log_weights = reweighted_log(log_weights, torch.tensor([0.0, 1.0]), 1.0)
    assert log_weights.exp()[1] > 0.5
