"""A folder ``domain/class/image``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rcalign.data.picture import SUFFIXES
from rcalign.data.source import Dataset, check_spelling, listed, natural_key
from rcalign.data.sources.image_files import dataset_of_files
from rcalign.errors import InputError


def load(root: str | os.PathLike[str], *, skip_bad: bool = False, progress: bool = False) -> Dataset:
    """Every image below ``root/domain/class``. Hidden files and other kinds of files are left out.

    Domains are in natural order; the rows of a domain in that of torchvision's ``ImageFolder``, so that a split of row
    numbers is the same as DomainBed's.
    """
    root = Path(os.path.abspath(root))
    paths: list[Path] = []
    labels: list[str] = []
    domains: list[str] = []
    ignored: list[str] = []
    notes: list[str] = []
    subfolders, loose = _entries(root)
    if not subfolders:
        raise InputError(f"'{root}' has no subfolders: expected domain/class/image below it.")
    ignored += [path.name for path in loose]
    for domain in sorted(subfolders, key=lambda path: natural_key(path.name)):
        class_folders, loose = _entries(domain)
        ignored += [os.path.relpath(path, root) for path in loose]
        before = len(paths)
        for label in class_folders:
            found = []
            for path in _files(label, (root, domain)):
                if path.suffix.lower() in SUFFIXES:
                    found.append(path)
                else:
                    ignored.append(os.path.relpath(path, root))
            if not found:
                notes.append(f"folder '{domain.name}/{label.name}' has no images")
            paths += found
            labels += [label.name] * len(found)
            domains += [domain.name] * len(found)
        if len(paths) == before:
            pictures = sum(path.suffix.lower() in SUFFIXES for path in loose)
            hint = (
                f"it has {pictures} images of its own, but expected are folders domain/class/image, one more level"
                if pictures
                else "fill it or remove it"
            )
            raise InputError(f"domain '{domain.name}' in '{root}' has no images in class folders: {hint}.")
    if ignored:
        notes.append(f"{len(ignored)} files left out, not images in a class folder: {listed(ignored)}")
    check_spelling(zip(domains, labels, strict=True))
    return dataset_of_files(root.name, root, paths, labels, domains, notes=notes, skip_bad=skip_bad, progress=progress)


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Subfolders and files, hidden ones left out, each sorted by name."""
    folders: list[Path] = []
    files: list[Path] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if not entry.name.startswith("."):
                    (folders if entry.is_dir() else files).append(Path(entry.path))
    except OSError as error:
        raise InputError(
            f"folder '{folder}' cannot be read ({error.strerror}): check its permissions and links."
        ) from None
    return sorted(folders), sorted(files)


def _files(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """The files below a folder, all levels, links followed. A link back to a folder above is an error."""
    real = os.path.realpath(folder)
    for parent in above:
        if real == os.path.realpath(parent):
            raise InputError(f"'{folder}' is a link back to '{parent}' above it, an endless loop: remove the link.")
    folders, files = _entries(folder)
    yield from files
    for inner in folders:
        yield from _files(inner, (*above, folder))
