"""Modules of other packages: by entry points and by name, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rcalign.errors import InputError
from rcalign.extensions import import_modules

ALGORITHM = """
from rcalign.algorithms.erm import ERM
from rcalign.registry import register

@register("Elsewhere", summary="a method of another package", paper="none", family="tests")
class Elsewhere(ERM):
    pass
"""
DATA = """
import numpy as np
from rcalign.data.sources import register_source
from rcalign.data.sources.arrays import from_arrays

@register_source("tides", summary="rows of another package")
def tides():
    return from_arrays({"x": np.zeros((8, 2)), "y": np.arange(8) % 2, "domain": np.arange(8) // 4}, name="tides")
"""
METRIC = """
from rcalign.evaluation.metric_table import register_metric

register_metric("always", lambda scores, y: 1.0, higher_is_better=True, needs="logits", help="one")
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as an installer leaves it: three modules, and their entry points."""
    for name, text in (("elsewhere", ALGORITHM), ("tides", DATA), ("always", METRIC)):
        (tmp_path / f"{name}.py").write_text(text)
    about = tmp_path / "another-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[rcalign.algorithms]\na = elsewhere\nb = not_there\n[rcalign.data]\na = tides\n[rcalign.metrics]\na = always\n"
    )
    return tmp_path


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, cwd=folder)


def test_what_an_installed_package_registers_is_there(installed: Path) -> None:
    listed = python(installed, "-m", "rcalign.cli", "algorithms")
    assert listed.returncode == 0 and "a method of another package" in listed.stdout
    assert "'not_there' (rcalign.algorithms) cannot be imported" in listed.stderr  # and stops nothing
    info = python(installed, "-m", "rcalign.cli", "data", "info", "tides")
    assert info.returncode == 0 and "tides: 8 samples" in info.stdout
    metric = python(installed, "-c", "from rcalign.evaluation.metric_table import METRICS; print('always' in METRICS)")
    assert metric.stdout.strip() == "True"


@pytest.mark.slow  # a training and its readers, each in a process of its own
def test_a_metric_of_a_module_is_there_for_whoever_reads_the_run(tmp_path: Path) -> None:
    (tmp_path / "own_metric.py").write_text(METRIC.replace('help="one"', 'title="always one", help="one"'))
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(60, 3)), y=np.arange(60) % 2, domain=np.arange(60) % 3)
    cli = ("-m", "rcalign.cli")
    options = ("--test-domain", "2", "--steps", "2", "--algorithm", "ERM", "--import", "own_metric", "--out", "run")
    trained = python(tmp_path, *cli, "train", "rows.npz", *options)
    assert trained.returncode == 0 and "always one" in trained.stdout, trained.stderr
    read = python(tmp_path, *cli, "report", "run")
    assert read.returncode == 0 and "always one" in read.stdout, read.stderr
    (tmp_path / "own_metric.py").rename(tmp_path / "run" / "own_metric.py")
    elsewhere = python(tmp_path, *cli, "report", "run")
    assert elsewhere.returncode == 0 and "always one" not in elsewhere.stdout
    assert "the module 'own_metric', which runs were trained with, is not found here" in elsewhere.stdout


def test_a_module_is_found_in_the_current_folder_and_named_when_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "found_here.py").write_text("VALUE = 3\n")
    import_modules(["found_here"])
    assert sys.modules.pop("found_here").VALUE == 3
    for name, said in (("nowhere_at_all", "there is no module"), ("found_here.py", "such as 'found_here'")):
        with pytest.raises(InputError, match=said):
            import_modules([name])
    (tmp_path / "needs_more.py").write_text("import something_missing\n")
    with pytest.raises(ModuleNotFoundError, match="something_missing"):  # a bug of theirs keeps its traceback
        import_modules(["needs_more"])
