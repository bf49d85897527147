"""Spawrious (Lynch et al., 2023): four dog breeds before six backgrounds that are tied to the breed in training only.

Six variants. One to one (O2O): each breed has its own background in 97 % and 87 % of the images of the two training
domains, the rest before a common one; in the test domain the backgrounds are others. Many to many (M2M): pairs of
breeds share pairs of backgrounds, which are exchanged between pairs in the test domain. The archive has two halves,
``0`` and ``1``, each with 3,168 images for every background and breed; where a domain has a share of them, the first.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data.benchmarks.archives import Entry, is_archive, open_source
from rcalign.data.benchmarks.place import compared, data_root, disk_errors, is_stand_in, locked, stand_in_note
from rcalign.data.picture import SUFFIXES
from rcalign.data.source import Dataset
from rcalign.data.sources.image_files import dataset_of_files
from rcalign.errors import InputError

FOLDER = "spawrious224"
PAGE = "https://github.com/aengusl/spawrious"
BREEDS = ("bulldog", "corgi", "dachshund", "labrador")
PLACES = ("beach", "desert", "dirt", "jungle", "mountain", "snow")
HALVES = ("0", "1")
EACH = 3168  # images of a half, background and breed
DOMAINS = ("Test", "SC_group_1", "SC_group_2")  # DomainBed's
SHARES = (0.97, 0.87)  # of images before the breed's own background, in the two training domains
ORDER = ("bulldog", "dachshund", "labrador", "corgi")  # of the backgrounds below
# variant -> backgrounds of the breeds in training, in the test domain, and the common one (None: many to many)
VARIANTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str | None]] = {
    "SpawriousO2O_easy": (("desert", "jungle", "dirt", "snow"), ("dirt", "snow", "desert", "jungle"), "beach"),
    "SpawriousO2O_medium": (("mountain", "beach", "dirt", "jungle"), ("jungle", "dirt", "beach", "snow"), "desert"),
    "SpawriousO2O_hard": (("jungle", "mountain", "snow", "desert"), ("mountain", "snow", "desert", "jungle"), "beach"),
    "SpawriousM2M_easy": (("desert", "mountain", "dirt", "jungle"), ("dirt", "jungle", "mountain", "desert"), None),
    "SpawriousM2M_medium": (("beach", "snow", "mountain", "desert"), ("desert", "mountain", "beach", "snow"), None),
    "SpawriousM2M_hard": (("dirt", "jungle", "snow", "beach"), ("snow", "beach", "dirt", "jungle"), None),
}
PARTNER = (1, 0, 3, 2)  # whose background a breed has in the other half of a many-to-many domain


@dataclass(frozen=True)
class ImageShare:
    """The first ``count(n)`` of the n images of a half, background and breed are in a domain."""

    domain: str
    half: str
    background: str
    breed: str
    share: float = 1.0
    rest: bool = False  # as many as the share leaves

    def count(self, n: int) -> int:
        """How many of the n images are in the domain.

        >>> ImageShare("SC_group_1", "0", "snow", "corgi", 0.97).count(EACH)
        3072
        >>> ImageShare("SC_group_1", "0", "beach", "corgi", 0.97, rest=True).count(EACH)
        96
        """
        return n - int(self.share * n) if self.rest else int(self.share * n)


def choices(variant: str) -> Iterator[ImageShare]:
    """Which images are in which domain of a variant."""
    train, test, common = VARIANTS[variant]
    for i, breed in enumerate(ORDER):
        if common is not None:
            for half, domain, share in zip(HALVES, DOMAINS[1:], SHARES, strict=True):
                yield ImageShare(domain, half, train[i], breed, share)
                yield ImageShare(domain, half, common, breed, share, rest=True)
                yield ImageShare(DOMAINS[0], half, test[i], breed)
        else:
            yield ImageShare(DOMAINS[1], "0", train[i], breed)
            yield ImageShare(DOMAINS[2], "0", train[PARTNER[i]], breed)
            yield ImageShare(DOMAINS[0], "0", test[i], breed)
            yield ImageShare(DOMAINS[0], "0", test[PARTNER[i]], breed)


def load(
    variant: str, root: str | None = None, *, partial: bool = False, skip_bad: bool = False, progress: bool = False
) -> Dataset:
    """One variant of what is in the data root. partial: also if images are missing."""
    folder = data_root(root) / FOLDER
    if not folder.is_dir():
        raise InputError(
            f"{variant} is not in the data root, no folder '{folder}': get spawrious224.tar.gz from {PAGE} and run "
            f"'rcalign data prepare {variant} --from spawrious224.tar.gz', or set RCALIGN_DATA if it is elsewhere."
        )
    problems = _problems(folder)
    notes = [stand_in_note(folder, variant)] if is_stand_in(folder) else []
    if problems and not notes and not partial:
        raise InputError(f"'{folder}' is not the whole of Spawrious: {problems[0]}; go on with {variant}:partial=true.")
    rows: list[tuple[str, str, Path]] = []
    for choice in choices(variant):
        files = _files(folder / choice.half / choice.background / choice.breed)
        rows += [(choice.domain, choice.breed, file) for file in files[: choice.count(len(files))]]
    rows.sort(key=lambda row: (DOMAINS.index(row[0]), row[1], row[2]))
    return dataset_of_files(
        variant,
        folder,
        [file for _, _, file in rows],
        [breed for _, breed, _ in rows],
        [domain for domain, _, _ in rows],
        notes=notes + [f"not the whole of Spawrious: {problem}" for problem in ([] if notes else problems)],
        class_order=BREEDS,
        domain_order=DOMAINS,
        skip_bad=skip_bad,
        progress=progress,
    )


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _problems(folder: Path) -> list[str]:
    counts = {
        f"{half}/{place}/{breed}": len(_files(folder / half / place / breed))
        for half in HALVES
        for place in PLACES
        for breed in BREEDS
    }
    return [f"{name} has {n:,} images, {EACH:,} expected" for name, n in counts.items() if n != EACH]


def prepare(
    sources: Sequence[str | os.PathLike[str]],
    root: str | os.PathLike[str] | None = None,
    *,
    replace: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Puts the archive's images, or those of a folder, into the data root."""
    folder = data_root(root) / FOLDER
    image = re.compile(rf"(?:^|/)([01]/(?:{'|'.join(PLACES)})/(?:{'|'.join(BREEDS)})/[^/]+)$")

    def places(entry: Entry) -> list[Path]:
        found = image.search(entry.path)
        return [growing / found[1]] if found and Path(entry.path).suffix.lower() in SUFFIXES else []

    with locked(folder.with_name(f".{FOLDER}.lock"), "Another process prepares Spawrious: waiting."):
        if folder.exists() and not replace:
            raise InputError(f"'{folder}' is there already: prepare it anew with `replace`.")
        growing = folder.with_name(f".{FOLDER}.growing")
        counts: Counter[str] = Counter()
        for source in (Path(path).expanduser().absolute() for path in sources):
            if not source.is_dir() and not (source.is_file() and is_archive(source)):
                raise InputError(f"'{source}' is no folder and no archive: give spawrious224.tar.gz, from {PAGE}.")
            counts.update(entry.path.split("/")[-3] for entry in open_source(source).copy(places))
        if not counts:
            raise InputError(
                f"no image of Spawrious was found: expected are folders 0 and 1 with {', '.join(PLACES)}, and in each "
                f"{', '.join(BREEDS)}."
            )
        with disk_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(growing, folder)
    return {"name": "Spawrious", "folder": str(folder), "images": dict(sorted(counts.items())), "notes": []}


def verify(name: str, root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Compares the images of every half, background and breed with the published counts."""
    folder = data_root(root) / FOLDER
    problems = _problems(folder) if folder.is_dir() else [f"there is no folder '{folder}'"]
    counts = {
        place: sum(len(_files(folder / half / place / breed)) for half in HALVES for breed in BREEDS)
        for place in PLACES
    }
    expected = {"as published": EACH * len(HALVES) * len(PLACES) * len(BREEDS)}
    return compared(name, folder, counts, expected, problems[:20])


def drawn(growing: Path, each: int, seed: int) -> int:
    """Writes a stand-in with ``each`` images of every half, background and breed. -> how many."""
    from rcalign.data.benchmarks.sample import draw_picture

    number = 0
    for half in HALVES:
        for k, place in enumerate(PLACES):
            for c, breed in enumerate(BREEDS):
                folder = growing / half / place / breed
                folder.mkdir(parents=True)
                for n in range(each):
                    rng = np.random.default_rng([seed, number])
                    draw_picture(k, c, len(BREEDS), 32, rng).save(folder / f"{n:03d}.png")
                    number += 1
    return number
