"""Real runs to report on: a sweep of tiny networks, trained once for all tests, with names that try to break a page."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rcalign.store.sweep_folder import SweepFolder
from rcalign.sweeps.plan import DataSummary, expand
from rcalign.sweeps.plan_file import parse_plan
from rcalign.training import job
from rcalign.training.options import options_from

CLASSES = ["<script>alert(1)</script>", "bee & wasp", "cat"]
DOMAINS = ["a_<b>", 'it\'s "c"', "d|e"]


def write_rows(file: Path, seed: int = 0, rows: int = 360) -> Path:
    rng = np.random.default_rng(seed)
    y, domain = rng.choice(3, size=rows, p=[0.6, 0.3, 0.1]), np.arange(rows) % 3
    x = rng.normal(size=(rows, 5)).astype(np.float32)
    x[np.arange(rows), y] += 1.5
    x[:, 3] += domain
    np.savez(file, x=x, y=np.array(CLASSES)[y], domain=np.array(DOMAINS)[domain])
    return file


def train_sweep(folder: Path, **plan: object) -> Path:
    """A sweep planned and laid out as ``rcalign sweep`` does, trained in a bare loop."""
    data = write_rows(folder.parent / "rows.npz")
    values = {"data": str(data), "preset": "arrays", "steps": 6, "evaluate_every": 2, **plan}
    sweep = parse_plan(values, name="tiny")
    runs = expand(sweep, lambda _: DataSummary(tuple(DOMAINS), True))
    entries = [sweep.entry(run) for run in runs]
    layout = SweepFolder(folder)
    folder.mkdir()
    layout.begin(sweep.name, sweep.seed_rule, entries)
    for entry in entries:
        job.run_job(data, options_from(entry), out=layout.run(entry["id"]).path)
    return folder


@pytest.fixture(scope="session")
def finished_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms, three domains held out one by one and in pairs, two draws, two trials: 48 runs. Do not change."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("sweeps") / "tiny"
    try:
        return train_sweep(folder, algorithms=["ERM", "CORAL"], draws=2, seeds=2, pairs=True)
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def long_tailed_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The other protocol, with both seed rules' second one: a search of two draws, not repeated. Do not change."""
    folder = tmp_path_factory.mktemp("long") / "tailed"
    values = {"algorithms": ["ERM", "Focal"], "draws": 2, "protocol": "mdlt", "seed_rule": "tune-then-repeat"}
    return train_sweep(folder, **values)


@pytest.fixture
def sweep(finished_sweep: Path, tmp_path: Path) -> Path:
    """A copy of the sweep, to be damaged."""
    return shutil.copytree(finished_sweep, tmp_path / "sweep", ignore=shutil.ignore_patterns("*.safetensors"))


@pytest.fixture
def domainbed(reference: Path, tmp_path: Path) -> Path:
    """A copy of DomainBed's own sweep, to be damaged."""
    copy = Path(shutil.copytree(reference / "domainbed-sweep" / "runs", tmp_path / "domainbed"))
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755)
    return copy


@pytest.fixture
def run_id(sweep: Path) -> Callable[..., str]:
    """The id of a planned run: run_id(label="ERM", held_out=[...], trial=0, draw=0)."""
    entries = SweepFolder(sweep).plan()["runs"]

    def find(held_out: list[str], label: str = "ERM", trial: int = 0, draw: int = 0) -> str:
        wanted = (label, sorted(held_out), trial, draw)
        (found,) = [e for e in entries if (e["label"], sorted(e["test_domains"]), e["trial"], e["draw"]) == wanted]
        return found["id"]

    return find
