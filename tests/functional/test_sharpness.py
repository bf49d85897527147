"""Sharpness-aware steps."""

from __future__ import annotations

import pytest
import torch

from rcalign.functional.sharpness import global_norm, matching_shift


def test_norm_is_of_all_tensors_together() -> None:
    parts = [torch.randn(3, 2), torch.randn(5), torch.randn(())]
    expected = torch.cat([p.flatten() for p in parts]).norm()
    torch.testing.assert_close(global_norm(parts), expected)


def test_shift_goes_uphill_by_the_radius_and_down_by_alpha() -> None:
    assert matching_shift(2.0, 0.05, 0.0) == pytest.approx(0.025)
    assert matching_shift(2.0, 0.0, 0.1) == -0.1
    assert matching_shift(0.5, 0.05, 0.05 / 0.5) == pytest.approx(0.0)
    assert matching_shift(0.0, 0.05, 0.001) * 0.0 == 0.0  # a zero gradient: no division by zero, no perturbation
