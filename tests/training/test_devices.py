"""Where and how precisely a run is computed: what works on a CPU, and a sentence for what is not there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rcalign import api, cli
from rcalign.checkpoints import load_weights
from rcalign.devices import resolve_device
from rcalign.errors import InputError


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y, domain = np.arange(240) % 3, np.arange(240) // 80
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(240, 6)) + 2 * np.eye(6)[y], y=y, domain=domain)
    return tmp_path / "rows.npz"


def same_bits(a: Path, b: Path) -> bool:
    first, second = load_weights(a / "last.safetensors"), load_weights(b / "last.safetensors")
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", ["ERM", "RC-Align"])
def test_bf16_trains_on_a_cpu(name: str, rows: Path, tmp_path: Path) -> None:
    found = {}
    for precision in ("fp32", "bf16"):
        found[precision] = api.train(rows, name, ["2"], steps=60, precision=precision, out=tmp_path / precision)
        assert found[precision]["average"] > 0.8
        assert json.loads((tmp_path / precision / "config.json").read_text())["precision"] == precision
    assert not same_bits(tmp_path / "fp32", tmp_path / "bf16"), "bf16 computed the same as fp32"
    weights = load_weights(tmp_path / "bf16" / "best.safetensors")
    assert all(value.dtype != torch.bfloat16 for value in weights.values())  # only products are rounded
    assert api.evaluate(tmp_path / "bf16")["average"] == pytest.approx(found["bf16"]["average"])


def test_bf16_goes_on_where_it_stopped(rows: Path, tmp_path: Path) -> None:
    options = {"steps": 8, "evaluate_every": 4, "precision": "bf16"}
    api.train(rows, "RC-Align", ["2"], **options, out=tmp_path / "straight")
    shutil.copytree(tmp_path / "straight", tmp_path / "stopped")
    (tmp_path / "stopped" / "result.json").unlink()
    api.train(rows, "RC-Align", ["2"], **options, out=tmp_path / "stopped", resume=True)
    assert same_bits(tmp_path / "straight", tmp_path / "stopped")
    with pytest.raises(InputError, match="precision"):
        api.train(rows, "RC-Align", ["2"], **{**options, "precision": "fp32"}, out=tmp_path / "stopped", resume=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is none here")
def test_compile_on_a_cpu(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["rcalign", "train", str(rows), "--test-domain", "2", "--algorithm", "ERM", "--steps", "12"]
    for extra in ([], ["--compile"]):
        monkeypatch.setattr(sys, "argv", [*words, *extra, "--out", str(tmp_path / f"run{len(extra)}")])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
    plain, compiled = (load_weights(tmp_path / f"run{k}" / "last.safetensors") for k in (0, 1))
    for name, value in plain.items():  # the same names, and nearly the same numbers
        torch.testing.assert_close(compiled[name], value, atol=1e-4, rtol=1e-3)
    # how it was computed does not bind the run: it goes on, and predicts, without the compiler
    (tmp_path / "run1" / "result.json").unlink()
    again = api.train(rows, "ERM", ["2"], steps=12, out=tmp_path / "run1", resume=True)
    assert again["average"] == pytest.approx(api.evaluate(tmp_path / "run1")["average"])


@pytest.mark.slow
def test_a_missing_compiler_is_a_sentence(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    code = (
        "from rcalign import api; from rcalign.errors import InputError\n"
        f"try: api.train({str(rows)!r}, 'ERM', ['2'], steps=2, compile=True, out={str(tmp_path / 'run')!r})\n"
        "except InputError as error: print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "torch.compile does not work here" in ended.stdout, ended.stderr[-2000:]
    assert "leave `compile` out" in ended.stdout


def test_a_device_that_is_not_there(rows: Path) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device 'cuda' is not available on this machine: use `device=auto`"):
            api.train(rows, "ERM", ["2"], steps=1, device="cuda")
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        resolve_device("gpu")
    with pytest.raises(InputError, match="cpu:3"):
        resolve_device("cpu:3")
    assert resolve_device("cpu:0") == "cpu:0"
    assert resolve_device("auto") in ("cpu", "cuda", "mps")
    with pytest.raises(InputError, match="unknown precision 'fp8'"):
        api.train(rows, "ERM", ["2"], steps=1, precision="fp8")
