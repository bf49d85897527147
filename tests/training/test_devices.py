"""Where and how precisely a run is computed: what works on a CPU, and a sentence for what is not there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import toy
from rcalign import api, cli, registry
from rcalign.checkpoints import load_weights
from rcalign.data.batches import Batches
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


# what these compute depends on a number that only the device knows: a norm, a worst domain, who has a partner
READ_BACK = {"BoDA-M_r,c", "BoDA_r,c", "CAD", "CDANN", "CRT", "CondCAD", "GMDG", "MetaReg", "RDM", "SAGM", "SAM", "SSP"}
READ_BACK |= {"SSP-pretext", "Transfer", "iDAG"}
READ_BACK |= {"RC-Align"}  # on a CPU alone, where reading is free: whether a row is near a centroid
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"}  # operations that wait for a GPU


class Reads(TorchDispatchMode):
    """Notes operations for whose result a host would have to wait for its GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            part is not None and part.dtype == torch.bool for part in args[1]
        )
        # one_hot looks at the largest label on a CPU only
        called_by = {frame.name for frame in traceback.extract_stack(limit=12)}
        if (name in WAITING or by_mask) and not called_by & {"margin_logits", "head_gradient_variances"}:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [name for name in registry.names(parts=True) if name not in READ_BACK])
def test_a_step_reads_no_number_back_from_the_device(name: str) -> None:
    model = toy.make(name)
    sizes = (7,) * model.spec.num_domains
    if model.refresh_due():
        whole = toy.training_set(model)
        model.refresh(model.embed(whole.x), whole.y, whole.domain)
    model.step(toy.batch(0, sizes, images=toy.takes_images(model)))
    with Reads() as reads:
        model.step(toy.batch(1, sizes, images=toy.takes_images(model)))
    assert reads.found == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here: prefetching to one cannot be tried")
def test_batches_prepared_ahead_are_the_same_on_a_gpu() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3
    parts = [np.arange(20), np.arange(20, 40)]
    on_cpu = Batches(x, y, parts, 8, 0)
    for step, batch in enumerate(Batches(x, y, parts, 8, 0, device="cuda").iterate(0, 9, workers=1)):
        assert batch.x.is_cuda and torch.equal(batch.x.cpu(), on_cpu.at(step).x)
