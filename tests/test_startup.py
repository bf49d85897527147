"""Help, lists, reports and errors of usage answer at once: nothing heavy is imported before it is needed."""

from __future__ import annotations

import dataclasses
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import registry, spaces
from rcalign.hparams_reader import read_hparams

HEAVY = ("torch", "numba", "ray", "timm", "sklearn", "pandas", "plotly", "matplotlib")
LIMIT = 1.5  # seconds of processor time
LOOK = """
import sys
from rcalign.cli import main
sys.argv = ["rcalign", *sys.argv[1:]]
try:
    main()
finally:
    print("imported:", *(name for name in {heavy} if name in sys.modules), file=sys.stderr)
"""


def test_what_is_read_of_the_files_is_what_they_register() -> None:
    read = {found.name: found for found in registry._read_descriptions()}
    assert set(read) == set(registry.names(parts=True))
    for name, found in read.items():
        entry = registry.get(name)
        assert all(getattr(found, field) == getattr(entry, field) for field in ("summary", "paper", "family", "traits"))


def test_hyperparameters_are_the_same_read_and_imported() -> None:
    for found in registry._read_descriptions():
        assert found.defined_in is not None
        read, imported = read_hparams(*found.defined_in), registry.get(found.name).algorithm.Hparams
        assert list(spaces.fields_of(read).items()) == list(spaces.fields_of(imported).items()), found.name
        assert dataclasses.asdict(read()) == dataclasses.asdict(imported()), found.name


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, ["--help"]),
        (0, ["train", "--help"]),
        (0, ["data", "list"]),
        (0, ["doctor"]),
        (0, ["algorithms"]),
        (0, ["algorithms", "BoDA-M_r,c"]),
        (0, ["algorithms", "EQRM", "--json"]),
        (2, ["algorithms", "EMR"]),
        (2, ["train", "nothing"]),
        (2, ["train", "emoji", "--algorithm", "EMR"]),
        (2, ["train", "emoji", "--steps", "0"]),
        (2, ["train", "emoji", "--stepz", "3"]),
        (2, ["evaluate", "nothing"]),
        (2, ["predict", "nothing", "x.png"]),
        (2, ["export", "nothing"]),
        (2, ["report", "nothing"]),
        (2, ["sweep", "nothing"]),
        (2, ["sweep", "wrong.toml"]),
        (2, ["data", "info", "nothing"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_an_answer_takes_little_processor_time(code: int, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('data = "emoji"\nalgorithms = "EMR"\n')
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-c", LOOK.format(heavy=HEAVY), *words],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.splitlines()[-1].strip() == "imported:", words
    assert "Traceback" not in ended.stderr
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < LIMIT, f"{' '.join(words)} took {spent:.2f} s"


def test_what_the_documentation_calls_needs_no_import_but_the_package() -> None:
    code = (
        "import sys, rcalign; assert 'torch' not in sys.modules; rcalign.api.report, rcalign.estimator.DomainClassifier"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
