"""Two small trained runs, made once: on pictures and on rows of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rcalign import api

NETWORK = {"backbone": "test_resnet", "weights": "none", "image_size": 32, "steps": 12, "evaluate_every": 6}


def make_pictures(root: Path, per_class: int = 8) -> Path:
    """Three domains, two classes: red and blue squares on grey, with names that need care."""
    rng = np.random.default_rng(0)
    for d, domain in enumerate(("camera a", "caméra 'ç'", '相机 "三"')):
        for c, name in enumerate(("red", "blue, [bold]")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for k in range(per_class):
                image = (70 + 50 * d + rng.integers(0, 20, (40, 40, 3))).astype(np.uint8)
                image[8:32, 8:32] = (200, 30, 30) if c == 0 else (30, 30, 200)
                Image.fromarray(image).save(folder / f"{k}.png")
    return root


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RCALIGN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(scope="session")
def image_run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "images"
    hparams = {"batch_size": 6, "learning_rate": 1e-3}
    api.train(pictures, "ERM", ["camera a"], **NETWORK, hparams=hparams, out=folder)
    return folder


@pytest.fixture(scope="session")
def rows_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    y, domain = np.arange(240) % 3, np.repeat(np.arange(3), 80)
    np.savez(folder / "rows.npz", x=rng.normal(size=(240, 5)) + 1.2 * np.eye(5)[y], y=y, domain=domain)
    api.train(folder / "rows.npz", "RC-Align", ["2"], steps=60, out=folder / "rows")
    return folder / "rows"
