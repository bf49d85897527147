"""A data root that is not the user's, and stand-ins in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcalign.data.benchmarks import facts, sample


@pytest.fixture(autouse=True)
def own_root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has its own empty data root."""
    folder = tmp_path_factory.mktemp("root")
    monkeypatch.setenv("RCALIGN_DATA", str(folder))
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stand-ins of the small benchmarks, two images of every pair: like somebody's data_dir."""
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("PACS", "VLCS", "OfficeHome", "TerraIncognita"):
        sample.sample(facts.get_benchmark(name), folder, each=2, size=8)
    return folder
