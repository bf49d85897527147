"""Transfer risks, the bottleneck and the weighted contrast, against autograd and plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from rcalign.functional.bottleneck import domain_bottleneck
from rcalign.functional.disentangling import domain_weighted_contrast
from rcalign.functional.transferability import (
    fitted_classifier,
    hessian_product,
    into_ball,
    inverse_hessian_series,
    largest_gap,
    weight_gradient,
)


@pytest.fixture
def data() -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(12, 4, generator=rng, dtype=torch.float64)
    y = torch.randint(3, (12,), generator=rng)
    weight = torch.randn(3, 4, generator=rng, dtype=torch.float64)
    bias = torch.randn(3, generator=rng, dtype=torch.float64)
    return z, y, weight, bias


def test_gradient_and_hessian_of_a_linear_classifier(data: tuple[torch.Tensor, ...]) -> None:
    z, y, weight, bias = data

    def risk(w: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(z, w, bias), y)

    gradient = torch.autograd.functional.jacobian(risk, weight)
    torch.testing.assert_close(weight_gradient(z, y, weight, bias), gradient)
    direction = torch.ones_like(weight).cumsum(0)
    _, expected = torch.autograd.functional.hvp(risk, weight, direction)
    probabilities = F.linear(z, weight, bias).softmax(1)
    torch.testing.assert_close(hessian_product(z, probabilities, direction), expected)


def test_series_tends_to_the_inverse_where_it_converges(data: tuple[torch.Tensor, ...]) -> None:
    z, _, weight, bias = data
    z = 0.8 * z / z.norm(dim=1, keepdim=True)  # Hessian below one
    probabilities = F.linear(z, weight, bias).softmax(1)
    vector = hessian_product(z, probabilities, weight)  # in the Hessian's range
    solved = inverse_hessian_series(vector, z, probabilities, terms=20_000, limit=1e9)
    torch.testing.assert_close(hessian_product(z, probabilities, solved), vector, atol=1e-6, rtol=1e-4)


def test_series_stops_where_it_does_not_converge(data: tuple[torch.Tensor, ...]) -> None:
    z, _, weight, bias = data
    probabilities = F.linear(100 * z, weight / 100, bias).softmax(1)
    found = inverse_hessian_series(weight, 100 * z, probabilities, terms=1000)
    assert torch.isfinite(found).all() and found.abs().max() < 1e6


def test_fitting_is_gradient_descent(data: tuple[torch.Tensor, ...]) -> None:
    z, y, weight, bias = data
    layer = torch.nn.Linear(4, 3).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(layer(z), y).backward()
        optimizer.step()
    ours = fitted_classifier(z, y, weight, bias, 0.1, 30)
    torch.testing.assert_close(ours[0], layer.weight.detach())
    torch.testing.assert_close(ours[1], layer.bias.detach())


def test_ball_and_gap() -> None:
    centre = [torch.ones(2, 2), torch.zeros(2)]
    near = [torch.ones(2, 2) + 0.1, torch.zeros(2)]
    assert all(torch.equal(a, b) for a, b in zip(into_ball(near, centre, 1.0), near, strict=True))
    far = [torch.full((2, 2), 3.0), torch.full((2,), 5.0)]
    put = into_ball(far, centre, 0.5)
    apart = torch.cat([(a - b).flatten() for a, b in zip(put, centre, strict=True)])
    assert apart.norm() == pytest.approx(0.5)
    assert all(torch.equal(a, b) for a, b in zip(into_ball(far, centre, 0.0), centre, strict=True))
    risks = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
    largest_gap(risks).backward()
    assert torch.equal(risks.grad, torch.zeros(3))  # no gap, nothing to lower


@pytest.mark.parametrize("within_class", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("published", [False, True])
def test_bottleneck_against_a_loop(
    data: tuple[torch.Tensor, ...], within_class: bool, flipped: bool, published: bool
) -> None:
    z, y, *_ = data
    z = z.clone().requires_grad_()
    domain = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
    y[3] = 4  # occurs once
    terms = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i and (not within_class or y[j] == y[i])]
        chosen = [j for j in others if (domain[j] != domain[i]) == flipped]
        top = [math.exp(float(z[i] @ z[j]) / 0.5) for j in chosen]
        if published and not within_class:
            if (y == y[i]).sum() == 1:
                continue
            top += [] if flipped else [1.0]
        if top:
            bottom = sum(math.exp(float(z[i] @ z[j]) / 0.5) for j in others)
            terms.append((-1 if flipped else 1) * 0.5 / 0.07 * math.log(sum(top) / bottom))
    options = {"within_class": within_class, "flipped": flipped, "published": published}
    loss = domain_bottleneck(z, y, domain, 0.5, **options)
    assert float(loss) == pytest.approx(sum(terms) / len(terms), rel=1e-9)
    loss.backward()
    assert torch.isfinite(z.grad).all()


def test_bottleneck_of_nothing_is_zero() -> None:
    z = torch.ones(3, 2, requires_grad=True)
    y, domain = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0])
    for within_class, flipped in ((False, True), (True, True), (True, False)):
        assert float(domain_bottleneck(z, y, domain, 0.1, within_class=within_class, flipped=flipped)) == 0


def test_bottleneck_survives_large_features() -> None:
    z = (100 * torch.randn(6, 8, generator=torch.Generator().manual_seed(0))).requires_grad_()
    y, domain = torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 0, 0, 1, 1, 1])
    for within_class in (False, True):
        loss = domain_bottleneck(z, y, domain, 0.05, within_class=within_class)
        (gradient,) = torch.autograd.grad(loss, z)
        assert torch.isfinite(loss) and torch.isfinite(gradient).all()


@pytest.mark.parametrize("own", [0.5, 0.2])
def test_weighted_contrast_against_a_loop(data: tuple[torch.Tensor, ...], own: float) -> None:
    z, y, *_ = data
    domain = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
    y[3] = 4  # without a positive: it takes no part
    unit = z / z.norm(dim=1, keepdim=True)
    total, counted = 0.0, 0
    for i in range(len(z)):
        e = {
            j: (own if domain[j] == domain[i] else 1 - own) * math.exp(float(unit[i] @ unit[j]) / 0.07)
            for j in range(len(z))
            if j != i
        }
        positives = [j for j in e if y[j] == y[i]]
        if positives:
            counted += 1
            bottom = sum(e.values()) + 1e-5
            total -= sum(math.log(e[j] / bottom + 1e-5) for j in positives) / len(positives)
    assert float(domain_weighted_contrast(z, y, domain, own)) == pytest.approx(total / (counted + 1), rel=1e-9)
