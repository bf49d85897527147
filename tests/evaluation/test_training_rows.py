"""Rows that a run was trained on are recognised in other data, said, and left out unless asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rcalign import api
from rcalign.data import loading
from rcalign.data.overlap import rows_also_in
from rcalign.data.splits import split as make_splits
from rcalign.errors import InputError
from rcalign.training.run_data import untrained_outputs
from rcalign.training.trained import load_trained

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {"x": rng.normal(size=(180, 3)), "y": np.arange(180) % 2, "domain": np.repeat(np.arange(3), 60)}
    np.savez(tmp_path / "rows.npz", **made)
    api.train(tmp_path / "rows.npz", "ERM", ["2"], steps=3, out=tmp_path / "run")
    return made


def trained_on(folder: Path) -> int:
    return int(np.sum(api.load_trained(folder, api.torch.device("cpu")).config.spec.counts))


def test_training_rows_are_left_out(rows: dict[str, np.ndarray], tmp_path: Path, rcalign: Run) -> None:
    trained = trained_on(tmp_path / "run")
    found = api.evaluate(tmp_path / "run", tmp_path / "rows.npz")
    assert any(f"{trained} of 180 rows were part of the training" in note for note in found["notes"])
    assert np.sum([np.sum(table) for table in found["confusion"].values()]) == 180 - trained
    assert set(found["accuracy"]) == {"0", "1", "2"}  # the validation rows of the sources remain
    everything = api.evaluate(tmp_path / "run", tmp_path / "rows.npz", include_training=True)
    assert np.sum([np.sum(table) for table in everything["confusion"].values()]) == 180
    assert any("too good" in note for note in everything["notes"])
    code, _, err = rcalign("evaluate", tmp_path / "run", tmp_path / "rows.npz")
    assert code == 0 and "were left out (--include-training keeps them)" in err
    code, _, err = rcalign("evaluate", tmp_path / "run", tmp_path / "rows.npz", "--include-training")
    assert code == 0 and "as asked" in err


def test_a_diagnosis_leaves_them_out_too(rows: dict[str, np.ndarray], tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "rows.npz"
    trained, model = trained_on(run), load_trained(run, torch.device("cpu"))
    found = untrained_outputs(run, model, data)
    assert len(found.labels) == 180 - trained and found.domain_names == ["0", "1", "2"]
    assert len(untrained_outputs(run, model, data, include_training=True).labels) == 180
    told = f"{trained} of 180 rows were part of the training"
    assert any(told in note and "left out" in note for note in api.diagnose(run, data).notes)
    assert any(told in note and "as asked" in note for note in api.diagnose(run, data, include_training=True).notes)


def test_other_data_are_told_from_them_by_content(rows: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Some of the rows under another name, in another order, beside new ones."""
    rng = np.random.default_rng(1)
    order = rng.permutation(180)[:50]
    mixed = {
        "x": np.concatenate([rows["x"][order], rng.normal(size=(40, 3))]),
        "y": np.concatenate([rows["y"][order], np.arange(40) % 2]),
        "domain": np.full(90, 7),
    }
    np.savez(tmp_path / "mixed.npz", **mixed)
    own, other = loading.load(tmp_path / "rows.npz"), loading.load(tmp_path / "mixed.npz")
    assert rows_also_in(other, own, np.arange(180)).tolist() == [True] * 50 + [False] * 40
    found = api.evaluate(tmp_path / "run", tmp_path / "mixed.npz")
    assert 40 <= np.sum(found["confusion"]["7"]) < 90
    np.savez(tmp_path / "new.npz", **{name: values[50:] for name, values in mixed.items()})
    assert api.evaluate(tmp_path / "run", tmp_path / "new.npz")["notes"] == []


def test_nothing_is_left(rows: dict[str, np.ndarray], tmp_path: Path) -> None:
    data = loading.load(tmp_path / "rows.npz")
    config = load_trained(tmp_path / "run", torch.device("cpu")).config
    splits = make_splits(data, config.protocol, config.test_domains, config.seed)
    chosen = np.concatenate(list(splits.train.values()))
    np.savez(tmp_path / "seen.npz", **{name: values[chosen] for name, values in rows.items()})
    with pytest.raises(InputError, match="rows were part of the training: give other data"):
        api.evaluate(tmp_path / "run", tmp_path / "seen.npz")


def test_copies_of_image_files_are_recognised(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for domain, label, k in np.ndindex(2, 2, 3):
        folder = tmp_path / "photos" / f"site {domain}" / f"class {label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(folder / f"{k}.png")
    copy = tmp_path / "copy" / "elsewhere" / "class 0"
    copy.mkdir(parents=True)
    shutil.copy(tmp_path / "photos" / "site 0" / "class 0" / "1.png", copy / "renamed.png")
    Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(copy / "new.png")
    own, other = loading.load(tmp_path / "photos"), loading.load(tmp_path / "copy")
    names = [path.name for path in other.content.paths]
    assert dict(zip(names, rows_also_in(other, own, np.arange(12)).tolist(), strict=True)) == {
        "renamed.png": True,
        "new.png": False,
    }


@pytest.mark.parametrize(("kind", "hint"), [("rows", "NEW.npz"), ("images", "IMAGE...")])
def test_the_hint_after_training_fits_the_data(kind: str, hint: str, tmp_path: Path, rcalign: Run) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)) if kind == "rows" else rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(60) % 2, domain=np.arange(60) // 20)
    network = [] if kind == "rows" else ["--backbone", "test_resnet", "--weights", "none"]
    words = ["train", "data.npz", "--algorithm", "ERM", "--test-domain", "2", "--steps", "1", "--out", "run"]
    code, out, err = rcalign(*words, *network)
    assert code == 0 and f"Next: rcalign predict run {hint}" in out, err
