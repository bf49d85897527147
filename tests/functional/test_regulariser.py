"""The learned regulariser of a head."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.functional.regulariser import adapted_head, weighted_l1


@pytest.fixture
def case() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {"weight": draw(3, 4), "bias": draw(3), "features": draw(5, 4), "y": torch.tensor([0, 1, 2, 1, 0])}


def test_one_step_has_a_closed_form_gradient(case: dict[str, Tensor]) -> None:
    """grad_phi CE_b(beta_1) = -alpha sign(theta_a) * grad CE_b(beta_1)."""
    strength = torch.full((3, 4), 0.2, dtype=torch.float64, requires_grad=True)
    weight, bias = adapted_head(**case, strength=strength, rate=0.3, steps=1)
    other, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    (found,) = torch.autograd.grad(F.cross_entropy(F.linear(other, weight, bias), labels), strength)
    beta = weight.detach().requires_grad_()
    (of_beta,) = torch.autograd.grad(F.cross_entropy(F.linear(other, beta, bias.detach()), labels), beta)
    torch.testing.assert_close(found, -0.3 * case["weight"].sign() * of_beta)


def test_steps_are_gradient_descent(case: dict[str, Tensor]) -> None:
    strength = torch.rand(3, 4, dtype=torch.float64)
    weight, bias = case["weight"].clone().requires_grad_(), case["bias"].clone().requires_grad_()
    descent = torch.optim.SGD([weight, bias], lr=0.1)
    for _ in range(3):
        descent.zero_grad()
        loss = F.cross_entropy(F.linear(case["features"], weight, bias), case["y"]) + weighted_l1(weight, strength)
        loss.backward()
        descent.step()
    found = adapted_head(**case, strength=strength, rate=0.1, steps=3)
    torch.testing.assert_close(found, (weight.detach(), bias.detach()), check_dtype=True, rtol=1e-10, atol=1e-12)


def test_several_steps_differentiate_through_each_other(case: dict[str, Tensor]) -> None:
    strength = torch.full((3, 4), 0.2, dtype=torch.float64, requires_grad=True)

    def outer(values: Tensor) -> Tensor:
        weight, _ = adapted_head(**case, strength=values, rate=0.3, steps=3)
        return weight.square().sum()

    assert torch.autograd.gradcheck(outer, (strength,))
