"""Where caches and data lie when nobody says: the platform's convention, or where an earlier version put them."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

OLD_CACHE = Path("~/.cache/rcalign")
OLD_DATA = Path("~/.local/share/rcalign")


def default_cache_root() -> Path:
    """``$RCALIGN_CACHE``, else the platform's folder for caches (on Linux ``~/.cache/rcalign``)."""
    return _place("RCALIGN_CACHE", platformdirs.user_cache_path("rcalign"), OLD_CACHE)


def default_data_root() -> Path:
    """``$RCALIGN_DATA``, else the platform's folder for data (on Linux ``~/.local/share/rcalign``)."""
    return _place("RCALIGN_DATA", platformdirs.user_data_path("rcalign"), OLD_DATA)


def _place(variable: str, usual: Path, old: Path) -> Path:
    if os.environ.get(variable):
        return Path(os.environ[variable]).expanduser().absolute()
    old = old.expanduser()
    return (old if old.is_dir() and not usual.is_dir() else usual).absolute()
