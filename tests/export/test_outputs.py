"""Files that cannot be written are refused before the work; names decide formats; what is unfinished says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rcalign import api
from rcalign.checkpoints import load_weights
from rcalign.diagnosis import diagnose_features
from rcalign.errors import InputError
from rcalign.estimator import DomainClassifier

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever computes something fails the test."""

    def worked(*_: object, **__: object) -> None:
        raise AssertionError("the work began before the output was checked")

    for name in ("rcalign.training.trained.TrainedModel.logits", "rcalign.exports.export_model"):
        monkeypatch.setattr(name, worked)


COMMANDS = {"predict": ("p.csv", ["rows.npz"]), "export": ("m.pt", []), "diagnose": ("d.json", [])}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("a_folder", "is a folder, but a file is to be written"),
        ("a_file/{name}", "cannot be written"),
        ("/proc/{name}", "cannot be written"),
        ("/proc/sub/{name}", "cannot be written"),
        ("/dev/null", "is no regular file"),
    ],
)
def test_a_bad_output_is_refused_before_the_work(
    command: str, place: str, said: str, rows_run: Path, rcalign: Run, tmp_path: Path, no_work: None
) -> None:
    name, paths = COMMANDS[command]
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "a_file").write_text("")
    inputs = [rows_run.parent / path for path in paths]
    code, _, err = rcalign(command, rows_run, *inputs, "--out", place.format(name=name))
    assert code == 2 and said in err and "Traceback" not in err, err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_folder_is_made(command: str, rows_run: Path, rcalign: Run, tmp_path: Path) -> None:
    name, paths = COMMANDS[command]
    inputs = [rows_run.parent / path for path in paths]
    code, _, err = rcalign(command, rows_run, *inputs, "--out", f"new/deep/{name}")
    assert code == 0, err
    assert (tmp_path / "new" / "deep" / name).stat().st_size > 0


def test_the_ending_decides_the_format(rows_run: Path, rcalign: Run, tmp_path: Path) -> None:
    for name, begins in (("d.html", "<!doctype html"), ("d.json", "{"), ("d.txt", "╭")):
        code, out, err = rcalign("diagnose", rows_run, "--out", name)
        assert code == 0 and out == f"Written to {name}\n", err
        assert (tmp_path / name).read_text().lower().startswith(begins)
    code, out, _ = rcalign("export", rows_run, "--out", "m.safetensors")
    assert code == 0 and "Card: m.safetensors-card.md" in out and load_weights(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("diagnose", "--out", "x.pdf"), "belongs to no format: use one of .txt, .json, .html, .htm"),
        (("diagnose", "--format", "json", "--out", "x.html"), "but json is written to '.json'"),
        (("diagnose", "--format", "pdf"), "unknown format 'pdf'"),
        (("export", "--format", "onnx", "--out", "x.pt"), "but onnx is written to '.onnx'"),
        (("export", "--out", "x.bin"), "belongs to no format"),
    ],
)
def test_an_ending_that_fits_no_format(words: tuple[str, ...], said: str, rows_run: Path, rcalign: Run) -> None:
    code, _, err = rcalign(words[0], rows_run, *words[1:])
    assert code == 2 and said in err and "Traceback" not in err


def test_every_exported_file_has_its_own_card(rows_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    for format, ending in (("onnx", "onnx"), ("torchscript", "pt"), ("safetensors", "safetensors")):
        api.export(rows_run, format, out=tmp_path / f"model.{ending}")
    for ending in ("onnx", "pt", "safetensors"):
        assert f"file: `model.{ending}`" in (tmp_path / f"model.{ending}-card.md").read_text()


@pytest.fixture
def unfinished(rows_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(rows_run, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "result.json").unlink()
    return tmp_path / "unfinished"


def test_an_unfinished_run_says_so(unfinished: Path, rows_run: Path, rcalign: Run) -> None:
    rows = rows_run.parent / "rows.npz"
    for words in (("predict", unfinished, rows), ("evaluate", unfinished), ("export", unfinished, "--out", "m.pt")):
        code, out, err = rcalign(*words)
        assert code == 0 and "The run is not finished" in err and "are not calibrated" in err, err
    assert "probabilities: float32 (n, 3), not calibrated" in out
    code, out, err = rcalign("export", rows_run, "--out", "m.pt")
    assert "note:" not in err and "(n, 3), calibrated" in out


def test_changed_data_are_refused_wherever_splits_would_be_made(tmp_path: Path) -> None:
    """Other rows would make another split: rows that were trained on would count as validation."""
    rng = np.random.default_rng(0)
    y, domain = np.arange(180) % 2, np.repeat(np.arange(3), 60)
    file = tmp_path / "rows.npz"
    np.savez(file, x=rng.normal(size=(180, 3)), y=y, domain=domain)
    api.train(file, "ERM", ["2"], steps=3, out=tmp_path / "run")
    np.savez(file, x=rng.normal(size=(180, 3)), y=y, domain=domain)
    for work in (
        lambda: api.evaluate(tmp_path / "run"),
        lambda: api.diagnose(tmp_path / "run"),
        lambda: api.export(tmp_path / "run", "safetensors", diagnosis=True),
    ):
        with pytest.raises(InputError, match=r"changed since the run .* was trained"):
            work()
    assert api.diagnose(tmp_path / "run", file).held_out  # named by the user: all rows, no split
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"] == str(file)


def test_the_decision_function_of_two_classes_is_logits() -> None:
    rng = np.random.default_rng(0)
    y, site = np.arange(120) % 2, np.repeat(["a", "b", "c"], 40)
    X = rng.normal(size=(120, 4)) + y[:, None]
    model = DomainClassifier("ERM", steps=20).fit(X, y, domains=site)
    told = diagnose_features(model.transform(X), y, site, logits=model.decision_function(X))
    chosen = model.predict_proba(X)
    right = np.log(chosen[np.arange(120), y])
    for one in told.held_out:
        assert one.risk == pytest.approx(-right[site == one.domain].mean())
    target = diagnose_features(
        model.transform(X)[:80],
        y[:80],
        site[:80],
        logits=model.decision_function(X[:80]),
        target_features=model.transform(X[80:]),
        target_logits=model.decision_function(X[80:]),
    ).target
    assert target is not None and target.samples == 40
