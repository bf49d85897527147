"""The mean of the points of a path of gradient steps."""

from __future__ import annotations

import pytest
import torch

from rcalign.functional.trajectory import mean_point_weights


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_weights_point_to_the_mean_of_the_path(steps: int) -> None:
    rate = 0.3
    start = torch.randn(4, dtype=torch.float64)
    gradients = torch.randn(steps, 4, dtype=torch.float64)
    points = start - rate * gradients.cumsum(0)
    weights = torch.tensor(mean_point_weights(steps), dtype=torch.float64)
    assert weights.sum().item() == pytest.approx(steps)
    # mean - start = -rate * sum ((K - k + 1) / K) g_k, the same direction
    scale = (steps + 1) / (2 * steps)
    torch.testing.assert_close(points.mean(0) - start, -rate * scale * (weights[:, None] * gradients).sum(0))


def test_two_steps() -> None:
    assert mean_point_weights(2) == (4 / 3, 2 / 3)
