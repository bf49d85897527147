"""Small image folders made on the spot, and a cache that is not the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pictures import picture

MakeFolder = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has its own empty cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("RCALIGN_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def emoji_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests that read emoji: they are looked at once."""
    return tmp_path_factory.mktemp("emoji")


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """make(domains, classes, each): a folder domain/class/image with ``each`` pictures in every pair."""

    def make(domains: tuple[str, ...] = ("a", "b"), classes: tuple[str, ...] = ("x", "y"), each: int = 3) -> Path:
        root = tmp_path / "pictures"
        seed = 0
        for domain in domains:
            for label in classes:
                for i in range(each):
                    seed += 1
                    picture(root / domain / label / f"{i}.png", seed)
        return root

    return make
