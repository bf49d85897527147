"""What a data set is: rows with a class and a domain, where their content lies, and what was left out and why."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.errors import InputError

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Images:
    """Image files. native_size: the side of all of them where they are square and equal (72 for emoji), else None.

    state: a hash of what the files are, without labels, so that data sets of the same files share one cache.
    """

    paths: tuple[Path, ...]
    native_size: int | None = None
    state: str = ""

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, rows: np.ndarray) -> Images:
        state = self.state and fingerprint([self.state.encode(), np.asarray(rows, dtype=np.int64).tobytes()])
        return Images(tuple(self.paths[row] for row in rows), self.native_size, state)


@dataclass(frozen=True, eq=False)
class ImageArray:
    """Images in memory: x uint8 (n, height, width, 3)."""

    x: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    @property
    def native_size(self) -> int | None:
        return self.x.shape[1] if self.x.shape[1] == self.x.shape[2] else None

    def select(self, rows: np.ndarray) -> ImageArray:
        return ImageArray(self.x[rows])


@dataclass(frozen=True, eq=False)
class Arrays:
    """Numbers in memory: x float32, rows (n, f) or series (n, c, t)."""

    x: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: np.ndarray) -> Arrays:
        return Arrays(self.x[rows])


Content = Images | ImageArray | Arrays


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of several domains.

    y: (n,) int64 positions in ``classes``. domain: (n,) int64 positions in ``domains``.
    split: (n,) of 'train', 'val', 'test', or None. group: (n,) int64 or None; rows of one group (an emoji in all its
    styles, a patient) never land on both sides of a split. notes: what was dropped or is odd, one sentence each.
    fingerprint: sha256 of all that determines the rows: of files the relative path, size and time, of arrays the bytes.
    shots: a (domain, class) pair with more training rows than the first is "many", with at most the second "few".

    >>> x = np.zeros((3, 2), np.float32)
    >>> data = from_names("toy", Arrays(x), ["cat", "dog", "cat"], ["env10", "env2", "env2"], fingerprint="0")
    >>> data.domains, data.counts().tolist(), data.select(np.array([0])).counts().tolist()
    (('env2', 'env10'), [[1, 1], [1, 0]], [[0, 0], [1, 0]])
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    y: np.ndarray
    domain: np.ndarray
    split: np.ndarray | None
    group: np.ndarray | None
    content: Content
    notes: tuple[str, ...]
    fingerprint: str
    shots: tuple[int, int] = (100, 20)

    def __len__(self) -> int:
        return len(self.y)

    def counts(self, rows: np.ndarray | None = None) -> np.ndarray:
        """(K, C) int64: the rows of each (domain, class) pair, of all rows or of some."""
        y, domain = (self.y, self.domain) if rows is None else (self.y[rows], self.domain[rows])
        shape = (len(self.domains), len(self.classes))
        return np.bincount(domain * shape[1] + y, minlength=shape[0] * shape[1]).reshape(shape).astype(np.int64)

    def select(self, rows: Sequence[int] | np.ndarray) -> Dataset:
        """The given rows in the given order. Classes and domains stay as they are, present or not."""
        rows = np.asarray(rows, dtype=np.int64)
        return Dataset(
            self.name,
            self.classes,
            self.domains,
            self.y[rows],
            self.domain[rows],
            None if self.split is None else self.split[rows],
            None if self.group is None else self.group[rows],
            self.content.select(rows),
            self.notes,
            fingerprint([self.fingerprint.encode(), rows.tobytes()]),
            self.shots,
        )


def stratified_rows(y: Sequence[Any] | np.ndarray, domain: Sequence[Any] | np.ndarray, count: int) -> np.ndarray:
    """About ``count`` rows, ascending, in which every (domain, class) pair has nearly the share that it has in all.

    y, domain: (n,) the class and the domain of each row. Of a small pair up to five rows are taken first, if there is
    room. The same rows in each call, and those of a smaller count are among those of a larger one but for that.

    >>> y, domain = np.repeat([0, 1, 0], [80, 10, 10]), np.repeat(["a", "b"], [90, 10])
    >>> rows = stratified_rows(y, domain, 50)
    >>> len(rows), np.bincount(y[rows]).tolist(), (domain[rows] == "b").sum().item()
    (50, [45, 5], 5)
    """
    pair = np.unique([f"{d}\0{c}" for d, c in zip(domain, y, strict=True)], return_inverse=True)[1]
    sizes = np.bincount(pair)
    first = min(5, count // (2 * len(sizes)))
    rng = np.random.default_rng(0)
    rank = np.empty(len(pair))
    for k, size in enumerate(sizes):
        place = rng.permutation(size)
        rank[pair == k] = np.where(place < first, -1.0, (place + 0.5) / size)
    return np.sort(np.lexsort((rng.random(len(pair)), rank))[:count])


def sample_of(dataset: Dataset, count: int) -> Dataset:
    """A sample of so many rows (``stratified_rows``), or the data set itself if it has no more."""
    if count >= len(dataset):
        return dataset
    chosen = dataset.select(stratified_rows(dataset.y, dataset.domain, count))
    return replace(chosen, notes=(*chosen.notes, sample_note(count, len(dataset))))


def sample_size(text: str) -> int:
    """The number of rows that ``sample=`` in the name of data asks for.

    >>> sample_size("300")
    300
    """
    if not re.fullmatch(r"[1-9]\d*", text):
        raise InputError(f"`sample` is '{text}', but a number of rows is expected, such as sample=1000.")
    return int(text)


def without_sample(data: str) -> tuple[str, int | None]:
    """The name of data without the sample that it asks for, and how many rows that is.

    >>> without_sample("photos?sample=300"), without_sample("t.csv?label=y&sample=9"), without_sample("photos")
    (('photos', 300), ('t.csv?label=y', 9), ('photos', None))
    """
    found = re.fullmatch(r"(.*)[?&]sample=([^&]*)", data, re.DOTALL)
    return (data, None) if found is None else (found[1], sample_size(found[2]))


def with_sample(data: str, count: int | None) -> str:
    """The name of a sample of data: ``without_sample`` is its inverse.

    >>> with_sample("photos", 300), with_sample("t.csv?label=y", 9), with_sample("photos", None)
    ('photos?sample=300', 't.csv?label=y&sample=9', 'photos')
    """
    return data if count is None else f"{data}{'&' if '?' in data else '?'}sample={count}"


def sample_note(count: int, rows: int) -> str:
    return f"a sample of {count:,} of {rows:,} rows, in which domains and classes have the shares that they have in all"


def describe(dataset: Dataset) -> dict[str, Any]:
    """All that ``rcalign data info`` shows, as plain values."""
    counts = dataset.counts()
    info: dict[str, Any] = {
        "name": dataset.name,
        "rows": len(dataset),
        "kind": "arrays" if isinstance(dataset.content, Arrays) else "images",
        "classes": list(dataset.classes),
        "domains": list(dataset.domains),
        "counts": {
            domain: {name: int(n) for name, n in zip(dataset.classes, row, strict=True)}
            for domain, row in zip(dataset.domains, counts, strict=True)
        },
        "rows_of_domain": {domain: int(row.sum()) for domain, row in zip(dataset.domains, counts, strict=True)},
        "groups": None if dataset.group is None else len(np.unique(dataset.group)),
        "notes": list(dataset.notes),
        "fingerprint": dataset.fingerprint,
    }
    if isinstance(dataset.content, Images):
        info["native_size"] = dataset.content.native_size
    else:
        info["shape"] = list(dataset.content.x.shape[1:])
    if dataset.split is not None:
        info["splits"] = {
            part: {
                domain: {name: int(n) for name, n in zip(dataset.classes, row, strict=True)}
                for domain, row in zip(dataset.domains, dataset.counts(dataset.split == part), strict=True)
            }
            for part in SPLITS
        }
    return info


# --- for sources -------------------------------------------------------------------------------------------------


def from_names(
    name: str,
    content: Content,
    labels: Sequence[str],
    domains: Sequence[str],
    *,
    fingerprint: str,
    split: Sequence[str] | np.ndarray | None = None,
    group: Sequence[Any] | np.ndarray | None = None,
    notes: Sequence[str] = (),
    class_order: Sequence[str] | None = None,
    domain_order: Sequence[str] | None = None,
) -> Dataset:
    """A data set from one class name and one domain name for each row; both are put into natural order."""
    classes = tuple(class_order or sorted(set(labels), key=natural_key))
    names = tuple(domain_order or sorted(set(domains), key=natural_key))
    of_class = {label: position for position, label in enumerate(classes)}
    of_domain = {domain: position for position, domain in enumerate(names)}
    y = np.fromiter((of_class[label] for label in labels), np.int64, len(labels))
    domain = np.fromiter((of_domain[item] for item in domains), np.int64, len(labels))
    return Dataset(
        name,
        classes,
        names,
        y,
        domain,
        None if split is None else np.asarray(split, dtype="<U5"),
        None if group is None else np.unique(np.asarray(group), return_inverse=True)[1].astype(np.int64),
        content,
        (*notes, *partial_classes(classes, names, y, domain)),
        fingerprint,
    )


def partial_classes(classes: Sequence[str], domains: Sequence[str], y: np.ndarray, domain: np.ndarray) -> list[str]:
    """One note for each class that some domain lacks, at most ten."""
    present = np.zeros((len(domains), len(classes)), dtype=bool)
    present[domain, y] = True
    partial = [c for c in range(len(classes)) if not present[:, c].all()]
    notes = []
    for c in partial[:10]:
        having = [name for name, has in zip(domains, present[:, c], strict=True) if has]
        notes.append(f"class '{classes[c]}' is in {len(having)} of {len(domains)} domains only: {', '.join(having)}")
    if len(partial) > 10:
        notes.append(f"{len(partial) - 10} more classes are missing from some domain")
    return notes


def natural_key(name: str) -> tuple[Any, ...]:
    """Sorts numbers inside names by their value.

    >>> sorted(["env10", "env2", "Env1"], key=natural_key)
    ['Env1', 'env2', 'env10']
    """
    pieces = re.split(r"(\d+)", name)
    return (*((int(piece), "") if piece.isdecimal() else (-1, piece.casefold()) for piece in pieces), (-1, name))


def check_spelling(pairs: Iterable[tuple[str, str]]) -> None:
    """Raises if one class is spelled in two ways. pairs: (domain, class) names.

    Names count as the same when they differ in case, spaces, underscores, hyphens or Unicode form only, and no domain
    has both (letters 'A' and 'a' side by side are two classes).
    """
    domains_of: dict[str, set[str]] = defaultdict(set)
    for domain, label in pairs:
        domains_of[label].add(domain)
    spellings: dict[str, list[str]] = defaultdict(list)
    for label in domains_of:
        plain = unicodedata.normalize("NFKC", label).casefold().strip()
        # a separator between two digits means something: 1_1 is not 11
        spellings[re.sub(r"(?<!\d)[\s_-]+|[\s_-]+(?!\d)", "", plain)].append(label)
    for names in spellings.values():
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                if domains_of[first].isdisjoint(domains_of[second]):
                    raise InputError(
                        f"the class '{first}' (domain '{min(domains_of[first])}') is spelled '{second}' in domain "
                        f"'{min(domains_of[second])}': one spelling for all domains is expected; rename one of them."
                    )


def fingerprint(parts: Iterable[bytes]) -> str:
    """sha256 of the parts, each preceded by its length so that no two lists of parts run together."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def files_fingerprint(root: Path, paths: Sequence[Path], stats: Sequence[os.stat_result], more: Iterable[str]) -> str:
    """Hash of relative path, size and time of change of each file; ``more``: labels and what else makes the rows."""
    start = len(os.fspath(root)) + 1
    inside = os.fspath(root) + os.sep

    def parts() -> Iterable[bytes]:
        for path, stat in zip(paths, stats, strict=True):
            text = os.fspath(path)
            yield os.fsencode(text[start:] if text.startswith(inside) else text)
            yield f"{stat.st_size} {stat.st_mtime_ns}".encode()
        for text in more:
            yield text.encode("utf-8", "surrogateescape")

    return fingerprint(parts())


def listed(names: Sequence[str], limit: int = 3) -> str:
    """The first few names in quotes, and how many more there are.

    >>> listed(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(f"'{name}'" for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
