"""fp16: the algorithms see true gradients, and an overflow costs one update, not the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rcalign import api
from rcalign.distributed import DividedRows
from rcalign.training.scaling import START, GradientScale
from toy import batch, make


@pytest.mark.parametrize("name", ["ERM", "RC-Align", "IRM", "Fish"])
def test_a_power_of_two_changes_no_bit_in_single_precision(name: str) -> None:
    plain, scaled = make(name, batch_size=6), make(name, batch_size=6)
    divided = DividedRows(scaled.featurizer, 6, 1, GradientScale(scaled.optimizers.values()))
    for step in range(4):
        plain.step(batch(step))
        with divided:
            scaled.step(batch(step))
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(scaled.state_dict()[key], value, atol=1e-7, rtol=1e-6)


def test_an_overflow_leaves_the_update_out_and_halves_the_scale() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    scale = GradientScale([optimizer])
    weight.grad = torch.tensor([1.0, torch.inf])
    optimizer.step()
    assert weight.tolist() == [1.0, 1.0] and scale.value == START / 2
    weight.grad = torch.tensor([1.0, 1.0])
    optimizer.step()
    assert weight.tolist() != [1.0, 1.0] and scale.value == START / 2


def test_small_gradients_survive_half_precision_only_when_scaled() -> None:
    def gradient(scale: GradientScale | None) -> float:
        layer = nn.Linear(1, 1, bias=False)
        divided = DividedRows(layer, 1, 1, scale)
        with torch.autocast("cpu", torch.float16), divided:
            (1e-9 * layer(torch.ones(1, 1)).float()).sum().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad.item()

    assert gradient(None) == 0.0
    assert gradient(GradientScale([])) == pytest.approx(1e-9, rel=0.05)


def test_a_run_in_half_precision_learns_and_resumes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y, domain = np.arange(300) % 2, np.arange(300) // 2 % 3
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(300, 4)) + 3 * y[:, None], y=y, domain=domain)
    options = {"steps": 30, "evaluate_every": 10, "precision": "fp16"}
    found = api.train(tmp_path / "rows.npz", "RC-Align", ["2"], out=tmp_path / "run", **options)  # type: ignore[arg-type]
    assert found["accuracy"]["2"] > 0.9
