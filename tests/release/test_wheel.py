"""The built wheel has all that the package needs, says what it is, and works where there is nothing else of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

import rcalign

pytest.importorskip("build", reason="the extra 'dev' is not installed")
ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "docs", "results", "src", "tests")
QUICK_GUIDES = ("algorithm", "cluster", "dataset", "domainbed", "images", "table")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source archive, made as by ``make dist``, from a copy of the tree."""
    folder = tmp_path_factory.mktemp("dist")
    tree = folder / "tree"
    tree.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, tree)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    source = ROOT / "src"
    ours = {
        file.relative_to(source).as_posix()
        for file in (source / "rcalign").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    (wheel,) = built.glob("*.whl")
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == ours


def test_the_source_archive_has_the_tests_and_the_documentation(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for name in ("tests/conftest.py", "tests/guides/running.py", "docs/sweeps.md", "constraints.txt", "Makefile"):
        assert name in names


def test_the_metadata_are_valid_and_right(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        text = opened.read(name)
        licence = opened.read(name.replace("METADATA", "licenses/LICENSE")).decode()
    found = Metadata.from_email(text, validate=True)
    assert (found.name, str(found.version)) == ("rcalign", rcalign.__version__)
    assert f"version: {rcalign.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert found.license_expression == "MIT" and licence == (ROOT / "LICENSE").read_text()
    assert found.description_content_type == "text/markdown"
    assert found.description is not None
    assert found.description.strip() == (ROOT / "README.md").read_text().strip()


def test_the_wheel_works_outside_the_repository(built: Path, tmp_path: Path) -> None:
    """The other packages are those of this environment, found through a .pth file, which reads no editable install;
    ``make dist-check`` installs them anew."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", wheel]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(install, check=True, env=clean)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    ended = subprocess.run(
        [python, ROOT / "tests" / "release" / "use_installed.py", *QUICK_GUIDES],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for name in QUICK_GUIDES:
        assert f"{name}: works" in ended.stdout
