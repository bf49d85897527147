"""``rcalign doctor``: what is there is reported as it is, what is missing with what fixes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rcalign import environment
from rcalign.environment import check_environment


def doctor(*, settings: dict[str, str], folder: Path) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "rcalign", "doctor", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, cwd=folder)
    return ended.returncode, json.loads(ended.stdout), ended.stderr


def test_every_needed_package_is_compared_with_the_one_that_is_here() -> None:
    found = check_environment()
    versions = {one["name"]: one["found"] for one in found["packages"]}
    assert {"torch", "numpy", "ray"} <= versions.keys()
    for name, version in versions.items():
        assert version == metadata.version(name)
    assert {"onnx", "emoji", "hub"} <= {one["extra"] for one in found["extras"]}
    assert not {"dev", "docs", "all"} & {one["extra"] for one in found["extras"]}


def without(missing: str, versions: dict[str, str] | None = None) -> Callable[[str], str]:
    real = metadata.version

    def version(name: str) -> str:
        if name == missing:
            raise metadata.PackageNotFoundError(name)
        return (versions or {}).get(name) or real(name)

    return version


def test_a_missing_package_is_a_problem_and_a_missing_extra_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(check_environment()["problems"])
    monkeypatch.setattr(environment.metadata, "version", without("onnx"))
    found = check_environment()
    (extra,) = [one for one in found["extras"] if one["extra"] == "onnx"]
    assert extra["install"] == "pip install 'rcalign[onnx]'" and len(found["problems"]) == before

    monkeypatch.undo()
    monkeypatch.setattr(environment.metadata, "version", without("scipy", {"numpy": "1.0"}))
    fixes = {problem["what"]: problem["fix"] for problem in check_environment()["problems"]}
    assert fixes["scipy is not installed"].startswith("pip install 'scipy>=")
    assert fixes["numpy is version 1.0"].startswith("pip install 'numpy>=")


def test_a_folder_that_cannot_be_made_gives_exit_code_1(tmp_path: Path) -> None:
    code, found, errors = doctor(settings={"RCALIGN_CACHE": "/dev/null/cache"}, folder=tmp_path)
    assert code == 1 and not errors
    assert any("RCALIGN_CACHE" in problem["fix"] for problem in found["problems"])
    assert not list(tmp_path.iterdir())  # it leaves nothing behind


def test_a_gpu_that_torch_cannot_use_is_a_problem(tmp_path: Path) -> None:
    """The driver's tool is a stand-in here: no machine with a GPU runs these tests."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch can use the GPU of this machine")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'A100, 40960 MiB, 550.1'\n")
    tool.chmod(0o755)
    code, found, _ = doctor(settings={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, folder=tmp_path)
    assert code == 1 and found["devices"]["gpus"] == ["A100, 40960 MiB, 550.1"]
    assert any("cannot use the GPU" in problem["what"] for problem in found["problems"])
