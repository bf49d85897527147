"""Ensembles: the mean of probabilities of runs with the same split is a run like any other; others are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rcalign import api
from rcalign.errors import InputError
from rcalign.training.trained import load_trained
from toy import dark_and_light

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dark_and_light(tmp_path_factory.mktemp("photos"), each=10, gap=60, width=160)


def test_three_networks_with_pixels_of_their_own_are_one_run(photos: Path, tmp_path: Path) -> None:
    options = {"weights": "none", "image_size": 32, "steps": 4, "evaluate_every": 2, "hparams": {"batch_size": 4}}
    runs = tmp_path / "runs"
    api.train(photos, "ERM", ["c"], out=runs / "resnet", backbone="mobilenetv3_small_050", **options)
    api.train(photos, "CORAL", ["c"], out=runs / "vit", backbone="test_vit", **options)
    api.train(photos, "ERM", ["c"], out=runs / "frozen", backbone="test_vit", freeze_backbone=True, **options)
    members = [load_trained(runs / name, CPU) for name in ("resnet", "vit", "frozen")]
    assert members[0].augmentation.mean != members[1].augmentation.mean, "else nothing is rescaled here"

    result = api.ensemble([runs], out=tmp_path / "all")
    shutil.rmtree(runs)  # the folder stands alone
    whole = load_trained(tmp_path / "all", CPU)
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (5, 36, 36, 3), dtype=np.uint8))
    expected = np.mean([one.probabilities(one.augmentation.evaluate(images)) for one in members], axis=0)
    found = torch.softmax(whole.logits(whole.augmentation.evaluate(images)), 1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)

    assert result["weights"] == "mean of the probabilities of 3 runs" and len(result["runs"]) == 3
    assert api.evaluate(tmp_path / "all")["accuracy"] == pytest.approx(result["accuracy"])
    rows = api.predict(tmp_path / "all", [photos / "c" / "dark"])["rows"]
    assert len(rows) == 10
    assert api.export(tmp_path / "all", out=tmp_path / "model.pt")["difference"] < 1e-4
    assert api.diagnose(tmp_path / "all").notes is not None
    assert "ERM" in api.report(tmp_path / "all") or "CORAL" in api.report(tmp_path / "all")


def test_what_was_split_otherwise_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = tmp_path / "rows.npz"
    np.savez(rows, x=rng.normal(size=(120, 4)), y=np.arange(120) % 2, domain=np.arange(120) // 2 % 3)
    options = {"steps": 2, "evaluate_every": 2}
    api.train(rows, "ERM", ["2"], out=tmp_path / "a", **options)
    api.train(rows, "ERM", ["2"], out=tmp_path / "seed", seed=1, **options)
    with pytest.raises(InputError, match="their seed, and so their split, differ"):
        api.ensemble([tmp_path / "a", tmp_path / "seed"], out=tmp_path / "all")
    api.train(rows, "ERM", ["1"], out=tmp_path / "domain", **options)
    with pytest.raises(InputError, match="their test domains differ"):
        api.ensemble([tmp_path / "a", tmp_path / "domain"], out=tmp_path / "all")
    with pytest.raises(InputError, match="two or more"):
        api.ensemble([tmp_path / "a"], out=tmp_path / "all")
    assert not (tmp_path / "all").exists()
    api.train(rows, "CORAL", ["2"], out=tmp_path / "b", **options)
    api.ensemble([tmp_path / "a", tmp_path / "b"], out=tmp_path / "all")
    assert len(api.predict(tmp_path / "all", [rows])["rows"]) == 120
    with pytest.raises(InputError, match="holds no finished run with weights"):
        api.soup([tmp_path / "all"], out=tmp_path / "soup")  # its members are not runs to find
