"""The same picture gets the same answer from evaluation, prediction, the estimator and exported files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from rcalign import api
from rcalign.data import loading
from rcalign.estimator import DomainClassifier
from rcalign.training.trained import load_trained

SIDE, SIZE = 48, 32
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, list[Path]]:
    """A folder domain/class/image, and the pixels of its files in the data set's order."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for domain in ("a", "b"):
        for label in ("x", "y"):
            (folder / domain / label).mkdir(parents=True)
            for n in range(10):
                noise = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
                noise[..., "xy".index(label)] //= 2
                Image.fromarray(noise).save(folder / domain / label / f"{n}.png")
    data = loading.load(folder)
    files = list(data.content.paths)  # type: ignore[union-attr]
    return folder, np.stack([np.asarray(Image.open(file)) for file in files]), files


def answers(run: Path, folder: Path, x: np.ndarray, files: list[Path], tmp_path: Path) -> dict[str, np.ndarray]:
    """Probabilities (n, C) of the same pictures, by every way there is."""
    model = load_trained(run, torch.device("cpu"))
    np.savez(tmp_path / "same.npz", x=x, y=np.zeros(len(x), int), domain=np.zeros(len(x), int))
    rows = np.arange(len(x))
    found = {}
    for name, data in (("folder", loading.load(folder)), ("npz", loading.load(tmp_path / "same.npz"))):
        found[f"evaluation of {name}"] = np.concatenate([model.probabilities(i) for i in model.inputs(data, rows)])
    classes = model.config.spec.classes
    for name, paths in (("files", files), ("npz", [tmp_path / "same.npz"])):
        predicted = api.predict(run, paths)["rows"]
        found[f"prediction of {name}"] = np.array([[row[label] for label in classes] for row in predicted])
    done = api.export(run, "onnx", out=tmp_path / "model.onnx")
    assert done["difference"] < TOLERANCE  # claimed of the picture, and kept below
    session = onnxruntime.InferenceSession((tmp_path / "model.onnx").read_bytes())
    found["onnx"] = session.run(None, {"images": x})[1]
    api.export(run, "torchscript", out=tmp_path / "model.pt")
    with torch.inference_mode():
        found["torchscript"] = torch.jit.load(tmp_path / "model.pt")(torch.from_numpy(x))[1].numpy()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("trained_on", ["folder", "npz"])
def test_a_run(trained_on: str, pictures: tuple[Path, np.ndarray, list[Path]], tmp_path: Path) -> None:
    folder, x, files = pictures
    data: Path = folder
    if trained_on == "npz":  # whose pictures are kept at their own size, not at that of files
        original = loading.load(folder)
        data = tmp_path / "train.npz"
        np.savez(data, x=x, y=original.y, domain=original.domain)
    run = tmp_path / "run"
    api.train(
        data,
        algorithm="ERM",
        steps=2,
        backbone="test_resnet",
        weights="none",
        image_size=SIZE,
        protocol="mdlt",
        out=run,
    )
    found = answers(run, folder, x, files, tmp_path)
    first = found.pop("evaluation of folder")
    for way, other in found.items():
        assert np.abs(other - first).max() < TOLERANCE, way


@pytest.mark.slow
@pytest.mark.parametrize("fitted_on", ["paths", "arrays"])
def test_the_estimator(fitted_on: str, pictures: tuple[Path, np.ndarray, list[Path]]) -> None:
    folder, x, files = pictures
    data = loading.load(folder)
    model = DomainClassifier("ERM", "test_resnet", weights="none", image_size=SIZE, steps=2)
    model.fit(files if fitted_on == "paths" else x, data.y, domains=data.domain)
    assert np.abs(model.predict_proba(files) - model.predict_proba(x)).max() < TOLERANCE
