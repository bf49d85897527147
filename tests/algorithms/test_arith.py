"""Arith: the identities that define its direction."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm
from toy import batch, make


def direction(model: Algorithm, order: tuple[int, ...] | None = None) -> torch.Tensor:
    if order is not None:
        model.rng = Fixed(order)  # type: ignore[assignment]
    model.step(batch(0, domains=model.spec.num_domains))
    return torch.cat([p.grad.flatten() for p in model.parameters()])


class Fixed(np.random.Generator):
    """A generator whose permutation is known."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__(np.random.PCG64(0))
        self.order = order

    def permutation(self, *_: object) -> np.ndarray:  # type: ignore[override]
        return np.array(self.order)


def path(model: Algorithm, order: tuple[int, ...], rate: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Points and gradients of plain gradient descent over the domains, on a copy of the parameters."""
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    points, gradients = [], []
    data = batch(0)
    for k in order:
        part = data.select([k])
        leaves = {name: v.clone().requires_grad_() for name, v in values.items()}
        loss = F.cross_entropy(torch.func.functional_call(model, leaves, (part.x,))[1], part.y)
        found = torch.autograd.grad(loss, list(leaves.values()))
        values = {name: v - rate * g for (name, v), g in zip(values.items(), found, strict=True)}
        points.append(torch.cat([v.flatten() for v in values.values()]))
        gradients.append(torch.cat([g.flatten() for g in found]))
    return points, gradients


@pytest.mark.parametrize("order", list(permutations(range(3)))[:4])
def test_points_to_the_mean_of_the_path(order: tuple[int, ...]) -> None:
    model = make("Arith", inner_rate=0.5)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    points, gradients = path(model, order, 0.5)
    found = direction(model, order)
    expected = (1.5 * gradients[0] + gradients[1] + 0.5 * gradients[2]) / 3
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(torch.stack(points).mean(0), start - 0.5 * found * 3 * 4 / 6, atol=1e-5, rtol=1e-4)


def test_uniform_weights_point_to_the_end_of_the_path() -> None:
    model = make("Arith", inner_rate=0.5, weighting="uniform")
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    points, _ = path(model, (2, 0, 1), 0.5)
    torch.testing.assert_close(direction(model, (2, 0, 1)), (start - points[-1]) / 0.5 / 3, atol=1e-5, rtol=1e-4)


def test_without_inner_steps_the_mean_over_orders_is_the_mean_over_domains() -> None:
    found = torch.stack([direction(make("Arith", inner_rate=0.0), order) for order in permutations(range(3))]).mean(0)
    plain = make("ERM", reduction="domains")
    plain.step(batch(0))
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_one_domain_is_plain_training() -> None:
    found = direction(make("Arith", domains=1))
    plain = make("ERM", domains=1)
    plain.step(batch(0, domains=1))
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()])
    torch.testing.assert_close(found, expected)
