"""Model soups: the mean of runs that share their start is a run like any other; others are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rcalign import api
from rcalign.checkpoints import load_weights
from rcalign.errors import InputError


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    y, domain = np.arange(360) % 3, np.arange(360) // 3 % 4
    x = rng.normal(size=(360, 6)) + 1.5 * np.eye(6)[y] + np.eye(6)[2 + domain]
    file = tmp_path_factory.mktemp("data") / "rows.npz"
    np.savez(file, x=x, y=y, domain=domain)
    return file


@pytest.fixture(scope="module")
def runs(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three draws of one test domain and seed."""
    root = tmp_path_factory.mktemp("runs")
    for k, rate in enumerate((1e-3, 3e-3, 5e-4)):
        api.train(rows, "ERM", ["3"], out=root / str(k), steps=30, evaluate_every=10, hparams={"learning_rate": rate})
    return root


def test_a_uniform_soup_is_the_mean_and_a_run_like_any_other(runs: Path, rows: Path, tmp_path: Path) -> None:
    result = api.soup([runs], out=tmp_path / "soup")
    parts = [load_weights(runs / str(k) / "best.safetensors") for k in range(3)]
    for name, value in load_weights(tmp_path / "soup" / "best.safetensors").items():
        torch.testing.assert_close(value, torch.stack([part[name] for part in parts]).mean(0))
    assert result["weights"] == "uniform mean of 3 runs of 3"
    evaluated = api.evaluate(tmp_path / "soup")
    assert evaluated["accuracy"] == pytest.approx(result["accuracy"])
    predicted = api.predict(tmp_path / "soup", [rows])["rows"]
    assert len(predicted) == 360
    assert "ERM" in api.report(tmp_path / "soup")


def test_a_greedy_soup_is_no_worse_in_validation_than_its_best_run(runs: Path, tmp_path: Path) -> None:
    result = api.soup([runs / str(k) for k in range(3)], out=tmp_path / "soup", kind="greedy")
    import json

    best = max(json.loads((runs / str(k) / "result.json").read_text())["validation"] for k in range(3))
    assert result["validation"] >= best - 1e-12
    assert 1 <= len(result["runs"]) <= 3


def test_what_does_not_share_its_start_is_refused(rows: Path, runs: Path, tmp_path: Path) -> None:
    options = {"steps": 5, "evaluate_every": 5}
    api.train(rows, "ERM", ["3"], out=tmp_path / "seed", seed=1, **options)
    with pytest.raises(InputError, match=r"cannot be averaged: their (classes, source|seed)"):
        api.soup([runs, tmp_path / "seed"], out=tmp_path / "soup")
    api.train(rows, "ERM", ["2"], out=tmp_path / "domain", **options)
    with pytest.raises(InputError, match="cannot be averaged"):
        api.soup([runs, tmp_path / "domain"], out=tmp_path / "soup")
    with pytest.raises(InputError, match="two or more"):
        api.soup([runs / "0"], out=tmp_path / "soup")
    with pytest.raises(InputError, match="did you mean 'greedy'"):
        api.soup([runs], out=tmp_path / "soup", kind="greedi")
    assert not (tmp_path / "soup").exists()
