"""Data sets in the form of the Hugging Face hub, from a folder and from a server on this machine."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from serving import hub, serving

from rcalign.data import load, open_images
from rcalign.data.source import Images
from rcalign.errors import InputError
from rcalign.training.job import located

datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")


def picture(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def write(folder: Path, **columns: Any) -> Path:
    """Twelve pictures of two classes and three styles as parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "image": [{"bytes": picture(n), "path": None} for n in range(12)],
        "label": [n % 2 for n in range(12)],
        "hand": ["ink", "oil", "wax"] * 4,
        **columns,
    }
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    kinds = datasets.Features({name: features.get(name, datasets.Value("string")) for name in found})
    datasets.Dataset.from_dict(found, features=kinds).to_parquet(folder / "train-00000-of-00001.parquet")
    return folder


@pytest.fixture(autouse=True)
def own_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))


def test_a_folder_of_parquet_files(tmp_path: Path) -> None:
    address = f"hf://{write(tmp_path / 'mine')}?domain=hand"
    data = load(address)
    assert data.name == "mine" and data.classes == ("cat", "dog") and data.domains == ("ink", "oil", "wax")
    assert data.counts().tolist() == [[2, 2]] * 3
    assert isinstance(data.content, Images)
    for row in (0, 11):  # byte for byte, in the order of the rows
        assert data.content.paths[row].read_bytes() == picture(row)
    assert open_images(data, 8).take([0]).shape == (1, 8, 8, 3)
    assert load(address).fingerprint == data.fingerprint
    assert located(address) == address
    assert load(address + "&split=train").fingerprint == data.fingerprint


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ("", r"none of which is called domain.*\?domain=COLUMN"),
        ("?domain=colour", "colour"),
        ("?domain=hand&picture=image", "picture"),
        ("?domain=hand&image=hand", "not an image"),
        ("?domain=hand&split=none", "cannot be loaded"),
    ],
)
def test_what_is_wrong_is_said(tail: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        load(f"hf://{write(tmp_path / 'mine')}{tail}")


def test_an_address_without_owner() -> None:
    with pytest.raises(InputError, match="hf://OWNER/NAME"):
        load("hf://pacs")


LOADING = """
import json, sys
from rcalign.data import load
data = load("hf://someone/hands?domain=hand")
first = data.content.paths[0].read_bytes().hex()
print(json.dumps({"counts": data.counts().tolist(), "domains": data.domains, "first": first}))
"""


@pytest.mark.slow
def test_from_a_server(tmp_path: Path) -> None:
    """In a process of its own: the client reads the server's address when it is imported."""
    table = next(write(tmp_path / "mine").iterdir()).read_bytes()
    answer = hub({"data/train-00000-of-00001.parquet": table, "README.md": b"# Hands"}, "someone/hands")
    with serving(answer=answer) as server:
        environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")}
        done = subprocess.run([sys.executable, "-c", LOADING], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["counts"] == [[2, 2]] * 3 and found["domains"] == ["ink", "oil", "wax"]
    assert bytes.fromhex(found["first"]) == picture(0)
