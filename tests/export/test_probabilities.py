"""Wherever probabilities come out, they lie in [0, 1] and every row sums to one."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rcalign import api
from rcalign.data.cache import decode
from rcalign.diagnosis import adapt_priors
from rcalign.estimator import DomainClassifier
from rcalign.evaluation.metrics import softmax
from rcalign.training.trained import load_trained

CPU = torch.device("cpu")
CLASSES = "012"


@pytest.fixture
def skewed(rows_run: Path, tmp_path: Path) -> Path:
    """Rows as in training, but nine tenths of them of one class."""
    data = np.load(rows_run.parent / "rows.npz")
    rng = np.random.default_rng(1)
    y = rng.choice(3, 400, p=[0.9, 0.05, 0.05])
    rows = [rng.choice(np.flatnonzero(data["y"] == c)) for c in y]
    np.savez(tmp_path / "skewed.npz", x=data["x"][rows])
    return tmp_path / "skewed.npz"


def predicted(run: Path, file: Path, out: Path) -> np.ndarray:
    return np.array([[row[c] for c in CLASSES] for row in api.predict(run, [file])["rows"]])


def adapted(run: Path, file: Path, out: Path) -> np.ndarray:
    """By a model that tells the classes apart well: by another nothing is adapted."""
    data = dict(np.load(run.parent / "rows.npz"))
    data["x"] = data["x"] + 3 * np.eye(5)[data["y"]]
    np.savez(out / "apart.npz", **data)
    np.savez(out / "new.npz", x=np.tile(data["x"][data["y"] != 1], (3, 1))[:400])
    api.train(out / "apart.npz", "ERM", ["2"], steps=60, out=out / "apart")
    result = api.predict(out / "apart", [out / "new.npz"], adapt_priors=True)
    assert result["adapted"] and result["priors"]["1"] < 0.05
    rows = result["rows"]
    assert [row["confidence"] for row in rows] == [max(row[c] for c in CLASSES) for row in rows]
    return np.array([[row[c] for c in CLASSES] for row in rows])


def written(run: Path, file: Path, out: Path) -> np.ndarray:
    api.predict(run, [file], adapt_priors=True, out=out / "p.csv")
    with (out / "p.csv").open() as table:
        return np.array([[float(row[c]) for c in CLASSES] for row in csv.DictReader(table)])


def loaded(run: Path, file: Path, out: Path) -> np.ndarray:
    return load_trained(run, CPU).probabilities(torch.from_numpy(np.load(file)["x"]).float())


def onnx(run: Path, file: Path, out: Path) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    done = api.export(run, "onnx", out=out / "m.onnx")
    graph = onnxruntime.InferenceSession(done["file"], providers=["CPUExecutionProvider"])
    return graph.run(None, {"x": np.load(file)["x"].astype(np.float32)})[1]


def torchscript(run: Path, file: Path, out: Path) -> np.ndarray:
    done = api.export(run, "torchscript", out=out / "m.pt")
    return torch.jit.load(done["file"])(torch.from_numpy(np.load(file)["x"]).float())[1].numpy()


def estimator(run: Path, file: Path, out: Path) -> np.ndarray:
    data = np.load(run.parent / "rows.npz")
    model = DomainClassifier("ERM", steps=30).fit(data["x"], data["y"], domains=data["domain"])
    return model.predict_proba(np.load(file)["x"])


def shares(run: Path, file: Path, out: Path) -> np.ndarray:
    """The class shares of an unlabelled target, by both estimates, and those of training."""
    target = api.diagnose(run, target=file).target
    assert target is not None and target.priors is not None
    for interval in (*target.priors.em, *target.priors.bbse):
        assert 0 <= interval.low <= interval.value <= interval.high <= 1
    found = [[one.value for one in estimate] for estimate in (target.priors.em, target.priors.bbse)]
    return np.array([*found, target.priors.source])


@pytest.mark.parametrize("way", [predicted, adapted, written, loaded, onnx, torchscript, estimator, shares])
def test_rows_sum_to_one(
    way: Callable[[Path, Path, Path], np.ndarray], rows_run: Path, skewed: Path, tmp_path: Path
) -> None:
    found = way(rows_run, skewed, tmp_path)
    assert found.shape[1] == 3 and len(found) in (3, 400)
    assert found.min() >= 0 and found.max() <= 1
    np.testing.assert_allclose(found.sum(1), 1, atol=5e-6)  # the rows of a CSV have six decimals


def test_images_too(image_run: Path, pictures: Path, tmp_path: Path) -> None:
    rows = api.predict(image_run, [pictures], adapt_priors=True)["rows"]
    loaded = torch.jit.load(api.export(image_run, "torchscript", out=tmp_path / "m.pt")["file"])
    graph = [loaded(torch.from_numpy(decode(row["path"], None)[None]))[1][0].tolist() for row in rows[:4]]
    for found in ([[row["red"], row["blue, [bold]"]] for row in rows], graph):
        assert np.min(found) >= 0
        np.testing.assert_allclose(np.sum(found, axis=1), 1, atol=5e-6)


def test_the_threshold_is_compared_with_probabilities(rows_run: Path, skewed: Path) -> None:
    rows = api.predict(rows_run, [skewed], adapt_priors=True, threshold=0.5)["rows"]
    assert {row["predicted"] == "unknown" for row in rows} == {row["confidence"] < 0.5 for row in rows}
    assert sum(row["predicted"] == "unknown" for row in rows) < len(rows) / 2


def test_predict_and_diagnose_start_from_the_same_training_priors(tmp_path: Path) -> None:
    """Domains of unequal size and shares: training draws each domain alike, so that is what the model expects."""
    rng = np.random.default_rng(0)
    domain = np.repeat([0, 1, 2], [300, 60, 60])
    y = np.where(rng.random(420) < np.array([0.9, 0.1, 0.5])[domain], 0, 1)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(420, 3)) + 3 * np.eye(3)[y], y=y, domain=domain)
    np.savez(tmp_path / "new.npz", x=rng.normal(size=(90, 3)) + 3 * np.eye(3)[(np.arange(90) < 20).astype(int)])
    api.train(tmp_path / "rows.npz", "ERM", ["2"], steps=20, out=tmp_path / "run")
    model = load_trained(tmp_path / "run", CPU)
    target = api.diagnose(tmp_path / "run", target=tmp_path / "new.npz").target
    assert target is not None and target.priors is not None
    np.testing.assert_allclose(target.priors.source, model.training_priors)
    counts = model.config.spec.count_matrix.numpy()
    np.testing.assert_allclose(model.training_priors, (counts / counts.sum(1, keepdims=True)).mean(0), atol=1e-12)
    target_priors = [one.value for one in target.priors.em]
    plain, corrected = (api.predict(tmp_path / "run", [tmp_path / "new.npz"], adapt_priors=a) for a in (False, True))
    logits = np.log([[row["0"], row["1"]] for row in plain["rows"]])
    estimate = np.array(list(corrected["priors"].values()))
    np.testing.assert_allclose(estimate, target_priors, atol=1e-4)
    assert corrected["adapted"]
    expected = softmax(adapt_priors(logits, model.training_priors, estimate / estimate.sum()))
    np.testing.assert_allclose([[row["0"], row["1"]] for row in corrected["rows"]], expected, atol=1e-4)


def test_shares_that_are_not_trusted_change_nothing(rows_run: Path, skewed: Path, tmp_path: Path) -> None:
    """Features that moved, or no data to check with: the probabilities stay, and a note says why."""
    np.savez(tmp_path / "moved.npz", x=np.load(skewed)["x"] + [0, 0, 0, 3.0, -3.0])
    plain = api.predict(rows_run, [tmp_path / "moved.npz"])
    result = api.predict(rows_run, [tmp_path / "moved.npz"], adapt_priors=True)
    assert not result["adapted"] and result["priors"] is not None
    assert result["rows"] == plain["rows"]
    assert any("were not adapted" in note and "more than the" in note for note in result["notes"])
    shutil.copytree(rows_run, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text()) | {"data": str(tmp_path / "gone.npz")}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    alone = api.predict(tmp_path / "run", [skewed], adapt_priors=True)
    assert not alone["adapted"] and alone["rows"] == api.predict(rows_run, [skewed])["rows"]
    assert any("no validation rows of the sources" in note for note in alone["notes"])
