"""Shared by all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rcalign import cli

# before torch is imported, here or in a child: on toy networks more threads only wait for one another
os.environ.setdefault("OMP_NUM_THREADS", "1")

Run = Callable[..., tuple[int, str, str]]

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"


@pytest.fixture
def reference() -> Path:
    """The folder of recorded figures; a clone without it skips, and says so."""
    if not REFERENCE.is_dir():
        pytest.skip("the recorded reference figures are not part of this clone")
    return REFERENCE


@pytest.fixture
def rcalign(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a command in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rcalign", *map(str, words)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
