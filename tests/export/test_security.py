"""Nothing that is loaded can run code, no manifest reaches outside its folder, and any name is only a name."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rcalign import api, cli
from rcalign.checkpoints import load_state, load_weights
from rcalign.data import loading
from rcalign.data.cache import cache_root, decode
from rcalign.errors import InputError
from rcalign.exports import model_card
from rcalign.store.run_folder import read_config

Run = Callable[..., tuple[int, str, str]]


class Evil:
    """Unpickling this makes a file: what an attacker's code would do is up to them."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return (open, (str(self.marker), "w"))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    path = tmp_path / "pwned"
    pickle.loads(pickle.dumps(Evil(path)))
    assert path.exists(), "the trap itself must work"
    path.unlink()
    return path


@pytest.fixture
def rcalign(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rcalign", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


def evil_files(folder: Path, marker: Path) -> dict[str, Path]:
    """The trap in every kind of file that is read."""
    evil = Evil(marker)
    made = {
        name: folder / name for name in ("plain.pt", "torch.pt", "dict.pt", "old.pt", "w.safetensors", "a.npz", "b.npz")
    }
    made["plain.pt"].write_bytes(pickle.dumps(evil))
    torch.save(evil, made["torch.pt"])
    torch.save({"state_dict": {"weight": torch.zeros(2), "x": evil}}, made["dict.pt"])
    torch.save(evil, made["old.pt"], _use_new_zipfile_serialization=False)
    made["w.safetensors"].write_bytes(pickle.dumps(evil))
    objects = np.array([evil], dtype=object)
    np.savez(made["a.npz"], x=objects, y=objects, domain=objects)
    rows = {"x": np.zeros((30, 2)), "domain": np.arange(30) // 10}
    np.savez(made["b.npz"], y=np.array([evil] * 30, dtype=object), **rows)
    return made


# --- code ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain.pt", "torch.pt", "dict.pt", "old.pt", "w.safetensors"])
def test_weights_run_nothing(name: str, tmp_path: Path, marker: Path, rcalign: Run, pictures: Path) -> None:
    file = evil_files(tmp_path, marker)[name]
    with pytest.raises(InputError, match="cannot be read as weights"):
        load_weights(file)
    code, _, error = rcalign(
        "train", pictures, "--test-domain", "camera a", "--backbone", "test_resnet", "--weights", file, "--out", "run"
    )
    assert code == 2 and name in error and not marker.exists()
    with pytest.raises(InputError):
        load_state(file)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["a.npz", "b.npz"])
def test_data_run_nothing(name: str, tmp_path: Path, marker: Path, rcalign: Run, rows_run: Path) -> None:
    file = evil_files(tmp_path, marker)[name]
    for words in (
        ("train", file, "--test-domain", "0"),
        ("data", "info", file),
        ("evaluate", rows_run, file),
        ("evaluate", file, "--leave-one-out"),
        ("diagnose", file),
    ):
        code, _, error = rcalign(*words)
        assert code == 2 and "Traceback" not in error
    if name == "a.npz":
        assert rcalign("predict", rows_run, file)[0] == 2
    assert not marker.exists()


def test_an_archive_member_that_is_a_pickle(tmp_path: Path, marker: Path) -> None:
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        for name in ("x.npy", "y.npy", "domain.npy"):
            archive.writestr(name, pickle.dumps(Evil(marker)))
    with pytest.raises(InputError, match=r"never loaded|not a readable"):
        loading.load(tmp_path / "c.npz")
    assert not marker.exists()


@pytest.mark.parametrize(
    "file", ["best.safetensors", "state.safetensors", "config.json", "result.json", "records.jsonl"]
)
def test_a_run_folder_runs_nothing(file: str, tmp_path: Path, marker: Path, rows_run: Path, rcalign: Run) -> None:
    shutil.copytree(rows_run, tmp_path / "run")
    (tmp_path / "run" / file).write_bytes(pickle.dumps(Evil(marker)))
    data = rows_run.parent / "rows.npz"
    rcalign("predict", "run", data)
    if file != "result.json":
        (tmp_path / "run" / "result.json").unlink()
    rcalign("train", data, "--test-domain", "2", "--steps", "60", "--out", "run", "--resume")
    assert not marker.exists()


def test_a_configuration_names_no_code(tmp_path: Path, rows_run: Path) -> None:
    shutil.copytree(rows_run, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    for change in ({"algorithm": "os.system"}, {"hparams": {"__class__": "x"}}, {"extra": 1}):
        (tmp_path / "run" / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(InputError, match="unknown"):
            api.predict(tmp_path / "run", [rows_run.parent / "rows.npz"])


def test_cached_features_run_nothing(tmp_path: Path, marker: Path, pictures: Path) -> None:
    options = {"backbone": "test_resnet", "weights": "none", "image_size": 32, "steps": 2, "freeze_backbone": True}
    api.train(pictures, "ERM", ["camera a"], **options, out=tmp_path / "a")
    cached = list(cache_root().glob("features/*.npy"))
    assert cached
    for file in cached:
        file.write_bytes(pickle.dumps(Evil(marker)))
    try:
        again = api.train(pictures, "ERM", ["camera a"], **options, out=tmp_path / "b")
        assert again["steps"] == 2
    finally:
        for file in cached:
            file.unlink(missing_ok=True)
    assert not marker.exists()


def test_an_image_of_a_kind_that_would_start_a_program(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9)).save(buffer, "EPS")  # decoding it would call Ghostscript
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    with pytest.raises(Exception, match="not an image"):
        decode(tmp_path / "a.png", 8)


# --- paths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parent", "through", "itself"])
def test_a_manifest_stays_in_its_folder(kind: str, tmp_path: Path, rcalign: Run) -> None:
    inside = tmp_path / "data"
    (inside / "sub").mkdir(parents=True)
    for path in (tmp_path / "secret.png", inside / "a.png"):
        Image.new("RGB", (9, 9)).save(path)
    shown = {
        "parent": "../secret.png",
        "through": "sub/../../secret.png",
        "itself": ".",
    }
    with (inside / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "label", "domain"], ["a.png", "x", "d"], [shown[kind], "y", "d"]])
    with pytest.raises(InputError, match=r"outside the manifest's folder|do not exist"):
        loading.load(inside / "list.csv")
    assert rcalign("data", "info", inside / "list.csv")[0] == 2


# --- names ---------------------------------------------------------------------------------------------------------

ODD = [
    "a b",
    "it's",
    'say "x"',
    "two\nlines",
    "naïve 图像",
    "[/red]",
    "<script>alert(1)</script>",
    "$(touch x); `x`",
    "%s {0}",
]
# no slash in a name of a file
NAMES = [name.replace("/", "∕") for name in ODD]


def make_odd_folder(root: Path) -> Path:
    rng = np.random.default_rng(0)
    for d in range(3):
        for c in range(2):
            folder = root / NAMES[d] / NAMES[5 + c]
            folder.mkdir(parents=True)
            for k in range(6):
                pixels = rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{NAMES[(3 + k) % 9]} {k}.png")
    return root


def test_odd_names_of_files_classes_and_domains_work_everywhere(rcalign: Run, tmp_path: Path) -> None:
    data = make_odd_folder(tmp_path / "my 'data'\n[bold]")
    small = ("--backbone", "test_resnet", "--weights", "none", "--image-size", "32", "--steps", "2")
    assert rcalign("data", "info", data)[0] == 0
    code, out, error = rcalign("train", data, "--test-domain", NAMES[2], "--algorithm", "ERM", *small)
    assert code == 0, error
    (folder,) = (tmp_path / "runs").iterdir()
    assert rcalign("evaluate", folder)[0] == 0
    code, out, _ = rcalign("predict", folder, data, "--out", "p.csv")
    assert code == 0 and "36 predictions" in out
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["predicted"] for row in rows} <= set(NAMES[5:7]) and all(Path(row["path"]).is_file() for row in rows)
    assert rcalign("predict", folder, data)[0] == 0
    assert rcalign("export", folder, "--format", "safetensors")[0] == 0
    code, _, error = rcalign("evaluate", data, "--leave-one-out", "--algorithm", "ERM", *small)
    assert code == 0, error


@pytest.mark.parametrize("name", ODD)
def test_any_class_name_in_arrays(name: str, tmp_path: Path, rcalign: Run) -> None:
    y = np.array([name, "other"])[np.arange(60) % 2]
    domain = np.array([name, "b", "c"])[np.arange(60) // 20]
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(0).normal(size=(60, 3)), y=y, domain=domain)
    code, _, error = rcalign("train", "rows.npz", "--test-domain", name, "--algorithm", "ERM", "--steps", "2")
    assert code == 0, error
    (folder,) = (tmp_path / "runs").iterdir()
    assert rcalign("predict", folder, "rows.npz")[0] == 0
    assert rcalign("evaluate", folder, "rows.npz")[0] == 0
    assert name in read_config(folder).spec.classes


def test_names_that_are_no_text(tmp_path: Path, rcalign: Run) -> None:
    """File systems take any bytes; these are no UTF-8."""
    root = tmp_path / "data"
    for d in range(3):
        for c in (b"caf\xe9", b"tea"):
            folder = root / f"d{d}" / os.fsdecode(c)
            folder.mkdir(parents=True)
            for k in range(5):
                Image.new("RGB", (9, 9), (40 * d, 50 * k, 0)).save(folder / os.fsdecode(b"\xff%d.png" % k))
    small = ("--backbone", "test_resnet", "--weights", "none", "--image-size", "32", "--steps", "2")
    code, _, error = rcalign("train", root, "--test-domain", "d2", "--algorithm", "ERM", *small, "--out", "run")
    assert code == 0, error
    assert rcalign("predict", "run", root, "--out", "p.csv")[0] == 0
    assert b"caf\xe9" in (tmp_path / "p.csv").read_bytes()
    for format in ("safetensors", "torchscript"):
        assert rcalign("export", "run", "--format", format)[0] == 0


def test_a_card_escapes_names(rows_run: Path) -> None:
    config = read_config(rows_run)
    object.__setattr__(config, "data", "<script>alert(1)</script> | [x](http://evil) `y`\n# heading")
    text = model_card(config, None)
    assert "<script>" not in text and "[x](" not in text and "\n# heading" not in text
