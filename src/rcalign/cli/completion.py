"""What the shell offers when Tab is pressed. Nothing here may be slow: torch is not imported, few folders are read."""

from __future__ import annotations

import os
from collections.abc import Iterator

MOST_FOLDERS = 500  # that are looked into for runs


def complete_algorithm(incomplete: str) -> list[str]:
    """Names of algorithms, in small letters if they were begun so.

    >>> complete_algorithm("RC"), complete_algorithm("rc-")
    (['RC-Align'], ['rc-align'])
    """
    from rcalign.catalogue import list_algorithms

    names = [row["name"] for row in list_algorithms()]
    return [name for name in [*names, *map(str.lower, names)] if incomplete and name.startswith(incomplete)] or names


def complete_data(incomplete: str) -> list[str]:
    """Names of data sets, and files and folders that may be data."""
    from rcalign.data.sources import named

    names = [name for name in named.source_names() if name.startswith(incomplete)]
    return [*names, *_paths(incomplete, (".csv", ".npz", ".parquet"))]


def complete_plan(incomplete: str) -> list[str]:
    """Recipes, sweep files, and the word "status"."""
    from rcalign.sweeps.plan_file import recipes

    known = [name for name in ("status", *recipes()) if name.startswith(incomplete)]
    return [*known, *_paths(incomplete, (".toml",))]


def complete_run(incomplete: str) -> list[str]:
    """Run folders at or below what was begun, the nearest first."""
    return list(_folders_with("config.json", incomplete))


def complete_runs_folder(incomplete: str) -> list[str]:
    """Sweeps and run folders at or below what was begun."""
    return [*_folders_with("plan.json", incomplete), *_folders_with("config.json", incomplete)]


def _paths(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    return [
        f"{start}{item.name}/" if item.is_dir() else f"{start}{item.name}"
        for start, item in _entries(incomplete)
        if item.is_dir() or item.name.endswith(endings)
    ]


def _folders_with(file: str, incomplete: str) -> Iterator[str]:
    """Folders that hold a file; breadth first, not below such a folder, at most so many folders."""
    waiting = [f"{start}{item.name}" for start, item in _entries(incomplete) if item.is_dir()]
    for seen, folder in enumerate(waiting):  # which grows
        if seen == MOST_FOLDERS:
            return
        if os.path.exists(f"{folder}/{file}"):
            yield folder
        else:
            waiting += [f"{start}{item.name}" for start, item in _entries(f"{folder}/") if item.is_dir()]


def _entries(incomplete: str) -> list[tuple[str, os.DirEntry[str]]]:
    """What a folder holds that begins as given, and the folder as it was written; hidden ones only if asked for."""
    folder, slash, begun = incomplete.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(folder + slash) or ".") as found:
            items = sorted(found, key=lambda item: item.name)
    except OSError:
        return []
    visible = [item for item in items if begun.startswith(".") or not item.name.startswith(".")]
    return [(folder + slash, item) for item in visible if item.name.startswith(begun)]
